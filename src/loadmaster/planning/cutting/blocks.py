"""Cuts into few large blocks that stream weights, for networks whose weights and activations both
exceed the fast memory, such as the prefill of language models."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np

from loadmaster.core.arrays import Floats, grouped_sums
from loadmaster.cost.analytical.job_costs import job_tables
from loadmaster.cost.analytical.nests import WEIGHTS_STREAMED
from loadmaster.planning.cutting.banding import until_all_end
from loadmaster.planning.cutting.choice import ROOM
from loadmaster.planning.cutting.options import (
    OperatorPieces,
    canonical_index,
    channels_of,
    piece_workload,
)
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import TensorKind
from loadmaster.workloads.job import operand_bytes
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible, Grid
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork, sizes_for

_WORTH_OF_A_PIECE = 1e-5
"""Least share of the time of all operators that one more piece has to save, because pieces take
time to plan."""

_STAYS = 0.25
"""Weights of an operator that exceed this share of the fast memory are streamed."""


def streams_weights(network: DivisibleNetwork, target: Target) -> bool:
    """Whether some operator's weights exceed the fast memory, while its arithmetic intensity is so
    high that reading weights repeatedly costs little."""
    balance = sizes_for(target).balance
    return target.room > 0 and any(
        _is_weight_above(network, access.tensor, target.room)
        and sum(nest.macs for nest in group.nests) >= access.bytes * balance
        for group, form in zip(network.fused, network.forms, strict=True)
        if form is not None
        for access in group.reads
    )


def in_blocks(network: DivisibleNetwork, target: Target) -> Cuts:
    """Cut a network into blocks of positions, and into channel parts where several cores share a
    block; pieces are ordered depth first.

    Weights are streamed once per block. The other operands of the pieces that run at once fit into
    the fast memory together, if possible. Every operator gets the cut with the least maximum of
    arithmetic, main-link and fast-link time, unless fewer pieces take hardly longer. O(distinct
    operators x parts + pieces).
    """
    canonical = canonical_index(network)
    options = [
        (number, grid)
        for number, form in enumerate(network.forms)
        if form is not None and canonical[number] == number
        for grid in _options(network.fused[number], form, len(target.cores))
    ]
    chosen = _chosen(options, _seconds(network, options, target).tolist(), Counter(canonical))
    cuts = [
        chosen.get(number, plain) for number, plain in zip(canonical, network.plain, strict=True)
    ]
    return Cuts(cuts, depth_first(network, cuts, target))


def _chosen(
    options: Sequence[tuple[int, Grid]], seconds: Sequence[float], times: Mapping[int, int]
) -> dict[int, Grid]:
    """The grid of each operator with the least time plus a penalty per piece; ``times`` is how
    often an equal operator occurs."""
    least: dict[int, float] = {}
    for (number, _), took in zip(options, seconds, strict=True):
        least[number] = min(took, least.get(number, took))
    worth = _WORTH_OF_A_PIECE * sum(took * times[number] for number, took in least.items())
    best: dict[int, tuple[float, Grid]] = {}
    for (number, grid), took in zip(options, seconds, strict=True):
        cost = took + worth * grid.tiles
        if number not in best or cost < best[number][0]:
            best[number] = cost, grid
    return {number: grid for number, (_, grid) in best.items()}


def depth_first(
    network: DivisibleNetwork, cuts: Sequence[Grid], target: Target
) -> list[tuple[int, int]]:
    """Order (operator, piece) pairs depth first: each piece comes just before the first piece that
    reads it, beginning with the first piece of the last operator.

    O(pieces + dependencies).
    """
    steps = Cuts(cuts).steps
    jobs = lower([network.graph], target, cuts=[Cuts(cuts)]).jobs
    makers: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        for operand in job.writes:
            makers.setdefault(operand.tensor, []).append(number)
    before = [
        dict.fromkeys(
            maker
            for operand in job.reads
            for maker in makers.get(operand.tensor, ())
            if maker < number
        )
        for number, job in enumerate(jobs)
    ]
    order: dict[int, None] = {}
    # Roots are the pieces of later operators first, in order within an operator.
    for root in sorted(range(len(steps)), key=lambda number: (-steps[number][0], number)):
        waiting = [] if root in order else [root]
        while waiting:
            number = waiting[-1]
            missing = [maker for maker in before[number] if maker not in order]
            if missing:
                waiting += missing[::-1]
            else:
                order[waiting.pop()] = None
    return [steps[number] for number in order]


def _counts(extent: int, most: int) -> list[int]:
    """Numbers of parts to try: powers of two, and the most."""
    most = min(extent, most)
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def _options(group: FusedOp, form: Divisible, cores: int) -> Iterator[Grid]:
    """Yield grids of blocks, cut along the outermost dimensions first, combined with up to
    ``cores`` channel parts."""
    channels, outer = channels_of(form, group), dict[int, int]()
    blocks: list[dict[int, int]] = []
    for axis in (axis for axis in form.axes if axis != channels):
        counts = _counts(form.shape[axis] // form.step[axis], form.shape[axis])
        blocks += [{**outer, axis: count} for count in counts]
        outer[axis] = counts[-1]
    parts = (
        [{}]
        if channels is None
        else [
            {channels: count}
            for count in _counts(form.shape[channels] // form.step[channels], cores)
        ]
    )
    yield from (
        form.grid({**block, **part}) for block, part in itertools.product(blocks or [{}], parts)
    )


def _seconds(
    network: DivisibleNetwork, options: Sequence[tuple[int, Grid]], target: Target
) -> Floats:
    """Seconds of operators for each grid, estimated from its first piece: the maximum of arithmetic
    on all cores and of the time of either link."""
    firsts = []
    for number, own in itertools.groupby(options, key=itemgetter(0)):
        form = network.forms[number]
        boxes = [[(0, ends[0]) for ends in grid.ends] for _, grid in own]
        assert form is not None
        firsts.append(OperatorPieces(network.fused[number], form, np.array(boxes, dtype=np.int64)))
    work = piece_workload(network.graph, firsts)
    (table,) = job_tables(work, target, [WEIGHTS_STREAMED])
    storages = [work.tensors[tensor].name for tensor in table.operand_tensor.tolist()]
    streamed = np.array(
        [_is_weight_above(network, storage, _STAYS * target.room) for storage in storages],
        dtype=np.bool_,
    )
    sizes = operand_bytes(work.jobs)
    job, count = table.operand_job, len(options)
    owners = [options[row] for row in job.tolist()]
    at_once = np.array(
        [
            _held_at_once(network, owner, storage, len(target.cores))
            for owner, storage in zip(owners, storages, strict=True)
        ]
    )
    held = grouped_sums(job, np.where(streamed, 0, sizes * at_once), count)
    streamed |= (held > ROOM * target.room)[job]
    pieces = np.array([grid.tiles for _, grid in options], dtype=np.int64)
    moved = table.moved.min(axis=1) * pieces[job]
    main = grouped_sums(job, np.where(streamed, moved, 0), count) / target.main.read_bandwidth
    near = grouped_sums(job, np.where(streamed, 0, moved), count) / target.near.read_bandwidth
    work_ends = [
        until_all_end(each, tiles)
        for each, tiles in zip(table.compute, pieces.tolist(), strict=True)
    ]
    return np.maximum(np.maximum(main, near), work_ends)


def _is_weight_above(network: DivisibleNetwork, storage: str, size: float) -> bool:
    """Whether a storage is a weight of more than ``size`` bytes."""
    tensor = network.graph.tensors[storage]
    return tensor.kind is TensorKind.WEIGHT and tensor.bytes > size


def _held_at_once(
    network: DivisibleNetwork, owner: tuple[int, Grid], storage: str, cores: int
) -> int:
    """Number of copies of an operand in the fast memory for the pieces that run at once; channel
    parts of one block share what they read.

    Operators without arithmetic are assumed to run one piece at a time.
    """
    number, grid = owner
    group, form = network.fused[number], network.forms[number]
    if not group.nests or form is None:
        return 1
    channels, pieces = channels_of(form, group), min(cores, grid.tiles)
    if channels is None or storage not in form.uses or form.divides(storage, channels):
        return pieces
    return -(-pieces // len(grid.ends[channels]))

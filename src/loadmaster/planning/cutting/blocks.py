"""Operators in few and large pieces that stream weights: for networks whose weights and activations
both exceed the fast memory."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter

import numpy as np

from loadmaster.core.arrays import Floats, grouped_sums
from loadmaster.cost.analytical.job_costs import job_tables
from loadmaster.cost.analytical.nests import WEIGHTS_STREAMED
from loadmaster.planning.cutting.choice import ROOM
from loadmaster.planning.cutting.options import Pieces, canonical_index, piece_workload
from loadmaster.planning.cutting.way_costs import until_all_end
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import TensorKind
from loadmaster.workloads.job import operand_bytes
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import CHANNELS, Divisible, Grid
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork, sizes_for

_WORTH_OF_A_PIECE = 1e-5
"""Share of the time of all operators that a piece more has to save: pieces take time to plan."""

_STAYS = 0.25
"""Share of the fast memory that weights of an operator may take and stay there meanwhile: others
are streamed."""


def streams_weights(network: DivisibleNetwork, target: Target) -> bool:
    """Whether some operator's weights exceed the fast memory, and it does so much with each that
    reading it more than once costs little."""
    balance = sizes_for(target).balance
    return target.room > 0 and any(
        _is_weight_above(network, access.tensor, target.room)
        and sum(nest.macs for nest in group.nests) >= access.bytes * balance
        for group, form in zip(network.fused, network.forms, strict=True)
        if form is not None
        for access in group.reads
    )


def in_blocks(network: DivisibleNetwork, target: Target) -> Cuts:
    """Cuts of a network into blocks of positions, and of channels where several cores share a
    block, in an order that is depth first.

    Weights are streamed once for every block. What else the pieces touch that all cores work on at
    once fits into the fast memory together, if it can. Of such cuts an operator gets the one with
    which the slowest of arithmetic on all cores and either link takes least, unless fewer pieces
    take hardly longer. O(distinct operators x parts + pieces).
    """
    canonical = canonical_index(network.graph, network.fused, network.forms)
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
    """For every operator, which there is so many times, the grid of the least seconds, those that
    make pieces not worth it left out."""
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
    """Operators and pieces in an order in which each piece comes when one that reads it is next,
    beginning with the last operator's first.

    O(pieces + what they read of one another).
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
    # Pieces of later operators first, those of one operator from the first on: what is needed last
    # is begun with.
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
    """Numbers of parts: powers of two, and the most."""
    most = min(extent, most)
    return [*(2**power for power in range(most.bit_length()) if 2**power < most), most]


def _channels(group: FusedOp, form: Divisible) -> int | None:
    """The dimension of an operator's result that holds its output channels, if it can be cut along
    it."""
    loops = group.nests[0].loops if group.nests else ()
    axis = loops.index(CHANNELS) if CHANNELS in loops else None
    return axis if axis in form.axes else None


def _options(group: FusedOp, form: Divisible, cores: int) -> Iterator[Grid]:
    """Grids of blocks, cut along the outermost dimensions first, each in up to as many parts of the
    channels as there are cores."""
    channels, outer = _channels(group, form), dict[int, int]()
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
    """Seconds that operators take in grids, by the first piece of each: those of all cores'
    arithmetic, or of the slower link."""
    firsts = []
    for number, own in itertools.groupby(options, key=itemgetter(0)):
        form = network.forms[number]
        boxes = [[(0, ends[0]) for ends in grid.ends] for _, grid in own]
        assert form is not None
        firsts.append(Pieces(network.fused[number], form, np.array(boxes, dtype=np.int64)))
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
    tensor = network.graph.tensors[storage]
    return tensor.kind is TensorKind.WEIGHT and tensor.bytes > size


def _held_at_once(
    network: DivisibleNetwork, owner: tuple[int, Grid], storage: str, cores: int
) -> int:
    """Of how many pieces that cores work on at once an operand lies in the fast memory; parts of a
    block's channels share what they read.

    Where there is no arithmetic to share, cores need not be at work together.
    """
    number, grid = owner
    group, form = network.fused[number], network.forms[number]
    if not group.nests or form is None:
        return 1
    channels, pieces = _channels(group, form), min(cores, grid.tiles)
    if channels is None or storage not in form.uses or form.divides(storage, channels):
        return pieces
    return -(-pieces // len(grid.ends[channels]))

"""Cut options of one operator: pieces along one dimension, sized so that unlike cores end at the
same time."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints, grouped_sums
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.base import JobTable, link_seconds
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Access, Graph
from loadmaster.workloads.job import Job, Operand, Role, TensorInstance, Workload
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import CHANNELS, Divisible, Grid, Uses, piece_of
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork, operand_roles
from loadmaster.workloads.window import volumes, whole_boxes


def signature(graph: Graph, group: FusedOp, form: Divisible) -> object:
    """A key of everything that determines the costs of an operator's pieces, without names."""
    names: dict[str, str] = {}

    def alias(name: str) -> str:
        """Return a short name for a tensor, equal for equal names."""
        return names.setdefault(name, str(len(names)))

    nests = tuple(
        replace(n, input=alias(n.input), weight=alias(n.weight), output=alias(n.output))
        for n in group.nests
    )
    reads = tuple(
        (
            alias(storage),
            graph.tensors[storage].bytes,
            uses.views,
        )
        for storage, uses in form.uses.items()
    )
    accesses = tuple((alias(a.tensor), a.bytes) for a in (*group.reads, *group.writes))
    return form.shape, form.step, group.elements, group.main.bits, nests, reads, accesses


def canonical_index(network: DivisibleNetwork) -> list[int]:
    """For every operator, the number of the first with the same :func:`signature`; operators that
    cannot be cut are all distinct. O(operators + operands)."""
    known: dict[object, int] = {}
    return [
        number if form is None else known.setdefault(signature(network.graph, group, form), number)
        for number, (group, form) in enumerate(zip(network.fused, network.forms, strict=True))
    ]


@dataclass(frozen=True)
class PieceCosts:
    """Seconds of pieces: ``alone[p, c]`` on each core, ``link[p]`` of the fast memory's link, and
    ``stream[p]`` of the main link.

    Operands are in the fast memory if all operands of the piece fit there; else they are streamed
    from main memory.
    """

    alone: Floats
    link: Floats
    stream: Floats

    def __getitem__(self, pieces: slice | Ints) -> PieceCosts:
        """Select the costs of some pieces."""
        return PieceCosts(self.alone[pieces], self.link[pieces], self.stream[pieces])

    @staticmethod
    def of(table: JobTable, target: Target) -> PieceCosts:
        """Return the costs of the jobs of a table."""
        job, jobs = table.operand_job, len(table.compute)
        least = grouped_sums(job, table.moved.min(axis=1), jobs)
        streams = (least > target.near.capacity)[job]
        seconds = np.where(
            streams[:, None], link_seconds(table, target.main), link_seconds(table, target.near)
        )
        link = grouped_sums(job, np.where(streams, 0.0, seconds.min(axis=1)), jobs)
        stream = grouped_sums(job, np.where(streams, seconds.min(axis=1), 0.0), jobs)
        return PieceCosts(np.maximum(table.compute, grouped_sums(job, seconds, jobs)), link, stream)


@dataclass(frozen=True)
class OperatorPieces:
    """Pieces of an operator, by the boxes of its result, shape (pieces, dimensions, 2)."""

    group: FusedOp
    form: Divisible
    boxes: Ints


def piece_workload(graph: Graph, pieces: Sequence[OperatorPieces]) -> Workload:
    """Make jobs of pieces of a network's operators, to cost them; every storage is one tensor.
    Linear in the operands."""
    jobs = tuple(job for several in pieces for job in _jobs(graph, several))
    names = dict.fromkeys(operand.tensor for job in jobs for operand in (*job.reads, *job.writes))
    tensors = tuple(
        TensorInstance(name, "", name, 0, graph.tensors[name].bytes, "activation") for name in names
    )
    return Workload((), jobs, tensors)


def _jobs(graph: Graph, pieces: OperatorPieces) -> Iterator[Job]:
    """Yield the job of every piece of an operator, as it is costed: its box, its reads and its
    writes."""
    group, form = pieces.group, pieces.form
    total = math.prod(form.shape)
    needed: dict[Uses, list[int]] = {}
    reads = [_reads(graph, pieces, access, needed) for access in group.reads]
    outputs = [
        (access.tensor, *operand_roles(group.nests, access, [Role.OUTPUT])[0])
        for access in group.writes
    ]
    for number, (box, made) in enumerate(
        zip(pieces.boxes.tolist(), volumes(pieces.boxes).tolist(), strict=True)
    ):
        writes = (
            Operand(name, graph.tensors[name].bytes * made // total, role, nest)
            for name, role, nest in outputs
        )
        yield Job(
            name=group.main.name,
            network="",
            mini_batch=0,
            kind=group.main.kind,
            operators=(group.main.name,),
            nests=tuple(piece_of(nest, form.shape, box) for nest in group.nests),
            elements=group.elements * made // total,
            bits=group.main.bits,
            reads=tuple(operand for own in reads for operand in own[number]),
            writes=tuple(writes),
            after=(),
        )


def _reads(
    graph: Graph, pieces: OperatorPieces, access: Access, needed: dict[Uses, list[int]]
) -> list[list[Operand]]:
    """The operands that each piece reads of a storage; ``needed`` caches numbers of elements."""
    tensor, uses = graph.tensors[access.tensor], pieces.form.uses[access.tensor]
    roles = operand_roles(pieces.group.nests, access)
    if uses not in needed:
        needed[uses] = volumes(uses.needed_boxes(pieces.boxes)).tolist()
    elements = max(1, math.prod(tensor.shape))
    sizes = [-(-tensor.bytes * count // elements) for count in needed[uses]]
    return [
        [Operand(access.tensor, size, role, nest) for role, nest in roles if size] for size in sizes
    ]


_SIZES = 32
"""Number of sizes, about, of a piece along a dimension that are costed."""


@dataclass(frozen=True)
class CutOption:
    """A cut of an operator, and the costs of its pieces."""

    cut: Grid
    costs: PieceCosts


def largest_within(sizes: Ints, seconds: Floats) -> Ints:
    """The largest piece that each core completes within each limit of time, increasing, shape
    (limits, cores).

    ``seconds[s, c]`` is the time of a piece of ``sizes[s]`` on core ``c``; sizes increase up to the
    extent of the dimension, which every core completes within the last limit.
    """
    # Times must not decrease with size, which the cost model does not guarantee.
    times = np.maximum.accumulate(seconds, axis=0)
    limits = np.unique(times)
    completed = [np.searchsorted(own, limits, side="right") for own in times.T]
    return np.append(0, sizes)[np.stack(completed, axis=1)]


def balanced_sizes(within: Ints, cores: Sequence[int]) -> list[int]:
    """Divide a dimension among cores so that the last one ends as early as possible, by the pieces
    of :func:`largest_within`.

    A core may be named more than once. Returns a size for each of ``cores``. O(limits x cores).
    """
    left, found = int(within[-1, 0]), []
    least = np.searchsorted(within[:, cores].sum(axis=1), left)
    for size in within[least, cores].tolist():
        found.append(min(size, left))
        left -= found[-1]
    return found


def operator_options(network: DivisibleNetwork, target: Target) -> list[list[CutOption]]:
    """Options of every operator: its plain cut first, then cuts along channels, rows and columns.

    The pieces are balanced over one core or several, the fastest first, with one or more pieces for
    each (:func:`_counts`). O(distinct operators x dimensions x 32 sizes).
    """
    graph, fused, forms = network.graph, network.fused, network.forms
    options = _plain(graph, network.plain, target)
    like = canonical_index(network)
    wanted = [
        (number, form, axis, _sizes_of(form.shape[axis], form.step[axis]))
        for number, (group, form) in enumerate(zip(fused, forms, strict=True))
        if form is not None and like[number] == number
        for axis in piece_axes(form, group)
    ]
    pieces = [
        OperatorPieces(fused[number], form, _first_boxes(form, axis, sizes))
        for number, form, axis, sizes in wanted
    ]
    costs = PieceCosts.of(job_table(piece_workload(graph, pieces), target), target)
    offers: dict[int, list[CutOption]] = defaultdict(list)
    first = 0
    for number, form, axis, sizes in wanted:
        offers[number] += _cuts(form, axis, sizes, costs[first : first + len(sizes)])
        first += len(sizes)
    for number, own in enumerate(options):
        known = {own[0].cut}
        fits = not own[0].costs.stream.any()
        for option in offers[like[number]]:
            # Pieces that stream cannot have their operands fetched ahead.
            if option.cut not in known and not (fits and option.costs.stream.any()):
                known.add(option.cut)
                own.append(option)
    return options


def _plain(graph: Graph, plain: Sequence[Grid], target: Target) -> list[list[CutOption]]:
    """Return the uncut option of every operator, with its costs."""
    costs = PieceCosts.of(job_table(lower([graph], target, cuts=[Cuts(plain)]), target), target)
    until = np.cumsum([0, *(cut.tiles for cut in plain)]).tolist()
    return [
        [CutOption(cut, costs[a:b])] for cut, a, b in zip(plain, until[:-1], until[1:], strict=True)
    ]


def _cuts(form: Divisible, axis: int, sizes: Ints, costs: PieceCosts) -> Iterator[CutOption]:
    """Yield options along a dimension, from the costs of pieces of the given sizes."""
    # Cores by their time for the whole operator.
    fastest = np.argsort(costs.alone[-1], kind="stable").tolist()
    within = largest_within(sizes, costs.alone)
    # There are no more pieces than sizes.
    for count, times in _counts(min(len(fastest), len(sizes))):
        chosen = fastest[:count] * times
        made = [size for size in balanced_sizes(within, chosen) if size]
        if len(made) > 1:
            ends = tuple(np.cumsum(made).tolist())
            yield CutOption(form.along(axis, ends), costs[np.searchsorted(sizes, made)])


def _counts(cores: int) -> Iterator[tuple[int, int]]:
    """Yield (cores that share an operator, pieces per core). On one core there are several pieces,
    so that readers can start after the first."""
    for count in range(1, cores + 1):
        yield from ((count, times) for times in ((2, 4, 8, 16) if count == 1 else (1, 2, 4)))


def _first_boxes(form: Divisible, axis: int, sizes: Ints) -> Ints:
    """Boxes of the first piece of each size along a dimension, shape (sizes, dimensions, 2)."""
    boxes = whole_boxes(form.shape, len(sizes))
    boxes[:, axis, 1] = sizes
    return boxes


def _sizes_of(extent: int, step: int) -> Ints:
    """Sizes of a piece along a dimension, multiples of ``step``, up to the whole extent."""
    unit = step
    while extent // unit > _SIZES:
        unit *= 2
    return np.array([*range(unit, extent, unit), extent], dtype=np.int64)


def channels_of(form: Divisible, group: FusedOp) -> int | None:
    """The dimension of an operator's result that holds its output channels, if it can be cut."""
    loops = group.nests[0].loops if group.nests else ()
    axis = loops.index(CHANNELS) if CHANNELS in loops else None
    return axis if axis in form.axes else None


def piece_axes(form: Divisible, group: FusedOp) -> list[int]:
    """Dimensions along which an operator is cut: channels, rows (the longest other dimension) and
    columns."""
    rank = len(form.shape)
    loops = group.nests[0].loops if group.nests else ()
    channels = loops.index(CHANNELS) if CHANNELS in loops else (1 if rank > 3 else rank - 1)
    others = [axis for axis in form.axes if axis != channels]
    rows = max(others, key=lambda axis: (min(form.shape[axis], 32), -axis), default=None)
    axes = [channels] if channels in form.axes else []
    axes += [rows] if rows is not None else []
    return axes + ([rank - 1] if rank > 3 and rank - 1 in others and rank - 1 != rows else [])

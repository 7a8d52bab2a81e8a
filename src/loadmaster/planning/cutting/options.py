"""Ways to cut one operator: into pieces that end together, as unequal as the cores that run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.cutting.piece_costs import Piece, PieceCosts, piece_costs
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import CHANNELS, Divisible, Grid
from loadmaster.workloads.lowering.instantiate import Cut, Cuts, lower
from loadmaster.workloads.window import whole

_SIZES = 32
"""Sizes of a piece along a dimension whose costs are worked out, about."""


@dataclass(frozen=True)
class Option:
    """A way to cut an operator, and what its pieces cost."""

    cut: Cut
    costs: PieceCosts


def balanced_sizes(sizes: Ints, seconds: Floats, cores: Sequence[int]) -> list[int]:
    """How much of a dimension each core makes so that all end as early and as near to one another as the sizes allow.

    ``seconds[s, c]`` is what ``sizes[s]`` (increasing, the last is all of it) takes on core ``c``; a core may be named more than once. No
    other choice of sizes ends earlier. O(sizes x cores x log sizes).
    """
    extent = int(sizes[-1])
    # A larger piece takes no less time: where the model says otherwise, it may use the smaller one's figure.
    times = np.maximum.accumulate(seconds, axis=0)[:, list(cores)]
    limits = np.unique(times)

    def within(limit: float) -> Ints:
        counts = (times <= limit).sum(axis=0)
        return np.where(counts > 0, sizes[np.maximum(counts, 1) - 1], 0)

    low, high = 0, len(limits) - 1
    while low < high:
        middle = (low + high) // 2
        if within(limits[middle]).sum() >= extent:
            high = middle
        else:
            low = middle + 1
    left, found = extent, []
    for size in within(limits[low]).tolist():
        found.append(min(size, left))
        left -= found[-1]
    return found


def operator_options(
    graph: Graph, fused: Sequence[FusedOp], forms: Sequence[Divisible | None], plain: Sequence[Cut], target: Target
) -> list[list[Option]]:
    """For every operator how it is cut anyhow, then ways to cut it along its channels, rows and columns.

    Pieces are as many as some of the cores, the fastest first, or two for each, and each is as long as suits its core.
    O(distinct operators x dimensions x 32 sizes).
    """
    options = _plain(graph, plain, target)
    samples = _Samples(graph, target)
    for number, (group, form) in enumerate(zip(fused, forms, strict=True)):
        if form is not None:
            samples.add(number, group, form)
    for number, axis, sizes, costs in samples.costed():
        form = forms[number]
        assert form is not None
        seen = {option.cut for option in options[number]}
        fits = not options[number][0].costs.stream.any()
        for cut, pieces in _cuts(form, axis, sizes, costs):
            # What is streamed cannot be fetched ahead of its use.
            if cut not in seen and not (fits and costs.stream[pieces].any()):
                seen.add(cut)
                options[number].append(Option(cut, costs[pieces]))
    return options


def _plain(graph: Graph, plain: Sequence[Cut], target: Target) -> list[list[Option]]:
    costs = PieceCosts.of(job_table(lower([graph], target, cuts=[Cuts(plain)]), target), target)
    until = np.cumsum([0, *(cut.tiles for cut in plain)]).tolist()
    return [[Option(cut, costs[a:b])] for cut, a, b in zip(plain, until[:-1], until[1:], strict=True)]


def _cuts(form: Divisible, axis: int, sizes: Ints, costs: PieceCosts) -> Iterator[tuple[Grid, list[int]]]:
    """Grids of pieces along a dimension, and the number of each piece among the sizes."""
    cores = costs.alone.shape[1]
    # All of the operator is quickest on the first of these.
    fastest = np.argsort(costs.alone[-1], kind="stable").tolist()
    for count, times in _counts(cores):
        chosen = fastest[:count] * times
        made = [size for size in balanced_sizes(sizes, costs.alone, chosen) if size]
        if len(made) > 1:
            ends = tuple(np.cumsum(made).tolist())
            shape = tuple(ends if d == axis else (extent,) for d, extent in enumerate(form.shape))
            yield Grid(form.shape, shape), np.searchsorted(sizes, made).tolist()


def _counts(cores: int) -> Iterator[tuple[int, int]]:
    """How many cores share an operator, and how many pieces each of them makes: many of one core, so that others go on with the first."""
    for count in range(1, cores + 1):
        yield from ((count, times) for times in ((2, 4, 8, 16) if count == 1 else (1, 2, 4)))


class _Samples:
    """Pieces of several sizes of operators, each costed once however many operators are alike."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self._graph, self._target = graph, target
        self._pieces: list[Piece] = []
        self._known: dict[object, tuple[int, int]] = {}
        self._wanted: list[tuple[int, int, Ints, tuple[int, int]]] = []

    def add(self, number: int, group: FusedOp, form: Divisible) -> None:
        """Ask for the costs of an operator's pieces along every dimension along which it may be cut."""
        alike = _signature(self._graph, group, form)
        for axis in piece_axes(form, group):
            sizes = _sizes(form.shape[axis], form.step[axis])
            if (alike, axis) not in self._known:
                first = len(self._pieces)
                for size in sizes.tolist():
                    box = tuple((0, size) if d == axis else own for d, own in enumerate(whole(form.shape)))
                    self._pieces.append(Piece(group, form, box))
                self._known[alike, axis] = (first, len(self._pieces))
            self._wanted.append((number, axis, sizes, self._known[alike, axis]))

    def costed(self) -> Iterator[tuple[int, int, Ints, PieceCosts]]:
        """Operator, dimension, sizes, and their costs."""
        costs = piece_costs(self._graph, self._pieces, self._target)
        for number, axis, sizes, (first, last) in self._wanted:
            yield number, axis, sizes, costs[first:last]


def _sizes(extent: int, step: int) -> Ints:
    """Sizes of a piece, whole steps each, the last all of the dimension."""
    unit = step
    while extent // unit > _SIZES:
        unit *= 2
    return np.array([*range(unit, extent, unit), extent], dtype=np.int64)


def _signature(graph: Graph, group: FusedOp, form: Divisible) -> object:
    """What the costs of an operator's pieces follow from, names left out."""
    names: dict[str, str] = {}

    def alias(name: str) -> str:
        return names.setdefault(name, str(len(names)))

    nests = tuple(replace(n, input=alias(n.input), weight=alias(n.weight), output=alias(n.output)) for n in group.nests)
    reads = tuple(
        (
            alias(storage),
            graph.tensors[storage].bytes,
            tuple((graph.tensors[name].shape, windows) for name, windows in uses),
        )
        for storage, uses in form.uses.items()
    )
    writes = tuple((alias(access.tensor), graph.tensors[access.tensor].bytes) for access in group.writes)
    return form.shape, form.step, group.elements, group.main.bits, nests, reads, writes


def piece_axes(form: Divisible, group: FusedOp) -> list[int]:
    """Dimensions of an operator's result along which it is cut: those that hold its channels, its rows (the longest other one), columns."""
    rank = len(form.shape)
    loops = group.nests[0].loops if group.nests else ()
    channels = loops.index(CHANNELS) if CHANNELS in loops else (1 if rank > 3 else rank - 1)
    others = [axis for axis in form.axes if axis != channels]
    rows = max(others, key=lambda axis: (min(form.shape[axis], 32), -axis), default=None)
    axes = [channels] if channels in form.axes else []
    axes += [rows] if rows is not None else []
    return axes + ([rank - 1] if rank > 3 and rank - 1 in others and rank - 1 != rows else [])

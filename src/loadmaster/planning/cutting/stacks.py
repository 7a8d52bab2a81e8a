"""Stacks of operators that run band by band, depth first, so that what lies between them never leaves the fast memory.

The rows of a stack's results are cut into bands. A band of an operator is as long as the next operator's band needs, so that rows which two
bands share (the halo) are kept. Which operators form a stack, and how many bands it has, is found by dynamic programming
over the bytes that cross the main link (the axes of DeFiNES, HPCA 2023: fuse depth and tile size, with a cache along one axis).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.workloads.graph import Graph, TensorKind
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible, Grid
from loadmaster.workloads.lowering.instantiate import Cut, Cuts
from loadmaster.workloads.window import whole

_LONGEST = 24
"""Operators in a stack at most: longer ones have so much halo that they do not pay."""
_BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_KEPT = 0.05
"""Share of what a stack takes and leaves that is counted even where there is room to keep it: other things may be in the way."""


@dataclass(frozen=True)
class Stack:
    """Operators ``first`` up to ``last`` (not included) in ``bands`` bands, and the bytes that the model counts for it."""

    first: int
    last: int
    bands: int
    bytes: float


@dataclass
class Network:
    """A network's fused operators, how each divides, and who reads what each writes."""

    graph: Graph
    fused: Sequence[FusedOp]
    forms: Sequence[Divisible | None]
    home: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    _edges: dict[Any, tuple[Ints, Ints]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, group in enumerate(self.fused):
            for access in group.reads:
                self.readers.setdefault(access.tensor, []).append(number)
            for access in group.writes:
                self.home[access.tensor] = number
        self.outputs = {self.graph.tensors[name].storage for name in self.graph.outputs}

    def bytes_of(self, storage: str) -> int:
        """Bytes of a storage."""
        return self.graph.tensors[storage].bytes

    def rows(self, number: int) -> int | None:
        """The dimension of an operator's result that holds its rows, if it can be cut along it."""
        form = self.forms[number]
        if form is None:
            return None
        axis = _row_axis(form.shape)
        return axis if axis in form.axes else None

    def extent(self, number: int) -> int:
        """Rows of an operator's result; it must have some."""
        form, axis = self.forms[number], self.rows(number)
        assert form is not None
        assert axis is not None
        return form.shape[axis]

    def step(self, number: int) -> int:
        """Of how many rows the pieces of an operator's result are multiples."""
        form, axis = self.forms[number], self.rows(number)
        assert form is not None
        assert axis is not None
        return form.step[axis]

    def edge(self, reader: int, storage: str) -> tuple[Ints, Ints]:
        """Rows of a storage that rows of an operator's result need: where those of row ``r`` begin, and where those up to ``r`` end.

        Operators that divide alike share what is worked out.
        """
        form, axis = self.forms[reader], self.rows(reader)
        assert form is not None
        assert axis is not None
        tensors = self.graph.tensors
        shape = tensors[storage].shape
        key = (form.shape, shape, tuple((tensors[name].shape, windows) for name, windows in form.uses[storage]))
        if key not in self._edges:
            own, box = _row_axis(shape), list(whole(form.shape))
            low, high = [], [0]
            for row in range(form.shape[axis]):
                box[axis] = (row, row + 1)
                begin, end = form.needed(self.graph, storage, tuple(box))[own]
                low.append(begin)
                high.append(max(high[-1], end))
            self._edges[key] = (np.array([*low, shape[own]], dtype=np.int64), np.array(high, dtype=np.int64))
        return self._edges[key]


def _row_axis(shape: Sequence[int]) -> int:
    return 2 if len(shape) >= 4 else max(0, len(shape) - 2)


def best_stacks(network: Network, capacity: int) -> list[Stack]:
    """Stacks that cover a network in order, with the fewest bytes over the main link by the model. O(operators x 24 x bands)."""
    count = len(network.fused)
    cost: list[float] = [0.0] + [float("inf")] * count
    choice: list[Stack | None] = [None] * (count + 1)
    for last in range(1, count + 1):
        for stack in _Ending(network, last).stacks(capacity):
            if cost[stack.first] + stack.bytes < cost[last]:
                cost[last], choice[last] = cost[stack.first] + stack.bytes, stack
    stacks: list[Stack] = []
    end = count
    while end:
        stack_here = choice[end]
        assert stack_here is not None
        stacks.append(stack_here)
        end = stack_here.first
    return stacks[::-1]


class _Ending:
    """Stacks that end with one operator, each one operator longer than the one before."""

    def __init__(self, network: Network, last: int) -> None:
        self._network, self._last = network, last
        self._first = last
        self._weights: dict[str, int] = {}
        self._given: dict[str, int] = {}
        self._largest = self._left = 0
        self._lives: dict[int, _Lives] = {}

    def stacks(self, capacity: int) -> Iterator[Stack]:
        """The best number of bands of each; the longest is the last that can be held in some number of bands."""
        network, rows = self._network, True
        for first in range(self._last - 1, max(-1, self._last - 1 - _LONGEST), -1):
            rows &= network.rows(first) is not None
            if not rows and first < self._last - 1:
                return
            self._grow(first)
            stack = self._best(capacity, _BANDS if rows else (1,))
            yield stack
            if stack.bytes == float("inf"):
                return

    def _grow(self, first: int) -> None:
        network, own = self._network, 0
        self._first = first
        for access in network.fused[first].reads:
            if network.graph.tensors[access.tensor].kind is TensorKind.WEIGHT:
                self._weights[access.tensor] = max(self._weights.get(access.tensor, 0), access.bytes)
                own += access.bytes
            else:
                self._given[access.tensor] = network.bytes_of(access.tensor)
        self._largest = max(self._largest, own)
        for access in network.fused[first].writes:
            self._given.pop(access.tensor, None)
            if _leaves(network, access.tensor, self._last):
                self._left += network.bytes_of(access.tensor)

    def _best(self, capacity: int, choices: Sequence[int]) -> Stack:
        """The fewest bands with hardly more than the fewest bytes."""
        numbers = range(self._first, self._last)
        weights, ends = sum(self._weights.values()), sum(self._given.values()) + self._left
        streamed = min(weights, 2 * self._largest)
        single = len(numbers) == 1
        best = Stack(self._first, self._last, 1, float(weights + ends) if single else float("inf"))
        fewest = 0 if single else min(self._network.extent(number) for number in numbers)
        for bands in choices:
            if bands > 1 and fewest < bands and not (single and self._network.extent(self._first) >= bands):
                break
            lives = self._lives.setdefault(bands, _Lives(self._network, self._last, bands))
            if lives.peak > capacity:
                continue
            peak = lives.up_to(self._first) if bands > 1 or not single else 0
            room = capacity - peak - weights
            value = float(weights)
            if room < 0:
                room, value = capacity - peak - streamed, float(weights * bands)
            if room < 0:
                continue
            value += ends if ends > room else _KEPT * ends
            if value < best.bytes * (1 - 1e-3):
                best = Stack(self._first, self._last, bands, value)
            if value <= weights + _KEPT * ends:
                break
        return best


def _leaves(network: Network, storage: str, last: int) -> bool:
    """Whether later operators or the caller need what a stack up to ``last`` writes."""
    return storage in network.outputs or any(reader >= last for reader in network.readers.get(storage, ()))


class _Lives:
    """What lies inside stacks that end with one operator, in so many bands: how much of it is alive at each step.

    A step is a band and an operator; an operator that is put in front adds what it writes and changes nothing else.
    """

    def __init__(self, network: Network, last: int, bands: int) -> None:
        self._network, self._last, self._bands = network, last, bands
        self._first = last
        self._ends: dict[int, Ints] = {}
        self._change = np.zeros(bands * _LONGEST + 1, dtype=np.int64)
        self.peak = 0

    def up_to(self, first: int) -> int:
        """Most bytes of what lies inside the stack from ``first`` on that are alive at once."""
        if first < self._first:
            while self._first > first:
                self._first -= 1
                self._add(self._first)
            self.peak = int(np.cumsum(self._change).max())
        return self.peak

    def _add(self, number: int) -> None:
        network = self._network
        self._ends[number] = _ends_of(network, number, self._last, self._bands, self._ends)
        for access in network.fused[number].writes:
            if not _leaves(network, access.tensor, self._last):
                self._live(number, access.tensor)

    def _live(self, number: int, storage: str) -> None:
        network, stops = self._network, self._ends[number]
        starts = np.concatenate([[0], stops[:-1]])
        shares = network.bytes_of(storage) * (stops - starts) // network.extent(number)
        written = self._step(np.arange(self._bands), number)
        read = written.copy()
        for reader in network.readers.get(storage, ()):
            low, high = network.edge(reader, storage)
            ends = self._ends[reader]
            begins = np.concatenate([[0], ends[:-1]])
            busy = np.flatnonzero(ends > begins)
            # The last band whose rows begin before a part ends is the last that needs it, if it reaches that far.
            last = np.searchsorted(low[begins[busy]], stops, side="left") - 1
            needs = (last >= 0) & (starts < high[ends[busy][last]])
            read = np.where(needs, np.maximum(read, self._step(busy[last], reader)), read)
        np.add.at(self._change, written, shares)
        np.add.at(self._change, read + 1, -shares)

    def _step(self, band: Ints, number: int) -> Ints:
        return band * _LONGEST + (number - self._last + _LONGEST)


def _ends_of(network: Network, number: int, last: int, bands: int, ends: dict[int, Ints]) -> Ints:
    """Where the bands of an operator end: as far as the bands of its readers need, evenly where the stack ends."""
    extent = network.extent(number)
    wanted = np.zeros(bands, dtype=np.int64)
    for access in network.fused[number].writes:
        for reader in network.readers.get(access.tensor, ()):
            if number < reader < last:
                wanted = np.maximum(wanted, network.edge(reader, access.tensor)[1][ends[reader]])
    if not wanted[-1]:
        wanted = extent * np.arange(1, bands + 1) // bands
    step = network.step(number)
    wanted = np.minimum(-(-wanted // step) * step, extent)
    wanted[-1] = extent
    return np.asarray(np.maximum.accumulate(wanted))


def band_ends(network: Network, first: int, last: int, bands: int) -> dict[int, tuple[int, ...]]:
    """Where the bands of every operator of a stack end. A band may be empty, where the one before has made all that is needed."""
    ends: dict[int, Ints] = {}
    for number in range(last - 1, first - 1, -1):
        ends[number] = _ends_of(network, number, last, bands, ends)
    return {number: tuple(own.tolist()) for number, own in ends.items()}


def stacked(network: Network, stacks: Sequence[Stack], plain: Sequence[Cut]) -> Cuts:
    """The cuts and the order of jobs that stacks stand for; an operator that is a stack of its own in one band stays as in ``plain``."""
    cuts = list(plain)
    order: list[tuple[int, int]] = []
    tiles: dict[int, list[int | None]] = {}
    for stack in stacks:
        numbers = range(stack.first, stack.last)
        if stack.bands == 1:
            order += [(number, tile) for number in numbers for tile in range(cuts[number].tiles)]
            continue
        for number, ends in band_ends(network, stack.first, stack.last, stack.bands).items():
            form, axis = network.forms[number], network.rows(number)
            assert form is not None
            filled = tuple(dict.fromkeys(end for end in ends if end))
            cuts[number] = Grid(form.shape, tuple(filled if d == axis else (extent,) for d, extent in enumerate(form.shape)))
            tiles[number] = [filled.index(end) if end > before else None for before, end in itertools.pairwise((0, *ends))]
        for band in range(stack.bands):
            order += [(number, tile) for number in numbers if (tile := tiles[number][band]) is not None]
    return Cuts(cuts, order)

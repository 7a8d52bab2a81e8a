"""Stacks of operators that run band by band, depth first, so that what lies between them never leaves the fast memory.

The rows of a stack's results are cut into bands. A band of an operator is as long as the next operator's band needs, so that rows which two
bands share (the halo) are kept. Which operators form a stack, how many bands it has, which of its weights stay and which are streamed once
a band, and what is kept from one stack to another, is found by dynamic programming over the bytes that cross the main link (the axes of
DeFiNES, HPCA 2023: fuse depth and tile size, with a cache along one axis).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.planning.cutting.band_work import BandWork
from loadmaster.planning.cutting.banding import Network, Stack, ends_of, steps_of
from loadmaster.planning.cutting.refills import Refills
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import TensorKind
from loadmaster.workloads.lowering.instantiate import Cut

LONGEST = 16
"""Operators in a stack at most: longer ones have so much halo that they do not pay."""
BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of bands that are tried, beside one band for every row."""
_MOST_KEPT = 3
"""Results that may be kept from stack to stack, at most; of more, the smallest."""

Kept = frozenset[str]
_NOTHING: Kept = frozenset()


@dataclass(frozen=True)
class Choice:
    """Stacks that cover a network in order; by the model, the bytes that cross the main link and the seconds that cores work.

    ``cost`` is bytes, and the bytes that could cross while cores work, as far as work counts.
    """

    stacks: tuple[Stack, ...]
    cost: float
    bytes: float
    seconds: float


def best_stacks(model: StackModel, capacities: Sequence[int]) -> list[Choice]:
    """Stacks that cover a network in order, of the least cost by the model, for each number of bytes into which they must fit.

    An operator that is a stack of its own in one band is cut as in ``plain``. No capacity may exceed the model's.
    O(operators x 16 x bands x pairs of sets of at most 3 results that are kept from stack to stack) for each.
    """
    covers = [_Cover(model, capacity) for capacity in capacities]
    for last in range(1, len(model.network.fused) + 1):
        stacks = model.ending_with(last)
        for cover in covers:
            cover.extend(last, stacks)
    return [cover.best() for cover in covers]


class _Cover:
    """The least cost of stacks that cover a network up to some operator, by what they keep for later ones."""

    def __init__(self, model: StackModel, capacity: int) -> None:
        self._model, self._capacity = model, capacity
        self._least: list[dict[Kept, float]] = [{_NOTHING: 0.0}]
        # Chains of stacks share their beginnings: each is its last stack and the state before it.
        self._origin: dict[tuple[int, Kept], tuple[Stack, Kept, _Cost]] = {}

    def extend(self, last: int, stacks: Sequence[StackCosts]) -> None:
        """Cover one operator more, the last one of ``stacks``."""
        model, capacity = self._model, self._capacity
        here: dict[Kept, float] = {}
        for stack in stacks:
            if stack.inside > capacity:
                continue
            for before, spent in self._least[stack.first].items():
                for after in model.kept_after(stack.first, last, before, capacity):
                    cost = stack.cost(before, after, capacity, here.get(after, np.inf) - spent)
                    if cost is not None:
                        here[after] = spent + cost.cost
                        self._origin[last, after] = (Stack(stack.first, last, cost.bands, stack.columns, model.skewed), before, cost)
        self._least.append(here)

    def best(self) -> Choice:
        """The stacks of least cost."""
        end, kept = len(self._least) - 1, _NOTHING
        stacks: list[Stack] = []
        seconds = 0.0
        while end:
            found, kept, cost = self._origin[end, kept]
            stacks.append(found)
            seconds += cost.seconds
            end = found.first
        total = self._least[-1][_NOTHING]
        return Choice(tuple(stacks[::-1]), total, total - seconds * self._model.price, seconds)


@dataclass(frozen=True)
class _Cost:
    """A number of bands, what it costs, and the seconds that cores work."""

    bands: int
    cost: float
    seconds: float


@dataclass(frozen=True)
class SeenNetwork:
    """A network seen along its rows or its columns, and what its operators take in bands of them."""

    network: Network
    refills: Refills
    work: BandWork

    @staticmethod
    def both(network: Network, target: Target) -> list[SeenNetwork]:
        """A network seen along its rows, and along its columns."""
        seen = (network.along(columns) for columns in (False, True))
        return [SeenNetwork(own, Refills(own, target, BANDS), BandWork(own, target, BANDS)) for own in seen]


class StackModel:
    """What stacks of a network cost, given the results that are kept in the fast memory before and after them.

    Work of cores counts ``price`` bytes a second. In ``skewed`` stacks operators run at once, and more lies between them.
    """

    def __init__(
        self, seen: Sequence[SeenNetwork], capacity: int, target: Target, plain: Sequence[Cut], price: float = 0.0, skewed: bool = False
    ) -> None:
        self.network, self.capacity, self.plain, self.price, self.skewed = seen[0].network, capacity, plain, price, skewed
        self.alignment = target.fast.alignment if target.fast is not None else 1
        self._seen = seen
        # What cores do while pieces start, as bytes that cross meanwhile: else many small pieces would cost nothing.
        start_up = sum(core.start_up for core in target.cores) / len(target.cores) ** 2
        self.bytes_of_piece = start_up * target.main.read_bandwidth
        self._keepable = self._what_may_be_kept()
        self._least_reads = [self.network.least_read(number) for number in range(len(self.network.fused))]

    def _what_may_be_kept(self) -> list[tuple[str, ...]]:
        """For every place between two operators, results made before that are needed behind it and that fit."""
        network, count = self.network, len(self.network.fused)
        found: list[list[str]] = [[] for _ in range(count + 1)]
        for storage, maker in network.home.items():
            if network.bytes_of(storage) <= self.capacity:
                for place in range(maker + 1, max(network.readers.get(storage, [0])) + 1):
                    found[place].append(storage)
        return [tuple(sorted(own, key=lambda storage: (network.bytes_of(storage), storage))[:_MOST_KEPT]) for own in found]

    def kept_after(self, first: int, last: int, before: Kept, capacity: int) -> Iterator[Kept]:
        """Sets of results that may be in the fast memory behind a stack: made in it, or there before."""
        network = self.network
        able = [storage for storage in self._keepable[last] if network.home[storage] >= first or storage in before]
        for count in range(len(able) + 1):
            for kept in itertools.combinations(able, count):
                if sum(map(network.bytes_of, kept)) <= capacity:
                    yield frozenset(kept)

    def least_read(self, number: int) -> dict[str, float]:
        """What an operator's bands read at least, see :meth:`Network.least_read`."""
        return self._least_reads[number]

    def ending_with(self, last: int) -> list[StackCosts]:
        """Stacks that end with one operator, each one operator longer than the one before; the last can be held in some number of bands.

        First those of rows, then those of columns.
        """
        return [stack for seen in self._seen for stack in self._along(seen, last)]

    def _along(self, seen: SeenNetwork, last: int) -> Iterator[StackCosts]:
        rows = True
        lives: dict[int, _Lives] = {}
        for first in range(last - 1, max(-1, last - 1 - LONGEST), -1):
            rows &= seen.network.rows(first) is not None
            if not rows and (first < last - 1 or seen.network.columns):
                return
            stack = StackCosts(self, seen, first, last, lives if rows else {})
            yield stack
            if stack.inside == np.inf:
                return


class StackCosts:
    """What one stack costs in every number of bands, given what is kept before and after it."""

    def __init__(self, model: StackModel, seen: SeenNetwork, first: int, last: int, lives: dict[int, _Lives]) -> None:
        self.first, self.last, self.columns = first, last, seen.network.columns
        self._model, self._seen, self._lives = model, seen, lives
        network = seen.network
        self._made = [access.tensor for number in range(first, last) for access in network.fused[number].writes]
        self._weights = sum(
            {
                a.tensor: a.bytes for number in range(first, last) for a in network.fused[number].reads if network.is_weight(a.tensor)
            }.values()
        )
        self._given: dict[str, float] = {}
        for number in range(first, last):
            for storage, size in model.least_read(number).items():
                if not first <= network.home.get(storage, -1) < last:
                    self._given[storage] = max(self._given.get(storage, 0.0), size)
        self._banded: dict[int, _Banded | None] = {}
        self.numbers = [1] if first == last - 1 and not network.columns else []
        if network.rows(first) is not None and network.rows(last - 1) is not None:
            extent = network.extent(last - 1)
            self.numbers += sorted({bands for bands in (*BANDS, extent) if 1 < bands <= extent})

    @cached_property
    def inside(self) -> float:
        """Bytes inside the stack with the finest bands, without bands none; infinite where the model has no room for them."""
        if self.numbers[:1] == [1]:
            return 0.0
        finest = self._in(self.numbers[-1]) if self.numbers else None
        return np.inf if finest is None else finest.inside

    def cost(self, before: Kept, after: Kept, capacity: int, below: float) -> _Cost | None:
        """The number of bands with the fewest bytes, if they are fewer than ``below``."""
        written = self._written(before, after)
        best: _Cost | None = None
        least = self._weights + written + sum(size for storage, size in self._given.items() if storage not in before)
        if least >= below * (1 - 1e-9):
            return None
        for bands in self.numbers:
            banded = self._in(bands)
            if banded is None:
                continue
            # More bands make halos and pieces no fewer.
            fixed = written + banded.given(before)
            if self._weights + fixed >= below:
                if bands > 1:
                    break
                continue
            room = capacity - banded.taken(before, after)
            if room < 0:
                continue
            weights, work = banded.weights(room), self._model.price * banded.work
            if fixed + weights + work < below * (1 - 1e-9):
                below = fixed + weights + work
                best = _Cost(bands, below, banded.work)
            if weights <= self._weights and bands > 1 and not work:
                break
        return best

    def cost_in(self, bands: int, before: Kept, after: Kept, capacity: int) -> float:
        """What so many bands cost; infinite where they do not fit."""
        banded = self._in(bands)
        room = -1.0 if banded is None else capacity - banded.taken(before, after)
        if banded is None or room < 0:
            return np.inf
        return self._written(before, after) + banded.given(before) + banded.weights(room) + self._model.price * banded.work

    def _written(self, before: Kept, after: Kept) -> float:
        """Bytes of results that go to main memory: outputs, and what later operators need that is not kept."""
        network = self._model.network
        total = 0
        for storage in self._made:
            if storage in network.outputs or (storage not in after and network.leaves(storage, self.last)):
                total += network.bytes_of(storage)
        for storage in before - after:
            if storage not in network.outputs and network.leaves(storage, self.last):
                total += network.bytes_of(storage)
        return float(total)

    def _in(self, bands: int) -> _Banded | None:
        if bands not in self._banded:
            self._banded[bands] = self._whole() if bands == 1 else self._cut(bands)
        return self._banded[bands]

    def _whole(self) -> _Banded:
        """One operator, cut as it would be without stacks: every tile reads all that does not divide by channels."""
        model, number = self._model, self.first
        network, cut, group = model.network, model.plain[number], model.network.fused[number]
        streams, weights = {}, []
        for access in group.reads:
            times = self._seen.refills.of(network, number, 1, access.tensor)
            if network.is_weight(access.tensor):
                weights.append((float(access.bytes), access.bytes * times))
                continue
            tiles = 1 if access.tensor in group.by_channel else cut.tiles
            streams[access.tensor] = access.bytes * times * tiles
        made = {access.tensor: np.full(1, network.bytes_of(access.tensor), dtype=np.float64) for access in group.writes}
        nothing = np.zeros(1)
        work = self._seen.work.of(number, 1)
        return _Banded(network, nothing, streams, made, weights, cut.tiles * model.bytes_of_piece, model.alignment, work)

    def _cut(self, bands: int) -> _Banded | None:
        if bands not in self._lives:
            self._lives[bands] = _Lives(self._model, self._seen, self.last, bands)
        lives = self._lives[bands]
        return lives.banded(self.first)


@dataclass(frozen=True)
class _Banded:
    """A stack in so many bands: what it streams, and what it holds during each step, in bytes.

    ``inner`` is what lies inside the stack, ``made`` what there is of each storage that it writes. ``sizes`` are of weights: what each has,
    and what crosses if it is streamed; those that save most come first. ``work`` are seconds of all cores together.
    """

    network: Network
    inner: Floats
    streams: Mapping[str, float]
    made: Mapping[str, Floats]
    sizes: Sequence[tuple[float, float]]
    pieces: float
    alignment: int
    work: float
    takes: dict[Kept, float] = field(default_factory=dict)

    def given(self, before: Kept) -> float:
        """Bytes that are read from main memory, weights left out, and what pieces cost."""
        return self.pieces + sum(size for storage, size in self.streams.items() if storage not in before)

    @cached_property
    def inside(self) -> float:
        """Most bytes that lie inside the stack during any band."""
        return float(self.inner.max())

    def taken(self, before: Kept, after: Kept) -> float:
        """Most bytes that lie there during any band, weights left out."""
        new = after - before
        if new not in self.takes:
            self.takes[new] = float((self.inner + sum(self.made[storage] for storage in new)).max())
        # How soon parts of what was there before are done with depends on how that was cut: it counts until the end.
        return self.takes[new] + sum(map(self.network.bytes_of, before))

    def weights(self, room: float) -> float:
        """Bytes that cross for weights, of which those stay that save most for each byte of room."""
        if room >= self._room_for_weights:
            return self._bytes_once
        total = 0.0
        for size, streamed in self.sizes:
            padded = self._padded(size)
            if padded <= room and streamed > size:
                room -= padded
                total += size
            else:
                total += streamed
        return total

    @cached_property
    def _room_for_weights(self) -> float:
        return sum(self._padded(size) for size, _ in self.sizes)

    @cached_property
    def _bytes_once(self) -> float:
        return sum(size for size, _ in self.sizes)

    def _padded(self, size: float) -> float:
        return -(-size // self.alignment) * self.alignment


class _Lives:
    """What lies inside stacks that end with one operator, in so many bands, and what they stream.

    A step is a turn and an operator that makes a band in it; an operator that is put in front adds what it reads and writes and changes
    nothing else.
    """

    def __init__(self, model: StackModel, seen: SeenNetwork, last: int, bands: int) -> None:
        self._model, self._seen, self._network, self._last, self._bands = model, seen, seen.network, last, bands
        self._first = last
        self._ends: dict[int, Ints] = {}
        self._turns = steps_of(bands) + LONGEST * model.skewed
        self._change = np.zeros(self._turns * LONGEST + 1, dtype=np.int64)
        self._streams: dict[str, float] = {}
        self._made: dict[str, Floats] = {}
        self._weights: dict[str, tuple[float, float]] = {}
        self._pieces = 0
        self._work = 0.0
        self._full = False

    def banded(self, first: int) -> _Banded | None:
        """The stack from ``first`` on; None if what lies inside it does not fit."""
        while self._first > first and not self._full:
            self._first -= 1
            self._add(self._first)
        if self._full:
            return None
        inner = np.cumsum(self._change)[:-1].reshape(self._turns, LONGEST).max(axis=1)
        self._full = bool(inner.max() > self._model.capacity)
        if self._full:
            return None
        weights = sorted(self._weights.values(), key=lambda weight: (-weight[1] / max(1.0, weight[0]), -weight[0]))
        pieces = self._pieces * self._model.bytes_of_piece
        return _Banded(self._network, inner, dict(self._streams), dict(self._made), weights, pieces, self._model.alignment, self._work)

    def _add(self, number: int) -> None:
        network = self._network
        ends = ends_of(network, number, self._last, self._bands, self._ends)
        self._ends[number] = ends
        starts = np.concatenate([[0], ends[:-1]])
        busy = np.flatnonzero(ends > starts)
        self._pieces += len(busy)
        self._work += self._seen.work.of(number, self._bands)
        for access in network.fused[number].writes:
            size = network.bytes_of(access.tensor)
            self._streams.pop(access.tensor, None)
            if network.leaves(access.tensor, self._last):
                turns = np.clip(np.arange(self._turns) - self._behind(number), 0, len(ends) - 1)
                self._made[access.tensor] = size * ends[turns] / network.extent(number)
            else:
                self._live(number, access.tensor)
        for access in network.fused[number].reads:
            times = self._seen.refills.of(network, number, self._bands, access.tensor)
            if network.is_weight(access.tensor):
                own, streamed = self._weights.get(access.tensor, (0.0, 0.0))
                self._weights[access.tensor] = (max(own, float(access.bytes)), streamed + access.bytes * times * len(busy))
                continue
            low, high = network.edge(number, access.tensor)
            rows = network.rows_of(access.tensor)
            needed = int((high[ends[busy]] - low[starts[busy]]).sum())
            # An input comes in bands of its own, of which the next band of the reader takes its halo.
            needed = min(needed, rows) if network.graph.tensors[access.tensor].kind is TensorKind.INPUT else needed
            self._streams[access.tensor] = self._streams.get(access.tensor, 0.0) + access.bytes * times * needed / rows

    def _live(self, number: int, storage: str) -> None:
        network, stops = self._network, self._ends[number]
        starts = np.concatenate([[0], stops[:-1]])
        unit = self._model.alignment
        shares = -(-network.bytes_of(storage) * (stops - starts) // (network.extent(number) * unit)) * unit
        written = self._step(np.arange(len(stops)), number)
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

    def _behind(self, number: int) -> int:
        """Turns by which an operator is behind the first that a stack might have."""
        return (number - self._last + LONGEST) * self._model.skewed

    def _step(self, band: Ints, number: int) -> Ints:
        return (band + self._behind(number)) * LONGEST + (number - self._last + LONGEST)

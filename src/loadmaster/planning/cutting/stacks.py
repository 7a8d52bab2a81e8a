"""Stacks of operators that run band by band, depth first, so that what lies between them never
leaves the fast memory.

The rows of a stack's results are cut into bands. A band of an operator is as long as the next
operator's band needs, so that rows which two bands share (the halo) are kept. Which operators form
a stack, how many bands it has, which of its weights stay and which are streamed once a band, and
what is kept from one stack to another, is found by dynamic programming over the bytes that cross
the main link (the axes of DeFiNES, HPCA 2023: fuse depth and tile size, with a cache along one
axis).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from loadmaster.planning.cutting.band_lives import LONGEST, Banded, BandLives, Kept, Setting
from loadmaster.planning.cutting.banding import Stack
from loadmaster.planning.cutting.seen_network import BANDS, CHANNELS, SeenNetwork
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.pieces import Cut
from loadmaster.workloads.window import volume, whole

_MOST_KEPT = 3
"""Results that may be kept from stack to stack, at most; of more, the smallest."""

_NOTHING: Kept = frozenset()


@dataclass(frozen=True)
class Choice:
    """Stacks that cover a network in order; by the model, the bytes that cross the main link and
    the seconds that cores work.

    ``cost`` is that of :meth:`StackModel.cost`, for all stacks together.
    """

    stacks: tuple[Stack, ...]
    cost: float
    bytes: float
    seconds: float


def best_stacks(model: StackModel, capacities: Sequence[int]) -> list[Choice]:
    """Stacks that cover a network in order, of the least cost by the model, for each number of
    bytes into which they must fit.

    An operator that is a stack of its own in one band is cut as in ``plain``. No capacity may
    exceed the model's. O(operators x 16 x bands x pairs of sets of at most 3 results that are kept
    from stack to stack) for each.
    """
    covers = [_Cover(model, capacity) for capacity in capacities]
    for last in range(1, len(model.network.fused) + 1):
        stacks = model.ending_with(last)
        for cover in covers:
            cover.extend(last, stacks)
    return [cover.best() for cover in covers]


class _Cover:
    """The least cost of stacks that cover a network up to some operator, by what they keep for
    later ones."""

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
                        found = stack.chosen(cost.bands, cost.channels)
                        self._origin[last, after] = (found, before, cost)
        self._least.append(here)

    def best(self) -> Choice:
        """The stacks of least cost."""
        end, kept = len(self._least) - 1, _NOTHING
        stacks: list[Stack] = []
        total = seconds = 0.0
        while end:
            found, kept, cost = self._origin[end, kept]
            stacks.append(found)
            total, seconds = total + cost.bytes, seconds + cost.seconds
            end = found.first
        return Choice(tuple(stacks[::-1]), self._least[-1][_NOTHING], total, seconds)


@dataclass(frozen=True)
class _Cost:
    """Numbers of bands and of parts of channels, what they cost, and of which bytes and seconds
    that cores work."""

    bands: int
    channels: int
    cost: float
    bytes: float
    seconds: float


@dataclass(frozen=True)
class Way:
    """How the bands of stacks follow one another, as fields of :class:`Stack` say, and the numbers
    of ``stripes`` that are tried."""

    skewed: bool = False
    stripes: tuple[int, ...] = ()

    @property
    def is_depth_first(self) -> bool:
        """Whether one band passes through all operators before the next one does."""
        return not self.skewed

    def in_stripes(self, wide: bool) -> Way:
        """The same; for a network whose bands are not ``wide`` without stripes."""
        return self if wide else replace(self, stripes=())

    def marks(self, stack: Stack) -> bool:
        """Whether a stack is of the kind for which this way is there."""
        return stack.stripes > 1 or not self.stripes


DEPTH_FIRST = Way()


class StackModel:
    """What stacks of a network cost, given the results that are kept in the fast memory before and
    after them.

    Work of cores counts ``price`` bytes a second. Bands follow one another in one ``way``; stacks of
    several operators are tried in its stripes too.
    """

    def __init__(
        self,
        seen: Sequence[SeenNetwork],
        capacity: int,
        target: Target,
        plain: Sequence[Cut],
        price: float = 0.0,
        way: Way = DEPTH_FIRST,
    ) -> None:
        self.network, self.capacity, self.plain, self.price = (
            seen[0].network,
            capacity,
            plain,
            price,
        )
        self._seen, self.cores, self._way = seen, len(target.cores), way
        # What cores do while pieces start, as bytes that cross meanwhile: else many small pieces
        # would cost nothing.
        start_up = sum(core.start_up for core in target.cores) / len(target.cores) ** 2
        alignment = target.fast.alignment if target.fast is not None else 1
        self.setting = Setting(
            capacity, alignment, start_up * target.main.read_bandwidth, way.skewed
        )
        self.runs, self.cut_alike = (
            seen[0].runs,
            dict[object, tuple[tuple[str, ...], Banded | None]](),
        )
        self._keepable = self._what_may_be_kept()
        self._least_reads = [
            self.network.least_read(number) for number in range(len(self.network.fused))
        ]

    def cost(self, moved: float, seconds: float) -> float:
        """What a stack costs that moves so many bytes while cores work for so long, in bytes."""
        return moved + self.price * seconds

    def times_read(self, number: int, storage: str) -> float:
        """How often an operator's pieces together read an operand as the operator is cut without
        bands."""
        network, cut, form = self.network, self.plain[number], self.network.forms[number]
        if not isinstance(cut, Grid) or form is None:
            return 1.0 if storage in network.fused[number].by_channel else cut.tiles
        boxes = [form.needed(network.graph, storage, box) for box in cut.boxes]
        return sum(map(volume, boxes)) / max(1, volume(whole(network.graph.tensors[storage].shape)))

    def _what_may_be_kept(self) -> list[tuple[str, ...]]:
        """For every place between two operators, results made before that are needed behind it and
        that fit."""
        network, count = self.network, len(self.network.fused)
        found: list[list[str]] = [[] for _ in range(count + 1)]
        for storage, maker in network.home.items():
            if network.bytes_of(storage) <= self.capacity:
                for place in range(maker + 1, max(network.readers.get(storage, [0])) + 1):
                    found[place].append(storage)
        return [
            tuple(
                sorted(own, key=lambda storage: (network.bytes_of(storage), storage))[:_MOST_KEPT]
            )
            for own in found
        ]

    def kept_after(self, first: int, last: int, before: Kept, capacity: int) -> Iterator[Kept]:
        """Sets of results that may be in the fast memory behind a stack: made in it, or there
        before."""
        network = self.network
        able = [
            storage
            for storage in self._keepable[last]
            if network.home[storage] >= first or storage in before
        ]
        for count in range(len(able) + 1):
            for kept in itertools.combinations(able, count):
                if sum(map(network.bytes_of, kept)) <= capacity:
                    yield frozenset(kept)

    def least_read(self, number: int) -> dict[str, float]:
        """What an operator's bands read at least, see :meth:`Network.least_read`."""
        return self._least_reads[number]

    def ending_with(self, last: int) -> list[StackCosts]:
        """Stacks that end with one operator, each one operator longer than the one before; the last
        can be held in some number of bands.

        First those of rows, then those of columns, then those in stripes.
        """
        found = [stack for seen in self._seen for stack in self._along(seen, last)]
        for seen in self._seen:
            for stripes in self._way.stripes:
                found += self._striped(seen, last, stripes)
        return found

    def _along(self, seen: SeenNetwork, last: int) -> Iterator[StackCosts]:
        rows = True
        lives: dict[int, BandLives] = {}
        for first in range(last - 1, max(-1, last - 1 - LONGEST), -1):
            rows &= seen.network.rows(first) is not None
            if not rows and (first < last - 1 or seen.network.columns):
                return
            stack = StackCosts(self, seen, first, last, lives if rows else {})
            yield stack
            if stack.inside == np.inf:
                return

    def _striped(self, seen: SeenNetwork, last: int, stripes: int) -> Iterator[StackCosts]:
        along, across = seen.network, seen.across
        lives: dict[int, BandLives] = {}
        for first in range(last - 1, max(-1, last - 1 - LONGEST), -1):
            if (
                along.rows(first) is None
                or across.rows(first) is None
                or across.extent(first) < stripes
            ):
                return
            if first < last - 1:
                stack = StackCosts(self, seen, first, last, lives, stripes)
                if stack.inside == np.inf:
                    return
                yield stack


class StackCosts:
    """What one stack costs in every number of bands, given what is kept before and after it."""

    def __init__(
        self,
        model: StackModel,
        seen: SeenNetwork,
        first: int,
        last: int,
        lives: dict[int, BandLives],
        stripes: int = 1,
    ) -> None:
        self.first, self.last, self.stripes, self._setting = first, last, stripes, model.setting
        self.columns = seen.network.columns
        self._model, self._seen, self._lives = model, seen, lives
        network = seen.network
        made = [
            access.tensor
            for number in range(first, last)
            for access in network.fused[number].writes
        ]
        self._leaving = [
            (storage, network.bytes_of(storage))
            for storage in made
            if network.leaves(storage, last)
        ]
        self._weights = sum(
            {
                a.tensor: a.bytes
                for number in range(first, last)
                for a in network.fused[number].reads
                if network.is_weight(a.tensor)
            }.values()
        )
        self._given: dict[str, float] = {}
        for number in range(first, last):
            for storage, size in model.least_read(number).items():
                if not first <= network.home.get(storage, -1) < last:
                    self._given[storage] = max(self._given.get(storage, 0.0), size)
        self._banded: dict[tuple[int, int], Banded | None] = {}
        self._ranks: dict[Kept, list[tuple[float, int, int, Banded]]] = {}
        self.ways = list(self._ways())

    def _ways(self) -> Iterator[tuple[int, int]]:
        """Numbers of bands and of parts of channels, those of one number of parts together; more
        bands come later."""
        network, single = self._seen.network, self.first == self.last - 1
        if single and not network.columns:
            yield 1, 1
        if network.rows(self.first) is not None and network.rows(self.last - 1) is not None:
            extent = network.extent(self.last - 1)
            yield from (
                (bands, 1)
                for bands in sorted({bands for bands in (*BANDS, extent) if 1 < bands <= extent})
            )
        if single and self._weights:
            yield from (
                way
                for way in network.ways(self.first, BANDS, CHANNELS)
                if way[1] > 1 and (way[0] > 1 or not network.columns)
            )

    def chosen(self, bands: int, channels: int) -> Stack:
        """The stack in so many bands and parts of its channels."""
        setting, columns = self._setting, self.columns
        return Stack(
            self.first,
            self.last,
            bands,
            columns,
            setting.skewed,
            channels,
            self.stripes,
        )

    @cached_property
    def inside(self) -> float:
        """Least bytes inside the stack, without bands none; infinite where the model has no room
        for them. The finest bands need least.
        """
        if self.first == self.last - 1:
            return 0.0
        finest = self._in(*self.ways[-1]) if self.ways else None
        return np.inf if finest is None else finest.inside

    def cost(self, before: Kept, after: Kept, capacity: int, below: float) -> _Cost | None:
        """The numbers of bands and parts that cost least, if that is less than ``below``."""
        model, written = self._model, self._written(before, after)
        best: _Cost | None = None
        least = (
            self._weights
            + written
            + sum(size for storage, size in self._given.items() if storage not in before)
        )
        if least >= below * (1 - 1e-9):
            return None
        for floor, bands, channels, banded in self._ranked(before):
            if written + floor >= below * (1 - 1e-9):
                break
            room = capacity - banded.taken(before, after)
            if room < 0:
                continue
            moved = written + banded.given(before) + banded.weights(room)
            cost = model.cost(moved, banded.work)
            if cost < below * (1 - 1e-9):
                below = cost
                best = _Cost(bands, channels, cost, moved, banded.work)
        return best

    def _ranked(self, before: Kept) -> Sequence[tuple[float, int, int, Banded]]:
        """The numbers of bands and parts that the model has room for, by what they cost at least
        beside what is written."""
        if before not in self._ranks:
            able = [(*way, banded) for way in self.ways if (banded := self._in(*way)) is not None]
            ranked = [
                (
                    self._model.cost(banded.given(before) + banded.bytes_once, banded.work),
                    bands,
                    channels,
                    banded,
                )
                for bands, channels, banded in able
            ]
            self._ranks[before] = sorted(ranked, key=lambda one: one[:3])
        return self._ranks[before]

    def cost_in(self, bands: int, channels: int, before: Kept, after: Kept, capacity: int) -> float:
        """What so many bands and parts of channels cost; infinite where they do not fit."""
        banded = self._in(bands, channels)
        room = -1.0 if banded is None else capacity - banded.taken(before, after)
        if banded is None or room < 0:
            return np.inf
        return self._model.cost(
            self._written(before, after) + banded.given(before) + banded.weights(room), banded.work
        )

    def _written(self, before: Kept, after: Kept) -> float:
        """Bytes of results that go to main memory: outputs, and what later operators need that is
        not kept."""
        network = self._model.network
        total = 0
        for storage, size in self._leaving:
            if storage not in after or storage in network.outputs:
                total += size
        for storage in before - after:
            if storage not in network.outputs and network.leaves(storage, self.last):
                total += network.bytes_of(storage)
        return float(total)

    def _in(self, bands: int, channels: int) -> Banded | None:
        if (bands, channels) not in self._banded:
            single = self.first == self.last - 1
            self._banded[bands, channels] = (
                self._single(bands, channels) if single else self._cut(bands)
            )
        return self._banded[bands, channels]

    def _single(self, bands: int, channels: int) -> Banded:
        """One operator: each part of its channels in all bands before the next, so that its weights
        may stay; whole as in ``plain``."""
        model, number, network = self._model, self.first, self._seen.network
        group, uncut, cut = network.fused[number], bands == channels == 1, model.plain[number]
        streams, weights = {}, []
        for access in group.reads:
            size = access.bytes * self._seen.refills.of(number, bands, access.tensor, channels)
            own = access.tensor in group.by_channel
            if network.is_weight(access.tensor):
                parts = channels if own else 1
                # While the last pieces of a part run, the first of the next ones do.
                at_once = min(parts, 1 + -(-(model.cores - 1) // bands))
                again = (
                    model.times_read(number, access.tensor) if uncut else bands * channels / parts
                )
                weights.append(
                    (
                        self._setting.padded(access.bytes / parts) * at_once,
                        float(access.bytes),
                        size * again,
                    )
                )
            elif uncut:
                streams[access.tensor] = size * model.times_read(number, access.tensor)
            else:
                streams[access.tensor] = (
                    size
                    * self._seen.overlap(number, access.tensor, bands)
                    * (1 if own else channels)
                )
        made = {
            access.tensor: np.full(1, network.bytes_of(access.tensor), dtype=np.float64)
            for access in group.writes
        }
        tiles = cut.tiles if uncut else bands * channels
        # Pieces for the cores end together, so that all of these have work.
        work = (
            self._seen.work.beside(number, 1)
            if uncut and tiles > 1
            else self._seen.work.alone(number, bands, channels)
        )
        return Banded(
            network, np.zeros(1), streams, made, weights, tiles * self._setting.bytes_of_piece, work
        )

    def _cut(self, bands: int) -> Banded | None:
        """The stack in so many bands, as another that is like it if there was one."""
        known, like = self._model.cut_alike, (self._setting, self.columns, self.stripes, bands)
        number, names = self._model.runs.of(self.first, self.last)
        if (number, *like) not in known:
            if bands not in self._lives:
                self._lives[bands] = BandLives(
                    self._setting, self._seen, self.last, bands, self.stripes
                )
            lives = self._lives[bands]
            # What lies inside longer stacks is worked out from shorter ones, and not the other way
            # round: these may be asked for later.
            for first in range(lives.first - 1, self.first - 1, -1):
                run, own = self._model.runs.of(first, self.last)
                known[run, *like] = own, lives.banded(first)
        theirs, banded = known[number, *like]
        return (
            banded
            if banded is None or theirs == names
            else banded.renamed(dict(zip(theirs, names, strict=True)))
        )

"""What lies inside stacks of bands at any time, and the bytes that they bring in."""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.planning.cutting.banding import Network, ends_of, steps_of
from loadmaster.planning.cutting.seen_network import SeenNetwork
from loadmaster.planning.cutting.stripes import Stripes, stripe_ends, stripes_between
from loadmaster.workloads.graph import TensorKind

LONGEST = 16
"""Operators in a stack at most: longer ones have so much halo that they do not pay."""

Kept = frozenset[str]
"""Results that are in the fast memory before or after a stack."""


@dataclass(frozen=True)
class Setting:
    """What stacks run in: a fast memory of so many bytes, what a piece costs as bytes, and how
    bands follow one another.

    ``skewed`` is that of a :class:`Stack`.
    """

    capacity: int
    alignment: int
    bytes_of_piece: float
    skewed: bool = False

    def padded(self, size: float) -> float:
        """Bytes of the fast memory that so many take."""
        return -(-size // self.alignment) * self.alignment


@dataclass(frozen=True)
class Banded:
    """A stack in so many bands: what it streams, and what it holds during each step, in bytes.

    ``inner`` is what lies inside the stack, ``made`` what there is of each storage that it writes.
    ``sizes`` are of weights, and of halos between stripes: the room that each takes to stay, what
    crosses if it stays, and if it is streamed; those that save most come first. ``work`` are
    seconds of all cores together.
    """

    network: Network
    inner: Floats
    streams: Mapping[str, float]
    made: Mapping[str, Floats]
    sizes: Sequence[tuple[float, float, float]]
    pieces: float
    work: float
    takes: dict[Kept, float] = field(default_factory=dict)
    crossing: dict[float, float] = field(default_factory=dict)

    def renamed(self, names: Mapping[str, str]) -> Banded:
        """The same of operators that are alike and have other names for what they read and
        write."""
        streams = {names[storage]: size for storage, size in self.streams.items()}
        made = {names[storage]: sizes for storage, sizes in self.made.items()}
        return replace(self, streams=streams, made=made, takes={})

    def given(self, before: Kept) -> float:
        """Bytes that are read from main memory, weights left out, and what pieces cost."""
        return self.pieces + sum(
            size for storage, size in self.streams.items() if storage not in before
        )

    @cached_property
    def inside(self) -> float:
        """Most bytes that lie inside the stack during any band."""
        return float(self.inner.max())

    def taken(self, before: Kept, after: Kept) -> float:
        """Most bytes that lie there during any band, weights left out."""
        new = after - before
        if new not in self.takes:
            self.takes[new] = float((self.inner + sum(self.made[storage] for storage in new)).max())
        # How soon parts of what was there before are done with depends on how that was cut: it
        # counts until the end.
        return self.takes[new] + sum(map(self.network.bytes_of, before))

    def weights(self, room: float) -> float:
        """Bytes that cross for weights, of which those stay that save most for each byte of
        room."""
        if room >= self._room_for_weights:
            return self.bytes_once
        if room not in self.crossing:
            self.crossing[room] = self._weights_in(room)
        return self.crossing[room]

    def _weights_in(self, room: float) -> float:
        total = 0.0
        for size, once, streamed in self.sizes:
            if size <= room and streamed > once:
                room -= size
                total += once
            else:
                total += streamed
        return total

    @cached_property
    def _room_for_weights(self) -> float:
        return sum(size for size, _, _ in self.sizes)

    @cached_property
    def bytes_once(self) -> float:
        """Bytes of weights that cross if all of them stay."""
        return sum(once for _, once, _ in self.sizes)


class BandLives:
    """What lies inside stacks that end with one operator, in so many bands and stripes across them,
    and what they stream.

    A step is a turn and an operator that makes a band in it; an operator that is put in front adds what it reads and writes and changes nothing else. All stripes take as
    much as the widest. A halo between them stays in the fast memory or goes out and comes back.
    """

    def __init__(
        self, setting: Setting, seen: SeenNetwork, last: int, bands: int, stripes: int = 1
    ) -> None:
        self._setting, self._seen, self._network, self._last, self._bands = (
            setting,
            seen,
            seen.network,
            last,
            bands,
        )
        self._stripes, self._across = stripes, seen.across if stripes > 1 else None
        self.first = last
        self._ends: dict[int, Ints] = {}
        self._ranges: dict[int, tuple[Ints, Ints]] = {}
        self._ends_across: dict[int, Ints] = {}
        self._turns = steps_of(bands) + LONGEST * setting.skewed
        self._change = np.zeros(self._turns * LONGEST + 1, dtype=np.int64)
        self._streams: dict[str, float] = {}
        self._made: dict[str, Floats] = {}
        self._weights: dict[str, tuple[float, float, float]] = {}
        self._sizes: list[tuple[float, float, float]] = []
        self._pieces = 0
        self._work = 0.0
        self._full = False

    def banded(self, first: int) -> Banded | None:
        """The stack from ``first`` on, which must not be behind that of an earlier call; None if
        what lies inside it does not fit."""
        while self.first > first and not self._full:
            self.first -= 1
            self._add(self.first)
        if self._full:
            return None
        inner = np.cumsum(self._change)[:-1].reshape(self._turns, LONGEST).max(axis=1)
        self._full = bool(inner.max() > self._setting.capacity)
        if self._full:
            return None
        pieces = self._pieces * self._setting.bytes_of_piece
        return Banded(
            self._network,
            inner,
            dict(self._streams),
            dict(self._made),
            tuple(self._sizes),
            pieces,
            self._work,
        )

    def _add(self, number: int) -> None:
        network = self._network
        ends = ends_of(network, number, self._last, self._bands, self._ends)
        starts = np.concatenate([[0], ends[:-1]])
        self._ends[number], self._ranges[number] = ends, (starts, ends)
        busy = np.flatnonzero(ends > starts)
        stripes = self._stripes_of(number)
        self._pieces += len(busy) * (1 if stripes is None else stripes.count)
        made = np.cumsum(ends - starts)
        self._work += (
            self._seen.work.beside(number, self._bands) * int(made[-1]) / network.extent(number)
        )
        for access in network.fused[number].writes:
            size = network.bytes_of(access.tensor)
            self._streams.pop(access.tensor, None)
            if network.leaves(access.tensor, self._last):
                turns = np.arange(self._turns)
                last = turns - self._behind(number)
                # Of a result that is kept, all stripes but the one at work may lie there.
                there = (
                    made[np.clip(last, 0, len(ends) - 1)] / network.extent(number)
                    if stripes is None
                    else np.ones(self._turns)
                )
                self._made[access.tensor] = size * there
            else:
                self._live(number, access.tensor, stripes)
        for access in network.fused[number].reads:
            times = self._seen.refills.of(number, self._bands, access.tensor)
            if network.is_weight(access.tensor):
                self._add_weight(
                    access.tensor,
                    float(access.bytes),
                    access.bytes * times * len(busy) * self._stripes,
                )
                continue
            low, high = network.edge(number, access.tensor)
            rows = network.rows_of(access.tensor)
            needed = int((high[ends[busy]] - low[starts[busy]]).sum())
            # An input comes in bands of its own, of which the next band of the reader takes its
            # halo.
            needed = (
                min(needed, rows)
                if network.graph.tensors[access.tensor].kind is TensorKind.INPUT
                else needed
            )
            shared = self._shared_across(number, access.tensor)
            self._streams[access.tensor] = (
                self._streams.get(access.tensor, 0.0)
                + access.bytes * times * needed / rows * shared
            )

    def _stripes_of(self, number: int) -> Stripes | None:
        """The stripes of an operator across its bands, if there are several."""
        if self._across is None:
            return None
        self._ends_across[number] = stripe_ends(
            self._across, number, self._last, self._stripes, self._ends_across
        )
        return stripes_between(self._across, number, self._last, self._ends_across)

    def _shared_across(self, number: int, storage: str) -> float:
        """Times that an operator's stripes together read a storage: what two of them need counts
        twice."""
        if self._across is None:
            return 1.0
        ends, (low, high) = self._ends_across[number], self._across.edge(number, storage)
        return float(
            (high[ends] - low[np.concatenate([[0], ends[:-1]])]).sum()
        ) / self._across.rows_of(storage)

    def _add_weight(self, storage: str, size: float, streamed: float) -> None:
        """Add a weight where it belongs by what it saves for each byte of room, together with what
        others read of it."""
        if before := self._weights.get(storage):
            self._sizes.remove(before)
            size, streamed = max(size, before[1]), streamed + before[2]
        self._weights[storage] = own = (self._setting.padded(size), size, streamed)
        insort(self._sizes, own, key=_saving)

    def _add_halo(self, storage: str, stripes: Stripes, extent: int) -> None:
        """Add what later stripes need of a result: it stays, or goes out and comes back."""
        room, moved = (
            self._network.bytes_of(storage) * width / extent
            for width in (max(stripes.halos), sum(stripes.halos))
        )
        if room:
            self._weights[storage] = own = (self._setting.padded(room), 0.0, 2 * moved)
            insort(self._sizes, own, key=_saving)

    def _live(self, number: int, storage: str, stripes: Stripes | None) -> None:
        network, (starts, stops) = self._network, self._ranges[number]
        size, unit = network.bytes_of(storage), self._setting.alignment
        if stripes is not None:
            extent = sum(stripes.widths)
            self._add_halo(storage, stripes, extent)
            size = -(-size * max(stripes.widths) // extent)
        shares = -(-size * (stops - starts) // (network.extent(number) * unit)) * unit
        written = self._step(np.arange(len(stops)), number)
        read = written.copy()
        for reader in network.readers.get(storage, ()):
            low, high = network.edge(reader, storage)
            begins, ends = self._ranges[reader]
            busy = np.flatnonzero(ends > begins)
            # The last band whose rows begin before a part ends is the last that needs it, if it
            # reaches that far.
            last = np.searchsorted(low[begins[busy]], stops, side="left") - 1
            needs = (last >= 0) & (starts < high[ends[busy][last]])
            read = np.where(needs, np.maximum(read, self._step(busy[last], reader)), read)
        np.add.at(self._change, written, shares)
        np.add.at(self._change, read + 1, -shares)

    def _behind(self, number: int) -> int:
        """Turns by which an operator is behind the first that a stack might have."""
        return (number - self._last + LONGEST) * self._setting.skewed

    def _step(self, band: Ints, number: int) -> Ints:
        return (band + self._behind(number)) * LONGEST + (number - self._last + LONGEST)


def _saving(stay: tuple[float, float, float]) -> tuple[float, float]:
    """What sorts first those of which most crosses again if they do not stay, for each byte; a halo
    that stays does not cross at all."""
    room, once, streamed = stay
    return (once - streamed) / max(1.0, once or room), -once

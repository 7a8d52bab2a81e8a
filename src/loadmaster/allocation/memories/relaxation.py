"""The assignment of buffers to memories without addresses: at every instant the bytes in a memory
are at most its capacity.

A lower bound of the cost of an assignment bounds the cost of a packing. Bounds are Lagrangian: any
multipliers of the capacities give one, which `Relaxation.bound` evaluates in whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadmaster.allocation.memories.problem import FORBIDDEN, Bank
from loadmaster.allocation.peaks import fullest
from loadmaster.allocation.problem import Problem, joined
from loadmaster.core.arrays import Floats, Ints, Mask

_SCALE = 2**40
"""Denominator of multipliers, in units of cost per byte."""


@dataclass(frozen=True)
class CoverCut:
    """A proven cut: at most ``most`` of the buffers fit into a memory together."""

    bank: int
    members: Ints
    most: int


@dataclass
class Multipliers:
    """Prices: of a byte in each limited memory at each instant, shape (memories, instants), and of
    each cut."""

    capacity: Floats
    cuts: Floats


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Costs of shape (buffers, memories), instants that matter, and cuts learnt so far.

    Attributes
    ----------
    owner, first, last
        One entry for each part: the buffer, and the instants [first, last) at which it is alive.
    bytes
        Bytes of a part in each memory, padding included, shape (parts, memories).
    room
        Usable bytes of each memory that has a limit.
    """

    cost: Ints
    instants: int
    owner: Ints
    first: Ints
    last: Ints
    bytes: Ints
    room: dict[int, int]
    cuts: list[CoverCut] = field(default_factory=list)

    def load(self, chosen: Ints, bank: int) -> Ints:
        """Bytes in a memory at every instant, given each buffer's memory."""
        mine = chosen[self.owner] == bank
        change = np.zeros(self.instants + 1, dtype=np.int64)
        np.add.at(change, self.first[mine], self.bytes[mine, bank])
        np.subtract.at(change, self.last[mine], self.bytes[mine, bank])
        return np.cumsum(change)[:-1]

    def holds(self, chosen: Ints) -> bool:
        """Whether an assignment uses allowed memories, and satisfies capacities and cuts."""
        if bool((self.cost[np.arange(len(chosen)), chosen] == FORBIDDEN).any()):
            return False
        fits = all(
            int(self.load(chosen, bank).max(initial=0)) <= room for bank, room in self.room.items()
        )
        return fits and not any(
            int((chosen[cut.members] == cut.bank).sum()) > cut.most for cut in self.cuts
        )

    def covers(self, shares: Floats) -> list[CoverCut]:
        """Cover inequalities (Balas, 1975) that fractional ``shares`` of buffers in memories
        violate, extended by larger buffers.

        Buffers that are alive together and exceed a memory are a cover: not all of them can be in
        it.
        """
        found: dict[tuple[int, bytes, int], CoverCut] = {}
        for bank in self.room:
            allowed = self.cost[self.owner, bank] != FORBIDDEN
            for instant in range(self.instants):
                alive = allowed & (self.first <= instant) & (instant < self.last)
                cut = self._cover(bank, np.flatnonzero(alive), shares)
                if cut is not None:
                    found[cut.bank, cut.members.tobytes(), cut.most] = cut
        return list(found.values())

    def _cover(self, bank: int, parts: Ints, shares: Floats) -> CoverCut | None:
        """Return a lifted cover inequality that the shares violate, for parts alive at once in a
        memory; None if none is found."""
        room, bytes_ = self.room[bank], self.bytes[parts, bank]
        missing = 1.0 - shares[self.owner[parts], bank]
        if int(bytes_.sum()) <= room:
            return None
        order = np.argsort(missing / np.maximum(bytes_, 1), kind="stable")
        count = int(np.argmax(np.cumsum(bytes_[order]) > room)) + 1
        cover = order[:count]
        for item in cover[np.argsort(-missing[cover], kind="stable")].tolist():
            if int(bytes_[cover].sum()) - int(bytes_[item]) > room:
                cover = cover[cover != item]
        if missing[cover].sum() > 1.0 - 1e-3:
            return None
        larger = bytes_ >= bytes_[cover].max()
        larger[cover] = True
        return CoverCut(bank, np.unique(self.owner[parts[larger]]), len(cover) - 1)

    def total(self, chosen: Ints) -> int:
        """Cost of an assignment."""
        return sum(self.cost[np.arange(len(chosen)), chosen].tolist())

    def bound(self, prices: Multipliers, allowed: Mask) -> int:
        """Lower bound of the cost of an assignment within ``allowed``, by weak duality, in exact
        arithmetic for any prices."""
        whole = self.cost.astype(object) * _SCALE
        total: int = 0
        for bank, room in self.room.items():
            price = _whole(prices.capacity[bank])
            before = np.concatenate([np.zeros(1, dtype=object), np.cumsum(price)])
            paid = (before[self.last] - before[self.first]) * self.bytes[:, bank].astype(object)
            np.add.at(whole[:, bank], self.owner, paid)
            total -= int(before[-1]) * room
        for cut, price_of_cut in zip(self.cuts, _whole(prices.cuts).tolist(), strict=True):
            whole[cut.members, cut.bank] += price_of_cut
            total -= price_of_cut * cut.most
        total += sum(min(row[may]) for row, may in zip(whole, allowed, strict=True))
        return -(-total // _SCALE)


def _whole(prices: Floats) -> NDArray[np.object_]:
    """Return prices as whole numbers of fixed scale."""
    return np.array(
        [round(price * _SCALE) for price in np.maximum(prices, 0.0).tolist()], dtype=object
    )


def relax(problem: Problem, banks: Sequence[Bank], cost: Ints) -> Relaxation:
    """Relax a problem without aliases, all of whose buffers take space; O(n log n)."""
    owner, lower, upper, low, high = problem.parts
    bytes_ = np.repeat((high - low)[:, None], len(banks), axis=1)
    if len(problem.in_place):
        one, other, _ = problem.in_place.T
        bytes_[np.isin(owner, np.where(problem.size[one] < problem.size[other], one, other))] = 0
    room: dict[int, int] = {}
    for at, bank in enumerate(banks):
        step = _offset_unit(problem, bank, cost[:, at] != FORBIDDEN)
        bytes_[:, at] = -(-bytes_[:, at] // step) * step
        unit = max(1, int(np.gcd.reduce(bytes_[:, at])))
        if bank.capacity is not None:
            free = -(-(bank.capacity - _reserved_bytes(bank, bank.capacity)) // step) * step
            room[at] = free // unit * unit
    if problem.conflicts is not None:
        # Without a clock the relaxation only requires that each buffer fits alone.
        begin = np.arange(len(problem))
        return Relaxation(
            cost,
            len(problem),
            begin,
            begin,
            begin + 1,
            np.repeat(problem.size[:, None], len(banks), axis=1),
            room,
        )
    times = np.unique(np.concatenate([lower, upper]))
    begin, end = np.searchsorted(times, lower), np.searchsorted(times, upper)
    kept = fullest(begin, end)
    first, last = np.searchsorted(kept, begin), np.searchsorted(kept, end)
    return Relaxation(cost, len(kept), owner, first, last, bytes_, room)


def _offset_unit(problem: Problem, bank: Bank, allowed: Mask) -> int:
    """Return the greatest common divisor of all offsets in a memory, to which sizes are padded."""
    if bank.reserved or "windows" in problem.features or not allowed.any():
        return 1
    return int(np.gcd.reduce(np.lcm(problem.alignment[allowed], bank.alignment)))


def _reserved_bytes(bank: Bank, room: int) -> int:
    """Return the reserved bytes below the capacity ``room``."""
    return sum(min(high, room) - min(low, room) for low, high in joined(bank.reserved))

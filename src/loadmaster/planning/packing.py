"""Packing the stays of a plan: all of them, or where nothing manages that, without what finds no
place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.effort import Effort
from loadmaster.core.progress import Deadline
from loadmaster.planning.decisions import Packed, Packing, Placement, Residence, Timeline
from loadmaster.workloads.job import Workload

_FEW = 1500
"""Buffers up to which a search may mend what orders are far from."""
_NEAR = 1.05
"""Share of the capacity up to which it may do so for more buffers; beyond, all that it does is take
time."""


def pack(
    start: Ints,
    end: Ints,
    size: Ints,
    *,
    capacity: int,
    alignment: int,
    enough: int | None = None,
    whole: bool = False,
    value: Floats | None = None,
    effort: Effort = Effort.NORMAL,
    seconds: float = math.inf,
) -> Packing:
    """Give each buffer an offset so that no two alive at once overlap and none ends past
    ``capacity``.

    Buffers are alive over [start, end), an empty lifetime counting as an instant, and take ``size``
    bytes each at a multiple of ``alignment``. First-fit orders are tried until one has a peak of
    ``enough``, by default the capacity; then, for up to 1,500 buffers, searches. Where these do not
    place all, each order places one buffer after another at its lowest free gap: longest-lived
    first, largest first (TensorFlow Lite), largest area, earliest. The one that loses least
    ``value`` (by default bytes) wins; a buffer that fits nowhere gets -1. If the ``whole`` is asked
    for, nothing may be left out: more buffers are searched for, and all get -1 where no offsets are
    found. Once ``seconds`` are over, no further order or search is begun. Time grows a little
    faster than n, memory with n.
    """
    deadline = Deadline.within(seconds)
    units = _Units.of(start, end, size, alignment)
    # Of many buffers a few that are left out cost less than the search that places them.
    searched = whole or len(size) <= _FEW
    offsets = units.all(
        capacity, capacity if enough is None else enough, seconds, effort.nodes, searched=searched
    )
    if offsets is None:
        worth = size.astype(np.float64) if value is None else value
        least, offsets = np.inf, np.full(len(size), -1, dtype=np.int64)
        for order in () if whole else _orders(start, np.maximum(end, start + 1), size):
            candidate = units.what_fits(order, capacity)
            lost = float(worth[candidate < 0].sum())
            if lost < least:
                least, offsets = lost, candidate
            if (candidate >= 0).all() or deadline.passed():
                break
    peak = int((offsets + size)[offsets >= 0].max(initial=0))
    return Packing(offsets, peak, most_alive(start, end, size))


class PackingCache:
    """Answers of :func:`pack` for plans of the same jobs.

    Searches that begin alike come to the same plans, and addresses may take longer than all else.
    What was packed against time is not kept.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, Packing] = {}

    def get_or_pack(self, *stays: Ints, seconds: float, **options: Any) -> Packing:
        """The packing of stays, which is worked out only if it has not been asked for before."""
        if seconds < math.inf:
            return pack(*stays, **options, seconds=seconds)
        words = [
            option.tobytes() if isinstance(option, np.ndarray) else repr(option).encode()
            for option in options.values()
        ]
        columns = [column.tobytes() for column in stays]
        key = blake2b(b" ".join([repr((*options,)).encode(), *columns, *words])).digest()
        if key not in self._known:
            self._known[key] = pack(*stays, **options)
        return self._known[key]


@dataclass(frozen=True)
class _Units:
    """A packing problem in units of the alignment that all buffers share: then none has to be
    aligned, which is easier at scale."""

    problem: Problem
    unit: int
    size: Ints

    @staticmethod
    def of(start: Ints, end: Ints, size: Ints, alignment: int) -> _Units:
        """The problem of buffers alive over [start, end), an empty lifetime counting as an
        instant."""
        none = np.full(len(size), -1, dtype=np.int64)
        one = np.ones(len(size), dtype=np.int64)
        return _Units(
            Problem(start, np.maximum(end, start + 1), -(-size // alignment), one, none, none),
            alignment,
            size,
        )

    @cached_property
    def _native(self) -> _native.PackingProblem:
        return packing_problem(self.problem)

    def rooms(self, capacity: int) -> list[int]:
        """Units that lie in the capacity as a whole, then with one that the highest buffer may not
        fill."""
        return list(dict.fromkeys((capacity // self.unit, -(-capacity // self.unit))))

    def all(
        self, capacity: int, enough: int, seconds: float, nodes: int, searched: bool
    ) -> Ints | None:
        """Offsets for every buffer, or None; what orders do not find is ``searched`` for."""
        deadline = Deadline.within(seconds)
        problem = self.problem
        if most_alive(problem.lower, problem.upper, problem.size) > -(-capacity // self.unit):
            return None
        native = self._native
        first = native.greedy(seconds=deadline.left(), enough=min(enough, capacity) // self.unit)
        if first.interrupted:
            raise KeyboardInterrupt
        if (fitting := self._within(first.offsets, capacity)) is not None:
            return fitting
        search = searched and (len(problem) <= _FEW or first.peak * self.unit <= capacity * _NEAR)
        for room in self.rooms(capacity) if search and deadline.left() else ():
            found = native.exact(room, first.offsets, nodes=nodes, seconds=deadline.left())
            if found.interrupted:
                raise KeyboardInterrupt
            if (
                found.status == "feasible"
                and (fitting := self._within(found.offsets, capacity)) is not None
            ):
                return fitting
        return None

    def what_fits(self, order: Ints, capacity: int) -> Ints:
        """Offsets, -1 for buffers that end past the capacity when each in turn goes to its lowest
        gap."""
        offsets = self._native.place_what_fits(order, capacity // self.unit)
        return np.where(offsets < 0, -1, offsets * self.unit)

    def _within(self, offsets: Ints, capacity: int) -> Ints | None:
        """Offsets in bytes, if no buffer ends past the capacity."""
        found: Ints = offsets * self.unit
        return found if int((found + self.size).max(initial=0)) <= capacity else None


def _orders(start: Ints, end: Ints, size: Ints) -> list[Ints]:
    length, index = end - start, np.arange(len(size))
    keys = [
        (index, -size, -length),
        (index, -length, -size),
        (index, -(size.astype(np.float64) * length)),
        (index, -size, start),
    ]
    return [np.lexsort(key) for key in keys]


def most_alive(start: Ints, end: Ints, size: Ints) -> int:
    """Most bytes alive at once; at one instant, ends come before starts, but an empty lifetime
    counts as an instant."""
    times = np.concatenate([np.maximum(end, start + 1), start])
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(np.concatenate([-size, size])[order]).max(initial=0))


@dataclass(frozen=True)
class Stays:
    """What is to be packed in one memory: picoseconds and bytes, shape (residences,)."""

    residences: tuple[Residence, ...]
    start: Ints
    end: Ints
    sizes: Ints

    @staticmethod
    def of(
        workload: Workload, placement: Placement, timeline: Timeline, memory_index: int
    ) -> Stays:
        """Those of a placement in one memory, with the times that a timeline gives them."""
        residences = tuple(r for r in placement.residences if r.memory == memory_index)
        columns = (
            *_lifetimes(residences, timeline),
            [workload.tensors[r.tensor].bytes for r in residences],
        )
        return Stays(residences, *(np.array(column, dtype=np.int64) for column in columns))

    def packed(self, result: Packing) -> Packed:
        """The stays with the addresses that they were given."""
        return Packed(
            self.residences,
            self.start.tolist(),
            self.end.tolist(),
            result.offsets.tolist(),
            self.sizes.tolist(),
            result.load,
        )


def retimed(packed: Packed, timeline: Timeline) -> Packed:
    """The same addresses over the lifetimes of another timeline."""
    start, end = _lifetimes(packed.residences, timeline)
    return replace(
        packed,
        start=start,
        end=end,
        load=most_alive(
            *(np.array(column, dtype=np.int64) for column in (start, end, packed.sizes))
        ),
    )


def _lifetimes(residences: Sequence[Residence], timeline: Timeline) -> tuple[list[int], list[int]]:
    """Picoseconds at which stays begin and end; a tensor that nobody reads is there while it is
    written."""
    starts = timeline.start.tolist()
    ends = timeline.end.tolist()
    makespan = timeline.makespan
    begin = [starts[residence.writer] if residence.writer >= 0 else 0 for residence in residences]
    over = []
    for residence in residences:
        written = ends[residence.writer] if residence.writer >= 0 else 0
        last = (
            makespan
            if residence.to_the_end
            else max(map(ends.__getitem__, residence.users), default=0)
        )
        over.append(max(written, last))
    return begin, over

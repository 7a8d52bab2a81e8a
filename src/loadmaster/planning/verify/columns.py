"""The plan's long lists as columns of numbers, in which names are the places of what they name:
what checks go through fast.

Each is built on first use, in O(n log n).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from operator import attrgetter
from typing import Any

import numpy as np

from loadmaster.core.arrays import Ints, Mask, UInt64s
from loadmaster.core.units import PICOSECONDS
from loadmaster.planning.plan_records import PlanRecord

UNKNOWN = -1
"""For what names nothing, and for what lies nowhere."""


def spans_of(records: Sequence[Any]) -> tuple[Ints, Ints]:
    """Start and end of every record in picoseconds; times must be sound numbers."""
    start, end = (
        np.rint(np.fromiter(map(attrgetter(side), records), np.float64, len(records)) * PICOSECONDS)
        for side in ("start", "end")
    )
    return start.astype(np.int64), end.astype(np.int64)


def joined(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """For ranges of so many rows from ``first`` on: the number of the range that each row belongs
    to, and the row, range after range."""
    owner = np.repeat(np.arange(len(count)), count)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(count) - count - first, count)


@dataclass(frozen=True)
class Operands:
    """What every job reads and then writes, job after job: the job, the tensor, the shared memory,
    bytes, and whether it is written."""

    job: Ints
    tensor: Ints
    memory: Ints
    bytes: Ints
    written: Mask


@dataclass(frozen=True)
class Transfers:
    """Every transfer: its tensor, where from and where to, its bytes, the job that it serves, and
    when it starts and ends."""

    tensor: Ints
    source: Ints
    destination: Ints
    bytes: Ints
    job: Ints
    start: Ints
    end: Ints


@dataclass(frozen=True)
class Allocations:
    """Every allocation: its tensor, its memory or core, when it starts and ends, its first byte and
    the one after its last."""

    tensor: Ints
    place: Ints
    start: Ints
    end: Ints
    low: UInt64s
    high: UInt64s


@dataclass(frozen=True)
class Columns:
    """A plan with numbers for names: tensors and jobs count as the plan lists them, memories come
    before cores."""

    plan: PlanRecord
    tensor_number: Mapping[str, int]
    job_number: Mapping[str, int]

    @cached_property
    def place_number(self) -> dict[str, int]:
        """Numbers of shared memories, then of cores."""
        target = self.plan.target
        names = [memory.name for memory in target.memories] + [core.name for core in target.cores]
        return {name: number for number, name in enumerate(names)}

    @cached_property
    def operands(self) -> Operands:
        """What jobs read and write."""
        sides = [side for job in self.plan.jobs for side in (job.reads, job.writes)]
        counts = np.fromiter(map(len, sides), np.int64, len(sides))
        every = list(chain.from_iterable(sides))
        return Operands(
            np.repeat(np.arange(len(sides)) // 2, counts),
            _numbers(self.tensor_number, every, "tensor"),
            _numbers(self.place_number, every, "memory"),
            np.fromiter(map(attrgetter("bytes"), every), np.int64, len(every)),
            np.repeat(np.arange(len(sides)) % 2 == 1, counts),
        )

    @cached_property
    def transfers(self) -> Transfers:
        """What moves."""
        every = self.plan.transfers
        return Transfers(
            _numbers(self.tensor_number, every, "tensor"),
            _numbers(self.place_number, every, "source"),
            _numbers(self.place_number, every, "destination"),
            np.fromiter(map(attrgetter("bytes"), every), np.int64, len(every)),
            _numbers(self.job_number, every, "job"),
            *spans_of(every),
        )

    @cached_property
    def allocations(self) -> Allocations:
        """What lies where."""
        every = self.plan.allocations
        low, size = (
            np.fromiter(map(attrgetter(name), every), np.uint64, len(every))
            for name in ("offset", "bytes")
        )
        return Allocations(
            _numbers(self.tensor_number, every, "tensor"),
            _numbers(self.place_number, every, "memory"),
            *spans_of(every),
            low,
            low + size,
        )

    @cached_property
    def jobs(self) -> tuple[Ints, Ints]:
        """When jobs start and end."""
        return spans_of(self.plan.jobs)

    @cached_property
    def tensor_bytes(self) -> UInt64s:
        """Bytes of tensors."""
        return np.fromiter(
            map(attrgetter("bytes"), self.plan.tensors), np.uint64, len(self.plan.tensors)
        )

    @cached_property
    def producer(self) -> Ints:
        """The job that makes each tensor."""
        return _numbers(self.job_number, self.plan.tensors, "producer")

    def held(self, tensor: Ints, place: Ints, start: Ints, end: Ints) -> Ints:
        """The allocation that holds each tensor at a place over all of [start, end): of those that
        start until then, the last."""
        own = self.allocations
        if not len(own.tensor):
            return np.full(len(tensor), UNKNOWN)
        order, instants, keys = self._by_tensor
        # A key and, behind it, the last instant up to the start at which any allocation begins.
        asked = self._key(tensor, place)
        at = (
            np.searchsorted(
                keys, asked * len(instants) + np.searchsorted(instants, start, "right") - 1, "right"
            )
            - 1
        )
        found = order[at]
        return np.where(
            (at >= 0)
            & (self._key(own.tensor, own.place)[found] == asked)
            & (own.end[found] >= end),
            found,
            UNKNOWN,
        )

    @cached_property
    def doubled(self) -> tuple[Ints, Ints]:
        """Pairs of allocations of one tensor at one place, of which the second begins before the
        first ends."""
        own, (order, _, _) = self.allocations, self._by_tensor
        key = self._key(own.tensor, own.place)
        one, two = order[:-1], order[1:]
        hit = (key[one] == key[two]) & (own.end[one] > own.start[two])
        return one[hit], two[hit]

    @cached_property
    def _by_tensor(self) -> tuple[Ints, Ints, Ints]:
        """Allocations by tensor and place, then by time; instants at which any begins, and the key
        of each with its instant behind it."""
        own = self.allocations
        key = self._key(own.tensor, own.place)
        order = np.lexsort((own.end, own.start, key))
        instants = np.unique(own.start)
        return (
            order,
            instants,
            key[order] * len(instants) + np.searchsorted(instants, own.start[order]),
        )

    def _key(self, tensor: Ints, place: Ints) -> Ints:
        return tensor * len(self.place_number) + place


def _numbers(number: Mapping[str, int], records: Sequence[Any], field: str) -> Ints:
    names = map(attrgetter(field), records)
    return np.fromiter(map(number.get, names, repeat(UNKNOWN)), np.int64, len(records))

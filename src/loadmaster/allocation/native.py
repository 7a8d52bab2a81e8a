"""Converts problems and packings to and from native code, and defines the interface of strategies
in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.allocation.problem import Load, Parts, Problem, joined
from loadmaster.core.arrays import Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import AllocationError
from loadmaster.core.progress import Deadline


def packing_problem(problem: Problem) -> _native.PackingProblem:
    """Convert a problem with all its demands for native code; O(n log n)."""
    size, alignment, pin, hint = (
        np.ascontiguousarray(column)
        for column in (problem.size, problem.alignment, problem.pin, problem.hint)
    )
    conflicts = problem.conflicts
    try:
        return _native.PackingProblem(
            size,
            alignment,
            pin,
            *problem.sections,
            hint=hint,
            aliases=problem.alias_rows,
            reserved=np.array(problem.reserved, dtype=np.int64).reshape(-1, 2),
            in_place=np.ascontiguousarray(problem.in_place),
            conflicts=None if conflicts is None else np.ascontiguousarray(conflicts),
        )
    except OverflowError as error:
        raise AllocationError(f"in_place: {error}: relax the alignments") from None


def load_of(problem: Problem, found: _native.Packed) -> Load:
    """The load that proves a bound: buffers, and reserved ranges numbered after them."""
    ranges, count = joined(problem.reserved), len(problem)
    names = tuple(
        problem.name(at) if at < count else "(reserved {}-{})".format(*ranges[at - count])
        for at in found.witnesses.tolist()
    )
    return Load(found.bound, None if found.proof == "pairs" else found.instant, names)


def lower_bound(problem: Problem) -> Load:
    """Lower bound of the peak in bytes, with the instant and buffers that prove it.

    The largest of: the load, with reserved ranges and with as much sharing as in-place pairs
    permit; the highest pin; and the bytes of a clique of buffers that are pairwise alive together,
    found by a limited search.
    """
    return load_of(problem, packing_problem(problem).bound())


def merged(problem: Problem) -> tuple[Problem, Ints, Ints]:
    """Reduce a problem: conflicts become lifetimes, and each alias group one buffer. Returns the
    reduced problem and, for each buffer, its index there and its distance above that buffer."""
    columns, place, lift = packing_problem(problem).merged()
    names: list[list[str]] = [[] for _ in columns[0]]
    for buffer, at in enumerate(place.tolist()):
        names[at].append(problem.name(buffer))
    return replace(problem_of_columns(columns), ids=tuple(map("+".join, names))), place, lift


def problem_of_columns(columns: tuple[Any, ...]) -> Problem:
    """Return the problem that the native core has reduced: sections become lifetimes with gaps."""
    size, alignment, pin, hint, first, begin, end, low, high, in_place, conflicts = columns
    count = np.diff(first)
    some = np.flatnonzero(count > 0)
    lower, upper = np.zeros_like(size), np.zeros_like(size)
    if len(some):
        lower[some] = np.minimum.reduceat(begin, first[some])
        upper[some] = np.maximum.reduceat(end, first[some])
    owner = np.repeat(np.arange(len(size)), count)
    # Bytes that are free while the buffer is there, and times at which it is not.
    windows = np.flatnonzero((low > 0) | (high < size[owner]))
    absent = np.flatnonzero((owner[:-1] == owner[1:]) & (end[:-1] < begin[1:]))
    none = np.zeros_like(absent)
    rows = (
        (owner[windows], owner[absent]),
        (begin[windows], end[absent]),
        (end[windows], begin[absent + 1]),
        (low[windows], none),
        (high[windows], none),
    )
    gaps = Parts(*map(np.concatenate, rows))
    return Problem(
        lower, upper, size, alignment, pin, hint, gaps=gaps, in_place=in_place, conflicts=conflicts
    )


@dataclass
class PackingSearch:
    """One attempt at a problem whose buffers all take space, without reserved ranges or aliases.

    Strategies read the first group of fields, call `offer` for every packing that they find, and
    raise ``floor`` to the bytes that any packing needs as far as an exhausted search has shown.
    """

    problem: Problem
    bound: int
    capacity: int | None
    seed: int
    threads: int
    deadline: Deadline
    effort: Effort
    counters: dict[str, int]

    offsets: Ints | None = None
    peak: int | None = None
    floor: int = 0
    interrupted: bool = False

    @property
    def done(self) -> bool:
        """Whether nothing is left to gain."""
        goal = max(self.bound, self.floor, self.capacity or 0)
        return self.peak is not None and self.peak <= goal

    def offer(self, offsets: Ints) -> None:
        """Keep a packing if it is lower than the best so far."""
        peak = int(np.max(offsets + self.problem.size, initial=0))
        if self.peak is None or peak < self.peak:
            self.offsets, self.peak = offsets, peak

    def expired(self) -> bool:
        """Whether the time limit has struck; the answer then depends on the machine, and says
        so."""
        self.interrupted |= self.deadline.passed()
        return self.interrupted


@dataclass(frozen=True)
class PackingStrategy:
    """A way to look for packings: what it honours beyond lifetimes and sizes, and how it goes about
    it; without that, the native core knows it by its name."""

    honours: frozenset[str]
    run: Callable[[PackingSearch], None] | None = None


NATIVE = PackingStrategy(
    frozenset({"alignment", "pins", "gaps", "windows", "in-place pairs", "conflict pairs"})
)
"""A strategy of the native core."""

"""From what a user may ask for to what strategies see: conflicts become lifetimes, aliases one
buffer, reserved ranges pinned ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np

from loadmaster.allocation.alias_groups import common_residue
from loadmaster.allocation.problem import FREE, NO_GAPS, Gaps, Problem
from loadmaster.allocation.reduction.cliques import on_one_clock
from loadmaster.allocation.rules import check_pins, gaps_from
from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.rows import distinct_rows


@dataclass(frozen=True)
class Merged:
    """Aliases as one buffer each, conflicts on a clock: and for each buffer of the original problem
    its ``place`` in this one.

    A buffer lies ``lift`` bytes above the one in whose place it is.
    """

    problem: Problem
    place: Ints
    lift: Ints


@dataclass(frozen=True)
class Reduced:
    """The problem that is solved: the merged buffers that take space, then one pinned buffer for
    each reserved range."""

    problem: Problem
    merged: Merged
    kept: Ints

    @property
    def own(self) -> int:
        """How many of the buffers are not reserved ranges."""
        return len(self.kept)

    def offsets(self, solved: Ints) -> Ints:
        """Offsets of the original buffers; what takes no space goes where it is pinned, or to 0."""
        offsets = np.maximum(self.merged.problem.pin, 0)
        offsets[self.kept] = solved[: self.own]
        return offsets[self.merged.place] + self.merged.lift

    def peak(self, solved: Ints) -> int:
        """Highest address of a buffer, reserved ranges left out."""
        return int(np.max(solved[: self.own] + self.problem.size[: self.own], initial=0))


def reduce(problem: Problem, capacity: int | None = None) -> Reduced:
    """Put conflicts on a clock, merge aliases, leave out what takes no space, and reserve ranges,
    as far as a capacity reaches.

    No packing is lost.

    Raises
    ------
    AllocationError
        If aliases make buffers overlap that are pinned.
    """
    merged = merge(problem)
    if problem.aliases:
        check_pins(merged.problem)
    return without_empty(merged, capacity)


def merge(problem: Problem) -> Merged:
    """Put conflicts on a clock and merge aliases; pins are not looked at."""
    place, lift = np.arange(len(problem)), np.zeros(len(problem), dtype=np.int64)
    if problem.conflicts is not None and (clocked := on_one_clock(problem)) is not None:
        problem = clocked
    if problem.aliases:
        problem, place, lift = _merge(problem)
    return Merged(problem, place, lift)


def without_empty(merged: Merged, capacity: int | None = None) -> Reduced:
    """Leave out what takes no space, and reserve ranges."""
    problem, solid = merged.problem, merged.problem.solid
    kept = np.flatnonzero(solid)
    if not solid.all():
        problem = problem.only(kept)
    if problem.reserved:
        problem = _reserve(problem, WHOLE_LIMIT if capacity is None else capacity)
    return Reduced(problem, merged, kept)


def _reserve(problem: Problem, capacity: int) -> Problem:
    """Add one pinned buffer for each reserved range, alive all the time and in conflict with
    everything."""
    ranges = [span for span in joined(problem.reserved) if span[0] < capacity]
    if not ranges:
        return replace(problem, reserved=())
    low, high = np.array(ranges, dtype=np.int64).T
    high = np.minimum(high, capacity)
    begin, end = int(problem.lower.min(initial=0)), int(problem.upper.max(initial=1))
    columns = {
        "lower": np.full(len(low), begin),
        "upper": np.full(len(low), end),
        "size": high - low,
        "pin": low,
    }
    columns |= {"alignment": np.ones_like(low), "hint": np.full_like(low, FREE)}
    names = tuple(f"(reserved {a}-{b})" for a, b in ranges)
    ids = tuple(problem.name(i) for i in range(len(problem))) + names
    merged: dict[str, Any] = {
        name: np.concatenate([getattr(problem, name), column]) for name, column in columns.items()
    }
    conflicts = problem.conflicts
    if conflicts is not None:
        added = np.arange(len(problem), len(problem) + len(low))
        conflicts = np.concatenate(
            [
                conflicts,
                *(np.column_stack([np.arange(at), np.full(at, at)]) for at in added.tolist()),
            ]
        )
    return replace(problem, **merged, ids=ids, reserved=(), conflicts=conflicts)


def _merge(problem: Problem) -> tuple[Problem, Ints, Ints]:
    """Put one buffer in the place of each alias group, which occupies at each instant what any of
    them does.

    It lies at a multiple of what the alignments of all members divide, and its members so much
    above it that each is aligned.
    """
    grouped = {member for group in problem.aliases for member, _ in group}
    single = np.array([i for i in range(len(problem)) if i not in grouped], dtype=np.int64)
    base = replace(problem, aliases=(), in_place=problem.in_place[:0], conflicts=None).only(single)
    place = np.full(len(problem), -1, dtype=np.int64)
    place[single] = np.arange(len(single))
    columns: dict[str, list[int]] = {
        name: [] for name in ("lower", "upper", "size", "alignment", "pin", "hint")
    }
    rows = []
    lift = np.zeros(len(problem), dtype=np.int64)
    for number, group in enumerate(problem.aliases):
        members, lifts = _lifted(problem, group)
        place[members] = len(single) + number
        lift[members] = lifts
        solid = members[problem.solid[members]]
        columns["lower"].append(int(problem.lower[solid].min(initial=2**61)) if len(solid) else 0)
        columns["upper"].append(int(problem.upper[solid].max(initial=0)))
        columns["size"].append(int((problem.size + lift)[solid].max(initial=0)))
        columns["alignment"].append(lcm(*problem.alignment[members].tolist()))
        columns["pin"].append(_highest_base(problem.pin[members], lifts))
        columns["hint"].append(_highest_base(problem.hint[members], lifts))
        spans = _windows(
            problem,
            members,
            lift,
            columns["size"][-1],
            (columns["lower"][-1], columns["upper"][-1]),
        )
        rows += [(len(single) + number, *span) for span in spans]
    merged: dict[str, Any] = {
        name: np.concatenate([getattr(base, name), np.array(column, dtype=np.int64)])
        for name, column in columns.items()
    }
    ids = tuple(problem.name(int(i)) for i in single) + tuple(
        "+".join(problem.name(i) for i, _ in group) for group in problem.aliases
    )
    extra = gaps_from(rows) if rows else NO_GAPS
    gaps = Gaps(*(np.concatenate(pair) for pair in zip(base.gaps, extra, strict=True)))
    result = replace(
        base, **merged, ids=ids, gaps=gaps, in_place=sharing_pairs(problem, place, lift)
    )
    if problem.conflicts is not None:
        result = replace(result, conflicts=_distinct(place[problem.conflicts]), gaps=base.gaps)
    return result, place, lift


def _lifted(problem: Problem, group: Sequence[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Members of a group, and how far each lies above a multiple of their common step."""
    members, shifts = (np.array(column, dtype=np.int64) for column in zip(*group, strict=True))
    lifts = shifts - shifts.min()
    residue = common_residue(
        list(zip(problem.alignment[members].tolist(), lifts.tolist(), strict=True))
    )
    assert residue is not None, "checked with the problem"
    return members, lifts + residue


def _highest_base(addresses: Ints, lifts: Ints) -> int:
    """Where the highest of some members' addresses, if any has one, puts the whole."""
    known = addresses != FREE
    return max(0, int((addresses - lifts)[known].max())) if known.any() else FREE


def _distinct(pairs: Ints) -> Ints:
    """Pairs of two, each once."""
    return distinct_rows(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1).reshape(-1, 2))[0]


def _distinct_in_place(rows: Ints) -> Ints:
    """In-place rows of two, each once, the buffer of the lower number first."""
    one, other, shift = rows[rows[:, 0] != rows[:, 1]].T
    turned = np.column_stack(
        [np.minimum(one, other), np.maximum(one, other), np.where(one < other, shift, -shift)]
    )
    return np.unique(turned, axis=0).reshape(-1, 3)


def sharing_pairs(problem: Problem, place: Ints, lift: Ints) -> Ints:
    """In-place pairs among alias groups, given where each buffer is: two may share if all their
    members that must be apart may."""
    pairs = _distinct_in_place(problem.in_place)
    if not len(pairs):
        return pairs
    allowed = set(map(tuple, pairs.tolist()))
    lifts = lift.tolist()
    members: dict[int, list[int]] = {}
    for buffer in np.flatnonzero(problem.solid).tolist():
        members.setdefault(int(place[buffer]), []).append(buffer)

    def may(one: int, other: int, shift: int) -> bool:
        pairs = (
            (a, b, shift + lifts[b] - lifts[a])
            for a in members.get(one, ())
            for b in members.get(other, ())
        )
        apart = [(a, b, up) for a, b, up in pairs if problem.meet(a, b, up)]
        return bool(apart) and all(
            (a, b, up) in allowed or (b, a, -up) in allowed for a, b, up in apart
        )

    one, other, shift = pairs.T
    blocks = np.column_stack([place[one], place[other], shift + lift[one] - lift[other]])
    kept = [row for row in _distinct_in_place(blocks).tolist() if may(*row)]
    return np.array(kept, dtype=np.int64).reshape(-1, 3)


def _windows(
    problem: Problem, members: Ints, lift: Ints, size: int, lifetime: tuple[int, int]
) -> list[tuple[int, int, int, int]]:
    """Gaps of a merged buffer: windows where less than ``size`` bytes of it are occupied."""
    mine = np.isin(problem.parts.owner, members)
    owner, lower, upper, low, high = (column[mine] for column in problem.parts)
    low, high = low + lift[owner], high + lift[owner]
    # A member may be absent when its life begins or ends: then the lifetime reaches beyond all
    # parts.
    cuts = np.unique(np.concatenate([lower, upper, np.array(lifetime)])).tolist()
    spans: list[tuple[int, int, int, int]] = []
    for begin, end in itertools.pairwise(cuts):
        alive = (lower <= begin) & (end <= upper)
        occupied = joined(zip(low[alive].tolist(), high[alive].tolist(), strict=True)) or [(0, 0)]
        if occupied != [(0, size)]:
            spans += [(begin, end, *window) for window in occupied]
    return spans


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that touch as one, in order; without empty ones."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(span for span in ranges if span[0] < span[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found

"""From what a user may ask for to what strategies see: conflicts become lifetimes, aliases one buffer, reserved ranges pinned ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np

from loadmaster.allocation.problem import FREE, NO_GAPS, Gaps, Ints, Problem
from loadmaster.allocation.reduction.cliques import on_one_clock
from loadmaster.allocation.rules import check_pins, gaps_from


@dataclass(frozen=True)
class Reduced:
    """The problem that is solved, and for each buffer of the original one its place in it (-1: takes no space)."""

    problem: Problem
    place: Ints
    exact: bool

    def offsets(self, original: Problem, solved: Ints) -> Ints:
        """Offsets of the original buffers."""
        offsets = np.where(original.pin >= 0, original.pin, 0)
        kept = self.place >= 0
        offsets[kept] = solved[self.place[kept]]
        return offsets


def reduce(problem: Problem) -> Reduced:
    """Leave out what takes no space, put conflicts on a clock, merge aliases, and reserve ranges; ``exact`` says that no packing was lost.

    Raises
    ------
    AllocationError
        If aliases make buffers overlap that are pinned.
    """
    exact = True
    place = np.arange(len(problem))
    if problem.conflicts is not None and (clocked := on_one_clock(problem)) is not None:
        problem, exact = clocked
    if problem.aliases:
        problem, place, tight = _merge(problem)
        exact &= tight
    if problem.reserved:
        problem = _reserve(problem)
    solid = problem.solid
    if not solid.all():
        kept = np.cumsum(solid) - 1
        place = np.where(solid[place], kept[place], -1)
        problem = problem.only(np.flatnonzero(solid))
    return Reduced(problem, place, exact)


def _reserve(problem: Problem) -> Problem:
    """Add one pinned buffer for each reserved range, alive all the time and in conflict with everything."""
    low, high = np.array(problem.reserved, dtype=np.int64).T
    begin, end = int(problem.lower.min(initial=0)), int(problem.upper.max(initial=1))
    columns = {"lower": np.full(len(low), begin), "upper": np.full(len(low), end), "size": high - low, "pin": low}
    columns |= {"alignment": np.ones_like(low), "hint": np.full_like(low, FREE)}
    names = tuple(f"(reserved {a}-{b})" for a, b in problem.reserved)
    ids = tuple(problem.name(i) for i in range(len(problem))) + names
    merged: dict[str, Any] = {name: np.concatenate([getattr(problem, name), column]) for name, column in columns.items()}
    conflicts = problem.conflicts
    if conflicts is not None:
        added = np.arange(len(problem), len(problem) + len(low))
        conflicts = np.concatenate([conflicts, *(np.column_stack([np.arange(at), np.full(at, at)]) for at in added.tolist())])
    return replace(problem, **merged, ids=ids, reserved=(), conflicts=conflicts)


def _merge(problem: Problem) -> tuple[Problem, Ints, bool]:
    """Put one buffer in the place of each alias group: as large at each instant as what is alive of it."""
    grouped = {member for group in problem.aliases for member in group}
    single = np.array([i for i in range(len(problem)) if i not in grouped], dtype=np.int64)
    base = replace(problem, aliases=(), in_place=problem.in_place[:0], conflicts=None).only(single)
    place = np.full(len(problem), -1, dtype=np.int64)
    place[single] = np.arange(len(single))
    columns: dict[str, list[int]] = {name: [] for name in ("lower", "upper", "size", "alignment", "pin", "hint")}
    rows, exact = [], True
    for number, group in enumerate(problem.aliases):
        members = np.array(group, dtype=np.int64)
        place[members] = len(single) + number
        solid = members[problem.solid[members]]
        columns["lower"].append(int(problem.lower[solid].min(initial=2**61)) if len(solid) else 0)
        columns["upper"].append(int(problem.upper[solid].max(initial=0)))
        columns["size"].append(int(problem.size[solid].max(initial=0)))
        columns["alignment"].append(lcm(*problem.alignment[members].tolist()))
        columns["pin"].append(int(problem.pin[members].max()))
        columns["hint"].append(int(problem.hint[members].max()))
        spans, tight = _windows(problem, members, columns["size"][-1], (columns["lower"][-1], columns["upper"][-1]))
        rows += [(len(single) + number, *span) for span in spans]
        exact &= tight
    merged: dict[str, Any] = {
        name: np.concatenate([getattr(base, name), np.array(column, dtype=np.int64)]) for name, column in columns.items()
    }
    ids = tuple(problem.name(int(i)) for i in single) + tuple("+".join(problem.name(i) for i in group) for group in problem.aliases)
    extra = gaps_from(rows) if rows else NO_GAPS
    gaps = Gaps(*(np.concatenate(pair) for pair in zip(base.gaps, extra, strict=True)))
    result = replace(base, **merged, ids=ids, gaps=gaps, in_place=sharing_pairs(problem, place))
    if problem.conflicts is not None:
        exact, result = False, replace(result, conflicts=_distinct(place[problem.conflicts]), gaps=base.gaps)
    check_pins(result)
    return result, place, exact


def _distinct(pairs: Ints) -> Ints:
    """Pairs of two, each once."""
    return np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0).reshape(-1, 2)


def sharing_pairs(problem: Problem, place: Ints) -> Ints:
    """In-place pairs among alias groups, given each buffer's group: two may share if all their members that must be apart may."""
    pairs = _distinct(problem.in_place)
    if not len(pairs):
        return pairs
    allowed = set(map(tuple, pairs.tolist()))
    members: dict[int, list[int]] = {}
    for buffer in np.flatnonzero(problem.solid).tolist():
        members.setdefault(int(place[buffer]), []).append(buffer)

    def may(one: int, other: int) -> bool:
        apart = [(a, b) for a in members.get(one, ()) for b in members.get(other, ()) if problem.meet(a, b)]
        return bool(apart) and all((min(pair), max(pair)) in allowed for pair in apart)

    kept = [pair for pair in _distinct(place[pairs]).tolist() if may(*pair)]
    return np.array(kept, dtype=np.int64).reshape(-1, 2)


def _windows(problem: Problem, members: Ints, size: int, lifetime: tuple[int, int]) -> tuple[list[tuple[int, int, int, int]], bool]:
    """Gaps of a merged buffer: where less than ``size`` bytes of it are occupied; and whether they are described exactly."""
    mine = np.isin(problem.parts.owner, members)
    _, lower, upper, low, high = (column[mine] for column in problem.parts)
    # A member may be absent when its life begins or ends: then the lifetime reaches beyond all parts.
    cuts = np.unique(np.concatenate([lower, upper, np.array(lifetime)])).tolist()
    spans: list[tuple[int, int, int, int]] = []
    exact = True
    for begin, end in itertools.pairwise(cuts):
        alive = (lower <= begin) & (end <= upper)
        first, last = int(low[alive].min(initial=size)), int(high[alive].max(initial=0))
        exact &= bool((low[alive] == 0).all())
        if first >= last:
            spans.append((begin, end, 0, 0))
        elif (first, last) != (0, size):
            spans.append((begin, end, first, last))
    return spans, exact

"""Bytes that any packing needs, and the instant and buffers that say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.answer import Load
from loadmaster.allocation.problem import Parts, Problem
from loadmaster.allocation.reduction.cliques import neighbours_in
from loadmaster.allocation.reduction.sharing import least_bytes
from loadmaster.core.arrays import Ints

_STARTS = 64
"""Buffers from each of which a clique is grown."""


def load_bound(problem: Problem) -> Load:
    """Most bytes that must be apart at one instant.

    Where all alignments share a divisor, sizes count rounded up to it, but for what the topmost
    buffer may save. Of buffers that may share an address only the largest counts, as far as the
    pairs among those alive at that instant permit. The largest buffer and the highest pin bound the
    peak as well. O(n log n); with in-place pairs that much for each instant that looks fuller than
    it is.
    """
    if problem.conflicts is not None:
        return _clique(problem)
    parts = problem.parts
    bytes_ = parts.high - parts.low
    best = _at(problem, parts, bytes_, np.zeros_like(bytes_))
    step = int(np.gcd.reduce(problem.alignment)) if len(problem) else 1
    if step > 1 and "windows" not in problem.features:
        rounded = -(-bytes_ // step) * step
        best = max(
            best, _at(problem, parts, rounded, rounded - bytes_), key=lambda load: load.bytes
        )
    return max(best, _highest_end(problem), key=lambda load: load.bytes)


def packing_bound(problem: Problem, load: Load | None = None) -> Load:
    """`load_bound`, which may be given, or the bytes of buffers that are alive together two by two
    where a limited search finds more."""
    load = load or load_bound(problem)
    if not len(problem.gaps.owner) or problem.conflicts is not None or len(problem.in_place):
        return load
    bytes_, members = native.packing_problem(problem).alive_in_pairs(load.bytes)
    return (
        Load(bytes_, None, tuple(problem.name(i) for i in members.tolist()))
        if len(members)
        else load
    )


def _at(problem: Problem, parts: Parts, bytes_: Ints, slack: Ints) -> Load:
    """Load at the fullest instant, less the largest slack of a buffer alive then."""
    if not len(bytes_):
        return Load(0, 0, ())
    when = np.concatenate([parts.upper, parts.lower])
    order = np.argsort(when, kind="stable")
    level = np.cumsum(np.concatenate([-bytes_, bytes_])[order])
    if len(problem.in_place):
        return _shared(problem, parts, bytes_, slack, when[order], level)
    instant = int(when[order[int(np.argmax(level))]])
    return _apart(problem, parts, bytes_, slack, instant)


def _apart(problem: Problem, parts: Parts, bytes_: Ints, slack: Ints, instant: int) -> Load:
    alive = (parts.lower <= instant) & (instant < parts.upper)
    total = int(bytes_[alive].sum()) - int(slack[alive].max(initial=0))
    return Load(
        total, instant, tuple(problem.name(i) for i in np.unique(parts.owner[alive]).tolist())
    )


def _shared(
    problem: Problem, parts: Parts, bytes_: Ints, slack: Ints, when: Ints, level: Ints
) -> Load:
    """The most bytes at one instant, with as much sharing as in-place pairs permit.

    Instants are tried from the fullest on, while one may still say more.
    """
    nested = not problem.in_place[:, 2].any() and not parts.low.any()
    last = np.flatnonzero(np.diff(when, append=when[-1] + 1) > 0)
    near: dict[int, set[int]] = {}
    for one, other, _ in problem.in_place.tolist():
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    best = Load(0, 0, ())
    for at in last[np.argsort(-level[last], kind="stable")].tolist():
        if int(level[at]) <= best.bytes:
            break
        instant = int(when[at])
        alive = (parts.lower <= instant) & (instant < parts.upper)
        bytes_of: dict[int, int] = {}
        for owner, more in zip(parts.owner[alive].tolist(), bytes_[alive].tolist(), strict=True):
            bytes_of[owner] = bytes_of.get(owner, 0) + more
        total = least_bytes(bytes_of, near, nested) - int(slack[alive].max(initial=0))
        if total > best.bytes:
            best = Load(total, instant, tuple(problem.name(i) for i in sorted(bytes_of)))
    return best


def _highest_end(problem: Problem) -> Load:
    solid = np.flatnonzero(problem.solid)
    if not len(solid):
        return Load(0, 0, ())
    ends = np.maximum(problem.pin, 0) + problem.size
    top = int(solid[np.argmax(ends[solid])])
    return Load(
        int(ends[top]),
        int(problem.parts.lower[problem.parts.owner == top].min()),
        (problem.name(top),),
    )


def _clique(problem: Problem) -> Load:
    """Heaviest set of mutually conflicting buffers that greedy growth from each of the largest
    finds; the instant means nothing."""
    assert problem.conflicts is not None
    order = np.argsort(-problem.size, kind="stable")
    near = neighbours_in(problem, order)
    place = {buffer: at for at, buffer in enumerate(order.tolist())}
    for *pair, _ in problem.in_place.tolist():
        one, other = (place[buffer] for buffer in pair)
        near[one] &= ~(1 << other)
        near[other] &= ~(1 << one)
    best: tuple[int, list[int]] = (0, [])
    for start in range(min(_STARTS, len(problem))):
        members, open_ = [start], near[start]
        while open_:
            members.append((open_ & -open_).bit_length() - 1)
            open_ &= near[members[-1]]
        best = max(
            best,
            (int(problem.size[order[members]].sum()), order[members].tolist()),
            key=lambda found: found[0],
        )
    load = Load(best[0], 0, tuple(problem.name(i) for i in best[1]))
    pins = _highest_end(problem)
    return replace(pins, instant=0) if pins.bytes > load.bytes else load

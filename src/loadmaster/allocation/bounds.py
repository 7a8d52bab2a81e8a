"""Bytes that any packing needs, and the instant and buffers that say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.allocation.answer import Load
from loadmaster.allocation.problem import Parts, Problem
from loadmaster.allocation.reduction.cliques import neighbours_in
from loadmaster.core.arrays import Ints

_STARTS = 64
"""Buffers from each of which a clique is grown."""


def load_bound(problem: Problem) -> Load:
    """Most bytes that must be apart at one instant.

    Where all alignments share a divisor, sizes count rounded up to it, but for what the topmost buffer may save. Of a pair that may share
    an address only the larger counts. The largest buffer and the highest pin bound the peak as well. O(n log n).
    """
    if problem.conflicts is not None:
        return _clique(problem)
    parts = problem.parts
    if len(problem.in_place):
        parts = _without_smaller_in_place_partners(problem, parts)
    bytes_ = parts.high - parts.low
    best = _at(problem, parts, bytes_, np.zeros_like(bytes_))
    step = int(np.gcd.reduce(problem.alignment)) if len(problem) else 1
    if step > 1 and "windows" not in problem.features:
        rounded = -(-bytes_ // step) * step
        best = max(best, _at(problem, parts, rounded, rounded - bytes_), key=lambda load: load.bytes)
    return max(best, _highest_end(problem), key=lambda load: load.bytes)


def _at(problem: Problem, parts: Parts, bytes_: Ints, slack: Ints) -> Load:
    """Load at the fullest instant, less the largest slack of a buffer alive then."""
    if not len(bytes_):
        return Load(0, 0, ())
    when = np.concatenate([parts.upper, parts.lower])
    order = np.argsort(when, kind="stable")
    level = np.cumsum(np.concatenate([-bytes_, bytes_])[order])
    instant = int(when[order[int(np.argmax(level))]])
    alive = (parts.lower <= instant) & (instant < parts.upper)
    total = int(bytes_[alive].sum()) - int(slack[alive].max(initial=0))
    return Load(total, instant, tuple(problem.name(i) for i in np.unique(parts.owner[alive]).tolist()))


def _highest_end(problem: Problem) -> Load:
    solid = np.flatnonzero(problem.solid)
    if not len(solid):
        return Load(0, 0, ())
    ends = np.maximum(problem.pin, 0) + problem.size
    top = int(solid[np.argmax(ends[solid])])
    return Load(int(ends[top]), int(problem.parts.lower[problem.parts.owner == top].min()), (problem.name(top),))


def _without_smaller_in_place_partners(problem: Problem, parts: Parts) -> Parts:
    """Parts of all buffers but the smaller one of each in-place pair, which may lie inside the larger one."""
    one, other, _ = problem.in_place.T
    smaller = np.zeros(len(problem), dtype=bool)
    smaller[np.where(problem.size[one] < problem.size[other], one, other)] = True
    keep = ~smaller[parts.owner]
    return Parts(*(column[keep] for column in parts))


def _clique(problem: Problem) -> Load:
    """Heaviest set of mutually conflicting buffers that greedy growth from each of the largest finds; the instant means nothing."""
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
        best = max(best, (int(problem.size[order[members]].sum()), order[members].tolist()), key=lambda found: found[0])
    load = Load(best[0], 0, tuple(problem.name(i) for i in best[1]))
    pins = _highest_end(problem)
    return replace(pins, instant=0) if pins.bytes > load.bytes else load

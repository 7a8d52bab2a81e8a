"""Bytes that any packing needs, and the instant and buffers that say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.allocation.answer import Load
from loadmaster.allocation.problem import Ints, Parts, Problem


def load_bound(problem: Problem) -> Load:
    """Most bytes that must be apart at one instant.

    Where all alignments share a divisor, sizes count rounded up to it, but for what the topmost buffer may save. Of a pair that may share
    an address only the larger counts. Pins bound the peak as well. O(n log n).
    """
    if problem.conflicts is not None:
        return _clique(problem)
    parts = problem.parts
    if len(problem.in_place):
        parts = _without_passengers(problem, parts)
    bytes_ = parts.high - parts.low
    best = _at(problem, parts, bytes_, np.zeros_like(bytes_))
    step = int(np.gcd.reduce(problem.alignment)) if len(problem) else 1
    if step > 1 and "windows" not in problem.features:
        rounded = -(-bytes_ // step) * step
        best = max(best, _at(problem, parts, rounded, rounded - bytes_), key=lambda load: load.bytes)
    return max(best, _highest_pin(problem), key=lambda load: load.bytes)


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
    return Load(total, instant, tuple(problem.name(i) for i in parts.owner[alive].tolist()))


def _highest_pin(problem: Problem) -> Load:
    pinned = np.flatnonzero(problem.pin >= 0)
    if not len(pinned):
        return Load(0, 0, ())
    top = int(pinned[np.argmax(problem.pin[pinned] + problem.size[pinned])])
    return Load(int(problem.pin[top] + problem.size[top]), int(problem.lower[top]), (problem.name(top),))


def _without_passengers(problem: Problem, parts: Parts) -> Parts:
    one, other = problem.in_place.T
    passenger = np.zeros(len(problem), dtype=bool)
    passenger[np.where(problem.size[one] < problem.size[other], one, other)] = True
    keep = ~passenger[parts.owner]
    return Parts(*(column[keep] for column in parts))


def _clique(problem: Problem) -> Load:
    """Heaviest set of mutually conflicting buffers that greedy growth from each of the largest finds; the instant means nothing."""
    assert problem.conflicts is not None
    near: list[set[int]] = [set() for _ in range(len(problem))]
    for one, other in problem.conflicts.tolist():
        near[one].add(other)
        near[other].add(one)
    for one, other in problem.in_place.tolist():
        near[one].discard(other)
        near[other].discard(one)
    order = np.argsort(-problem.size, kind="stable").tolist()
    best: tuple[int, list[int]] = (0, [])
    for start in order[:64]:
        members, open_ = [start], near[start]
        for buffer in order:
            if buffer in open_:
                members.append(buffer)
                open_ = open_ & near[buffer]
        best = max(best, (int(problem.size[members].sum()), members), key=lambda found: found[0])
    load = Load(best[0], 0, tuple(problem.name(i) for i in best[1]))
    pins = _highest_pin(problem)
    return replace(pins, instant=0) if pins.bytes > load.bytes else load

"""Why buffers do not fit: how many bytes too many, where, of which kind, and a small set of buffers that cannot fit together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.answer import Infeasibility, Kind, Load
from loadmaster.allocation.problem import FREE, Ints, Problem

_NODES = 20_000
"""Budget of each test."""
_TESTS = 2_000
"""Tests at most."""


def explain(problem: Problem, bound: Load, capacity: int) -> Infeasibility:
    """Explain a problem that has been proven not to fit."""
    if bound.bytes > capacity:
        return _by_load(problem, bound, capacity)
    keep, irreducible = _irreducible(problem, capacity)
    core = problem.only(keep)
    required = native.lowest_peak(core, _NODES) if irreducible else None
    needed = max(required or 0, capacity + 1)
    begin, end = int(core.lower.max(initial=0)), int(core.upper.min(initial=0))
    instant = begin if begin < end and not len(core.gaps.owner) else None
    names = tuple(core.name(i) for i in range(len(core)))
    return Infeasibility(needed, capacity, needed - capacity, instant, _kind(core, capacity), names, irreducible)


def _by_load(problem: Problem, bound: Load, capacity: int) -> Infeasibility:
    """The largest of the buffers that are alive together, as many as it takes."""
    named = set(bound.buffers)
    members = np.array([i for i in range(len(problem)) if problem.name(i) in named], dtype=np.int64)
    parts = problem.parts
    at = (parts.lower <= bound.instant) & (bound.instant < parts.upper)
    bytes_ = np.zeros(len(problem), dtype=np.int64)
    np.add.at(bytes_, parts.owner[at], (parts.high - parts.low)[at])
    if problem.conflicts is not None:
        bytes_ = problem.size
    load = int(bytes_[members].sum())
    kind: Kind = "load" if load > capacity else "pins" if len(members) == 1 and problem.pin[members[0]] >= 0 else "alignment"
    if kind == "load":
        order = members[np.argsort(-bytes_[members], kind="stable")]
        members = np.sort(order[: int(np.argmax(np.cumsum(bytes_[order]) > capacity)) + 1])
    plain = kind != "alignment" and not problem.features - {"conflict pairs"}
    irreducible = len(members) == 1 or (plain and int(problem.size[members].sum() - problem.size[members].min()) <= capacity)
    instant = None if problem.conflicts is not None else bound.instant
    names = tuple(problem.name(i) for i in members.tolist())
    return Infeasibility(bound.bytes, capacity, bound.bytes - capacity, instant, kind, names, irreducible)


def _irreducible(problem: Problem, capacity: int) -> tuple[Ints, bool]:
    """Deletion filter: leave out ever smaller blocks while what remains is still proven not to fit."""
    keep = np.arange(len(problem))
    tests, block = 0, max(1, len(problem) // 2)
    while True:
        sure, at = True, 0
        while at < len(keep) and tests < _TESTS:
            rest = np.concatenate([keep[:at], keep[at + block :]])
            tests += 1
            verdict = native.fits(problem.only(rest), capacity, _NODES) if len(rest) else True
            if verdict is False:
                keep = rest
            else:
                at, sure = at + block, sure and verdict is True
        if block == 1:
            return keep, sure and tests < _TESTS
        block //= 2


def _kind(core: Problem, capacity: int) -> Kind:
    """What one would have to give up for these buffers to fit."""
    free = np.full(len(core), FREE, dtype=np.int64)
    if "pins" in core.features and native.fits(replace(core, pin=free), capacity, _NODES):
        return "pins"
    if "alignment" in core.features and native.fits(replace(core, alignment=np.ones_like(free)), capacity, _NODES):
        return "alignment"
    return "fragmentation"

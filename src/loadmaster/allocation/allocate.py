"""Allocate: check the problem, let a strategy look for a packing, and claim only what an
independent check confirms."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any

import numpy as np

from loadmaster.allocation import native
from loadmaster.allocation.answer import (
    EXHAUSTED,
    Allocation,
    Certificate,
    Infeasibility,
    Load,
    Status,
)
from loadmaster.allocation.bounds import packing_bound
from loadmaster.allocation.explain import explain
from loadmaster.allocation.fast_path import allocate_at_once
from loadmaster.allocation.problem import Buffer, Problem
from loadmaster.allocation.reduction.reduce import Reduced, joined, merge, reduce
from loadmaster.allocation.rules import check, problem_of
from loadmaster.allocation.search_state import Search
from loadmaster.allocation.strategies.registry import able_strategy
from loadmaster.allocation.verify import broken_rules
from loadmaster.core.arguments import as_whole, require_type
from loadmaster.core.arrays import WHOLE_LIMIT, Array, Ints
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.effort import Effort
from loadmaster.core.errors import AllocationError, LoadmasterError
from loadmaster.core.units import parse_bytes

_DESCENT_BUDGET_DIVISOR = 8
"""Where several capacities are tried in turn, the search of each has the usual budget divided by
this."""


def allocate(
    buffers: Problem | Sequence[Buffer] | Mapping[str, Any] | Sequence[Any] | Array,
    capacity: int | str | None = None,
    *,
    strategy: str = "auto",
    alignment: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int = 1,
    effort: Effort | str = Effort.NORMAL,
    **demands: Any,
) -> Allocation:
    """Give each buffer an address so that no two that are alive together overlap.

    Parameters
    ----------
    buffers
        `Buffer` records, or integer arrays (lower, upper, size): lifetimes [lower, upper) and
        bytes; or a mapping of arrays; or a `Problem`.
    capacity
        Bytes, such as ``65536`` or ``"64 KiB"``. With it, any packing that fits will do; without,
        the peak is minimised.
    strategy
        A name that ``loadmaster.strategies("allocate")`` lists.
    alignment
        Bytes; every offset is a multiple of it, and of the buffer's own alignment. Within an alias
        group only the group's address is.
    time_limit
        Seconds; the best packing so far comes back. Without it ``effort`` counts work, and the
        answer is the same on every machine.
    seed
        Same input and seed, same answer.
    threads
        At most so many, where the strategy can use them.
    effort
        How long to search: ``quick``, ``normal`` or ``thorough``, or budgets of your own.
    **demands
        ``reserved``, ``aliases``, ``in_place``, ``conflicts``: see `Problem`.

    Returns
    -------
    Allocation
        Offsets, peak and lower bound in bytes, a status, and what proves it. Memory grows with n
        log n but for ``telamalloc``, and for pairs that are alive together in ``exact`` and
        ``cp-sat``.

    Raises
    ------
    AllocationError
        If the problem is malformed, or asks for what the strategy cannot honour.
    """
    if isinstance(capacity, str):
        capacity = parse_bytes(capacity)
    if (
        type(buffers) is tuple
        and strategy == "auto"
        and alignment is None
        and time_limit is None
        and effort in (Effort.NORMAL, Effort.NORMAL.name)
        and not demands
    ):
        quick = allocate_at_once(buffers, capacity, seed, threads)
        if quick is not None:
            return quick
    require_type(strategy, str, "strategy", AllocationError)
    problem = aligned(problem_of(buffers, **demands), alignment)
    check_limits(capacity, time_limit, seed, threads)
    if problem.homes is not None:
        raise AllocationError(
            "buffers name memories: say what memories there are, with --memory or allocate_banks"
        )
    return solve(
        problem,
        as_whole(capacity),
        strategy,
        seed,
        threads,
        Deadline.within(time_limit),
        Effort.of(effort, AllocationError),
    )


def solve(
    problem: Problem,
    capacity: int | None,
    strategy: str,
    seed: int,
    threads: int,
    deadline: Deadline = NO_DEADLINE,
    effort: Effort = Effort.NORMAL,
) -> Allocation:
    """`allocate` for a checked problem."""
    wall, cpu = time.monotonic(), time.process_time()
    budget = _Budget(strategy, seed, threads, deadline, effort)
    ranges = joined(problem.reserved)
    if strategy == "auto" and problem.conflicts is None and not len(problem.in_place):
        answer = _natively(problem, capacity, budget)
    elif capacity is not None or not ranges:
        answer = _within(problem, capacity, budget)
    elif _hollow(merge(problem).problem):
        answer = _descend(problem, ranges, budget)
    else:
        answer = _below_or_above(problem, ranges, budget)
    for rule, message in (
        () if answer.offsets is None else broken_rules(problem, answer.offsets, capacity)
    ):
        raise LoadmasterError(
            f"strategy {strategy!r} made a packing that does not hold ({rule}: {message}): please"
            " report it; try another"
        )
    return replace(
        answer,
        seconds=time.monotonic() - wall,
        cpu_seconds=time.process_time() - cpu,
        asked=problem,
    )


Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class _Budget:
    """How to look for packings, and for how long."""

    strategy: str
    seed: int
    threads: int
    deadline: Deadline
    effort: Effort

    def search(self, reduced: Reduced, capacity: int | None) -> Search:
        return Search(
            reduced.problem,
            packing_bound(reduced.problem),
            capacity,
            self.seed,
            self.threads,
            self.deadline,
            self.effort,
        )


def _natively(problem: Problem, capacity: int | None, budget: _Budget) -> Allocation:
    """The whole policy as the library has it."""
    limits = native.limits(budget.seed, budget.threads, budget.deadline, budget.effort)
    try:
        found = native.allocate(problem, capacity, limits)
    except ValueError:
        # Pins of aliases that overlap: this names them.
        reduce(problem, capacity)
        raise
    proof: Certificate | None = None
    if found.status == "infeasible":
        assert capacity is not None
        reduced = reduce(problem, capacity)
        proof = explain(problem, reduced, capacity)
    elif found.status == "optimal":
        # Reserved ranges are numbered on from the buffers.
        ranges, count = joined(problem.reserved), len(problem)
        names = tuple(
            problem.name(at) if at < count else "(reserved {}-{})".format(*ranges[at - count])
            for at in found.witnesses.tolist()
        )
        instant = None if found.proof == "pairs" else found.instant
        proof = EXHAUSTED if found.proof == "exhausted" else Load(found.bound, instant, names)
    lower = max(found.bound, proof.required) if isinstance(proof, Infeasibility) else found.bound
    peak, counts = None if found.offsets is None else found.peak, dict(found.counters)
    status: Status = found.status
    return Allocation(
        status,
        found.offsets,
        peak,
        lower,
        capacity,
        "auto",
        budget.seed,
        0.0,
        0.0,
        proof,
        found.interrupted,
        counts,
    )


def _within(problem: Problem, capacity: int | None, budget: _Budget) -> Allocation:
    """One search: for the lowest peak where nothing is reserved, else within the capacity, up to
    which alone ranges matter."""
    reduced = reduce(problem, capacity)
    search = budget.search(reduced, capacity)
    _run(search, budget.strategy)
    if search.offsets is None or (capacity is not None and (search.peak or 0) > capacity):
        return _nothing(problem, reduced, search, budget)
    bound = _whatever_is_reserved(problem, search)
    lower = bound.bytes if problem.reserved else max(bound.bytes, search.floor)
    return _packing(problem, reduced, search, bound, lower, budget)


def _whatever_is_reserved(problem: Problem, search: Search) -> Load:
    """What any packing needs: the search takes ranges within the capacity for granted, but a
    packing may end below them."""
    return (
        packing_bound(reduce(replace(problem, reserved=())).problem)
        if problem.reserved
        else search.bound
    )


def _below_or_above(problem: Problem, ranges: Ranges, budget: _Budget) -> Allocation:
    """The lowest peak, case by case: below the first range, between it and the second, and so on;
    for buffers that lie across none."""
    lowest_open: int | None = None
    for count in range(len(ranges) + 1):
        reduced = reduce(replace(problem, reserved=tuple(ranges[:count])))
        search, ceiling = (
            budget.search(reduced, None),
            ranges[count][0] if count < len(ranges) else None,
        )
        if ceiling is None or search.bound.bytes <= ceiling:
            _run(search, budget.strategy)
        lower = max(search.bound.bytes, search.floor)
        if ceiling is None or (search.peak is not None and search.peak <= ceiling):
            break
        if lower <= ceiling:
            lowest_open = lower if lowest_open is None else min(lower, lowest_open)
    if search.offsets is None:
        return _nothing(problem, reduced, search, budget)
    return _packing(
        problem,
        reduced,
        search,
        search.bound,
        lower if lowest_open is None else min(lower, lowest_open),
        budget,
    )


def _hollow(problem: Problem) -> bool:
    """Whether some buffer never occupies some of its bytes, so that it may lie across a reserved
    range."""
    owner, _, _, low, high = problem.parts
    partial = np.unique(owner[(low > 0) | (high < problem.size[owner])])
    whole = np.unique(owner[(low == 0) & (high == problem.size[owner])])
    return any(
        joined(zip(low[owner == buffer].tolist(), high[owner == buffer].tolist(), strict=True))
        != [(0, int(problem.size[buffer]))]
        for buffer in np.setdiff1d(partial, whole).tolist()
    )


def _descend(problem: Problem, ranges: Ranges, budget: _Budget) -> Allocation:
    """The lowest peak by halving what lies between a packing and what is proven; a capacity left
    undecided proves nothing."""
    budget = replace(budget, effort=budget.effort.divided(_DESCENT_BUDGET_DIVISOR))
    blocks = merge(problem).problem
    highest = max(ranges[-1][1], int(blocks.pin.max(initial=0))) + sum(
        (blocks.size + blocks.alignment).tolist()
    )
    best = _within(
        problem, highest + sum(abs(shift) for *_, shift in blocks.in_place.tolist()), budget
    )
    peak, proven = best.peak, best.lower_bound
    if peak is None:
        return replace(best, capacity=None)
    low, interrupted = proven, best.interrupted
    while low < peak and not interrupted:
        trial = _within(problem, (low + peak) // 2, budget)
        interrupted |= trial.interrupted
        if trial.peak is not None:
            best, peak = trial, trial.peak
            continue
        low = (low + peak) // 2 + 1
        proven = low if trial.status == "infeasible" else proven
    lower = min(proven, peak)
    status: Status = "optimal" if peak == lower else "feasible"
    proof = None if status == "feasible" else best.proof or EXHAUSTED
    return replace(
        best, status=status, lower_bound=lower, capacity=None, proof=proof, interrupted=interrupted
    )


def aligned(problem: Problem, alignment: int | None) -> Problem:
    """The problem with every offset a multiple of ``alignment`` as well, but for those within an
    alias group."""
    if alignment is None:
        return problem
    step = as_whole(alignment)
    if step is None or not 1 <= step < 2**40:
        raise AllocationError(
            f"alignment {alignment!r}: give a whole number of bytes of at least 1 and less than"
            " 2^40"
        )
    within = [member for group in problem.aliases for member, shift in group if shift > 0]
    wanted = np.lcm(problem.alignment, step)
    wanted[within] = problem.alignment[within]
    aligned = replace(problem, alignment=wanted)
    check(aligned)
    return aligned


def check_limits(capacity: int | None, time_limit: float | None, seed: int, threads: int) -> None:
    """Raise `AllocationError` for limits that make no sense."""
    for name, value, kind in (
        ("time_limit", time_limit or 0, Real),
        ("seed", seed, Integral),
        ("threads", threads, Integral),
    ):
        require_type(value, kind, name, AllocationError)
    if (
        capacity is not None
        and not 0 <= (-1 if (room := as_whole(capacity)) is None else room) < WHOLE_LIMIT
    ):
        raise AllocationError(f"capacity {capacity!r}: give a whole number of bytes from 0 to 2^62")
    if time_limit is not None and not time_limit >= 0:
        raise AllocationError(f"time limit {time_limit!r}: give a number of seconds of at least 0")
    if seed < 0 or threads < 1:
        raise AllocationError(
            f"seed {seed}, threads {threads}: a seed is at least 0, and there is at least one"
            " thread"
        )


def _run(search: Search, name: str) -> None:
    chosen = able_strategy(name, search.problem.features)
    if not len(search.problem):
        search.offer(np.empty(0, dtype=np.int64))
        return
    if search.capacity is not None and search.bound.bytes > search.capacity:
        return
    try:
        chosen.run(search)
    except KeyboardInterrupt:
        search.interrupted = True


def _packing(
    problem: Problem, reduced: Reduced, search: Search, bound: Load, lower: int, budget: _Budget
) -> Allocation:
    """What was found, and what proves it."""
    assert search.offsets is not None
    peak = reduced.peak(search.offsets)
    status: Status = "optimal" if peak == lower else "feasible"
    proof: Certificate | None = (
        None if status == "feasible" else (bound if peak == bound.bytes else EXHAUSTED)
    )
    return _allocation(
        problem, search, budget, status, reduced.offsets(search.offsets), peak, lower, proof
    )


def _nothing(problem: Problem, reduced: Reduced, search: Search, budget: _Budget) -> Allocation:
    """Why there is no packing, if that is proven."""
    lower = max(search.bound.bytes, search.floor)
    if search.capacity is None or lower <= search.capacity:
        lower = _whatever_is_reserved(problem, search).bytes if problem.reserved else lower
        return _allocation(problem, search, budget, "unknown", None, None, lower, None)
    reason = explain(problem, reduced, search.capacity)
    return _allocation(
        problem, search, budget, "infeasible", None, None, max(lower, reason.required), reason
    )


def _allocation(
    problem: Problem,
    search: Search,
    budget: _Budget,
    status: Status,
    offsets: Ints | None,
    peak: int | None,
    lower: int,
    proof: Certificate | None,
) -> Allocation:
    proof = proof if problem.conflicts is None else _without_instant(proof)
    counts = dict(search.counters)
    return Allocation(
        status,
        offsets,
        peak,
        lower,
        search.capacity,
        budget.strategy,
        budget.seed,
        0.0,
        0.0,
        proof,
        search.interrupted,
        counts,
    )


def _without_instant(certificate: Certificate | None) -> Certificate | None:
    """Without a common clock there is no instant to name."""
    if isinstance(certificate, Infeasibility):
        return replace(certificate, instant=None)
    return replace(certificate, instant=0) if isinstance(certificate, Load) else certificate

"""Allocate: check the problem, let a strategy look for a packing, and claim only what an independent check confirms."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.allocation.answer import EXHAUSTED, Allocation, Infeasibility, Load, Status
from loadmaster.allocation.bounds import load_bound
from loadmaster.allocation.explain import explain
from loadmaster.allocation.fast_path import allocate_at_once
from loadmaster.allocation.problem import Buffer, Problem
from loadmaster.allocation.reduction.reduce import Reduced, reduce
from loadmaster.allocation.rules import check, problem_of
from loadmaster.allocation.search_state import Search
from loadmaster.allocation.strategies.registry import require
from loadmaster.allocation.strategies.registry import strategy as lookup
from loadmaster.allocation.verify import broken_rules
from loadmaster.core.arguments import require_type
from loadmaster.core.errors import AllocationError, LoadmasterError


def allocate(
    buffers: Problem | Sequence[Buffer] | Mapping[str, Any] | Sequence[Any] | NDArray[Any],
    capacity: int | None = None,
    *,
    strategy: str = "auto",
    alignment: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int = 1,
    **demands: Any,
) -> Allocation:
    """Give each buffer an address so that no two that are alive together overlap.

    Parameters
    ----------
    buffers
        `Buffer` records, or integer arrays (lower, upper, size): lifetimes [lower, upper) and bytes; or a mapping of arrays; or a
        `Problem`.
    capacity
        Bytes. With it, any packing that fits will do; without, the peak is minimised.
    strategy
        ``auto``, ``best-fit``, ``greedy``, ``telamalloc``, ``exact``, ``local-search`` or ``cp-sat``.
    alignment
        Bytes; every offset is a multiple of it, and of the buffer's own alignment.
    time_limit
        Seconds; the best packing so far comes back. Without it the budget is a count of work, and the answer is the same on every
        machine.
    seed
        Same input and seed, same answer.
    threads
        At most so many, where the strategy can use them.
    **demands
        ``reserved``, ``aliases``, ``in_place``, ``conflicts``: see `Problem`.

    Returns
    -------
    Allocation
        Offsets, peak and lower bound in bytes, a status, and what proves it. Memory grows with n log n but for ``telamalloc``, and for
        pairs that are alive together in ``exact`` and ``cp-sat``.

    Raises
    ------
    AllocationError
        If the problem is malformed, or asks for what the strategy cannot honour.
    """
    if type(buffers) is tuple and strategy == "auto" and alignment is None and time_limit is None and not demands:
        quick = allocate_at_once(buffers, capacity, seed, threads)
        if quick is not None:
            return quick
    require_type(strategy, str, "strategy", AllocationError)
    problem = aligned(problem_of(buffers, **demands), alignment)
    check_limits(capacity, time_limit, seed, threads)
    if problem.homes is not None:
        raise AllocationError("buffers name memories: say what memories there are, with --memory or allocate_banks")
    deadline = None if time_limit is None else time.perf_counter() + time_limit
    return solve(problem, capacity, strategy, seed, threads, deadline)


def solve(
    problem: Problem, capacity: int | None, strategy: str, seed: int, threads: int, deadline: float | None = None, share: int = 1
) -> Allocation:
    """`allocate` for a checked problem, with a part of the default budget."""
    wall, cpu = time.perf_counter(), time.process_time()
    lowest_open: int | None = None
    for part, ceiling in _below_reserved(problem, capacity):
        reduced = reduce(part)
        limit = capacity if ceiling is None else ceiling
        search = Search(reduced.problem, load_bound(reduced.problem), limit, seed, threads, deadline, share)
        search.capacity = None if capacity is None else search.capacity
        if ceiling is None or search.bound.bytes <= ceiling:
            _run(search, strategy)
        lower = max(search.bound.bytes, search.floor if reduced.exact else 0)
        if limit is None or (search.peak is not None and search.peak <= limit):
            break
        if lower <= limit:
            lowest_open = lower if lowest_open is None else min(lower, lowest_open)
    answer = _answer(problem, reduced, search, strategy, capacity, lower if lowest_open is None else min(lower, lowest_open))
    return replace(answer, seconds=time.perf_counter() - wall, cpu_seconds=time.process_time() - cpu)


def _below_reserved(problem: Problem, capacity: int | None) -> Iterator[tuple[Problem, int | None]]:
    """Cases by the reserved ranges that the packing reaches beyond: the problem with these, and what it must end within, if anything.

    Nothing lies across a reserved range, so a packing ends below one or above it.
    """
    passed: list[tuple[int, int]] = []
    for low, high in sorted(span for span in problem.reserved if span[0] < span[1]):
        if passed and low <= passed[-1][1]:
            passed[-1] = (passed[-1][0], max(high, passed[-1][1]))
        else:
            passed.append((low, high))
    for count, (low, _) in enumerate(passed):
        if capacity is not None and low >= capacity:
            break
        yield replace(problem, reserved=tuple(passed[:count])), low
    within = tuple(span for span in passed if capacity is None or span[1] <= capacity)
    if capacity is None or all(span[0] >= capacity or span in within for span in passed):
        yield replace(problem, reserved=within), capacity


def aligned(problem: Problem, alignment: int | None) -> Problem:
    """The problem with every offset a multiple of ``alignment`` as well."""
    if alignment is None:
        return problem
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 1 <= alignment < 2**40:
        raise AllocationError(f"alignment {alignment!r}: give a whole number of bytes of at least 1 and less than 2^40")
    aligned = replace(problem, alignment=np.lcm(problem.alignment, alignment))
    check(aligned)
    return aligned


def check_limits(capacity: int | None, time_limit: float | None, seed: int, threads: int) -> None:
    """Raise `AllocationError` for limits that make no sense."""
    for name, value, kind in (("time_limit", time_limit or 0, Real), ("seed", seed, Integral), ("threads", threads, Integral)):
        require_type(value, kind, name, AllocationError)
    if capacity is not None and (isinstance(capacity, bool) or not isinstance(capacity, int | np.integer) or not 0 <= capacity < 2**62):
        raise AllocationError(f"capacity {capacity!r}: give a whole number of bytes from 0 to 2^62")
    if time_limit is not None and not time_limit >= 0:
        raise AllocationError(f"time limit {time_limit!r}: give a number of seconds of at least 0")
    if seed < 0 or threads < 1:
        raise AllocationError(f"seed {seed}, threads {threads}: a seed is at least 0, and there is at least one thread")


def _run(search: Search, name: str) -> None:
    chosen = lookup(name)
    require(chosen, search.problem.features)
    if not len(search.problem):
        search.offer(np.empty(0, dtype=np.int64))
        return
    if search.capacity is not None and search.bound.bytes > search.capacity:
        return
    try:
        chosen.run(search)
    except KeyboardInterrupt:
        search.interrupted = True


def _answer(problem: Problem, reduced: Reduced, search: Search, name: str, capacity: int | None, lower: int) -> Allocation:
    """Put together what was found and what is proven of it."""
    bound = search.bound
    fits = search.offsets is not None and (search.capacity is None or (search.peak or 0) <= search.capacity)
    status: Status
    certificate: Load | Infeasibility | str | None = None
    offsets = None
    if fits:
        assert search.offsets is not None
        offsets = reduced.offsets(problem, search.offsets)
        _verify(problem, offsets, capacity, name)
        status = "optimal" if search.peak == lower else "feasible"
        certificate = None if status == "feasible" else (bound if search.peak == bound.bytes else EXHAUSTED)
    elif search.capacity is not None and lower > search.capacity:
        status, certificate = "infeasible", explain(search.problem, bound, search.capacity)
        lower = max(lower, certificate.required)
    else:
        status = "unknown"
    if problem.conflicts is not None:
        certificate = _without_instant(certificate)
    peak = search.peak if fits else None
    return Allocation(
        status, offsets, peak, lower, capacity, name, search.seed, 0.0, 0.0, certificate, search.interrupted, dict(search.counters)
    )


def _without_instant(certificate: Load | Infeasibility | str | None) -> Load | Infeasibility | str | None:
    """Without a common clock there is no instant to name."""
    if isinstance(certificate, Infeasibility):
        return replace(certificate, instant=None)
    return replace(certificate, instant=0) if isinstance(certificate, Load) else certificate


def _verify(problem: Problem, offsets: NDArray[np.int64], capacity: int | None, name: str) -> None:
    """Trust no strategy."""
    for rule, message in broken_rules(problem, offsets, capacity):
        raise LoadmasterError(f"strategy {name!r} made a packing that does not hold ({rule}: {message}): please report it; try another")

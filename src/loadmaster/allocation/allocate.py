"""The driver of allocation: checks the problem, runs a strategy, and verifies the packing."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.allocation.native import (
    PackingSearch,
    load_of,
    lower_bound,
    packing_problem,
    problem_of_columns,
)
from loadmaster.allocation.problem import (
    EXHAUSTED,
    Allocation,
    BuffersLike,
    Certificate,
    Infeasibility,
    Problem,
)
from loadmaster.allocation.rules import check, is_whole, problem_of
from loadmaster.allocation.verify import broken_rules
from loadmaster.core.arguments import as_whole, require_type
from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import AllocationError, LoadmasterError
from loadmaster.core.progress import NO_DEADLINE, Deadline, Stopwatch
from loadmaster.core.units import parse_bytes


def allocate_at_once(
    buffers: tuple[Any, ...], capacity: int | None, seed: int, threads: int
) -> Allocation | None:
    """Allocate int64 arrays (lower, upper, size) by native code alone, if that gives a proven or
    fitting packing at once; else None."""
    if (
        not type(seed) is type(threads) is int
        or seed < 0
        or threads < 1
        or not (capacity is None or type(capacity) is int)
        # Native code would round.
        or any(getattr(column, "dtype", None) != np.int64 for column in buffers)
    ):
        return None
    watch = Stopwatch()
    try:
        lower, upper, size = buffers
        offsets, peak, bound = _native.allocate_small(lower, upper, size)
    except (ValueError, TypeError, OverflowError):
        return None
    enough = peak == bound if capacity is None else peak <= capacity
    if (
        not enough
        or not 0 < peak < WHOLE_LIMIT
        or not _native.packing_holds(lower, upper, size, offsets, peak)
    ):
        return None
    asked = partial(problem_of, buffers)
    proven = (lambda: lower_bound(asked())) if peak == bound else None
    return Allocation(
        "feasible" if proven is None else "optimal",
        offsets,
        peak,
        bound,
        capacity,
        "auto",
        seed,
        *watch.read(),
        proven,
        asked=asked,
    )


def allocate(
    buffers: BuffersLike,
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
        Bytes, such as ``65536`` or ``"64 KiB"``. With a capacity, any packing within it is
        accepted; without one, the peak is minimised.
    strategy
        A name that ``loadmaster.strategies("allocate")`` lists.
    alignment
        Bytes; every offset is a multiple of it and of the buffer's own alignment. In an alias group
        this applies to the address of the group, its lowest member's, only.
    time_limit
        Seconds, after which the best packing so far is returned. Without it ``effort`` limits work,
        and the answer is the same on every machine.
    seed
        Same input and seed, same answer.
    threads
        Most threads that the strategy may use.
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
        If the problem is malformed, or has a demand that the strategy does not support.
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
    if problem.allowed is not None:
        raise AllocationError(
            "buffers name memories: say what memories there are, with --memory or allocate_banks"
        )
    answer = solve(
        problem,
        as_whole(capacity),
        strategy,
        seed,
        threads,
        Deadline.within(time_limit),
        Effort.of(effort, AllocationError),
        until_deadline=True,
    )
    for rule, message in (
        () if answer.offsets is None else broken_rules(problem, answer.offsets, answer.capacity)
    ):
        raise LoadmasterError(
            f"strategy {strategy!r} made a packing that does not hold ({rule}: {message}): please"
            " report it; try another"
        )
    return answer


def solve(
    problem: Problem,
    capacity: int | None,
    strategy: str,
    seed: int,
    threads: int,
    deadline: Deadline = NO_DEADLINE,
    effort: Effort = Effort.NORMAL,
    until_deadline: bool = False,
) -> Allocation:
    """Allocate the buffers of a checked problem, as `allocate` does; native code alone verifies the
    packing. Only with ``until_deadline`` a deadline lengthens a search."""
    watch = Stopwatch()
    seed = int(seed)
    run = None
    if strategy != "auto":
        # Native code has this one.
        from loadmaster.allocation.strategies.registry import STRATEGIES, require_able

        run = STRATEGIES.find(strategy).run
    counters: dict[str, int] = {}

    def own(columns: tuple[Any, ...], bound: int, most: int) -> tuple[Ints | None, int, bool]:
        """Run a strategy written in Python on the reduced problem, within ``most`` bytes unless
        negative. Return its offsets, its bound, and whether it was interrupted."""
        reduced, room = problem_of_columns(columns), None if most < 0 else most
        require_able(strategy, reduced.features)
        search = PackingSearch(reduced, bound, room, seed, threads, deadline, effort, counters)
        assert run is not None
        try:
            run(search)
        except KeyboardInterrupt:
            search.interrupted = True
        offsets = None if search.offsets is None else np.asarray(search.offsets, dtype=np.int64)
        return offsets, search.floor, search.interrupted

    try:
        found = packing_problem(problem).allocate(
            -1 if capacity is None else capacity,
            seed=seed % 2**64,
            threads=threads,
            seconds=deadline.left(),
            until_deadline=until_deadline,
            work=effort.work,
            strategy=strategy,
            own=run and own,
        )
    except ValueError as error:
        named = re.sub(
            r"buffer (\d+)", lambda at: f"buffer {problem.name(int(at[1]))!r}", str(error)
        )
        raise AllocationError(named) from None
    except RuntimeError as error:
        raise LoadmasterError(f"strategy {strategy!r}: {error}; try another") from None
    lower, proof = found.bound, _proof(problem, capacity, found)
    return Allocation(
        found.status,
        found.offsets,
        None if found.offsets is None else found.peak,
        max(lower, proof.required) if isinstance(proof, Infeasibility) else lower,
        capacity,
        strategy,
        seed,
        *watch.read(),
        proof,
        found.interrupted,
        counters | found.counters,
        problem,
    )


def _proof(problem: Problem, capacity: int | None, found: _native.Packed) -> Certificate | None:
    """Return the proof of an answer: why nothing fits, an exhausted search or the load; None
    without a proof."""
    if found.status == "infeasible":
        assert capacity is not None
        # Most problems fit.
        from loadmaster.allocation.explain import explain

        return explain(problem, capacity)
    if found.status != "optimal":
        return None
    return EXHAUSTED if found.proof == "exhausted" else load_of(problem, found)


def aligned(problem: Problem, alignment: int | None) -> Problem:
    """Add an alignment of all offsets to a problem; within an alias group only the group's offset
    is aligned."""
    if alignment is None:
        return problem
    if not is_whole(alignment, 1, 2**40):
        raise AllocationError(
            f"alignment {alignment!r}: give a whole number of bytes of at least 1 and less than"
            " 2^40"
        )
    within = problem.alias_rows[problem.alias_rows[:, 2] > 0, 1]
    wanted = np.lcm(problem.alignment, int(alignment))
    wanted[within] = problem.alignment[within]
    aligned = replace(problem, alignment=wanted)
    check(aligned)
    return aligned


def check_limits(capacity: int | None, time_limit: float | None, seed: int, threads: int) -> None:
    """Raise `AllocationError` for limits that are out of range."""
    for name, value, kind in (
        ("time_limit", 0 if time_limit is None else time_limit, Real),
        ("seed", seed, Integral),
        ("threads", threads, Integral),
    ):
        require_type(value, kind, name, AllocationError)
    if capacity is not None and not is_whole(capacity):
        raise AllocationError(
            f"capacity {capacity!r}: give a whole number of bytes from 0 to 2^62 - 1"
        )
    if time_limit is not None and not time_limit >= 0:
        raise AllocationError(f"time limit {time_limit!r}: give a number of seconds of at least 0")
    if seed < 0 or threads < 1:
        raise AllocationError(
            f"seed {seed}, threads {threads}: a seed is at least 0, and there is at least one"
            " thread"
        )

"""CP-SAT of OR-Tools on the same problem: the independent rival. Its answers are proven by its own
search and checked by ours."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.allocation.native import PackingSearch, PackingStrategy, packing_problem
from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import AllocationError, package

_WORK = 60.0
"""Units of CP-SAT's own deterministic time, roughly seconds: the default budget."""
_ADDRESS_LIMIT = 2**50
"""Addresses from here on are refused: CP-SAT adds many of them in 64 bits."""


def run(search: PackingSearch) -> None:
    """Build the model, start from greedy, and solve."""
    solver_library: Any = package("ortools.sat.python.cp_model", "strategy 'cp-sat'")
    simple = packing_problem(search.problem)
    search.offer(simple.place_what_fits(simple.orders()[0], WHOLE_LIMIT - 1))
    if search.done:
        return
    model, offsets = _model(solver_library, search)
    solver = solver_library.CpSolver()
    solver.parameters.num_workers = search.threads
    solver.parameters.interleave_search = search.threads > 1
    solver.parameters.random_seed = search.seed % 2**31
    solver.parameters.max_deterministic_time = _WORK * search.effort.work / 100
    if search.deadline.is_set:
        solver.parameters.max_time_in_seconds = search.deadline.left()
    status = solver.solve(model)
    search.counters["branches"] = solver.num_branches
    search.expired()
    if status in (solver_library.OPTIMAL, solver_library.FEASIBLE):
        search.offer(np.array([solver.value(offset) for offset in offsets], dtype=np.int64))
    if search.capacity is not None and status == solver_library.INFEASIBLE:
        search.floor = search.capacity + 1
    elif search.capacity is None and status in (solver_library.OPTIMAL, solver_library.INFEASIBLE):
        search.floor = search.peak or 0


def _model(library: Any, search: PackingSearch) -> tuple[Any, list[Any]]:
    """Return the model: offsets are multiples of the alignment; parts are rectangles that must not
    overlap, or are compared pair by pair if some may."""
    problem, model = search.problem, library.CpModel()
    ceiling = search.capacity if search.capacity is not None else (search.peak or 0) - 1
    if ceiling >= _ADDRESS_LIMIT:
        raise AllocationError(
            "strategy 'cp-sat' takes addresses up to 2^50: scale the problem down, or use another"
            " strategy"
        )
    offsets: list[Any] = []
    for buffer, (size, align, pin) in enumerate(
        zip(problem.size.tolist(), problem.alignment.tolist(), problem.pin.tolist(), strict=True)
    ):
        if pin >= 0:
            offsets.append(model.new_int_var(pin, pin, f"{buffer}"))
        else:
            steps = max(0, (ceiling - size) // align)
            offsets.append(align * model.new_int_var(0, steps, f"{buffer}"))
    (_separate_pairs if len(problem.in_place) else _rectangles)(model, search, offsets)
    peak = model.new_int_var(min(search.bound, ceiling), ceiling, "peak")
    for offset, size in zip(offsets, problem.size.tolist(), strict=True):
        model.add(offset + size <= peak)
    if search.capacity is None:
        model.minimize(peak)
    return model, offsets


def _rectangles(model: Any, search: PackingSearch, offsets: list[Any]) -> None:
    """Add the buffers' parts as rectangles that must not overlap, and the capacity as a cumulative
    constraint."""
    times, addresses, bytes_ = [], [], []
    for owner, lower, upper, low, high in zip(
        *(column.tolist() for column in search.problem.parts), strict=True
    ):
        times.append(model.new_fixed_size_interval_var(lower, upper - lower, ""))
        addresses.append(model.new_fixed_size_interval_var(offsets[owner] + low, high - low, ""))
        bytes_.append(high - low)
    model.add_no_overlap_2d(times, addresses)
    model.add_cumulative(
        times, bytes_, search.capacity if search.capacity is not None else search.peak or 0
    )


def _separate_pairs(model: Any, search: PackingSearch, offsets: list[Any]) -> None:
    """Add for every pair alive at once that one is below the other, or both at one address if they
    may share it."""
    problem, parts = search.problem, search.problem.parts
    sharing: dict[tuple[int, int], list[int]] = {}
    for one, other, shift in problem.in_place.tolist():
        sharing.setdefault((one, other), []).append(shift)
        sharing.setdefault((other, one), []).append(-shift)
    rows = list(zip(*(column.tolist() for column in parts), strict=True))
    for at, (one, a, b, low, high) in enumerate(rows):
        for other, c, d, first, last in rows[:at]:
            if one == other or not (a < d and c < b):
                continue
            shifts = sharing.get((one, other), [])
            ways = [model.new_bool_var("") for _ in range(2 + len(shifts))]
            model.add(offsets[one] + high <= offsets[other] + first).only_enforce_if(ways[0])
            model.add(offsets[other] + last <= offsets[one] + low).only_enforce_if(ways[1])
            for way, shift in zip(ways[2:], shifts, strict=True):
                model.add(offsets[other] - offsets[one] == shift).only_enforce_if(way)
            model.add_bool_or(ways)


STRATEGY = PackingStrategy(
    frozenset({"alignment", "pins", "gaps", "windows", "in-place pairs"}), run
)

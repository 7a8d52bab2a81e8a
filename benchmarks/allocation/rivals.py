"""Solvers of other people, on the same data in the same process."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from benchmarks.allocation.instances import Plain, clocked


def cp_sat_model(plain: Plain, capacity: int | None) -> tuple[Any, Any]:
    """Rectangles that must not overlap, and the variable above them all."""
    from ortools.sat.python import cp_model

    lower, upper, size = (column.tolist() for column in plain)
    model = cp_model.CpModel()
    most = capacity if capacity is not None else sum(size)
    top = model.new_int_var(0, most, "top")
    times, places = [], []
    for i, (begin, end, bytes_) in enumerate(zip(lower, upper, size, strict=True)):
        offset = model.new_int_var(0, most, f"o{i}")
        times.append(model.new_fixed_size_interval_var(begin, end - begin, f"t{i}"))
        places.append(model.new_fixed_size_interval_var(offset, bytes_, f"p{i}"))
        model.add(offset + bytes_ <= top)
    model.add_no_overlap_2d(times, places)
    if capacity is None:
        model.minimize(top)
    return model, top


def cp_sat_solve(model: Any, top: Any, seconds: float) -> tuple[int | None, int, int]:
    """The peak that one worker reaches, if it reaches any; branches and conflicts."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = seconds
    solver.parameters.max_time_in_seconds = 4 * seconds
    status = solver.solve(model)
    peak = int(solver.value(top)) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    return peak, solver.num_branches, solver.num_conflicts


def cp_sat(plain: Plain, capacity: int | None, seconds: float) -> int | None:
    """The peak that CP-SAT reaches on one worker, if it reaches any."""
    return cp_sat_solve(*cp_sat_model(plain, capacity), seconds)[0]


def omnimalloc(plain: Plain, capacity: int | None, seconds: float) -> int | None:
    """The peak of omnimalloc's best greedy orders; it knows no capacity."""
    from omnimalloc.allocators import GreedyByAllAllocator

    return _omnimalloc(GreedyByAllAllocator(), plain)


def omni_telamalloc(plain: Plain, capacity: int | None, seconds: float) -> int | None:
    """The peak of omnimalloc's adaptation of TelaMalloc, which minimises."""
    from omnimalloc.allocators import TelamallocAllocator

    return _omnimalloc(TelamallocAllocator(timeout=seconds), plain)


def _omnimalloc(allocator: Any, plain: Plain) -> int:
    from omnimalloc import Allocation

    lower, upper, size = (column.tolist() for column in plain)
    buffers = tuple(
        Allocation(id=i, size=s, start=b, end=e)
        for i, (b, e, s) in enumerate(zip(lower, upper, size, strict=True))
    )
    return max(a.offset + a.size for a in allocator.allocate(buffers))


RIVALS = {
    "cp-sat": cp_sat,
    "omnimalloc greedy": omnimalloc,
    "omnimalloc telamalloc": omni_telamalloc,
}
HOMES = {
    "cp-sat": "ortools",
    "omnimalloc greedy": "omnimalloc",
    "omnimalloc telamalloc": "omnimalloc",
}


def at_hand(name: str) -> bool:
    """Whether a rival can be imported."""
    return find_spec(HOMES[name]) is not None


def rival_lines(plain: Plain, capacity: int | None, seconds: float, ours: float) -> None:
    """What each rival that can be imported reaches, and its time over ours."""
    for name, rival in RIVALS.items():
        if at_hand(name):
            took, peak = clocked(lambda rival=rival: rival(plain, capacity, seconds))  # type: ignore[misc]
            print(
                f"      {name:20} peak {peak if peak is not None else 'none':>12}  {took:9.3f} s"
                f" CPU  {took / max(ours, 1e-9):10.1f} x ours"
            )

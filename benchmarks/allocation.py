"""How fast and how tight offsets are: ``python -m benchmarks.allocation [DIR] [--repeat N] [--seconds S]``.

For every instance of DIR (MiniMalloc's CSV: id,lower,upper,size) whose name ends in a capacity: CPU seconds until a packing fits, over
several seeds. For all of them: the smallest peak, its proven bound and CPU seconds. Then small calls in microseconds.
`benchmarks.packing_at_scale` has the large sets. Rivals that can be imported run in the same process on the same data.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster import _native

Ints = NDArray[np.int64]
Plain = tuple[Ints, Ints, Ints]
"""Lower, upper and size of every buffer."""

NO_HINT = np.zeros(0, dtype=np.int64)


def read(path: Path) -> Plain | None:
    """The plain columns of a file, or nothing if it is no such file."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or not {"lower", "upper", "size"} <= rows[0].keys():
        return None
    lower, upper, size = (np.array([int(row[name]) for row in rows], dtype=np.int64) for name in ("lower", "upper", "size"))
    return lower, upper, size


def arrays(plain: Plain) -> list[Ints]:
    """The kernels' eight arrays."""
    lower, upper, size = plain
    count = len(size)
    ones, zeros = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    return [size, ones, -ones, np.arange(count + 1, dtype=np.int64), lower, upper, zeros, size]


def clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds and the result."""
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


# --- generated families ------------------------------------------------------------------------------------------------------------


def tiling(count: int, seed: int) -> Plain:
    """A rectangle cut into pieces: the optimum is the load bound, 2^20."""
    random = np.random.default_rng(seed)
    pieces = [(0, 1 << 20, 0, 1 << 10)]
    while len(pieces) < count:
        at = max(range(len(pieces)), key=lambda i: (pieces[i][1] - pieces[i][0]) * (pieces[i][3] - pieces[i][2]) * random.uniform(0.3, 1.3))
        left, right, low, high = pieces.pop(at)
        if high - low < 8 or random.random() < 0.5:
            cut = left + int((right - left) * random.beta(2, 2))
            pieces += [(left, cut, low, high), (cut, right, low, high)] if left < cut < right else [(left, right, low, high)]
        else:
            cut = low + 1 + int((high - low - 2) * random.beta(2, 2))
            pieces += [(left, right, low, cut), (left, right, cut, high)]
    random.shuffle(pieces)
    table = np.array(pieces, dtype=np.int64)
    return table[:, 0].copy(), table[:, 1].copy(), 1024 * (table[:, 3] - table[:, 2])


# --- rivals ------------------------------------------------------------------------------------------------------------------------


def cp_sat(plain: Plain, capacity: int | None, seconds: float) -> int | None:
    """The peak that CP-SAT reaches on one worker, if it reaches any."""
    from ortools.sat.python import cp_model

    lower, upper, size = (column.tolist() for column in plain)
    model = cp_model.CpModel()
    top = model.new_int_var(0, capacity if capacity is not None else sum(size), "top")
    times, places = [], []
    for i, (begin, end, bytes_) in enumerate(zip(lower, upper, size, strict=True)):
        offset = model.new_int_var(0, capacity if capacity is not None else sum(size), f"o{i}")
        times.append(model.new_fixed_size_interval_var(begin, end - begin, f"t{i}"))
        places.append(model.new_fixed_size_interval_var(offset, bytes_, f"p{i}"))
        model.add(offset + bytes_ <= top)
    model.add_no_overlap_2d(times, places)
    if capacity is None:
        model.minimize(top)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_time_in_seconds = seconds
    status = solver.solve(model)
    return int(solver.value(top)) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None


def omnimalloc(plain: Plain, capacity: int | None, seconds: float) -> int | None:
    """The peak of omnimalloc's best greedy orders; it knows no capacity."""
    from omnimalloc import Allocation
    from omnimalloc.allocators.greedy import GreedyByAllAllocator

    lower, upper, size = (column.tolist() for column in plain)
    buffers = tuple(Allocation(id=i, size=s, start=b, end=e) for i, (b, e, s) in enumerate(zip(lower, upper, size, strict=True)))
    placed = GreedyByAllAllocator().allocate(buffers)
    return max(a.offset + a.size for a in placed)


RIVALS = {"cp-sat": cp_sat, "omnimalloc greedy": omnimalloc}


def rival_lines(plain: Plain, capacity: int | None, seconds: float, ours: float) -> None:
    """What each rival that can be imported reaches, and its time over ours."""
    for name, rival in RIVALS.items():
        try:
            took, peak = clocked(lambda rival=rival: rival(plain, capacity, seconds))  # type: ignore[misc]
        except ImportError:
            continue
        print(f"      {name:20} peak {peak if peak is not None else 'none':>12}  {took:9.3f} s CPU  {took / max(ours, 1e-9):10.1f} x ours")


# --- what is measured --------------------------------------------------------------------------------------------------------------


def fit(name: str, plain: Plain, capacity: int, repeat: int, seconds: float) -> float:
    """Seeds 0 .. repeat - 1 with the capacity given; the median of CPU seconds."""
    runs = [
        clocked(lambda seed=seed: _native.fit_exact(*arrays(plain), NO_HINT, capacity, -1, seconds, seed, -1, 1))  # type: ignore[misc]
        for seed in range(repeat)
    ]
    times = [took for took, _ in runs]
    solved = sum(answer[0] == "feasible" for _, answer in runs)
    middle = statistics.median(times)
    print(f"  {name:22} fit {capacity}: {solved}/{repeat} seeds, CPU s median {middle:.3f}, most {max(times):.3f}")
    return middle


def minimise(name: str, plain: Plain, seconds: float) -> float:
    """The smallest peak within a time limit."""
    took, (status, _, peak, bound, nodes, _) = clocked(lambda: _native.minimise_exact(*arrays(plain), NO_HINT, -1, seconds, 0, -1, 1))
    print(f"  {name:22} minimise: {status}, peak {peak}, bound {bound} ({peak / bound:.4f}), {nodes} nodes, {took:.3f} s CPU")
    return took


def small(count: int) -> None:
    """Microseconds of a call, over forty sets of each of two kinds."""
    for kind in ("overlapping", "chained"):
        times, proven = [], 0
        for seed in range(40):
            random = np.random.default_rng(seed)
            lower = random.integers(0, count, count)
            upper = lower + random.integers(1, max(count if kind == "overlapping" else count // 8, 2), count)
            size = random.integers(1, 1000, count)
            best = float("inf")
            for _ in range(7):
                started = time.perf_counter()
                answer = _native.allocate_small(lower, upper, size)
                best = min(best, time.perf_counter() - started)
            times.append(best * 1e6)
            proven += answer[1] == answer[2]
        print(f"  {count:4} buffers, {kind:12} median {statistics.median(times):8.1f} us, most {max(times):8.1f} us, {proven}/40 proven")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="time limit of every search, rivals' too")
    parser.add_argument("--rivals", action="store_true", help="run omnimalloc and CP-SAT too, where installed")
    arguments = parser.parse_args()
    for path in sorted(arguments.folder.glob("*.csv")) if arguments.folder else []:
        plain = read(path)
        if plain is None:
            continue
        if len(plain[0]) > 5000:
            continue
        capacity = path.stem.rpartition(".")[2]
        if capacity.isdigit() and int(capacity) > 1000:
            took = fit(path.stem, plain, int(capacity), arguments.repeat, arguments.seconds)
            if arguments.rivals:
                rival_lines(plain, int(capacity), arguments.seconds, took)
        took = minimise(path.stem, plain, arguments.seconds)
        if arguments.rivals:
            rival_lines(plain, None, arguments.seconds, took)
    for count in (100, 200, 400):
        fit(f"tiling of {count}", tiling(count, 1), 1 << 20, arguments.repeat, arguments.seconds)
    for count in (10, 50, 100):
        small(count)


if __name__ == "__main__":
    main()

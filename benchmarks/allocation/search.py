"""The exact search: CPU seconds until a packing fits, and the smallest peak within a time limit."""

from __future__ import annotations

import statistics
import time

import numpy as np

from benchmarks.allocation.instances import Plain, clocked, packing_problem
from loadmaster import _native


def fit(name: str, plain: Plain, capacity: int, repeat: int, seconds: float) -> float:
    """Seeds 0 .. repeat - 1 with the capacity given; the median of CPU seconds."""
    runs = [
        clocked(
            lambda seed=seed: packing_problem(plain).exact(capacity, seconds=seconds, seed=seed)
        )  # type: ignore[misc]
        for seed in range(repeat)
    ]
    times = [took for took, _ in runs]
    solved = sum(answer.status == "feasible" for _, answer in runs)
    middle = statistics.median(times)
    print(
        f"  {name:22} fit {capacity}: {solved}/{repeat} seeds, CPU s median {middle:.3f}, most"
        f" {max(times):.3f}"
    )
    return middle


def minimise(name: str, plain: Plain, seconds: float) -> float:
    """The smallest peak within a time limit."""
    took, found = clocked(lambda: packing_problem(plain).exact(-1, seconds=seconds))
    ratio = found.peak / found.bound
    print(
        f"  {name:22} minimise: {found.status}, peak {found.peak}, bound {found.bound}"
        f" ({ratio:.4f}), {found.counters.get('nodes', 0)} nodes, {took:.3f} s CPU"
    )
    return took


def small(count: int) -> None:
    """Microseconds of a call, over forty sets of each of two kinds."""
    for kind in ("overlapping", "chained"):
        times, proven = [], 0
        for seed in range(40):
            random = np.random.default_rng(seed)
            lower = random.integers(0, count, count)
            upper = lower + random.integers(
                1, max(count if kind == "overlapping" else count // 8, 2), count
            )
            size = random.integers(1, 1000, count)
            best = float("inf")
            for _ in range(7):
                started = time.perf_counter()
                answer = _native.allocate_small(lower, upper, size)
                best = min(best, time.perf_counter() - started)
            times.append(best * 1e6)
            proven += answer[1] == answer[2]
        print(
            f"  {count:4} buffers, {kind:12} median {statistics.median(times):8.1f} us, most"
            f" {max(times):8.1f} us, {proven}/40 proven"
        )

"""The paper's micro-benchmarks: from no overlap to fully overlapping blocks; CPU time from arrays
to offsets at the load bound."""

from __future__ import annotations

import statistics

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.allocation.instances import Plain, clocked, load_of
from benchmarks.allocation.paper import clock
from benchmarks.allocation.rivals import at_hand, cp_sat_model, cp_sat_solve
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.strategies.telamalloc import TelaMalloc

COUNTS = (10, 50, 100, 200, 500, 1000)
CP_SAT_UP_TO = 200
"""Blocks that CP-SAT gets; with more it takes minutes."""


def blocks(count: int, overlap: str, seed: int) -> Plain:
    """One after another, a fifth of them at a time, or all at once."""
    random = np.random.default_rng(seed)
    length = {"none": 1, "partial": max(count // 5, 1), "full": count}[overlap]
    lower = np.arange(count) if overlap != "full" else np.zeros(count, dtype=np.int64)
    return lower, lower + length, random.integers(1, 1 << 16, count)


def measure(overlap: str, count: int, repeat: int) -> tuple[list[float], int, list[float]]:
    """CPU seconds of TelaMalloc over ``repeat`` sets, how many of them it packed, and CPU seconds
    of CP-SAT on some."""
    times, packed, theirs = [], 0, []
    for seed in range(repeat):
        plain = blocks(count, overlap, seed)
        problem, capacity = problem_of(plain), load_of(plain)
        runs = [clocked(TelaMalloc(problem, capacity).run) for _ in range(5 if count <= 200 else 1)]
        times.append(min(took for took, _ in runs))
        packed += runs[0][1] is not None
        if at_hand("cp-sat") and count <= CP_SAT_UP_TO and seed < 3:
            model = cp_sat_model(plain, capacity)
            theirs.append(clocked(lambda model=model: cp_sat_solve(*model, 5.0))[0])  # type: ignore[misc]
    return times, packed, theirs


def print_micro(repeat: int, console: Console) -> list[dict[str, object]]:
    """A row for each count and overlap."""
    table = Table(title=f"TelaMalloc on blocks, at the load bound; CPU time over {repeat} sets")
    for heading in ("overlap", "blocks", "packed", "median", "most", "cp-sat median"):
        table.add_column(heading, justify="left" if heading == "overlap" else "right")
    rows: list[dict[str, object]] = []
    for overlap in ("none", "partial", "full"):
        for count in COUNTS:
            times, packed, theirs = measure(overlap, count, repeat)
            other = clock(statistics.median(theirs)) if theirs else "-"
            table.add_row(
                overlap,
                str(count),
                f"{packed}/{repeat}",
                clock(statistics.median(times)),
                clock(max(times)),
                other,
            )
            rows.append(
                {
                    "overlap": overlap,
                    "blocks": count,
                    "packed": packed,
                    "seconds": times,
                    "cp_sat_seconds": theirs,
                }
            )
    console.print(table)
    return rows

"""The evaluation of the TelaMalloc paper: memory limits from 100 to 120 % of the load bound, and
each feature switched off in turn.

A limit is solved if a packing within it is found. Times are CPU seconds from arrays to offsets;
those of CP-SAT are without building its model in Python, which takes as long again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.allocation.instances import Plain, clocked, load_of, packing_problem
from benchmarks.allocation.rivals import (
    at_hand,
    cp_sat_model,
    cp_sat_solve,
    omni_telamalloc,
    omnimalloc,
)
from loadmaster.allocation.problem import Problem
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.strategies.telamalloc import FEATURES, TelaMalloc, TelaMallocOptions

LIMITS = (100, 102, 105, 110, 115, 120)
"""Per cent of the load bound."""
TIGHT = (100, 102, 105)
NODES = 200_000
"""Budget of the exact search; TelaMalloc has its own of 20,000 steps."""


@dataclass(frozen=True)
class Outcome:
    """What one allocator made of one instance at one limit."""

    instance: str
    limit: int
    allocator: str
    solved: bool
    seconds: float
    steps: int = 0
    minor: int = 0
    major: int = 0


@dataclass(frozen=True)
class Case:
    """One instance at one limit."""

    instance: str
    plain: Plain
    problem: Problem
    limit: int
    seconds: float
    capacity: int

    def outcome(self, allocator: str, solved: bool, seconds: float, *counts: int) -> Outcome:
        """A row about this case."""
        return Outcome(self.instance, self.limit, allocator, solved, seconds, *counts)


def cases(
    instances: Iterable[tuple[str, Plain]], limits: Iterable[int], seconds: float
) -> list[Case]:
    """Every instance at every limit."""
    chosen = tuple(limits)
    return [
        Case(name, plain, problem_of(plain), at, seconds, load_of(plain) * at // 100)
        for name, plain in instances
        for at in chosen
    ]


def by_best_fit(case: Case) -> Outcome:
    lower, _, size = case.plain
    seconds, found = clocked(
        lambda: packing_problem(case.plain).place_in_order(np.lexsort((-size, lower)), True)
    )
    return case.outcome("best-fit", found.peak <= case.capacity, seconds)


def by_greedy(case: Case) -> Outcome:
    lower, upper, size = case.plain
    seconds, found = clocked(
        lambda: packing_problem(case.plain).place_in_order(np.lexsort((lower - upper, -size)))
    )
    return case.outcome("greedy (by size)", found.peak <= case.capacity, seconds)


def by_telamalloc(
    case: Case, options: TelaMallocOptions | None = None, name: str = "telamalloc"
) -> Outcome:
    seconds, search, offsets = math.inf, None, None
    for _ in range(3):  # of short runs the fastest: the clock ticks in microseconds
        search = TelaMalloc(case.problem, case.capacity, options)
        took, offsets = clocked(lambda search=search: search.run(4 * case.seconds))  # type: ignore[misc]
        seconds = min(seconds, took)
        if seconds > 0.02:
            break
    assert search is not None
    counts = search.counts
    return case.outcome(
        name,
        offsets is not None,
        seconds,
        counts.steps,
        counts.minor_backtracks,
        counts.major_backtracks,
    )


def by_exact(case: Case) -> Outcome:
    seconds, found = clocked(
        lambda: packing_problem(case.plain).exact(
            case.capacity, nodes=NODES, seconds=4 * case.seconds
        )
    )
    return case.outcome(
        "exact", found.status == "feasible", seconds, found.counters.get("nodes", 0)
    )


def by_cp_sat(case: Case) -> Outcome:
    model = cp_sat_model(case.plain, case.capacity)
    seconds, (peak, branches, conflicts) = clocked(lambda: cp_sat_solve(*model, case.seconds))
    return case.outcome("cp-sat", peak is not None, seconds, branches, 0, conflicts)


def by_omnimalloc(case: Case) -> Outcome:
    seconds, peak = clocked(lambda: omnimalloc(case.plain, None, case.seconds))
    return case.outcome("omnimalloc greedy", peak is not None and peak <= case.capacity, seconds)


def by_omni_telamalloc(case: Case) -> Outcome:
    seconds, peak = clocked(lambda: omni_telamalloc(case.plain, None, case.seconds))
    return case.outcome(
        "omnimalloc telamalloc", peak is not None and peak <= case.capacity, seconds
    )


OURS: tuple[Callable[[Case], Outcome], ...] = (by_best_fit, by_greedy, by_telamalloc, by_exact)
RIVALS = {
    "cp-sat": by_cp_sat,
    "omnimalloc greedy": by_omnimalloc,
    "omnimalloc telamalloc": by_omni_telamalloc,
}


def evaluate(all_cases: list[Case], console: Console) -> list[Outcome]:
    """Every allocator on every case; rivals that are not installed are skipped with a line."""
    allocators = list(OURS)
    for name, run in RIVALS.items():
        if at_hand(name):
            allocators.append(run)
        else:
            console.print(f'{name} is not installed: pip install "loadmaster[rivals]"')
    return [run(case) for case in all_cases for run in allocators]


def ablate(all_cases: list[Case]) -> list[Outcome]:
    """TelaMalloc whole, with each feature switched off, and with all of them off."""
    whole = TelaMallocOptions()
    variants = {"all on": whole} | {
        f"no {name}": replace(whole, **{name: False}) for name in FEATURES
    }  # type: ignore[arg-type]
    variants["all off"] = replace(whole, **dict.fromkeys(FEATURES, False))  # type: ignore[arg-type]
    return [
        by_telamalloc(case, options, name)
        for case in all_cases
        for name, options in variants.items()
    ]


def print_capacities(
    named: list[tuple[str, Plain, int]], seconds: float, console: Console
) -> list[Outcome]:
    """Our searches at the capacities that the instances were published with."""
    rows: list[Outcome] = []
    table = Table(title="At the published capacity")
    for heading in (
        "instance",
        "buffers",
        "capacity / bound",
        *(f"{who} {what}" for who in ("telamalloc", "exact") for what in ("steps", "CPU")),
    ):
        table.add_column(heading, justify="left" if heading == "instance" else "right")
    for name, plain, capacity in named:
        case = Case(name, plain, problem_of(plain), 0, seconds, capacity)
        both = [by_telamalloc(case), by_exact(case)]
        cells = [
            cell
            for row in both
            for cell in (f"{row.steps:,}" if row.solved else "not solved", clock(row.seconds))
        ]
        table.add_row(name, str(len(plain[0])), f"{capacity / load_of(plain):.3f}", *cells)
        rows += both
    console.print(table)
    return rows


def grouped(rows: list[Outcome]) -> dict[str, list[Outcome]]:
    """Rows of each allocator, in the order of their first."""
    groups: dict[str, list[Outcome]] = {}
    for row in rows:
        groups.setdefault(row.allocator, []).append(row)
    return groups


def solved_by_everybody(rows: list[Outcome]) -> set[tuple[str, int]]:
    """Cases that say nothing: even the simplest solve them."""
    failed = {(row.instance, row.limit) for row in rows if not row.solved}
    return {(row.instance, row.limit) for row in rows} - failed


def print_evaluation(title: str, rows: list[Outcome], console: Console) -> None:
    """Share solved at each limit, over all cases and over those that somebody failed at; CPU time
    and search effort."""
    easy = solved_by_everybody(rows)
    limits = sorted({row.limit for row in rows})
    count = len({row.instance for row in rows})
    table = Table(title=f"{title}: {count} instances; solved at each limit, in % of the load bound")
    for heading in (
        "allocator",
        *(f"{limit} %" for limit in limits),
        "not trivial",
        "CPU median",
        "CPU most",
        "steps",
        "minor",
        "major",
    ):
        table.add_column(heading, justify="left" if heading == "allocator" else "right")
    for name, mine in grouped(rows).items():
        hard = [row for row in mine if (row.instance, row.limit) not in easy]
        at = [f"{sum(row.solved for row in mine if row.limit == limit)}" for limit in limits]
        share = f"{sum(row.solved for row in hard)}/{len(hard)}"
        times = [row.seconds for row in mine]
        table.add_row(
            name, *at, share, clock(statistics.median(times)), clock(max(times)), *effort(mine)
        )
    console.print(table)
    console.print(
        "not trivial: cases that at least one allocator failed at"
        f" ({len({(r.instance, r.limit) for r in rows}) - len(easy)})."
    )
    print_speed_up(rows, console)


def print_speed_up(rows: list[Outcome], console: Console) -> None:
    """Ratios of CPU time over TelaMalloc's, case by case, where both found a packing."""
    groups = grouped(rows)
    mine = {(row.instance, row.limit): row.seconds for row in groups["telamalloc"] if row.solved}
    for name in ("cp-sat", "exact", "omnimalloc telamalloc"):
        ratios = [
            row.seconds / mine[key]
            for row in groups.get(name, [])
            if row.solved and (key := (row.instance, row.limit)) in mine
        ]
        if ratios:
            console.print(
                f"CPU time of {name} over telamalloc's: median {statistics.median(ratios):.1f} x"
                f" over {len(ratios)} cases"
            )


def print_ablation(rows: list[Outcome], console: Console) -> None:
    """Share solved and effort with each feature off."""
    table = Table(title="TelaMalloc with each feature off, at limits of 100, 102 and 105 %")
    for heading in ("variant", "solved", "CPU sum", "steps", "minor", "major"):
        table.add_column(heading, justify="left" if heading == "variant" else "right")
    for name, mine in grouped(rows).items():
        table.add_row(
            name,
            f"{sum(row.solved for row in mine)}/{len(mine)}",
            clock(sum(row.seconds for row in mine)),
            *effort(mine),
        )
    console.print(table)


def effort(rows: list[Outcome]) -> list[str]:
    """Sums of steps and backtracks."""
    return [f"{sum(getattr(row, name) for row in rows):,}" for name in ("steps", "minor", "major")]


def clock(seconds: float) -> str:
    """Time with a unit that fits."""
    return (
        f"{seconds:.2f} s"
        if seconds >= 1
        else f"{seconds * 1e3:.1f} ms"
        if seconds >= 1e-3
        else f"{seconds * 1e6:.0f} us"
    )


def records(rows: list[Outcome]) -> list[dict[str, object]]:
    """Rows for JSON."""
    return [asdict(row) for row in rows]

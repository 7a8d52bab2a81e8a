"""What learned backtrack targets buy: TelaMalloc with and without the bundled model, on instances
that it was not trained on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from benchmarks.allocation.instances import clocked
from benchmarks.allocation.paper import clock
from loadmaster.allocation.backtracking.learning import (
    HORIZON,
    at_limits,
    bundled,
    generated,
    record,
)
from loadmaster.allocation.problem import Problem
from loadmaster.allocation.strategies.telamalloc import TelaMalloc, TelaMallocOptions

HELD_OUT = 7
"""Seed of generated sets; the model was trained on seed 0."""


def oracle_line(console: Console) -> None:
    """How much the oracle itself could gain on held-out sets."""
    samples = record(at_limits(generated(40, HELD_OUT)))
    latest = samples.features[:, 0] == 0
    best = (samples.regret[latest] == 0).mean()
    console.print(
        f"{latest.sum()} held-out backtracks with a choice: the latest placement to blame is the"
        f" best target in {best:.0%} of them; it costs {samples.cost[latest].mean():.0f} steps,"
        f" {samples.regret[latest].mean() * HORIZON:.0f} more than the oracle's"
    )


def print_learned(challenging: Iterable[Problem], console: Console) -> list[dict[str, object]]:
    """A row for each set of instances, with and without the model."""
    oracle_line(console)
    table = Table(title="TelaMalloc with learned backtrack targets")
    for heading in ("instances", "targets", "solved", "steps", "steps, geometric mean", "CPU sum"):
        table.add_column(
            heading, justify="left" if heading in ("instances", "targets") else "right"
        )
    cases = {
        "generated, held out": list(at_limits(generated(60, HELD_OUT))),
        "MiniMalloc's, 100-110 %": [
            (p, c * limit // 100)
            for p, c in at_limits(challenging, (1.0,))
            for limit in range(100, 111)
        ],
    }
    rows: list[dict[str, object]] = []
    for title, some in cases.items():
        for name, trees in (("latest to blame", None), ("model", bundled())):
            if some:
                rows.append(compare(title, name, some, replace(TelaMallocOptions(), trees=trees)))
                row = rows[-1]
                table.add_row(
                    title,
                    name,
                    f"{row['solved']}/{len(some)}",
                    f"{row['steps']:,}",
                    f"{row['mean']:.0f}",
                    clock(float(str(row["seconds"]))),
                )
    console.print(table)
    console.print("geometric mean: a case that was not solved counts twice its steps")
    return rows


def compare(
    title: str, name: str, cases: list[tuple[Problem, int]], options: TelaMallocOptions
) -> dict[str, object]:
    """Totals over all cases."""
    solved = steps = 0
    seconds = logarithms = 0.0
    for problem, capacity in cases:
        search = TelaMalloc(problem, capacity, options)
        took, offsets = clocked(search.run)
        seconds += took
        solved += offsets is not None
        steps += search.counts.steps
        logarithms += math.log(max(search.counts.steps, 1) * (1 if offsets is not None else 2))
    return {
        "instances": title,
        "targets": name,
        "solved": solved,
        "steps": steps,
        "mean": math.exp(logarithms / len(cases)),
        "seconds": seconds,
    }

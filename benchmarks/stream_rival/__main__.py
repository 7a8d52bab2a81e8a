"""``python -m benchmarks.stream_rival [--rival PYTHON]``: cycles, energy and their product,
Loadmaster's and Stream's.

PYTHON is the interpreter of an environment with ``stream-dse==0.0.8 zigzag-dse==2.5.4 numpy<2
pandas<3 matplotlib<3.10 plotly``. Stream's genetic algorithm takes a second of processor time for
each mapping that it tries; ``--search`` says how many there are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import loadmaster as lm
from benchmarks.stream_rival.machine import LINKS, machine, resnet18


def row(name: str, cycles: float, picojoules: float) -> None:
    """Print a row: millions of cycles, microjoules, and their product."""
    print(
        f"{name:42} {cycles / 1e6:10.3f} {picojoules / 1e6:10.1f}"
        f" {cycles / 1e6 * picojoules / 1e6:12.1f}",
        flush=True,
    )


def ours(objective: str) -> None:
    """Print rows of plans, which all hold, and of their lower bounds in cycles."""
    graph = resnet18()
    for link in LINKS:
        plan = lm.plan([graph], machine(link), objective=objective)
        if lm.verify(plan):
            raise SystemExit(f"{link}: the plan does not hold")
        made = plan.metrics
        row(
            f"Loadmaster, {objective}, {link} fast memory",
            made.makespan.value * 1e9,
            made.energy.value * 1e12,
        )
        print(
            f"{'  no plan has fewer than':42} {made.makespan.lower_bound * 1e3:10.3f}"
            f" {made.energy.lower_bound * 1e6:10.1f}"
        )


def theirs(python: str, parts: str, search: list[str]) -> None:
    """Print Stream's row, or why there is none."""
    done = subprocess.run(
        [python, str(Path(__file__).with_name("rival.py")), parts, *search],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"Stream, {parts}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        return
    found = json.loads(done.stdout)
    row(f"Stream, operators in {parts}", found["cycles"], found["picojoules"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rival", metavar="PYTHON")
    parser.add_argument("--parts", nargs="+", default=["rows", "4", "whole"])
    parser.add_argument(
        "--search", nargs=2, default=["16", "8"], metavar=("INDIVIDUALS", "GENERATIONS")
    )
    options = parser.parse_args()
    print(f"{'':42} {'Mcycles':>10} {'uJ':>10} {'product':>12}")
    for objective in ("throughput", "edp"):
        ours(objective)
    for parts in options.parts if options.rival else ():
        theirs(options.rival, parts, options.search)


if __name__ == "__main__":
    main()

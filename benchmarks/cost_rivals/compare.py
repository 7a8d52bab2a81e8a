"""Loadmaster's dataflow model beside ZigZag, SCALE-Sim and MAESTRO's closed forms: cycles, bytes of main memory, energy."""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cost_rivals.layers import BANDWIDTH, COLUMNS, LAYERS, ROWS, STYLES, described, machine, sizes, workload
from loadmaster.cost.analyse import analyse
from loadmaster.cost.analytical.job_costs import job_costs
from loadmaster.cost.models.maestro import MODEL as MAESTRO
from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest

PROGRAMS = {"zigzag": ("zigzag", "pip install zigzag-dse six"), "scale_sim": ("scalesim", "pip install scalesim")}
"""Rivals that are programs of their own: the package to import, and how to get it."""

NEAR = {"cycles": 0.10, "bytes": 0.15, "picojoules": 0.20}
"""Figures, and how near to the others they should be."""


@dataclass(frozen=True)
class Estimate:
    """What a model says of a layer on an array; None for what it does not say."""

    cycles: float | None = None
    bytes: float | None = None
    picojoules: float | None = None


def ours(nest: LoopNest, style: Style) -> Estimate:
    """Cycles that a job takes whose link keeps up, or the link's if it does not; bytes; energy."""
    target, work = machine(style), workload(nest)
    kind = job_costs(work, target).kinds[0]
    moved, table = float(kind.moved.sum()), analyse(work, target)
    assert table.energy is not None
    return Estimate(max(float(kind.seconds[0]) * 1e9, moved / BANDWIDTH), moved, float(table.energy[0, 0]) * 1e12)


def least(nest: LoopNest) -> Estimate:
    """What no model can be below: an array that is always busy, and every byte once."""
    return Estimate(nest.macs / (ROWS * COLUMNS), float(sum(sizes(nest))))


def closed_forms(nest: LoopNest, style: Style) -> Estimate:
    """MAESTRO's cycles with unlimited buffers of a weight-stationary array; its row-stationary one stands for a low-bandwidth core."""
    if style is not Style.WEIGHT_STATIONARY:
        return Estimate()
    return Estimate(float(MAESTRO.analyse(workload(nest), machine(style)).latency[0, 0]) * 1e9)


def in_process(name: str, nest: LoopNest, style: Style, seconds: float) -> Estimate | str:
    """The answer of a program, or why there is none."""
    if name == "scale_sim" and style is Style.ROW_STATIONARY:
        return Estimate()
    try:
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.cost_rivals.{name}"],
            input=json.dumps(described(nest, style)),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {seconds:g} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["failed"])[-1]
    found = json.loads(done.stdout)
    return Estimate(found["cycles"], found["bytes"], found.get("picojoules"))


def ratio(own: float | None, others: Sequence[float | None]) -> float | None:
    """Ours over the median of those that others say; None if nobody says one."""
    said = [value for value in others if value is not None]
    return None if own is None or not said else own / statistics.median(said)


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def compare(seconds: float, layers: Sequence[str], styles: Sequence[Style], programs: Sequence[str]) -> None:
    present = [name for name, (package, _) in PROGRAMS.items() if name in programs and importlib.util.find_spec(package) is not None]
    for name in sorted(set(programs) - set(present)):
        print(f"{name}: not installed: {PROGRAMS[name][1]}")
    print("Timeloop: no package for pip; see https://timeloop.csail.mit.edu")
    names = [*present, "maestro"]
    ratios: dict[tuple[str, str], list[float]] = {}
    for style in styles:
        print(f"\n{style}\n| layer | figure | least | Loadmaster | {' | '.join(names)} | ratio to their median |")
        print("|---" * (6 + len(present)) + "|")
        for layer in layers:
            nest = LAYERS[layer]
            own = ours(nest, style)
            answers = [in_process(name, nest, style, seconds) for name in present]
            others = [Estimate() if isinstance(answer, str) else answer for answer in answers] + [closed_forms(nest, style)]
            for figure in NEAR:
                theirs = [getattr(other, figure) for other in others]
                against = ratio(getattr(own, figure), theirs)
                for name, said in (("their median", theirs), *((name, [value]) for name, value in zip(names, theirs, strict=True))):
                    if (value := ratio(getattr(own, figure), said)) is not None:
                        ratios.setdefault((figure, name), []).append(value)
                cells = [
                    *map(shown, (getattr(least(nest), figure), getattr(own, figure), *theirs)),
                    "-" if against is None else f"{against:.2f}",
                ]
                print(f"| {layer} | {figure} | {' | '.join(cells)} |", flush=True)
            for name, answer in zip(present, answers, strict=True):
                if isinstance(answer, str):
                    print(f"  {name}: {layer}: {answer}", flush=True)
    print()
    for (figure, name), found in sorted(ratios.items()):
        within = sum(abs(value - 1) <= NEAR[figure] for value in found)
        print(f"{figure}: within {NEAR[figure]:.0%} of {name} on {within} of {len(found)}, median ratio {statistics.median(found):.2f}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the comparison."""
    parser.add_argument("--seconds", type=float, default=120.0, help="with --rivals: for one layer on one array in one program")
    parser.add_argument("--layers", nargs="*", choices=list(LAYERS), default=list(LAYERS), help="with --rivals")
    parser.add_argument("--styles", nargs="*", type=Style, default=list(STYLES), help="with --rivals")
    parser.add_argument("--programs", nargs="*", choices=list(PROGRAMS), default=list(PROGRAMS), help="with --rivals")

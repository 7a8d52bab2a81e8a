"""Loadmaster's dataflow model beside ZigZag, AccelForge, SCALE-Sim and MAESTRO's closed forms:
cycles, bytes of main memory, energy."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cost_rivals.answers import Answer, Answers
from benchmarks.cost_rivals.layers import (
    BANDWIDTH,
    BUFFER,
    COLUMNS,
    LAYERS,
    ROWS,
    STYLES,
    machine,
    sizes,
    workload,
)
from benchmarks.cost_rivals.systolic import filled_for_every_fold, kept_full
from loadmaster.cost.analyse import analyse
from loadmaster.cost.analytical.job_costs import job_costs
from loadmaster.cost.models.maestro import MODEL as MAESTRO
from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest

PROGRAMS = {
    "zigzag": ("zigzag", "pip install zigzag-dse six"),
    "accelforge": ("accelforge", "pip install accelforge, with Python 3.12 or later"),
    "scale_sim": ("scalesim", "pip install scalesim"),
}
"""Rivals that are programs of their own: the package to import, and how to get it."""

NEAR = {"cycles": 0.10, "bytes": 0.15, "picojoules": 0.20}
"""Figures, and how near to the others they should be."""

LOOPS = (5, 6)
"""Loops into which ZigZag merges those of a layer; and where it differs, with which it is asked
again, in many times as long."""


@dataclass(frozen=True)
class Estimate:
    """What a model says of a layer on an array; None for what it does not say."""

    cycles: float | None = None
    bytes: float | None = None
    picojoules: float | None = None


@dataclass(frozen=True)
class Row:
    """A layer on an array: Loadmaster's answer, and everybody else's by name, with the reasons of
    those that have none."""

    layer: str
    style: Style
    own: Estimate
    others: dict[str, Estimate]
    silent: dict[str, str]
    half: Estimate = Estimate()
    """AccelForge's with half of the buffer, where Loadmaster moves more than with all of it."""

    def said(self, figure: str, names: Sequence[str] = ()) -> list[float]:
        """A figure as the named others have it, or all of them."""
        values = [
            getattr(other, figure)
            for name, other in self.others.items()
            if not names or name in names
        ]
        return [value for value in values if value is not None]

    def agreeing(self, figure: str) -> tuple[str, ...]:
        """The most others that are within what is asked of each other, the nearest of several; none
        if no two are."""
        said = sorted(
            (value, name)
            for name, other in self.others.items()
            if (value := getattr(other, figure)) is not None
        )
        groups = [
            said[first : last + 1]
            for first in range(len(said))
            for last in range(first + 1, len(said))
            if said[last][0] <= said[first][0] * (1 + NEAR[figure])
        ]
        best = min(groups, key=lambda group: (-len(group), group[-1][0] / group[0][0]), default=[])
        return tuple(name for _, name in best)

    def alone(self, figure: str) -> bool:
        """Whether Loadmaster is farther than asked from everybody who says a figure."""
        value, theirs = getattr(self.own, figure), self.said(figure)
        return bool(theirs) and not any(near(figure, value / other) for other in theirs)

    def ratio(self, figure: str, names: Sequence[str] = ()) -> float | None:
        """Ours over the median of theirs; None if nobody says one."""
        theirs = self.said(figure, names)
        return getattr(self.own, figure) / statistics.median(theirs) if theirs else None


def ours(nest: LoopNest, style: Style) -> Estimate:
    """Cycles that a job takes whose link keeps up, or the link's if it does not; bytes; energy."""
    target, work = machine(style), workload(nest)
    kind = job_costs(work, target).kinds[0]
    moved, table = float(kind.moved.sum()), analyse(work, target)
    assert table.energy is not None
    return Estimate(
        max(float(kind.seconds[0]) * 1e9, moved / BANDWIDTH),
        moved,
        float(table.energy[0, 0]) * 1e12,
    )


def least(nest: LoopNest) -> Estimate:
    """What no model can be below: an array that is always busy, and every byte once."""
    return Estimate(nest.macs / (ROWS * COLUMNS), float(sum(sizes(nest))))


def closed_forms(nest: LoopNest, style: Style) -> Estimate:
    """MAESTRO's cycles with unlimited buffers of a weight-stationary array; its row-stationary one
    stands for a low-bandwidth core."""
    if style is not Style.WEIGHT_STATIONARY:
        return Estimate()
    return Estimate(float(MAESTRO.analyse(workload(nest), machine(style)).latency[0, 0]) * 1e9)


def zigzag(answers: Answers, nest: LoopNest, style: Style, own: Estimate) -> Answer:
    """ZigZag's answer; where it differs, the better by its own measure of that and of a longer
    search."""
    first = answers.ask("zigzag", nest, style, loops=LOOPS[0])
    if isinstance(first, str) or all(
        near(figure, getattr(own, figure) / first[figure]) for figure in ("cycles", "bytes")
    ):
        return first
    longer = answers.ask("zigzag", nest, style, loops=LOOPS[1])
    return (
        first
        if isinstance(longer, str)
        else min(first, longer, key=lambda said: said["cycles"] * said["picojoules"])
    )


def accelforge(
    answers: Answers, nest: LoopNest, style: Style, own: Estimate
) -> tuple[Answer, Estimate]:
    """AccelForge's answer; and where it moves less, that for half of the buffer: it has no room for
    tiles that arrive meanwhile."""
    said = answers.ask("accelforge", nest, style)
    if isinstance(said, str) or (own.bytes or 0.0) <= said["bytes"] * (1 + NEAR["bytes"]):
        return said, Estimate()
    less = answers.ask("accelforge", nest, style, buffer=BUFFER // 2)
    return said, Estimate() if isinstance(less, str) else estimate(less)


def estimate(said: dict[str, float]) -> Estimate:
    return Estimate(said["cycles"], said["bytes"], said.get("picojoules"))


def near(figure: str, value: float) -> bool:
    """Whether a ratio is within what is asked of a figure."""
    return abs(value - 1) <= NEAR[figure]


def asked(answers: Answers, layer: str, style: Style, programs: Sequence[str]) -> Row:
    """Everybody's answer."""
    nest = LAYERS[layer]
    own, half = ours(nest, style), Estimate()
    others: dict[str, Estimate] = {}
    silent: dict[str, str] = {}
    for name in programs:
        if name == "scale_sim" and style is Style.ROW_STATIONARY:
            continue
        if name == "accelforge":
            said, half = accelforge(answers, nest, style, own)
        else:
            said = (
                zigzag(answers, nest, style, own)
                if name == "zigzag"
                else answers.ask(name, nest, style)
            )
        if isinstance(said, str):
            silent[name] = said
            if name == "scale_sim":
                others[name] = Estimate(filled_for_every_fold(nest, style))
        else:
            others[name] = estimate(said)
    return Row(layer, style, own, {**others, "maestro": closed_forms(nest, style)}, silent, half)


def shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def table(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Lines of the answers to the layers of one array; the last column says of how many others the
    median is."""
    yield (
        f"| layer | figure | least | Loadmaster | {' | '.join(names)} | agree | ratio to their"
        " median, of how many |"
    )
    yield "|---" * (6 + len(names)) + "|"
    for row in rows:
        for figure in NEAR:
            theirs = [shown(getattr(row.others.get(name, Estimate()), figure)) for name in names]
            ratio = row.ratio(figure)
            of_median = (
                "-"
                if ratio is None
                else f"{ratio:.2f}, {len(row.said(figure))}{'' if near(figure, ratio) else ' *'}"
            )
            cells = [
                shown(getattr(least(LAYERS[row.layer]), figure)),
                shown(getattr(row.own, figure)),
                *theirs,
                ", ".join(row.agreeing(figure)) or "-",
                of_median,
            ]
            yield f"| {row.layer} | {figure} | {' | '.join(cells)} |"
        yield from (f"  {name}: {row.layer}: {why}" for name, why in row.silent.items())


def summary(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """How often Loadmaster is near: to each other model, to the median of all, and to that by how
    many there are, for each array."""
    styles = list(dict.fromkeys(row.style for row in rows))
    yield (
        f"| figure | beside | {' | '.join(styles)} | all | median ratio"
        f" |\n|---|---|{'---:|' * (len(styles) + 2)}"
    )
    for figure in NEAR:
        counts = sorted({len(row.said(figure)) for row in rows} - {0})
        groups: list[tuple[str, tuple[str, ...], Sequence[Row]]] = [
            (name, (name,), rows) for name in names
        ]
        groups += [
            (f"the median of {count}", (), [row for row in rows if len(row.said(figure)) == count])
            for count in counts
        ]
        groups.append(("the median of all that answered", (), rows))
        compared = [
            (title, [(row, row.ratio(figure, among)) for row in mine])
            for title, among, mine in groups
        ]
        agreed = [row for row in rows if row.agreeing(figure)]
        compared.append(
            (
                "the median of those that agree",
                [(row, row.ratio(figure, row.agreeing(figure))) for row in agreed],
            )
        )
        for title, pairs in compared:
            ratios = [(row.style, ratio) for row, ratio in pairs if ratio is not None]
            if ratios:
                yield (
                    f"| {figure}, within {NEAR[figure]:.0%} | {title} |"
                    f" {' | '.join(counted(figure, ratios, styles))} |"
                )
    works = [
        (row, work) for row in rows if (work := kept_full(LAYERS[row.layer], row.style)) is not None
    ]
    if "scale_sim" in names and works:
        ratios = [
            (row.style, (row.own.cycles or 0.0) / max(work, (row.own.bytes or 0.0) / BANDWIDTH))
            for row, work in works
        ]
        title = "scale_sim with an array that is kept full, or the link"
        yield (
            f"| cycles, within {NEAR['cycles']:.0%} | {title} |"
            f" {' | '.join(counted('cycles', ratios, styles))} |"
        )


def totals(rows: Sequence[Row], names: Sequence[str]) -> Iterator[str]:
    """Loadmaster's sums over layers, as of a plan that runs them one after another with all
    operands in main memory, over every other's."""
    styles = list(dict.fromkeys(row.style for row in rows))
    yield (
        f"| sums over layers | beside | {' | '.join(styles)} | all"
        f" |\n|---|---|{'---:|' * (len(styles) + 1)}"
    )
    for figure in NEAR:
        for name in names:
            both = [
                (row, getattr(row.own, figure), said[0])
                for row in rows
                if (said := row.said(figure, (name,)))
            ]
            parts = [
                [(own, other) for row, own, other in both if row.style in among]
                for among in (*((style,) for style in styles), styles)
            ]
            cells = [
                (
                    f"{sum(own for own, _ in part) / sum(other for _, other in part):.2f},"
                    f" {len(part)}"
                    if part
                    else "-"
                )
                for part in parts
            ]
            if both:
                yield f"| {figure} | {name} | {' | '.join(cells)} |"


def alone(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of the figures for which Loadmaster is farther than asked from every other model."""
    yield (
        "| farther than asked from all | array | figure | Loadmaster | others | AccelForge, half"
        " the buffer |"
    )
    yield "|---|---|---|---:|---|---:|"
    for row, figure in ((row, figure) for figure in NEAR for row in rows if row.alone(figure)):
        theirs = [
            f"{name} {shown(value)}"
            for name, other in row.others.items()
            if (value := getattr(other, figure)) is not None
        ]
        cells = [
            figure,
            shown(getattr(row.own, figure)),
            ", ".join(theirs),
            shown(getattr(row.half, figure)),
        ]
        yield f"| {row.layer} | {row.style} | {' | '.join(cells)} |"


def counted(
    figure: str, ratios: Sequence[tuple[Style, float]], styles: Sequence[Style]
) -> Iterator[str]:
    """On how many rows of each array, and of all, a ratio is near; and the median of all."""
    parts = [[near(figure, ratio) for own, ratio in ratios if own is style] for style in styles]
    yield from (
        f"{sum(part)} of {len(part)}" if part else "-"
        for part in (*parts, [near(figure, ratio) for _, ratio in ratios])
    )
    yield f"{statistics.median(ratio for _, ratio in ratios):.2f}"


def compare(
    answers: Answers, layers: Sequence[str], styles: Sequence[Style], programs: Sequence[str]
) -> None:
    present = [
        name
        for name in programs
        if not answers.seconds or importlib.util.find_spec(PROGRAMS[name][0]) is not None
    ]
    for name in sorted(set(programs) - set(present)):
        print(f"{name}: not installed: {PROGRAMS[name][1]}")
    print("Timeloop has no package for pip; AccelForge is by its authors\n* farther than asked")
    names, rows = [*present, "maestro"], []
    for style in styles:
        mine = []
        for layer in layers:
            mine.append(asked(answers, layer, style, present))
        print(f"\n{style}", *table(mine, names), sep="\n", flush=True)
        rows += mine
    print("", *summary(rows, names), "", *totals(rows, names), "", *alone(rows), sep="\n")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the comparison."""
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        help="with --rivals: for one question to a program; 0 asks nothing",
    )
    parser.add_argument(
        "--answers",
        type=Path,
        help="with --rivals: a file of what programs answered, which is read and completed",
    )
    parser.add_argument(
        "--layers", nargs="*", choices=list(LAYERS), default=list(LAYERS), help="with --rivals"
    )
    parser.add_argument(
        "--styles", nargs="*", type=Style, default=list(STYLES), help="with --rivals"
    )
    parser.add_argument(
        "--programs",
        nargs="*",
        choices=list(PROGRAMS),
        default=list(PROGRAMS),
        help="with --rivals",
    )

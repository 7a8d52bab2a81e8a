"""The answer of ``loadmaster size`` in the terminal: two sentences, and a row for every value that
was tried."""

from __future__ import annotations

from collections.abc import Iterator

from loadmaster.core.units import format_joules, format_seconds
from loadmaster.planning.sweep.size import Sizing, Verdict
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import NOTHING, plural
from loadmaster.report.view import Line, Notes, Part, Table


def size_summary(found: Sizing, effort: str = "normal") -> list[Part]:
    """Make the answer, what was tried, and what figures rest on; with less than normal ``effort``,
    what was not found is marked so."""
    less = " with --effort quick" if effort == "quick" else ""
    rows = []
    for trial in found.trials:
        point = trial.point
        verdict = f"{trial.verdict}{less * (trial.verdict == Verdict.NOT_FOUND)}"
        times, energy = (NOTHING, NOTHING), NOTHING
        if point is not None and point.makespan is not None:
            times = format_seconds(point.makespan), format_seconds(point.lower_bound or 0.0)
            energy = format_joules(point.energy or 0.0)
        row = {f">{found.axis}": str(trial.value), "": verdict}
        rows.append({**row, ">makespan": times[0], ">lower bound": times[1], ">energy": energy})
    heading = f"{', '.join(found.networks)} on {found.target.name}, {found.limits}"
    return [
        Notes([heading, *answer(found, less)]),
        Table(rows),
        Line(figures_rest_on(found.costs)),
    ]


def answer(found: Sizing, less: str = "") -> Iterator[str]:
    """Iterate over what is known, in sentences; ``less`` says with what it was not found."""
    least, excluded, between = found.least, found.excluded, found.open
    first, last = found.values[0], found.values[-1]
    if least is not None:
        assert least.point is not None
        yield (
            f"{found.axis} {least.value} suffices: a plan that was checked takes"
            f" {format_seconds(least.point.makespan or 0.0)} and"
            f" {format_joules(least.point.energy or 0.0)}."
        )
    elif found.status == "infeasible":
        yield f"No value from {first} to {last} suffices; that is proven."
    else:
        yield f"No value from {first} to {last} was found to suffice{less}."
    if excluded is not None:
        worse = " or less" if first.value <= last.value else " or more"
        yield f"With {excluded.value}{worse * found.ordered} none can: {excluded.reason}."
    if between and (least is not None or excluded is not None):
        listed = str(between[0])
        if len(between) > 1:
            listed += f" to {between[-1]} ({plural(len(between), 'value')})"
        yield (
            f"Not known: {listed}: no plan was found there{less} that keeps the limits, and no"
            " bound excludes one."
        )
    if not found.ordered:
        yield f"Every value was tried by itself, as more of {found.axis} need not be better."
    if found.interrupted:
        yield "Stopped early: what is said holds, and more may be found."

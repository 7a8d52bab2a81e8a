"""The answer of ``loadmaster size`` in the terminal: two sentences, and a row for every value that
was tried."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.quantity import Quantity
from loadmaster.core.units import format_joules, format_seconds
from loadmaster.planning.sweep.size import Sizing, Trial
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import NOTHING, plural, printable


def size_summary(found: Sizing) -> RenderableType:
    """Make the answer, what was tried, and what figures rest on."""
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    for name, justify in (
        (found.axis, "right"),
        ("", "left"),
        ("makespan", "right"),
        ("lower bound", "right"),
        ("energy", "right"),
    ):
        table.add_column(printable(name), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for trial in found.trials:
        table.add_row(*map(Text, _row(trial)))
    heading = (
        f"{', '.join(map(printable, found.networks))} on {printable(found.target.name)},"
        f" {printable(str(found.limits))}"
    )
    parts: list[RenderableType] = [
        Text(heading),
        Text(),
        *(Text(line) for line in answer(found)),
        Text(),
        table,
        Text(),
    ]
    return Group(*parts, Text(figures_rest_on(found.costs)))


def answer(found: Sizing) -> Iterator[str]:
    """Iterate over what is known, in sentences."""
    least, excluded, between = found.least, found.excluded, found.open
    if least is not None:
        assert least.point is not None
        yield (
            f"{found.axis} {least.value} suffices: a plan that was checked takes"
            f" {format_seconds(least.point.makespan or 0.0)} and"
            f" {format_joules(least.point.energy or 0.0)}."
        )
    elif found.status == "infeasible":
        yield f"No value from {found.values[0]} to {found.values[-1]} suffices; that is proven."
    else:
        yield f"No value from {found.values[0]} to {found.values[-1]} was found to suffice."
    if excluded is not None:
        worse = "or less" if found.values[0].value <= found.values[-1].value else "or more"
        none_can = (
            f"With {excluded.value} {worse} none can"
            if found.ordered
            else f"With {excluded.value} none can"
        )
        yield f"{none_can}: {printable(excluded.reason)}."
    if between and (least is not None or excluded is not None):
        yield (
            f"Not known: {_listed(between)}: no plan was found there that keeps the limits, and no"
            " bound excludes one."
        )
    if not found.ordered:
        yield (
            f"Every value was tried by itself, as more of {printable(found.axis)} need not be"
            " better."
        )
    if found.interrupted:
        yield "Stopped early: what is said holds, and more may be found."


def _listed(values: tuple[Quantity, ...]) -> str:
    return (
        str(values[0])
        if len(values) == 1
        else f"{values[0]} to {values[-1]} ({plural(len(values), 'value')})"
    )


def _row(trial: Trial) -> tuple[str, ...]:
    point = trial.point
    if point is None or point.makespan is None:
        return str(trial.value), str(trial.verdict), NOTHING, NOTHING, NOTHING
    bound = format_seconds(point.lower_bound or 0.0)
    return (
        str(trial.value),
        str(trial.verdict),
        format_seconds(point.makespan),
        bound,
        format_joules(point.energy or 0.0),
    )

"""The summary of a calibration in the terminal: errors by kind of operator, and every figure before
and after."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.units import format_bandwidth, format_seconds
from loadmaster.cost.calibration.answer import Calibration, Errors, Figure, Standing
from loadmaster.report.text import NOTHING, percent, printable

_MEANING = {
    Standing.FITTED: "calibrated",
    Standing.BOUNDED: "at least this",
    Standing.KEPT: "kept",
}


def calibration_summary(found: Calibration) -> RenderableType:
    """Make tables of errors and of figures."""
    title = (
        f"{printable(found.base)} against {found.rows} measured times of"
        f" {printable(found.measured)}"
    )
    notes = [Text(f"Not used: {printable(text)}") for text in found.skipped]
    explained = Text(
        "Errors: the factor between model and measurement, in the mean, less 1. Unseen: of layers"
        " left out of the fit, a fifth at a time."
    )
    legend = Text(
        "At least: nothing measured is limited by it any more. Kept: measured times do not tell,"
        " the figure is as it was."
    )
    return Group(
        Text(title), Text(), _errors(found), explained, Text(), _figures(found), legend, *notes
    )


def _errors(found: Calibration) -> Table:
    table = _columns(
        "operators", ">rows", ">before", ">after", ">unseen", ">sum before", ">sum after"
    )
    for kind in found.kinds:
        unseen = NOTHING if kind.held_out is None else percent(kind.held_out.mean)
        sums = (_signed(kind.before), _signed(kind.after))
        table.add_row(
            Text(printable(kind.kind)),
            str(kind.rows),
            percent(kind.before.mean),
            percent(kind.after.mean),
            unseen,
            *sums,
        )
    return table


def _signed(errors: Errors) -> str:
    return f"{'+' if errors.total >= 0 else '-'}{percent(abs(errors.total))}"


def _figures(found: Calibration) -> Table:
    table = _columns("figure", ">before", ">after", ">layers", "")
    for figure in found.figures:
        after = NOTHING if figure.standing is Standing.KEPT else _shown(figure, figure.after)
        table.add_row(
            Text(printable(figure.field)),
            _shown(figure, figure.before),
            after,
            str(figure.layers),
            _MEANING[figure.standing],
        )
    return table


def _shown(figure: Figure, value: float) -> str:
    if figure.field.endswith("job_overhead"):
        return format_seconds(value)
    return percent(value) if ".efficiency." in figure.field else format_bandwidth(value)


def _columns(*names: str) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    for name in names:
        table.add_column(
            name.removeprefix(">"),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
        )
    return table

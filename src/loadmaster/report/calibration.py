"""The summary of a calibration in the terminal: errors by kind of operator, and every figure before
and after."""

from __future__ import annotations

from loadmaster.core.units import format_bandwidth, format_seconds
from loadmaster.cost.calibration.answer import Calibration, Figure, Standing
from loadmaster.report.text import NOTHING, percent
from loadmaster.report.view import Line, Notes, Part, Table

_MEANING = {
    Standing.FITTED: "calibrated",
    Standing.BOUNDED: "at least this",
    Standing.KEPT: "kept",
}
_ERRORS = (
    "Errors: the factor between model and measurement, in the mean, less 1. Unseen: of layers left"
    " out of the fit, a fifth at a time."
)
_LEGEND = (
    "At least: nothing measured is limited by it any more. Kept: measured times do not tell, the"
    " figure is as it was."
)


def calibration_summary(found: Calibration) -> list[Part]:
    """Make tables of errors and of figures."""
    errors = []
    for kind in found.kinds:
        means = [each.mean for each in (kind.before, kind.after, kind.held_out) if each is not None]
        sums = (
            f"{'+' if each.total >= 0 else '-'}{percent(abs(each.total))}"
            for each in (kind.before, kind.after)
        )
        unseen = [NOTHING] * (kind.held_out is None)
        errors.append((kind.kind, str(kind.rows), *map(percent, means), *unseen, *sums))
    figures = [
        (
            figure.field,
            _shown(figure, figure.before),
            NOTHING if figure.standing is Standing.KEPT else _shown(figure, figure.after),
            str(figure.layers),
            _MEANING[figure.standing],
        )
        for figure in found.figures
    ]
    before = (">before", ">after", ">unseen", ">sum before", ">sum after")
    return [
        Line(f"{found.base} against {found.rows} measured times of {found.measured}"),
        Table(("~operators", ">rows", *before), errors, _ERRORS),
        Table(("~figure", ">before", ">after", ">layers", ""), figures, _LEGEND),
        Notes([f"Not used: {text}" for text in found.skipped]),
    ]


def _shown(figure: Figure, value: float) -> str:
    if figure.field.endswith("job_overhead"):
        return format_seconds(value)
    return percent(value) if ".efficiency." in figure.field else format_bandwidth(value)

"""The view of a calibration: errors by kind of operator, and all calibrated figures before and
after."""

from __future__ import annotations

from loadmaster.core.units import format_bandwidth, format_seconds
from loadmaster.cost.calibration.answer import Calibration, Fitted, Standing
from loadmaster.report.text import NOTHING, percent, signed
from loadmaster.report.view import Line, Notes, PagePart, Table

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


def calibration_summary(found: Calibration) -> list[PagePart]:
    """Return the tables of errors and of calibrated figures."""
    errors = [
        {
            "~operators": kind.kind,
            ">rows": str(kind.rows),
            ">before": percent(kind.before.mean),
            ">after": percent(kind.after.mean),
            ">unseen": percent(kind.held_out.mean) if kind.held_out else NOTHING,
            ">sum before": signed(kind.before.total),
            ">sum after": signed(kind.after.total),
        }
        for kind in found.kinds
    ]
    figures = [
        {
            "~figure": figure.field,
            ">before": _figure_text(figure, figure.before),
            ">after": (
                NOTHING if figure.standing is Standing.KEPT else _figure_text(figure, figure.after)
            ),
            ">layers": str(figure.layers),
            "": _MEANING[figure.standing],
        }
        for figure in found.figures
    ]
    return [
        Line(f"{found.base} against {found.rows} measured times of {found.measured}"),
        Table(errors, _ERRORS),
        Table(figures, _LEGEND),
        Notes([f"Not used: {text}" for text in found.skipped]),
    ]


def _figure_text(figure: Fitted, value: float) -> str:
    """Format a figure as seconds, a share or a bandwidth."""
    if figure.field.endswith("job_overhead"):
        return format_seconds(value)
    return percent(value) if ".efficiency." in figure.field else format_bandwidth(value)

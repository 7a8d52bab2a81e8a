"""The HTML report of a run: the plan's steps beside other ways to save memory, and predicted
against measured seconds of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.charts import FAINT, framed, hover
from loadmaster.report.colours import PALETTE
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.run import COLUMNS, run_rows
from loadmaster.report.tables import card, table
from loadmaster.report.text import NOTHING, Html, plural, printable, to_html

_LISTED = 50
_ABOUT = (
    "Times are medians of steps run in turns. Against a rival stands a plan whose budget is the"
    " peak that was measured of the rival."
)


def render_run(model: str, result: Mapping[str, Any], kernels: Sequence[Mapping[str, Any]]) -> str:
    """Render the page of what ``loadmaster run`` measured; the same figures give the same text.

    Parameters
    ----------
    model
        What was run, as it was written.
    result, kernels
        The contents of run.json and kernels.json.
    """
    page = Page()
    timed = [row for row in kernels if row["measured_seconds"] > 0 and row["predicted_seconds"] > 0]
    charts = (
        [section("Predicted against measured, by kernel", page.place(_draw_kernels(timed)))]
        if timed
        else []
    )
    sections = [
        section(
            "", _headline(result), Html(f"<p><strong>{to_html(_outcome(result))}</strong></p>")
        ),
        section(
            "Ways to run the step",
            table("Ways to run the step", COLUMNS, run_rows(result)),
            hint(_ABOUT),
        ),
        *charts,
        section("Longest kernels", *_kernels(kernels)),
    ]
    return in_page(
        printable(model),
        "Steps under a budget of fast memory, measured on this machine",
        sections,
        page,
    )


def _outcome(result: Mapping[str, Any]) -> str:
    equal = "Results DIFFER"
    if result["gradients_equal"]:
        equal = "Results are equal bit for bit to those of the unmoved graphs"
    elif result["results_close"]:
        equal = (
            f"Results are within {result['error']:.1e} of those of the unmoved graphs, as kernels"
            " run in blocks"
        )
    kept = "kept" if result["budget_kept"] else "EXCEEDED"
    return (
        f"{equal}; the budget was {kept}. Times and peaks are measured, predictions are estimates."
    )


def _headline(result: Mapping[str, Any]) -> Html:
    cards = (
        card(
            "Step",
            _seconds(result["step_seconds"]),
            f"predicted {_seconds(result['predicted_step_seconds'])}",
        ),
        card(
            "Nothing moved",
            _seconds(result["unmoved_step_seconds"]),
            f"peak {_bytes(result['unmoved_measured_peak'])}",
        ),
        card(
            "Peak",
            _bytes(result["measured_peak"]),
            f"planned {_bytes(result['planned_peak'])}, budget {_bytes(result['budget'])}",
        ),
        card(
            "Moved in a step",
            _bytes(result["moved_bytes"]),
            f"waiting {_seconds(result['waiting_seconds'])}",
        ),
    )
    return Html(f"<div class=cards>{''.join(cards)}</div>")


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else format_seconds(value)


def _bytes(value: int | None) -> str:
    return "none" if value is None else format_bytes(value)


def _draw_kernels(rows: Sequence[Mapping[str, Any]]) -> tuple[figure, str]:
    """Draw measured over predicted seconds of each kernel on logarithmic axes, with a line where
    both are equal."""
    times = [row[name] for row in rows for name in ("predicted_seconds", "measured_seconds")]
    low, high = min(times) / 1.5, max(times) * 1.5
    ranges = Range1d(start=low, end=high), Range1d(start=low, end=high)
    plot = framed(
        "", 420, *ranges, "predicted (s)", "measured (s)", x_axis_type="log", y_axis_type="log"
    )
    plot.line([low, high], [low, high], line_color=FAINT, line_dash="dashed")
    source = ColumnDataSource(
        {
            "x": [row["predicted_seconds"] for row in rows],
            "y": [row["measured_seconds"] for row in rows],
            "name": [printable(row["kernel"]) for row in rows],
            "operator": [printable(row["operator"]) for row in rows],
            "predicted": [format_seconds(row["predicted_seconds"]) for row in rows],
            "measured": [format_seconds(row["measured_seconds"]) for row in rows],
        }
    )
    marks = plot.scatter("x", "y", source=source, size=7, color=PALETTE[0], alpha=0.6)
    hover(
        plot,
        [marks],
        "name",
        (("operator", "operator"), ("predicted", "predicted"), ("measured", "measured")),
    )
    return plot, "Above the dashed line a kernel took longer than predicted."


def _kernels(rows: Sequence[Mapping[str, Any]]) -> tuple[Html, Html]:
    longest = sorted(rows, key=lambda row: -row["measured_seconds"])[:_LISTED]
    shown = [
        (
            row["kernel"],
            row["operator"],
            format_seconds(row["predicted_seconds"]),
            format_seconds(row["measured_seconds"]),
        )
        for row in longest
    ]
    rest = len(rows) - len(longest)
    more = hint(f"and {plural(rest, 'shorter kernel')}" if rest else "")
    return table("Longest kernels", ("Kernel", "Operator", ">Predicted", ">Measured"), shown), more

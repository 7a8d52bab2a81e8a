"""Charts of the objective and the total lateness over the search, with the lower bound."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, Range1d
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from loadmaster.planning.plan_records import PlanRecord
from loadmaster.report.charts import FAINT, INK, Canvas, framed
from loadmaster.report.figures import objective_name, objective_unit

_HEIGHT = 200


def draw_convergence(plan: PlanRecord) -> tuple[figure, str]:
    """Draw the best objective against orders evaluated, from the separate plan's on, with the lower
    bound as a dashed line."""
    scale, unit = objective_unit(plan, max(step.value for step in plan.search))
    what = objective_name(plan)
    plot = _steps(
        [(step.evaluations, step.value / scale) for step in plan.search], f"{what} ({unit})"
    )
    bound = plan.objective.lower_bound / scale
    plot.add_layout(
        Span(location=bound, dimension="width", line_color=FAINT, line_dash="dashed", line_width=1)
    )
    return (
        plot,
        (
            "The dashed line is the lower bound: no plan of these jobs on this machine has a"
            f" smaller {what}."
        ),
    )


def draw_lateness(plan: PlanRecord, on: Canvas) -> tuple[figure, str]:
    """Draw the total lateness of all mini-batches, which the search reduces before the
    objective."""
    plot = _steps(
        [(step.evaluations, on.unit.of(step.lateness)) for step in plan.search],
        f"lateness ({on.unit.name})",
    )
    return plot, "How late mini-batches are comes before everything else."


def _steps(steps: list[tuple[int, float]], label: str) -> figure:
    top = max(value for _, value in steps) * 1.05
    orders = steps[-1][0] or 1
    plot = framed(
        "",
        _HEIGHT,
        Range1d(start=0, end=1.02 * orders),
        Range1d(start=0, end=top),
        "orders evaluated",
        label,
    )
    source = ColumnDataSource(
        {"orders": [n for n, _ in steps], "value": [value for _, value in steps]}
    )
    plot.step(x="orders", y="value", source=source, mode="after", line_color=INK, line_width=2)
    return plot

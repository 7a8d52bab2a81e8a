"""How the search made the makespan fall, with the bound that it cannot pass."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, Range1d
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from loadmaster.plans import Plan
from loadmaster.report.charts import FAINT, INK, Canvas

_HEIGHT = 200


def draw_convergence(plan: Plan, on: Canvas) -> tuple[figure, str]:
    """Best makespan so far against orders evaluated, from the separate plan's on, and the lower bound as a dashed line."""
    unit = on.unit
    steps = [(step.evaluations, unit.of(step.makespan)) for step in plan.search]
    bound = unit.of(plan.metrics.makespan.lower_bound)
    top = max(value for _, value in steps) * 1.05
    plot = figure(
        height=_HEIGHT,
        sizing_mode="stretch_width",
        y_range=Range1d(start=0, end=top),
        x_axis_label="orders evaluated",
        y_axis_label=f"makespan ({unit.name})",
        toolbar_location=None,
        tools="",
    )
    source = ColumnDataSource({"orders": [n for n, _ in steps], "makespan": [value for _, value in steps]})
    plot.step(x="orders", y="makespan", source=source, mode="after", line_color=INK, line_width=2)
    plot.add_layout(Span(location=bound, dimension="width", line_color=FAINT, line_dash="dashed", line_width=1))
    return plot, "The dashed line is the lower bound: no plan of these jobs on this machine is faster."

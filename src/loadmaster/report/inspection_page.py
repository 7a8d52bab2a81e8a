"""The HTML report of a network: its operators by what they cost, and a roofline picture on a
machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.models import ColumnDataSource, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import (
    format_bandwidth,
    format_bytes,
    format_count,
    format_rate,
    rate_unit,
)
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.report.charts import INK, framed, hover
from loadmaster.report.colours import PALETTE
from loadmaster.report.inspection import inspection_json
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.tables import card, meter, table
from loadmaster.report.text import Html, chart_text, comma, plural, printable, to_html
from loadmaster.targets.hardware import Core, Target
from loadmaster.workloads.graph import Graph, Op, OpClass, TensorKind, uncounted
from loadmaster.workloads.job import Job
from loadmaster.workloads.lowering.instantiate import lower

_LISTED = 100
_DRAWN = 5000
_KINDS = len(PALETTE) - 1
"""Kinds of operators with a colour of their own; all others share the last."""


def render_inspection(graph: Graph, machine: Target | None = None) -> str:
    """Render the page of a network; the same network gives the same text.

    With a machine, jobs are drawn under its roofline: the arithmetic of its fastest core, and the
    bandwidth of its main memory. O(operators log operators), and the costs of every job on every
    core.
    """
    page = Page()
    ops = [op for op in graph.ops if op.op_class not in (OpClass.VIEW, OpClass.SHAPE)]
    ranked = sorted(ops, key=lambda op: (-work_of(op), -bytes_of(op), op.name))
    points = _points(ranked) if machine is None else _points_on(graph, machine)
    points = sorted(
        (point for point in points if point.work and point.bytes),
        key=lambda point: (-point.work, point.name),
    )
    roofline = (
        [
            section(
                "Roofline",
                page.place(_draw_roofline(points, machine, rate_unit([graph.precision]))),
            )
        ]
        if points
        else []
    )
    sections = [
        section("", _warning(graph), _headline(graph), _notes(graph)),
        *roofline,
        section("Operators by kind", _kinds(graph)),
        section("Operators by cost", *_operators(graph, ranked)),
    ]
    where = "" if machine is None else f" on {printable(machine.name)}"
    return in_page(
        f"{printable(graph.name)}{where}",
        f"What was read of {printable(graph.source)}",
        sections,
        page,
    )


@dataclass(frozen=True)
class Point:
    """An operator, or a job that operators were fused into, in the roofline picture.

    ``work`` counts operations, two for a multiply-accumulate, and ``bytes`` those of all operands,
    each once. ``seconds`` is the longer of its arithmetic and its operands' way over the link of
    main memory, on the core that is fastest for it; 1 without a machine.
    """

    name: str
    kind: str
    work: int
    bytes: int
    seconds: float = 1.0

    @property
    def intensity(self) -> float:
        """Operations for each byte of operands."""
        return self.work / self.bytes

    @property
    def rate(self) -> float:
        """Operations a second; without a machine, operations."""
        return self.work / self.seconds


def work_of(op: Op | Job) -> int:
    """Count arithmetic: two operations for a multiply-accumulate, one for a scalar operation."""
    return 2 * op.macs + op.elements


def bytes_of(op: Op | Job) -> int:
    """Count the bytes that are read and written, each operand once."""
    return sum(access.bytes for access in (*op.reads, *op.writes))


def peak_of(core: Core, bits: int) -> float:
    """Operations a second that a core can do at most at a width, two for a multiply-accumulate."""
    return 2 * core.rows * core.columns * core.clock * core.macs_per_cycle[bits]


def _points(ops: Sequence[Op]) -> list[Point]:
    return [Point(op.name, op.kind, work_of(op), bytes_of(op)) for op in ops]


def _points_on(graph: Graph, machine: Target) -> list[Point]:
    """Estimate how fast one core of a machine runs each job of a network."""
    work = lower([graph], machine)
    fastest = job_table(work, machine).compute.min(axis=1).tolist()
    return [
        Point(
            job.name,
            job.kind,
            work_of(job),
            bytes_of(job),
            max(seconds, _link_seconds(job, machine), 1e-12),
        )
        for job, seconds in zip(work.jobs, fastest, strict=True)
    ]


def _link_seconds(job: Job, machine: Target) -> float:
    return machine.main.link_seconds(
        sum(operand.bytes for operand in job.reads), sum(operand.bytes for operand in job.writes)
    )


def _headline(graph: Graph) -> Html:
    cards = (
        card(
            "Multiply-accumulates",
            format_count(graph.macs),
            f"{plural(len(graph.ops), 'operator')}, batch {graph.batch}",
        ),
        card("Weights", format_bytes(graph.bytes_of(TensorKind.WEIGHT)), graph.precision),
        card(
            "Between operators",
            format_bytes(graph.bytes_of(TensorKind.ACTIVATION)),
            "all activations, which are not alive at one time",
        ),
        card(
            "Inputs",
            format_bytes(graph.bytes_of(TensorKind.INPUT)),
            comma(printable(name) for name in graph.inputs[:4]),
        ),
    )
    return Html(f"<div class=cards>{''.join(cards)}</div>")


def _warning(graph: Graph) -> Html:
    line = uncounted(graph.unknown_kinds)
    return Html(f"<p><strong>{to_html(line)}</strong></p>" if line else "")


def _notes(graph: Graph) -> Html:
    names = ", ".join(f"{kind} x{count}" for kind, count in sorted(graph.subgraph_ops.items()))
    lines = [f"Inside control flow, counted and not planned: {names}"] if names else []
    lines += graph.notes
    return Html(
        f"<ul class=notes>{''.join(f'<li>{to_html(line)}</li>' for line in lines)}</ul>"
        if lines
        else ""
    )


def _draw_roofline(
    points: Sequence[Point], machine: Target | None, unit: str
) -> tuple[figure, str]:
    """Draw points by operations per byte and operations; with a machine, by their rates, under the
    roof of its fastest core."""
    shown = points[:_DRAWN]
    low, high = (
        min(point.intensity for point in shown) / 2,
        max(point.intensity for point in shown) * 2,
    )
    least, most = min(point.rate for point in shown) / 2, max(point.rate for point in shown) * 3
    about, label = "", "operations"
    roof: list[tuple[float, float]] = []
    if machine is not None:
        bandwidth, top = (
            machine.main.read_bandwidth,
            max(peak_of(core, bits) for core in machine.cores for bits in core.macs_per_cycle),
        )
        knee = top / bandwidth
        low, high, most = min(low, knee / 4), max(high, knee * 4), max(most, 3 * top)
        roof = [(low, low * bandwidth), (knee, top), (high, top)]
        label = f"{unit} on one core, estimated"
        about = (
            f" The roof: {format_rate(top, unit)} of the fastest core at its narrowest width, and"
            f" {format_bandwidth(bandwidth)} of {printable(machine.main.name)}. Left of {knee:.3g}"
            " operations for each byte it is the memory that limits a core that has the link for"
            " itself, if every operand crosses it once; what lies below the roof fills the array"
            " badly."
        )
    ranges = Range1d(start=low, end=high), Range1d(start=least, end=most)
    plot = framed(
        "",
        420,
        *ranges,
        "operations for each byte of operands",
        chart_text(label),
        x_axis_type="log",
        y_axis_type="log",
    )
    plot.line([x for x, _ in roof], [y for _, y in roof], line_color=INK, line_width=1.5)
    _draw_points(plot, shown, unit if machine is not None else "")
    left_out = len(points) - len(shown)
    more = f" The {plural(left_out, 'smallest operator')} are not drawn." if left_out else ""
    return (
        plot,
        (
            "A point is an operator with what is fused into it, the larger the more"
            f" work.{about}{more}"
        ),
    )


def _draw_points(plot: figure, shown: Sequence[Point], unit: str) -> None:
    """Draw the points, coloured by the kinds with most work."""
    work: dict[str, int] = defaultdict(int)
    for point in shown:
        work[point.kind] += point.work
    most = max(point.work for point in shown)
    named = sorted(work, key=lambda kind: (-work[kind], kind))[:_KINDS]
    for number, kind in enumerate([*named, "others"]):
        mine = [
            point for point in shown if (point.kind if point.kind in named else "others") == kind
        ]
        if not mine:
            continue
        source = ColumnDataSource(
            {
                "x": [point.intensity for point in mine],
                "y": [point.rate for point in mine],
                "size": [5 + 15 * (point.work / most) ** 0.5 for point in mine],
                "name": [printable(point.name) for point in mine],
                "kind": [printable(point.kind) for point in mine],
                "work": [format_count(point.work) for point in mine],
                "bytes": [format_bytes(point.bytes) for point in mine],
                "rate": [format_rate(point.rate, unit) for point in mine],
            }
        )
        marks = plot.scatter(
            "x",
            "y",
            size="size",
            source=source,
            color=PALETTE[number],
            alpha=0.6,
            legend_label=chart_text(kind),
        )
        rows = (("kind", "kind"), ("operations", "work"), ("bytes", "bytes"), ("rate", "rate"))
        hover(plot, [marks], "name", rows if unit else rows[:-1])
    plot.legend.update(
        background_fill_alpha=0.0,
        label_text_font_size="11px",
        label_text_color=INK,
        border_line_alpha=0.0,
    )
    plot.add_layout(plot.legend[0], "right")


def _kinds(graph: Graph) -> Html:
    total = sum(map(work_of, graph.ops)) or 1
    rows = [
        (
            kind,
            f"{found['count']:,}",
            format_count(found["macs"]),
            format_bytes(found["bytes"]),
            meter((2 * found["macs"] + found["elements"]) / total),
        )
        for kind, found in inspection_json(graph)["operators"].items()
    ]
    return table(
        "Operators by kind", ("Operator", ">Count", ">MACs", ">Bytes", "Share of arithmetic"), rows
    )


def _operators(graph: Graph, ranked: Sequence[Op]) -> tuple[Html, Html]:
    rows = [
        (
            op.name,
            op.kind,
            format_count(op.macs),
            format_bytes(bytes_of(op)),
            f"{work_of(op) / bytes_of(op):.3g}" if bytes_of(op) else "",
            comma(
                "x".join(map(str, graph.tensors[access.tensor].shape)) or "scalar"
                for access in op.writes
            ),
        )
        for op in ranked[:_LISTED]
    ]
    rest = len(ranked) - len(rows)
    columns = ("Operator", "Kind", ">MACs", ">Bytes", ">Operations for each byte", "Result")
    return table("Operators by cost", columns, rows), hint(
        f"and {plural(rest, 'smaller operator')}" if rest > 0 else ""
    )

"""The view of a network."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from loadmaster.core.json_object import json_of
from loadmaster.core.units import (
    SIZES,
    format_bandwidth,
    format_bytes,
    format_count,
    format_rate,
    format_seconds,
    rate_unit,
)
from loadmaster.report.colours import PALETTE
from loadmaster.report.text import clipped, plural, printable, shortened
from loadmaster.report.timeline import Steps, largest, total_over_time
from loadmaster.report.view import (
    ALL,
    BOTH,
    DRAWN,
    TERMINAL,
    Curve,
    Facts,
    Figure,
    Figures,
    Json,
    Line,
    Mark,
    Notes,
    Page,
    Polyline,
    Scatter,
    Section,
    Shape,
    Share,
    Table,
    TimeAxis,
    first_rows,
    pairs,
)
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import FREE, Graph, Op, OpClass, TensorKind, uncounted
from loadmaster.workloads.job import Job

_LISTED = 100
_DRAWN = 5000
_KINDS = len(PALETTE) - 1
"""Number of kinds of operators with their own colour; all others share the last colour."""


def inspection_page(graph: Graph, machine: Target | None = None) -> Page:
    """Make the page of a network.

    With a machine, jobs are drawn under its roofline: the peak rate of its fastest core, and the
    bandwidth of its main memory. O(operators log operators), plus the costs of every job on every
    core.
    """
    warning, alive = uncounted(graph.unknown_kinds), Alive.of(graph)
    names = graph.subgraph_kinds
    inside = [f"Inside control flow, not planned: {names}"] if names else []

    def sections() -> list[Section]:
        """Return the report's sections."""
        points = _points(graph, machine)
        known = [point for point in points if point.work and point.bytes]
        roofline = [_roofline(known, machine, rate_unit([graph.precision]))] if known else []
        ends = pairs((end, _ends(graph, getattr(graph, end))) for end in ("inputs", "outputs"))
        return [
            Section("", [Line(warning, "strong")], BOTH),
            Section("", [Line(f"{graph.name} ({graph.source})"), ends], (TERMINAL,)),
            Section("", [Figures(_figures(graph, alive)), Notes([*inside, *graph.notes])], ALL),
            Section("Memory over the operators", [alive.chart()] if alive.steps else [], DRAWN),
            Section("Roofline", roofline),
            Section("Operators by kind", [_kinds(graph)], BOTH),
            Section(f"Operators by {'cost' if machine is None else 'time'}", [_operators(points)]),
        ]

    def rows() -> Iterable[Json]:
        """Yield the operators as JSON."""
        for op in graph.ops:
            yield {
                "name": op.name,
                "kind": op.kind,
                "class": op.op_class.value,
                "macs": op.macs,
                "elements": op.elements,
                "read": sum(access.bytes for access in op.reads),
                "written": sum(access.bytes for access in op.writes),
            }

    where = f" on {machine.name}" if machine else ""
    return Page(
        f"Network {clipped(printable(graph.name), 60)} at {graph.precision}{where}",
        f"What was read of {graph.source}",
        sections,
        headline=f"{warning and f'{warning}. '}{plural(len(graph.ops), 'operator')},"
        f" {format_count(graph.macs)} MACs,"
        f" {format_bytes(graph.bytes_of(TensorKind.WEIGHT))} of weights",
        rows=rows,
    )


@dataclass(frozen=True)
class Point:
    """An operator, or a job of fused operators, in the roofline chart.

    Attributes
    ----------
    work
        Operations; a multiply-accumulate is two.
    bytes
        Bytes of all operands, each once.
    seconds
        The longer of its arithmetic and the transfer of its operands from and to main memory, on
        the fastest core for it; None without a machine.
    result
        Shape of the result.
    """

    name: str
    kind: str
    work: int
    bytes: int
    result: str
    seconds: float | None

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in operations per byte."""
        return self.work / self.bytes if self.bytes else 0.0


def work_of(op: Op | Job) -> int:
    """Return the number of operations; a multiply-accumulate is two."""
    return 2 * op.macs + op.elements


def bytes_of(op: Op | Job) -> int:
    """Return the bytes read and written, each operand once."""
    return sum(access.bytes for access in (*op.reads, *op.writes))


def _points(graph: Graph, machine: Target | None) -> list[Point]:
    """Return a point for each operator with work or bytes, most work first; with a machine, for
    each job, most seconds first."""
    items: Sequence[Op | Job] = [op for op in graph.ops if op.op_class not in FREE]
    seconds, prefix = [None] * len(items), ""
    if machine is not None:
        from loadmaster.cost.analytical.job_costs import job_table
        from loadmaster.workloads.lowering.instantiate import lower

        work = lower([graph], machine)
        items, prefix = work.jobs, f"{graph.name}/"
        seconds = job_table(work, machine).compute.min(axis=1).tolist()
        for at, job in enumerate(work.jobs):
            read, written = (sum(o.bytes for o in ends) for ends in (job.reads, job.writes))
            seconds[at] = max(seconds[at], machine.main.link_seconds(read, written), 1e-12)
    points = []
    for item, time in zip(items, seconds, strict=True):
        shapes = (_shape(graph, access.tensor.removeprefix(prefix)) for access in item.writes)
        result = ", ".join(filter(None, shapes))
        points.append(Point(item.name, item.kind, work_of(item), bytes_of(item), result, time))
    return sorted(points, key=lambda p: (-(p.seconds or 0.0), -p.work, -p.bytes, p.name))


def _figures(graph: Graph, alive: Alive) -> list[Figure]:
    """Return the figures of a network: operators, multiply-accumulates, bytes by kind of tensor."""
    figures = [
        Figure("Operators", f"{len(graph.ops):,}", f"{graph.precision}, batch {graph.batch}"),
        Figure("Multiply-accumulates", format_count(graph.macs)),
    ]
    for kind in TensorKind:
        most = alive.at_peak if kind is TensorKind.ACTIVATION else ""
        size = format_bytes(graph.bytes_of(kind))
        figures.append(Figure(f"Bytes of {kind}s", size, most and f"at most {most}"))
    return figures


def _roofline(points: Sequence[Point], machine: Target | None, unit: str) -> Scatter:
    """Make the chart of operations over operations per byte; with a machine, of operations per
    second, with the roofline of its fastest core."""
    shown = sorted(points, key=lambda point: (-point.work, point.name))[:_DRAWN]
    label, about, paths = "operations", "", []
    if machine:
        bandwidth = machine.main.read_bandwidth
        # A multiply-accumulate is two operations.
        top = max(
            2 * core.rows * core.columns * core.clock * rate
            for core in machine.cores
            for rate in core.macs_per_cycle.values()
        )
        knee = top / bandwidth
        intensities = [point.intensity for point in shown]
        low, high = min(*intensities, knee / 4), max(*intensities, knee * 4)
        paths = [Polyline([(low, low * bandwidth), (knee, top), (high, top)])]
        label = f"{unit} on one core, estimated"
        about = (
            f" The roof: {format_rate(top, unit)} of the fastest core at its narrowest width, and"
            f" {format_bandwidth(bandwidth)} of {machine.main.name}. Left of {knee:.3g} operations"
            " for each byte it is the memory that limits a core that has the link for itself, if"
            " every operand crosses it once; what lies below the roof fills the array badly."
        )
    work: Counter[str] = Counter()
    for point in shown:
        work[point.kind] += point.work
    named = [kind for kind, _ in work.most_common(_KINDS)]
    marks = []
    for point in shown:
        facts = {
            "kind": point.kind,
            "operations": format_count(point.work),
            "bytes": format_bytes(point.bytes),
        }
        rate = float(point.work)
        if point.seconds is not None:
            rate /= point.seconds
            facts["rate"] = format_rate(rate, unit)
        number = named.index(point.kind) if point.kind in named else len(named)
        size = 5 + 15 * (point.work / shown[0].work) ** 0.5
        marks.append(Mark(point.intensity, rate, point.name, facts, number, size))
    left_out = len(points) - len(shown)
    more = f" The {plural(left_out, 'smallest operator')} are not drawn." if left_out else ""
    about = f"A point is an operator with what is fused into it, the larger the more work.{about}"
    return Scatter(
        "",
        "operations for each byte of operands",
        label,
        marks,
        paths,
        [*named, "others"],
        logarithmic=True,
        remark=f"{about}{more}",
    )


def _kinds(graph: Graph) -> Table:
    """Return the table of operators by kind, with counts, work and bytes."""
    total = sum(map(work_of, graph.ops)) or 1
    return Table(
        [
            {
                "~Operator": kind,
                "Planned as": f"{op_class}{' (free)' * (op_class in FREE)}",
                ">Count": f"{row['count']:,}",
                ">MACs": format_count(row["macs"]) if row["macs"] else "",
                ">Scalar ops": format_count(row["elements"]) if row["elements"] else "",
                ">Bytes": "" if op_class in FREE else format_bytes(row["bytes"]),
                ">Of arithmetic": Share((2 * row["macs"] + row["elements"]) / total),
            }
            for (kind, op_class), row in _totals_by_kind(graph).items()
        ]
    )


def _operators(points: Sequence[Point]) -> Table:
    """Make a table of operators; times are on the fastest core for each, without contention for the
    link."""
    rows = []
    for p in points:
        row = {
            "Operator": p.name,
            "Kind": p.kind,
            ">Operations": format_count(p.work),
            ">Bytes": format_bytes(p.bytes),
            ">Operations for each byte": f"{p.intensity:.3g}",
            "Result": p.result,
        }
        if p.seconds is not None:
            row[">Time on its fastest core"] = format_seconds(p.seconds)
        rows.append(row)
    return first_rows(rows, _LISTED, "other operator")


def _shape(graph: Graph, name: str) -> str:
    """Format the shape of a tensor; empty if the network has no such tensor."""
    found = graph.tensors.get(name)
    return "x".join(map(str, found.shape)) or "scalar" if found else ""


def _ends(graph: Graph, names: Sequence[str]) -> str:
    """Format the first inputs or outputs with their shapes, one per line, and count the others."""
    lines = [f"{name} {graph.tensors[name].dtype} {_shape(graph, name)}" for name in names]
    if len(lines) > 8:
        lines[8:] = [f"and {len(lines) - 8} more"]
    return "\n".join(lines)


@dataclass(frozen=True)
class KindJson:
    """Operators of a kind."""

    classes: Mapping[str, int]
    """By class, the number of operators that are planned as operators of this class."""
    count: int
    """Number of operators."""
    macs: int
    """Number of multiply-accumulates."""
    elements: int
    """Scalar operations."""
    bytes: int
    """Bytes read and written."""


@dataclass(frozen=True)
class PeakJson:
    """The operator with the most bytes of activations alive."""

    bytes: int
    """Bytes alive at once."""
    operator: str
    """Name of the first operator with this peak."""
    activations: Sequence[str]
    """Names of the activations alive, largest first."""


@dataclass(frozen=True)
class InspectionJson:
    """Operators, arithmetic and bytes of a network."""

    VERSION = 1
    network: str
    """Name of the network."""
    source: str
    """Where the network was read from."""
    precision: str
    """Precision of most of its arithmetic."""
    batch: int
    """Number of samples in the batch."""
    macs: int
    """Number of multiply-accumulates."""
    weight_bytes: int
    """Bytes of weights."""
    input_bytes: int
    """Bytes of inputs."""
    activation_bytes: int
    """Bytes of all activations in sum."""
    peak: PeakJson | None
    """Peak of activations with operators in the order of the file; null without activations."""
    operators: Mapping[str, KindJson]
    """By kind of operator."""
    not_understood: Mapping[str, int]
    """By kind, the number of unknown operators, which are planned with their bytes but without
    arithmetic."""
    inside_control_flow: Mapping[str, int]
    """By kind, the number of operators in control flow, which are counted but not planned."""
    notes: Sequence[str]
    """Remarks in words; the wording is not stable."""


def inspection_json(graph: Graph) -> dict[str, Any]:
    """Return counts, MACs and bytes of a network as `InspectionJson`."""
    kinds: dict[str, Any] = {}
    for (kind, op_class), row in _totals_by_kind(graph).items():
        total = kinds.setdefault(kind, {"classes": {}, **dict.fromkeys(row, 0)})
        total["classes"][op_class] = row["count"]
        for name, value in row.items():
            total[name] += value
    return json_of(
        graph,
        InspectionJson,
        network=graph.name,
        **{f"{kind}_bytes": graph.bytes_of(kind) for kind in TensorKind},
        peak=Alive.of(graph).peak,
        operators=kinds,
        not_understood=graph.unknown_ops,
        inside_control_flow=graph.subgraph_ops,
    )


def _totals_by_kind(graph: Graph) -> dict[tuple[str, OpClass], Counter[str]]:
    """Return the sums of count, macs, elements and bytes of operators by kind and class, most MACs
    first."""
    rows: dict[tuple[str, OpClass], Counter[str]] = defaultdict(Counter)
    for op in graph.ops:
        rows[op.kind, op.op_class].update(
            count=1, macs=op.macs, elements=op.elements, bytes=bytes_of(op)
        )
    order = ("macs", "elements", "bytes", "count")
    return dict(
        sorted(rows.items(), key=lambda item: (*(-item[1][name] for name in order), item[0]))
    )


@dataclass(frozen=True)
class Alive:
    """Bytes of activations alive while each operator runs, in the order of the file. An activation
    is alive from the first operator that uses it to the last."""

    graph: Graph
    spans: Mapping[str, tuple[int, int]]
    steps: Steps

    @staticmethod
    def of(graph: Graph) -> Alive:
        """Return the bytes alive in a network. O(operands)."""
        touched = [
            (access.tensor, at)
            for at, op in enumerate(graph.ops)
            for access in (*op.reads, *op.writes)
        ]
        touched += ((name, len(graph.ops) - 1) for name in graph.outputs)
        spans: dict[str, tuple[int, int]] = {}
        for name, at in touched:
            storage = graph.tensors[name].storage
            if graph.tensors[storage].kind is TensorKind.ACTIVATION:
                spans[storage] = spans.get(storage, (at, at))[0], at
        steps = total_over_time(
            (first, last + 1, graph.tensors[name].bytes) for name, (first, last) in spans.items()
        )
        return Alive(graph, spans, steps)

    @property
    def peak(self) -> PeakJson | None:
        """Return the peak at the first operator that reaches it; None without activations."""
        return self._peak_of_step(largest(self.steps)) if self.steps else None

    def _peak_of_step(self, step: tuple[float, float, float]) -> PeakJson:
        """Return the bytes, the operator and the activations alive of a step, largest first."""
        operator, _, size = step
        alive = [name for name, (first, last) in self.spans.items() if first <= operator <= last]
        alive.sort(key=lambda name: (-self.graph.tensors[name].bytes, name))
        return PeakJson(int(size), self.graph.ops[int(operator)].name, alive)

    def _describe(self, found: PeakJson) -> str:
        """Describe a peak: its operator, and its largest activations."""
        each = [
            f"{name} {format_bytes(self.graph.tensors[name].bytes)}" for name in found.activations
        ]
        return f"at {found.operator}: {shortened(each, 3)}"

    @cached_property
    def at_peak(self) -> str:
        """Return a description of the peak with its largest activations."""
        peak = self.peak
        return f"{format_bytes(peak.bytes)} at once, {self._describe(peak)}" if peak else ""

    def chart(self) -> Curve:
        """Return the curve of bytes alive over the operators."""
        shapes = [Shape(*step[:2], 0, step[2], partial(self._tip, step)) for step in self.steps]
        axis = TimeAxis(len(self.graph.ops), label="operator, in the order of the file")
        remark = f"At most {self.at_peak}. Another order, or operators in bands, may need less."
        return Curve("", "activations", shapes, SIZES, remark=remark, axis=axis)

    def _tip(self, step: tuple[float, float, float]) -> Facts:
        """Return the tooltip of a step."""
        return {"operator": self._describe(self._peak_of_step(step))}

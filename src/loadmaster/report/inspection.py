"""The summary of a network for ``loadmaster inspect``, as a table or as plain data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loadmaster.core.units import format_bytes, format_count
from loadmaster.report.text import warnings
from loadmaster.workloads.graph import Graph, OpClass, TensorKind


def inspection(graph: Graph) -> RenderableType:
    """Make a table of totals, operators by kind, and unknown operators."""
    parts: list[RenderableType] = [*warnings(graph.unknown_kinds)]
    parts += [_totals(graph), _operators(graph)]
    if graph.subgraph_ops:
        names = ", ".join(f"{kind} x{count}" for kind, count in sorted(graph.subgraph_ops.items()))
        parts.append(Text(f"Inside control flow, counted and not planned: {names}"))
    parts += [Text(note) for note in graph.notes]
    return Group(*parts)


def inspection_json(graph: Graph) -> dict[str, Any]:
    """Return counts, MACs and bytes of a network as plain data."""
    return {
        "network": graph.name,
        "source": graph.source,
        "precision": graph.precision,
        "batch": graph.batch,
        "macs": graph.macs,
        "weight_bytes": graph.bytes_of(TensorKind.WEIGHT),
        "input_bytes": graph.bytes_of(TensorKind.INPUT),
        "activation_bytes": graph.bytes_of(TensorKind.ACTIVATION),
        "operators": _as_json(_rows(graph)),
        "not_understood": graph.unknown_ops,
        "inside_control_flow": dict(graph.subgraph_ops),
        "notes": list(graph.notes),
    }


@dataclass
class _Row:
    """Operators of one kind that are planned alike; ``elements`` are scalar operations, ``bytes``
    those read and written."""

    count: int = 0
    macs: int = 0
    elements: int = 0
    bytes: int = 0


def _rows(graph: Graph) -> dict[tuple[str, OpClass], _Row]:
    """Sum operators by kind and class, most MACs first; some operators of a kind may be free and
    others not."""
    rows: dict[tuple[str, OpClass], _Row] = {}
    for op in graph.ops:
        row = rows.setdefault((op.kind, op.op_class), _Row())
        row.count += 1
        row.macs += op.macs
        row.elements += op.elements
        row.bytes += sum(access.bytes for access in (*op.reads, *op.writes))
    return dict(
        sorted(
            rows.items(),
            key=lambda item: (
                -item[1].macs,
                -item[1].elements,
                -item[1].bytes,
                -item[1].count,
                item[0],
            ),
        )
    )


def _as_json(rows: dict[tuple[str, OpClass], _Row]) -> dict[str, Any]:
    """Return totals of each kind, and the number of its operators in each class."""
    kinds: dict[str, Any] = {}
    for (kind, op_class), row in rows.items():
        total = kinds.setdefault(
            kind, {"classes": {}, "count": 0, "macs": 0, "elements": 0, "bytes": 0}
        )
        total["classes"][str(op_class)] = row.count
        for name, value in asdict(row).items():
            total[name] += value
    return kinds


def _totals(graph: Graph) -> Table:
    table = Table(
        title=escape(f"{graph.name} ({graph.source})"), show_header=False, title_justify="left"
    )
    table.add_row("operators", str(len(graph.ops)))
    table.add_row("multiply-accumulates", format_count(graph.macs))
    table.add_row("precision, batch", f"{graph.precision}, {graph.batch}")
    for kind in TensorKind:
        table.add_row(f"{kind} bytes", format_bytes(graph.bytes_of(kind)))
    for label, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        table.add_row(
            label, escape("\n".join(f"{name} {_shape(graph, name)}" for name in names[:8]))
        )
    return table


def _shape(graph: Graph, name: str) -> str:
    tensor = graph.tensors[name]
    return f"{tensor.dtype} {'x'.join(map(str, tensor.shape)) or 'scalar'}"


def _operators(graph: Graph) -> Table:
    table = Table()
    table.add_column("operator", overflow="fold")
    table.add_column("planned as")
    for title in ("count", "MACs", "scalar ops", "bytes"):
        table.add_column(title, justify="right")
    for (kind, op_class), row in _rows(graph).items():
        free = op_class in (OpClass.VIEW, OpClass.SHAPE)
        costs = (
            format_count(row.macs) if row.macs else "",
            format_count(row.elements) if row.elements else "",
        )
        moved = format_bytes(row.bytes) if row.bytes and not free else ""
        table.add_row(
            escape(kind), f"{op_class} (free)" if free else op_class, str(row.count), *costs, moved
        )
    return table

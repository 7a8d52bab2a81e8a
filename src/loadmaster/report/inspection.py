"""What was read of a network, as a table or as plain data."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loadmaster.core.units import format_bytes, format_count
from loadmaster.workloads.graph import Graph, OpClass, TensorKind


def inspection(graph: Graph) -> RenderableType:
    """Totals, operators by kind, and what was not understood."""
    parts: list[RenderableType] = [_totals(graph), _operators(graph)]
    if graph.unknown_ops:
        names = ", ".join(f"{kind} x{count}" for kind, count in sorted(graph.unknown_ops.items()))
        parts.append(Text(f"Not understood, planned with their bytes and no arithmetic: {names}"))
    if graph.subgraph_ops:
        names = ", ".join(f"{kind} x{count}" for kind, count in sorted(graph.subgraph_ops.items()))
        parts.append(Text(f"Inside control flow, counted and not planned: {names}"))
    parts += [Text(note) for note in graph.notes]
    return Group(*parts)


def inspection_json(graph: Graph) -> dict[str, Any]:
    """The same as numbers: counts, MACs and bytes."""
    return {
        "name": graph.name,
        "source": graph.source,
        "precision": graph.precision,
        "batch": graph.batch,
        "macs": graph.macs,
        "weight_bytes": graph.bytes_of(TensorKind.WEIGHT),
        "input_bytes": graph.bytes_of(TensorKind.INPUT),
        "activation_bytes": graph.bytes_of(TensorKind.ACTIVATION),
        "operators": {kind: {"class": row[0], "count": row[1], "macs": row[2]} for kind, row in _by_kind(graph).items()},
        "not_understood": graph.unknown_ops,
        "inside_control_flow": dict(graph.subgraph_ops),
        "notes": list(graph.notes),
    }


def _by_kind(graph: Graph) -> dict[str, tuple[str, int, int]]:
    """Class, count and MACs of every kind of operator, most MACs first."""
    rows: dict[str, tuple[str, int, int]] = {}
    for op in graph.ops:
        _, count, macs = rows.get(op.kind, ("", 0, 0))
        rows[op.kind] = (str(op.op_class), count + 1, macs + op.macs)
    return dict(sorted(rows.items(), key=lambda item: (-item[1][2], -item[1][1], item[0])))


def _totals(graph: Graph) -> Table:
    table = Table(title=escape(f"{graph.name} ({graph.source})"), show_header=False, title_justify="left")
    table.add_row("operators", str(len(graph.ops)))
    table.add_row("multiply-accumulates", format_count(graph.macs))
    table.add_row("precision, batch", f"{graph.precision}, {graph.batch}")
    for kind in TensorKind:
        table.add_row(f"{kind} bytes", format_bytes(graph.bytes_of(kind)))
    for label, names in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        table.add_row(label, escape("\n".join(f"{name} {_shape(graph, name)}" for name in names[:8])))
    return table


def _shape(graph: Graph, name: str) -> str:
    tensor = graph.tensors[name]
    return f"{tensor.dtype} {'x'.join(map(str, tensor.shape)) or 'scalar'}"


def _operators(graph: Graph) -> Table:
    table = Table("operator", "planned as")
    table.add_column("count", justify="right")
    table.add_column("MACs", justify="right")
    for kind, (op_class, count, macs) in _by_kind(graph).items():
        free = op_class in (OpClass.VIEW, OpClass.SHAPE)
        table.add_row(escape(kind), f"{op_class} (free)" if free else op_class, str(count), format_count(macs) if macs else "")
    return table

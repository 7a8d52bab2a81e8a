"""Builds a :class:`~loadmaster.workloads.graph.Graph` from a parsed ONNX model."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import replace

import onnx

from loadmaster.core.names import unique_names
from loadmaster.workloads.frontends.frontend import LoadOptions, labelled
from loadmaster.workloads.frontends.onnx.operators import division_of, rule_of
from loadmaster.workloads.frontends.onnx.order import (
    captured,
    dependencies,
    execution_order,
    initialiser_names,
    initialisers,
    nested_nodes,
)
from loadmaster.workloads.frontends.onnx.rules import (
    ELEMENT_BITS,
    Division,
    Value,
    describe,
    dtype_name,
)
from loadmaster.workloads.frontends.onnx.shapes import (
    Shapes,
    bind_inputs,
    tensor_type,
    values_given,
)
from loadmaster.workloads.frontends.onnx.walk import VisitedNode, Walk, WalkedNetwork
from loadmaster.workloads.graph import Access, Graph, Op, OpClass, Tensor, assembled, merged
from loadmaster.workloads.window import ALL, Windows

_STANDARD = "ai.onnx"
"""Another name of the domain of standard operators, which has none."""


def walk_network(model: onnx.ModelProto, options: LoadOptions) -> WalkedNetwork:
    """Visit every node of ``model`` in execution order.

    Raises
    ------
    ModelError
        The network cannot be planned; the message names what is at fault, but not the file.
    """
    graph = model.graph
    for item in (*nested_nodes(graph.node), *model.opset_import):
        if item.domain == _STANDARD:
            item.domain = ""
    order = execution_order(graph)
    initialised = set(initialiser_names(graph))
    inputs = [item for item in graph.input if item.name not in initialised]
    values = values_given(inputs, options.dims)
    inputs = [item for item in inputs if item.name not in values]
    dims = {name: size for name, size in options.dims.items() if name not in values}
    sizes, input_shapes = bind_inputs(graph, inputs, options.batch, dims, spent_inputs(graph))
    noted = {
        item.name: item.type
        for item in (*graph.value_info, *graph.output)
        if item.type.WhichOneof("value")
    }
    shapes = Shapes({item.domain: item.version for item in model.opset_import}, sizes, noted)
    names, notes = operator_names(graph)
    outputs = frozenset(item.name for item in graph.output)
    needed = {name for node in graph.node for name in dependencies(node)} | outputs
    walk = Walk(
        shapes=shapes,
        precision=options.precision,
        needed=needed,
        delivered=outputs,
        operators=set(names),
        inputs=tuple(name for name, shape in input_shapes.items() if 0 not in shape),
        outputs=tuple(item.name for item in graph.output),
        notes=notes,
    )
    for item in inputs:
        dtype = dtype_name(tensor_type(item.type).elem_type, item.name)
        walk.add_input(item.name, dtype, input_shapes[item.name])
    for item in values.values():
        walk.add_constant(item.name, item)
    for item, shape in initialisers(graph):
        walk.add_constant(item.name, item, shape)
    for index in order:
        walk.visit(graph.node[index], names[index])
    return walk


def graph_of(network: WalkedNetwork, name: str, source: str) -> Graph:
    """Make the graph of a visited network."""
    tensors = {
        name: Tensor(name, value.shape, value.stored, value.bytes, value.kind, value.alias_of)
        for name, value in network.values.items()
    }
    return assembled(
        name,
        source,
        operators(network.steps, set(network.outputs)),
        tensors,
        network.inputs,
        network.outputs,
        subgraph_ops=dict(sorted(network.subgraph_ops.items())),
        notes=network.notes,
    )


def spent_inputs(graph: onnx.GraphProto) -> frozenset[str]:
    """Find inputs whose elements no operator needs at run time: they give a type or, if constant,
    axes and sizes."""
    used = {item.name for item in graph.output}
    for node in graph.node:
        planning = rule_of(node.domain, node.op_type).planning
        used.update(name for index, name in enumerate(node.input) if index not in planning)
        used |= captured(node)
    return frozenset(item.name for item in graph.input) - used


def operator_names(graph: onnx.GraphProto) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Give each node a unique name, in the file's order; also a note if the file's own names are
    not unique."""
    given = [node.name or f"{node.op_type}_{index}" for index, node in enumerate(graph.node)]
    names = unique_names(given)
    repeated = sum(map(operator.ne, given, names))
    note = "operators share their names with others in the file and got a number appended"
    return names, (f"{repeated} {note}",) if repeated else ()


def operators(steps: list[VisitedNode], outputs: set[str]) -> tuple[Op, ...]:
    """Make the operators for planning; those that compute constants which no other operator reads
    are left out."""
    seen = []
    for step in steps:
        with labelled(describe(step.kind or step.node.kind, step.node.name)):
            found = step.division or division_of(step.node, step.work.op_class)
            sizes = {value.name: value.bytes for _, value, _ in _operands(step, found)}
            seen.append((step, found, merged(_reads(step, found), sizes)))
    used = outputs | {access.tensor for _, _, accesses in seen for access in accesses}
    ops = []
    for step, found, reads in seen:
        node, work = step.node, step.work
        writes = tuple(
            Access(value.name, 0 if work.op_class is OpClass.VIEW else value.bytes)
            for value in node.results
            if value.count and (work.op_class is not OpClass.SHAPE or value.name in used)
        )
        # The width is that of the data operand's storage, or of the result if nothing is read.
        wide = node.optional(work.data) or next(iter(node.results), None)
        made = Op(
            node.name,
            step.kind or node.kind,
            work.op_class,
            reads,
            writes,
            tuple(replace(nest, loops=found.loops) for nest in work.nests),
            work.elements,
            ELEMENT_BITS[wide.stored] if wide else 32,
            axes=found.axes,
            steps=found.steps_of(node),
            copies=found.copies,
        )
        ops.append(made)
    return tuple(ops)


def _reads(step: VisitedNode, found: Division) -> Iterator[Access]:
    """Yield the reads of an operator with the bytes touched; constants that are only needed at
    planning time are skipped."""
    node, work = step.node, step.work
    if work.op_class is OpClass.SHAPE:
        return
    if work.op_class is OpClass.VIEW:
        yield Access(node.operand(0).name, 0)
        return
    planning = rule_of(node.domain, node.kind).planning
    touched, operands = work.touched or {}, (*node.inputs, *step.outer)
    named = {name for nest in work.nests for name in (nest.input, nest.weight)}
    for index, value, own in _operands(step, found):
        # A constant that is an axis, a size or a known number, and no weight.
        known = index in planning or value.count <= int(value.data is not None)
        if value.constant and known and value.name not in named:
            continue
        size, owner = value.bytes, operands[index]
        if owner and index in touched:
            size = -(-size * touched[index] // max(1, owner.bytes))
        if size:
            # An operand that is one number where there may be one for each channel is needed as a
            # whole.
            windows, turned = own if len(own) == len(value.shape) else (), False
            if value.order is not None and windows:
                # Those of a view are of its owner's dimensions; none if the order is not known.
                order = value.order
                windows = tuple(windows[order.index(axis)] for axis in range(len(order)))
                turned = list(order) != sorted(order)
            yield Access(value.name, size, windows, of_storage=turned)


def _operands(step: VisitedNode, found: Division) -> Iterator[tuple[int, Value, Windows]]:
    """Yield (position, value, windows) of all operands; block scales come last, with the position
    and the windows of the elements that they scale."""
    operands = (*step.node.inputs, *step.outer)
    present = [
        (index, value, found.operands.get(index, ()))
        for index, value in enumerate(operands)
        if value is not None
    ]
    yield from present
    for index, value, own in present:
        for scales in value.scales:
            beside = own if len(scales.shape) == len(value.shape) else ()
            sizes = zip(beside, scales.shape, value.shape, strict=False)
            windows = tuple(window if size == extent else ALL for window, size, extent in sizes)
            yield index, scales, windows

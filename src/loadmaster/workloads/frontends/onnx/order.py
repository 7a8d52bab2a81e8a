"""The order in which the nodes of a file can run, and whether every tensor is made exactly once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import describe


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the bodies of a control-flow node."""
    return [
        graph
        for item in node.attribute
        for graph in ((item.g,) if item.HasField("g") else item.graphs)
    ]


def nested_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Iterate over ``nodes`` and all nodes of the bodies inside them."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for graph in subgraphs(node):
            pending.extend(graph.node)


def defined(graph: onnx.GraphProto) -> set[str]:
    """Return the tensors that a body defines itself."""
    made = {name for node in graph.node for name in node.output}
    return made | {item.name for item in graph.input} | set(initialiser_names(graph))


def captured(node: onnx.NodeProto) -> set[str]:
    """Return the tensors of the surrounding graph that the bodies of ``node`` use; protobuf limits
    how deep bodies nest."""
    names: set[str] = set()
    for graph in subgraphs(node):
        used = {name for inner in graph.node for name in (*inner.input, *captured(inner))}
        names |= (used | {output.name for output in graph.output}) - defined(graph)
    return names - {""}


def dependencies(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that must exist before ``node`` runs: its own operands, then what its
    bodies capture, by name."""
    own = [name for name in node.input if name]
    return own + sorted(captured(node) - set(own))


def initialisers(
    graph: onnx.GraphProto,
) -> Iterator[tuple[onnx.TensorProto, Sequence[int] | None]]:
    """Iterate over dense initialisers and what sparse ones hold, with the shape of a sparse one."""
    yield from ((item, None) for item in graph.initializer)
    yield from ((item.values, item.dims) for item in graph.sparse_initializer)


def initialiser_names(graph: onnx.GraphProto) -> list[str]:
    """Return the names of initialisers, repeated if the file repeats them."""
    return [item.name for item, _ in initialisers(graph)]


def execution_order(graph: onnx.GraphProto) -> list[int]:
    """Sort the nodes' indices into an order in which they can run: the file's own if that is
    possible.

    Raises
    ------
    ModelError
        A tensor is made twice or never, or operators wait for each other in a circle.

    Notes
    -----
    O(V + E).
    """
    sources = _definitions(graph)
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    before: dict[int, set[int]] = {}
    for index, node in enumerate(graph.node):
        needed = dependencies(node)
        for name in needed:
            if name not in makers and name not in sources:
                raise ModelError(
                    f"{describe(node.op_type, node.name)} reads tensor {name!r}, which nothing"
                    " produces: export the network again, or add it as an input or initialiser"
                )
        before[index] = {makers[name] for name in needed if name in makers}
    for output in graph.output:
        if output.name not in makers and output.name not in sources:
            raise ModelError(
                f"output {output.name!r} is produced by nothing: export the network again, or"
                " remove that output"
            )
    if all(max(others, default=-1) < index for index, others in before.items()):
        return list(before)
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError as error:
        members = [graph.node[index] for index in error.args[1][1:7]]
        shown = " -> ".join(describe(node.op_type, node.name) for node in members)
        raise ModelError(
            f"operators wait for each other in a circle: {shown}: a network must be acyclic, export"
            " it again"
        ) from None


def _definitions(graph: onnx.GraphProto) -> set[str]:
    """Tensors that exist before any node runs; raises if any tensor of the graph, or of a body in
    it, is made twice."""
    inputs = [(item.name, "an input") for item in graph.input]
    constants = [(name, "an initialiser") for name in initialiser_names(graph)]
    sources = dict(inputs + constants)
    made = [
        (name, describe(each.op_type, each.name)) for each in graph.node for name in each.output
    ]
    # A graph input with an initialiser is how old files spell a default; everything else may be
    # defined once.
    for group in (inputs, constants, [*sources.items(), *made]):
        seen: dict[str, str] = {}
        for name, where in group:
            if name and name in seen:
                raise ModelError(
                    f"tensor {name!r} is defined twice, by {seen[name]} and {where}: export the"
                    " network again, or rename one of the two"
                )
            seen[name] = where
    for node in graph.node:
        for body in subgraphs(node):
            _definitions(body)
    return set(sources)

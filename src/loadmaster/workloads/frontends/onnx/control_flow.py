"""Expands static control flow: an ``If`` with a known condition becomes its branch, a ``Loop`` or
``Scan`` with a known count the repeated body."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from loadmaster.core.arrays import Array
from loadmaster.core.names import free_name
from loadmaster.workloads.frontends.onnx.order import defined, subgraphs
from loadmaster.workloads.frontends.onnx.rules import Value

MOST_OPERATORS = 1000
"""Most operators of an expanded loop; a longer loop is one operator with the work of all runs."""
_FREE_OF_BATCHES = 9
"""First opset in which the operands of ``Scan`` have no batch dimension."""
_AXES_ARE_OPERANDS = 13

Names = dict[str, str]
Results = tuple[list[str], int]
"""Names of the results of a loop, and how many runs each added run stands for."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The operators that a control-flow node runs, in order. Of a loop that is too long to expand:
    the operators of the first of ``runs`` runs. ``data`` is the position of the first operand that
    the body reads."""

    nodes: list[onnx.NodeProto]
    runs: int
    data: int


def expanded(
    proto: onnx.NodeProto,
    name: str,
    values: Mapping[str, Value],
    opset: int,
    needed: Container[str],
) -> Expansion | None:
    """Expand a control-flow node; None if its condition or count is not known.

    ``name`` is the node's name; ``values`` and ``needed`` have the names of tensors in use.
    """
    bodies = {
        attribute.name: attribute.g for attribute in proto.attribute if attribute.HasField("g")
    }
    expansion, runs = _Expander(name, opset, values, needed), 1
    operands = [values.get(operand) for operand in proto.input]
    if proto.op_type == "If":
        condition = _constant_number(operands[0] if operands else None)
        if condition is None or not {"then_branch", "else_branch"} <= bodies.keys():
            return None
        branch = bodies["then_branch" if condition else "else_branch"]
        made = expansion.run(branch, expansion.constants(branch), "")
    elif proto.op_type in ("Loop", "Scan") and "body" in bodies:
        turns = _loop if proto.op_type == "Loop" else _scan
        looped = turns(proto, bodies["body"], operands, expansion)
        if looped is None:
            return None
        made, runs = looped
    else:
        return None
    if any(output in needed for output in proto.output[len(made) :]):
        return None
    for inner, outer in zip(made, proto.output, strict=False):
        if outer:
            expansion.add("Identity", [inner], outer)
    return Expansion(expansion.nodes, runs, 2 if proto.op_type == "Loop" else 0)


def _constant_number(value: Value | None) -> int | None:
    """Return the number that a constant of one element holds; None if unknown."""
    numbers = value.integers() if value is not None else None
    return numbers[0] if numbers and len(numbers) == 1 else None


class _Expander:
    """Adds the operators of unrolled bodies to ``nodes``, under names that are unused in the
    network."""

    def __init__(self, name: str, opset: int, *taken: Container[str]) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.opset = opset
        self._name, self._taken = name, taken
        self._made: set[str] = set()

    def tensor(self, label: str) -> str:
        """Return an unused name of a tensor."""
        name = free_name(f"{self._name}/{label}", self._made, *self._taken)
        self._made.add(name)
        return name

    def add(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        """Add an operator and return the name of its result."""
        label = f"{self._name}/{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=label, **attributes))
        return output

    def constant(self, label: str, value: Array) -> str:
        """Add a constant and return its name."""
        return self.add("Constant", [], self.tensor(label), value=numpy_helper.from_array(value))

    def constants(self, graph: onnx.GraphProto) -> Names:
        """Add the constants of a body, which all its runs share; return their names."""
        shared = [
            helper.make_node("Constant", [], [item.name], value=item) for item in graph.initializer
        ]
        shared += [
            helper.make_node("Constant", [], [item.values.name], sparse_value=item)
            for item in graph.sparse_initializer
        ]
        shared += [node for node in graph.node if _is_constant(node)]
        names = {node.output[0]: self.tensor(node.output[0]) for node in shared}
        for node in shared:
            self._add_copy(node, names, "")
        return names

    def run(self, graph: onnx.GraphProto, names: Names, label: str) -> list[str]:
        """Add one run of a body with its operands in ``names``; return its results."""
        names = dict(names)
        for node in graph.node:
            if _is_constant(node):
                continue
            names |= {made: self.tensor(label + made) for made in node.output if made}
            self._add_copy(node, names, label)
        return [names.get(output.name, output.name) for output in graph.output]

    def _add_copy(self, node: onnx.NodeProto, names: Names, label: str) -> None:
        """Add a copy of a body's operator with new tensor names."""
        copy = _rename(node, names)
        own = node.name or f"{node.op_type}_{len(self.nodes)}"
        copy.name = f"{self._name}/{label}{own}"
        self.nodes.append(copy)

    def stacked(self, parts: Sequence[str], axis: int, label: str) -> str:
        """Stack the results of all runs along a new axis."""
        own: dict[str, Any] = {} if self.opset >= _AXES_ARE_OPERANDS else {"axes": [axis]}
        rows = []
        for part in parts:
            axes = [] if own else [self.constant("axes", np.array([axis]))]
            rows.append(self.add("Unsqueeze", [part, *axes], self.tensor(f"{part}/row"), **own))
        return self.add("Concat", rows, self.tensor(label), axis=axis)


def _is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is a constant, and no operator of another domain."""
    return node.op_type == "Constant" and not node.domain


def _rename(node: onnx.NodeProto, names: Names) -> onnx.NodeProto:
    """Copy a node with renamed tensors, also those that its bodies capture."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[:] = [names.get(item, item) for item in node.input]
    copy.output[:] = [names.get(item, item) for item in node.output]
    for graph in subgraphs(copy):
        own = defined(graph)
        outer = {item: name for item, name in names.items() if item not in own}
        nodes = [_rename(inner, outer) for inner in graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        for output in graph.output:
            output.name = outer.get(output.name, output.name)
    return copy


def _loop(
    proto: onnx.NodeProto,
    body: onnx.GraphProto,
    operands: list[Value | None],
    expansion: _Expander,
) -> Results | None:
    """Add the runs of a Loop with a known count and no condition that ends it early. Return its
    results, and how many runs each added run stands for; None if it cannot be expanded."""
    if len(operands) < 2 or len(body.input) != len(operands) or not body.output:
        return None
    count, condition = map(_constant_number, operands[:2])
    if condition == 0:
        count = 0
    if count is None or (proto.input[1] and condition is None) or not (count < 1 or _goes_on(body)):
        return None
    goes_on = expansion.constant("goes on", np.array(True))

    def inputs_of(turn: int, carried: list[str]) -> list[str]:
        """Return the operands of a run: its number, the condition, and the states."""
        return [expansion.constant(f"{turn}/number", np.array(turn)), goes_on, *carried]

    return _turns(proto, body, count, list(proto.input[2:]), inputs_of, expansion)


def _turns(
    proto: onnx.NodeProto,
    body: onnx.GraphProto,
    count: int,
    carried: list[str],
    inputs_of: Callable[[int, list[str]], list[str]],
    expansion: _Expander,
) -> Results | None:
    """Add ``count`` runs of a body, or the first alone if they are too many. Return the states
    after the last run and the stacked other results (of no run: the states alone), and how many
    runs each added run stands for; None if a run has fewer results than there are states.

    ``inputs_of`` returns the operands of a run from its number and the states after the run before.
    A Loop's condition is ignored; other results than states are stacked.
    """
    skipped, states = int(proto.op_type == "Loop"), len(carried)
    results = len(body.output) - skipped - states
    if results < 0:
        return None
    if count < 1:
        return carried, 1
    # A Loop stacks along the first axis, in the order of the runs.
    stated = {each.name: each.ints for each in proto.attribute}
    ends = stated.get("scan_output_axes") or [0] * results
    backwards = stated.get("scan_output_directions") or [0] * results
    turns = count if count * max(1, len(body.node)) <= MOST_OPERATORS else 1
    shared = expansion.constants(body)
    formal, rows = [item.name for item in body.input], []
    for turn in range(turns):
        names = shared | dict(zip(formal, inputs_of(turn, carried), strict=True))
        made = expansion.run(body, names, f"{turn}/")[skipped:]
        carried = made[:states]
        rows.append(made[states:])
    stacked = [
        expansion.stacked(made[:: -1 if backwards[index] else 1], ends[index], f"rows {index}")
        for index, made in enumerate(zip(*rows, strict=True))
    ]
    return carried + stacked, count // turns


def _goes_on(body: onnx.GraphProto) -> bool:
    """Whether a body never ends the loop: it returns its condition unchanged, or true."""
    known = {item.name: item for item in body.initializer}
    copied = {}
    for node in body.node:
        if node.op_type == "Identity":
            copied[node.output[0]] = node.input[0]
        if node.op_type == "Constant":
            known |= ((node.output[0], item.t) for item in node.attribute if item.name == "value")
    at = body.output[0].name
    for _ in copied:
        at = copied.get(at, at)
    return at == body.input[1].name or (
        at in known and bool(numpy_helper.to_array(known[at]).all())
    )


def _scan(
    proto: onnx.NodeProto,
    body: onnx.GraphProto,
    operands: list[Value | None],
    expansion: _Expander,
) -> Results | None:
    """Add the runs of a Scan, one for each element along the scanned axes. Returns as :func:`_loop`
    does."""
    attributes = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in proto.attribute
    }
    scanned = attributes.get("num_scan_inputs", 0)
    carried = list(proto.input[: len(operands) - scanned])
    sources = operands[len(carried) :]
    axes = attributes.get("scan_input_axes") or [0] * scanned
    backwards = attributes.get("scan_input_directions") or [0] * scanned
    if (
        expansion.opset < _FREE_OF_BATCHES
        or not 1 <= scanned <= len(operands)
        or None in sources
        or len(body.input) != len(operands)
        or not len(axes) == len(backwards) == scanned
    ):
        return None
    counts = {
        value.shape[axis]
        for value, axis in zip(sources, axes, strict=True)
        if value is not None and -len(value.shape) <= axis < len(value.shape)
    }
    count = counts.pop() if len(counts) == 1 else 0
    if count < 1:
        return None

    def inputs_of(turn: int, carried: list[str]) -> list[str]:
        """Return the names of the operands of a run: the states, then its slice of each scanned
        input."""
        parts = []
        for index, axis in enumerate(axes):
            at = count - 1 - turn if backwards[index] else turn
            number = expansion.constant(f"{turn}/number {index}", np.array(at))
            source = proto.input[len(carried) + index]
            part = expansion.tensor(f"{turn}/part {index}")
            parts.append(expansion.add("Gather", [source, number], part, axis=axis))
        return [*carried, *parts]

    return _turns(proto, body, count, carried, inputs_of, expansion)

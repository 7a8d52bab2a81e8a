"""Builds a :class:`~loadmaster.workloads.graph.Graph` from what a ``.tflite`` file holds.

The first subgraph is the network. Others are the bodies of its control flow: their operators are
counted, and their weights are read by the operator that runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.core.arrays import Array
from loadmaster.core.errors import ModelError, error_text
from loadmaster.core.names import free_name, unique_names
from loadmaster.workloads.frontends.frontend import LoadOptions, labelled
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of
from loadmaster.workloads.frontends.onnx.operators import division_of, is_view, work_of
from loadmaster.workloads.frontends.onnx.rules import (
    ELEMENT_BITS,
    Value,
    Work,
    describe,
    kinds_in,
    require_precision,
    stored_as,
)
from loadmaster.workloads.frontends.onnx.walk import VisitedNode, WalkedNetwork
from loadmaster.workloads.frontends.tflite.model import (
    OperatorEntry,
    SubgraphEntry,
    TensorEntry,
    TfliteModel,
    parse_model,
    read_file,
)
from loadmaster.workloads.frontends.tflite.operators import (
    BY_ELEMENT,
    POOLS,
    OperatorCall,
    in_file_order,
    meaning_of,
    recurrent_work,
)
from loadmaster.workloads.graph import Graph, OpClass, TensorKind
from loadmaster.workloads.window import Shape

_LIKE_FIRST = kinds_in(
    """
    SOFTMAX LOG_SOFTMAX L2_NORMALIZATION LOCAL_RESPONSE_NORMALIZATION CUMSUM REVERSE_SEQUENCE
    REVERSE_V2 DYNAMIC_UPDATE_SLICE ZEROS_LIKE
    """
)
_NEVER_SCALAR = kinds_in(
    """
    CONV_2D DEPTHWISE_CONV_2D AVERAGE_POOL_2D MAX_POOL_2D L2_POOL_2D
    CONV_3D TRANSPOSE_CONV CONV_3D_TRANSPOSE FULLY_CONNECTED BATCH_MATMUL CONCATENATION PACK PAD
    PADV2 MIRROR_PAD RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR TRANSPOSE TILE SPACE_TO_DEPTH
    DEPTH_TO_SPACE SPACE_TO_BATCH_ND BATCH_TO_SPACE_ND EXPAND_DIMS TOPK_V2 ONE_HOT RANGE SHAPE SLICE
    SPLIT SPLIT_V SELECT EMBEDDING_LOOKUP LSTM RNN SVDF UNIDIRECTIONAL_SEQUENCE_LSTM
    UNIDIRECTIONAL_SEQUENCE_RNN BIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_RNN
    """
)
"""Operators without a scalar among their results."""
_OF_IMAGES = ("CONV_2D", "DEPTHWISE_CONV_2D", *POOLS)


def completed(call: OperatorCall) -> OperatorCall:
    """Return a call whose results have shapes. Raise `ModelError` for a tensor whose shape cannot
    be derived."""
    if call.kind in _OF_IMAGES:
        _require_shape(call.operand(0))
    if not call.outputs or call.result.shape:
        return call
    shape: Shape = ()
    if call.kind in BY_ELEMENT:
        shape = np.broadcast_shapes(*(value.shape for value in call.inputs if value))
    elif call.kind in _LIKE_FIRST:
        shape = call.operand(0).shape
    elif call.kind in _OF_IMAGES:
        shape = _window_shape(call)
    result = replace(call.result, shape=shape)
    if call.kind in _NEVER_SCALAR:
        _require_shape(result)
    return replace(call, outputs=(result, *call.outputs[1:]))


def _require_shape(value: Value) -> None:
    """Raise ModelError for a tensor without a shape."""
    if not value.shape:
        raise ModelError(
            f"the shape of tensor {value.name!r} is not in the file: convert the model with fixed"
            " shapes"
        )


def _window_shape(call: OperatorCall) -> Shape:
    """Return the shape of a convolution's or pool's result, from the ONNX operator that it is
    like."""
    batch, rows, columns, channels = call.operand(0).shape
    node = meaning_of(replace(call, outputs=(call.operand(0),)))
    assert node is not None
    taps = node.attrs.get("kernel_shape")
    if taps is None:
        channels, _, *taps = node.shape(1)
    valid = node.attrs["auto_pad"] == "VALID"
    numbers = (node.attrs.get("dilations", (1, 1)), node.attrs["strides"])
    positions = [
        -(-(size - valid * (tap - 1) * dilation) // stride)
        for size, tap, dilation, stride in zip((rows, columns), taps, *numbers, strict=True)
    ]
    return (batch, *positions, channels)


_STORED_AS = {"resource": "uint32", "variant": "uint64"}
"""What a handle is stored as."""
_LARGEST_PARAMETER = 4096
"""Elements up to which constant integers are read, for axes and sizes."""
_WHOLE = frozenset({"int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"})
_SHAPE_KINDS = kinds_in("SHAPE RANK VAR_HANDLE")


class _TfliteWalk(WalkedNetwork):
    """State of one pass over the network; every value that an operator reads is in ``values``
    before it is visited."""

    def __init__(self, model: TfliteModel, precision: str | None) -> None:
        super().__init__()
        self._model, self._precision = model, precision
        self._weights: dict[int, tuple[Value, ...]] = {}
        self._contents: dict[object, Value] = {}
        self._names_of: dict[str, tuple[str, str]] = {}
        self._main = main = _with_branches(model)
        self._written = {index for operator in main.operators for index in operator.outputs}
        self.names = unique_names(
            tensor.name or f"tensor_{index}" for index, tensor in enumerate(main.tensors)
        )
        named = list(zip(self.names, main.tensors, strict=True))
        self._variables = {name for name, tensor in named if tensor.is_variable}
        for name, tensor in named:
            if tensor.constant or tensor.is_variable:
                self.add(self._value(name, tensor, TensorKind.WEIGHT))
        for index in main.inputs:
            if self.names[index] not in self.values:
                self.add(self._value(self.names[index], main.tensors[index], TensorKind.INPUT))

    def visit(self) -> None:
        """Visit every operator of the first subgraph."""
        main = self._main
        for index, operator in enumerate(main.operators):
            self._visit(operator, f"{operator.kind}_{index}")
        self.inputs = tuple(dict.fromkeys(self.names[index] for index in main.inputs))
        self.outputs = tuple(dict.fromkeys(self.names[index] for index in main.outputs))
        for output in self.outputs:
            if output not in self.values:
                raise ModelError(
                    f"tensor {output!r} is an output of the network, but nothing writes it:"
                    " convert the model again"
                )

    def _visit(self, operator: OperatorEntry, name: str) -> None:
        """Find an operator's work and register its results. Errors name the operator."""
        with labelled(describe(operator.kind, name)):
            inputs = tuple(self._operand(index) for index in operator.inputs)
            outputs = tuple(
                self._value(self.names[index], self._main.tensors[index], TensorKind.ACTIVATION)
                for index in operator.outputs
            )
            for made in outputs:
                if made.name in self.values:
                    raise ModelError(
                        f"it writes tensor {made.name!r}, which is there: convert the model again"
                    )
            try:
                call = completed(
                    OperatorCall(
                        name,
                        operator.kind,
                        "tflite",
                        {},
                        inputs,
                        outputs,
                        options=operator.options,
                    )
                )
                step = self._step(operator, call)
            except (ArithmeticError, LookupError, ValueError) as error:
                shapes = [value.shape for value in (*inputs, *outputs) if value]
                raise ModelError(
                    f"its tensors of shapes {shapes} and its options do not fit together"
                    f" ({error_text(error)}): the file is damaged, convert the model again, or"
                    " report it with the file"
                ) from error
            for value in step.node.outputs:
                if value is not None:
                    self.add(value)
        self.steps.append(step)

    def _value(self, name: str, tensor: TensorEntry, kind: TensorKind) -> Value:
        """Return a tensor of the file as a value, with its data if it is an integer constant. Raise
        ModelError for unknown element types."""
        dtype = _STORED_AS.get(tensor.dtype, tensor.dtype)
        if dtype not in ELEMENT_BITS:
            raise ModelError(
                f"tensor {name!r} has elements of type {dtype}, of which nothing is known: convert"
                " it with another"
            )
        data = self._integers(tensor) if kind is TensorKind.WEIGHT else None
        return Value(name, tensor.shape, dtype, stored_as(dtype, self._precision), kind, data)

    def _integers(self, tensor: TensorEntry) -> Array | None:
        """Return the elements of a small constant of integers; None for other tensors."""
        (at, length), data = tensor.content, self._model.root.file.data
        if (
            tensor.dtype not in _WHOLE
            or tensor.count > _LARGEST_PARAMETER
            or length != tensor.count * np.dtype(tensor.dtype).itemsize
            or at + length > len(data)
        ):
            return None
        kind = np.dtype(tensor.dtype).newbyteorder("<")
        return np.frombuffer(data, kind, tensor.count, at).reshape(tensor.shape)

    def _operand(self, index: int) -> Value | None:
        """Return the tensor that an operator reads, None for index -1. A tensor without a writer
        becomes a constant; one that a later operator writes raises ModelError."""
        if index < 0:
            return None
        name = self.names[index]
        if name not in self.values:
            if index in self._written:
                raise ModelError(
                    f"it reads tensor {name!r} before another writes it: the file is damaged,"
                    " convert the model again"
                )
            self.add(self._value(name, self._main.tensors[index], TensorKind.WEIGHT))
            self.notes += (
                f"tensor {name!r} is read and nothing writes it: it is planned as a constant",
            )
        return self.values[name]

    def _step(self, operator: OperatorEntry, call: OperatorCall) -> VisitedNode:
        """Return what an operator does: by its bodies, as a recurrent operator, by the ONNX
        operator that it is like, or as unknown work."""
        if operator.bodies:
            found: list[Value] = []
            for body in bodies_within(self._model, operator.bodies):
                inner = self._model.subgraphs[body].operators
                self.subgraph_ops.update(each.kind for each in inner)
                found += self._weights_of(body)
            # What is run once is run before the first inference that is planned.
            once = operator.kind == "CALL_ONCE"
            work = Work(OpClass.SHAPE if once else OpClass.CONTROL_FLOW)
            return VisitedNode(call, work, () if once else tuple(found))
        if (recurrent := recurrent_work(call)) is not None:
            # Its states are updated in place.
            inputs = (value for value in call.inputs if value and value.name in self._variables)
            return VisitedNode(replace(call, outputs=(*call.outputs, *inputs)), recurrent)
        if call.kind == "VAR_HANDLE" and call.options:
            self._names_of[call.result.name] = (call.options.text(0), call.options.text(1))
        elif call.kind == "READ_VARIABLE":
            call = replace(call, inputs=(self._content(call.operand(0), call.result),))
        elif call.kind == "ASSIGN_VARIABLE":
            handle, given = call.operand(0), call.operand(1)
            call = replace(call, inputs=(given,), outputs=(self._content(handle, given),))
        meaning = meaning_of(call) if call.outputs else None
        if meaning is not None:
            return _translated_step(call, meaning, known=self._is_known(call))
        return VisitedNode(call, Work(OpClass.UNKNOWN))

    def _is_known(self, call: OperatorCall) -> bool:
        """Whether the results are few integers that follow from constants, as sizes do."""
        return call.kind in _SHAPE_KINDS or (
            call.result.dtype in _WHOLE
            and call.result.count <= _LARGEST_PARAMETER
            and all(v.constant and v.name not in self._variables for v in call.inputs if v)
        )

    def _content(self, handle: Value, like: Value) -> Value:
        """Return the tensor that a resource variable holds: it is there from the start, and each
        assignment updates it in place."""
        key = self._names_of.get(handle.name, handle.name)
        if key not in self._contents:
            name = free_name(f"{handle.name}/content", self.values, self.names)
            found = Value(name, like.shape, like.dtype, like.stored, TensorKind.WEIGHT)
            self._contents[key] = self.add(found)
            self._variables.add(name)
        return self._contents[key]

    def _weights_of(self, body: int) -> tuple[Value, ...]:
        """Return the constants of a subgraph, which all operators that run it share, added to the
        network under unused names on the first call."""
        if body not in self._weights:
            made = []
            for index, tensor in enumerate(self._model.subgraphs[body].tensors):
                if tensor.constant:
                    name = free_name(
                        f"subgraph_{body}/{tensor.name or f'tensor_{index}'}",
                        self.values,
                        self.names,
                    )
                    made.append(self.add(self._value(name, tensor, TensorKind.WEIGHT)))
            self._weights[body] = tuple(made)
        return self._weights[body]


_MOST_OPERATORS = 2**16
"""Most operators of a network with its branches."""


def _with_branches(model: TfliteModel) -> SubgraphEntry:
    """Return the first subgraph, in which the branch that an ``IF`` with a constant condition runs
    stands for it: so band rewriting leaves a network. Branches that run others stay as they are."""
    main = model.subgraphs[0]
    tensors, operators = list(main.tensors), list[OperatorEntry]()
    stored = {_content(tensor): at for at, tensor in enumerate(tensors) if tensor.constant}
    for operator in main.operators:
        body = _branch(model, operator)
        if body is None or len(operators) + len(body.operators) > _MOST_OPERATORS:
            operators.append(operator)
            continue
        place = {-1: -1, **dict(zip(body.inputs, operator.inputs[1:], strict=True))}
        place |= zip(body.outputs, operator.outputs, strict=True)
        for index, tensor in enumerate(body.tensors):
            if index not in place:
                new = len(tensors)
                place[index] = stored.setdefault(_content(tensor), new) if tensor.constant else new
                tensors += [tensor] * (place[index] == new)
        for inner in body.operators:
            inputs, outputs, others = (
                tuple(place[index] for index in own)
                for own in (inner.inputs, inner.outputs, inner.intermediates)
            )
            operators.append(replace(inner, inputs=inputs, outputs=outputs, intermediates=others))
    return replace(main, tensors=tuple(tensors), operators=tuple(operators))


def _content(tensor: TensorEntry) -> tuple[Any, ...]:
    """Return a key, equal for constants that are one in the file."""
    return tensor.content, tensor.shape, tensor.dtype


def _branch(model: TfliteModel, operator: OperatorEntry) -> SubgraphEntry | None:
    """Return the subgraph that an ``IF`` always runs, if it makes all its results of operators that
    run no others; else None."""
    if operator.kind != "IF" or not operator.inputs or operator.inputs[0] < 0:
        return None
    condition, data = model.subgraphs[0].tensors[operator.inputs[0]], model.root.file.data
    at, length = condition.content
    if not condition.constant or condition.dtype != "bool" or length != 1 or at >= len(data):
        return None
    body = model.subgraphs[operator.bodies[0 if data[at] else 1]]
    made = {index for inner in body.operators for index in inner.outputs}
    ends = [*body.inputs, *body.outputs]
    if (
        len(body.inputs) != len(operator.inputs) - 1
        or len(body.outputs) != len(operator.outputs)
        or len({*ends}) < len(ends)
        or not made >= {*body.outputs}
        or any(tensor.is_variable for tensor in body.tensors)
        or any(inner.bodies for inner in body.operators)
    ):
        return None
    return body


def bodies_within(model: TfliteModel, first: Sequence[int]) -> tuple[int, ...]:
    """Return the subgraphs that operators run, directly or through others, each once."""
    found: dict[int, None] = {}
    waiting = list(reversed(first))
    while waiting:
        body = waiting.pop()
        if body not in found:
            found[body] = None
            waiting += [
                inner for operator in model.subgraphs[body].operators for inner in operator.bodies
            ]
    return tuple(found)


def _translated_step(call: OperatorCall, node: OperatorCall, known: bool) -> VisitedNode:
    """Return the step of an operator from ``node``, the ONNX operator that it is like: its work,
    its division in the file's order of dimensions, and its result as a view or, where it is
    ``known`` before the first inference, as a constant."""
    free = OpClass.SHAPE if known else OpClass.VIEW if is_view(node) else None
    work = Work(free) if free else work_of(node)
    division = in_file_order(division_of(node, work.op_class), node)
    result = call.result
    if work.op_class is OpClass.SHAPE:
        result = replace(result, kind=TensorKind.WEIGHT)
    if work.op_class is OpClass.VIEW:
        source = node.operand(0)
        result = replace(result, stored=source.stored, kind=source.kind, alias_of=source.storage)
    given = {value.name: value for value in call.inputs if value}
    inputs = tuple(given.get(node.label(index)) for index in range(len(node.inputs)))
    left_out = tuple(
        value for value in given.values() if value not in inputs and not value.constant
    )
    outputs = (result, *call.outputs[1:])
    return VisitedNode(
        replace(node, inputs=inputs, outputs=outputs), work, left_out, call.kind, division
    )


def load_tflite(source: str, options: LoadOptions) -> Graph:
    """Read a network from a ``.tflite`` file; errors as in
    :func:`loadmaster.workloads.frontends.load.load`."""
    with labelled(source):
        require_precision(options.precision)
        walk = _TfliteWalk(parse_model(read_file(source)), options.precision)
        walk.visit()
        graph = graph_of(walk, options.name or Path(source).stem or "network", source)
        if options.batch not in (None, graph.batch):
            raise ModelError(
                f"is for a batch of {graph.batch}, and its shapes are fixed: convert the model for"
                f" a batch of {options.batch}"
            )
        return graph

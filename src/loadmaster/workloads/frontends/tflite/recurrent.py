"""Work of recurrent operators: the input products of all steps at once, the recurrent products step
after step.

Operands are those of TensorFlow Lite's kernels: a matrix for every gate, absent ones left out.
"""

from __future__ import annotations

import math
from dataclasses import replace

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.types import Work, product
from loadmaster.workloads.frontends.operation_counts import GATE_STEPS
from loadmaster.workloads.frontends.tflite.call import Call
from loadmaster.workloads.graph import LoopNest

_BASIC_CELL = 5
"""Operands of the older kernel of LSTM, which has one matrix for all gates and for input and state
together."""


def recurrent_work(call: Call) -> Work | None:
    """The work of a recurrent operator; None if it is no such one."""
    if call.kind == "SVDF":
        return _singular_value(call)
    if call.kind not in _CELLS:
        return None
    if call.kind == "LSTM" and len(call.inputs) == _BASIC_CELL:
        return _cell(call, (), (2,), False)
    whole, stepwise, field = _CELLS[call.kind]
    return _cell(call, whole, stepwise, field is not None and bool(call.option(field, code="b")))


def _cell(call: Call, whole: tuple[int, ...], stepwise: tuple[int, ...], time_major: bool) -> Work:
    """Products of the input with the matrices ``whole``, of the state with those of ``stepwise``;
    operands by position."""
    steps, batch = _steps_and_batch(call, time_major)
    nests, elements = [], 0
    for index in (*whole, *stepwise):
        if (weight := call.optional(index)) is None:
            continue
        rows, width = _matrix(call, index)
        nest = LoopNest(k=rows, c=width, y=batch, weight=weight.name)
        if index in whole:
            nests.append(replace(nest, y=steps * batch, input=call.operand(0).name))
            elements += GATE_STEPS * rows * steps * batch
        else:
            nests.append(replace(nest, repeats=steps, output=call.result.name))
    return product(*nests, elements=elements)


def _steps_and_batch(call: Call, time_major: bool) -> tuple[int, int]:
    """Steps and sequences of the first operand; of two dimensions it is one step."""
    shape = call.operand(0).shape
    if len(shape) < 3:
        return 1, math.prod(shape[:-1])
    return (shape[0], shape[1]) if time_major else (shape[1], shape[0])


def _matrix(call: Call, index: int) -> tuple[int, int]:
    shape = call.operand(index).shape
    if len(shape) != 2:
        raise ModelError(
            f"operand {index} is no matrix, its shape is {list(shape)}: the file is damaged,"
            " convert the model again"
        )
    return shape[0], shape[1]


def _singular_value(call: Call) -> Work:
    """A product with the features, then a filter over time for each of them (Nakkiran and others,
    Interspeech 2015)."""
    features, width = _matrix(call, 1)
    memory = _matrix(call, 2)[1]
    batch = call.operand(0).count // max(1, width)
    first = LoopNest(
        k=features, c=width, y=batch, input=call.operand(0).name, weight=call.operand(1).name
    )
    second = LoopNest(
        k=1,
        c=memory,
        y=batch,
        groups=features,
        weight=call.operand(2).name,
        output=call.result.name,
    )
    return product(first, second)


_GATES = (1, 2, 3, 4), (5, 6, 7, 8, 16)
_CELLS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int | None]] = {
    "LSTM": (*_GATES, None),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": (*_GATES, 3),
    "BIDIRECTIONAL_SEQUENCE_LSTM": (
        (1, 2, 3, 4, 18, 19, 20, 21),
        (5, 6, 7, 8, 16, 22, 23, 24, 25, 33),
        4,
    ),
    "RNN": ((1,), (2,), None),
    "UNIDIRECTIONAL_SEQUENCE_RNN": ((1,), (2,), 0),
    "BIDIRECTIONAL_SEQUENCE_RNN": ((1, 5), (2, 6), 0),
}
"""The matrices of the input and those of the state by position, and the option that says whether
steps come first."""

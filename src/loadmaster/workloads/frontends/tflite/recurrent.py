"""Work of recurrent operators: the input products of all steps at once, the recurrent products step
after step.

Operands are those of TensorFlow Lite's kernels: a matrix for every gate, absent ones left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable

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
    rule = _RULES.get(call.kind)
    return rule(call) if rule else None


def _cell(call: Call, whole: tuple[int, ...], stepwise: tuple[int, ...], time_major: bool) -> Work:
    """Products of the input with the matrices ``whole``, of the state with those of ``stepwise``;
    operands by position."""
    steps, batch = _steps_and_batch(call, time_major)
    nests, elements = [], 0
    for index in whole:
        if (weight := call.optional(index)) is not None:
            rows, width = _matrix(call, index)
            nests.append(
                LoopNest(
                    k=rows, c=width, y=steps * batch, input=call.operand(0).name, weight=weight.name
                )
            )
            elements += GATE_STEPS * rows * steps * batch
    for index in stepwise:
        if (weight := call.optional(index)) is not None:
            rows, width = _matrix(call, index)
            nests.append(
                LoopNest(
                    k=rows,
                    c=width,
                    y=batch,
                    repeats=steps,
                    weight=weight.name,
                    output=call.result.name,
                )
            )
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


def _long_short_term(call: Call) -> Work:
    if len(call.inputs) == _BASIC_CELL:
        return _cell(call, (), (2,), False)
    return _cell(call, (1, 2, 3, 4), (5, 6, 7, 8, 16), False)


def _sequence(call: Call) -> Work:
    return _cell(call, (1, 2, 3, 4), (5, 6, 7, 8, 16), bool(call.option(3, code="b")))


def _both_ways(call: Call) -> Work:
    whole, stepwise = (1, 2, 3, 4, 18, 19, 20, 21), (5, 6, 7, 8, 16, 22, 23, 24, 25, 33)
    return _cell(call, whole, stepwise, bool(call.option(4, code="b")))


def _simple(call: Call) -> Work:
    return _cell(call, (1,), (2,), False)


def _simple_sequence(call: Call) -> Work:
    return _cell(call, (1,), (2,), bool(call.option(0, code="b")))


def _simple_both_ways(call: Call) -> Work:
    return _cell(call, (1, 5), (2, 6), bool(call.option(0, code="b")))


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


_RULES: dict[str, Callable[[Call], Work]] = {
    "LSTM": _long_short_term,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _sequence,
    "BIDIRECTIONAL_SEQUENCE_LSTM": _both_ways,
    "RNN": _simple,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _simple_sequence,
    "BIDIRECTIONAL_SEQUENCE_RNN": _simple_both_ways,
    "SVDF": _singular_value,
}

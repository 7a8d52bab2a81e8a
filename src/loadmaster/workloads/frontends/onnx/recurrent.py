"""Recurrent cells: the input product of all steps at once, the recurrent product step after
step."""

from __future__ import annotations

import math
from dataclasses import replace

from loadmaster.workloads.frontends.onnx.rules import MICROSOFT, Result, rule
from loadmaster.workloads.frontends.onnx.types import Node, Work, product
from loadmaster.workloads.frontends.operation_counts import GATE_STEPS, fourier_steps
from loadmaster.workloads.graph import LoopNest, OpClass

AXIS_IS_OPERAND = 20
"""The opset from which on a transform's axis is an operand, with another default."""


def _transform(node: Node) -> Work:
    """Along one dimension; complex numbers are a last dimension of 2, in the operand or, of a
    one-sided inverse, in neither."""
    source, result = node.shape(0), node.result.shape
    given = node.integers("axis") if node.opset < AXIS_IS_OPERAND else node.integers("axis", 2)
    axis = (given or [1 if node.opset < AXIS_IS_OPERAND else -2])[0] % len(source)
    lengths = node.operand(1).integers() if node.optional(1) else None
    length = lengths[0] if lengths else max(source[axis], result[axis])
    transforms = math.prod(size for index, size in enumerate(source[:-1]) if index != axis)
    return Work(
        OpClass.REDUCTION,
        elements=transforms * fourier_steps(length, real=1 in (source[-1], result[-1])),
    )


def _short_time_transform(node: Node) -> Work:
    """A transform of each frame, after its product with the window."""
    batch, frames, bins = node.result.shape[:3]
    real = node.shape(0)[-1] == 1 or len(node.shape(0)) == 2
    window, lengths = node.optional(2), node.operand(3).integers() if node.optional(3) else None
    length = window.shape[0] if window else lengths[0] if lengths else bins
    product = 0 if window is None else length * (1 if real else 2)
    return Work(
        OpClass.REDUCTION, elements=batch * frames * (fourier_steps(length, real) + product)
    )


def _recurrent(node: Node) -> Work:
    """Weights are (directions, gates * hidden, width); ``layout`` 1 puts the batch before the
    steps."""
    first, second, _ = node.shape(0)
    steps, batch = (second, first) if node.attrs.get("layout") else (first, second)
    return cell(node, steps, batch, hidden=node.shape(2)[2], gates=node.shape(1)[1])


def cell(node: Node, steps: int, batch: int, hidden: int, gates: int, elements: int = 0) -> Work:
    """Make the work of a recurrent cell with ``gates`` rows of weights; ``elements`` are scalar
    operations besides those of the gates."""
    directions, width = node.shape(1)[0], node.shape(0)[2]
    whole = LoopNest(
        k=gates,
        c=width,
        y=steps * batch,
        groups=directions,
        input=node.label(0),
        weight=node.label(1),
    )
    stepwise = LoopNest(
        k=gates,
        c=hidden,
        y=batch,
        groups=directions,
        repeats=steps,
        weight=node.label(2),
        output=node.result.name,
    )
    return product(
        whole, stepwise, elements=elements + GATE_STEPS * directions * gates * steps * batch
    )


def _dynamic_cell(node: Node) -> Work:
    """The input is quantised at run time, and so is the state at every step."""
    directions, hidden, gates = node.shape(2)
    steps, batch, _ = node.shape(0)
    quantised = node.operand(0).count + directions * hidden * steps * batch
    return replace(cell(node, steps, batch, hidden, gates, quantised), data=1)


def _dynamic_shapes(node: Node) -> list[Result]:
    """Weights are (directions, width, gates * hidden): the other way round than in the standard
    operator."""
    steps, batch, _ = node.shape(0)
    directions, hidden, _ = node.shape(2)
    dtype, state = node.operand(0).dtype, (directions, batch, hidden)
    return [(dtype, (steps, *state)), (dtype, state), (dtype, state)]


rule("DFT", _transform, planning=(1, 2))
rule("STFT", _short_time_transform, planning=(1, 3))
rule("LSTM GRU RNN", _recurrent)
rule("DynamicQuantizeLSTM", _dynamic_cell, shapes=_dynamic_shapes, domain=MICROSOFT)

"""Recurrent cells: the input product of all steps at once, the recurrent product step after step."""

from __future__ import annotations

from loadmaster.workloads.frontends.onnx.products import product
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Work
from loadmaster.workloads.graph import LoopNest

GATE_STEPS = 2
"""Scalar operations per gate and step: its activation and its part in the new state."""


@rule("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> Work:
    """Weights are (directions, gates * hidden, width); ``layout`` 1 puts the batch before the steps."""
    first, second, width = node.shape(0)
    steps, batch = (second, first) if node.attrs.get("layout") else (first, second)
    directions, gates, _ = node.shape(1)
    hidden = node.shape(2)[2]
    whole = LoopNest(k=gates, c=width, y=steps * batch, groups=directions, input=node.label(0), weight=node.label(1))
    stepwise = LoopNest(k=gates, c=hidden, y=batch, groups=directions, repeats=steps, weight=node.label(2), output=node.result.name)
    return product(whole, stepwise, elements=GATE_STEPS * directions * gates * steps * batch)

"""Recurrent cells: the input product of all steps at once, the recurrent product step after
step."""

from __future__ import annotations

from loadmaster.workloads.frontends.onnx.products import product
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Work
from loadmaster.workloads.frontends.operation_counts import GATE_STEPS
from loadmaster.workloads.graph import LoopNest


@rule("LSTM", "GRU", "RNN")
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

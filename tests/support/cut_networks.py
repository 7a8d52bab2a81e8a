"""Small convolutional networks as an ONNX file would hold them: with windows, so that they can be
cut."""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tests.support.efforts import TEST
from tests.support.networks import npu

import loadmaster as lm
from loadmaster.planning.plan import Plan
from loadmaster.workloads.frontends.onnx.graph_builder import build_graph
from loadmaster.workloads.graph import Graph


def convolutions(
    name: str = "cut",
    *,
    rows: int = 12,
    channels: int = 8,
    strides: tuple[int, ...] = (1, 2),
    skip: bool = True,
    pad: int = 1,
) -> Graph:
    """A chain of 3 x 3 convolutions of the given strides with rectifiers; ``skip`` adds the last
    result to that of one more."""
    nodes, weights = [], []

    def conv(source: str, target: str, stride: int) -> None:
        weights.append(
            numpy_helper.from_array(np.zeros((channels, channels, 3, 3), np.float32), f"w_{target}")
        )
        nodes.append(
            helper.make_node(
                "Conv",
                [source, f"w_{target}"],
                [f"c_{target}"],
                target,
                strides=[stride] * 2,
                pads=[pad] * 4,
            )
        )
        nodes.append(helper.make_node("Relu", [f"c_{target}"], [target], f"relu_{target}"))

    last = "x"
    for number, stride in enumerate(strides):
        conv(last, f"t{number}", stride)
        last = f"t{number}"
    if skip:
        conv(last, "again", 1)
        nodes.append(helper.make_node("Add", [last, "again"], ["sum"], "add"))
        last = "sum"
    shape = (1, channels, rows, rows)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(
        nodes, name, inputs, [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)], weights
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    return build_graph(
        model, name=name, source="made for a test", batch=None, dims={}, precision="int8"
    )


def cut_network() -> Graph:
    """The network of :func:`cut_plan`."""
    return convolutions(rows=16, channels=32, strides=(1, 1, 2))


@cache
def cut_plan(mini_batches: int = 1) -> Plan:
    """A plan on two cores in which operators run in pieces."""
    machine = npu(2, 40_000)
    machine = machine.with_memory(0, read_bandwidth=2e10, write_bandwidth=2e10)
    plan = lm.plan([cut_network()], machine, mini_batches=mini_batches, effort=TEST)
    assert any(job.ranges for job in plan.jobs), "else tests of pieces prove nothing"
    return plan

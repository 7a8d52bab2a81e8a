"""Networks as ONNX graphs of shapes alone, whose weights have no values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from loadmaster.workloads.frontends.frontend import LoadOptions
from loadmaster.workloads.frontends.onnx.graph_builder import graph_of, walk_network
from loadmaster.workloads.graph import Graph


class ShapeNetwork:
    """Adds one operator after another; weights have shapes and no values."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator of one result, and return its name."""
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        """A tensor whose values are in a file that does not exist."""
        name = f"weight_{len(self._weights)}"
        tensor = TensorProto(
            name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL
        )
        tensor.external_data.add(key="location", value="nowhere.bin")
        self._weights.append(tensor)
        return name

    def convolution(
        self, source: str, channels: tuple[int, int], kernel: int, stride: int = 1
    ) -> str:
        """A padded convolution and a rectifier."""
        weight = self.weight(channels[1], channels[0], kernel, kernel)
        return self.op(
            "Relu", self.op("Conv", source, weight, pads=[kernel // 2] * 4, strides=[stride] * 2)
        )

    def graph(self, name: str, shape: Sequence[int], output: str) -> Graph:
        """The network at int8."""
        inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, list(shape))]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        proto = helper.make_graph(self._nodes, name, inputs, outputs, self._weights)
        model: onnx.ModelProto = helper.make_model(
            proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
        )
        network = walk_network(model, LoadOptions(precision="int8"))
        return graph_of(network, name, "made for a benchmark")

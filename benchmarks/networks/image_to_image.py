"""U-Net and FSRCNN as ONNX graphs of shapes alone: activations are large and weights few, so that small memories need stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

from loadmaster.workloads.frontends.onnx.graph_builder import build_graph
from loadmaster.workloads.graph import Graph


class _Network:
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
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="nowhere.bin")
        self._weights.append(tensor)
        return name

    def convolution(self, source: str, channels: tuple[int, int], kernel: int) -> str:
        """A padded convolution of stride 1 and a rectifier."""
        weight = self.weight(channels[1], channels[0], kernel, kernel)
        return self.op("Relu", self.op("Conv", source, weight, pads=[kernel // 2] * 4))

    def graph(self, name: str, shape: Sequence[int], output: str) -> Graph:
        """The network at int8."""
        inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, list(shape))]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        proto = helper.make_graph(self._nodes, name, inputs, outputs, self._weights)
        model: onnx.ModelProto = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        return build_graph(model, name=name, source="made for a benchmark", batch=None, dims={}, precision="int8")


def unet(size: int = 256, width: int = 32, levels: int = 4, classes: int = 21) -> Graph:
    """U-Net (Ronneberger et al., 2015) with padded convolutions, for square images of ``size`` pixels; a class for every pixel."""
    net = _Network()

    def level(source: str, inputs: int, own: int, below: int) -> str:
        skip = net.convolution(net.convolution(source, (inputs, own), 3), (own, own), 3)
        if not below:
            return skip
        deep = level(net.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2]), own, 2 * own, below - 1)
        grown = net.op("ConvTranspose", deep, net.weight(2 * own, own, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
        joined = net.op("Concat", skip, grown, axis=1)
        return net.convolution(net.convolution(joined, (2 * own, own), 3), (own, own), 3)

    top = level("image", 3, width, levels)
    return net.graph(f"unet_{size}", (1, 3, size, size), net.op("Conv", top, net.weight(classes, width, 1, 1)))


def fsrcnn(rows: int = 540, columns: int = 960, scale: int = 2) -> Graph:
    """FSRCNN(56, 12, 4) (Dong et al., 2016), which enlarges the brightness of an image, with a transposed convolution at its end."""
    net = _Network()
    last = net.convolution(net.convolution("image", (1, 56), 5), (56, 12), 1)
    for _ in range(4):
        last = net.convolution(last, (12, 12), 3)
    last = net.convolution(last, (12, 56), 1)
    window = {"kernel_shape": [9, 9], "strides": [scale] * 2, "pads": [4] * 4, "output_padding": [scale - 1] * 2}
    return net.graph(f"fsrcnn_{columns}x{rows}", (1, 1, rows, columns), net.op("ConvTranspose", last, net.weight(56, 1, 9, 9), **window))

"""Runs pieces of a network on their ranges alone: what lies outside is spoiled, so that a range
that is too small spoils the result."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible
from loadmaster.workloads.window import Box

Arrays = dict[str, np.ndarray]


class Network:
    """An ONNX network whose nodes can be run one by one; nodes are called as the operators of its
    graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.nodes = {node.name: node for node in model.graph.node}
        self.constants: Arrays = {
            item.name: numpy_helper.to_array(item) for item in model.graph.initializer
        }
        self.makers = {output: node.name for node in model.graph.node for output in node.output}
        self._opset = model.opset_import[0].version

    def run(self, name: str, values: Mapping[str, np.ndarray]) -> Arrays:
        """Results of one node."""
        node = self.nodes[name]
        given = [
            values[item] if item in values else self.constants[item] for item in node.input if item
        ]
        if node.op_type == "ConvTranspose":
            return {node.output[0]: transposed_convolution(node, given)}
        names = [item for item in node.input if item]
        inputs = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in dict(zip(names, given, strict=True)).items()
        ]
        outputs = [helper.make_tensor_value_info(n, 1, None) for n in node.output if n]
        graph = helper.make_graph([node], "one", inputs, outputs)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self._opset)], ir_version=9
        )
        results = ReferenceEvaluator(model).run(None, dict(zip(names, given, strict=True)))
        return dict(zip([n for n in node.output if n], results, strict=True))

    def everything(self, inputs: Arrays) -> Arrays:
        """All values of the network, by name."""
        values = self.constants | inputs
        for name in self.nodes:
            values |= self.run(name, values)
        return values


def transposed_convolution(node: onnx.NodeProto, given: Sequence[np.ndarray]) -> np.ndarray:
    """Tap by tap: each input element times its kernel is added where it reaches."""
    attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    data, kernel = given[:2]
    groups, rank = attributes.get("group", 1), data.ndim - 2
    strides, dilations = (
        attributes.get("strides", [1] * rank),
        attributes.get("dilations", [1] * rank),
    )
    pads = attributes.get("pads", [0] * 2 * rank)
    full = [
        (n - 1) * s + (k - 1) * d + 1
        for n, s, k, d in zip(data.shape[2:], strides, kernel.shape[2:], dilations, strict=True)
    ]
    result = np.zeros((len(data), kernel.shape[1] * groups, *full))
    inside, outside = data.shape[1] // groups, kernel.shape[1]
    for image, group, c, k in itertools.product(
        range(len(data)), range(groups), range(inside), range(outside)
    ):
        for at in np.ndindex(*data.shape[2:]):
            for tap in np.ndindex(*kernel.shape[2:]):
                place = tuple(
                    a * s + t * d for a, s, t, d in zip(at, strides, tap, dilations, strict=True)
                )
                value = (
                    data[(image, group * inside + c, *at)] * kernel[(group * inside + c, k, *tap)]
                )
                result[(image, group * outside + k, *place)] += value
    cut = tuple(
        slice(before, size - after)
        for before, after, size in zip(pads[:rank], pads[rank:], full, strict=True)
    )
    bias = given[2].reshape(1, -1, *[1] * rank) if len(given) > 2 else 0
    return (result[(slice(None), slice(None), *cut)] + bias).astype(np.float32)


def piece(
    network: Network,
    graph: Graph,
    group: FusedOp,
    form: Divisible,
    box: Box,
    values: Arrays,
    generator: np.random.Generator,
) -> Arrays:
    """Results of the operators of a group, where of what they read only the ranges that a piece
    states are as they are."""
    spoiled: Arrays = {}
    for storage in form.uses:
        needed = form.needed(graph, storage, box)
        array = generator.uniform(3, 9, values[storage].shape).astype(values[storage].dtype)
        index = tuple(slice(first, last) for first, last in needed)
        array[index] = values[storage][index]
        spoiled[storage] = array
    seen: Arrays = {}
    for op in group.ops:
        operands = {}
        for read in op.reads:
            tensor = graph.tensors[read.tensor]
            source = seen.get(tensor.storage, spoiled.get(tensor.storage))
            operands[read.tensor] = source.reshape(tensor.shape)
        seen |= network.run(op.name, _with_moved(network, op.name, network.constants | operands))
    return seen


def _with_moved(network: Network, name: str, values: Arrays) -> Arrays:
    """What a node reads, with what operators that are left out would have made of it."""
    for operand in network.nodes[name].input:
        if operand and operand not in values:
            mover = network.makers[operand]
            values = values | network.run(mover, _with_moved(network, mover, values))
    return values

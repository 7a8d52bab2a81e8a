"""Networks without weights, filled with random ones."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from loadmaster.workloads.frontends.onnx.file import parse_model, read_bytes

_SCALE, _VARIANCE = 1, 4
"""Operands of a BatchNormalization."""


def with_random_weights(source: str, file: Path, seed: int = 0) -> onnx.ModelProto:
    """A network with a random value for every parameter, saved in a file: of such sizes that no
    result is too large or always the same."""
    model = parse_model(read_bytes(source))
    graph, generator = model.graph, np.random.default_rng(seed)
    known = {tensor.name: tensor for tensor in graph.initializer}
    # The networks of the onnx package make their weights of a shape and one number.
    for node in [
        node for node in graph.node if node.op_type == "ConstantOfShape" and node.input[0] in known
    ]:
        dims = numpy_helper.to_array(known[node.input[0]]).tolist()
        graph.initializer.append(
            TensorProto(name=node.output[0], dims=dims, data_type=TensorProto.FLOAT)
        )
        graph.node.remove(node)
    place = {
        name: index
        for node in graph.node
        if node.op_type == "BatchNormalization"
        for index, name in enumerate(node.input)
    }
    used = {name for node in graph.node for name in node.input}
    for tensor in list(graph.initializer):
        if tensor.name not in used:
            graph.initializer.remove(tensor)
        elif tensor.data_type == TensorProto.FLOAT and math.prod(tensor.dims) > 1:
            array = _random(tensor, place.get(tensor.name, 0), generator).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    given = {tensor.name for tensor in graph.initializer}
    inputs = [each for each in graph.input if each.name not in given and each.name in used]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 8)
    onnx.save(model, file)
    return model


def _random(tensor: TensorProto, place: int, generator: np.random.Generator) -> np.ndarray:
    shape = tuple(tensor.dims)
    if place in (_SCALE, _VARIANCE):
        return (
            generator.uniform(0.1, 0.4, shape)
            if place == _SCALE
            else generator.uniform(0.5, 1.5, shape)
        )
    if len(shape) == 1:
        return generator.normal(
            "norm" in tensor.name.lower() and tensor.name.endswith("weight"), 0.1, shape
        )
    reach = math.prod(shape[1:]) if len(shape) > 2 else min(shape)
    return generator.normal(0, 1 / math.sqrt(reach), shape)

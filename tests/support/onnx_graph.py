"""Whether a graph is that of an ONNX model, as the onnx library itself reads it."""

from __future__ import annotations

from collections import Counter
from math import prod

import onnx

from loadmaster.workloads.graph import Graph, TensorKind

WIDTHS = {"float32": 4, "int64": 8, "int32": 4, "bool": 1}


def assert_graph_is_of(graph: Graph, proto: onnx.ModelProto) -> None:
    """Same operators in an order in which they can run, shapes as onnx infers them or the file
    notes them, and bytes that follow."""
    kinds = Counter(node.op_type for node in proto.graph.node if node.op_type != "Constant")
    assert Counter(op.kind for op in graph.ops) == kinds
    known = {
        name for name, tensor in graph.tensors.items() if tensor.kind is not TensorKind.ACTIVATION
    }
    for op in graph.ops:
        assert all(access.tensor in known for access in op.reads), op.name
        known |= {access.tensor for access in op.writes}
    assert set(graph.outputs) <= {graph.tensors[name].storage for name in known} | known
    noted = whole_shapes(proto.graph)
    for name, shape in inferred_shapes(proto).items():
        assert name not in graph.tensors or graph.tensors[name].shape in (shape, noted.get(name)), (
            name
        )
    for tensor in graph.tensors.values():
        if tensor.dtype in WIDTHS:
            assert tensor.bytes == prod(tensor.shape) * WIDTHS[tensor.dtype], tensor.name


def inferred_shapes(proto: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Shapes that follow from inputs and weights alone: what the file notes for what lies between
    is not looked at."""
    bare = onnx.ModelProto()
    bare.CopyFrom(proto)
    del bare.graph.value_info[:]
    for output in bare.graph.output:
        output.ClearField("type")
    try:
        return whole_shapes(onnx.shape_inference.infer_shapes(bare, data_prop=True).graph)
    except (onnx.shape_inference.InferenceError, UnicodeDecodeError):
        # One operator that it cannot read, or whose name is no text, and it says nothing about any.
        return {}


def whole_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Shapes that a file notes, without those that are not numbers."""
    found = {weight.name: tuple(weight.dims) for weight in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.dim_value > 0 for dim in dims):
            found[value.name] = tuple(dim.dim_value for dim in dims)
    return found

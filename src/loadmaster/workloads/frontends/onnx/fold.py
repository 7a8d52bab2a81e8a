"""Computes small constants at planning time: the subgraphs with which exporters compute shapes.

Only values of at most :data:`LARGEST_FOLD` elements are computed, and only once the size of the
result is known.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator

from loadmaster.core.arrays import Array
from loadmaster.workloads.frontends.onnx.types import Node

LARGEST_FOLD = 4096
"""The most elements of a constant whose values are kept: far more than a shape has, far fewer than
weights have."""

_OF_SHAPES = ("Shape", "Size")
"""Operators that need only the shape of their operand."""
_RENAMED = ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Views: inference knows the shape of their result, in the spelling of every opset."""
_NUMERIC = """
    Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Floor Gather Greater
    GreaterOrEqual Less LessOrEqual Max Min Mod Mul Neg Not Or Pow Range ReduceMax ReduceMin
    ReduceProd ReduceSum Round Shape Sign Size Slice Split Sqrt Sub Tile Transpose Where
"""
_FOLDED = frozenset((*_RENAMED, *_NUMERIC.split()))
"""Operators of which exporters make the subgraphs that compute shapes."""


def tensor_data(tensor: onnx.TensorProto) -> Array | None:
    """Return the elements of a small tensor; ``None`` if it is large, external, text or damaged."""
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if (
        external
        or tensor.data_type == onnx.TensorProto.STRING
        or math.prod(tensor.dims) > LARGEST_FOLD
    ):
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception:
        return None


def fold(node: Node, proto: onnx.NodeProto, counts: list[int] | None) -> list[Array] | None:
    """Compute a node's outputs if its operands are known, else return ``None``; ``counts`` are the
    outputs' element counts."""
    if node.kind not in _FOLDED or counts is None or max(counts, default=0) > LARGEST_FOLD:
        return None
    if node.kind in _OF_SHAPES:
        operands = {value.name: np.broadcast_to(False, value.shape) for value in node.present}
    else:
        operands = {value.name: value.data for value in node.present if value.data is not None}
    if any(value.name not in operands for value in node.present):
        return None
    names = [name for name in proto.output if name]
    opsets = [helper.make_opsetid(proto.domain, node.opset)]
    try:
        if node.kind in _RENAMED:
            return [operands[node.label(0)].reshape(node.result.shape)]
        run = helper.make_function("fold", "fold", list(operands), names, [proto], opsets)
        with np.errstate(all="ignore"):
            return list(ReferenceEvaluator(run).run(None, operands, {}))
    except Exception:
        return None

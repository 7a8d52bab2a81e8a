"""Computes small constants at planning time: the subgraphs with which exporters compute shapes.

Only values of at most :data:`LARGEST_FOLD` elements are computed, and only once the size of the
result is known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from loadmaster.core.arrays import Array
from loadmaster.workloads.frontends.onnx.types import Node

LARGEST_FOLD = 4096
"""The most elements of a constant whose values are kept: far more than a shape has, far fewer than
weights have."""

Folder = Callable[[Node, list[Array]], Array | list[Array]]


def tensor_data(tensor: onnx.TensorProto) -> Array | None:
    """Return the elements of a small tensor; ``None`` if it is large, external, text or damaged."""
    external = tensor.data_location == onnx.TensorProto.EXTERNAL
    if (
        external
        or tensor.data_type == onnx.TensorProto.STRING
        or _count(tensor.dims) > LARGEST_FOLD
    ):
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception:
        return None


def _count(dims: Any) -> int:
    total = 1
    for dim in dims:
        total *= dim
    return total


def fold(node: Node, counts: list[int] | None) -> list[Array] | None:
    """Compute a node's outputs if its operands are known, else return ``None``; ``counts`` are the
    outputs' element counts.

    ``Shape`` and ``Size`` need only the shape of their operand.
    """
    folder = FOLDERS.get(node.kind)
    if (
        folder is None
        or node.domain not in ("", "ai.onnx")
        or counts is None
        or max(counts, default=0) > LARGEST_FOLD
    ):
        return None
    shape_only = node.kind in ("Shape", "Size")
    data = [value.data for value in node.present if value.data is not None]
    if not shape_only and len(data) < len(node.present):
        return None
    try:
        with np.errstate(all="ignore"):
            result = folder(node, data)
    except Exception:
        return None
    return result if isinstance(result, list) else [np.asarray(result)]


def _shape(node: Node, _: list[Array]) -> Array:
    return np.array(
        node.shape(0)[node.attrs.get("start", 0) : node.attrs.get("end")], dtype=np.int64
    )


def _divide(_: Node, data: list[Array]) -> Array:
    if data[0].dtype.kind not in "iu":
        return np.asarray(data[0] / data[1])
    quotient = np.abs(data[0]) // np.abs(data[1])
    return np.asarray(quotient * np.sign(data[0]) * np.sign(data[1])).astype(data[0].dtype)


def _modulo(node: Node, data: list[Array]) -> Array:
    return np.asarray(np.fmod(*data) if node.attrs.get("fmod") else np.mod(*data))


def _slice(node: Node, data: list[Array]) -> Array:
    starts, ends = node.integers("starts", 1) or [], node.integers("ends", 2) or []
    axes = node.integers("axes", 3) or list(range(len(starts)))
    steps = node.integers("steps", 4) or [1] * len(starts)
    index = [slice(None)] * data[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # Counting down to below the first element has no plain Python spelling but None.
        index[axis] = slice(start, None if step < 0 and end < -data[0].shape[axis] else end, step)
    return np.asarray(data[0][tuple(index)])


def _renamed(node: Node, data: list[Array]) -> Array:
    """A view: inference knows the shape of its result."""
    return data[0].reshape(node.result.shape)


def _cast(node: Node, data: list[Array]) -> Array:
    return data[0].astype(onnx.helper.tensor_dtype_to_np_dtype(node.attrs["to"]))


def _filled(node: Node, data: list[Array]) -> Array:
    value = node.attrs.get("value")
    fill = onnx.numpy_helper.to_array(value).ravel()[0] if value is not None else np.float32(0)
    return np.full([int(size) for size in data[0]], fill)


def _split(node: Node, data: list[Array]) -> list[Array]:
    axis = node.attrs.get("axis", 0)
    ends = np.cumsum([value.shape[axis] for value in node.outputs if value is not None])
    return list(np.split(data[0], ends[:-1], axis))


def _reduce(function: Callable[..., Any]) -> Folder:
    def folder(node: Node, data: list[Array]) -> Array:
        axes = node.integers("axes", 1)
        if axes is None and node.attrs.get("noop_with_empty_axes"):
            return data[0]
        return np.asarray(
            function(
                data[0],
                axis=tuple(axes) if axes else None,
                keepdims=bool(node.attrs.get("keepdims", 1)),
            )
        )

    return folder


def _plain(function: Callable[..., Any]) -> Folder:
    """A numpy function of the operands, in their type."""
    return lambda _, data: np.asarray(function(*data))


def _combined(function: np.ufunc) -> Folder:
    """A numpy function of two operands, over any number of them."""
    return _plain(lambda *data: function.reduce(np.broadcast_arrays(*data)))


_NUMPY = """
    Abs absolute
    Add add
    And logical_and
    Ceil ceil
    Equal equal
    Floor floor
    Greater greater
    GreaterOrEqual greater_equal
    Less less
    LessOrEqual less_equal
    Mul multiply
    Neg negative
    Not logical_not
    Or logical_or
    Range arange
    Round round
    Sign sign
    Sqrt sqrt
    Sub subtract
    Tile tile
    Where where
"""
"""Functions of numpy that do what an operator does."""

FOLDERS: dict[str, Folder] = {
    **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"), _renamed),
    "Shape": _shape,
    "Size": lambda node, _: np.array(node.operand(0).count, dtype=np.int64),
    "Gather": lambda node, data: np.asarray(
        np.take(data[0], data[1], axis=node.attrs.get("axis", 0))
    ),
    "Concat": lambda node, data: np.concatenate(data, node.attrs["axis"]),
    "Slice": _slice,
    "Transpose": lambda node, data: np.transpose(data[0], node.attrs.get("perm")),
    "Cast": _cast,
    "ConstantOfShape": _filled,
    "Expand": lambda node, data: np.broadcast_to(data[0], node.result.shape),
    "Split": _split,
    "Div": _divide,
    "Mod": _modulo,
    "Pow": lambda _, data: np.power(data[0], data[1]).astype(data[0].dtype),
    "Max": _combined(np.maximum),
    "Min": _combined(np.minimum),
    "ReduceSum": _reduce(np.sum),
    "ReduceProd": _reduce(np.prod),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}
for _line in _NUMPY.split("\n")[1:-1]:
    _kind, _function = _line.split()
    FOLDERS[_kind] = _plain(getattr(np, _function))

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


def _squeeze(node: Node, data: list[Array]) -> Array:
    axes = node.integers("axes", 1)
    return np.squeeze(data[0], tuple(axes) if axes is not None else None)


def _unsqueeze(node: Node, data: list[Array]) -> Array:
    return np.expand_dims(data[0], tuple(node.integers("axes", 1) or ()))


def _reshape(node: Node, data: list[Array]) -> Array:
    target = node.integers("shape", 1) or []
    kept = (
        target
        if node.attrs.get("allowzero")
        else [data[0].shape[axis] if size == 0 else size for axis, size in enumerate(target)]
    )
    return data[0].reshape(kept)


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


FOLDERS: dict[str, Folder] = {
    "Shape": _shape,
    "Size": lambda node, _: np.array(node.operand(0).count, dtype=np.int64),
    "Identity": lambda _, data: data[0],
    "Gather": lambda node, data: np.asarray(
        np.take(data[0], data[1], axis=node.attrs.get("axis", 0))
    ),
    "Concat": lambda node, data: np.concatenate(data, node.attrs["axis"]),
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": lambda node, data: data[0].reshape(node.outputs[0].shape if node.outputs[0] else -1),
    "Transpose": lambda node, data: np.transpose(data[0], node.attrs.get("perm")),
    "Cast": _cast,
    "Range": _plain(np.arange),
    "ConstantOfShape": _filled,
    "Expand": lambda _, data: (
        data[0] * np.ones([int(size) for size in data[1]], dtype=data[0].dtype)
    ),
    "Tile": _plain(np.tile),
    "Split": _split,
    "Where": _plain(np.where),
    "Div": _divide,
    "Mod": _modulo,
    "Pow": lambda _, data: np.power(data[0], data[1]).astype(data[0].dtype),
    "ReduceSum": _reduce(np.sum),
    "ReduceProd": _reduce(np.prod),
    "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min),
}

_UFUNCS: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.round,
    "Sqrt": np.sqrt,
    "Min": lambda *data: np.minimum.reduce(np.broadcast_arrays(*data)),
    "Max": lambda *data: np.maximum.reduce(np.broadcast_arrays(*data)),
    "Equal": np.equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Not": np.logical_not,
}
FOLDERS.update((kind, _plain(function)) for kind, function in _UFUNCS.items())

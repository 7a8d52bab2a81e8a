"""Which rows of its result an operator makes right from some rows of its operand.

A band runs the operators of a region as they are on a slice of rows of the region's input. With
``start`` the row of the whole tensor that is row 0 of the slice, a window operator makes

    start' = (start + pad_top - pad_top of the slice) / stride,

which must be whole, and its row R is right if each row of its window is: a row of the tensor that
the slice has, and has right, or padding in the whole tensor and in the slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.workloads.frontends.tflite.model import OperatorEntry, SubgraphEntry

_SAME = 0
_WINDOWS = {"CONV_2D": (2, 5), "DEPTHWISE_CONV_2D": (2, 6), "AVERAGE_POOL_2D": (2, None)}
_WINDOWS["MAX_POOL_2D"] = _WINDOWS["AVERAGE_POOL_2D"]
"""Of operators with windows: the fields of their options with the stride and dilation of rows."""
_UNARY = frozenset(
    ("RELU", "RELU6", "RELU_N1_TO_1", "LEAKY_RELU", "HARD_SWISH", "LOGISTIC", "TANH", "QUANTIZE")
) | frozenset(("DEQUANTIZE", "ABS", "NEG", "ELU", "SQUARE", "SQRT", "RSQRT", "EXP"))
_BINARY = frozenset(("ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM"))


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows [start, start + height) of a tensor, of which [first, last) have the right values."""

    start: int
    height: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class RowRule:
    """How an operator's rows follow from those of its operand.

    ``taps`` is the extent of its window with dilation; ``same`` is whether it pads as much as gives
    ``ceil(rows / stride)`` rows, else ``top`` and ``bottom`` rows are added (PAD), with a window
    and stride of 1.
    """

    stride: int = 1
    taps: int = 1
    same: bool = False
    top: int = 0
    bottom: int = 0

    def height(self, rows: int) -> int:
        """Rows of the result of so many."""
        rows += self.top + self.bottom
        return -(-rows // self.stride) if self.same else (rows - self.taps) // self.stride + 1

    def pad_top(self, rows: int) -> int:
        """Rows of padding above so many."""
        if not self.same:
            return self.top
        return max(0, (self.height(rows) - 1) * self.stride + self.taps - rows) // 2

    def needs(self, first: int, last: int, rows: int) -> tuple[int, int]:
        """Rows of an operand of so many that rows [first, last) of the result need, unclipped."""
        pad = self.pad_top(rows)
        return first * self.stride - pad, (last - 1) * self.stride - pad + self.taps

    def applied(self, given: Slice, rows: int) -> Slice | None:
        """What comes of a slice of an operand of so many ``rows``; None if rows do not meet."""
        local, pad = self.pad_top(given.height), self.pad_top(rows)
        start, rest = divmod(given.start + pad - local, self.stride)
        height = self.height(given.height)
        if rest or height < 1:
            return None
        result = np.arange(max(start, 0), min(start + height, self.height(rows)))
        low = result * self.stride - pad
        high = low + self.taps
        end = given.start + given.height
        # Inside of the tensor all must be right; outside the slice must end, too.
        right = (np.maximum(low, 0) >= given.first) & (np.minimum(high, rows) <= given.last)
        inside = np.minimum(high, rows) > np.maximum(low, 0)
        right |= ~inside
        right &= (low >= 0) | (given.start >= 0)
        right &= (high <= rows) | (end <= rows)
        places = np.flatnonzero(right)
        if not len(places) or len(places) != places[-1] - places[0] + 1:
            return None
        return Slice(start, height, int(result[places[0]]), int(result[places[-1]]) + 1)


def row_rule(subgraph: SubgraphEntry, operator: OperatorEntry, data: bytes) -> RowRule | None:
    """The rule of an operator; None for one that cannot run in bands."""
    kind, options = operator.kind, operator.options
    if any(len(subgraph.tensors[t].shape) != 4 for t in operator.outputs):
        return None
    if kind in _UNARY or kind in _BINARY:
        return RowRule()
    if kind in ("PAD", "PADV2"):
        return _padding(subgraph, operator, data)
    if kind not in _WINDOWS or options is None:
        return None
    stride, dilation = _WINDOWS[kind]
    taps = options.number(4) if dilation is None else subgraph.tensors[operator.inputs[1]].shape[1]
    spread = 1 if dilation is None else options.number(dilation, default=1)
    extent = (taps - 1) * spread + 1
    return RowRule(options.number(stride), extent, options.number(0, "b") == _SAME)


def _padding(subgraph: SubgraphEntry, operator: OperatorEntry, data: bytes) -> RowRule | None:
    paddings = subgraph.tensors[operator.inputs[1]]
    at, length = paddings.content
    if paddings.dtype not in ("int32", "int64") or length == 0:
        return None
    values = np.frombuffer(data, np.dtype(paddings.dtype), 8, at).reshape(-1, 2)
    if len(values) != 4 or values[[0, 3]].any() or (values < 0).any():
        return None
    return RowRule(top=int(values[1, 0]), bottom=int(values[1, 1]))


def work_of(subgraph: SubgraphEntry, operator: OperatorEntry) -> int:
    """Multiply-accumulates for each row of an operator's result; 0 where it has none."""
    if operator.kind not in ("CONV_2D", "DEPTHWISE_CONV_2D"):
        return 0
    _, _, width, channels = subgraph.tensors[operator.outputs[0]].shape
    _, taps, across, depth = subgraph.tensors[operator.inputs[1]].shape
    return width * channels * taps * across * (depth if operator.kind == "CONV_2D" else 1)

"""Rules for the rows of an operator's result that are valid if it runs on a slice of rows of its
operand.

A band runs the unchanged operators of a region on a slice of rows of the region's input. If row 0
of the slice is row ``start`` of the whole tensor, row 0 of a window operator's result is row

    start' = (start + pad_top - pad_top of the slice) / stride

of the whole result, which must be an integer. Row R of the result is valid if each row of its
window is a valid row of the slice, or padding both in the whole tensor and in the slice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.workloads.frontends.tflite.model import OperatorEntry, SubgraphEntry, TensorEntry

_SAME = 0
_WINDOWS = {"CONV_2D": (2, 5), "DEPTHWISE_CONV_2D": (2, 6), "AVERAGE_POOL_2D": (2, None)}
_WINDOWS["MAX_POOL_2D"] = _WINDOWS["AVERAGE_POOL_2D"]
"""Fields of the options of window operators with the stride and the dilation of rows."""
_TAPS = {
    "CONV_2D": slice(1, 4),
    "DEPTHWISE_CONV_2D": slice(1, 3),
    "FULLY_CONNECTED": slice(1, 2),
    "TRANSPOSE_CONV": slice(3),
}
"""Dimensions of the weights that are a multiply-accumulate of each element."""
_BY_ELEMENT = (
    "ABS ADD DEQUANTIZE ELU EXP HARD_SWISH LEAKY_RELU LOGISTIC MAXIMUM MINIMUM MUL NEG PRELU"
    " QUANTIZE RELU RELU6 RELU_N1_TO_1 RSQRT SQRT SQUARE SUB TANH"
)


@dataclass(frozen=True, slots=True)
class RowSlice:
    """Rows [start, start + height) of a tensor, of which [first, last) have valid values."""

    start: int
    height: int
    first: int
    last: int

    def common(self, other: RowSlice) -> RowSlice | None:
        """Return the slice with the rows that are valid in both; None if they are different rows,
        or none is valid."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        same = (self.start, self.height) == (other.start, other.height)
        return replace(self, first=first, last=last) if same and first < last else None


@dataclass(frozen=True, slots=True)
class RowRule:
    """How the rows of an operator's result follow from those of its operand.

    ``taps`` is the extent of the window with dilation. ``same``: the operator pads to
    ``ceil(rows / stride)`` rows. ``top`` and ``bottom`` are the rows that PAD adds, with a window
    and a stride of 1.
    """

    stride: int = 1
    taps: int = 1
    same: bool = False
    top: int = 0
    bottom: int = 0

    @property
    def row_by_row(self) -> bool:
        """Whether each row depends only on the same row of an operand."""
        return (self.stride, self.taps, self.top, self.bottom) == (1, 1, 0, 0)

    def height(self, rows: int) -> int:
        """Return the rows of the result for an operand of ``rows`` rows."""
        rows += self.top + self.bottom
        return -(-rows // self.stride) if self.same else (rows - self.taps) // self.stride + 1

    def pad_top(self, rows: int) -> int:
        """Return the rows of padding above an operand of ``rows`` rows."""
        if not self.same:
            return self.top
        return max(0, (self.height(rows) - 1) * self.stride + self.taps - rows) // 2

    def needs(self, first: int, last: int, rows: int) -> tuple[int, int]:
        """Return the rows [low, high) of an operand of ``rows`` rows that rows [first, last) of the
        result need, not clipped."""
        pad = self.pad_top(rows)
        return first * self.stride - pad, (last - 1) * self.stride - pad + self.taps

    def applied(self, given: RowSlice, rows: int) -> RowSlice | None:
        """Return the slice of the result for a slice of an operand of ``rows`` rows; None if it is
        not aligned with the stride, or has no valid rows."""
        local, pad = self.pad_top(given.height), self.pad_top(rows)
        start, rest = divmod(given.start + pad - local, self.stride)
        height = self.height(given.height)
        if rest or height < 1:
            return None
        begin, end = max(start, 0), min(start + height, self.height(rows))
        # A window begins at row r * stride - pad. It may extend beyond the valid rows only if these
        # and the slice end with the tensor.
        if given.first > 0 or given.start < 0:
            begin = max(begin, -(-(max(given.first, 0) + pad) // self.stride))
        if given.last < rows or given.start + given.height > rows:
            end = min(end, (min(given.last, rows) + pad - self.taps) // self.stride + 1)
        return RowSlice(start, height, begin, end) if begin < end else None


def rules_of(
    subgraph: SubgraphEntry, operator: OperatorEntry, data: bytes
) -> tuple[RowRule, RowRule] | None:
    """Return the rules of an operator for rows and for columns; None if they are not known, or do
    not give the shape of its result, as in a damaged file."""
    kind, options, rules = operator.kind, operator.options, list[RowRule]()
    try:
        made, image, *others = (subgraph.tensors[t] for t in (*operator.outputs, *operator.inputs))
        if kind in _BY_ELEMENT.split():
            rules, image = [RowRule(), RowRule()], made
        elif kind in ("PAD", "PADV2"):
            rules += _rules_of_pad(others[0], data)
        elif kind in _WINDOWS and options is not None:
            stride, dilation = _WINDOWS[kind]
            # The field of columns is right before that of rows.
            for axis, before in ((1, 0), (2, 1)):
                if dilation is None:
                    extent = options.number(4 - before)
                else:
                    taps = others[0].shape[axis]
                    extent = (taps - 1) * options.number(dilation - before, default=1) + 1
                same = options.number(0, "b") == _SAME
                rules.append(RowRule(options.number(stride - before), extent, same))
        rows, columns = rules
        sizes = rows.height(image.shape[1]), columns.height(image.shape[2])
    except (IndexError, ValueError, ZeroDivisionError):
        return None
    return (rows, columns) if sizes == made.shape[1:-1] else None


def _rules_of_pad(paddings: TensorEntry, data: bytes) -> Iterator[RowRule]:
    """Yield the rules of PAD for rows and columns; none if it pads other dimensions."""
    at, length = paddings.content
    if paddings.dtype in ("int32", "int64"):
        values = np.frombuffer(data[at : at + length], paddings.dtype).reshape(4, 2)
        if not values[[0, 3]].any() and (values >= 0).all():
            yield from (RowRule(top=int(a), bottom=int(b)) for a, b in values[1:3])


def work_of(subgraph: SubgraphEntry, operator: OperatorEntry) -> int:
    """Return the multiply-accumulates of a convolution or a fully connected layer; 0 for other
    operators."""
    kind = operator.kind
    if kind not in _TAPS:
        return 0
    # A transposed convolution spreads each element of its operand.
    each = operator.inputs[2:3] if kind == "TRANSPOSE_CONV" else operator.outputs
    taps = [n for t in operator.inputs[1:2] for n in subgraph.tensors[t].shape[_TAPS[kind]]]
    return math.prod(taps) * math.prod(subgraph.tensors[t].count for t in each)

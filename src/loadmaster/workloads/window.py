"""Windows and boxes: the part of an operand that a part of a result needs, exactly, through
strides, padding, dilation, permutations and broadcasts.

A *box* is a half-open range for every dimension of a tensor. A :class:`Window` maps the range of
one result dimension to the range of one operand dimension, so that a box of the result gives the
box of each operand, and a chain of operators can be traced back.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, combinations
from operator import mul
from typing import Any

import numpy as np

from loadmaster.core.arrays import Ints

Range = tuple[int, int]
Box = tuple[Range, ...]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The range of an operand's dimension that a range [first, last) of the result's dimension
    ``axis`` needs::

        unit x [floor((first x numerator + low) / denominator),
                floor(((last - 1) x numerator + high) / denominator) + 1)

    clipped to the dimension. An ``axis`` below 0 means that all of the dimension is needed: -1
    (:data:`ALL`), or -2 (:data:`SUMMED`) if the operator sums over the dimension, so that a part of
    the reduction needs the same part of it.

    A convolution of stride s, padding p and r taps of dilation d has numerator s, low -p and high
    (r - 1) d - p. A grouped one has, along its channels, the denominator K / groups and the unit C
    / groups.
    """

    axis: int = -1
    numerator: int = 1
    denominator: int = 1
    low: int = 0
    high: int = 0
    unit: int = 1

    def of(self, box: Sequence[tuple[Any, Any]] | Ints, extent: int) -> Any:
        """Range of an operand's dimension of ``extent`` that a box of the result needs; empty if
        the box needs padding only. With arrays as ends of ranges, those of many boxes."""
        if self.axis < 0:
            return 0, extent
        first, last = box[self.axis]
        begin = self.unit * ((first * self.numerator + self.low) // self.denominator)
        end = self.unit * (((last - 1) * self.numerator + self.high) // self.denominator + 1)
        begin = np.minimum(np.maximum(begin, 0), extent)
        return begin, np.maximum(begin, np.minimum(end, extent))

    def elements_read(self, shape: Sequence[int], extent: int) -> int:
        """Of an operand's dimension of ``extent``, the elements that some single element of the
        result needs, at least; where strides step over some, padding is taken to have as many of
        them as the operand has."""
        first, last = self.of(whole(shape), extent)
        count = int(last - first)
        between = self.numerator + self.low - self.high - self.denominator
        if between > 0:
            count -= -(-between // self.denominator) * (shape[self.axis] - 1)
        return max(0, count)

    def of_each(self, length: int, extent: int) -> tuple[Ints, Ints]:
        """Begins and ends, in an operand's dimension of ``extent``, for each single element of the
        result's dimension of ``length``."""
        at = np.arange(length)
        begins, ends = self.of([(at, at + 1)] * (self.axis + 1), extent)
        return begins, ends


Windows = tuple[Window, ...]
ALL = Window()
"""Needs all of a dimension."""
SUMMED = Window(-2)
"""Needs all of a dimension, and sums over it: a part of the sum needs its range."""


def identity(rank: int, others: Mapping[int, Window] | None = None) -> Windows:
    """Windows of an elementwise operator: each element needs the element at the same position, but
    along the dimensions in ``others``."""
    known = others or {}
    return tuple(known.get(axis, Window(axis)) for axis in range(rank))


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole tensor."""
    return tuple((0, extent) for extent in shape)


def whole_boxes(shape: Sequence[int], count: int) -> Ints:
    """The box of a whole tensor ``count`` times, shape (count, dimensions, 2)."""
    boxes = np.zeros((count, len(shape), 2), dtype=np.int64)
    boxes[:, :, 1] = shape
    return boxes


def volume(box: Box) -> int:
    """Number of elements in a box."""
    count = 1
    for first, last in box:
        count *= last - first
    return count


def common_box(one: Box, other: Box) -> Box:
    """The intersection of two boxes; ((0, 0),) as soon as a dimension tells that they are apart."""
    common = []
    for (a, b), (c, d) in zip(one, other, strict=True):
        if b <= c or d <= a:
            return ((0, 0),)
        common.append((a if a > c else c, b if b < d else d))
    return tuple(common)


def disjoint(boxes: Sequence[Box]) -> bool:
    """Whether no two boxes share an element. O(n^2) comparisons for n boxes."""
    return not any(volume(common_box(one, other)) for one, other in combinations(boxes, 2))


def operand_box(windows: Sequence[Window], box: Box | Ints, shape: Sequence[int]) -> Box:
    """Box of an operand of a shape that a box of the result needs."""
    return tuple([window.of(box, extent) for window, extent in zip(windows, shape, strict=True)])


def operand_boxes(windows: Sequence[Window], boxes: Ints, shape: Sequence[int]) -> Ints:
    """Boxes of an operand, shape (boxes, dimensions, 2), that boxes of the result need:
    :func:`operand_box` of many."""
    found = whole_boxes(shape, len(boxes))
    needed = operand_box(windows, boxes.transpose(1, 2, 0), shape)
    for axis, (begins, ends) in enumerate(needed):
        found[:, axis, 0], found[:, axis, 1] = begins, ends
    return found


def volumes(boxes: Ints) -> Ints:
    """Number of elements in each box, shape (boxes,), of boxes of shape (boxes, dimensions, 2)."""
    return np.asarray((boxes[..., 1] - boxes[..., 0]).prod(axis=1), dtype=np.int64)


def hulls(one: Ints, other: Ints) -> Ints:
    """The smallest boxes that hold two each, shape (boxes, dimensions, 2), either of which may be
    empty."""
    both = np.stack(
        [np.minimum(one[..., 0], other[..., 0]), np.maximum(one[..., 1], other[..., 1])], axis=-1
    )
    both = np.where((volumes(other) > 0)[:, None, None], both, one)
    return np.where((volumes(one) > 0)[:, None, None], both, other)


def reshaped_boxes(boxes: Ints, shape: Sequence[int], target: Sequence[int]) -> Ints:
    """The smallest boxes of ``target`` that hold boxes of ``shape``, shape (boxes, dimensions, 2);
    both shapes name the same elements in the same order."""
    found = whole_boxes(target, len(boxes))
    filled = volumes(boxes) > 0
    for left, right in _groups(tuple(shape), tuple(target)) if filled.any() else ():
        # Positions of the first and the last element, then of these within what is left of the
        # dimensions.
        first, last = np.zeros((2, len(boxes)), dtype=np.int64)
        for i in left:
            first = first * shape[i] + boxes[:, i, 0]
            last = last * shape[i] + boxes[:, i, 1] - 1
        inner = math.prod(target[i] for i in right)
        crossed = np.zeros(len(boxes), dtype=np.bool_)
        for i in right:
            inner //= target[i]
            a, b = first // inner, last // inner
            # Behind a dimension of which several are needed, every other is crossed at least in
            # part: take all of it.
            found[:, i, 0] = np.where(crossed, 0, a)
            found[:, i, 1] = np.where(crossed, target[i], b + 1)
            crossed |= a != b
            first, last = first - a * inner, last - a * inner
    found[~filled] = 0
    return found


def through_reshape(
    windows: Sequence[Window], shape: Sequence[int], target: Sequence[int]
) -> Windows:
    """Convert windows of an array of ``shape`` to the shape ``target`` of the same elements in the
    same order.

    If a dimension is split into several, the first of these gets a window of whole multiples of the
    others, which are needed as a whole. Merged dimensions are needed as a whole.
    """
    found = [ALL] * len(target)
    for left, (outer, *inner) in _groups(tuple(shape), tuple(target)):
        if len(left) == 1:
            found[outer] = _of_rounds(windows[left[0]], math.prod(target[i] for i in inner))
    return tuple(found)


def _of_rounds(window: Window, size: int) -> Window:
    """The window of the outer dimension if a dimension is split with ``size`` inner elements; all
    of it if there is no such window."""
    if window.unit % size == 0:
        return replace(window, unit=window.unit // size)
    if window.axis >= 0 and size % window.unit == 0:
        return replace(window, denominator=window.denominator * (size // window.unit), unit=1)
    return ALL


def matching_axes(shape: Sequence[int], other: Sequence[int]) -> dict[int, int]:
    """Map dimensions of a shape to equal dimensions of another shape of the same elements;
    dimensions of extent 1 are skipped."""
    found = {}
    for left, right in _groups(tuple(shape), tuple(other)):
        if len(left) == len(right) == 1:
            found[left[0]] = right[0]
    return found


@lru_cache(maxsize=1024)
def _groups(one: Shape, other: Shape) -> list[tuple[list[int], list[int]]]:
    """Split the dimensions of several elements of two shapes into the shortest runs with equal
    numbers of elements."""
    products = [list(accumulate(shape, mul)) for shape in (one, other)]
    ends = sorted({*products[0]}.intersection(products[1]))
    groups = [(list[int](), list[int]()) for _ in range(len(ends) + 1)]
    for side, shape in enumerate((one, other)):
        for axis, product in enumerate(products[side]):
            if shape[axis] > 1:
                groups[bisect_left(ends, product)][side].append(axis)
    return [group for group in groups if any(group)]

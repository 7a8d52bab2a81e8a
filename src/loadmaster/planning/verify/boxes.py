"""Arithmetic of boxes: for every dimension of an array the first element and the one after the
last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from loadmaster.planning.plan_records import PlannedOperand, PlannedTensor

Box = tuple[tuple[int, ...], ...]
LARGEST = 2**63
"""Numbers of a plan are below this: they fit into 64 bits."""


def volume(box: Box) -> int:
    """Elements of a box."""
    return math.prod(last - first for first, last in box)


def whole(shape: Sequence[int]) -> Box:
    """The box of all elements of an array."""
    return tuple((0, extent) for extent in shape)


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box that holds some boxes."""
    return tuple(
        (min(first for first, _ in ranges), max(last for _, last in ranges))
        for ranges in zip(*boxes, strict=True)
    )


def is_within(inner: Box, outer: Box) -> bool:
    """Whether a box lies in another."""
    return len(inner) == len(outer) and all(
        c <= a and b <= d for (a, b), (c, d) in zip(inner, outer, strict=True)
    )


def is_part(box: Box, outer: Box) -> bool:
    """Whether something is a box, and lies in another that has a bearable number of elements."""
    return (
        all(len(ends) == 2 and ends[0] < ends[1] for ends in box)
        and is_within(box, outer)
        and volume(outer) < LARGEST
    )


def text(box: Box) -> str:
    """A box as people write it."""
    return "[" + ", ".join(f"{first}:{last}" for first, last in box) + "]"


def once(what: str, boxes: Sequence[Box], outer: Box) -> Iterator[str]:
    """No two boxes share an element, and together they have as many as the box that they lie in."""
    axis = max(range(len(outer)), key=lambda d: len({box[d][0] for box in boxes}), default=0)
    ordered = sorted(boxes, key=lambda box: box[axis] if box else ())
    for i, one in enumerate(ordered):
        for other in ordered[i + 1 :]:
            if other and other[axis][0] >= one[axis][1]:
                break
            if all(a < d and c < b for (a, b), (c, d) in zip(one, other, strict=True)):
                yield f"{what} overlap: {text(one)} and {text(other)}"
                return
    total = sum(map(volume, boxes))
    if total != volume(outer):
        yield f"{what} are {total} elements together, not {volume(outer)}"


def held(tensor: PlannedTensor) -> Box:
    """The box that a tensor holds."""
    return tensor.ranges or whole(tensor.shape)


def taken(operand: PlannedOperand, tensor: PlannedTensor) -> Box:
    """The box that an operand is of its tensor."""
    return operand.ranges or held(tensor)


def reshaped(box: Box, old: Sequence[int], new: Sequence[int]) -> Box:
    """The smallest part of an array of shape ``new`` that holds a part of shape ``old``, element
    after element the same array.

    Dimensions fall into runs of as many elements on both sides, as short as can be; in each run a
    part lies between two positions.
    """
    inner, steps = ([math.prod(shape[d + 1 :]) for d in range(len(shape))] for shape in (old, new))
    common = {math.prod(old), *inner} & {math.prod(new), *steps}
    result = []
    for step, extent in zip(steps, new, strict=True):
        least = max(size for size in common if size <= step)
        most = min(size for size in common if size >= step * extent)
        run = [(ends, size) for ends, size in zip(box, inner, strict=True) if least <= size < most]
        low = sum(first * size for (first, _), size in run)
        high = sum((last - 1) * size for (_, last), size in run)
        # Behind a dimension of which several are needed, all of every other is.
        crossed = low // (step * extent) != high // (step * extent)
        result.append((0, extent) if crossed else (low // step % extent, high // step % extent + 1))
    return tuple(result)


def is_same_part(box: Box, shape: Sequence[int], other: Box, other_shape: Sequence[int]) -> bool:
    """Whether two parts are the same elements, one after another, of arrays of as many."""
    if tuple(shape) == tuple(other_shape):
        return box == other
    as_many = 0 < math.prod(shape) == math.prod(other_shape)
    return as_many and volume(box) == volume(other) and reshaped(box, shape, other_shape) == other

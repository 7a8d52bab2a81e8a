"""Arithmetic of boxes: for every dimension of an array the first element and the one after the
last."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from loadmaster.planning.plan_records import PlannedOperand, PlannedTensor

Box = tuple[tuple[int, ...], ...]
_LARGEST = 2**63


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
        and volume(outer) < _LARGEST
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

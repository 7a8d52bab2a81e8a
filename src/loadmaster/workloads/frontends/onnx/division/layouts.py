"""How operators divide that only put elements elsewhere."""

from __future__ import annotations

from loadmaster.workloads.frontends.onnx.division.table import (
    WHOLE,
    Division,
    Windows,
    aligned,
    along,
    division_rule,
)
from loadmaster.workloads.frontends.onnx.types import Node
from loadmaster.workloads.window import ALL, Window, identity


@division_rule("Transpose")
def _transpose(node: Node) -> Division:
    rank = len(node.result.shape)
    order = node.integers("perm") or list(range(rank))[::-1]
    return Division(
        tuple(range(rank)),
        {0: tuple(Window(order.index(axis)) for axis in range(rank))},
        copies=True,
    )


@division_rule("Concat")
def _concatenation(node: Node) -> Division:
    rank = len(node.result.shape)
    axis = node.attrs.get("axis", 1) % rank
    operands: dict[int, Windows] = {}
    start = 0
    for index, value in enumerate(node.inputs):
        if value:
            operands[index] = tuple(
                Window(a, low=-start, high=-start) if a == axis else Window(a) for a in range(rank)
            )
            start += value.shape[axis]
    return Division(tuple(range(rank)), operands, copies=len(set(node.inputs)) == len(node.inputs))


@division_rule("Expand")
def _expansion(node: Node) -> Division:
    shape = node.result.shape
    return Division(tuple(range(len(shape))), {0: aligned(node.shape(0), shape)})


@division_rule("Tile")
def _repetition(node: Node) -> Division:
    """What is repeated is needed as a whole: where in it a piece begins is no linear function."""
    data, result = node.shape(0), node.result.shape
    if len(data) != len(result):
        return WHOLE
    windows = tuple(
        Window(axis) if before == after else ALL
        for axis, (before, after) in enumerate(zip(data, result, strict=True))
    )
    return Division(tuple(range(len(result))), {0: windows})


@division_rule("Trilu")
def _triangle(node: Node) -> Division:
    rank = len(node.result.shape)
    return Division(tuple(range(rank)), {0: identity(rank)})


@division_rule("Pad")
def _padding(node: Node) -> Division:
    """What is not constant repeats elements, and is needed as a whole along the dimensions that are
    padded."""
    rank = len(node.result.shape)
    pads = _pads_before(node, rank)
    if pads is None:
        return WHOLE
    if node.attrs.get("mode", "constant") != "constant":
        return along(
            rank, {axis for axis in range(rank) if node.shape(0)[axis] != node.result.shape[axis]}
        )
    return Division(
        tuple(range(rank)), {0: tuple(Window(a, low=-pads[a], high=-pads[a]) for a in range(rank))}
    )


def _pads_before(node: Node, rank: int) -> list[int] | None:
    """Padding before the first element of every dimension; None where it is not known."""
    given = node.integers("pads", 1) or node.integers("paddings")
    axes = node.integers("axes", 3) if node.optional(3) else list(range(rank))
    if not given or axes is None or len(given) != 2 * len(axes):
        return None
    before = dict.fromkeys(range(rank), 0) | {
        axis % rank: pad for axis, pad in zip(axes, given, strict=False)
    }
    return [before[axis] for axis in range(rank)]


@division_rule("Slice")
def _slice(node: Node) -> Division:
    """A piece reads what steps pass over, but for what lies before its first element and behind its
    last; backwards it needs all."""
    rank, data = len(node.result.shape), node.shape(0)
    starts = node.integers("starts", 1)
    axes = node.integers("axes", 3) or list(range(len(starts or ())))
    steps = node.integers("steps", 4) or [1] * len(axes)
    if starts is None or not len(starts) == len(axes) == len(steps):
        return WHOLE
    windows = list(identity(rank))
    for axis, start, step in zip(axes, starts, steps, strict=True):
        extent = data[axis % rank]
        begin = min(max(start + extent if start < 0 else start, 0), extent)
        windows[axis % rank] = Window(axis % rank, step, 1, begin, begin) if step > 0 else ALL
    return Division(tuple(range(rank)), {0: tuple(windows)})


@division_rule("Gather")
def _selection(node: Node) -> Division:
    """One element of a dimension, or some that follow one another; others are known only at run
    time."""
    indices, data = node.operand(1), node.shape(0)
    chosen, axis = indices.integers(), node.attrs.get("axis", 0) % len(data)
    # Indices below 0 count from the end.
    places = [index + data[axis] if index < 0 else index for index in chosen or ()]
    if (
        not places
        or len(indices.shape) > 1
        or places != list(range(places[0], places[0] + len(places)))
    ):
        return WHOLE
    first, rank = places[0], len(node.result.shape)
    here = Window(axis, low=first, high=first) if indices.shape else Window(0, 0, 1, first, first)
    later = 0 if indices.shape else 1
    windows = (*identity(axis), here, *(Window(d - later) for d in range(axis + 1, len(data))))
    return Division(tuple(range(rank)), {0: windows})


@division_rule("DepthToSpace")
def _depth_to_space(node: Node) -> Division:
    block = node.attrs["blocksize"]
    return Division((0, 2, 3), {0: (Window(0), ALL, Window(2, 1, block), Window(3, 1, block))})


@division_rule("SpaceToDepth")
def _space_to_depth(node: Node) -> Division:
    block = node.attrs["blocksize"]
    return Division(
        (0, 2, 3),
        {0: (Window(0), ALL, Window(2, block, 1, 0, block - 1), Window(3, block, 1, 0, block - 1))},
    )

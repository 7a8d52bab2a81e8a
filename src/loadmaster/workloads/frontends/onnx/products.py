"""Matrix products as loop nests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import (
    MICROSOFT,
    WHOLE,
    Division,
    Result,
    ShapeRule,
    Windows,
    aligned,
    divided,
    rule,
    variant,
)
from loadmaster.workloads.frontends.onnx.types import (
    Node,
    Shape,
    Work,
    broadcast_shapes,
    product,
)
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.window import ALL, SUMMED, Window, identity


def _shapes(node: Node, b: int) -> tuple[Shape, Shape]:
    """Shapes of the factors, operands 0 and ``b``, after the transpositions that attributes
    state."""
    shapes = []
    for index, letter in ((0, "A"), (b, "B")):
        shape = node.shape(index)
        if node.attrs.get(f"transBatch{letter}") and len(shape) > 2:
            shape = (*shape[1:-1], shape[0], shape[-1])
        if node.attrs.get(f"trans{letter}") and len(shape) > 1:
            shape = (*shape[:-2], shape[-1], shape[-2])
        shapes.append(shape)
    return shapes[0], shapes[1]


def _matrices(a: Shape, b: Shape) -> tuple[Shape, Shape]:
    """Shapes of the factors with a row or a column added where one is a vector."""
    return (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b


def matrix_nest(node: Node, b: int = 1) -> LoopNest:
    """Make the loop nest of a product of operands 0 and ``b`` by numpy's rules.

    Leading dimensions that ``b`` lacks are more rows of the same product (``y``) if it lacks them
    all, and otherwise runs over the same weight (``batch``); those that both have are ``groups``.
    """
    left, right = _matrices(*_shapes(node, b))
    if left[-1] != right[-2]:
        raise ModelError(
            f"its operands' inner dimensions differ, {left[-1]} and {right[-2]}: the file is"
            " damaged, export it again"
        )
    lead = broadcast_shapes(left[:-2], right[:-2])
    shared = (1,) * (len(lead) - len(right) + 2) + right[:-2]
    batch = math.prod(size for size, other in zip(lead, shared, strict=True) if other == 1)
    groups = math.prod(lead) // batch
    rows, batch = (left[-2] * batch, 1) if groups == 1 else (left[-2], batch)
    return _named(node, LoopNest(right[-1], left[-1], rows, groups=groups, batch=batch), b)


def _matmul(node: Node, b: int = 1, data: int = 0) -> Work:
    return product(matrix_nest(node, b), data=data)


def _named(node: Node, nest: LoopNest, b: int = 1) -> LoopNest:
    return replace(nest, input=node.label(0), weight=node.label(b), output=node.result.name)


def _divided(node: Node, b: int = 1, inner: Window = ALL, bias: int = 0) -> Division:
    """Rows and columns, and every dimension before them; see :func:`matrix_nest` for the loops that
    they are.

    ``inner`` is the window of the dimension that both operands share: nothing but its products may
    be in the sum for it to be in parts.
    """
    left, right = _shapes(node, b)
    if not left or not right or node.attrs.get("transBatchA") or node.attrs.get("transBatchB"):
        return WHOLE
    rank = len(node.result.shape)
    lead = node.result.shape[: rank - (len(left) > 1) - (len(right) > 1)]
    rows = () if len(left) == 1 else (Window(len(lead)),)
    columns = () if len(right) == 1 else (Window(rank - 1),)
    operands: dict[int, Windows] = {}
    for index, letter, shape, own in (
        (0, "A", left, (*rows, inner)),
        (b, "B", right, (inner, *columns)),
    ):
        swapped = node.attrs.get(f"trans{letter}")
        operands[index] = (*aligned(shape[:-2], lead), *(own[::-1] if swapped else own))
    if bias and node.optional(bias):
        operands[bias] = aligned(node.shape(bias), node.result.shape)
    shared = (1,) * (len(lead) - len(right[:-2])) + right[:-2]
    one_product = all(other == 1 for other in shared)
    names = ["y" if one_product else "batch" if other == 1 else "groups" for other in shared]
    return divided(operands, (*names, *("y" for _ in rows), *("channels" for _ in columns)))


def _product_shape(dtype: Callable[[Node], str], b: int = 1) -> ShapeRule:
    """Shape of a matrix product by numpy's rules."""

    def shapes(node: Node) -> list[Result]:
        a, c = _shapes(node, b)
        left, right = _matrices(a, c)
        lead = broadcast_shapes(left[:-2], right[:-2])
        rows, columns = left[-2:-1] if len(a) > 1 else (), right[-1:] if len(c) > 1 else ()
        return [(dtype(node), (*lead, *rows, *columns))]

    return shapes


def _type_of(index: int) -> Callable[[Node], str]:
    return lambda node: node.operand(index).dtype


rule("MatMul", _matmul, partial(_divided, inner=SUMMED))
rule("MatMulInteger", _matmul, _divided)
rule("QLinearMatMul", partial(_matmul, b=3), partial(_divided, b=3))
rule("Gemm", _matmul, partial(_divided, inner=SUMMED, bias=2))
# An activation follows the sum, which therefore cannot be in parts.
variant("FusedGemm", like="Gemm", division=partial(_divided, bias=2))
rule("FusedMatMul", _matmul, _divided, shapes=_product_shape(_type_of(0)), domain=MICROSOFT)
rule(
    "MatMulIntegerToFloat", _matmul, _divided, shapes=_product_shape(_type_of(2)), domain=MICROSOFT
)
# Eight bits if the result has a zero point, else the scales' type.
rule(
    "QGemm",
    partial(_matmul, b=3),
    shapes=_product_shape(lambda node: node.operand(0 if node.optional(8) else 1).dtype, 3),
    domain=MICROSOFT,
)


def _dynamic_matmul(node: Node) -> Work:
    """The floating operand is quantised at run time, and the weight's width is that of the
    arithmetic."""
    return replace(_matmul(node, data=1), elements=node.operand(0).count)


rule(
    "DynamicQuantizeMatMul",
    _dynamic_matmul,
    _divided,
    shapes=_product_shape(_type_of(0)),
    domain=MICROSOFT,
)


def _packed_matmul(node: Node) -> Work:
    """The weight is packed, so that only the attributes tell its logical shape."""
    inner = node.attrs["K"]
    rows = node.operand(0).count // inner
    return product(_named(node, LoopNest(node.attrs["N"], inner, rows)))


def _packed_divided(node: Node) -> Division:
    """Weights, scales and zero points are packed column by column."""
    rank, columns = len(node.result.shape), node.attrs["N"]
    operands: dict[int, Windows] = {0: (*identity(rank - 1), ALL)}
    for index in (1, 2, 3, 5):
        value = node.optional(index)
        if value is not None and value.shape and value.shape[0] % columns == 0:
            each = value.shape[0] // columns
            operands[index] = (Window(rank - 1, unit=each), *(ALL for _ in value.shape[1:]))
    return divided(operands, (*("y" for _ in range(rank - 1)), "channels"))


def _packed_shape(node: Node) -> list[Result]:
    first = node.operand(0)
    return [(first.dtype, (*first.shape[:-1], node.attrs["N"]))]


rule(
    "MatMulNBits",
    _packed_matmul,
    _packed_divided,
    shapes=_packed_shape,
    domain=MICROSOFT,
)

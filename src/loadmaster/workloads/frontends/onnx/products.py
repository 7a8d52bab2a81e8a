"""Matrix products as loop nests: of two operands, by the equation of ``Einsum``, and in recurrent
cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Set
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
    named,
    product,
)
from loadmaster.workloads.frontends.operation_counts import GATE_STEPS
from loadmaster.workloads.graph import LoopNest, OpClass
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
    return named(node, LoopNest(right[-1], left[-1], rows, groups=groups, batch=batch), b)


def _matmul(node: Node, b: int = 1, data: int = 0) -> Work:
    return product(matrix_nest(node, b), data=data)


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
        rows = left[-2:-1] if len(a) > 1 else ()
        columns = right[-1:] if len(c) > 1 else ()
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
    return product(named(node, LoopNest(node.attrs["N"], inner, rows)))


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


Term = tuple[str, ...]


def parse_equation(equation: str, ranks: list[int]) -> tuple[list[Term], Term]:
    """Return the labels of each operand and of the result; an ellipsis becomes labels ``.0``,
    ``.1``, ... counted from the right."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(ranks):
        raise ModelError(
            f"equation {equation!r} does not fit its {len(ranks)} operands: export the network"
            " again"
        )
    terms = [_labels(text, rank) for text, rank in zip(texts, ranks, strict=True)]
    widest = max((sum(label[0] == "." for label in term) for term in terms), default=0)
    if arrow:
        return terms, _labels(right, widest + len(right.replace("...", "")))
    flat = [label for term in terms for label in term]
    dots = tuple(f".{axis}" for axis in range(widest - 1, -1, -1))
    return terms, dots + tuple(
        sorted({label for label in flat if label[0] != "." and flat.count(label) == 1})
    )


def _labels(text: str, rank: int) -> Term:
    before, dots, after = text.partition("...")
    missing = rank - len(before) - len(after) if dots else 0
    if missing < 0 or (not dots and len(text) != rank):
        raise ModelError(
            f"term {text!r} of its equation does not fit an operand with {rank} dimensions: export"
            " the network again"
        )
    return (*before, *(f".{axis}" for axis in range(missing - 1, -1, -1)), *after)


def _einsum(node: Node) -> Work:
    """Products pairwise from left to right; labels of one operand alone are summed before they
    enter a product."""
    operands = node.present
    terms, result = parse_equation(node.attrs["equation"], [len(value.shape) for value in operands])
    sizes: dict[str, int] = {}
    for term, value in zip(terms, operands, strict=True):
        for label, size in zip(term, value.shape, strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    if len(terms) == 1:
        reduces = set(terms[0]) - set(result)
        return (
            Work(OpClass.REDUCTION, elements=operands[0].count)
            if reduces
            else Work(OpClass.MOVEMENT)
        )

    def extent(labels: Set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    nests = []
    left, name = _used(terms[0], operands[0].shape), operands[0].name
    for index in range(1, len(terms)):
        right = _used(terms[index], operands[index].shape)
        later = set(result).union(*terms[index + 1 :])
        # Shared labels that later operands or the result have are groups; others are summed over.
        nests.append(
            LoopNest(
                k=extent((right - left) & later),
                c=extent((left & right) - later),
                y=extent((left - right) & later),
                groups=extent(left & right & later),
                input=name,
                weight=operands[index].name,
                output=node.result.name if index == len(terms) - 1 else "",
            )
        )
        left, name = (left | right) & later, ""
    return product(*nests)


def _used(term: Term, shape: tuple[int, ...]) -> set[str]:
    """Return the labels that an operand varies over; a dimension of size 1 is broadcast."""
    return {label for label, size in zip(term, shape, strict=True) if size > 1}


def _einsum_divided(node: Node) -> Division:
    """Every index of the result belongs to a loop of the one product that it is."""
    terms, target = parse_equation(
        node.attrs["equation"], [len(value.shape) for value in node.present]
    )
    if len(terms) > 2 or any(len(set(term)) != len(term) for term in terms):
        return WHOLE
    operands: dict[int, Windows] = {}
    used = [_used(term, node.shape(index)) for index, term in enumerate(terms)]
    for index, term in enumerate(terms):
        kept = used[index] & set(target)
        operands[index] = tuple(
            Window(target.index(label)) if label in kept else ALL for label in term
        )
    shared = used[0] & used[-1]
    loops = tuple(
        "groups" if label in shared else "y" if label in used[0] else "channels" for label in target
    )
    return Division(tuple(range(len(target))), operands, loops)


rule("Einsum", _einsum, _einsum_divided)


def _recurrent(node: Node) -> Work:
    """Weights are (directions, gates * hidden, width); ``layout`` 1 puts the batch before the
    steps."""
    first, second, _ = node.shape(0)
    steps, batch = (second, first) if node.attrs.get("layout") else (first, second)
    return cell(node, steps, batch, hidden=node.shape(2)[2], gates=node.shape(1)[1])


def cell(node: Node, steps: int, batch: int, hidden: int, gates: int, elements: int = 0) -> Work:
    """Make the work of a recurrent cell with ``gates`` rows of weights; ``elements`` are scalar
    operations besides those of the gates."""
    directions, width = node.shape(1)[0], node.shape(0)[2]
    whole = LoopNest(
        k=gates,
        c=width,
        y=steps * batch,
        groups=directions,
        input=node.label(0),
        weight=node.label(1),
    )
    stepwise = LoopNest(
        k=gates,
        c=hidden,
        y=batch,
        groups=directions,
        repeats=steps,
        weight=node.label(2),
        output=node.result.name,
    )
    return product(
        whole, stepwise, elements=elements + GATE_STEPS * directions * gates * steps * batch
    )


def _dynamic_cell(node: Node) -> Work:
    """The input is quantised at run time, and so is the state at every step."""
    directions, hidden, gates = node.shape(2)
    steps, batch, _ = node.shape(0)
    quantised = node.operand(0).count + directions * hidden * steps * batch
    return replace(cell(node, steps, batch, hidden, gates, quantised), data=1)


def _dynamic_shapes(node: Node) -> list[Result]:
    """Weights are (directions, width, gates * hidden): the other way round than in the standard
    operator."""
    steps, batch, _ = node.shape(0)
    directions, hidden, _ = node.shape(2)
    dtype, state = node.operand(0).dtype, (directions, batch, hidden)
    return [(dtype, (steps, *state)), (dtype, state), (dtype, state)]


rule("LSTM GRU RNN", _recurrent)
rule("DynamicQuantizeLSTM", _dynamic_cell, shapes=_dynamic_shapes, domain=MICROSOFT)

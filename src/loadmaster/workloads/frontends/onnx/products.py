"""Matrix products as loop nests: of two operands, by the equation of ``Einsum``, and in recurrent
cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
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
    GATE_STEPS,
    Node,
    Work,
    named,
    product,
)
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import ALL, SUMMED, Window, identity

Term = tuple[str, ...]


def _factors(node: Node, b: int = 1) -> tuple[dict[int, Term], Term]:
    """Labels of a matrix product by numpy's rules: of its factors, operands 0 and ``b`` as
    attributes transpose them, and of its result."""
    terms: dict[int, Term] = {}
    for index, letter, both in ((0, "A", ("row", "inner")), (b, "B", ("inner", "column"))):
        rank = len(node.shape(index))
        own: Term = both if rank > 1 else ("inner",)
        own = own[::-1] if node.attrs.get(f"trans{letter}") else own
        first = 1 if node.attrs.get(f"transBatch{letter}") else 0
        terms[index] = (*own[:first], *_dots(rank - 2), *own[first:])
    lead = _dots(max(map(len, terms.values())) - 2)
    kept = [label for label in ("row", "column") if any(label in each for each in terms.values())]
    return terms, (*lead, *kept)


def _dots(count: int) -> Term:
    """Labels of the dimensions before those that are named, counted from the right."""
    return tuple(f".{axis}" for axis in range(count - 1, -1, -1))


def _extents(node: Node, terms: Mapping[int, Term]) -> dict[str, int]:
    """Extent of each label; a dimension of size 1 is broadcast, unless it is a matrix's."""
    extents: dict[str, int] = {}
    for index, term in terms.items():
        for label, size in zip(term, node.shape(index), strict=True):
            known = extents.setdefault(label, size)
            if size != known and (label == "inner" or 1 not in (size, known)):
                raise ModelError(
                    f"its operands differ along a dimension that they share, {known} and {size}:"
                    " the file is damaged, export it again"
                )
            extents[label] = size if known == 1 else known
    return extents


def _used(node: Node, index: int, term: Term) -> set[str]:
    """Return the labels that an operand varies over; a dimension of size 1 is broadcast."""
    return {label for label, size in zip(term, node.shape(index), strict=True) if size != 1}


def _nests(node: Node, terms: Mapping[int, Term], target: Term) -> list[LoopNest]:
    """Products pairwise from left to right; labels of one operand alone are summed before they
    enter a product.

    Shared labels that later operands or the result have are groups, and others are summed over.
    Leading dimensions that the right factor lacks are more rows of the same product (``y``) if it
    lacks them all, and otherwise runs over the same weight (``batch``).
    """
    extents, nests, (first, *others) = _extents(node, terms), [], terms
    left, name = _used(node, first, terms[first]), node.label(first)
    for place, index in enumerate(others, 1):
        right = _used(node, index, terms[index])
        later = set(target).union(*(terms[each] for each in others[place:]))
        groups = {label for label in right & later if label in left or label[0] == "."}
        rows = (left - groups) & later
        runs = {label for label in rows if label[0] == "." and groups}

        def extent(labels: Set[str]) -> int:
            return math.prod(extents[label] for label in labels)

        nests.append(
            LoopNest(
                k=extent((right - groups - left) & later),
                c=extent((left & right) - later),
                y=extent(rows - runs),
                groups=extent(groups),
                batch=extent(runs),
                input=name,
                weight=node.label(index),
                output=node.result.name if place == len(others) else "",
            )
        )
        left, name = (left | right) & later, ""
    return nests


def matrix_nest(node: Node, b: int = 1) -> LoopNest:
    """Make the loop nest of a product of operands 0 and ``b`` by numpy's rules."""
    return _nests(node, *_factors(node, b))[0]


def _matmul(node: Node, b: int = 1, data: int = 0) -> Work:
    return product(matrix_nest(node, b), data=data)


def _contracted(
    node: Node, terms: Mapping[int, Term], target: Term, inner: Window = ALL
) -> Division:
    """Every label of the result belongs to a loop of the one product that it is; ``inner`` is the
    window of the others."""
    if len(target) != len(node.result.shape):
        return WHOLE
    extents = _extents(node, terms)
    operands: dict[int, Windows] = {}
    for index, term in terms.items():
        sizes = zip(term, node.shape(index), strict=True)
        operands[index] = tuple(
            inner
            if label not in target
            else Window(target.index(label))
            if size == extents[label]
            else ALL
            for label, size in sizes
        )
    first, last = min(terms), max(terms)
    left, right = (_used(node, index, terms[index]) for index in (first, last))
    groups = {label for label in right & {*target} if label in left or label[0] == "."}
    rows = "batch" if groups else "y"
    loops = {label: "y" if label in terms[first] else "channels" for label in target}
    loops |= dict.fromkeys(right, "channels") | {a: rows for a in target if a[0] == "."}
    loops |= dict.fromkeys(groups, "groups")
    return divided(operands, tuple(loops[label] for label in target))


def _divided(node: Node, b: int = 1, inner: Window = ALL, bias: int = 0) -> Division:
    """Rows and columns, and every dimension before them.

    ``inner`` is the window of the dimension that both operands share: nothing but its products may
    be in the sum for it to be in parts.
    """
    found = _contracted(node, *_factors(node, b), inner)
    if bias and node.optional(bias):
        found.operands[bias] = aligned(node.shape(bias), node.result.shape)
    return found


def _product_shape(dtype: Callable[[Node], str], b: int = 1) -> ShapeRule:
    """Shape of a matrix product by numpy's rules."""

    def shapes(node: Node) -> list[Result]:
        terms, target = _factors(node, b)
        extents = _extents(node, terms)
        return [(dtype(node), tuple(extents[label] for label in target))]

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
    like="MatMul",
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


def _equation(node: Node) -> tuple[dict[int, Term], Term]:
    """Return the labels of each operand and of the result; those that an ellipsis stands for begin
    with a dot."""
    equation = node.attrs["equation"]
    left, arrow, right = equation.replace(" ", "").partition("->")
    texts = left.split(",")
    if len(texts) != len(node.present):
        raise ModelError(
            f"equation {equation!r} does not fit its {len(node.present)} operands: export the"
            " network again"
        )
    terms = {i: _labels(text, len(node.shape(i))) for i, text in enumerate(texts)}
    flat = [label for term in terms.values() for label in term]
    dots = _dots(len({label for label in flat if label[0] == "."}))
    if arrow:
        return terms, _labels(right, len(dots) + len(right.replace("...", "")))
    single = {label for label in flat if label[0] != "." and flat.count(label) == 1}
    return terms, (*dots, *sorted(single))


def _labels(text: str, rank: int) -> Term:
    before, dots, after = text.partition("...")
    missing = rank - len(before) - len(after) if dots else 0
    if missing < 0 or (not dots and len(text) != rank):
        raise ModelError(
            f"term {text!r} of its equation does not fit an operand with {rank} dimensions: export"
            " the network again"
        )
    return (*before, *_dots(missing), *after)


def _einsum(node: Node) -> Work:
    terms, target = _equation(node)
    if len(terms) > 1:
        return product(*_nests(node, terms, target))
    if set(terms[0]) - set(target):
        return Work(OpClass.REDUCTION, elements=node.operand(0).count)
    return Work(OpClass.MOVEMENT)


def _einsum_divided(node: Node) -> Division:
    terms, target = _equation(node)
    unclear = len(terms) > 2 or any(len(set(term)) != len(term) for term in terms.values())
    return WHOLE if unclear else _contracted(node, terms, target)


rule("Einsum", _einsum, _einsum_divided)


def cell(
    steps: int,
    batch: int,
    width: int,
    hidden: int,
    gates: int,
    names: Sequence[str],
    directions: int = 1,
    elements: int = 0,
) -> Work:
    """Make the work of a recurrent cell with ``gates`` rows of weights: the input product of all
    steps at once, the recurrent product step after step.

    ``names`` are those of the input, of both weights and of the result; ``elements`` are scalar
    operations besides those of the gates.
    """
    source, inner, state, output = names
    whole = LoopNest(gates, width, steps * batch, groups=directions, input=source, weight=inner)
    stepwise = LoopNest(
        gates, hidden, batch, groups=directions, repeats=steps, weight=state, output=output
    )
    elements += GATE_STEPS * directions * gates * steps * batch
    return product(whole, stepwise, elements=elements)


def _cell(node: Node, layout: int, hidden: int, gates: int, elements: int = 0) -> Work:
    """Operands (steps, batch, width), or the batch first in layout 1."""
    (first, second, width), directions = node.shape(0), node.shape(1)[0]
    steps, batch = (second, first) if layout else (first, second)
    names = (*(node.label(index) for index in range(3)), node.result.name)
    return cell(steps, batch, width, hidden, gates, names, directions, elements)


def _recurrent(node: Node) -> Work:
    """Weights are (directions, gates * hidden, width)."""
    return _cell(node, node.attrs.get("layout", 0), node.shape(2)[2], node.shape(1)[1])


def _dynamic_cell(node: Node) -> Work:
    """The input is quantised at run time, and so is the state at every step."""
    directions, hidden, gates = node.shape(2)
    steps, batch, _ = node.shape(0)
    quantised = node.operand(0).count + directions * hidden * steps * batch
    return replace(_cell(node, 0, hidden, gates, quantised), data=1)


def _dynamic_shapes(node: Node) -> list[Result]:
    """Weights are (directions, width, gates * hidden): the other way round than in the standard
    operator."""
    steps, batch, _ = node.shape(0)
    directions, hidden, _ = node.shape(2)
    dtype, state = node.operand(0).dtype, (directions, batch, hidden)
    return [(dtype, (steps, *state)), (dtype, state), (dtype, state)]


rule("LSTM GRU RNN", _recurrent)
rule("DynamicQuantizeLSTM", _dynamic_cell, shapes=_dynamic_shapes, domain=MICROSOFT)

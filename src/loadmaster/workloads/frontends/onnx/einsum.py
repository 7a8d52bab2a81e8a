"""``Einsum``: its equation as matrix products, and how it divides."""

from __future__ import annotations

import math
from collections.abc import Set

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.rules import WHOLE, Division, Windows, rule
from loadmaster.workloads.frontends.onnx.types import Node, Work, product
from loadmaster.workloads.graph import LoopNest, OpClass
from loadmaster.workloads.window import ALL, Window

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


def contraction(
    a: Set[str], b: Set[str], kept: Set[str], sizes: dict[str, int], names: tuple[str, str, str]
) -> LoopNest:
    """Make the loop nest of two operands: shared labels that are ``kept`` are groups, other shared
    ones are summed over."""

    def extent(labels: Set[str]) -> int:
        return math.prod(sizes[label] for label in labels)

    return LoopNest(
        k=extent((b - a) & kept),
        c=extent((a & b) - kept),
        y=extent((a - b) & kept),
        groups=extent(a & b & kept),
        input=names[0],
        weight=names[1],
        output=names[2],
    )


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
    nests = []
    left, name = _used(terms[0], operands[0].shape), operands[0].name
    for index in range(1, len(terms)):
        right = _used(terms[index], operands[index].shape)
        later = set(result).union(*terms[index + 1 :])
        output = node.result.name if index == len(terms) - 1 else ""
        nests.append(contraction(left, right, later, sizes, (name, operands[index].name, output)))
        left, name = (left | right) & later, ""
    return product(*nests)


def _used(term: Term, shape: tuple[int, ...]) -> set[str]:
    """Return the labels that an operand varies over; a dimension of size 1 is broadcast."""
    return {label for label, size in zip(term, shape, strict=True) if size > 1}


def _divided(node: Node) -> Division:
    """Every index of the result belongs to a loop of the one product that it is; see
    :func:`contraction`."""
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


rule("Einsum", _einsum, _divided)

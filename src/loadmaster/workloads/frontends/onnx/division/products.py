"""How matrix products divide."""

from __future__ import annotations

from loadmaster.workloads.frontends.onnx.division.table import (
    WHOLE,
    Division,
    Windows,
    aligned,
    division_rule,
)
from loadmaster.workloads.frontends.onnx.einsum import parse_equation
from loadmaster.workloads.frontends.onnx.types import Node
from loadmaster.workloads.window import ALL, SUMMED, Window, identity


def _matrix_product(node: Node, a: int, b: int, inner: Window = ALL) -> Division:
    """Rows and columns, and every dimension before them; see ``matrix_nest`` for the loops that
    they are.

    ``inner`` is the window of the dimension that both operands share: nothing but its products may
    be in the sum for it to be in parts.
    """
    left, right, result = node.shape(a), node.shape(b), node.result.shape
    if not left or not right or not result:
        return WHOLE
    rank = len(result)
    lead = result[: rank - (len(left) > 1) - (len(right) > 1)]
    columns = () if len(right) == 1 else (Window(rank - 1),)
    rows = () if len(left) == 1 else (Window(len(lead)),)
    windows_a = (*aligned(left[:-2], lead), *rows, inner)
    windows_b = (*aligned(right[:-2], lead), inner, *columns)
    shared = (1,) * (len(lead) - len(right[:-2])) + right[:-2]
    one_product = all(other == 1 for other in shared)
    names = tuple("y" if one_product else "batch" if other == 1 else "groups" for other in shared)
    return Division(
        tuple(range(rank)),
        {a: windows_a, b: windows_b},
        (*names, *(["y"] if rows else []), *(["channels"] if columns else [])),
    )


@division_rule("MatMul")
def _plain_matrix_product(node: Node) -> Division:
    return _matrix_product(node, 0, 1, SUMMED)


@division_rule("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
def _integer_matrix_product(node: Node) -> Division:
    return _matrix_product(node, 0, 1)


@division_rule("QLinearMatMul")
def _quantised_matrix_product(node: Node) -> Division:
    return _matrix_product(node, 0, 3)


@division_rule("Gemm", "FusedGemm")
def _general_matrix_product(node: Node) -> Division:
    a = (SUMMED, Window(0)) if node.attrs.get("transA") else (Window(0), SUMMED)
    b = (Window(1), SUMMED) if node.attrs.get("transB") else (SUMMED, Window(1))
    operands: dict[int, Windows] = {0: a, 1: b}
    if node.optional(2):
        operands[2] = aligned(node.shape(2), node.result.shape)
    return Division((0, 1), operands, ("y", "channels"))


@division_rule("FusedMatMul", "TransposeMatMul")
def _transposing_matrix_product(node: Node) -> Division:
    """A matrix product that takes its operands with the last two dimensions swapped."""
    if (
        node.attrs.get("transBatchA")
        or node.attrs.get("transBatchB")
        or min(len(node.shape(0)), len(node.shape(1))) < 2
    ):
        return WHOLE
    found = _matrix_product(node, 0, 1)
    for index, swapped in enumerate(("transA", "transB")):
        windows = found.operands[index]
        if node.attrs.get(swapped):
            found.operands[index] = (*windows[:-2], windows[-1], windows[-2])
    return found


@division_rule("MatMulNBits")
def _packed_matrix_product(node: Node) -> Division:
    """Weights, scales and zero points are packed column by column."""
    rank, columns = len(node.result.shape), node.attrs["N"]
    operands: dict[int, Windows] = {0: (*identity(rank - 1), ALL)}
    for index in (1, 2, 3, 5):
        value = node.optional(index)
        if value is not None and value.shape and value.shape[0] % columns == 0:
            each = value.shape[0] // columns
            operands[index] = (Window(rank - 1, unit=each), *(ALL for _ in value.shape[1:]))
    return Division(tuple(range(rank)), operands, (*("y" for _ in range(rank - 1)), "channels"))


@division_rule("Einsum")
def _einsum(node: Node) -> Division:
    """Every index of the result belongs to a loop of the one product that it is; see
    ``contraction`` in ``einsum.py``."""
    terms, target = parse_equation(
        node.attrs["equation"], [len(value.shape) for value in node.present]
    )
    if len(terms) > 2 or any(len(set(term)) != len(term) for term in terms):
        return WHOLE
    operands: dict[int, Windows] = {}
    used: list[set[str]] = []
    for index, term in enumerate(terms):
        extents = dict(zip(term, node.shape(index), strict=True))
        used.append({label for label, extent in extents.items() if extent > 1})
        operands[index] = tuple(
            Window(target.index(label)) if label in used[-1] & set(target) else ALL
            for label in term
        )
    shared = used[0] & used[-1]
    loops = tuple(
        "groups" if label in shared else "y" if label in used[0] else "channels" for label in target
    )
    return Division(tuple(range(len(target))), operands, loops)

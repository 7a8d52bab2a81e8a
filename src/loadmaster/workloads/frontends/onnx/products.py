"""Convolutions and matrix products as loop nests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from loadmaster.core.errors import ModelError
from loadmaster.workloads.frontends.onnx.contrib import (
    MICROSOFT,
    NCHWC,
    channels_first,
    matrix_shapes,
)
from loadmaster.workloads.frontends.onnx.rules import rule
from loadmaster.workloads.frontends.onnx.types import Node, Shape, Work, broadcast_shapes
from loadmaster.workloads.frontends.operation_counts import NORMALISATION_STEPS, folded
from loadmaster.workloads.graph import LoopNest, OpClass


def product(*nests: LoopNest, elements: int = 0, data: int = 0) -> Work:
    """Make the work of multiply-accumulate loops; raises for an empty loop, which only a damaged
    file has."""
    for nest in nests:
        if min(nest.extents) < 1:
            raise ModelError(
                "its operands' shapes leave a loop without rounds: the file is damaged, export it"
                " again"
            )
    return Work(OpClass.PRODUCT, nests, elements, data=data)


def _pair(values: list[int] | None) -> tuple[int, int]:
    """Stride or dilation of the two innermost dimensions."""
    pair = (1, 1, *(values or ()))[-2:]
    return pair[0], pair[1]


def convolution(node: Node, data: int, weight: int, positions: Shape) -> LoopNest:
    """Make the loop nest of a convolution whose weight is laid out (K, C / groups, taps...).

    In blocks of channels, the weight alone tells how many there are: the operand may be padded to
    whole blocks.
    """
    filters = node.shape(weight)
    groups = node.attrs.get("group", 1)
    fits = node.domain == NCHWC or node.shape(data)[1] == filters[1] * groups
    if groups < 1 or not fits or filters[0] % groups:
        channels = (
            f"{node.shape(data)[1]} channels, weights of shape {list(filters)} and {groups} groups"
        )
        raise ModelError(
            f"its input of {channels} do not fit together: the file is damaged, export it again"
        )
    (y, x), (r, s) = folded(positions), folded(filters[2:])
    return LoopNest(
        k=filters[0] // groups,
        c=filters[1],
        y=y,
        x=x,
        r=r,
        s=s,
        groups=groups,
        batch=node.shape(data)[0],
        stride=_pair(node.integers("strides")),
        dilation=_pair(node.integers("dilations")),
        input=node.label(data),
        weight=node.label(weight),
        output=node.result.name,
    )


@rule("Conv", "ConvInteger", "DeformConv")
@rule("FusedConv", "NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
@rule("Conv", domain=NCHWC)
def _conv(node: Node) -> Work:
    node = channels_first(node)
    return product(convolution(node, 0, 1, node.result.shape[2:]))


@rule("QLinearConv")
@rule("QLinearConv", domain=MICROSOFT)
def _quantised_conv(node: Node) -> Work:
    node = channels_first(node)
    return product(convolution(node, 0, 3, node.result.shape[2:]))


@rule("CausalConvWithState")
@rule("CausalConvWithState", domain=MICROSOFT)
def _causal_conv(node: Node) -> Work:
    """Each channel by itself, over the current and the earlier steps."""
    shape, taps = node.shape(0), node.shape(1)[-1]
    channels = node.shape(1)[0]
    nest = LoopNest(
        k=1,
        c=1,
        x=math.prod(shape[1:]) // channels,
        s=taps,
        groups=channels,
        batch=shape[0],
        input=node.label(0),
        weight=node.label(1),
        output=node.result.name,
    )
    return product(nest)


@rule("ConvTranspose")
def _transposed_conv(node: Node) -> Work:
    """Each input pixel meets every tap once; the weight is laid out (C, K / groups, taps...)."""
    filters, groups = node.shape(1), node.attrs.get("group", 1)
    (y, x), (r, s) = folded(node.shape(0)[2:]), folded(filters[2:])
    nest = LoopNest(
        k=filters[1],
        c=filters[0] // groups,
        y=y,
        x=x,
        r=r,
        s=s,
        groups=groups,
        batch=node.shape(0)[0],
        dilation=_pair(node.integers("dilations")),
        input=node.label(0),
        weight=node.label(1),
        output=node.result.name,
    )
    return product(nest)


def matrix_nest(a: Shape, b: Shape, names: tuple[str, str, str]) -> LoopNest:
    """Make the loop nest of ``a @ b`` by numpy's rules.

    Leading dimensions that ``b`` lacks are more rows of the same product (``y``) if it lacks them
    all, and otherwise runs over the same weight (``batch``); those that both have are ``groups``.
    """
    left, right = (1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b
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
    return LoopNest(
        right[-1],
        left[-1],
        rows,
        groups=groups,
        batch=batch,
        input=names[0],
        weight=names[1],
        output=names[2],
    )


def matmul(node: Node, a: int, b: int) -> Work:
    """Make the work of a product of operands ``a`` and ``b`` by numpy's rules."""
    return product(
        matrix_nest(node.shape(a), node.shape(b), (node.label(a), node.label(b), node.result.name))
    )


@rule("MatMul", "MatMulInteger")
@rule("GemmFastGelu", domain=MICROSOFT)
def _plain_matmul(node: Node) -> Work:
    return matmul(node, 0, 1)


@rule("QLinearMatMul")
def _quantised_matmul(node: Node) -> Work:
    return matmul(node, 0, 3)


@rule(
    "FusedMatMul",
    "FusedMatMulActivation",
    "TransposeMatMul",
    "SparseToDenseMatMul",
    domain=MICROSOFT,
)
def _fused_matmul(node: Node) -> Work:
    return product(
        matrix_nest(*matrix_shapes(node), (node.label(0), node.label(1), node.result.name))
    )


@rule("MatMulNBits", "MatMulBnb4", domain=MICROSOFT)
def _packed_matmul(node: Node) -> Work:
    """The weight is packed, so that only the attributes tell its logical shape."""
    rows = node.operand(0).count // node.attrs["K"]
    return product(
        LoopNest(
            node.attrs["N"],
            node.attrs["K"],
            rows,
            input=node.label(0),
            weight=node.label(1),
            output=node.result.name,
        )
    )


@rule("MatMulNBitsMlp", domain=MICROSOFT)
def _packed_gated(node: Node) -> Work:
    """Two products of the same rows, one of which gates the other."""
    return _packed(node, (("N", 3), ("N", 6)), NORMALISATION_STEPS if node.optional(2) else 0)


@rule("MatMulNBitsQkv", domain=MICROSOFT)
def _packed_projections(node: Node) -> Work:
    """Products to queries, keys and values, after a normalisation."""
    return _packed(node, (("Nq", 3), ("Nkv", 6), ("Nkv", 9)), NORMALISATION_STEPS)


def _packed(node: Node, weights: Sequence[tuple[str, int]], steps: int) -> Work:
    """Products with packed weights: the attribute that says its columns, and the operand, of
    each."""
    rows, inner = node.operand(0).count // node.attrs["K"], node.attrs["K"]
    nests = [
        LoopNest(node.attrs[columns], inner, rows, input=node.label(0), weight=node.label(weight))
        for columns, weight in weights
    ]
    return product(*nests, elements=steps * node.operand(0).count)


@rule(
    "MatMulFpQ4", "MatMulBlockQuantizedFp4Weight", "MatMulBlockQuantizedFp8Weight", domain=MICROSOFT
)
def _block_quantised(node: Node) -> Work:
    """The weight is packed; its logical shape is that of the operand's and the result's last
    dimensions."""
    *rows, inner = node.shape(0)
    columns, count = node.result.shape[-1], math.prod(rows)
    return product(
        LoopNest(
            columns,
            inner,
            count,
            input=node.label(0),
            weight=node.label(1),
            output=node.result.name,
        )
    )


@rule("CDist", domain=MICROSOFT)
def _distances(node: Node) -> Work:
    """All pairs of rows."""
    (rows, inner), (columns, _) = node.shape(0), node.shape(1)
    return product(
        LoopNest(
            columns, inner, rows, input=node.label(0), weight=node.label(1), output=node.result.name
        )
    )


@rule("MoE", domain=MICROSOFT)
def _experts(node: Node) -> Work:
    return _mixture(node, (2, 4, 6))


@rule("QMoE", domain=MICROSOFT)
def _packed_experts(node: Node) -> Work:
    return _mixture(node, (2, 5, 8))


def _mixture(node: Node, weights: tuple[int, int, int]) -> Work:
    """Every token passes through ``k`` experts, of which each has two or three matrices; so many of
    them are read at most."""
    width = node.shape(0)[-1]
    tokens, picked, experts = (
        node.operand(0).count // width,
        node.attrs.get("k", 1),
        node.shape(weights[0])[0],
    )
    wide = node.shape(weights[0])[1]
    inner = wide // 2 if node.attrs.get("swiglu_fusion") else wide
    bounds = ((wide, width), (width, inner), (inner, width))
    there = [(at, *sizes) for at, sizes in zip(weights, bounds, strict=True) if node.optional(at)]
    nests = [LoopNest(k, c, tokens * picked, weight=node.label(at)) for at, k, c in there]
    used = min(experts, tokens * picked)
    touched = {at: -(-node.operand(at).bytes * used // experts) for at, _, _ in there}
    return replace(product(*nests, elements=tokens * picked * inner), touched=touched)


def gemm(node: Node, a: int, b: int) -> Work:
    """Make the work of a general matrix product of operands ``a`` and ``b``."""
    rows, inner = node.shape(a)[::-1] if node.attrs.get("transA") else node.shape(a)
    inner_b, columns = node.shape(b)[::-1] if node.attrs.get("transB") else node.shape(b)
    return product(
        matrix_nest(
            (rows, inner), (inner_b, columns), (node.label(a), node.label(b), node.result.name)
        )
    )


@rule("Gemm")
@rule("FusedGemm", "GemmFloat8", domain=MICROSOFT)
def _plain_gemm(node: Node) -> Work:
    return gemm(node, 0, 1)

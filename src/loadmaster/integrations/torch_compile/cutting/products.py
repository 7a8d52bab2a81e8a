"""Matrix products in blocks of rows, columns, and terms of the sums."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import Call, View
from loadmaster.integrations.torch_compile.cutting.block_call import Operand, empty, fast
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, blocks, narrowed, parts

aten: Any = torch.ops.aten
_SEEK = 128 << 10
"""What a separate read costs, in bytes that could be read meanwhile; a separate write reads the
pages at its ends, too."""
_SUMS = 2.0
"""Sums are whole unless that takes more than this times the bytes that sums in parts move."""
_MOST = 256
"""Most blocks of a product: more take longer than what they compute."""


@dataclass(frozen=True)
class Product:
    """A product in blocks: ``outer`` of the result's rows (of its columns with ``by_columns``),
    each in ``inner`` blocks of the other.

    Sums are cut into ``terms``; with more than one they add up in another order than in the whole
    product.
    """

    by_columns: bool
    outer: int
    inner: int
    terms: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Run the product; its result if it is in fast memory, else None."""
        bias, (left, right) = (
            (arguments[0], arguments[1:3])
            if call.target is aten.addmm.default
            else (None, arguments[:2])
        )
        there, view = slow[0], call.results[0]
        assert isinstance(view, View)
        whole = empty(view) if there is None else None
        axis = 1 if self.by_columns else 0
        for start, length in blocks(view.size[axis], self.outer):
            part = narrowed(view, axis, start, length)
            block = (
                torch.empty(part.size, dtype=view.dtype)
                if whole is None
                else whole.narrow(axis, start, length)
            )
            held = (left, right)[axis].narrow(axis, start, length)
            self._fill(block, held, (right, left)[axis], bias, (axis, start), keywords)
            if there is not None:
                there.narrow(axis, start, length).write(block)
            del block
        return (whole,)

    def _fill(
        self,
        block: torch.Tensor,
        held: Operand,
        other: Operand,
        bias: Any,
        place: tuple[int, int],
        keywords: dict[str, Any],
    ) -> None:
        """Compute the outer block at ``place`` (axis and start) from its rows (or columns) of one
        operand and all of the other."""
        axis = place[0]
        held = fast(held) if self.terms == 1 else held
        for start, length in blocks(block.shape[1 - axis], self.inner):
            target = block.narrow(1 - axis, start, length)
            side = other.narrow(1 - axis, start, length)
            for k, (first, count) in enumerate(blocks(held.shape[1 - axis], self.terms)):
                pair = (
                    fast(held.narrow(1 - axis, first, count)),
                    fast(side.narrow(axis, first, count)),
                )
                left, right = pair[::-1] if axis else pair
                if k:
                    target.addmm_(left, right, alpha=keywords.get("alpha", 1))
                elif bias is None:
                    torch.mm(left, right, out=target)
                else:
                    torch.addmm(
                        _bias_of(bias, target.shape, axis, place[1], start),
                        left,
                        right,
                        out=target,
                        **keywords,
                    )
                del pair, left, right


def _bias_of(
    bias: torch.Tensor, shape: Sequence[int], axis: int, outer: int, inner: int
) -> torch.Tensor:
    """The part of what is added that belongs to a block of the result."""
    origin = (inner, outer) if axis else (outer, inner)
    for back in range(1, bias.dim() + 1):
        if bias.shape[-back] > 1:
            bias = bias.narrow(-back, origin[-back], shape[-back])
    return bias


def product_within(call: Call, streamed: frozenset[int], room: int) -> Product | None:
    """Choose blocks of at most ``room`` bytes that move the fewest; sums are cut only where that
    saves half of them."""
    first = 1 if call.target is aten.addmm.default else 0
    left, right, result = call.arguments[first], call.arguments[first + 1], call.results[0]
    if first and call.arguments[0].storage in streamed:
        return None
    assert isinstance(result, View)
    best: tuple[float, Product] | None = None
    for by_columns in (False, True):
        rows, columns = result.size[::-1] if by_columns else result.size
        held, other = (right, left) if by_columns else (left, right)
        for outer, inner, terms in itertools.product(
            _counts(rows), _counts(columns), _counts(left.size[1])
        ):
            if outer * inner * terms > _MOST:
                continue
            product = Product(by_columns, outer, inner, terms)
            costs = _costs(product, held, other, result, streamed)
            bytes = costs[1] * (_SUMS if terms > 1 else 1)
            if costs[0] <= room and (best is None or bytes < best[0]):
                best = bytes, product
    return None if best is None else best[1]


def _counts(length: int) -> list[int]:
    return [2**i for i in range(int(math.log2(min(length, _MOST))) + 1)] if length else []


def _costs(
    product: Product, held: View, other: View, result: View, streamed: frozenset[int]
) -> tuple[int, int]:
    """Bytes that blocks take at once, and bytes moved, with what separate reads and writes cost."""
    axis = int(product.by_columns)
    size = result.dtype.itemsize
    taken = moved = 0

    def piece(view: View, cuts: dict[int, int]) -> View:
        for dim, count in cuts.items():
            view = narrowed(view, dim, 0, -(-view.size[dim] // count))
        return view

    if held.storage in streamed:
        part = piece(held, {axis: product.outer, 1 - axis: product.terms})
        taken += math.prod(part.size) * size
        times = product.outer * product.terms * (product.inner if product.terms > 1 else 1)
        moved += times * (math.prod(part.size) * size + _SEEK * parts(part, True))
    if other.storage in streamed:
        part = piece(other, {1 - axis: product.inner, axis: product.terms})
        taken += math.prod(part.size) * size
        moved += (
            product.outer
            * product.inner
            * product.terms
            * (math.prod(part.size) * size + _SEEK * parts(part, True))
        )
    if result.storage in streamed:
        part = piece(result, {axis: product.outer})
        taken += math.prod(part.size) * size
        moved += product.outer * (math.prod(part.size) * size + 3 * _SEEK * parts(part, False))
    return taken, moved

"""Along which dimensions a kernel can be cut, so that each block of its results comes from one
block of its operands.

A cut is a dimension for every tensor among the operands (`WHOLE`: each block needs all of it) and
for every result (`SUM`: each block makes a part of a sum; `WHOLE`: each makes all of it, or none
does). But for sums, each element is computed from the same elements by the same operator as in the
whole kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch

from loadmaster.integrations.torch_compile.captured import Call, View, views
from loadmaster.integrations.torch_compile.cutting.cut import SUM, WHOLE, Cut, along
from loadmaster.integrations.torch_compile.cutting.layers import LAYERS

aten: Any = torch.ops.aten
_Rule: TypeAlias = Callable[[Call], Iterable[Cut]]


def _other_than(argument: int) -> _Rule:
    """Cut along any dimension that is not the one that the operator works along."""

    def cuts(call: Call) -> Iterator[Cut]:
        tensors = list(views(call.arguments))
        rank = len(tensors[0].size)
        dim = call.arguments[argument] if argument < len(call.arguments) else 0
        if all(len(view.size) == rank for view in tensors):
            yield from (Cut((d,) * len(tensors), (d,)) for d in range(rank) if d != dim % rank)

    return cuts


def _elementwise(call: Call) -> Iterator[Cut]:
    """Cut along any dimension; operands are broadcast to the result from the right."""
    result = call.results[0]
    if len(call.results) != 1 or result is None or result.storage in call.reads:
        return
    for dim, length in enumerate(result.size):
        operands = []
        for view in views((call.arguments, call.keywords)):
            own = dim - (len(result.size) - len(view.size))
            operands.append(own if own >= 0 and view.size[own] == length else WHOLE)
        yield Cut(tuple(operands), (dim,))


def _nll_backward(call: Call) -> Iterator[Cut]:
    rows = call.arguments[1]
    if call.arguments[3] is None and len(rows.size) == 2:
        yield Cut((0 if call.arguments[0].size else WHOLE, 0, 0, WHOLE), (0,), frozenset({1}))


def _reduction(call: Call) -> Iterator[Cut]:
    """Cut along what stays; sums along what is added up, too."""
    operand: View = call.arguments[0]
    rank = len(operand.size)
    reduced = {dim % rank for dim in call.arguments[1] or range(rank)} if rank else set()
    keeps = len(call.arguments) > 2 and call.arguments[2]
    for dim in range(rank):
        if dim not in reduced:
            yield along(
                call, (dim,), (dim if keeps else dim - sum(other < dim for other in reduced),)
            )
        elif call.target is aten.sum.dim_IntList:
            yield along(call, (dim,), (SUM,))


def _picked(call: Call) -> Iterator[Cut]:
    """Cut along the dimensions before those that are indexed, which stay the first if the indexed
    ones are side by side."""
    indexed = [i for i, index in enumerate(call.arguments[1]) if index is not None]
    if not indexed or indexed[-1] - indexed[0] >= len(indexed):
        return
    puts = call.target in (aten._unsafe_index_put.default, aten.index_put.default)
    given = (call.arguments[0], *((call.arguments[2],) if puts else ()), call.results[0])
    indices = [WHOLE] * len(indexed)
    for dim in range(indexed[0]):
        if len({len(view.size) > dim and view.size[dim] for view in given}) == 1 and (
            not puts or _as_indexed(call)
        ):
            yield Cut((dim, *indices, *((dim,) if puts else ())), (dim,))


def _as_indexed(call: Call) -> bool:
    """Whether the values that are put have all dimensions of what they are put into."""
    table, indices, values = call.arguments[:3]
    ranks = [len(index.size) for index in indices if index is not None]
    return len(values.size) == len(table.size) - len(ranks) + max(ranks)


def _filled(sizes: int) -> _Rule:
    """Cut along any dimension of a result that has one value; argument ``sizes`` are its sizes, and
    tensors give their type only."""

    def cuts(call: Call) -> Iterator[Cut]:
        tensors = len(list(views(call.arguments)))
        for dim in range(len(call.arguments[sizes])):
            yield Cut(
                (WHOLE,) * tensors, (dim,), frozenset(range(tensors)), frozenset({(sizes, dim)})
            )

    return cuts


_OF: dict[Any, _Rule] = {
    aten._log_softmax.default: _other_than(1),
    aten._softmax.default: _other_than(1),
    aten._log_softmax_backward_data.default: _other_than(2),
    aten._softmax_backward_data.default: _other_than(2),
    aten.cat.default: _other_than(1),
    aten.nll_loss_backward.default: _nll_backward,
    aten.bmm.default: lambda call: [Cut((0, 0), (0,))],
    aten.clone.default: _elementwise,
    aten._to_copy.default: _elementwise,
    aten.index.Tensor: _picked,
    aten._unsafe_index.Tensor: _picked,
    aten.index_put.default: _picked,
    aten._unsafe_index_put.default: _picked,
    aten.full.default: _filled(0),
    aten.new_zeros.default: _filled(1),
    aten.sum.dim_IntList: _reduction,
    aten.mean.dim: _reduction,
    **LAYERS,
}


def cuts_of(call: Call) -> Iterable[Cut]:
    """Ways to cut a call, in the order of preference; none if it cannot be cut, or if nobody has
    said how."""
    rule = _OF.get(call.target)
    if (
        rule is None
        and isinstance(call.target, torch._ops.OpOverload)
        and torch.Tag.pointwise in call.target.tags
    ):
        rule = _elementwise
    return () if rule is None else rule(call)

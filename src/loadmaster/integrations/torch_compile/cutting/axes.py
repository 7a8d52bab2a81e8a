"""Along which dimension a kernel can be cut, so that each block of its results comes from one block of its operands.

A cut is a dimension for every tensor among the operands (`WHOLE`: each block needs all of it) and for every result (`WHOLE` for one that
no block makes: it is none). Each element is computed from the same elements by the same operator as in the whole kernel. Results that are
sums over the cut dimension are not among them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from loadmaster.integrations.torch_compile.captured import Call, View, views

WHOLE = -1
"""Every block needs all of the tensor."""
aten: Any = torch.ops.aten
_Rule: TypeAlias = Callable[[Call, int], "Cut | None"]


@dataclass(frozen=True)
class Cut:
    """A dimension for every tensor among the operands, in order, and for every result; ``unread`` operands give only their shape."""

    operands: tuple[int, ...]
    results: tuple[int, ...]
    unread: frozenset[int] = frozenset()


def _other_than(argument: int) -> _Rule:
    """Cut along the first dimension, long enough, that is not the one that the operator works along."""

    def cut(call: Call, pieces: int) -> Cut | None:
        tensors = list(views(call.arguments))
        rank = len(tensors[0].size)
        along = call.arguments[argument] % max(rank, 1)
        others = [d for d in range(rank) if d != along and tensors[0].size[d] >= max(pieces, 2)]
        return Cut((others[0],) * len(tensors), (others[0],)) if others else None

    return cut


def _elementwise(call: Call, pieces: int) -> Cut | None:
    """Cut along the first dimension that is long enough; operands are broadcast to the result from the right."""
    result = call.results[0]
    if len(call.results) != 1 or result is None or result.storage in call.reads or not result.size:
        return None
    dim = next((d for d, n in enumerate(result.size) if n >= max(pieces, 2)), None)
    if dim is None:
        return None
    operands = []
    for view in views((call.arguments, call.keywords)):
        own = dim - (len(result.size) - len(view.size))
        operands.append(own if own >= 0 and view.size[own] == result.size[dim] else WHOLE)
    return Cut(tuple(operands), (dim,))


def _nll_backward(call: Call, pieces: int) -> Cut | None:
    rows = call.arguments[1]
    if call.arguments[3] is not None or len(rows.size) != 2:
        return None
    return Cut((0 if call.arguments[0].size else WHOLE, 0, 0, WHOLE), (0,), frozenset({1}))


_OF: dict[Any, _Rule] = {
    aten._log_softmax.default: _other_than(1),
    aten._softmax.default: _other_than(1),
    aten._log_softmax_backward_data.default: _other_than(2),
    aten._softmax_backward_data.default: _other_than(2),
    aten.nll_loss_backward.default: _nll_backward,
    aten.bmm.default: lambda call, pieces: Cut((0, 0), (0,)),
    aten.clone.default: _elementwise,
    aten._to_copy.default: _elementwise,
}


def cut_of(call: Call, pieces: int) -> Cut | None:
    """How a call can be cut into ``pieces``; None if it cannot, or if nobody has said how."""
    rule = _OF.get(call.target)
    if rule is None and isinstance(call.target, torch._ops.OpOverload) and torch.Tag.pointwise in call.target.tags:
        rule = _elementwise
    return None if rule is None else rule(call, pieces)


def length_of(call: Call, cut: Cut) -> int:
    """Elements of the dimension that is cut."""
    first = call.results[next(i for i, dim in enumerate(cut.results) if dim != WHOLE)]
    assert isinstance(first, View)
    return first.size[cut.results[0]]

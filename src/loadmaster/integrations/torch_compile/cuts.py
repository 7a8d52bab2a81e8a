"""The dimensions along which a kernel can be cut into blocks, each of which computes one block of
the results from one block of the operands.

A cut has a dimension for every tensor among the operands (`WHOLE`: each block needs all of it) and
for every result (`SUM`: each block computes a partial sum; `WHOLE`: each block computes all of it).
Except for sums, each element is computed from the same elements as in the whole kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from loadmaster.integrations.torch_compile.captured import Call, View, views
from loadmaster.integrations.torch_compile.slow_tensor import compact, narrowed

WHOLE = -1
"""In the place of a dimension: every block needs, or computes, all of the tensor."""
SUM = -2
"""In the place of a result's dimension: every block computes a partial sum of the result."""


@dataclass(frozen=True)
class Cut:
    """A way to cut a call.

    Attributes
    ----------
    operands, results
        The dimension of every tensor among the operands, in order, and of every result.
    unread
        Indices of operands of which the call uses only the shape.
    lengths
        Arguments that hold the length of the dimension: position of the argument, and index in its
        list of sizes (None: the argument is a number).
    """

    operands: tuple[int, ...]
    results: tuple[int, ...]
    unread: frozenset[int] = frozenset()
    lengths: frozenset[tuple[int, int | None]] = frozenset()

    def length(self, call: Call) -> int:
        """Return the number of elements of the cut dimension."""
        tensors = zip(
            (*call.results, *call.operands),
            (*self.results, *self.operands),
            strict=True,
        )
        return next(view.size[dim] for view, dim in tensors if isinstance(view, View) and dim >= 0)

    def block(self, call: Call, length: int) -> Call:
        """Return the call on the first ``length`` elements of the cut dimension."""
        dims = iter(self.operands)

        def operand(view: View) -> View:
            """Return the piece of an operand."""
            dim = next(dims)
            return narrowed(view, dim, 0, length) if dim >= 0 else view

        def result(view: Any, dim: int) -> Any:
            """Return the piece of a result, without gaps."""
            part = narrowed(view, dim, 0, length) if view and dim >= 0 else view
            return part and part._replace(stride=compact(part))

        arguments, keywords = call.mapped(operand)
        results = tuple(map(result, call.results, self.results))
        return replace(call, arguments=arguments, keywords=keywords, results=results)

    def sized(self, arguments: Sequence[Any], length: int) -> list[Any]:
        """Return the arguments with a block's ``length`` in the places of `lengths`."""
        given = list(arguments)
        for position, place in self.lengths:
            if place is None:
                given[position] = length
            elif given[position] is not None:
                given[position] = [
                    length if i == place else size for i, size in enumerate(given[position])
                ]
        return given


def along(
    call: Call,
    operands: Sequence[int],
    results: Sequence[int],
    keywords: int = WHOLE,
    **more: Any,
) -> Cut:
    """Make a cut from one dimension for each positional argument (`WHOLE` if ``operands`` is
    shorter; ignored if it is no tensor) and one for all tensors among the keywords."""
    beyond = itertools.repeat(WHOLE, len(call.arguments))
    given = zip(call.arguments, itertools.chain(operands, beyond), strict=False)
    pairs = [*given, (call.keywords, keywords)]
    return Cut(tuple(dim for own, dim in pairs for _ in views(own)), tuple(results), **more)


def _broadcast(view: View, size: Sequence[int], dim: int) -> int:
    """Return the operand's dimension that is broadcast to dimension ``dim`` of ``size``; `WHOLE` if
    it has one element or does not exist."""
    own = dim - len(size) + len(view.size)
    return own if own >= 0 and view.size[own] == size[dim] else WHOLE


_Rule: TypeAlias = Callable[[Call], Iterable[Cut]]


def _other_than(argument: int) -> _Rule:
    """Return a rule that cuts along any dimension except the one given by an ``argument``
    (position)."""

    def cuts(call: Call) -> Iterator[Cut]:
        """Yield cuts along each dimension but the one an argument names."""
        tensors = list(views(call.arguments))
        rank = len(tensors[0].size)
        dim = call.arguments[argument] if argument < len(call.arguments) else 0
        if all(len(view.size) == rank for view in tensors):
            yield from (Cut((d,) * len(tensors), (d,)) for d in range(rank) if d != dim % rank)

    return cuts


def _elementwise(call: Call) -> Iterator[Cut]:
    """Cut along any dimension of the result; operands are broadcast to it."""
    result = call.results[0]
    if len(call.results) != 1 or result is None or result.storage in call.reads:
        return
    for dim in range(len(result.size)):
        yield Cut(tuple(_broadcast(view, result.size, dim) for view in call.operands), (dim,))


def _product(call: Call) -> Iterator[Cut]:
    """Cut a matrix product by rows, by columns, or, if nothing is added, along the reduction."""
    added = call.arguments[:-2]
    for dim, dims in enumerate(((0, WHOLE), (WHOLE, 1))):
        own = [_broadcast(view, call.results[0].size, dim) for view in added]
        yield Cut((*own, *dims), (dim,))
    if not added:
        yield Cut((1, 0), (SUM,))


def _nll_backward(call: Call) -> Iterator[Cut]:
    """Cut by rows of two-dimensional scores without class weights."""
    rows = call.arguments[1]
    if call.arguments[3] is None and len(rows.size) == 2:
        yield Cut((0 if call.arguments[0].size else WHOLE, 0, 0, WHOLE), (0,), frozenset({1}))


def _reduction(call: Call) -> Iterator[Cut]:
    """Cut along dimensions that are not reduced; sums along reduced ones, too."""
    operand: View = call.arguments[0]
    rank = len(operand.size)
    reduced = {dim % rank for dim in call.arguments[1] or range(rank)} if rank else set()
    keeps = len(call.arguments) > 2 and call.arguments[2]
    for dim in range(rank):
        if dim not in reduced:
            yield along(
                call, (dim,), (dim if keeps else dim - sum(other < dim for other in reduced),)
            )
        elif call.kind == "aten.sum.dim_IntList":
            yield along(call, (dim,), (SUM,))


def _picked(call: Call) -> Iterator[Cut]:
    """Cut along the dimensions before the indexed ones, which must be adjacent."""
    indexed = [i for i, index in enumerate(call.arguments[1]) if index is not None]
    if not indexed or indexed[-1] - indexed[0] >= len(indexed):
        return
    table, values = call.arguments[0], call.arguments[2:3]  # values of index_put only
    ranks = [len(call.arguments[1][i].size) for i in indexed]
    if any(len(view.size) != len(table.size) - len(ranks) + max(ranks) for view in values):
        return  # broadcast values
    indices, given = [WHOLE] * len(indexed), (table, *values, call.results[0])
    for dim in range(indexed[0]):
        if len({len(view.size) > dim and view.size[dim] for view in given}) == 1:
            yield Cut((dim, *indices, *(dim for _ in values)), (dim,))


def _filled(sizes: int) -> _Rule:
    """Return a rule that cuts along any dimension of a constant result, whose sizes are the
    argument at position ``sizes``; of tensors only the type is used."""

    def cuts(call: Call) -> Iterator[Cut]:
        """Yield cuts along each dimension that an operator fills."""
        tensors = len(list(views(call.arguments)))
        for dim in range(len(call.arguments[sizes])):
            yield Cut(
                (WHOLE,) * tensors, (dim,), frozenset(range(tensors)), frozenset({(sizes, dim)})
            )

    return cuts


def _convolution(call: Call) -> Iterator[Cut]:
    """Cut by samples, or by output channels and their weights."""
    transposed, groups = call.arguments[6], call.arguments[8]
    yield along(call, (0,), (0,))
    if groups == 1:
        yield along(call, (WHOLE, 1 if transposed else 0, 0), (1,))


def _convolution_backward(call: Call) -> Iterator[Cut]:
    """Cut by samples (the gradient of the weights is a sum), by output channels (the gradient of
    the input is a sum), or by input channels."""
    transposed, groups = call.arguments[7], call.arguments[9]
    yield along(call, (0, 0, WHOLE), (0, SUM, SUM))
    if groups == 1:
        weights = 1 if transposed else 0
        yield along(call, (1, WHOLE, weights), (SUM, weights, 0), lengths=frozenset({(3, 0)}))
        yield along(call, (WHOLE, 1, 1 - weights), (1, 1 - weights, WHOLE))


def _layer_norm(call: Call) -> Iterator[Cut]:
    """Cut along dimensions that are not normalised. The gradient reads statistics as contiguous,
    whatever their strides: blocks of these must be."""
    backward = call.kind.endswith("backward")
    size = call.arguments[0].size
    for dim in range(len(size) - len(call.arguments[2 if backward else 1])):
        if not backward:
            yield along(call, (dim,), (dim, dim, dim))
        elif math.prod(size[:dim]) == 1:
            yield along(call, (dim, dim, WHOLE, dim, dim), (dim, SUM, SUM))


def _channels(call: Call) -> Iterator[Cut]:
    """Cut by channels: dimension 1 of images, dimension 0 of vectors."""

    def channels(view: Any) -> int:
        """Return the dimension of an operand or result; `WHOLE` without one, as statistics that
        are not computed."""
        has = isinstance(view, View) and view.size != (0,)
        return int(len(view.size) > 1) if has else WHOLE

    yield along(call, [*map(channels, call.arguments)], [*map(channels, call.results)])


def _planes(call: Call) -> Iterator[Cut]:
    """Cut by samples or channels, whose planes are independent."""
    operand: View = call.arguments[0]
    for dim in range(len(operand.size) - 2):
        yield along(call, (dim,) * len(call.arguments), (dim,) * len(call.results))


def _resized_planes(call: Call) -> Iterator[Cut]:
    """Cut by samples or channels, whose numbers are in the third argument, a list of sizes."""
    for dim in range(2):
        yield along(call, (dim,), (dim,), lengths=frozenset({(2, dim)}))


def _attention(call: Call) -> Iterator[Cut]:
    """Cut by samples, or by heads if queries and keys have the same number; the mask is
    broadcast."""
    first = int(call.kind.endswith("backward"))  # the gradient comes before them
    query, key = call.arguments[first : first + 2]
    mask = call.keywords.get("attn_mask")
    for dim in range(2):
        if query.size[dim] != key.size[dim]:
            continue
        own = WHOLE if mask is None else _broadcast(mask, query.size, dim)
        yield along(call, (dim,) * 6, (dim,) * len(call.results), own)


_RULES: tuple[tuple[_Rule, str], ...] = (
    (_other_than(1), "_log_softmax _softmax cat"),
    (_other_than(2), "_log_softmax_backward_data _softmax_backward_data"),
    (_nll_backward, "nll_loss_backward"),
    (lambda call: [Cut((0, 0), (0,))], "bmm"),
    (_product, "mm addmm"),
    (_elementwise, "clone _to_copy"),
    (_picked, "index.Tensor _unsafe_index.Tensor index_put _unsafe_index_put"),
    (_filled(0), "full"),
    (_filled(1), "new_zeros"),
    (_reduction, "sum.dim_IntList mean.dim"),
    (_convolution, "convolution"),
    (_convolution_backward, "convolution_backward"),
    (_layer_norm, "native_layer_norm native_layer_norm_backward"),
    (
        lambda call: [along(call, (0,), (0, 0, 0), lengths=frozenset({(3, None)}))],
        "native_group_norm",
    ),
    (
        lambda call: [along(call, (0,) * 4, (0, SUM, SUM), lengths=frozenset({(5, None)}))],
        "native_group_norm_backward",
    ),
    (
        _channels,
        "_native_batch_norm_legit_functional _native_batch_norm_legit_no_training"
        " native_batch_norm_backward",
    ),
    (
        _planes,
        "max_pool2d_with_indices max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward"
        " _adaptive_avg_pool2d _adaptive_avg_pool2d_backward upsample_nearest2d"
        " upsample_nearest2d.vec",
    ),
    (_resized_planes, "upsample_nearest2d_backward"),
    (
        _attention,
        "_scaled_dot_product_flash_attention_for_cpu"
        " _scaled_dot_product_flash_attention_for_cpu_backward",
    ),
)
_RULE_OF = {f"aten.{name}": rule for rule, names in _RULES for name in names.split()}


def cuts_of(call: Call) -> Iterable[Cut]:
    """Return the ways to cut a call, in order of preference; none if there is no rule for it."""
    rule = _RULE_OF.get(call.kind)
    if rule is None and torch.Tag.pointwise in call.target.tags:
        rule = _elementwise
    return () if rule is None else rule(call)

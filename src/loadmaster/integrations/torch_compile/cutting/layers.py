"""Cuts of convolutions, normalisations, attention and pooling.

Convolutions are cut by samples, or by channels of their results; batch normalisation by channels;
layer and group normalisation by rows and by samples; attention by samples or heads; pooling by
samples or channels. What a sample, a row or a channel adds to a gradient of weights, or of an input
that all channels read, is a part of a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import Call, View
from loadmaster.integrations.torch_compile.cutting.cut import SUM, WHOLE, Cut, along

aten: Any = torch.ops.aten


def _convolution(call: Call) -> Iterator[Cut]:
    """Cut by samples, or by channels of the result, which have weights of their own."""
    transposed, groups = call.arguments[6], call.arguments[8]
    yield along(call, (0,), (0,))
    if groups == 1:
        yield along(call, (WHOLE, 1 if transposed else 0, 0), (1,))


def _convolution_backward(call: Call) -> Iterator[Cut]:
    """Cut by samples, with sums for weights; by channels of the result, with a sum for the input;
    or by channels of the input."""
    transposed, groups = call.arguments[7], call.arguments[9]
    yield along(call, (0, 0, WHOLE), (0, SUM, SUM))
    if groups == 1:
        weights = 1 if transposed else 0
        yield along(call, (1, WHOLE, weights), (SUM, weights, 0), lengths=frozenset({(3, 0)}))
        yield along(call, (WHOLE, 1, 1 - weights), (1, 1 - weights, WHOLE))


def _layer_norm(call: Call) -> Iterator[Cut]:
    for dim in range(len(call.arguments[0].size) - len(call.arguments[1])):
        yield along(call, (dim,), (dim, dim, dim))


def _layer_norm_backward(call: Call) -> Iterator[Cut]:
    for dim in range(len(call.arguments[0].size) - len(call.arguments[2])):
        yield along(call, (dim, dim, WHOLE, dim, dim), (dim, SUM, SUM))


def _group_norm(call: Call) -> Iterator[Cut]:
    yield along(call, (0,), (0, 0, 0), lengths=frozenset({(3, None)}))


def _group_norm_backward(call: Call) -> Iterator[Cut]:
    yield along(call, (0, 0, 0, 0), (0, SUM, SUM), lengths=frozenset({(5, None)}))


def _channels(call: Call) -> Iterator[Cut]:
    """Cut by the second dimension of images, which vectors of a value for each channel have as
    their only one."""
    dims = [int(isinstance(a, View) and len(a.size) > 1) for a in call.arguments]
    results = [
        WHOLE if view is None or view.size == (0,) else int(len(view.size) > 1)
        for view in call.results
    ]
    yield along(call, dims, results)


def _planes(call: Call) -> Iterator[Cut]:
    """Cut by samples or channels: each plane is by itself."""
    operand: View = call.arguments[0]
    for dim in range(len(operand.size) - 2):
        yield along(call, (dim,) * len(call.arguments), (dim,) * len(call.results))


def _resized_planes(call: Call) -> Iterator[Cut]:
    """Cut by samples or channels, whose numbers are in the list of sizes that is the third
    argument."""
    for dim in range(2):
        yield along(call, (dim,), (dim,), lengths=frozenset({(2, dim)}))


def _attention(call: Call) -> Iterator[Cut]:
    """Cut by samples, or by heads where queries and keys have as many; the mask is broadcast."""
    query, key = (
        call.arguments[i] for i in ((1, 2) if call.target in _ATTENTION_BACKWARD else (0, 1))
    )
    mask = call.keywords.get("attn_mask")
    for dim in range(2):
        if query.size[dim] != key.size[dim]:
            continue
        own = WHOLE if mask is None else dim - (len(query.size) - len(mask.size))
        if mask is None or own < 0 or mask.size[own] == 1:
            own = WHOLE
        yield along(call, (dim,) * 6, (dim,) * len(call.results), {"attn_mask": own})


_ATTENTION_BACKWARD = (aten._scaled_dot_product_flash_attention_for_cpu_backward.default,)

LAYERS: dict[Any, Callable[[Call], Iterable[Cut]]] = {
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._native_batch_norm_legit_functional.default: _channels,
    aten._native_batch_norm_legit_no_training.default: _channels,
    aten.native_batch_norm_backward.default: _channels,
    aten.max_pool2d_with_indices.default: _planes,
    aten.max_pool2d_with_indices_backward.default: _planes,
    aten.avg_pool2d.default: _planes,
    aten.avg_pool2d_backward.default: _planes,
    aten._adaptive_avg_pool2d.default: _planes,
    aten._adaptive_avg_pool2d_backward.default: _planes,
    aten.upsample_nearest2d.default: _planes,
    aten.upsample_nearest2d.vec: _planes,
    aten.upsample_nearest2d_backward.default: _resized_planes,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention,
}
"""How kernels of layers can be cut."""

"""Convolutions, matrix products and attention of torch, forward and backward, as loop nests."""

from __future__ import annotations

from collections.abc import Sequence

from loadmaster.workloads.frontends.operation_counts import SOFTMAX_STEPS, folded
from loadmaster.workloads.frontends.torch.calls import Call, Value, Work, product, rule
from loadmaster.workloads.graph import LoopNest


def _pair(values: Sequence[int]) -> tuple[int, int]:
    pair = (1, 1, *values)[-2:]
    return pair[0], pair[1]


def _convolution(call: Call, source: Value, result: Value) -> LoopNest:
    """Nest of a forward convolution from ``source`` to ``result``; a transposed one meets every tap
    at each input position once."""
    weight, groups = call.tensor("weight"), call.arguments["groups"]
    transposed = call.arguments["transposed"]
    near = weight.shape[1]
    far = weight.shape[0] // groups
    (y, x), (r, s) = folded((source if transposed else result).shape[2:]), folded(weight.shape[2:])
    k, c = (near, far) if transposed else (far, near)
    stride = (1, 1) if transposed else _pair(call.arguments["stride"])
    dilation = _pair(call.arguments["dilation"])
    return LoopNest(
        k,
        c,
        y,
        x,
        r,
        s,
        groups,
        source.shape[0],
        stride,
        dilation,
        1,
        source.name,
        weight.name,
        result.name,
    )


@rule("convolution")
def _forward(call: Call) -> Work:
    return product(_convolution(call, call.tensor("input"), call.results[0]))


@rule("convolution_backward")
def _backward(call: Call) -> Work:
    """One product for the gradient of the input, one for that of the weight: each has the
    multiply-accumulates of the forward one."""
    gradient, source = call.tensor("grad_output"), call.tensor("input")
    forward = _convolution(call, source, gradient)
    results = iter(call.results)
    wanted = [next(results).name if asked else None for asked in call.arguments["output_mask"]]
    nests = []
    if wanted[0] is not None:
        # The same loops with input and output channels changing places.
        swapped = (
            forward.c,
            forward.k,
            forward.y,
            forward.x,
            forward.r,
            forward.s,
            forward.groups,
            forward.batch,
        )
        nests.append(
            LoopNest(
                *swapped,
                dilation=forward.dilation,
                input=gradient.name,
                weight=call.tensor("weight").name,
                output=wanted[0],
            )
        )
    if wanted[1] is not None:
        # A matrix product for each group: output channels by taps of input channels, summed over
        # the positions of all images.
        taps, positions = forward.c * forward.r * forward.s, forward.batch * forward.y * forward.x
        nests.append(
            LoopNest(
                forward.k,
                positions,
                taps,
                groups=forward.groups,
                input=source.name,
                weight=gradient.name,
                output=wanted[1],
            )
        )
    return product(*nests, elements=gradient.count if wanted[2] is not None else 0)


def _matrices(call: Call, left: str, right: str) -> Work:
    """A product of matrices, of batches of them, or of a matrix and a vector."""
    a, b = call.tensor(left), call.tensor(right)
    groups = a.shape[0] if len(a.shape) == 3 else 1
    rows = a.shape[-2] if len(a.shape) > 1 else 1
    columns = b.shape[-1] if len(b.shape) > 1 else 1
    nest = LoopNest(
        columns,
        a.shape[-1],
        rows,
        groups=groups,
        input=a.name,
        weight=b.name,
        output=call.results[0].name,
    )
    return product(nest)


rule("mm", "bmm")(lambda call: _matrices(call, "self", "mat2"))
rule("addmm")(lambda call: _matrices(call, "mat1", "mat2"))
rule("baddbmm")(lambda call: _matrices(call, "batch1", "batch2"))
rule("mv")(lambda call: _matrices(call, "self", "vec"))
rule("addmv")(lambda call: _matrices(call, "mat", "vec"))
rule("dot", "vdot")(
    lambda call: _matrices(call, "self", "other" if "other" in call.arguments else "tensor")
)


def _scores(call: Call) -> tuple[int, int, int, int, int]:
    """Heads of all images, queries, keys, and the widths of a head in scores and values; operands
    are (batch, heads, steps, width)."""
    query, key, value = (call.tensor(name) for name in ("query", "key", "value"))
    return (
        query.shape[0] * query.shape[1],
        query.shape[-2],
        key.shape[-2],
        query.shape[-1],
        value.shape[-1],
    )


_FUSED = (
    "_flash_attention_for_cpu",
    "_flash_attention",
    "_efficient_attention",
    "_cudnn_attention",
)


@rule(*(f"_scaled_dot_product{name}" for name in _FUSED))
def _attention(call: Call) -> Work:
    """Scores, softmax, and the weighted sum of the values, in one kernel."""
    groups, queries, keys, width, value_width = _scores(call)
    scores = LoopNest(
        keys,
        width,
        queries,
        groups=groups,
        input=call.tensor("query").name,
        weight=call.tensor("key").name,
    )
    weight, output = call.tensor("value").name, call.results[0].name
    result = LoopNest(value_width, keys, queries, groups=groups, weight=weight, output=output)
    return product(scores, result, elements=SOFTMAX_STEPS * groups * queries * keys)


@rule(*(f"_scaled_dot_product{name}_backward" for name in _FUSED))
def _attention_backward(call: Call) -> Work:
    """Compute the scores again, then one product each for the gradients of softmax, value, query
    and key."""
    groups, queries, keys, width, value_width = _scores(call)
    gradient = call.tensor("grad_out" if "grad_out" in call.arguments else "grad_out_")
    query, key, value = (call.tensor(name).name for name in ("query", "key", "value"))
    to_query, to_key, to_value = (result.name for result in call.results[:3])
    nests = (
        LoopNest(keys, width, queries, groups=groups, input=query, weight=key),
        LoopNest(keys, value_width, queries, groups=groups, input=gradient.name, weight=value),
        LoopNest(value_width, queries, keys, groups=groups, weight=gradient.name, output=to_value),
        LoopNest(width, keys, queries, groups=groups, weight=key, output=to_query),
        LoopNest(width, queries, keys, groups=groups, weight=query, output=to_key),
    )
    return product(*nests, elements=2 * SOFTMAX_STEPS * groups * queries * keys)

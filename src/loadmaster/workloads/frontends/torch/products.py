"""Convolutions, matrix products and attention of torch, forward and backward, as loop nests."""

from __future__ import annotations

import math
from dataclasses import replace

from loadmaster.workloads.frontends.onnx.attention import Heads
from loadmaster.workloads.frontends.onnx.convolutions import convolution_nest
from loadmaster.workloads.frontends.onnx.products import matrix_nest
from loadmaster.workloads.frontends.onnx.types import Work
from loadmaster.workloads.frontends.operation_counts import (
    GATE_STEPS,
    NORMALISATION_STEPS,
)
from loadmaster.workloads.frontends.torch.calls import Call, Value, product, rule
from loadmaster.workloads.frontends.torch.windows import convolution, node_of
from loadmaster.workloads.graph import LoopNest


@rule("convolution")
def _forward(call: Call) -> Work:
    return product(_convolution(call, call.results[0]))


def _convolution(call: Call, result: Value) -> LoopNest:
    meaning = convolution(call)
    return convolution_nest(meaning.node(call, result), transposed=call.arguments["transposed"])


@rule("convolution_backward")
def _backward(call: Call) -> Work:
    """One product for the gradient of the input, one for that of the weight: each has the
    multiply-accumulates of the forward one."""
    gradient, source = call.tensor("grad_output"), call.tensor("input")
    forward = _convolution(call, gradient)
    results = iter(call.results)
    wanted = [next(results).name if asked else None for asked in call.arguments["output_mask"]]
    nests = []
    if wanted[0] is not None:
        # The same loops with input and output channels changing places.
        nests.append(
            replace(
                forward,
                k=forward.c,
                c=forward.k,
                stride=(1, 1),
                input=gradient.name,
                output=wanted[0],
            )
        )
    if wanted[1] is not None:
        # A matrix product for each group: output channels by taps of input channels, summed over
        # the positions of all images.
        taps = forward.c * forward.r * forward.s
        positions = forward.batch * forward.y * forward.x
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


@rule("mm bmm mv addmm addmv baddbmm dot vdot")
def _matrices(call: Call) -> Work:
    """A product of matrices, of batches of them, or of a matrix and a vector."""
    return product(matrix_nest(node_of(call)))


def _heads(call: Call) -> Heads:
    """Sizes of an attention; operands are (batch, heads, steps, width)."""
    query, key, value = (call.tensor(name).shape for name in ("query", "key", "value"))
    return Heads(query[0], query[1], query[1], query[-2], key[-2], query[-1], value[-1])


@rule(
    """
    _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    """
)
def _attention(call: Call) -> Work:
    """Scores, softmax, and the weighted sum of the values, in one kernel."""
    heads = _heads(call)
    query, key, value = (call.tensor(name).name for name in ("query", "key", "value"))
    nests = heads.nests(query, key, value, call.results[0].name)
    return product(*nests, elements=heads.elements)


@rule(
    """
    _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward
    """
)
def _attention_backward(call: Call) -> Work:
    """Compute the scores again, then one product each for the gradients of softmax, value, query
    and key."""
    heads = _heads(call)
    groups = heads.batch * heads.heads
    queries = heads.queries
    keys = heads.keys
    width, value_width = heads.width, heads.value_width
    gradient = call.tensor("grad_out" if "grad_out" in call.arguments else "grad_out_").name
    query, key, value = (call.tensor(name).name for name in ("query", "key", "value"))
    to_query, to_key, to_value = (result.name for result in call.results[:3])
    scores, _ = heads.nests(query, key, "", "")
    nests = (
        scores,
        LoopNest(keys, value_width, queries, groups=groups, input=gradient, weight=value),
        LoopNest(value_width, queries, keys, groups=groups, weight=gradient, output=to_value),
        LoopNest(width, keys, queries, groups=groups, weight=key, output=to_query),
        LoopNest(width, queries, keys, groups=groups, weight=query, output=to_key),
    )
    return product(*nests, elements=2 * heads.elements)


def _projected(
    call: Call, query: Value, key: Value, output: str
) -> tuple[tuple[LoopNest, ...], int]:
    """Nests and scalar operations of an attention over (batch, steps, width) with its projections:
    one matrix to queries, keys and values, one from the heads."""
    width = call.arguments["embed_dim"]
    count = call.arguments["num_heads" if "num_heads" in call.arguments else "num_head"]
    (batch, queries, _), keys, each = query.shape, key.shape[1], width // count
    heads = Heads(batch, count, count, queries, keys, each, each)
    packed = call.tensor("qkv_weight").name
    last = call.tensor("proj_weight").name
    return (
        LoopNest(width, width, batch * queries, input=query.name, weight=packed),
        LoopNest(2 * width, width, batch * keys, input=key.name, weight=packed),
        *heads.nests("", "", "", ""),
        LoopNest(width, width, batch * queries, weight=last, output=output),
    ), heads.elements


@rule("_native_multi_head_attention")
def _multi_head_attention(call: Call) -> Work:
    nests, elements = _projected(
        call, call.tensor("query"), call.tensor("key"), call.results[0].name
    )
    return product(*nests, elements=elements)


@rule("_transformer_encoder_layer_fwd")
def _encoder_layer(call: Call) -> Work:
    """Attention and two dense layers, each with a normalisation and a sum."""
    source, result = call.tensor("src"), call.results[0]
    first, second = call.tensor("ffn_weight_1"), call.tensor("ffn_weight_2")
    nests, elements = _projected(call, source, source, "")
    rows, (inner, width) = source.count // source.shape[-1], first.shape
    return product(
        *nests,
        LoopNest(inner, width, rows, weight=first.name),
        LoopNest(width, inner, rows, weight=second.name, output=result.name),
        elements=elements + rows * inner + 2 * (NORMALISATION_STEPS + 1) * source.count,
    )


@rule("mkldnn_rnn_layer")
def _recurrent_layer(call: Call) -> Work:
    """One layer in one direction over (steps, batch, width): the input product of all steps at
    once, the recurrent product step after step."""
    source = call.tensor("input")
    (steps, batch, width), (gates, hidden) = source.shape, call.tensor("weight1").shape
    return product(
        LoopNest(
            gates, width, steps * batch, input=source.name, weight=call.tensor("weight0").name
        ),
        LoopNest(
            gates,
            hidden,
            batch,
            repeats=steps,
            weight=call.tensor("weight1").name,
            output=call.results[0].name,
        ),
        elements=GATE_STEPS * gates * steps * batch,
    )


@rule("mkldnn_rnn_layer_backward")
def _recurrent_layer_backward(call: Call) -> Work:
    """The gradient of the state step after step, then those of the input and of both weights."""
    source, output = call.tensor("input"), call.tensor("output")
    inner, recurrent = call.tensor("weight1"), call.tensor("weight2")
    (steps, batch, width), (gates, hidden) = source.shape, recurrent.shape
    to_input, to_inner, to_recurrent = (result.name for result in call.results[:3])
    rows = steps * batch
    return product(
        LoopNest(hidden, gates, batch, repeats=steps, weight=recurrent.name),
        LoopNest(width, gates, rows, weight=inner.name, output=to_input),
        LoopNest(width, rows, gates, weight=source.name, output=to_inner),
        LoopNest(hidden, rows, gates, weight=output.name, output=to_recurrent),
        elements=2 * GATE_STEPS * gates * rows,
    )


@rule("_trilinear")
def _bilinear_layer(call: Call) -> Work:
    """Sums of products of three operands, over ``sumdim``, after each is broadcast along the
    dimensions that it lacks."""
    shapes = []
    for name, lacks in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        shape = list(call.tensor(name).shape)
        for axis in sorted(call.arguments[lacks]):
            shape.insert(axis, 1)
        shapes.append(shape)
    sizes = [max(extents) for extents in zip(*shapes, strict=True)]
    summed = math.prod(sizes[axis] for axis in call.arguments["sumdim"])
    kept = math.prod(sizes) // max(1, summed)
    names = (call.tensor("i1").name, call.tensor("i2").name, call.results[0].name)
    return product(
        LoopNest(1, summed, kept, input=names[0], weight=names[1], output=names[2]),
        elements=kept * summed,
    )


@rule("conv_tbc")
def _steps_first_convolution(call: Call) -> Work:
    """Operands (steps, batch, channels), and a weight (taps, channels, result's channels)."""
    source = call.tensor("self")
    weight = call.tensor("weight")
    result = call.results[0]
    taps, near, far = weight.shape
    steps, batch, _ = result.shape
    return product(
        LoopNest(
            far,
            near,
            1,
            steps,
            1,
            taps,
            batch=batch,
            input=source.name,
            weight=weight.name,
            output=result.name,
        )
    )

"""Work of torch's operators: elementwise arithmetic, reductions and data movement; convolutions,
matrix products and attention, forward and backward, as loop nests."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from loadmaster.workloads.frontends.onnx.attention import Heads
from loadmaster.workloads.frontends.onnx.operators import work_of
from loadmaster.workloads.frontends.onnx.products import cell, convolution_nest
from loadmaster.workloads.frontends.onnx.rules import (
    GATE_STEPS,
    NORM_STEPS,
    NORMALISATION_STEPS,
    SOFTMAX_STEPS,
    Work,
    fourier_steps,
    kinds_in,
    named,
    reduction,
)
from loadmaster.workloads.frontends.torch.windows import (
    OpCall,
    OpValue,
    convolution,
    node_of,
    product,
)
from loadmaster.workloads.graph import LoopNest, OpClass

WorkRule = Callable[[OpCall], Work]
RULES: dict[str, WorkRule] = {}
"""Rules for the work of operators, by name; each family registers its own."""


def rule(names: str) -> Callable[[WorkRule], WorkRule]:
    """Register the decorated function for the operators ``names``, which spaces separate."""

    def register(work: WorkRule) -> WorkRule:
        """Register the rule under all names, and return it."""
        RULES.update(dict.fromkeys(names.split(), work))
        return work

    return register


def with_backward(names: str) -> str:
    """Return names of operators and of their gradients."""
    return " ".join(f"{name} {name}_backward" for name in names.split())


ALLOCATIONS = kinds_in("empty empty_like new_empty empty_strided new_empty_strided empty_permuted")
"""Operators that allocate and write nothing: the tensor's lifetime begins with the kernel that
writes it."""
OVERWRITING = kinds_in(
    "copy zero fill bernoulli normal uniform random exponential cauchy geometric log_normal"
)
"""Operators that write in place without reading the old bytes."""
PARTLY_WRITING = kinds_in(
    """
    index_put _index_put_impl _unsafe_index_put index_copy index_fill index_add index_reduce scatter
    scatter_add scatter_reduce
    """
)
"""Operators that write in place only what they index."""
SHAPE_ONLY = kinds_in(
    """
    zeros_like ones_like full_like rand_like randn_like randint_like new_zeros new_ones new_full
    resize_as
    """
)
"""Operators that use the shape of their operand and none of its bytes."""
SILENTLY_UPDATED = dict.fromkeys(
    ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
    ("running_mean", "running_var"),
)
"""Arguments that are updated in place while training, although the operator's signature does not
say so."""


@rule(
    """
    native_dropout bernoulli rand randn rand_like randn_like normal uniform exponential randint
    random add mul sub div lerp addcmul addcdiv fused_dropout rsub dropout masked_fill
    masked_scatter polar addr softplus_backward log_sigmoid_forward mse_loss_backward
    l1_loss_backward smooth_l1_loss_backward huber_loss_backward soft_margin_loss_backward
    binary_cross_entropy_backward fake_quantize_per_tensor_affine_cachemask
    fake_quantize_per_channel_affine_cachemask
    """
)
@rule(
    with_backward(
        """
        glu elu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid rrelu_with_noise
        softshrink _prelu_kernel
        """
    )
)
def elementwise(call: OpCall) -> Work:
    """Count one operation for each element of the largest operand."""
    return Work(OpClass.ELEMENTWISE, elements=call.largest)


def _per_element(steps: int) -> WorkRule:
    """Return a rule that counts ``steps`` operations for each element of the largest operand."""
    return lambda call: reduction(steps * call.largest)


rule(
    """
    sum mean amax amin aminmax max min argmax argmin any all prod var var_mean std std_mean norm
    linalg_vector_norm cumsum cumprod logcumsumexp logsumexp count_nonzero topk sort median kthvalue
    nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward multi_margin_loss
    multi_margin_loss_backward multilabel_margin_loss_forward multilabel_margin_loss_backward
    mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss binary_cross_entropy
    binary_cross_entropy_with_logits bincount histc nansum sum_to_size cummax cummin mode dist
    multinomial trace linalg_cross max_pool2d_with_indices_backward
    max_pool3d_with_indices_backward fractional_max_pool2d_backward fractional_max_pool3d_backward
    """
)(_per_element(1))
# Pooling whose windows together are the whole operand.
rule(
    with_backward(
        "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"
    )
)(_per_element(1))
rule("_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data")(
    _per_element(SOFTMAX_STEPS)
)
rule(
    """
    _native_batch_norm_legit _native_batch_norm_legit_no_training _batch_norm_with_update
    _native_batch_norm_legit_functional _batch_norm_with_update_functional _batch_norm_no_update
    batch_norm_backward
    """
)(_per_element(NORMALISATION_STEPS))
rule(
    with_backward(
        "native_batch_norm native_layer_norm native_group_norm cudnn_batch_norm _fused_rms_norm"
    )
)(_per_element(NORMALISATION_STEPS))


@rule(
    """
    max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
    fractional_max_pool2d fractional_max_pool3d avg_pool2d_backward avg_pool3d_backward
    """
)
def _pool(call: OpCall) -> Work:
    """Return the work of a pool: one operation for every tap of the window and element of the
    smaller side."""
    window = call.attrs["kernel_size"]
    dimensions = call.rank - 2
    small = min(call.inputs[0].count, call.result.count)
    return reduction(small * math.prod(window if len(window) > 1 else (*window,) * dimensions))


@rule(
    """
    clone copy _to_copy cat stack constant_pad_nd flip roll repeat tril triu scatter scatter_add
    scatter_reduce index_put _index_put_impl index_add index_copy index_fill slice_backward
    select_backward slice_scatter select_scatter diagonal_backward diagonal_scatter
    as_strided_scatter embedding_dense_backward embedding_backward pixel_shuffle pixel_unshuffle
    im2col col2im channel_shuffle unfold_backward tril_indices triu_indices affine_grid_generator
    zeros ones full zeros_like ones_like full_like zero fill new_zeros new_ones new_full
    scalar_tensor arange linspace eye lift_fresh lift_fresh_copy as_strided_copy
    split_with_sizes_copy expand_copy randperm one_hot nonzero masked_select unique_dim diag_embed
    put max_unpool2d max_unpool3d _embedding_bag_backward _embedding_bag_dense_backward
    _unsafe_index_put _cat narrow_copy view_copy t_copy permute_copy
    """
)
@rule(
    with_backward(
        """
        reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d upsample_nearest1d upsample_nearest2d upsample_nearest3d
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
        _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d
        """
    )
)
def _movement(_: OpCall) -> Work:
    """Return work that moves elements."""
    return Work(OpClass.MOVEMENT)


def indexed_bytes(call: OpCall) -> int:
    """Return the bytes of its first argument that a `PARTLY_WRITING` call indexes; all for masks,
    whose values decide."""
    target = call.tensor("self")
    if (indices := call.attrs.get("indices")) is not None:
        known = [index for index in indices if index is not None]
        if any(index.itemsize == 1 for index in known):
            return target.touched
        others = [size for size, at in zip_longest(target.shape, indices) if at is None]
        count = math.prod((*np.broadcast_shapes(*(index.shape for index in known)), *others))
    else:
        count = call.tensor("index").count
        if not call.kind.startswith("scatter") and target.shape:
            count = count * target.count // max(1, target.shape[call.attrs["dim"]])
    return min(target.touched, count * target.itemsize)


@rule("embedding index index_select gather take _unsafe_index take_along_dim")
def _selection(call: OpCall) -> Work:
    """Return the work of a selection, with the selected bytes only."""
    table = "weight" if "weight" in call.attrs else "self"
    return Work(
        OpClass.MOVEMENT, touched={table: min(call.tensor(table).touched, call.outputs[0].touched)}
    )


@rule("_embedding_bag _embedding_bag_forward_only embedding_renorm")
def _rows(call: OpCall) -> Work:
    """Return the work of summing or scaling rows of a table, which touches only the rows that are
    looked up."""
    table, steps = ("weight", 1) if "weight" in call.attrs else ("self", NORM_STEPS)
    value = call.tensor(table)
    chosen = call.tensor("indices").count * value.shape[1]
    size = min(value.touched, chosen * value.itemsize)
    return reduction(steps * chosen, {table: size})


rule("_weight_norm_interface _weight_norm_interface_backward renorm")(_per_element(NORM_STEPS))


@rule("bucketize searchsorted isin")
def _searches(call: OpCall) -> Work:
    """Return the work of a binary search for each element of the result; `isin` sorts its second
    operand first."""
    names = ("boundaries", "sorted_sequence", "test_elements")
    known = [call.attrs[name] for name in names if name in call.attrs]
    length = known[0].shape[-1] if isinstance(known[0], OpValue) and known[0].shape else 1
    return reduction(call.result.count * length.bit_length())


@rule("_cdist_forward _cdist_backward _pdist_forward _pdist_backward")
def _distances(call: OpCall) -> Work:
    """Return the work of difference, power and sum for each pair of rows and each of their
    columns."""
    rows = call.tensor("x1" if "x1" in call.attrs else "self")
    pairs = call.tensor("grad") if "grad" in call.attrs else call.result
    return reduction(NORM_STEPS * pairs.count * rows.shape[-1])


@rule("_fft_c2c _fft_r2c _fft_c2r")
def _transforms(call: OpCall) -> Work:
    """Return the work of Fourier transforms, one for each position in the other dimensions."""
    whole = call.result if call.kind == "_fft_c2r" else call.tensor("self")
    length = math.prod(whole.shape[axis] for axis in call.attrs["dim"])
    steps = fourier_steps(length, real=call.kind != "_fft_c2c")
    return reduction(whole.count // max(1, length) * steps)


@rule(
    """
    convolution mm bmm mv addmm addmv baddbmm dot vdot _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
    _scaled_dot_product_cudnn_attention
    """
)
def _as_in_onnx(call: OpCall) -> Work:
    """Return the work of a product by its ONNX operator."""
    node = node_of(call)
    return work_of(node) if all(value.count for value in node.present) else product()


@rule("convolution_backward")
def _backward(call: OpCall) -> Work:
    """Return the work of a convolution's gradients: one product for the input's, one for the
    weight's, each with the multiply-accumulates of the forward one."""
    gradient, source = call.tensor("grad_output"), call.tensor("input")
    forward = convolution_nest(
        replace(convolution(call), outputs=(gradient,)), transposed=call.attrs["transposed"]
    )
    results = iter(call.outputs)
    wanted = [next(results).name if asked else None for asked in call.attrs["output_mask"]]
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


@rule(
    """
    _scaled_dot_product_flash_attention_for_cpu_backward
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention_backward
    _scaled_dot_product_cudnn_attention_backward
    """
)
def _attention_backward(call: OpCall) -> Work:
    """Return the work of attention's gradients: the scores again, then one product each for
    softmax, value, query and key."""
    query, key, value = map(call.tensor, ("query", "key", "value"))
    (batch, count, queries, width), keys, value_width = query.shape, key.shape[2], value.shape[3]
    heads = Heads(batch, count, count, queries, keys, width, value_width)
    groups = batch * count
    gradient = call.tensor("grad_out" if "grad_out" in call.attrs else "grad_out_").name
    to_query, to_key, to_value = (result.name for result in call.outputs[:3])
    scores, _ = heads.nests(query.name, key.name, "", "")
    nests = (
        scores,
        LoopNest(keys, value_width, queries, groups=groups, input=gradient, weight=value.name),
        LoopNest(value_width, queries, keys, groups=groups, weight=gradient, output=to_value),
        LoopNest(width, keys, queries, groups=groups, weight=key.name, output=to_query),
        LoopNest(width, queries, keys, groups=groups, weight=query.name, output=to_key),
    )
    return product(*nests, elements=2 * heads.elements)


@rule("mkldnn_rnn_layer")
def _recurrent_layer(call: OpCall) -> Work:
    """Return the work of one recurrent layer in one direction over (steps, batch, width)."""
    (steps, batch, width), (gates, hidden) = call.tensor("input").shape, call.shape(2)
    return cell(call, steps, batch, width, hidden, gates)


@rule("mkldnn_rnn_layer_backward")
def _recurrent_layer_backward(call: OpCall) -> Work:
    """Return the work of a recurrent layer's gradients: that of the state step after step, then
    those of the input and of both weights."""
    source, output = call.tensor("input"), call.tensor("output")
    inner, recurrent = call.tensor("weight1"), call.tensor("weight2")
    (steps, batch, width), (gates, hidden) = source.shape, recurrent.shape
    to_input, to_inner, to_recurrent = (result.name for result in call.outputs[:3])
    rows = steps * batch
    return product(
        LoopNest(hidden, gates, batch, repeats=steps, weight=recurrent.name),
        LoopNest(width, gates, rows, weight=inner.name, output=to_input),
        LoopNest(width, rows, gates, weight=source.name, output=to_inner),
        LoopNest(hidden, rows, gates, weight=output.name, output=to_recurrent),
        elements=2 * GATE_STEPS * gates * rows,
    )


@rule("_trilinear")
def _bilinear_layer(call: OpCall) -> Work:
    """Return the work of sums of products of three operands over ``sumdim``, each broadcast along
    the dimensions that it lacks."""
    shapes = [
        np.expand_dims(np.broadcast_to(0, call.tensor(name).shape), call.attrs[lacks]).shape
        for name, lacks in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3"))
    ]
    sizes = np.broadcast_shapes(*shapes)
    summed = math.prod(sizes[axis] for axis in call.attrs["sumdim"])
    kept = math.prod(sizes) // max(1, summed)
    return product(named(call, LoopNest(1, summed, kept)), elements=kept * summed)

"""Operators of torch without multiply-accumulate loops: elementwise arithmetic, reductions and data
movement."""

from __future__ import annotations

import math

from loadmaster.workloads.frontends.operation_counts import NORMALISATION_STEPS, SOFTMAX_STEPS
from loadmaster.workloads.frontends.torch.calls import Call, Work, rule
from loadmaster.workloads.graph import OpClass

ALLOCATIONS = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
)
"""Operators that allocate and write nothing: the tensor's lifetime begins with the kernel that
writes it."""
OVERWRITING = frozenset(
    {
        "copy",
        "zero",
        "fill",
        "bernoulli",
        "normal",
        "uniform",
        "random",
        "exponential",
        "cauchy",
        "geometric",
        "log_normal",
    }
)
"""Operators that write in place without reading the old bytes."""
RESIZING = frozenset({"resize", "resize_as", "set"})
"""Operators that change the shape of their argument in place, and may give it another storage."""
SHAPE_ONLY = frozenset(
    {
        "zeros_like",
        "ones_like",
        "full_like",
        "rand_like",
        "randn_like",
        "randint_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "resize_as",
    }
)
"""Operators that use the shape of their operand and none of its bytes."""
SILENTLY_UPDATED = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
    "miopen_batch_norm": ("running_mean", "running_var"),
}
"""Arguments that are updated in place while training, although the operator's signature does not
say so."""


def elementwise(call: Call) -> Work:
    """Count one operation for each element of the largest operand."""
    return Work(OpClass.ELEMENTWISE, elements=call.largest)


rule(
    "native_dropout",
    "bernoulli",
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "normal",
    "uniform",
    "exponential",
    "randint",
    "random",
)(elementwise)
rule(
    "add",
    "mul",
    "sub",
    "div",
    "lerp",
    "addcmul",
    "addcdiv",
    "fused_dropout",
    "rsub",
    "glu",
    "glu_backward",
    "dropout",
)(elementwise)
rule("softplus_backward", "masked_fill", "masked_scatter")(elementwise)


@rule(
    "sum",
    "mean",
    "amax",
    "amin",
    "aminmax",
    "max",
    "min",
    "argmax",
    "argmin",
    "any",
    "all",
    "prod",
    "var",
    "var_mean",
    "std",
    "std_mean",
)
@rule(
    "norm",
    "linalg_vector_norm",
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "logsumexp",
    "count_nonzero",
    "topk",
    "sort",
    "median",
    "kthvalue",
)
@rule(
    "nll_loss_forward",
    "nll_loss2d_forward",
    "nll_loss_backward",
    "nll_loss2d_backward",
    "mse_loss",
    "l1_loss",
    "smooth_l1_loss",
)
@rule("binary_cross_entropy", "bincount", "histc", "nansum", "sum_to_size")
def _reduction(call: Call) -> Work:
    return Work(OpClass.REDUCTION, elements=call.largest)


@rule(
    "_softmax",
    "_log_softmax",
    "_softmax_backward_data",
    "_log_softmax_backward_data",
    "_safe_softmax",
)
def _softmax(call: Call) -> Work:
    return Work(OpClass.REDUCTION, elements=SOFTMAX_STEPS * call.largest)


_NORMALISATIONS = (
    "native_batch_norm",
    "native_layer_norm",
    "native_group_norm",
    "cudnn_batch_norm",
    "_fused_rms_norm",
)


@rule(
    *_NORMALISATIONS,
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
)
@rule(
    "_native_batch_norm_legit_functional",
    "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
    "batch_norm_backward",
)
@rule(*(f"{name}_backward" for name in _NORMALISATIONS))
def _normalisation(call: Call) -> Work:
    return Work(OpClass.REDUCTION, elements=NORMALISATION_STEPS * call.largest)


@rule(
    "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d", "avg_pool3d"
)
@rule("avg_pool2d_backward", "avg_pool3d_backward")
def _pool(call: Call) -> Work:
    """Count an operation for every position of the window at every element of the smaller side."""
    window, dimensions = call.arguments["kernel_size"], len(call.results[0].shape) - 2
    small = min(call.first.count, call.results[0].count)
    return Work(
        OpClass.REDUCTION,
        elements=small * math.prod(window if len(window) > 1 else (*window,) * dimensions),
    )


@rule(
    "max_pool2d_with_indices_backward",
    "max_pool3d_with_indices_backward",
    "_adaptive_avg_pool2d",
    "_adaptive_avg_pool2d_backward",
)
@rule(
    "_adaptive_avg_pool3d",
    "_adaptive_avg_pool3d_backward",
    "adaptive_max_pool2d",
    "adaptive_max_pool2d_backward",
)
def _whole_pool(call: Call) -> Work:
    return Work(OpClass.REDUCTION, elements=call.largest)


@rule(
    "clone",
    "copy",
    "_to_copy",
    "cat",
    "stack",
    "constant_pad_nd",
    "reflection_pad2d",
    "replication_pad2d",
    "flip",
    "roll",
    "repeat",
)
@rule(
    "tril",
    "triu",
    "scatter",
    "scatter_add",
    "scatter_reduce",
    "index_put",
    "_index_put_impl",
    "index_add",
    "index_copy",
    "index_fill",
)
@rule(
    "slice_backward",
    "select_backward",
    "slice_scatter",
    "select_scatter",
    "diagonal_backward",
    "diagonal_scatter",
    "as_strided_scatter",
)
@rule(
    "embedding_dense_backward",
    "embedding_backward",
    "pixel_shuffle",
    "pixel_unshuffle",
    "im2col",
    "col2im",
    "channel_shuffle",
)
@rule(
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
    "upsample_bilinear2d",
    "upsample_bilinear2d_backward",
    "unfold_backward",
)
@rule(
    "_upsample_nearest_exact2d",
    "upsample_bicubic2d",
    "grid_sampler_2d",
    "grid_sampler_2d_backward",
    "tril_indices",
    "triu_indices",
)
@rule(
    "zeros",
    "ones",
    "full",
    "zeros_like",
    "ones_like",
    "full_like",
    "zero",
    "fill",
    "new_zeros",
    "new_ones",
    "new_full",
    "scalar_tensor",
)
@rule(
    "arange",
    "linspace",
    "eye",
    "lift_fresh",
    "lift_fresh_copy",
    "as_strided_copy",
    "split_with_sizes_copy",
    "expand_copy",
    "randperm",
    "one_hot",
)
@rule(
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unsafe_index_put",
    "_cat",
    "narrow_copy",
    "view_copy",
    "t_copy",
    "permute_copy",
)
def _movement(call: Call) -> Work:
    return Work(OpClass.MOVEMENT)


@rule("embedding", "index", "index_select", "gather", "take", "_unsafe_index", "take_along_dim")
def _selection(call: Call) -> Work:
    """Count only the bytes that are selected."""
    table = "weight" if "weight" in call.arguments else "self"
    return Work(
        OpClass.MOVEMENT, touched={table: min(call.tensor(table).bytes, call.results[0].bytes)}
    )

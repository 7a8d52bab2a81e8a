/* Reference kernels: what operators compute, written plainly. Attributes are listed where a kernel is defined. */
#ifndef KERNELS_H
#define KERNELS_H

#include "arrays.h"

/* Element by element, with broadcasting. */
kernel identity, negative, absolute, exponential, logarithm, square_root, reciprocal, error_function, hyperbolic_tangent, sigmoid,
    hard_sigmoid, hard_swish, rectifier, leaky_rectifier, exponential_rectifier, softplus, softsign, sine, cosine, floor_of, ceiling_of,
    sign_of, not_of, is_nan, gelu, gelu_by_tanh, clip;
kernel add, subtract, multiply, divide, power, minimum, maximum, mean_of, and_of, or_of, xor_of, equal, less, less_or_equal, greater,
    greater_or_equal, sloped_rectifier, where, batch_normalization;

/* Products. */
kernel convolution, matrix_product;

/* Several elements into one. */
kernel maximum_pool, average_pool, softmax, log_softmax, layer_normalization, reduce_mean, reduce_sum, reduce_maximum, reduce_minimum;

/* Elements to other places. */
kernel transpose, concatenate, slice, tile, pad, gather, gather_elements, gather_nd;

#endif

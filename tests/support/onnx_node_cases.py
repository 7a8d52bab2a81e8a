"""ONNX's own tests of single operators."""

import warnings
from unittest.mock import patch

import numpy as np
from onnx.backend.test.loader import load_model_tests

POOL = "onnx.reference.ops.op_pool_common.pool"


def without_values(padded, x_shape, kernel, strides, out_shape, *rest, **options):
    """Zeros for what a pool gives, which takes ONNX seconds in Python: tests need its shape."""
    return np.zeros([*x_shape[:2], *out_shape], padded.dtype)


def node_cases():
    """All of them, which ONNX makes when they are imported."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with patch(POOL, without_values):
            return load_model_tests(kind="node")

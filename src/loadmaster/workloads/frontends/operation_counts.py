"""Rules of counting that the ONNX and the torch frontend share: scalar operations per element, and
folding of dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

SOFTMAX_STEPS = 5
"""Operations per element of a softmax: maximum, subtract, exponential, sum, divide."""
NORMALISATION_STEPS = 5
"""Operations per element of a normalisation: mean, subtract, square, scale, shift."""
NORM_STEPS = 3
"""Operations per element of a norm or a distance: subtract or scale, power, add."""
GATE_STEPS = 2
"""Scalar operations per gate and step of a recurrent cell: the activation, and the gate's part in
the new state."""


def fourier_steps(length: int, real: bool) -> int:
    """Return the scalar operations of one fast Fourier transform, rounded up: ``5 N log2 N`` for
    ``N`` complex elements, half of that for real ones.

    The count is the usual estimate of an algorithm of the Cooley-Tukey family (Frigo and Johnson,
    Proceedings of the IEEE 93(2), 2005, section V); lengths with large prime factors take more.
    """
    steps = 5 * length * math.log2(length) if length > 1 else 1
    return math.ceil(steps / 2 if real else steps)


def folded(sizes: Sequence[int]) -> tuple[int, int]:
    """Fold any number of spatial dimensions to rows and columns: depth folds into the rows, one
    dimension is a single row."""
    return math.prod(sizes[:-1]), sizes[-1]

"""Rules of counting that the ONNX and the torch frontend share: scalar operations per element, and
folding of dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

SOFTMAX_STEPS = 5
"""Operations per element of a softmax: maximum, subtract, exponential, sum, divide."""
NORMALISATION_STEPS = 5
"""Operations per element of a normalisation: mean, subtract, square, scale, shift."""


def folded(sizes: Sequence[int]) -> tuple[int, int]:
    """Fold any number of spatial dimensions to rows and columns: depth folds into the rows, one
    dimension is a single row."""
    return math.prod(sizes[:-1]), sizes[-1]

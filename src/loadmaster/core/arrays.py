"""The types of arrays, so that every signature names them alike, and what their whole numbers stay
below."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
"""Whole numbers: bytes, picoseconds, indices."""
WHOLE_LIMIT = 2**62
"""Bytes, addresses, instants, costs and operations stay below this, so that the sum of two fits 64
bits."""
Floats = NDArray[np.float64]
"""Real numbers in double precision: seconds, bytes per second, costs."""
Mask = NDArray[np.bool_]
"""Truth values: True for each item that is meant."""
Bits = NDArray[np.uint8]
"""Truth values as 0 and 1, one byte each, as native code takes them."""
Int32s = NDArray[np.int32]
"""Whole numbers of 32 bits: the indices of mappings, of which populations hold millions."""
UInt32s = NDArray[np.uint32]
"""Whole numbers of 32 bits without a sign: the priorities of mappings."""
UInt64s = NDArray[np.uint64]
"""Whole numbers of 64 bits without a sign: sums of two that fit 63 bits."""
Array = NDArray[Any]
"""Numbers of any type, such as the constants of a network."""

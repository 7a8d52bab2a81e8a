"""When copies back may start at the earliest: not before the linear program begins to make them.

List scheduling starts a copy back as soon as there is room for it, which later copies out, that
hold their room until they are complete, may need more. The linear program weighs both; its engine's
bytes are those of the copies in the order of their deadlines.
"""

from __future__ import annotations

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints
from loadmaster.placement.autotm.sequence_arrays import SequenceArrays, TensorPaths


def released(
    arrays: SequenceArrays, engines: _native.CopyEngines, paths: TensorPaths, fetched: Floats
) -> TensorPaths:
    """Return ``paths`` whose copies back wait until the linear program makes them; ``fetched``: its
    bytes before each position.

    O(uses log uses).
    """
    use = _fetching(arrays, engines, paths)
    size = arrays.size[arrays.tensor[use]].astype(np.float64)
    before = size.cumsum() - size
    # Bytes of both agree, but for rounding and what is copied between kernels.
    begun = before * (fetched[-1] / max(size.sum(), 1.0))
    earliest: Ints = np.zeros(len(arrays.kernel), dtype=np.int64)
    earliest[use] = np.maximum(np.searchsorted(fetched, begun + 1.0) - 1, 0)
    return TensorPaths(paths.fast, paths.stays, paths.tail, earliest)


def _fetching(arrays: SequenceArrays, engines: _native.CopyEngines, paths: TensorPaths) -> Ints:
    """Return the uses before which paths have copies back, by kernel."""
    found = arrays.problem.schedule_copies(engines, paths)
    back = found.to_fast > 0
    tensor, due = found.tensor[back], found.due[back]
    order = np.lexsort((tensor, due))
    step = arrays.kernel_count + 1
    use: Ints = np.searchsorted(arrays.tensor * step + arrays.kernel, (tensor * step + due)[order])
    return use

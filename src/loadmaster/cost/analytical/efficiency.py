"""The share of a core's rate that jobs reach, by kind of operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.targets.hardware import Core
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Job


def kind_of(kind: str, nests: Sequence[LoopNest]) -> str:
    """Return the kind under which a target states the efficiency of an operator.

    That is the operator's own (``Conv``, ``MatMul``, ``convolution``), and for convolutions with
    one input channel in each group ``DepthwiseConv`` or, where names begin with a small letter,
    ``depthwise_convolution``. Pieces of an operator are of its kind: they have all of its input
    channels and taps.
    """
    depthwise = bool(nests) and nests[0].c == 1 and nests[0].r * nests[0].s > 1
    if not depthwise or kind.lower().startswith("depthwise"):
        return kind
    return f"Depthwise{kind}" if kind[:1].isupper() else f"depthwise_{kind}"


def efficiencies(jobs: Sequence[Job], core: Core) -> Floats:
    """Return the efficiency of every job on a core, shape (jobs,), more than 0 and at most 1.
    O(jobs)."""
    if not core.efficiency:
        return np.ones(len(jobs))
    return np.array(
        [core.efficiency.get(kind_of(job.kind, job.nests), 1.0) for job in jobs], dtype=np.float64
    )

"""Which single tensors are streamed, whatever rules by which others are kept and fetched say of
them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.planning.joint.problem import JointOptions
from loadmaster.workloads.job import Workload

_TOGETHER = (1, 1, 2, 4)
"""How many tensors beside one another are changed at once."""


class SingleStreams:
    """Changes of which tensors of a workload are streamed; large ones are changed more often: as
    the root of their bytes.

    The fast link carries what is fetched twice and what is streamed never, and rules for all
    tensors hold up some jobs to relieve others.
    """

    def __init__(self, workload: Workload) -> None:
        self._weight = np.sqrt(
            np.array([tensor.bytes for tensor in workload.tensors], dtype=np.float64)
        )

    def changed(
        self, choices: JointOptions, kept: Ints, generator: np.random.Generator
    ) -> JointOptions:
        """Choices by which one tensor, or a few beside one another, are streamed that were not, or
        are not any more.

        ``kept`` are the tensors that are kept or fetched by the choices as they are: that any
        others are streamed would change nothing.
        """
        able = np.union1d(kept, np.array(choices.streamed_tensors, dtype=np.int64))
        if not len(able):
            return choices
        until = np.cumsum(self._weight[able])
        first = int(np.searchsorted(until, generator.random() * until[-1], side="right"))
        changed = able[first : first + int(generator.choice(_TOGETHER))]
        return replace(
            choices,
            streamed_tensors=tuple(sorted({*choices.streamed_tensors} ^ {*changed.tolist()})),
        )

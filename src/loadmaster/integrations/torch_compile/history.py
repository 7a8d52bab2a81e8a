"""What steps of a graph took, and what steps of a plan for it should take."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.integrations.torch_compile.captured import Call
from loadmaster.integrations.torch_compile.executor import Times
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.program import Program, link_with_measured_bandwidths
from loadmaster.integrations.torch_compile.traced import Traced
from loadmaster.placement.decisions import TensorPlacement
from loadmaster.placement.sequence import CopyLink, KernelSequence
from loadmaster.placement.timing import time_moves

_RECENT = 6
"""Number of the latest steps whose times are kept."""


@dataclass(frozen=True)
class StepTimes:
    """What one step took.

    Attributes
    ----------
    calls, kernels
        Its calls, and the seconds of each, shape (calls,).
    link
        The bandwidths of its copies.
    beside
        Seconds of the step beside its calls and the copies themselves.
    pace
        Seconds of all calls in units of those of their profiles: a profile is made while others
        compile, or on cold memory.
    """

    calls: Sequence[Call]
    kernels: Floats
    link: CopyLink
    beside: float
    pace: float

    def kernel_seconds(self, traced: Traced) -> Floats:
        """Seconds of every call of a version of the graph: as in this step, if it was made in it,
        else by its profile and the pace."""
        found = [profile.seconds * self.pace for profile in traced.profiles]
        for k, (call, seen) in enumerate(zip(traced.captured.calls, self.calls, strict=True)):
            if call is seen:
                found[k] = float(self.kernels[k])
        return np.array(found)


class History:
    """Seconds of kernels and bandwidths of copies: first from profiles, later from the steps of a
    plan."""

    def __init__(self, link: CopyLink) -> None:
        self.link = link
        self.steps = 0
        self.refined = False
        self._known: list[StepTimes] = []
        self._recent: deque[Times] = deque(maxlen=_RECENT)

    def kernel_seconds(self, traced: Traced) -> Floats:
        """Median seconds of every call over the known steps; those of its profile, if there are
        none."""
        if not self._known:
            return np.array([profile.seconds for profile in traced.profiles])
        return np.median([step.kernel_seconds(traced) for step in self._known], axis=0)

    def predicted_seconds(
        self, traced: Traced, sequence: KernelSequence, placement: TensorPlacement
    ) -> float:
        """Seconds of a step under a placement: the median of what each known step would have taken
        under it.

        Other load on the machine slows down many kernels of one step. The median of steps has its
        part of that; a step of median kernels has not, and is shorter.
        """
        if not self._known:
            return time_moves(sequence, placement).total
        totals = []
        for step in self._known:
            as_then = _with_seconds(replace(sequence, link=step.link), step.kernel_seconds(traced))
            totals.append(time_moves(as_then, placement).total + step.beside)
        return float(np.median(totals))

    def note(self, times: Times) -> None:
        """Add the times of a step."""
        self.steps += 1
        self._recent.append(times)

    def forget(self) -> None:
        """Drop the times of recent steps: a new plan has other copies, or those that follow run
        under other conditions."""
        self._recent.clear()

    def awaited(self, after: int) -> bool:
        """Whether the plan will be refined when ``after`` steps were made; 0: never."""
        return after > 0 and not self.refined

    def due(self, after: int) -> bool:
        """Whether to refine the plan now: true once, when ``after`` steps were made."""
        if not self.awaited(after) or self.steps < after:
            return False
        self.refined = True
        return True

    def adopt_recent_times(self, traced: Traced, program: Program) -> None:
        """Use the times of recent steps from now on, without the first of a plan, in which memory
        is touched for the first time."""
        recent = list(self._recent)[1 if len(self._recent) < _RECENT else 0 :]
        if recent:
            self._known = [_step_times(times, traced, program, self.link) for times in recent]
            seconds = np.median([times.copies for times in recent], axis=0)
            self.link = link_with_measured_bandwidths(
                self.link, program.copies, program.blocking, seconds
            )


def _step_times(times: Times, traced: Traced, program: Program, link: CopyLink) -> StepTimes:
    measured = link_with_measured_bandwidths(link, program.copies, program.blocking, times.copies)
    beside = max(times.inside - float(times.kernels.sum()) - times.waiting + times.starting, 0.0)
    return StepTimes(
        program.captured.calls,
        times.kernels,
        measured,
        beside,
        _pace(times.kernels, traced.profiles),
    )


def _pace(kernels: Floats, profiles: Sequence[CallProfile]) -> float:
    alone = np.array([profile.seconds for profile in profiles])
    return float(kernels[alone > 0].sum() / alone.sum()) if alone.any() else 1.0


def _with_seconds(sequence: KernelSequence, seconds: Floats) -> KernelSequence:
    """Return the sequence with other times of its kernels, shape (kernels,)."""
    pairs = zip(sequence.kernels, seconds.tolist(), strict=True)
    kernels = (
        replace(kernel, algorithms=(replace(kernel.algorithms[0], seconds=value),))
        for kernel, value in pairs
    )
    return replace(sequence, kernels=tuple(kernels))

"""A captured graph with what its calls were seen to need, and the history of its steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from loadmaster.core.arrays import Floats
from loadmaster.integrations.torch_compile.captured import Call, Captured
from loadmaster.integrations.torch_compile.executor import Times
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.program import Program, link_with_measured_bandwidths
from loadmaster.integrations.torch_compile.updates import Update
from loadmaster.placement.sequence import CopyLink

_RECENT = 6
"""Number of the latest steps whose times are kept."""


@dataclass(frozen=True)
class Traced:
    """A captured and profiled graph, before it is planned.

    Attributes
    ----------
    captured, profiles
        Calls and storages, and what each call was seen to need.
    updates, states
        By the position of their gradient among the results of the backward part; of each the state, by storage.
    given
        Storages of parameters and buffers, each with its position among the arguments.
    movable
        Storages of the caller that a plan may move.
    gradients
        Storages of gradients that a plan may move.
    """

    captured: Captured
    profiles: list[CallProfile]
    updates: dict[int, Update]
    states: dict[int, dict[int, torch.Tensor]]
    given: dict[int, int]
    movable: frozenset[int]
    gradients: frozenset[int]

    def tensors(self, given: Sequence[Any]) -> dict[int, torch.Tensor]:
        """Parameters, buffers and optimizer state of a run, by storage."""
        tensors = {storage: given[i] for storage, i in self.given.items()}
        for state in self.states.values():
            tensors |= state
        return tensors

    def fresh(self) -> set[int]:
        """Storages of state that no update has written yet."""
        return {s for i, state in self.states.items() if not self.updates[i].begun for s in state}


class History:
    """Seconds of kernels and bandwidths of copies: first from profiles, later from the steps of a plan."""

    def __init__(self, link: CopyLink) -> None:
        self.link = link
        self._seconds: dict[int, tuple[Call, float]] = {}
        self.steps = 0
        self.refined = False
        self._recent: deque[Times] = deque(maxlen=_RECENT)

    def kernel_seconds(self, traced: Traced) -> Floats:
        """Seconds of every call: as measured in steps in which it ran as it is, whole or in these blocks, else of its profile."""
        pairs = zip(traced.captured.calls, traced.profiles, strict=True)
        known = ((self._seconds.get(k), call, profile) for k, (call, profile) in enumerate(pairs))
        return np.array([seen[1] if seen is not None and seen[0] is call else profile.seconds for seen, call, profile in known])

    def note(self, times: Times) -> None:
        """Add the times of a step."""
        self.steps += 1
        self._recent.append(times)

    def forget(self) -> None:
        """Drop the times of recent steps, because a new plan has other copies."""
        self._recent.clear()

    def due(self, after: int) -> bool:
        """Whether to refine the plan now: true once, when ``after`` steps were made."""
        if not after or self.refined or self.steps < after:
            return False
        self.refined = True
        return True

    def adopt_recent_times(self, program: Program) -> None:
        """Use the median times of recent steps from now on, without the first of a plan, in which memory is touched for the first time."""
        recent = list(self._recent)[1 if len(self._recent) < _RECENT else 0 :]
        if recent:
            kernels = np.median([times.kernels for times in recent], axis=0).tolist()
            self._seconds = {k: (call, kernels[k]) for k, call in enumerate(program.captured.calls)}
            seconds = np.median([times.copies for times in recent], axis=0)
            self.link = link_with_measured_bandwidths(self.link, program.copies, program.blocking, seconds)

"""A captured graph with what its calls were seen to need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import Captured
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.updates import Update


@dataclass(frozen=True)
class Traced:
    """A captured and profiled graph, before it is planned.

    Attributes
    ----------
    captured, profiles
        Calls and storages, and what each call was seen to need.
    updates, states
        By the position of their gradient among the results of the backward part; of each the state,
        by storage.
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

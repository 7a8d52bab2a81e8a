"""What whole steps take when nothing moves, learned from the steps that were seen: a budget that is
a share is a share of this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from loadmaster.integrations.torch_compile.persistent import SMALLEST, PersistentTensors
from loadmaster.integrations.torch_compile.planned import Planned
from loadmaster.integrations.torch_compile.step_peak import Footprint, step_peak


class SeenSteps:
    """The graphs of each step that was seen, in order, and what was in memory beside them.

    ``now`` are those of the step under way, and ``peak`` the most bytes of any step, without
    persistent tensors.
    """

    def __init__(self) -> None:
        self.now: list[Planned] = []
        self.peak = 0
        self._footprints: dict[Planned, Footprint] = {}
        self._after: dict[Planned, set[tuple[Planned, ...]]] = {}
        self._earlier: dict[Planned, list[int]] = {}
        self._results: dict[Planned, PersistentTensors] = {}
        self._results_beside: dict[Planned, list[int]] = {}

    def begin(self) -> None:
        """Note that a step begins."""
        self.now.clear()

    def join(self, plan: Planned) -> None:
        """Note that a graph runs in the step under way, if it is known what it takes."""
        if plan in self._footprints:
            self._see(plan)

    def account(self, plan: Planned, taken: Footprint) -> None:
        """Note what a graph of the step under way takes when nothing moves."""
        self._footprints[plan] = taken
        self._see(plan)

    def _see(self, plan: Planned) -> None:
        if plan not in self.now:
            self.now.append(plan)
        earlier = [sum(self._earlier.get(one, (0, 0))[part] for one in self.now) for part in (0, 1)]
        taken = ((self._footprints[one], self._results_beside.get(one, (0, 0))) for one in self.now)
        step = [
            replace(
                one,
                forward=one.forward + earlier[0] + beside[0],
                backward=one.backward + earlier[1] + beside[1],
            )
            for one, beside in taken
        ]
        self.peak = max(self.peak, step_peak(step))
        for i, one in enumerate(self.now):
            self._after.setdefault(one, set()).add(tuple(self.now[i + 1 :]))

    def note_gradients(self, plan: Planned, part: int, bytes: int) -> None:
        """Note the bytes of gradients of earlier backward passes that are there when a part of a
        graph begins."""
        self._note_most(self._earlier, plan, part, bytes)

    def note_results(self, plan: Planned, returned: Iterable[Any]) -> None:
        """Note what the forward part of a graph gives to the caller, who may keep it for any
        time."""
        known = self._results.setdefault(plan, PersistentTensors(None))
        for one in returned:
            if (
                type(one) is torch.Tensor
                and one.layout is torch.strided
                and one.untyped_storage().nbytes() >= SMALLEST
            ):
                known.of(one)

    def note_results_beside(self, plan: Planned, part: int, arguments: Iterable[Any]) -> None:
        """Note how much of what graphs have returned is held when a part of a graph begins, but for
        its arguments and its own results."""
        given = {
            one.untyped_storage()._cdata
            for one in arguments
            if type(one) is torch.Tensor and one.layout is torch.strided
        }
        held = sum(
            known.bytes(given)
            for other, known in self._results.items()
            if part == 0 or other is not plan
        )
        self._note_most(self._results_beside, plan, part, held)

    def _note_most(
        self, most: dict[Planned, list[int]], plan: Planned, part: int, bytes: int
    ) -> None:
        seen = most.setdefault(plan, [0, 0])
        if bytes > seen[part]:
            seen[part] = bytes
            self.join(plan)

    def results_beside(self, plan: Planned) -> tuple[int, int]:
        """Most bytes of others' results that were held while the forward, and while the backward
        part of a graph ran."""
        forward, backward = self._results_beside.get(plan, (0, 0))
        return forward, backward

    def left_after(self, plan: Planned, at_least: bool) -> int:
        """Most bytes of gradients that graphs after this one leave in the fast memory; with
        ``at_least``, if all that may move do."""
        return max(
            (
                sum(one.gradients_left(at_least) for one in later)
                for later in self._after.get(plan, ())
            ),
            default=0,
        )

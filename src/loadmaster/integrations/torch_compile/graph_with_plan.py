"""Makes the plan of a captured graph: captures and profiles it, decides under the budget, and
prepares the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch

from loadmaster.core.provenance import Provenance
from loadmaster.integrations.torch_compile.captured import (
    Captured,
    capture,
    movable_gradients,
    movable_storages,
    persistent_inputs,
)
from loadmaster.integrations.torch_compile.compiled_model import Model
from loadmaster.integrations.torch_compile.cutting.block_call import BlockCall
from loadmaster.integrations.torch_compile.cutting.versions import Versions
from loadmaster.integrations.torch_compile.devices.cpu_memory import return_freed_blocks
from loadmaster.integrations.torch_compile.devices.device_memory import DeviceMemory
from loadmaster.integrations.torch_compile.executor import Times
from loadmaster.integrations.torch_compile.graph_objects import object_bytes
from loadmaster.integrations.torch_compile.history import History
from loadmaster.integrations.torch_compile.persistent import SMALLEST, PersistentTensor
from loadmaster.integrations.torch_compile.placing import (
    Placed,
    Problem,
    Search,
    TooSmall,
    problem_of,
)
from loadmaster.integrations.torch_compile.planned import Surroundings
from loadmaster.integrations.torch_compile.program import Program, prepare
from loadmaster.integrations.torch_compile.step_peak import footprint, gradients_left, live_bytes
from loadmaster.integrations.torch_compile.traced import Traced
from loadmaster.integrations.torch_compile.updates import Update, Updated, with_updates


@dataclass(frozen=True)
class Plan:
    """A problem with its decisions, ready to run.

    ``surroundings`` are what other graphs took when the plan was made. ``refused`` says why the
    plan takes more than its share, if it does: a share is known in full only after the first whole
    step.
    """

    problem: Problem
    program: Program
    moving: frozenset[int]
    unmoved_peak: int
    surroundings: Surroundings
    refused: TooSmall | None


class GraphWithPlan:
    """A graph, or a forward and a backward graph, for given shapes, with its plan and what the plan
    says of itself.

    ``traced`` is the graph as it runs, with kernels in blocks where they need to be; ``versions``
    are the whole one and others.
    """

    def __init__(
        self,
        model: Model,
        name: str,
        graphs: list[torch.fx.GraphModule],
        kept: int | None,
        shapes: Any = None,
    ) -> None:
        self.model, self.name, self.graphs, self.kept, self.shapes = (
            model,
            name,
            graphs,
            kept,
            shapes,
        )
        self.traced: Traced | None = None
        self.versions: Versions | None = None
        self.plan: Plan | None = None
        self.history: History | None = None
        self.times = Times(0, 0)
        self._several = False
        self._mine: dict[int, PersistentTensor] = {}
        self._shifts: dict[int, int] = {}

    def _capture(self, given: Sequence[Any]) -> None:
        captured = capture(self.graphs, given, self.kept)
        updated = Updated(captured, {}, {})
        if len(captured.parts) == 2 and captured.device.type == "cpu" and not self._several:
            updated = with_updates(captured, given, self.model.updates)
        captured = updated.captured
        large = {
            s
            for s, storage in enumerate(captured.storages)
            if storage.bytes >= SMALLEST and captured.device.type == "cpu"
        }
        movable = movable_storages(captured, self.kept).intersection(large)
        gradients = movable_gradients(captured, given).intersection(large)
        for update in updated.updates.values():
            update.sync_from_optimizer()
        memory = self.model.memory(captured.device)  # from now on, allocations are seen
        self.model.clear_arenas()
        persistent = persistent_inputs(captured, given)
        gradients = (
            gradients if self.model.persistent(captured.device).file is not None else frozenset()
        )
        self.traced = Traced(
            captured, [], updated.updates, updated.states, persistent, movable, gradients
        )
        self._persistent(self.traced.tensors(given))
        about = self._about(captured)
        if about is not None:
            most = max(map(captured.operand_bytes, captured.calls), default=0)
            self.model.make_room_for_trials(most, about, captured.device)
        self.versions = Versions(
            self.traced, self._movable(), memory.link, self.model.profiles, about
        )
        self.traced = self.versions.whole
        self.history = History(memory.link)
        self._account(given)

    def _about(self, captured: Captured) -> int | None:
        """The budget, as far as it is known before calls are profiled; a share is of no less."""
        given = self.model.settings.fast_memory
        return (
            int(given * max(live_bytes(captured), self.model.unmoved_peak))
            if isinstance(given, float)
            else self.budget
        )

    def _movable(self) -> frozenset[int]:
        """Storages of the caller, and gradients, that may be in the slow memory."""
        assert self.traced is not None
        can_move = self.model.persistent(self.traced.captured.device).file is not None
        return (
            self.traced.movable.intersection(self._mine) | self.traced.gradients
            if can_move
            else frozenset()
        )

    def _account(self, given: Sequence[Any]) -> None:
        """Tell the model what a step of this graph takes when nothing moves."""
        assert self.traced is not None
        mine = self._persistent(self.traced.tensors(given))
        unmoved = self._problem(self.traced, frozenset(), Surroundings(0, 0, (0, 0), False, None))
        objects = object_bytes(len(self.traced.captured.calls), symbolic=self.shapes is not None)
        self.model.account(
            self, footprint(self.traced.captured, unmoved, mine), (id(self.graphs), objects)
        )

    def _make_plan(self, given: Sequence[Any]) -> None:
        assert self.traced is not None
        assert self.history is not None
        mine = self._persistent(self.traced.tensors(given))
        if self.budget is not None:
            self.model.release_idle()  # planning takes memory of its own
        known = self.model.persistent(self.traced.captured.device)
        known.leave_files(
            (one, tensor) for one in mine.values() if (tensor := one.tensor()) is not None
        )
        if self.budget is not None and self.plan is not None and self.plan.program.copies:
            known.rest(mine.values())
        self._shifts = {s: one.in_file.shift for s, one in mine.items() if one.in_file is not None}
        movable = self._movable()
        self.traced, problem, placed, around, refused = self._decided(movable)
        moving = movable.intersection((*problem.storage, *self.traced.captured.streamed))
        program = prepare(
            self.traced.captured,
            self.traced.profiles,
            problem,
            placed,
            self.memory,
            moving,
            self._shifts,
        )
        assert self.versions is not None
        before, unmoved = self.plan, self._problem(self.versions.whole, frozenset(), around).peak()
        self.plan = Plan(problem, program, moving, unmoved, around, refused)
        self.times = Times(len(program.launches), len(program.copies))
        self.history.forget()
        if before is not None:
            before.program.arena.close()
        self.model.add(self)
        if around.budget is not None:
            return_freed_blocks()

    def _decided(
        self, movable: frozenset[int]
    ) -> tuple[Traced, Problem, Placed, Surroundings, TooSmall | None]:
        """Decide under the budget: with whole kernels if that is possible, else with those in
        blocks that need to be.

        If the budget is a share of a step that is not known in full yet, take the smallest that
        works.
        """
        assert self.versions is not None
        around, mode = self.model.surroundings(self, self._mine.values()), self.model.settings.mode
        provisional = self.history is not None and self.history.awaited(
            self.model.settings.refine_after
        )
        search, failed = None, 0
        for version in self.versions.finer(
            around.budget, lambda whole: self._problem(whole, movable, around)
        ):
            search = Search(
                partial(self._problem, version, around=around),
                movable,
                mode,
                around.offload_idle,
                self.model.objects,
                provisional,
            )
            found = search.attempt(around.budget)
            if not isinstance(found, int):
                return version, *found, around, None
            failed = found
        assert search is not None
        assert around.budget is not None
        if self.model.start_offloading_idle(self, self._mine.values()):
            return self._decided(movable)
        refusal = search.refusal(around.budget, failed)
        if (
            not isinstance(self.model.settings.fast_memory, float)
            or self.history is None
            or self.history.steps
        ):
            raise refusal
        found = search.attempt(refusal.smallest)
        assert not isinstance(found, int)
        return version, *found, around._replace(budget=refusal.smallest), refusal

    def _problem(self, traced: Traced, moving: frozenset[int], around: Surroundings) -> Problem:
        """Make the problem in which some storages of the caller move, with the latest times."""
        assert self.history is not None
        history, alignment = self.history, self.memory.alignment
        problem = problem_of(
            self.name,
            traced.captured,
            traced.profiles,
            history.kernel_seconds(traced),
            history.link,
            alignment,
            moving - traced.captured.streamed,
            around.persistent,
            around.gradients,
            around.results,
            self._shifts,
        )
        if not self.memory.shrinks:
            problem.elsewhere[:] = problem.elsewhere.max(
                initial=0
            )  # the arena has its full size while they are at their most
        return problem

    def _outgrown(self) -> bool:
        """Whether the plan is out of date: other graphs take more memory than it left them, or the
        budget has changed."""
        assert self.plan is not None
        before, now = self.plan.surroundings, self.model.surroundings(self, self._mine.values())
        if now.budget is None:
            return False
        if self.plan.refused is not None or (now.offload_idle and not before.offload_idle):
            return True
        grown = now.persistent > before.persistent or now.gradients > before.gradients
        grown |= any(held > left for held, left in zip(now.results, before.results, strict=True))
        return grown or (now.budget != before.budget and bool(self.plan.program.copies))

    def _persistent(self, tensors: Mapping[int, torch.Tensor]) -> dict[int, PersistentTensor]:
        assert self.traced is not None
        known, fresh, movable = (
            self.model.persistent(self.traced.captured.device),
            self.traced.fresh(),
            self.traced.movable,
        )
        self._mine = {
            storage: known.of(tensor, storage in fresh, storage in movable)
            for storage, tensor in tensors.items()
        }
        known.find_in_files(self._mine.values())
        for storage in {
            s for call in self.traced.captured.calls for s in call.writes if s in self._mine
        }:
            if self._mine[storage].in_file is not None:
                self._mine[storage].leave_file()
        return self._mine

    def _left_files(self) -> bool:
        """Whether tensors that the plan reads from files of weights have changed since, so that
        they are there no more."""
        assert self.plan is not None
        if not self._shifts:
            return False
        self.place_parameters()
        return any(self._mine[s].in_file is None for s in self._shifts.keys() & self.plan.moving)

    def place_parameters(self) -> None:
        """Offload or reload parameters, buffers and optimizer state so that each is where the plan
        expects it."""
        if self.traced is not None and self.plan is not None:
            there = [(one, one.tensor(), s in self.plan.moving) for s, one in self._mine.items()]
            known = self.model.persistent(self.traced.captured.device)
            known.place(
                [(one, tensor, offload) for one, tensor, offload in there if tensor is not None]
            )

    @property
    def updates(self) -> dict[int, Update]:
        """Optimizer updates by the position of their gradient among the results of the backward
        graph."""
        return {} if self.traced is None else self.traced.updates

    @property
    def changes(self) -> frozenset[int]:
        """Parameters (by ``id``) that the updates change."""
        return frozenset(id(update.parameter) for update in self.updates.values())

    @property
    def memory(self) -> DeviceMemory:
        """Fast and slow memory of the device that the graph runs on."""
        assert self.traced is not None
        return self.model.memory(self.traced.captured.device)

    @property
    def program(self) -> Program | None:
        """The plan made ready to run; None before the first step."""
        return None if self.plan is None else self.plan.program

    @property
    def problem(self) -> Problem | None:
        """The placement problem that the plan solves; None before the first step."""
        return None if self.plan is None else self.plan.problem

    @property
    def refused(self) -> TooSmall | None:
        """Why the plan takes more than its budget, if the step was not known in full when the plan
        was made; else None."""
        return None if self.plan is None else self.plan.refused

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory that a step may take; None if there is no limit."""
        return self.model.budget

    @property
    def unmoved_peak(self) -> int:
        """Most bytes of fast memory in use at once when nothing moves, with the parameters of other
        graphs."""
        return 0 if self.plan is None else self.plan.unmoved_peak

    @property
    def predicted_seconds(self) -> float:
        """Seconds that a step should take, by the times of kernels and copies in the steps that are
        known."""
        assert self.plan is not None
        assert self.traced is not None
        assert self.history is not None
        return self.history.predicted_seconds(
            self.traced, self.plan.problem.sequence, self.plan.program.placed.placement
        )

    @property
    def costs(self) -> tuple[Provenance, ...]:
        """What the times of kernels come from with which the plan was made."""
        return () if self.plan is None else self.plan.problem.sequence.costs

    @property
    def placed_peak(self) -> int:
        """Most bytes of fast memory in use at once under the plan."""
        return 0 if self.plan is None else self.plan.program.placed.peak

    def gradients_left(self, at_least: bool) -> int:
        """Bytes of gradients that a step leaves in the fast memory; with ``at_least``, if all that
        may move do."""
        if self.traced is None:
            return 0
        moved = self.traced.gradients if at_least or self.plan is None else self.plan.moving
        left = gradients_left(self.traced.captured, self._mine) - moved
        return sum(self.traced.captured.storages[s].bytes for s in left)

    @property
    def kernels_in_blocks(self) -> tuple[str, ...]:
        """Operators of the kernels that run block by block, as the budget has no room for their
        operands."""
        calls = [] if self.plan is None else self.plan.program.captured.calls
        return tuple(call.target.whole.kind for call in calls if isinstance(call.target, BlockCall))

    @property
    def has_backward(self) -> bool:
        """Whether the graph has a backward part."""
        return len(self.graphs) > 1

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies, both ways."""
        if self.plan is None or self.traced is None:
            return 0
        return sum(copy.bytes for copy in self.plan.program.copies) + sum(
            profile.transferred for profile in self.traced.profiles
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel with its predicted seconds, those of the last step, and the bytes
        of fast memory in use under the plan."""
        assert self.plan is not None
        problem = self.plan.problem
        sequence, change = problem.sequence, [0] * (len(problem.elsewhere) + 1)
        for stay in self.plan.program.placed.placement.stays:
            change[stay.start] += int(sequence.sizes[stay.tensor])
            change[stay.end] -= int(sequence.sizes[stay.tensor])
        return [
            {
                "graph": self.name,
                "kernel": kernel.name,
                "operator": kernel.kind,
                "predicted_seconds": kernel.algorithms[0].seconds,
                "measured_seconds": float(measured),
                "workspace": kernel.algorithms[0].workspace,
                "elsewhere": int(elsewhere),
                "fast_bytes": stays + int(elsewhere) + kernel.algorithms[0].workspace,
            }
            for kernel, measured, elsewhere, stays in zip(
                sequence.kernels,
                self.times.kernels,
                problem.elsewhere,
                accumulate(change[:-1]),
                strict=True,
            )
        ]

    def refresh_prediction(self) -> None:
        """Predict the time of a step again, from the steps measured so far; the plan stays."""
        assert self.history is not None
        assert self.plan is not None
        assert self.traced is not None
        self.history.adopt_recent_times(self.traced, self.plan.program)
        self.plan = replace(
            self.plan, problem=self._problem(self.traced, self.plan.moving, self.plan.surroundings)
        )

    def forget_times(self) -> None:
        """Predict from the steps that follow: those so far ran under other conditions."""
        if self.history is not None:
            self.history.forget()

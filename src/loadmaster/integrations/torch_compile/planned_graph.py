"""A captured graph with its plan: made when its first step begins, made again with measured times, and run."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.captured import Captured, View, capture, lasting_inputs, movable_storages
from loadmaster.integrations.torch_compile.compiled_model import Model, Surroundings
from loadmaster.integrations.torch_compile.devices.device_memory import DeviceMemory
from loadmaster.integrations.torch_compile.executor import Session, Times, run_part, session_of
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.placing import Placed, Problem, TooSmall, place, problem_of
from loadmaster.integrations.torch_compile.program import Program, observed, prepare
from loadmaster.integrations.torch_compile.resting import Lasting
from loadmaster.integrations.torch_compile.step_peak import footprint
from loadmaster.integrations.torch_compile.updates import Update, Updated, with_updates
from loadmaster.placement.sequence import CopyLink
from loadmaster.placement.timing import time_moves

_RECENT = 6
"""Steps whose times are remembered."""
_SMALLEST = 64 << 10
"""Bytes from which on a parameter, or the like, is worth moving."""


@dataclass(frozen=True)
class Traced:
    """What is known of a graph before it is planned.

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
    """

    captured: Captured
    profiles: list[CallProfile]
    updates: dict[int, Update]
    states: dict[int, dict[int, torch.Tensor]]
    given: dict[int, int]
    movable: frozenset[int]

    def tensors(self, given: Sequence[Any]) -> dict[int, torch.Tensor]:
        """Parameters, buffers and optimizer state of a run, by storage."""
        tensors = {storage: given[i] for storage, i in self.given.items()}
        for state in self.states.values():
            tensors |= state
        return tensors

    def fresh(self) -> set[int]:
        """Storages of state that no update has written yet."""
        return {s for i, state in self.states.items() if not self.updates[i].begun for s in state}


@dataclass(frozen=True)
class Plan:
    """Decisions, ready to run; what they reckon with; and why they take more than a share that is not known in full, if they do."""

    problem: Problem
    program: Program
    moving: frozenset[int]
    unmoved_peak: int
    surroundings: Surroundings
    refused: TooSmall | None


class History:
    """How long kernels and copies take: as profiled, then as the steps of a plan have shown."""

    def __init__(self, profiles: Sequence[CallProfile], link: CopyLink) -> None:
        self.kernel_seconds: NDArray[np.float64] = np.array([profile.seconds for profile in profiles])
        self.link = link
        self.steps = 0
        self.refined = False
        self._recent: deque[Times] = deque(maxlen=_RECENT)

    def note(self, times: Times) -> None:
        """A step is over."""
        self.steps += 1
        self._recent.append(times)

    def forget(self) -> None:
        """A new plan has other copies."""
        self._recent.clear()

    def due(self, after: int) -> bool:
        """Whether so many steps were made that the plan should be refined with their times: once."""
        if not after or self.refined or self.steps < after:
            return False
        self.refined = True
        return True

    def observe(self, program: Program) -> None:
        """Take over the times of recent steps, but for the first of a plan, in which memory is touched for the first time."""
        recent = list(self._recent)[1 if len(self._recent) < _RECENT else 0 :]
        if recent:
            self.kernel_seconds = np.median([times.kernels for times in recent], axis=0)
            seconds = np.median([times.copies for times in recent], axis=0)
            self.link = observed(self.link, program.copies, program.blocking, seconds)


class PlannedGraph:
    """A graph, or a forward and a backward graph, for given shapes, with its plan; made when its first step begins."""

    def __init__(self, model: Model, name: str, graphs: list[torch.fx.GraphModule], kept: int | None, shapes: Any = None) -> None:
        self.model, self.name, self.graphs, self.kept, self.shapes = model, name, graphs, kept, shapes
        self.traced: Traced | None = None
        self.plan: Plan | None = None
        self.history: History | None = None
        self.times = Times(0, 0)
        self._several = False
        self._mine: dict[int, Lasting] = {}
        self._last: Session | None = None
        self._open: weakref.WeakSet[Session] = weakref.WeakSet()

    def prepare(self, given: Sequence[Any]) -> Program:
        """Capture, profile, place, pack. Raises `BudgetError` and `NotPlannable`."""
        self._several |= any(given[i] is not update.parameter for i, update in self.updates.items())
        if self.plan is None or (self._idle() and self._held()):
            self._capture(given)
            self._make_plan(given)
        elif self._idle() and self._outgrown():
            self.model.make_room(self.plan.program)
            self._make_plan(given)
        assert self.plan is not None
        return self.plan.program

    def _idle(self) -> bool:
        """Whether no run is under way."""
        return all(session.finished for session in self._open)

    def _capture(self, given: Sequence[Any]) -> None:
        captured = capture(self.graphs, given, self.kept)
        updated = Updated(captured, {}, {})
        if len(captured.parts) == 2 and captured.device.type == "cpu" and not self._several:
            updated = with_updates(captured, given, self.model.updates)
        captured = updated.captured
        large = {s for s, storage in enumerate(captured.storages) if storage.bytes >= _SMALLEST and captured.device.type == "cpu"}
        movable = movable_storages(captured, self.kept).intersection(large)
        for update in updated.updates.values():
            update.heed()
        memory = self.model.memory(captured.device)  # from now on, allocations are seen
        self.model.clear_arenas()
        profiles = self.model.profiles.of(captured)
        self.traced = Traced(captured, profiles, updated.updates, updated.states, lasting_inputs(captured, given), movable)
        self.history = History(profiles, memory.link)
        self._account(given)

    def _account(self, given: Sequence[Any]) -> None:
        """Have the model know what a step takes when nothing moves."""
        assert self.traced is not None
        mine = self._lasting(self.traced.tensors(given))
        unmoved = self._problem(frozenset(), Surroundings(0, 0, False, None))
        self.model.account(self, footprint(self.traced.captured, unmoved, mine))

    def _make_plan(self, given: Sequence[Any]) -> None:
        assert self.traced is not None
        assert self.history is not None
        traced = self.traced
        mine = self._lasting(traced.tensors(given))
        can_move = self.model.lasting(traced.captured.device).file is not None
        movable = traced.movable.intersection(mine) if can_move else frozenset()
        problem, placed, around, refused = self._decided(movable)
        moving = movable.intersection(problem.storage)
        program = prepare(traced.captured, traced.profiles, problem, placed, self.memory, moving)
        before, unmoved = self.plan, self._problem(frozenset(), around).peak()
        self.plan = Plan(problem, program, moving, unmoved, around, refused)
        self.times = Times(len(traced.captured.calls), len(program.copies))
        self.history.forget()
        if before is not None:
            before.program.arena.close()
        self.model.add(self)

    def _decided(self, movable: frozenset[int]) -> tuple[Problem, Placed, Surroundings, TooSmall | None]:
        """Decisions under the budget. While a share is of a step that is not known in full yet, they may take the least that works."""
        around = self.model.surroundings(self, self._mine.values())
        try:
            return *self._placed(movable, around), around, None
        except TooSmall as refusal:
            if self.model.yield_room(self._mine.values()):
                return self._decided(movable)
            if not isinstance(self.model.settings.fast_memory, float) or self.history is None or self.history.steps:
                raise
            return *self._placed(movable, around._replace(budget=refusal.smallest)), around, refusal

    def _placed(self, movable: frozenset[int], around: Surroundings) -> tuple[Problem, Placed]:
        mode = self.model.settings.mode
        return place(lambda moving: self._problem(moving, around), movable, around.budget, mode, yielding=around.yielding)

    def _problem(self, moving: frozenset[int], around: Surroundings) -> Problem:
        """The problem in which some storages of the caller move, by the times that are known."""
        assert self.traced is not None
        assert self.history is not None
        captured, history, alignment = self.traced.captured, self.history, self.memory.alignment
        problem = problem_of(
            self.name,
            captured,
            self.traced.profiles,
            history.kernel_seconds,
            history.link,
            alignment,
            moving,
            around.lasting,
            around.gradients,
        )
        if not self.memory.shrinks:
            problem.elsewhere[:] = problem.elsewhere.max(initial=0)  # the arena has its full size while they are at their most
        return problem

    def _outgrown(self) -> bool:
        """Whether other graphs take more than the plan has left them, or need what it keeps; or a share has become more."""
        assert self.plan is not None
        before, now = self.plan.surroundings, self.model.surroundings(self, self._mine.values())
        if now.budget is None:
            return False
        if self.plan.refused is not None or (now.yielding and not before.yielding):
            return True
        grown = now.lasting > before.lasting or now.gradients > before.gradients
        return grown or (now.budget != before.budget and bool(self.plan.program.copies))

    def _held(self) -> frozenset[int]:
        """Positions of updates that must not be made: the gradient is not complete, or layers take turns with the graph."""
        left = self.model.updates.left
        return frozenset(i for i, update in self.updates.items() if self._several or id(update.parameter) in left)

    def _lasting(self, tensors: Mapping[int, torch.Tensor]) -> dict[int, Lasting]:
        assert self.traced is not None
        known, fresh, movable = self.model.lasting(self.traced.captured.device), self.traced.fresh(), self.traced.movable
        self._mine = {storage: known.of(tensor, storage in fresh, storage in movable) for storage, tensor in tensors.items()}
        return self._mine

    def settle(self) -> None:
        """Have what rests and what does not where the plan wants it."""
        if self.traced is not None and self.plan is not None:
            there = [(one, one.tensor(), s in self.plan.moving) for s, one in self._mine.items()]
            known = self.model.lasting(self.traced.captured.device)
            known.settle([(one, tensor, rests) for one, tensor, rests in there if tensor is not None])

    def _begin(self, given: Sequence[Any]) -> Session:
        """A run with these arguments: what rests and what does not is where the plan wants it."""
        assert self.traced is not None
        assert self.plan is not None
        for update in self.updates.values():
            update.heed()
        tensors = self.traced.tensors(given)
        mine = self._lasting(tensors)
        self.settle()
        slots = {s: mine[s].slot for s in self.plan.moving}
        held = self._held()
        counts = {i: update.count for i, update in self.updates.items() if i not in held}
        changes = frozenset(id(self.updates[i].parameter) for i in counts)
        callers = {
            slot.storage: argument.untyped_storage()._cdata
            for slot, argument in zip(self.traced.captured.parts[0].given, given, strict=True)
            if isinstance(slot, View)
        }
        return Session(self, self.plan.program, self.memory, tensors, slots, counts, changes, callers)

    @property
    def updates(self) -> dict[int, Update]:
        """By the position of their gradient among the results of the backward graph."""
        return {} if self.traced is None else self.traced.updates

    @property
    def changes(self) -> frozenset[int]:
        """Parameters (by ``id``) that the updates change."""
        return frozenset(id(update.parameter) for update in self.updates.values())

    @property
    def memory(self) -> DeviceMemory:
        """Fast and slow memory that the plan is for."""
        assert self.traced is not None
        return self.model.memory(self.traced.captured.device)

    @property
    def program(self) -> Program | None:
        """What runs; None before the first step."""
        return None if self.plan is None else self.plan.program

    @property
    def problem(self) -> Problem | None:
        """What the plan solves; None before the first step."""
        return None if self.plan is None else self.plan.problem

    @property
    def refused(self) -> TooSmall | None:
        """Why the plan takes more than the share that was known when it was made."""
        return None if self.plan is None else self.plan.refused

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory for a step."""
        return self.model.budget

    @property
    def unmoved_peak(self) -> int:
        """Most bytes that the graph takes when nothing moves, with the parameters of others."""
        return 0 if self.plan is None else self.plan.unmoved_peak

    @property
    def predicted_seconds(self) -> float:
        """Time of a step by the times that the plan was made with."""
        assert self.plan is not None
        return time_moves(self.plan.problem.sequence, self.plan.program.placed.placement).total

    @property
    def placed_peak(self) -> int:
        """Most bytes of fast memory that a step takes by the plan."""
        return 0 if self.plan is None else self.plan.program.placed.peak

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies, both ways."""
        return 0 if self.plan is None else sum(copy.bytes for copy in self.plan.program.copies)

    def rows(self) -> list[dict[str, Any]]:
        """Each kernel: what was foretold, and what the last step took."""
        assert self.plan is not None
        problem = self.plan.problem
        return [
            {
                "graph": self.name,
                "kernel": kernel.name,
                "operator": kernel.kind,
                "predicted_seconds": kernel.algorithms[0].seconds,
                "measured_seconds": float(measured),
                "workspace": kernel.algorithms[0].workspace,
                "elsewhere": int(elsewhere),
            }
            for kernel, measured, elsewhere in zip(problem.sequence.kernels, self.times.kernels, problem.elsewhere, strict=True)
        ]

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the first part; all of it, where there is but one."""
        with self.model.lock, torch.no_grad():
            self.model.begin(self)
            self.prepare(arguments)
            if self.model.share(self):
                self.prepare(arguments)
            self._refine(arguments)
            if self._last is not None and not self._last.finished:
                self._last.drain()
                self._last.end()
            assert self.plan is not None
            program = self.plan.program
            self.model.make_room(program)
            session = self._begin(arguments)
            returned = self._run(session, 0, arguments)
            if len(program.captured.parts) == 1:
                self._over(session)
            else:
                self._open.add(session)
                self.model.wait(session)
                self._last = None if program.captured.parts[1].saved else session
            return returned

    def backward(self, session: Session | None, arguments: Sequence[Any]) -> list[Any]:
        """Run the second part of a run; of a new one, if the first has left nothing behind."""
        with self.model.lock, torch.no_grad():
            assert self.plan is not None
            session = session or self._last_session()
            self.model.judge()
            self.model.resume(session)
            counts = self._hold_updates(session)
            try:
                returned = self._run(session, 1, arguments)
            finally:
                self._note_updates(counts)
            for i, update in self.updates.items():
                if update.held:
                    returned[i] = update.kept_gradient()
            self._over(session)
            return returned

    def session_of(self, arguments: Sequence[Any]) -> Session | None:
        """The run of this graph whose backward part has these arguments; None if it has saved nothing. Raises `LoadmasterError`."""
        assert self.plan is not None
        return session_of(self.plan.program.captured.parts[1], arguments)

    def fits(self, arguments: Sequence[Any]) -> bool:
        """Whether the backward part is for these shapes."""
        if self.plan is None or len(self.plan.program.captured.parts) < 2:
            return False
        given = self.plan.program.captured.parts[1].given
        return all(
            argument.shape == view.size if isinstance(view, View) else not isinstance(view, int) or view == argument
            for view, argument in zip(given, arguments, strict=True)
        )

    def gave(self, arguments: Sequence[Any]) -> bool:
        """Whether the last run has saved nothing, and had the same tensors of the caller."""
        if self._last is None or self.plan is None:
            return False
        part, known = self.plan.program.captured.parts[1], self._last.callers
        return all(
            isinstance(argument, torch.Tensor) and known[view.storage] == argument.untyped_storage()._cdata
            for view, argument in zip(part.given, arguments, strict=True)
            if isinstance(view, View) and view.storage in known
        )

    @property
    def outstanding(self) -> bool:
        """Whether the last run, which has saved nothing, still has its backward part to come."""
        return self._last is not None and not self._last.finished

    def _last_session(self) -> Session:
        """The run that a backward pass belongs to which takes nothing from the forward pass but what the caller has."""
        last = self._last
        assert last is not None
        if not last.finished:
            return last
        if last.program is not self.program or last.program.kept:
            raise LoadmasterError("two forward passes of a graph came before their backward passes: call backward after each")
        return Session(self, last.program, self.memory, last.tensors, last.slots, last.updates, last.parameters, last.callers)

    def _hold_updates(self, session: Session) -> dict[int, int]:
        """Decide which updates are made in this backward pass; how many there were of each.

        Raises `LoadmasterError` where a gradient would be of parameters that are gone.
        """
        held = self._held()
        for i, update in self.updates.items():
            update.hold(i not in session.updates or i in held)
            if update.held:
                continue
            if update.count != session.updates[i]:
                raise LoadmasterError(
                    "parameters were updated since this forward pass: with the option optimizer, call backward after each forward pass"
                )
            if update.parameter.grad is not None:
                raise LoadmasterError(
                    "a parameter has a gradient already, which the update in the backward pass would miss: call zero_grad() before "
                    "(with the option optimizer, gradients of several backward passes do not add up)"
                )
        return {i: update.count for i, update in self.updates.items()}

    def _note_updates(self, counts: Mapping[int, int]) -> None:
        """Have PyTorch know that parameters have changed, and the optimizer its state."""
        assert self.traced is not None
        for i, update in self.updates.items():
            if update.count != counts[i]:
                torch.autograd.graph.increment_version(update.parameter)
                update.show()
                for storage in self.traced.states[i]:
                    self._mine[storage].written()
        for one in self._mine.values():
            one.changed()

    def _run(self, session: Session, part: int, arguments: Sequence[Any]) -> list[Any]:
        if part == 0:
            self.times = Times(len(session.program.launches), len(session.program.copies))
        try:
            return run_part(session, session.program.captured.parts[part], arguments, self.times)
        except BaseException:
            session.abandon()
            raise

    def _over(self, session: Session) -> None:
        assert self.history is not None
        session.drain()
        session.end()
        self.history.note(self.times)

    def _refine(self, given: Sequence[Any]) -> None:
        """After a few steps, plan again with the times that were measured in them, once."""
        assert self.history is not None
        assert self.plan is not None
        if not self._idle() or not self.history.due(self.model.settings.refine_after):
            return
        if self.plan.program.captured.device.type == "cuda":  # kernels run beside the host: what it saw is not their time
            return
        self.history.observe(self.plan.program)
        self.model.make_room(self.plan.program)
        self._make_plan(given)

    def foretell(self) -> None:
        """Predict again, from the steps so far; the plan stays."""
        assert self.history is not None
        assert self.plan is not None
        self.history.observe(self.plan.program)
        self.plan = replace(self.plan, problem=self._problem(self.plan.moving, self.plan.surroundings))

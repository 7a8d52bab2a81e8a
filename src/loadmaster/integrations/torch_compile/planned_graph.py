"""A captured graph with its plan: made when its first step begins, made again with measured times, and run."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.integrations.torch_compile.captured import Captured, capture, lasting_inputs, movable_storages
from loadmaster.integrations.torch_compile.compiled_model import Model
from loadmaster.integrations.torch_compile.devices.device_memory import DeviceMemory
from loadmaster.integrations.torch_compile.executor import Session, Times, run_part
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.placing import Placed, Problem, place, problem_of
from loadmaster.integrations.torch_compile.program import Program, observed, prepare
from loadmaster.integrations.torch_compile.resting import Lasting
from loadmaster.integrations.torch_compile.updates import Update, with_updates
from loadmaster.placement.sequence import CopyLink
from loadmaster.placement.timing import time_moves

_RECENT = 6
"""Steps whose times are remembered."""
_SMALLEST = 64 << 10
"""Bytes from which on a parameter, or the like, is worth moving."""


class PlannedGraph:
    """A graph, or a forward and a backward graph, for given shapes, with its plan; made when its first step begins."""

    def __init__(self, model: Model, name: str, graphs: list[torch.fx.GraphModule], kept: int | None) -> None:
        self.model, self.name, self.graphs, self.kept = model, name, graphs, kept
        self.captured: Captured | None = None
        self.profiles: list[CallProfile] = []
        self.problem: Problem | None = None
        self.program: Program | None = None
        self.times = Times(0, 0)
        self.steps = 0
        self.unmoved_peak = 0
        self.refined = False
        self.updates: dict[int, Update] = {}
        """By the position of their gradient among the results of the backward graph."""
        self._given: dict[int, int] = {}
        self._mine: dict[int, Lasting] = {}
        self._movable: frozenset[int] = frozenset()
        self._moving: frozenset[int] = frozenset()
        self._others = 0
        self._yields = False
        self._last: Session | None = None
        self._several = False
        self._counts: dict[int, int] = {}
        self._kernel_seconds: NDArray[np.float64] = np.zeros(0)
        self._link: CopyLink | None = None
        self._recent: deque[Times] = deque(maxlen=_RECENT)
        self._open: weakref.WeakSet[Session] = weakref.WeakSet()

    def prepare(self, given: Sequence[Any]) -> Program:
        """Capture, profile, place, pack. Raises `BudgetError` and `NotPlannable`."""
        self._several |= any(given[i] is not update.parameter for i, update in self.updates.items())
        if self.program is None or (self._idle() and self._held()):
            self._capture(given)
        elif self._idle() and self._outgrown():
            self._plan(given)
        assert self.program is not None
        return self.program

    def _idle(self) -> bool:
        """Whether no run is under way."""
        return all(session.finished for session in self._open)

    def _capture(self, given: Sequence[Any]) -> None:
        captured = capture(self.graphs, given, self.kept)
        optimizer = self.model.settings.optimizer
        self.updates = {}
        if optimizer is not None and len(captured.parts) == 2 and captured.device.type == "cpu" and not self._several:
            captured, self.updates = with_updates(captured, given, optimizer, self.model.shared, self.model.forms)
        self.captured = captured
        self._given = lasting_inputs(captured, given)
        large = {s for s, storage in enumerate(captured.storages) if storage.bytes >= _SMALLEST and captured.device.type == "cpu"}
        self._movable = movable_storages(captured, self.kept).intersection(large)
        for update in self.updates.values():
            update.heed()
        self.model.memory(captured.device)  # from now on, allocations are seen
        self.profiles = self.model.profiles.of(captured)
        self._kernel_seconds = np.array([profile.seconds for profile in self.profiles])
        self._link = None
        self.steps, self.refined = 0, False
        self._plan(given)

    def _plan(self, given: Sequence[Any]) -> None:
        assert self.captured is not None
        captured, model, memory = self.captured, self.model, self.memory
        mine = self._lasting(self._tensors(given))
        known = model.lasting(captured.device)
        movable = self._movable.intersection(mine) if known.file is not None else frozenset()

        def planned() -> tuple[Problem, Placed, int]:
            self._others, self._yields = known.fast_bytes(mine.values(), model.yielding), model.yielding
            return place(self._problem, movable, model.settings.fast_memory, model.settings.mode, yielding=model.yielding)

        try:
            problem, placed, self.unmoved_peak = planned()
        except BudgetError:
            if model.yielding or known.fast_bytes(mine.values(), True) == self._others:
                raise
            model.yielding = True
            known.rest_movable(mine.values())
            problem, placed, self.unmoved_peak = planned()
        moving = movable.intersection(problem.storage)
        program = prepare(captured, self.profiles, problem, placed, memory, moving)
        before, self.program, self.problem, self._moving = self.program, program, problem, moving
        self.times = Times(len(captured.calls), len(program.copies))
        self._recent.clear()
        if before is not None:
            before.arena.close()
        if self not in model.plans:
            model.plans.append(self)

    def _problem(self, moving: frozenset[int]) -> Problem:
        """The problem in which some storages of the caller move, by the times that are known."""
        assert self.captured is not None
        link, alignment = self._link or self.memory.link, self.memory.alignment
        problem = problem_of(self.name, self.captured, self.profiles, self._kernel_seconds, link, alignment, moving, self._others)
        if not self.memory.shrinks:
            problem.elsewhere[:] = problem.elsewhere.max(initial=0)  # the arena has its full size while they are at their most
        return problem

    def _outgrown(self) -> bool:
        """Whether other graphs take more than the plan has left them, or need what it keeps."""
        assert self.captured is not None
        if self.model.settings.fast_memory is None or len(self.model.plans) < 2:
            return False
        known, mine = self.model.lasting(self.captured.device), self._mine
        return (self.model.yielding and not self._yields) or known.fast_bytes(mine.values(), self.model.yielding) > self._others

    def _held(self) -> frozenset[int]:
        """Positions of updates that must not be made: the gradient is not complete, or layers take turns with the graph."""
        return frozenset(i for i, update in self.updates.items() if self._several or id(update.parameter) in self.model.shared)

    def _tensors(self, given: Sequence[Any]) -> dict[int, torch.Tensor]:
        """Parameters, buffers and optimizer state, by storage."""
        tensors = {storage: given[i] for storage, i in self._given.items()}
        for update in self.updates.values():
            tensors |= update.state
        return tensors

    def _lasting(self, tensors: Mapping[int, torch.Tensor]) -> dict[int, Lasting]:
        assert self.captured is not None
        known = self.model.lasting(self.captured.device)
        fresh = {s for update in self.updates.values() if not update.begun for s in update.state}
        self._mine = {storage: known.of(tensor, storage in fresh) for storage, tensor in tensors.items()}
        for storage in self._movable.intersection(tensors):
            self._mine[storage].movable = True
        return self._mine

    def settle(self) -> None:
        """Have what rests and what does not where the plan wants it."""
        if self.captured is not None:
            there = [(one, one.tensor(), s in self._moving) for s, one in self._mine.items()]
            known = self.model.lasting(self.captured.device)
            known.settle([(one, tensor, rests) for one, tensor, rests in there if tensor is not None])

    def _begin(self, given: Sequence[Any]) -> Session:
        """A run with these arguments: what rests and what does not is where the plan wants it."""
        assert self.captured is not None
        assert self.program is not None
        for update in self.updates.values():
            update.heed()
        tensors = self._tensors(given)
        mine = self._lasting(tensors)
        self.settle()
        session = Session(self.program, self.memory, tensors, {s: mine[s].slot for s in self._moving})
        held = self._held()
        session.updates = {i: update.count for i, update in self.updates.items() if i not in held}
        session.parameters = {id(self.updates[i].parameter) for i in session.updates}
        return session

    @property
    def memory(self) -> DeviceMemory:
        """Fast and slow memory that the plan is for."""
        assert self.captured is not None
        return self.model.memory(self.captured.device)

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory for this graph."""
        given = self.model.settings.fast_memory
        return int(given * self.unmoved_peak) if isinstance(given, float) else given

    @property
    def predicted_seconds(self) -> float:
        """Time of a step by the times that the plan was made with."""
        assert self.problem is not None
        assert self.program is not None
        return time_moves(self.problem.sequence, self.program.placed.placement).total

    @property
    def placed_peak(self) -> int:
        """Most bytes of fast memory that a step takes by the plan."""
        return 0 if self.program is None else self.program.placed.peak

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies, both ways."""
        return 0 if self.program is None else sum(copy.bytes for copy in self.program.copies)

    def rows(self) -> list[dict[str, Any]]:
        """Each kernel: what was foretold, and what the last step took."""
        assert self.problem is not None
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
            for kernel, measured, elsewhere in zip(self.problem.sequence.kernels, self.times.kernels, self.problem.elsewhere, strict=True)
        ]

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the first part; all of it, where there is but one."""
        with self.model.lock, torch.no_grad():
            self.prepare(arguments)
            if self.model.share(self):
                self.prepare(arguments)
            self._refine(arguments)
            if self._last is not None and not self._last.finished:
                self._last.drain()
                self._last.end()
            assert self.program is not None
            program = self.program
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
            assert self.program is not None
            session = session or self._last_session()
            self.model.resume(session)
            self._hold_updates(session)
            try:
                returned = self._run(session, 1, arguments)
            finally:
                self._note_updates()
            for i, update in self.updates.items():
                if update.held:
                    returned[i], update.gradient = update.gradient, None
            self._over(session)
            return returned

    def _last_session(self) -> Session:
        """The run that a backward pass belongs to which takes nothing from the forward pass but what the caller has."""
        last = self._last
        assert last is not None
        if not last.finished:
            return last
        if last.program is not self.program or last.program.kept:
            raise LoadmasterError("two forward passes of a graph came before their backward passes: call backward after each")
        again = Session(last.program, self.memory, last.tensors, last.slots)
        again.updates, again.parameters = last.updates, last.parameters
        return again

    def _hold_updates(self, session: Session) -> None:
        """Which updates are made in this backward pass. Raises `LoadmasterError` where a gradient would be of parameters that are gone."""
        for i, update in self.updates.items():
            update.held = i not in session.updates or i in self._held()
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
        self._counts = {i: update.count for i, update in self.updates.items()}

    def _note_updates(self) -> None:
        """Have PyTorch know that parameters have changed, and the optimizer its state."""
        for i, update in self.updates.items():
            if update.count != self._counts[i]:
                torch.autograd.graph.increment_version(update.parameter)
                update.show()
                for storage in update.state:
                    self._mine[storage].fresh = False
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
        session.drain()
        session.end()
        self.steps += 1
        self._recent.append(self.times)

    def _refine(self, given: Sequence[Any]) -> None:
        """After a few steps, plan again with the times that were measured in them, once."""
        if self.steps < self.model.settings.refine_after or self.refined or not self.model.settings.refine_after or not self._idle():
            return
        self.refined = True
        assert self.program is not None
        assert self.captured is not None
        if self.captured.device.type == "cuda":  # kernels run beside the host: what it saw is not their time
            return
        self._observe()
        self.model.make_room(self.program)
        self._plan(given)

    def _observe(self) -> None:
        """Take over the times of recent steps, but for the first of a plan, in which memory is touched for the first time."""
        recent = list(self._recent)[1 if len(self._recent) < _RECENT else 0 :]
        if not recent or self.program is None:
            return
        self._kernel_seconds = np.median([times.kernels for times in recent], axis=0)
        seconds = np.median([times.copies for times in recent], axis=0)
        self._link = observed(self._link or self.memory.link, self.program.copies, self.program.blocking, seconds)

    def foretell(self) -> None:
        """Predict again, from the steps so far; the plan stays."""
        self._observe()
        self.problem = self._problem(self._moving)

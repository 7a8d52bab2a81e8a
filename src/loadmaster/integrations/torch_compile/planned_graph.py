"""A graph that runs by its plan, which is made when the first step begins and refined once with
measured times."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.captured import View
from loadmaster.integrations.torch_compile.devices.cpu_memory import return_freed_blocks
from loadmaster.integrations.torch_compile.executor import Session, Times, run_part
from loadmaster.integrations.torch_compile.graph_with_plan import GraphWithPlan
from loadmaster.integrations.torch_compile.program import Program
from loadmaster.integrations.torch_compile.spent_gradient import SpentGradient


class PlannedGraph(GraphWithPlan):
    """A graph, or a forward and a backward graph, that runs in sessions: one for each forward pass
    and its backward pass."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._open: weakref.WeakSet[Session] = weakref.WeakSet()

    def prepare(self, given: Sequence[Any]) -> Program:
        """Capture, profile and plan the graph, if there is no valid plan yet. Raises `BudgetError`
        and `NotPlannable`."""
        self._several |= any(given[i] is not update.parameter for i, update in self.updates.items())
        if self.plan is None or (self._has_no_open_run() and self._held()):
            self._capture(given)
            self._make_plan(given)
        elif self._has_no_open_run() and (self._outgrown() or self._left_files()):
            self.model.make_room(self.plan.program)
            self._make_plan(given)
        assert self.plan is not None
        return self.plan.program

    def _has_no_open_run(self) -> bool:
        """Whether no run is under way."""
        return all(session.finished for session in self._open)

    def _held(self) -> frozenset[int]:
        """Positions of updates that must not be made: the gradient is not complete, hooks want it,
        or several layers run the same graph."""
        leaves = self.model.updates.leaves
        return frozenset(
            i for i, update in self.updates.items() if self._several or leaves(update.parameter)
        )

    def _begin(self, given: Sequence[Any]) -> Session:
        """Start a run with these arguments, with parameters where the plan expects them."""
        assert self.traced is not None
        assert self.plan is not None
        for update in self.updates.values():
            update.sync_from_optimizer()
        tensors = self.traced.tensors(given)
        mine = self._persistent(tensors)
        self.place_parameters()
        slots = {s: mine[s].slot for s in self.plan.moving.intersection(mine)}
        held = self._held()
        self.model.rest_gradients(self)
        counts = {i: update.count for i, update in self.updates.items() if i not in held}
        changes = frozenset(id(self.updates[i].parameter) for i in counts)
        session = Session(self, self.plan.program, self.memory, tensors, slots, counts, changes)
        session.shifts = self._shifts
        session.files = {s: place.file for s in slots if (place := mine[s].in_file) is not None}
        return session

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the first part, or the only one; its results."""
        with self.model.lock, torch.no_grad():
            self.model.begin(self)
            self.model.steps.note_results_beside(self, 0, arguments)
            self._note_gradients(0, arguments)
            self.prepare(arguments)
            if self.model.leave_shared_updates(self):
                self.prepare(arguments)
            self._refine(arguments)
            assert self.plan is not None
            program, begun = self.plan.program, time.perf_counter()
            self.model.make_room(program)
            session = self._begin(arguments)
            returned = self._run(session, 0, arguments)
            self.model.steps.note_results(self, returned[: self.kept])
            self.times.inside = time.perf_counter() - begun
            if len(program.captured.parts) == 1:
                self._over(session)
            else:
                self._open.add(session)
                self.model.wait(session)
            return returned

    def backward(self, session: Session, arguments: Sequence[Any]) -> list[Any]:
        """Run the second part of ``session``; its results."""
        with self.model.lock, torch.no_grad():
            assert self.plan is not None
            begun = time.perf_counter()
            session = self._again(session) if session.finished else session
            self._check_sizes(session)
            self.model.steps.note_results_beside(self, 1, arguments)
            self.model.check_share()
            self.model.resume(session)
            counts = self._hold_updates(session)
            self._make_gradients(session)
            try:
                returned = self._run(session, 1, arguments)
            finally:
                self._note_updates(counts)
            for i, update in self.updates.items():
                if update.held:
                    returned[i] = update.kept_gradient()
            self.times.inside += time.perf_counter() - begun
            self._over(session)
            return returned

    def _check_sizes(self, session: Session) -> None:
        """Raise `LoadmasterError` if the memory of a parameter was replaced by one of another size
        since the forward pass."""
        storages = session.program.captured.storages
        for storage, tensor in session.tensors.items():
            if tensor.untyped_storage().nbytes() != storages[storage].bytes:
                session.abandon()
                raise LoadmasterError(
                    f"{storages[storage].name}: its memory was replaced between a forward pass and"
                    " its backward pass: resize parameters before a forward pass"
                )

    def _again(self, session: Session) -> Session:
        """Return a run for the second backward pass of one forward pass (retain_graph), if the
        plan has kept nothing for the first."""
        if session.program is not self.program or session.program.kept:
            return session
        return Session(
            self,
            session.program,
            self.memory,
            session.tensors,
            session.slots,
            session.updates,
            session.parameters,
        )

    def _hold_updates(self, session: Session) -> dict[int, int]:
        """Decide which updates are made in this backward pass; return how many were made of each
        before.

        Raises `LoadmasterError` where parameters have changed since the forward pass, or have a
        gradient already.
        """
        held = self._held()
        for i, update in self.updates.items():
            update.hold(i not in session.updates or i in held)
            if update.held:
                continue
            if update.count != session.updates[i]:
                raise LoadmasterError(
                    "parameters were updated since this forward pass: with the option optimizer,"
                    " call backward after each forward pass"
                )
            if update.parameter.grad is not None:
                raise LoadmasterError(
                    "a parameter has a gradient already, which the update in the backward pass"
                    " would miss: call zero_grad() before (with the option optimizer, gradients of"
                    " several backward passes do not add up)"
                )
        return {i: update.count for i, update in self.updates.items()}

    def _make_gradients(self, session: Session) -> None:
        """Make the gradients that the second part of a run moves, in the slow memory. Raises
        `SlowMemoryError`."""
        assert self.traced is not None
        assert self.plan is not None
        self._note_gradients(1, [self._mine[s].tensor() for s in self.traced.given])
        moving = self.traced.gradients & self.plan.moving
        returned = session.program.captured.parts[1].returned
        wanted = {
            view.storage: view
            for view in returned
            if isinstance(view, View) and view.storage in moving
        }
        if wanted:
            session.gradients, slots = self.model.gradients(torch.device("cpu")).created(wanted)
            session.slots.update(slots)

    def _note_gradients(self, part: int, arguments: Sequence[Any]) -> None:
        """Tell the model which gradients of parameters are there before a part begins, if there is
        a budget."""
        if self.traced is None or self.budget is None or self.traced.captured.device.type != "cpu":
            return
        there = [one.grad for one in arguments if isinstance(one, torch.nn.Parameter)]
        plain = [one for one in there if type(one) is torch.Tensor and one.layout is torch.strided]
        self.model.note_gradients(self, part, plain, self.traced.captured.device)

    def _note_updates(self, counts: Mapping[int, int]) -> None:
        """Tell PyTorch that parameters have changed, and the optimizer its new state."""
        assert self.traced is not None
        for i, update in self.updates.items():
            if update.count != counts[i]:
                torch.autograd.graph.increment_version(update.parameter)
                self.model.updates.made.add(id(update.parameter))
                update.sync_to_optimizer()
                update.parameter.grad = SpentGradient(update.parameter)
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
        if self.history.steps == 1 and self.budget is not None:
            return_freed_blocks()  # what compiling has left, once the compiler has ended

    def _refine(self, given: Sequence[Any]) -> None:
        """After a few steps, plan again with the times that were measured in them, once."""
        assert self.history is not None
        assert self.plan is not None
        if not self._has_no_open_run() or not self.history.due(self.model.settings.refine_after):
            return
        if (
            self.plan.program.captured.device.type == "cuda"
        ):  # kernels run beside the host: what it saw is not their time
            return
        assert self.traced is not None
        self.history.adopt_recent_times(self.traced, self.plan.program)
        self.model.make_room(self.plan.program)
        self._make_plan(given)

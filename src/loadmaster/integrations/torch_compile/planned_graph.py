"""A graph that runs by its plan, which is made when the first step begins and refined once with
measured times."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from loadmaster.core.arrays import Floats
from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.captured import (
    Call,
    Captured,
    View,
    capture,
    movable_gradients,
    movable_storages,
    persistent_inputs,
)
from loadmaster.integrations.torch_compile.compiled_model import Model
from loadmaster.integrations.torch_compile.cutting.block_call import BlockCall
from loadmaster.integrations.torch_compile.cutting.choose import Versions
from loadmaster.integrations.torch_compile.devices.cpu_memory import return_freed_blocks
from loadmaster.integrations.torch_compile.devices.slow_file import DeviceMemory
from loadmaster.integrations.torch_compile.executor import (
    Program,
    ProgramBuilder,
    Session,
    Times,
    link_with_measured_bandwidths,
    run_part,
)
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.persistent import SMALLEST, PersistentTensor
from loadmaster.integrations.torch_compile.placing import (
    Placed,
    Problem,
    Search,
    Surroundings,
    TooSmall,
    problem_of,
)
from loadmaster.integrations.torch_compile.step_peak import (
    footprint,
    gradients_left,
    object_bytes,
)
from loadmaster.integrations.torch_compile.updates import (
    SpentGradient,
    Traced,
    Update,
    with_updates,
)
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
            measured = partial(
                link_with_measured_bandwidths, self.link, program.copies, program.blocking
            )
            alone = np.array([profile.seconds for profile in traced.profiles])
            ran = alone > 0
            self._known = [
                StepTimes(
                    program.captured.calls,
                    times.kernels,
                    measured(times.copies),
                    max(times.inside - times.kernels.sum() - times.waiting + times.starting, 0.0),
                    float(times.kernels[ran].sum() / alone.sum()) if ran.any() else 1.0,
                )
                for times in recent
            ]
            self.link = measured(np.median([times.copies for times in recent], axis=0))


def _with_seconds(sequence: KernelSequence, seconds: Floats) -> KernelSequence:
    """Return the sequence with other times of its kernels, shape (kernels,)."""
    pairs = zip(sequence.kernels, seconds.tolist(), strict=True)
    kernels = (
        replace(kernel, algorithms=(replace(kernel.algorithms[0], seconds=value),))
        for kernel, value in pairs
    )
    return replace(sequence, kernels=tuple(kernels))


class PlannedGraph:
    """A graph, or a forward and a backward graph, for given shapes, with its plan. It runs in
    sessions: one for each forward pass and its backward pass.

    Attributes
    ----------
    traced, versions
        The graph as it runs, with kernels in blocks where they need to be; the whole one and
        others.
    program, moving
        The plan made ready to run, None before the first step; storages of the caller, and
        gradients, that it moves.
    around
        What the plan leaves free.
    unmoved_peak
        Most bytes of fast memory in use at once when nothing moves, with the parameters of other
        graphs.
    refused
        Why the plan takes more than its share, if it does: a share is known in full only after the
        first whole step.
    history, times
        What steps took, and the last one.
    """

    versions: Versions
    history: History
    around: Surroundings

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
        self.traced = Traced(Captured([], [], ()))
        self.program: Program | None = None
        self.moving: frozenset[int] = frozenset()
        self.unmoved_peak = 0
        self.refused: TooSmall | None = None
        self.times = Times(0, 0)
        self._several = False
        self._mine: dict[int, PersistentTensor] = {}
        self._shifts: dict[int, int] = {}
        self._open: weakref.WeakSet[Session] = weakref.WeakSet()

    def prepare(self, given: Sequence[Any]) -> Program:
        """Capture, profile and plan the graph, if there is no valid plan yet. Raises `BudgetError`
        and `NotPlannable`."""
        self._several |= any(given[i] is not update.parameter for i, update in self.updates.items())
        idle = self._has_no_open_run()
        if self.program is None or (idle and self._held()):
            self._capture(given)
            self._make_plan(given)
        elif idle and (self._outgrown() or self._left_files()):
            self.model.make_room(self.program)
            self._make_plan(given)
        return self._program

    def _capture(self, given: Sequence[Any]) -> None:
        captured = capture(self.graphs, given, self.kept)
        traced, settings = Traced(captured), self.model.settings
        if len(captured.parts) == 2 and captured.device.type == "cpu" and not self._several:
            traced = with_updates(captured, given, self.model.updates)
        captured = traced.captured
        for update in traced.updates.values():
            update.sync_from_optimizer()
        memory = self.model.memory(captured.device)  # from now on, allocations are seen
        self.model.clear_arenas()
        large = {s for s, storage in enumerate(captured.storages) if storage.bytes >= SMALLEST}
        if self.model.persistent(captured.device).file is None:
            large.clear()
        self.traced = replace(
            traced,
            given=persistent_inputs(captured, given),
            movable=movable_storages(captured, self.kept).intersection(large),
            gradients=movable_gradients(captured, given).intersection(large),
        )
        mine = self._persistent(self.traced.tensors(given))
        self.history = History(memory.link)
        blank = replace(self.traced, profiles=[CallProfile(0.0)] * len(captured.calls))
        share, known = settings.fast_memory, self.model.unmoved_peak
        # As far as the budget is known before calls are profiled; a share is of no less.
        about = (
            int(share * max(self._problem(blank, Surroundings(), frozenset()).peak(), known))
            if isinstance(share, float)
            else self.budget
        )
        if about is not None:
            most = max(map(captured.operand_bytes, captured.calls), default=0)
            self.model.make_room_for_trials(most, about, captured.device)
        self.versions = Versions(
            self.traced,
            self._movable(),
            memory.link,
            self.model.profiles,
            None if memory.file is None else about,  # blocks are read from a file
        )
        self.traced = self.versions.whole
        unmoved = self._problem(self.traced, Surroundings(), frozenset())
        objects = object_bytes(len(self.traced.captured.calls), symbolic=self.shapes is not None)
        self.model.account(
            self, footprint(self.traced.captured, unmoved, mine), (id(self.graphs), objects)
        )

    def _movable(self) -> frozenset[int]:
        """Storages of the caller, and gradients, that may be in the slow memory."""
        return self.traced.movable.intersection(self._mine) | self.traced.gradients

    def _make_plan(self, given: Sequence[Any]) -> None:
        mine, before = self._persistent(self.traced.tensors(given)), self.program
        if self.budget is not None:
            self.model.release_idle()  # planning takes memory of its own
        known = self.model.persistent(self.traced.captured.device)
        known.leave_files(
            (one, tensor) for one in mine.values() if (tensor := one.tensor()) is not None
        )
        if self.budget is not None and before is not None and before.copies:
            known.rest(mine.values())
        self._shifts = {s: one.in_file.shift for s, one in mine.items() if one.in_file is not None}
        movable = self._movable()
        traced, problem, placed, around, refused = self._decided(movable)
        moving = movable.intersection((*problem.storage, *traced.captured.streamed))
        with torch.inference_mode(False), torch.no_grad():
            program = ProgramBuilder(
                traced, problem, placed, self.memory, moving, self._shifts
            ).program()
        self.unmoved_peak = self._problem(self.versions.whole, around, frozenset()).peak()
        self.traced, self.program, self.moving, self.around, self.refused = (
            traced,
            program,
            moving,
            around,
            refused,
        )
        self.times = Times(len(program.launches), len(program.copies))
        self.history.forget()
        if before is not None:
            before.arena.close()
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
        around, settings = self.model.surroundings(self, self._mine.values()), self.model.settings
        search, failed = None, 0
        for version in self.versions.finer(
            None if self.memory.file is None else around.budget,
            lambda whole: self._problem(whole, around, movable),
        ):
            search = Search(
                cache(partial(self._problem, version, around)),
                movable,
                settings.mode,
                around.offload_idle,
                self.model.objects,
                self.history.awaited(settings.refine_after),
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
        if not isinstance(settings.fast_memory, float) or self.history.steps:
            raise refusal
        found = search.attempt(refusal.smallest)
        assert not isinstance(found, int)
        return version, *found, around._replace(budget=refusal.smallest), refusal

    def _problem(self, traced: Traced, around: Surroundings, moving: frozenset[int]) -> Problem:
        """Make the problem in which some storages of the caller move, with the latest times."""
        seconds, link = self.history.kernel_seconds(traced), self.history.link
        moving -= traced.captured.streamed
        return problem_of(
            self.name, traced, seconds, link, self.memory, moving, around, self._shifts
        )

    def _outgrown(self) -> bool:
        """Whether the plan is out of date: other graphs take more memory than it left them, or the
        budget has changed."""
        before, now = self.around, self.model.surroundings(self, self._mine.values())
        if now.budget is None:
            return False
        if self.refused is not None or (now.offload_idle and not before.offload_idle):
            return True
        grown = now.persistent > before.persistent or now.gradients > before.gradients
        grown |= any(held > left for held, left in zip(now.results, before.results, strict=True))
        return grown or (now.budget != before.budget and bool(self._program.copies))

    def _persistent(self, tensors: Mapping[int, torch.Tensor]) -> dict[int, PersistentTensor]:
        known, fresh = self.model.persistent(self.traced.captured.device), self.traced.fresh()
        self._mine = {
            storage: known.of(tensor, storage in fresh, storage in self.traced.movable)
            for storage, tensor in tensors.items()
        }
        known.find_in_files(self._mine.values())
        for storage in {s for call in self.traced.captured.calls for s in call.writes}:
            if storage in self._mine and self._mine[storage].in_file is not None:
                self._mine[storage].leave_file()
        return self._mine

    def _left_files(self) -> bool:
        """Whether tensors that the plan reads from files of weights have changed since, so that
        they are there no more."""
        if self._shifts:
            self.place_parameters()
        return any(self._mine[s].in_file is None for s in self._shifts.keys() & self.moving)

    def place_parameters(self) -> None:
        """Offload or reload parameters, buffers and optimizer state so that each is where the plan
        expects it."""
        if self.program is not None:
            self.model.persistent(self.traced.captured.device).place(
                [
                    (one, tensor, s in self.moving)
                    for s, one in self._mine.items()
                    if (tensor := one.tensor()) is not None
                ]
            )

    @property
    def _program(self) -> Program:
        assert self.program is not None
        return self.program

    @property
    def updates(self) -> dict[int, Update]:
        """Optimizer updates by the position of their gradient among the results of the backward
        graph."""
        return self.traced.updates

    @property
    def changes(self) -> frozenset[int]:
        """Parameters (by ``id``) that the updates change."""
        return frozenset(id(update.parameter) for update in self.updates.values())

    @property
    def memory(self) -> DeviceMemory:
        """Fast and slow memory of the device that the graph runs on."""
        return self.model.memory(self.traced.captured.device)

    @property
    def problem(self) -> Problem:
        """The placement problem that the plan solves."""
        return self._program.problem

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory that a step may take; None if there is no limit."""
        return self.model.budget

    @property
    def predicted_seconds(self) -> float:
        """Seconds that a step should take, by the times of kernels and copies in the steps that are
        known."""
        return self.history.predicted_seconds(
            self.traced, self.problem.sequence, self._program.placed.placement
        )

    @property
    def placed_peak(self) -> int:
        """Most bytes of fast memory in use at once under the plan."""
        return 0 if self.program is None else self.program.placed.peak

    def gradients_left(self, at_least: bool) -> int:
        """Bytes of gradients that a step leaves in the fast memory; with ``at_least``, if all that
        may move do."""
        moved = self.traced.gradients if at_least or self.program is None else self.moving
        left = gradients_left(self.traced.captured, self._mine) - moved
        return sum(self.traced.captured.storages[s].bytes for s in left)

    @property
    def kernels_in_blocks(self) -> tuple[str, ...]:
        """Operators of the kernels that run block by block, as the budget has no room for their
        operands."""
        calls = self.traced.captured.calls
        return tuple(call.target.whole.kind for call in calls if isinstance(call.target, BlockCall))

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies, both ways."""
        return sum(copy.bytes for copy in self._program.copies) + sum(
            profile.transferred for profile in self.traced.profiles
        )

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel with its predicted seconds, those of the last step, and the bytes
        of fast memory in use under the plan."""
        sequence, elsewhere = self.problem.sequence, self.problem.elsewhere
        used = elsewhere.copy()
        for stay in self._program.placed.placement.stays:
            used[stay.start : stay.end] += int(sequence.sizes[stay.tensor])
        return [
            {
                "graph": self.name,
                "kernel": kernel.name,
                "operator": kernel.kind,
                "predicted_seconds": kernel.algorithms[0].seconds,
                "measured_seconds": float(self.times.kernels[k]),
                "workspace": kernel.algorithms[0].workspace,
                "elsewhere": int(elsewhere[k]),
                "fast_bytes": int(used[k]) + kernel.algorithms[0].workspace,
            }
            for k, kernel in enumerate(sequence.kernels)
        ]

    def refresh_prediction(self) -> None:
        """Predict the time of a step again, from the steps measured so far; the plan stays."""
        self.history.adopt_recent_times(self.traced, self._program)
        self._program.problem = self._problem(self.traced, self.around, self.moving)

    def forget_times(self) -> None:
        """Predict from the steps that follow: those so far ran under other conditions."""
        self.history.forget()

    def _has_no_open_run(self) -> bool:
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
        for update in self.updates.values():
            update.sync_from_optimizer()
        tensors = self.traced.tensors(given)
        mine = self._persistent(tensors)
        self.place_parameters()
        held = self._held()
        self.model.rest_gradients(self)
        moved = self.moving.intersection(mine)
        return Session(
            self,
            self._program,
            self.memory,
            tensors,
            {s: place for s in moved if (place := mine[s].place) is not None},
            {i: update.count for i, update in self.updates.items() if i not in held},
            frozenset(id(u.parameter) for i, u in self.updates.items() if i not in held),
        )

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
            program, begun = self._program, time.perf_counter()
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
        return session.again()

    def _hold_updates(self, session: Session) -> dict[int, int]:
        """Decide which updates are made in this backward pass; return how many were made of each
        before.

        Raises `LoadmasterError` where parameters have changed since the forward pass, or have a
        gradient already.
        """
        held = self._held()
        for i, update in self.updates.items():
            update.held = i not in session.updates or i in held
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
        self._note_gradients(1, [self._mine[s].tensor() for s in self.traced.given])
        moving = self.traced.gradients & self.moving
        returned = session.program.captured.parts[1].returned
        for view in returned:
            if isinstance(view, View) and view.storage in moving:
                made = self.model.gradients(torch.device("cpu")).created(view)
                session.gradients[view.storage], session.places[view.storage] = made
                del made  # autograd keeps a gradient as it is only if nobody else holds it

    def _note_gradients(self, part: int, arguments: Sequence[Any]) -> None:
        """Tell the model which gradients of parameters are there before a part begins, if there is
        a budget."""
        if self.program is None or self.budget is None or self.traced.captured.device.type != "cpu":
            return
        there = [one.grad for one in arguments if isinstance(one, torch.nn.Parameter)]
        plain = [one for one in there if type(one) is torch.Tensor and one.layout is torch.strided]
        self.model.note_gradients(self, part, plain, self.traced.captured.device)

    def _note_updates(self, counts: Mapping[int, int]) -> None:
        """Tell PyTorch that parameters have changed, and the optimizer its new state."""
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
        session.drain()
        session.end()
        self.history.note(self.times)
        if self.history.steps == 1 and self.budget is not None:
            return_freed_blocks()  # what compiling has left, once the compiler has ended

    def _refine(self, given: Sequence[Any]) -> None:
        """After a few steps, plan again with the times that were measured in them, once."""
        after = self.model.settings.refine_after
        if not self._has_no_open_run() or not self.history.due(after):
            return
        if self._program.captured.device.type == "cuda":
            return  # kernels run beside the host: what it saw is not their time
        self.history.adopt_recent_times(self.traced, self._program)
        self.model.make_room(self._program)
        self._make_plan(given)

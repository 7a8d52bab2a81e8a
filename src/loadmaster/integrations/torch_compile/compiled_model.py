"""The model of one call of ``torch.compile``: options, memories and the budget, which all its
graphs share; and its graphs, each with the plan by which it runs.

A budget that is a share is one of the peak over a whole step in which nothing moves. A step may run
several graphs (graph breaks): forward one after the other, and backward in the opposite order.
While one runs, what those before it have saved waits for their backward passes, and gradients of
those after it are there already.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.core.units import format_bytes, format_seconds, parse_bytes
from loadmaster.integrations.torch_compile.captured import (
    Owner,
    View,
    capture,
    movable_gradients,
    movable_storages,
    persistent_inputs,
    views,
)
from loadmaster.integrations.torch_compile.cpu_memory import (
    CpuMemory,
    DeviceMemory,
    FastArena,
    return_freed_blocks,
)
from loadmaster.integrations.torch_compile.executor import (
    History,
    Program,
    Session,
    Times,
)
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile, CallProfiles
from loadmaster.integrations.torch_compile.persistent import (
    SMALLEST,
    PersistentTensor,
    PersistentTensors,
    Region,
    can_offload,
)
from loadmaster.integrations.torch_compile.placing import (
    Placed,
    Problem,
    Search,
    Surroundings,
    TooSmall,
    problem_of,
)
from loadmaster.integrations.torch_compile.updates import (
    SpentGradient,
    Traced,
    Update,
    Updates,
    with_updates,
)
from loadmaster.integrations.torch_compile.versions import Versions
from loadmaster.placement.decisions import Mode, fast_bytes

_UPDATES = "_loadmaster_updates"
_LOG = logging.getLogger("loadmaster")
_OF_A_KERNEL, _OF_A_SYMBOLIC_KERNEL = 44 << 10, 72 << 10
COMPILER = 56 << 20
"""Bytes that PyTorch's compiler may take for itself in a step that compiles, which are not part of
the budget."""
ALLOWED = 8 << 20
"""Bytes that a process may take beside a budget: the objects of some 180 kernels are among them."""


def object_bytes(kernels: int, symbolic: bool) -> int:
    """Estimate the bytes of the objects of a graph; ``symbolic`` if it was captured with sizes that
    are symbols."""
    return kernels * (_OF_A_SYMBOLIC_KERNEL if symbolic else _OF_A_KERNEL)


def beyond_allowed(graphs: Iterable[int]) -> int:
    """Sum up the bytes of the objects of all graphs that are more than what a process may take
    beside a budget."""
    return max(sum(graphs) - ALLOWED, 0)


@dataclass(frozen=True)
class Settings:
    """The options of a compiled model.

    Attributes
    ----------
    fast_memory
        Bytes of fast memory that a step may take: parameters, inputs, results, and all that lies
        between. None: as much as it needs. A share, such as 0.5, is of what a whole step takes,
        over all graphs, when nothing moves.
    mode
        ``async``: copies overlap kernels. ``sync``: they do not.
    slow_memory
        Folder on a local disk for the unlinked file (CPU); by default that for temporary files.
    slow_limit
        Bytes of slow memory at most.
    refine_after
        Steps after which a plan is made again from the times that were measured; 0: never.
    optimizer
        Updates parameters in the backward pass, each as soon as its gradient is complete; the
        gradient ends there. None: gradients are results.
    """

    fast_memory: int | float | None = None
    mode: Mode = Mode.ASYNC
    slow_memory: Path | None = None
    slow_limit: int | None = None
    refine_after: int = 3
    optimizer: torch.optim.Optimizer | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Settings from the options of ``torch.compile``. Raises `BudgetError`."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                raise BudgetError(
                    f"option {name!r} is unknown: the loadmaster backend has {', '.join(known)}"
                )
        mode = options.get("mode", "async")
        if mode not in ("sync", "async"):
            why = (
                ": operands of kernels must be in fast memory, so tensors have to move"
                if mode == "static"
                else ""
            )
            raise BudgetError(f"mode {mode!r}: write sync or async{why}")
        optimizer = options.get("optimizer")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise BudgetError(
                f"optimizer of type {type(optimizer).__name__}: give one of torch.optim"
            )
        folder, limit = options.get("slow_memory"), options.get("slow_limit")
        return cls(
            _budget_of(options.get("fast_memory")),
            Mode(mode),
            None if folder is None else Path(folder),
            None if limit is None else parse_bytes(limit),
            int(options.get("refine_after", 3)),
            optimizer,
        )


def _budget_of(given: Any) -> int | float | None:
    """Bytes of a budget, or its share. Raises `BudgetError`."""
    text = str(given).strip()
    if not (isinstance(given, float) or text.endswith("%")):
        return None if given is None else parse_bytes(given)
    with suppress(ValueError):
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 < share <= 1:
            return share
    raise BudgetError(
        f"fast_memory {given}: a share lies between 0 and 1; write bytes, such as '2 GiB', or a"
        " percentage, such as '50%'"
    )


@dataclass
class Fallback:
    """A graph that runs unplanned, and why."""

    graph: str
    reason: str

    def __str__(self) -> str:
        return f"{self.graph}: {self.reason}"


@dataclass(frozen=True)
class StepSummary:
    """What the last step takes by its plans; ``str`` gives it in one line.

    Attributes
    ----------
    budget, planned_peak, moved_bytes
        Bytes of fast memory allowed and used at most, and bytes copied both ways. ``budget`` is
        None where there is no limit.
    predicted_step_seconds
        Seconds that the planned graphs should take.
    fallbacks
        Graphs and optimizer steps that run without a plan, and why.
    """

    budget: int | None
    planned_peak: int
    moved_bytes: int
    predicted_step_seconds: float
    fallbacks: tuple[Fallback, ...]

    def __str__(self) -> str:
        budget = "none" if self.budget is None else format_bytes(self.budget)
        return (
            f"loadmaster: budget {budget}, planned peak {format_bytes(self.planned_peak)},"
            f" {format_bytes(self.moved_bytes)} moved in a step,"
            f" {format_seconds(self.predicted_step_seconds)} predicted; without a plan:"
            f" {'; '.join(map(str, self.fallbacks)) or 'nothing'}"
        )


@dataclass(frozen=True)
class Footprint:
    """Bytes of fast memory that one graph takes in a step when nothing moves, without persistent
    tensors.

    Attributes
    ----------
    forward, backward
        Peak of each part, inputs and results included.
    saved
        Tensors kept from the forward part for the backward part.
    left
        Gradients of parameters, results of the backward part, which stay until the step is over.
    """

    forward: int
    backward: int
    saved: int
    left: int


@dataclass
class Seen:
    """What was seen of one graph in whole steps.

    Attributes
    ----------
    footprint
        None before the graph is captured.
    earlier, beside
        Most bytes of gradients of earlier backward passes, and of results of graphs that somebody
        held, when each part began.
    after
        The graphs after it, in each step.
    results
        What its forward part has given to the caller.
    """

    footprint: Footprint | None = None
    earlier: list[int] = field(default_factory=lambda: [0, 0])
    beside: list[int] = field(default_factory=lambda: [0, 0])
    after: set[tuple[PlannedGraph, ...]] = field(default_factory=set)
    results: PersistentTensors = field(default_factory=PersistentTensors)


def step_peak(graphs: Sequence[Seen]) -> int:
    """Most bytes in use at once in a step that runs captured ``graphs`` in this order, without
    persistent tensors. O(graphs)."""
    taken = [one.footprint for one in graphs if one.footprint is not None]
    waiting = accumulate((one.saved for one in taken), initial=0)
    left = [*accumulate((one.left for one in reversed(taken)), initial=0)][-2::-1]
    earlier = [sum(one.earlier[part] for one in graphs) for part in (0, 1)]
    return max(
        wait
        + max(
            one.forward + earlier[0] + seen.beside[0],
            one.backward + earlier[1] + seen.beside[1] + after,
        )
        for one, seen, wait, after in zip(taken, graphs, waiting, left, strict=False)
    )


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout is torch.strided


class Model:
    """What the graphs of one compiled function or module share: settings, fast and slow memory, one
    budget.

    A model owns its lists of graphs and fallbacks, the persistent tensors, and the updates of
    parameters; graphs change these under ``lock``.

    Attributes
    ----------
    persistent, gradients
        Parameters, buffers and optimizer state of all graphs; gradients that callers keep.
    graphs
        All graphs, also those of which planning has failed.
    of_last_step
        Graphs of the step under way, or of the last one; others were compiled for steps before, as
        for the first, and run no more.
    told
        Whether the line on the first step was logged, or is not wanted.
    objects_of
        Bytes of the objects of a captured graph, by its ``id``.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Make a model by the options of ``torch.compile``. Raises `BudgetError`."""
        self.settings, self.options = Settings.of(options), options
        self.lock = threading.RLock()
        self.profiles = CallProfiles()
        self.updates = Updates(self.settings.optimizer)
        self.persistent, self.gradients = PersistentTensors(), PersistentTensors()
        self.graphs: list[PlannedGraph] = []
        self.of_last_step: list[PlannedGraph] = []
        self.fallbacks: list[Fallback] = []
        self.told = False
        self.objects_of: dict[int, int] = {}
        self._offload_idle = False
        self._memory: DeviceMemory | None = None
        self._peak = 0

    def memory(self, device: torch.device) -> DeviceMemory:
        """Fast and slow memory on a device; made at the first use."""
        with self.lock:
            if self._memory is None:
                self._memory = self._made(device)
                if can_offload():
                    self.persistent.file = self.gradients.file = self._memory.file
            return self._memory

    def _made(self, device: torch.device) -> DeviceMemory:
        if device.type == "cuda":
            from loadmaster.integrations.torch_compile.cuda_memory import CudaMemory

            return CudaMemory(device, self.settings.slow_limit)
        return CpuMemory(self.settings.slow_memory, self.settings.slow_limit)

    @property
    def plans(self) -> list[PlannedGraph]:
        """Graphs that have a plan."""
        return [plan for plan in self.graphs if plan.program is not None]

    @property
    def unmoved_peak(self) -> int:
        """Most bytes that a step takes when nothing moves, over all graphs of the steps seen so
        far."""
        return self._peak + self.persistent.bytes()

    @property
    def objects(self) -> int:
        """Bytes of the budget that objects of the graphs take, which no plan can use."""
        return beyond_allowed(self.objects_of.values())

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory that tensors may take in a step; None if there is no limit. A share
        is of the steps seen so far."""
        given = self.settings.fast_memory
        if given is None:
            return None
        objects = self.objects
        whole = int(given * (self.unmoved_peak + objects)) if isinstance(given, float) else given
        return whole - objects

    def summary(self) -> StepSummary:
        """Sum up the plans of the last step."""
        plans = [plan for plan in self.of_last_step if plan.program is not None]
        return StepSummary(
            self.budget,
            max((plan.placed_peak for plan in plans), default=0),
            sum(plan.moved_bytes for plan in plans),
            sum(plan.predicted_seconds for plan in plans),
            tuple(self.fallbacks),
        )

    def begin(self, plan: PlannedGraph) -> None:
        """Note that the forward part of a graph is about to run. A new step begins if no backward
        part is outstanding, and there was one or the graph has run in this step.

        The first step is summed up in the log when the second begins: its graphs are known then.
        """
        if plan.program is not None and not self.told:
            self.told = True
            _LOG.warning("%s", self.summary())
        if not self._waiting and (
            plan in self.of_last_step or any(len(one.graphs) > 1 for one in self.of_last_step)
        ):
            self.of_last_step.clear()
        self.join(plan)

    def join(self, plan: PlannedGraph) -> None:
        """Note that a graph runs in the step under way, if it is known what it takes when nothing
        moves."""
        if plan.seen.footprint is None:
            return
        if plan not in self.of_last_step:
            self.of_last_step.append(plan)
        self._peak = max(self._peak, step_peak([one.seen for one in self.of_last_step]))
        for i, one in enumerate(self.of_last_step):
            one.seen.after.add(tuple(self.of_last_step[i + 1 :]))

    def rest_gradients(self, plan: PlannedGraph) -> None:
        """Offload gradients of earlier backward passes if a graph needs the room, and drop what the
        page cache holds of them."""
        known, budget = self.gradients, self.budget
        if known.file is None or budget is None:
            return
        if plan.placed_peak + known.fast_bytes() > budget:
            known.offload_movable()
        else:
            known.forget_cached()

    def surroundings(self, plan: PlannedGraph) -> Surroundings:
        """Return what other graphs than this take, and the budget for all."""
        idle = self._offload_idle
        persistent = self.persistent.fast_bytes(plan.mine.values(), idle)
        results = tuple(plan.seen.beside)
        return Surroundings(persistent, plan.left_after(idle), results, idle, self.budget)

    def start_offloading_idle(self, plan: PlannedGraph) -> bool:
        """Offload what graphs keep while others run, from now on; say whether that leaves more room
        for a graph."""
        own = {*plan.mine.values()}
        taken, least = (
            self.persistent.fast_bytes(own, idle) + plan.left_after(idle) for idle in (False, True)
        )
        if self._offload_idle or taken == least:
            return False
        self._offload_idle = True
        self.persistent.offload_movable(own)
        return True

    def check_share(self) -> None:
        """Check the plans of a step against the share, once all its graphs are known. Raises
        `BudgetError` if a graph takes more."""
        budget, share = self.budget, self.settings.fast_memory
        if budget is None or not isinstance(share, float):
            return
        for plan in self.of_last_step:
            if plan.refused is not None and plan.refused.smallest > budget:
                raise BudgetError(
                    f"fast_memory {share:.4g} of what a step takes"
                    f" ({format_bytes(self.unmoved_peak)}) is {format_bytes(budget)}, which is too"
                    f" small: {plan.refused.why}"
                )

    def leave_step(self, name: str, reason: str) -> None:
        """Note once that an optimizer's step runs as it is, and why."""
        if Fallback(name, reason) not in self.fallbacks:
            self.fallbacks.append(Fallback(name, reason))

    def fall_back(self, graph: str, reason: str, given: Iterable[Any]) -> None:
        """Note that a graph runs unplanned; updates leave the parameters ``given`` to it to the
        optimizer, which sees all gradients."""
        self.fallbacks.append(Fallback(graph, reason))
        if not self.plans:
            self.reload_parameters()  # `make_room_to_compile` may have offloaded them
        self.updates.left.update(
            id(one) for one in given if isinstance(one, torch.Tensor) and one.requires_grad
        )

    @property
    def _arenas(self) -> list[FastArena]:
        return [plan._program.arena for plan in self.plans]

    @property
    def _arena_bytes(self) -> int:
        return sum(arena.bytes for arena in self._arenas)

    @property
    def standing_arenas(self) -> int:
        """Bytes of arenas that keep their memory between steps, as those of a GPU do."""
        return 0 if self._memory is None or self._memory.shrinks else self._arena_bytes

    @property
    def _waiting(self) -> list[Session]:
        """Runs whose second part may still come."""
        return [one for plan in self.graphs for one in list(plan.open) if not one.finished]

    @property
    def _in_arenas(self) -> list[Session]:
        """Runs under way whose tensors wait in an arena."""
        return [one for one in self._waiting if one.offload_slot is None]

    def make_room(self, program: Program, session: Session | None = None) -> None:
        """Offload what other runs than a ``session`` have left in arenas, if the budget needs the
        room or the program's own arena holds it."""
        others = [arena for arena in self._arenas if arena is not program.arena]
        taken, budget = program.placed.peak + sum(arena.bytes for arena in others), self.budget
        tight = budget is not None and taken > budget
        for waiting in self._in_arenas:
            if waiting is not session and (tight or waiting.program is program):
                waiting.offload()
        if tight:
            for arena in others:
                arena.drop()

    def clear_arenas(self) -> None:
        """Empty all arenas before kernels are profiled with operands of their own, if there is a
        budget."""
        if self.settings.fast_memory is not None:
            for waiting in self._in_arenas:
                waiting.offload()
        self.release_idle()

    def make_room_to_compile(self, inputs: Iterable[Any]) -> None:
        """Offload the parameters among a new graph's inputs, and what is in arenas, if they and
        PyTorch's compiler exceed a budget.

        The compiler takes a graph apart before anything is known of it; a share is then taken of
        the parameters alone.
        """
        given, known = self.settings.fast_memory, self.persistent
        own = [
            one
            for one in inputs
            if type(one) is torch.nn.Parameter
            and one.device.type == "cpu"
            and SMALLEST <= one.nbytes == one.untyped_storage().nbytes()
        ]
        if given is None or given == 1.0 or not own:
            return
        with self.lock:
            self.memory(torch.device("cpu"))
            if known.file is None:
                return
            known.find_in_files([known.of(one, movable=True) for one in own])
            unmoved = max(self.unmoved_peak, known.bytes())
            budget = int(given * unmoved) if isinstance(given, float) else given
            if known.fast_bytes() + self._arena_bytes + COMPILER > budget:
                self.clear_arenas()
                known.offload_movable()

    def release_idle(self) -> None:
        """Give back the memory of arenas that hold nothing."""
        with self.lock:
            busy = [session.program.arena for session in self._in_arenas]
            for arena in self._arenas:
                if arena not in busy:
                    arena.drop()

    def clear_idle(self) -> None:
        """Give back the memory of idle arenas if the rest and a small buffer could need it."""
        taken, budget = self.persistent.fast_bytes() + self.gradients.fast_bytes(), self.budget
        if budget is not None and taken + self._arena_bytes > budget:
            self.release_idle()

    def updates_of(self, optimizer: torch.optim.Optimizer) -> Updates:
        """Updates that are made when an optimizer is called; they are kept on it, and gone when it
        is."""
        updates = vars(optimizer).setdefault(_UPDATES, weakref.WeakKeyDictionary())
        if self not in updates:
            updates[self] = Updates(optimizer)
        found: Updates = updates[self]
        return found

    def place_of(self, tensor: torch.Tensor) -> PersistentTensor | None:
        """Where a parameter, a gradient or optimizer state is in the slow memory; None if it is in
        the fast one."""
        for known in (self.persistent, self.gradients):
            one = known.known(tensor)
            if one and isinstance(one.place, Region) and one.rests(tensor.untyped_storage()):
                return one
        return None

    def keep_state(self, state: Iterable[torch.Tensor], fresh: bool = False) -> None:
        """Count optimizer state, ``fresh`` if nothing was written to it, and offload it unless all
        fits beside the plans."""
        known = self.persistent
        new = [
            known.of(tensor, fresh, movable=known.file is not None)
            for tensor in state
            if known.known(tensor) is None
        ]
        taken = max((plan.placed_peak for plan in self.plans), default=0)
        budget = self.budget  # a share of what there is now
        if budget is None or known.file is None or not new:
            return
        if self.offloaded_bytes() or taken + sum(one.bytes for one in new) > budget:
            for one in new:
                one.reserve(known.file)
            for one in new:
                one.offload(known.file)

    def leave_shared_updates(self, plan: PlannedGraph) -> bool:
        """Leave parameters that another run under way updates too to the optimizer; say whether
        there were new ones."""
        others = {
            id(session.program.captured.updates[i].parameter)
            for session in self._waiting
            for i in session.updates
        }
        shared = others.intersection(id(update.parameter) for update in plan.updates.values())
        shared -= self.updates.left
        self.updates.left.update(shared)
        return bool(shared)

    def offloaded_bytes(self) -> int:
        """Bytes of parameters, buffers and optimizer state that are in the slow memory between
        steps."""
        return self.persistent.offloaded_bytes()

    def reload_parameters(self) -> None:
        """Put parameters, buffers and optimizer state where they are without a plan, before
        somebody else runs the module."""
        with self.lock:
            self.persistent.reload_all()

    def place_parameters(self) -> None:
        """Put parameters, buffers and optimizer state where the plans expect them, before the
        module runs by its plans again."""
        with self.lock:
            for plan in self.plans:
                plan.place_parameters()


class PlannedGraph:
    """A graph, or a forward and a backward graph, for given shapes, with its plan, which is made
    when the first step begins and refined once with measured times. It runs in sessions: one for
    each forward pass and its backward pass.

    Attributes
    ----------
    graphs, kept, shapes
        The graphs, the number of results of the first that go to the caller (None: all), and the
        shapes of the inputs where sizes are symbols.
    traced, versions
        The graph as it runs, with kernels in blocks where they need to be; the whole one and
        others.
    program, moving
        The plan made ready to run, None before the first step; storages of the caller, and
        gradients, that it moves.
    around
        What the plan leaves free.
    mine
        Parameters, buffers and optimizer state of the last run, by storage.
    unmoved_peak
        Most bytes of fast memory in use at once when nothing moves, with the parameters of other
        graphs.
    refused
        Why the plan takes more than its share, if it does: a share is known in full only after the
        first whole step.
    seen, history, times
        What was seen of it in whole steps; what its own took, and the last one.
    open
        Runs that are not over, and some that are.
    """

    versions: Versions
    history: History
    around: Surroundings

    def __init__(
        self,
        model: Model,
        graphs: list[torch.fx.GraphModule],
        kept: int | None,
        shapes: Any = None,
    ) -> None:
        self.model, self.graphs, self.kept, self.shapes = model, graphs, kept, shapes
        self.name = f"graph {len(model.plans)}"
        self.traced = Traced([], [], ())
        self.program: Program | None = None
        self.moving: frozenset[int] = frozenset()
        self.mine: dict[int, PersistentTensor] = {}
        self.unmoved_peak = 0
        self.refused: TooSmall | None = None
        self.seen, self.times = Seen(), Times(0, 0)
        self.open: weakref.WeakSet[Session] = weakref.WeakSet()
        self._several = False
        self._shifts: dict[int, int] = {}

    def prepare(self, given: Sequence[Any]) -> None:
        """Capture, profile and plan the graph, if there is no valid plan yet; after a few steps,
        plan again with the times that were measured in them, once. Raises `BudgetError` and
        `NotPlannable`."""
        self._several |= any(given[i] is not update.parameter for i, update in self.updates.items())
        idle = all(session.finished for session in self.open)
        if self.program is None or (idle and self._held()):
            self._capture(given)
            self._make_plan(given)
        elif idle:
            # On a GPU kernels run beside the host: what it saw is not their time.
            due = self.traced.device.type == "cpu" and self.history.due()
            if due:
                self.history.adopt_recent_times(self.traced, self.program)
            if due or self._outgrown() or self._left_files():
                self.model.make_room(self.program)
                self._make_plan(given)

    def _capture(self, given: Sequence[Any]) -> None:
        model, known = self.model, self.model.persistent
        captured = capture(self.graphs, given, self.kept)
        traced = Traced(**vars(captured))
        if len(captured.parts) == 2 and captured.device.type == "cpu" and not self._several:
            traced = with_updates(traced, given, model.updates)
        for update in traced.updates.values():
            update.sync_from_optimizer()
        memory = model.memory(traced.device)  # from now on, allocations are seen
        model.clear_arenas()
        large = {
            s
            for s, storage in enumerate(traced.storages)
            if storage.bytes >= SMALLEST and known.file is not None
        }
        self.traced = replace(
            traced,
            given=persistent_inputs(traced, given),
            movable=movable_storages(traced, self.kept).intersection(large),
            gradients=movable_gradients(traced, given).intersection(large),
        )
        self._find_persistent(given)
        self.history = History(memory.link, model.settings.refine_after)
        about = self._budget_before_profiles()
        if about is not None and known.file is not None:
            # Beside the operands of a kernel that is profiled.
            most = min(max(map(traced.operand_bytes, traced.calls), default=0), about)
            if known.fast_bytes() + most > about:
                known.offload_movable()
        self.versions = Versions(self.traced, self._movable(), memory, model.profiles, about)
        self.traced = self.versions.whole
        self.seen.footprint = self._footprint()
        objects = object_bytes(len(self.traced.calls), symbolic=self.shapes is not None)
        model.objects_of[id(self.graphs)] = objects
        model.join(self)

    def _budget_before_profiles(self) -> int | None:
        """The budget, as far as it is known before calls are profiled; a share is of no less."""
        share = self.model.settings.fast_memory
        if not isinstance(share, float):
            return self.budget
        blank = replace(self.traced, profiles=[CallProfile(0.0)] * len(self.traced.calls))
        peak = self._problem(blank, Surroundings(), frozenset()).peak()
        return int(share * max(peak, self.model.unmoved_peak))

    def _footprint(self) -> Footprint:
        """Return the bytes that the graph takes when it is alone and nothing moves."""
        unmoved = self._problem(self.traced, Surroundings(), frozenset())
        taken = unmoved.sequence.live_bytes() + unmoved.elsewhere - self.traced.bytes_of(self.mine)
        first, *second = self.traced.parts
        saved = {
            view.storage
            for part in second
            for view in views(part.given)
            if self.traced.is_planned(view)
        }
        forward, backward = taken[: first.end], taken[first.end :]
        return Footprint(
            int(forward.max(initial=0)),
            int(backward.max(initial=0)),
            self.traced.bytes_of(saved),
            self.traced.bytes_of(self._gradients()),
        )

    def _gradients(self) -> set[int]:
        """Storages of parameters' gradients that the backward part returns."""
        first, *second = self.traced.parts
        return {
            gradient.storage
            for part in second
            for slot, gradient in zip(first.given, part.returned, strict=False)
            if isinstance(slot, View)
            and slot.storage in self.mine
            and isinstance(gradient, View)
            and self.traced.storages[gradient.storage].owner is Owner.RETURNED
        }

    def gradients_left(self, at_least: bool) -> int:
        """Bytes of gradients that a step leaves in the fast memory; with ``at_least``, if all that
        may move do."""
        moved = self.traced.gradients if at_least or self.program is None else self.moving
        return self.traced.bytes_of(self._gradients() - moved)

    def left_after(self, at_least: bool) -> int:
        """Most bytes of gradients that graphs after this one leave in the fast memory; with
        ``at_least``, if all that may move do."""
        return max(
            (sum(one.gradients_left(at_least) for one in later) for later in self.seen.after),
            default=0,
        )

    def _movable(self) -> frozenset[int]:
        """Storages of the caller, and gradients, that may be in the slow memory."""
        return self.traced.movable.intersection(self.mine) | self.traced.gradients

    def _make_plan(self, given: Sequence[Any]) -> None:
        self._find_persistent(given)
        before, budgeted = self.program, self.budget is not None
        if budgeted:
            self.model.release_idle()  # planning takes memory of its own
        for one in self.mine.values():
            one.leave_changed_file()
        if budgeted and before is not None and before.copies:
            self.model.persistent.rest(self.mine.values())
        self._shifts = {
            s: one.in_file.shift for s, one in self.mine.items() if one.in_file is not None
        }
        movable = self._movable()
        self.traced, placed, self.around, self.refused = self._decided(movable)
        self.moving = movable.intersection((*placed.problem.storage, *self.traced.streamed))
        with torch.inference_mode(False), torch.no_grad():
            self.program = Program(self.traced, placed, self.memory, self.moving, self._shifts)
        self.unmoved_peak = self._problem(self.versions.whole, self.around, frozenset()).peak()
        self.history.forget()
        if before is not None:
            before.arena.close()
        if budgeted:
            return_freed_blocks()

    def _decided(
        self, movable: frozenset[int]
    ) -> tuple[Traced, Placed, Surroundings, TooSmall | None]:
        """Decide under the budget: with whole kernels if that is possible, else with those in
        blocks that need to be.

        If the budget is a share of a step that is not known in full yet, take the smallest that
        works.
        """
        around, settings = self.model.surroundings(self), self.model.settings
        search, failed = None, 0
        for version in self.versions.finer(
            around.budget, lambda: self._problem(self.versions.whole, around, movable).needed()
        ):
            search = Search(
                cache(partial(self._problem, version, around)),
                movable,
                settings.mode,
                around.offload_idle,
                self.model.objects,
                self.history.provisional,
            )
            found = search.attempt(around.budget)
            if not isinstance(found, int):
                return version, found, around, None
            failed = found
        assert search is not None
        assert around.budget is not None
        if self.model.start_offloading_idle(self):
            return self._decided(movable)
        refusal = search.refusal(around.budget, failed)
        if not isinstance(settings.fast_memory, float) or self.history.steps:
            raise refusal
        found = search.attempt(refusal.smallest)
        assert not isinstance(found, int)
        return version, found, around._replace(budget=refusal.smallest), refusal

    def _problem(self, traced: Traced, around: Surroundings, moving: frozenset[int]) -> Problem:
        """Make the problem in which some storages of the caller move, with the latest times."""
        seconds, link = self.history.kernel_seconds(traced), self.history.link
        moving -= traced.streamed
        return problem_of(
            self.name, traced, seconds, link, self.memory, moving, around, self._shifts
        )

    def _outgrown(self) -> bool:
        """Whether the plan is out of date: other graphs take more memory than it left them, or the
        budget has changed."""
        before, now = self.around, self.model.surroundings(self)
        if now.budget is None:
            return False
        if self.refused is not None or (now.offload_idle and not before.offload_idle):
            return True
        taken, left = ((one.persistent, one.gradients, *one.results) for one in (now, before))
        grown = any(map(operator.gt, taken, left))
        return grown or (now.budget != before.budget and bool(self._program.copies))

    def _find_persistent(self, given: Sequence[Any]) -> dict[int, torch.Tensor]:
        """Note the parameters, buffers and optimizer state of a run; those that it writes leave
        files of weights. Returns the tensors by storage."""
        known, fresh, tensors = (
            self.model.persistent,
            self.traced.fresh(),
            self.traced.tensors(given),
        )
        self.mine = {
            storage: known.of(tensor, storage in fresh, storage in self.traced.movable)
            for storage, tensor in tensors.items()
        }
        known.find_in_files(self.mine.values())
        for storage in {s for call in self.traced.calls for s in call.writes if s in self.mine}:
            if self.mine[storage].in_file is not None:
                self.mine[storage].leave_file()
        return tensors

    def _left_files(self) -> bool:
        """Whether tensors that the plan reads from files of weights have changed since, so that
        they are there no more."""
        if self._shifts:
            self.place_parameters()
        return any(self.mine[s].in_file is None for s in self._shifts.keys() & self.moving)

    def place_parameters(self) -> None:
        """Offload or reload parameters, buffers and optimizer state so that each is where the plan
        expects it."""
        if self.program is not None:
            self.model.persistent.place((one, s in self.moving) for s, one in self.mine.items())

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
    def memory(self) -> DeviceMemory:
        """Fast and slow memory of the device that the graph runs on."""
        return self.model.memory(self.traced.device)

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

    @property
    def kernels_in_blocks(self) -> tuple[str, ...]:
        """Operators of the kernels that run block by block, as the budget has no room for their
        operands."""
        wholes = (getattr(call.target, "whole", None) for call in self.traced.calls)
        return tuple(whole.kind for whole in wholes if whole is not None)

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
        used = fast_bytes(sequence, self._program.placed.placement) + elsewhere
        return [
            {
                "graph": self.name,
                "kernel": kernel.name,
                "operator": kernel.kind,
                "predicted_seconds": kernel.algorithms[0].seconds,
                "measured_seconds": float(self.times.kernels[k]),
                "workspace": kernel.algorithms[0].workspace,
                "elsewhere": int(elsewhere[k]),
                "fast_bytes": int(used[k]),
            }
            for k, kernel in enumerate(sequence.kernels)
        ]

    def refresh_prediction(self) -> None:
        """Predict the time of a step again, from the steps measured so far; the plan stays."""
        self.history.adopt_recent_times(self.traced, self._program)
        self._program.problem = self._problem(self.traced, self.around, self.moving)

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
        tensors = self._find_persistent(given)
        self.place_parameters()
        held = self._held()
        self.model.rest_gradients(self)
        session = Session(
            self.backward,
            self._program,
            tensors,
            {s: self.mine[s].reserve(None) for s in self.moving.intersection(self.mine)},
            {i: update.count for i, update in self.updates.items() if i not in held},
        )
        self.times = session.times
        return session

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the first part, or the only one; its results."""
        with self.model.lock, torch.no_grad():
            self.model.begin(self)
            self._note_beside(0, arguments, arguments)
            self.prepare(arguments)
            if self.model.leave_shared_updates(self):
                self.prepare(arguments)
            program, begun = self._program, time.perf_counter()
            self.model.make_room(program)
            session = self._begin(arguments)
            returned = session.run(0, arguments)
            for one in returned[: self.kept]:
                if _is_plain(one) and one.untyped_storage().nbytes() >= SMALLEST:
                    self.seen.results.of(one)
            session.times.inside = time.perf_counter() - begun
            if len(program.captured.parts) == 1:
                self._over(session)
            else:
                self.open.add(session)
            return returned

    def backward(self, session: Session, arguments: Sequence[Any]) -> list[Any]:
        """Run the second part of ``session``; its results. Raises `LoadmasterError` if the run is
        over already."""
        with self.model.lock, torch.no_grad():
            begun = time.perf_counter()
            self._check_sizes(session)
            parameters = (session.tensors[s] for s in self.traced.given)
            self._note_beside(1, arguments, parameters)
            self.model.check_share()
            if session.finished:
                raise LoadmasterError(
                    "backward was called twice for one forward (retain_graph): the plan has given"
                    " its tensors back"
                )
            self.model.make_room(session.program, session)
            if session.offload_slot is not None:
                session.reload()
            self._hold_updates(session)
            self._make_gradients(session)
            try:
                returned = session.run(1, arguments)
            finally:
                self._note_updates(session)
            for i, update in self.updates.items():
                if update.held:
                    returned[i], update.gradient = update.gradient, None
            session.times.inside += time.perf_counter() - begun
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

    def _hold_updates(self, session: Session) -> None:
        """Decide which updates are made in this backward pass.

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

    def _make_gradients(self, session: Session) -> None:
        """Make the gradients that the second part of a run moves, in the slow memory. Raises
        `SlowMemoryError`."""
        moving = self.traced.gradients & self.moving
        for view in session.program.captured.parts[1].returned:
            if isinstance(view, View) and view.storage in moving:
                made = self.model.gradients.created(view)
                session.gradients[view.storage], session.places[view.storage] = made
                del made  # autograd keeps a gradient as it is only if nobody else holds it

    def _note_beside(self, part: int, arguments: Iterable[Any], given: Iterable[Any]) -> None:
        """Note how much is there when a part begins: gradients of the parameters ``given``, if
        there is a budget; and what graphs have returned, but for the part's arguments and the
        graph's own results."""
        seen, gradients = self.seen, 0
        own = {one.untyped_storage()._cdata for one in arguments if _is_plain(one)}
        others = (one.seen for one in self.model.graphs if part == 0 or one is not self)
        results = sum(one.results.bytes(own) for one in others)
        if (
            self.program is not None
            and self.budget is not None
            and self.traced.device.type == "cpu"
        ):
            there = (one.grad for one in given if isinstance(one, torch.nn.Parameter))
            known = (self.model.gradients.of(one, movable=True) for one in there if _is_plain(one))
            gradients = sum(one.bytes for one in known)
        if gradients > seen.earlier[part] or results > seen.beside[part]:
            seen.earlier[part] = max(seen.earlier[part], gradients)
            seen.beside[part] = max(seen.beside[part], results)
            self.model.join(self)

    def _note_updates(self, session: Session) -> None:
        """Tell PyTorch that parameters have changed, and the optimizer its new state."""
        for i, update in self.updates.items():
            if not update.held and update.count != session.updates[i]:
                torch.autograd.graph.increment_version(update.parameter)
                self.model.updates.made.add(id(update.parameter))
                update.sync_to_optimizer()
                update.parameter.grad = SpentGradient(update.parameter)
                for storage in self.traced.states[i]:
                    self.mine[storage].fresh = False
        for one in self.mine.values():
            one.changed()

    def _over(self, session: Session) -> None:
        session.drain()
        session.end()
        self.history.note(session.times)
        if self.history.steps == 1 and self.budget is not None:
            return_freed_blocks()  # what compiling has left, once the compiler has ended

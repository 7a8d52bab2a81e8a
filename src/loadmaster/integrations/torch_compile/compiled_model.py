"""The state of one call of ``torch.compile``: options, memories and the budget, which all graphs of
the call share; and the graphs, each with its plan.

A budget given as a share is a share of the peak of a whole step in which no tensor moves. Graph
breaks divide a step into several graphs: their forward parts run in order, their backward parts in
reverse order. While one runs, activations saved by the graphs before it and gradients left by the
graphs after it take memory, too.
"""

from __future__ import annotations

import logging
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from loadmaster.core.errors import BudgetError, LoadmasterError, SlowMemoryError, UnitError
from loadmaster.core.units import format_bytes, format_seconds, parse_bytes, parse_share
from loadmaster.integrations.torch_compile.captured import (
    CPU,
    Owner,
    View,
    capture,
    differs_from_storage,
    movable_gradients,
    movable_storages,
    persistent_inputs,
    views,
    whole_inputs,
)
from loadmaster.integrations.torch_compile.cpu_memory import (
    CpuMemory,
    FastArena,
    FilePlace,
    return_freed_blocks,
)
from loadmaster.integrations.torch_compile.executor import (
    ExecutablePlan,
    History,
    RunTimes,
    Session,
)
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile, CallProfiles
from loadmaster.integrations.torch_compile.persistent import (
    SMALLEST,
    FileRegion,
    PersistentTensor,
    PersistentTensors,
    can_offload,
)
from loadmaster.integrations.torch_compile.placing import (
    DeviceMemory,
    GraphProblem,
    GraphSearch,
    Placed,
    Surroundings,
    TooSmall,
    problem_of,
)
from loadmaster.integrations.torch_compile.updates import (
    SpentGradient,
    Traced,
    Update,
    Updates,
    use_of_gradient,
    with_updates,
)
from loadmaster.integrations.torch_compile.versions import GraphVersions
from loadmaster.placement.decisions import Mode, fast_bytes

_UPDATES = "_loadmaster_updates"
_LOG = logging.getLogger("loadmaster")
_KERNEL_OBJECT_BYTES, _SYMBOLIC_KERNEL_OBJECT_BYTES = 50 << 10, 80 << 10
COMPILER_BYTES = 56 << 20
"""Bytes that PyTorch's compiler may take in a step that compiles, outside of the budget."""
PROCESS_OVERHEAD = 8 << 20
"""Bytes that a process may take outside of the budget, which suffice for the Python objects of
some 160 kernels."""


def object_bytes(kernels: int, symbolic: bool) -> int:
    """Estimate the bytes of the Python objects of a graph; ``symbolic``: it was captured with
    symbolic sizes."""
    return kernels * (_SYMBOLIC_KERNEL_OBJECT_BYTES if symbolic else _KERNEL_OBJECT_BYTES)


@dataclass(frozen=True)
class CompileOptions:
    """The options of a compiled model.

    Attributes
    ----------
    fast_memory
        Bytes of fast memory that a step may take: parameters, inputs, results and intermediate
        tensors. None: no limit. A share, such as 0.5, is a share of the peak of a whole step, over
        all graphs, in which no tensor moves.
    mode
        ``async``: copies overlap kernels. ``sync``: they do not.
    slow_memory
        Folder on a local disk for the unlinked file (CPU); None: the folder for temporary files.
    slow_limit
        Bytes of slow memory at most.
    refine_after
        Number of steps after which the graph is planned again with measured times; 0: never.
    optimizer
        Optimizer that updates each parameter in the backward pass as soon as its gradient is
        complete, which frees the gradient. None: gradients are results.
    """

    fast_memory: int | float | None = None
    mode: Mode = Mode.ASYNC
    slow_memory: Path | None = None
    slow_limit: int | None = None
    refine_after: int = 3
    optimizer: torch.optim.Optimizer | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> CompileOptions:
        """Parse the options of ``torch.compile``; None is the default. Raises `BudgetError`."""
        given: dict[str, Any] = {}
        for name, value in options.items():
            if name not in _OPTIONS:
                raise BudgetError(
                    f"option {name!r} is unknown: the loadmaster backend has {', '.join(_OPTIONS)}"
                )
            parse, kind = _OPTIONS[name]
            try:
                if value is not None:
                    given[name] = parse(value)
            except (KeyError, TypeError, ValueError):
                raise BudgetError(f"{name} {value!r}: write {kind}") from None
        return cls(**given)


def _parse_budget(given: Any) -> int | float:
    """Return a budget as bytes (an integer) or as a share (a float). Raises `BudgetError`."""
    text = str(given).strip()
    if not (isinstance(given, float) or text.endswith("%")):
        return parse_bytes(given)
    with suppress(UnitError):
        share = parse_share(text)
        if 0 < share <= 1:
            return share
    raise BudgetError(
        f"fast_memory {given}: a share lies between 0 and 1; write bytes, such as '2 GiB', or a"
        " percentage, such as '50%'"
    )


def _optimizer(given: Any) -> torch.optim.Optimizer:
    """Return an optimizer; raise TypeError for other values."""
    if isinstance(given, torch.optim.Optimizer):
        return given
    raise TypeError


_OPTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "fast_memory": (_parse_budget, ""),
    "mode": (
        {"sync": Mode.SYNC, "async": Mode.ASYNC}.__getitem__,
        "sync or async (static: operands of kernels must be in fast memory, so tensors must move)",
    ),
    "slow_memory": (Path, "a path"),
    "slow_limit": (parse_bytes, ""),
    "refine_after": (operator.index, "a whole number"),
    "optimizer": (_optimizer, "one of torch.optim"),
}
"""The parser of each option, and what it takes."""


@dataclass
class Fallback:
    """A graph or optimizer step that runs without a plan, and the reason."""

    graph: str
    reason: str

    def __str__(self) -> str:
        return f"{self.graph}: {self.reason}"


@dataclass(frozen=True)
class StepSummary:
    """Figures of the last step under its plans; ``str`` gives one line.

    Attributes
    ----------
    budget, planned_peak, moved_bytes
        Bytes of fast memory allowed (None: no limit) and used at most, and bytes that plans copy in
        both directions.
    predicted_step_seconds
        Predicted seconds of all planned graphs.
    fallbacks
        Graphs and optimizer steps that run without a plan, with reasons.
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


def step_peak(graphs: Sequence[PlannedGraph]) -> int:
    """Return the peak in bytes of a step that runs ``graphs`` in this order, without persistent
    tensors and if no tensor moves. O(graphs)."""
    waiting = accumulate((one.saved for one in graphs), initial=0)
    left = [*accumulate((one.left for one in reversed(graphs)), initial=0)][-2::-1]
    earlier = [sum(one.earlier_gradients[part] for one in graphs) for part in (0, 1)]
    return max(
        wait
        + max(
            one.peaks[0] + earlier[0] + one.held_results[0],
            one.peaks[1] + earlier[1] + one.held_results[1] + after,
        )
        for one, wait, after in zip(graphs, waiting, left, strict=False)
    )


def _is_plain(value: Any) -> bool:
    """Whether a value is a plain strided tensor."""
    return type(value) is torch.Tensor and value.layout is torch.strided


class CompiledModel:
    """State that the graphs of one compiled function or module share: settings, fast and slow
    memory, budget, graphs, fallbacks, persistent tensors and updates of parameters.

    All changes of the state are made under ``lock``.

    Attributes
    ----------
    persistent, gradients
        Parameters, buffers and optimizer state of all graphs; gradients that outlive a step.
    graphs
        All graphs, including those that could not be planned.
    last_step_graphs
        Graphs of the current step, or of the last one if none is running.
    summary_logged
        Whether the summary of the first step was logged, or must not be.
    objects_of
        Bytes of the objects of a captured graph, by its ``id``.
    process
        The process that made the model.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        """Make a model with the options of ``torch.compile``. Raises `BudgetError`."""
        self.settings = CompileOptions.of(options)
        self.lock = threading.RLock()
        self.profiles = CallProfiles()
        self.updates = Updates(self.settings.optimizer)
        self.persistent, self.gradients = PersistentTensors(), PersistentTensors()
        self.graphs: list[PlannedGraph] = []
        self.last_step_graphs: list[PlannedGraph] = []
        self.fallbacks: list[Fallback] = []
        self.summary_logged = False
        self.objects_of: dict[int, int] = {}
        self._offload_idle, self.process = False, os.getpid()
        self._memory: DeviceMemory | None = None
        self._peak = 0

    def memory(self, device: torch.device) -> DeviceMemory:
        """Return the fast and slow memory of a device, made at the first call."""
        with self.lock:
            if self._memory is None:
                self._memory = self._make_memory(device)
                if can_offload():
                    self.persistent.file = self.gradients.file = self._memory.file
            return self._memory

    def _make_memory(self, device: torch.device) -> DeviceMemory:
        """Return the memories of a device."""
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
        """Largest peak in bytes of the steps so far if no tensor moves, over all graphs."""
        return self._peak + self.persistent.bytes()

    @property
    def objects(self) -> int:
        """Bytes of the budget that the graphs' Python objects take beyond `PROCESS_OVERHEAD`; plans
        cannot use them."""
        return max(sum(self.objects_of.values()) - PROCESS_OVERHEAD, 0)

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory that tensors may take in a step; None: no limit. A share is taken of
        the largest peak of the steps so far."""
        given = self.settings.fast_memory
        if given is None:
            return None
        objects = self.objects
        whole = int(given * (self.unmoved_peak + objects)) if isinstance(given, float) else given
        return whole - objects

    def summary(self) -> StepSummary:
        """Return the figures of the last step under its plans."""
        plans = [plan for plan in self.last_step_graphs if plan.program]
        return StepSummary(
            self.budget,
            max((plan.placed_peak for plan in plans), default=0),
            sum(plan.moved_bytes for plan in plans),
            sum(plan.predicted_seconds for plan in plans),
            tuple(self.fallbacks),
        )

    def begin(self, plan: PlannedGraph) -> None:
        """Register that the forward part of a graph is about to run, and detect a new step.

        A new step begins if no backward part is outstanding, and either the step had a graph with a
        backward part or this graph has run in it. The summary of the first step is logged when the
        second begins, because all graphs of the first are known only then.
        """
        if plan.program is not None and not self.summary_logged:
            self.summary_logged = True
            _LOG.warning("%s", self.summary())
        if not self._open_sessions and (
            plan in self.last_step_graphs
            or any(len(one.graphs) > 1 for one in self.last_step_graphs)
        ):
            self.last_step_graphs.clear()
        self.join(plan)

    def join(self, plan: PlannedGraph) -> None:
        """Add a graph to the current step and update the step's peak; a graph that is not captured
        yet is ignored."""
        if not plan.traced.parts:
            return
        if plan not in self.last_step_graphs:
            self.last_step_graphs.append(plan)
        self._peak = max(self._peak, step_peak(self.last_step_graphs))
        for i, one in enumerate(self.last_step_graphs):
            later = self.last_step_graphs[i + 1 :]
            one.later_graphs.add(tuple(each for each in later if len(each.graphs) > 1))

    def offload_gradients(self, plan: PlannedGraph) -> None:
        """Offload gradients of earlier backward passes if the graph's plan needs their memory; else
        drop offloaded gradients from the page cache."""
        known, budget = self.gradients, self.budget
        if known.file is None or budget is None:
            return
        if plan.placed_peak + known.fast_bytes() > budget:
            known.offload_movable()
        else:
            known.forget_cached()

    def surroundings(self, plan: PlannedGraph) -> Surroundings:
        """Return the fast memory that other graphs than ``plan`` take, and the budget."""
        idle = self._offload_idle
        persistent = self.persistent.fast_bytes(plan.persistent_tensors.values(), idle)
        results = tuple(plan.held_results)
        return Surroundings(persistent, plan.later_gradients(idle), results, idle, self.budget)

    def start_offloading_idle(self, plan: PlannedGraph) -> bool:
        """Offload persistent tensors of graphs that are not running, from now on.

        Returns whether that leaves more memory to ``plan``; if not, nothing changes.
        """
        own = {*plan.persistent_tensors.values()}
        taken, least = (
            self.persistent.fast_bytes(own, idle) + plan.later_gradients(idle)
            for idle in (False, True)
        )
        if self._offload_idle or taken == least:
            return False
        self._offload_idle = True
        self.persistent.offload_movable(own)
        return True

    def check_share(self) -> None:
        """Raise `BudgetError` if a graph of the step takes more than a budget given as a share,
        which is known in bytes only once all graphs of the step are."""
        budget, share = self.budget, self.settings.fast_memory
        if budget is None or not isinstance(share, float):
            return
        for plan in self.last_step_graphs:
            if plan.refused is not None and plan.refused.smallest > budget:
                whole = format_bytes(self.unmoved_peak + self.objects)
                raise BudgetError(
                    f"fast_memory {share:.4g} of what a step takes ({whole}) is"
                    f" {format_bytes(budget + self.objects)}, which is too small:"
                    f" {plan.refused.why}"
                )

    def record_unplanned_step(self, optimizer: torch.optim.Optimizer, reason: str) -> None:
        """Add a fallback, once, for an optimizer's step that runs without blocks."""
        fallback = Fallback(f"optimizer.{type(optimizer).__name__}", reason)
        if fallback not in self.fallbacks:
            self.fallbacks.append(fallback)

    def fall_back(self, graph: str, reason: str, given: Iterable[Any]) -> None:
        """Record that a graph runs without a plan. The parameters among its arguments ``given`` are
        left to the optimizer's own step from now on."""
        self.fallbacks.append(Fallback(graph, reason))
        if not self.plans:
            self.reload_parameters()  # `make_room_to_compile` may have offloaded them
        self.updates.left.update(
            id(one) for one in given if isinstance(one, torch.Tensor) and one.requires_grad
        )

    @property
    def _arenas(self) -> list[FastArena]:
        """The fast memory of all plans."""
        return [plan._program.arena for plan in self.plans]

    @property
    def _arena_bytes(self) -> int:
        """Bytes of the fast memory of all plans."""
        return sum(arena.bytes for arena in self._arenas)

    @property
    def standing_arenas(self) -> int:
        """Bytes of arenas that keep their memory between steps (on a GPU)."""
        return 0 if self._memory is None or self._memory.shrinks else self._arena_bytes

    @property
    def _open_sessions(self) -> list[Session]:
        """Runs whose backward part may still come."""
        return [one for plan in self.graphs for one in list(plan.open) if not one.finished]

    @property
    def _sessions_in_arenas(self) -> list[Session]:
        """Open runs whose saved tensors are in an arena, not offloaded."""
        return [one for one in self._open_sessions if one.offload_slot is None]

    def make_room(self, program: ExecutablePlan, session: Session | None = None) -> None:
        """Make room in fast memory before ``program`` runs for ``session`` (None: a new run).

        Saved tensors of other runs are offloaded if they are in the program's arena, or if all
        arenas and the program's peak exceed the budget.
        """
        others = [arena for arena in self._arenas if arena is not program.arena]
        taken, budget = program.placed.peak + sum(arena.bytes for arena in others), self.budget
        tight = budget is not None and taken > budget
        for waiting in self._sessions_in_arenas:
            if waiting is not session and (tight or waiting.program is program):
                waiting.offload()
        if tight:
            for arena in others:
                arena.drop()

    def clear_arenas(self) -> None:
        """Drop the memory of arenas before kernels are profiled, which allocates operands; with a
        budget, offload saved tensors first."""
        if self.settings.fast_memory is not None:
            for waiting in self._sessions_in_arenas:
                waiting.offload()
        self.release_idle()

    def make_room_to_compile(self, inputs: Iterable[Any]) -> None:
        """Offload parameters and saved tensors before PyTorch compiles a graph with these
        ``inputs``, if together with `COMPILER_BYTES` they exceed the budget.

        The graph's peak is not known yet, so a share is taken of the parameters' bytes.
        """
        given, known = self.settings.fast_memory, self.persistent
        own = [
            one
            for one in inputs
            if type(one) is torch.nn.Parameter
            and one.device.type == "cpu"
            and SMALLEST <= one.nbytes == one.untyped_storage().nbytes()
            and not one.is_shared()
        ]
        if given is None or given == 1.0 or not own:
            return
        with self.lock:
            self.memory(CPU)
            if known.file is None:
                return
            known.find_in_files([known.of(one, movable=True) for one in own])
            unmoved = max(self.unmoved_peak, known.bytes())
            budget = int(given * unmoved) if isinstance(given, float) else given
            if known.fast_bytes() + self._arena_bytes + COMPILER_BYTES > budget:
                self.clear_arenas()
                known.offload_movable()

    def release_idle(self) -> None:
        """Return the memory of arenas without saved tensors to the system."""
        with self.lock:
            busy = [session.program.arena for session in self._sessions_in_arenas]
            for arena in self._arenas:
                if arena not in busy:
                    arena.drop()

    def clear_idle(self) -> None:
        """Release idle arenas if they and the persistent tensors exceed the budget."""
        taken, budget = self.persistent.fast_bytes() + self.gradients.fast_bytes(), self.budget
        if budget is not None and taken + self._arena_bytes > budget:
            self.release_idle()

    def updates_of(self, optimizer: torch.optim.Optimizer) -> Updates:
        """Return the `Updates` for calls of an optimizer's own step; they live as long as the
        optimizer."""
        updates = vars(optimizer).setdefault(_UPDATES, weakref.WeakKeyDictionary())
        # A proxy: optimizers go, with their state, as soon as the caller drops them.
        found: Updates = updates.setdefault(self, Updates(weakref.proxy(optimizer)))
        return found

    def place_of(self, tensor: torch.Tensor) -> PersistentTensor | None:
        """Return the entry of a parameter, gradient or optimizer state that is in the slow file;
        None if the tensor is elsewhere."""
        for known in (self.persistent, self.gradients):
            one = known.known(tensor)
            if (
                one
                and isinstance(one.place, FileRegion)
                and one.is_at_place(tensor.untyped_storage())
            ):
                return one
        return None

    def keep_state(self, state: Iterable[torch.Tensor], fresh: bool = False) -> None:
        """Register new optimizer state, and offload it unless it fits in the budget beside the
        plans; ``fresh``: nothing was written to it yet."""
        known = self.persistent
        new = [
            known.of(tensor, movable=known.file is not None)
            for tensor in state
            if known.known(tensor) is None
        ]
        taken = max((plan.placed_peak for plan in self.plans), default=0)
        budget = self.budget  # a share counts the new state
        if budget is None or known.file is None or not new:
            return
        if known.offloaded_bytes() or taken + sum(one.bytes for one in new) > budget:
            for one in new:
                one.reserve(known.file)
            for one in new:
                one.fresh = fresh
                one.offload(known.file)

    def leave_shared_updates(self, plan: PlannedGraph) -> bool:
        """Leave parameters of ``plan`` that another open run updates, too, to the optimizer's own
        step. Returns whether there were new ones."""
        others = {
            id(session.program.captured.updates[i].parameter)
            for session in self._open_sessions
            for i in session.updates
        }
        shared = others.intersection(id(update.parameter) for update in plan.updates.values())
        shared -= self.updates.left
        self.updates.left.update(shared)
        return bool(shared)

    def reload_parameters(self) -> None:
        """Load all parameters, buffers and optimizer state into PyTorch's own memory, before the
        module runs without plans."""
        with self.lock:
            self.persistent.reload_all()

    def place_parameters(self) -> None:
        """Offload or load parameters, buffers and optimizer state as the plans expect, before the
        module runs by its plans again."""
        with self.lock:
            for plan in self.plans:
                plan.place_parameters()


class PlannedGraph:
    """A graph, or a forward and a backward graph, for given input shapes, with its plan.

    The plan is made when the first step begins and made again once with measured times. Each
    forward pass, together with its backward pass, is a `Session`.

    Attributes
    ----------
    graphs, kept, shapes
        The graphs, the number of the first graph's results that go to the caller (None: all), and
        the input shapes if sizes are symbolic.
    memory
        Fast and slow memory of the device that the graph runs on.
    versions, traced
        The graph with more or fewer kernels in blocks, and the version that runs.
    program, moving
        The executable plan, None before the first step; the caller's storages and gradients that it
        moves.
    surroundings
        Memory of other graphs and the budget that the plan was made for.
    persistent_tensors
        Parameters, buffers and optimizer state of the last run, by storage.
    unmoved_peak
        Peak in bytes of fast memory if no tensor moves, with the parameters of other graphs.
    refused
        Why the plan exceeds the share of the steps so far; None if it does not.
    peaks
        Peak in bytes of the forward part (index 0) and of the backward part (1) of the graph alone
        if no tensor moves: with inputs and results, without persistent tensors.
    saved, left
        Bytes of tensors kept from the forward part for the backward part, and of parameters'
        gradients, which the backward part leaves until the end of the step.
    earlier_gradients, held_results
        Most bytes of gradients from earlier backward passes, and of results that callers still
        held, at the beginning of the forward part (index 0) and of the backward part (1).
    later_graphs
        Sequences of graphs with a backward part that have run after this one, each from one step.
    results
        Tensors that the forward part has returned to the caller.
    history, times
        Times of the graph's runs, and of the last one.
    open
        Unfinished runs; finished ones may be among them.
    """

    memory: DeviceMemory
    versions: GraphVersions
    history: History
    surroundings: Surroundings

    def __init__(
        self,
        model: CompiledModel,
        graphs: list[torch.fx.GraphModule],
        kept: int | None,
        shapes: Any,
    ) -> None:
        self.model, self.graphs, self.kept, self.shapes = model, graphs, kept, shapes
        self.name = f"graph {len(model.plans)}"
        self.traced = Traced([], [], ())
        self.program: ExecutablePlan | None = None
        self._has_run = False  # the program, once
        self.moving: frozenset[int] = frozenset()
        self.persistent_tensors: dict[int, PersistentTensor] = {}
        self.unmoved_peak = 0
        self.refused: TooSmall | None = None
        self.peaks, self.saved, self.left = [0, 0], 0, 0
        self.earlier_gradients, self.held_results = [0, 0], [0, 0]
        self.later_graphs: set[tuple[PlannedGraph, ...]] = set()
        self.results, self.times = PersistentTensors(), RunTimes(0, 0)
        self.open: weakref.WeakSet[Session] = weakref.WeakSet()
        self._shared = False
        self._shifts: dict[int, int] = {}

    def fits(self, shapes: Any, given: Sequence[Any]) -> bool:
        """Return whether the plan is for these input shapes and for tensors that do not differ from
        their storages, and each parameter that it may move is still a storage of its own."""
        return bool(self.shapes == shapes and not any(map(differs_from_storage, given))) and (
            not self.traced.given
            or self.traced.given.keys() <= whole_inputs(self.traced, given).keys()
        )

    def prepare(self, given: Sequence[Any]) -> None:
        """Make or renew the plan if needed.

        Captures, profiles and plans the graph if it has no valid plan. Plans again, once, with the
        times measured in the first steps, and whenever the plan is out of date. Raises
        `BudgetError` and `NotPlannable`.
        """
        self._shared |= any(given[i] is not update.parameter for i, update in self.updates.items())
        idle = all(session.finished for session in self.open)
        outdated = self.model.updates.are_outdated(self.updates.values())
        if self.program is None or (idle and (outdated or self._held_updates())):
            self._capture(given)
            self._make_plan()
            return
        for update in self.updates.values():
            update.sync_from_optimizer()
        # Before the plan is compared with what is there: a replaced buffer counts as its successor.
        self._find_persistent(given)
        if idle:
            # On a GPU kernels run asynchronously, so times measured on the host are not theirs.
            due = self.traced.device.type == "cpu" and self.history.due()
            if due:
                self.history.adopt_recent_times(self.program)
            if due or self._outdated() or self._files_changed():
                self.model.make_room(self.program)
                self._make_plan()

    def _capture(self, given: Sequence[Any]) -> None:
        """Capture the graph, find its persistent tensors, and profile its kernels for planning."""
        model, known = self.model, self.model.persistent
        captured = capture(self.graphs, given, self.kept)
        traced = Traced(**vars(captured), given=persistent_inputs(captured, given))
        if len(captured.parts) == 2 and captured.device.type == "cpu" and not self._shared:
            traced = with_updates(traced, given, model.updates)
        for update in traced.updates.values():
            update.sync_from_optimizer()
        # Installs the allocator, which records allocations.
        self.memory = model.memory(traced.device)
        model.clear_arenas()
        large = {
            s
            for s, storage in enumerate(traced.storages)
            if storage.bytes >= SMALLEST and known.file is not None
        }
        self.traced = replace(
            traced,
            movable=movable_storages(traced, self.kept).intersection(large),
            gradients=movable_gradients(traced, given).intersection(large),
        )
        self._find_persistent(given)
        self.history = History(self.memory.link, model.settings.refine_after)
        about = self._budget_before_profiles()
        if about is not None and known.file is not None:
            # Profiling allocates the operands of one kernel at a time.
            most = min(max(map(traced.operand_bytes, traced.calls), default=0), about)
            if known.fast_bytes() + most > about:
                known.offload_movable()
        self.versions = GraphVersions(
            self.traced, self._movable(), self.memory, model.profiles, about
        )
        self.traced = self.versions.whole
        self._count_unmoved()
        objects = object_bytes(len(self.traced.calls), symbolic=self.shapes is not None)
        model.objects_of[id(self.graphs)] = objects
        model.join(self)

    def _budget_before_profiles(self) -> int | None:
        """Return the budget without workspaces, which are not known before profiling; a share of
        the final peak is at least as large."""
        share = self.model.settings.fast_memory
        if not isinstance(share, float):
            return self.model.budget
        blank = replace(self.traced, profiles=[CallProfile(0.0)] * len(self.traced.calls))
        peak = self._problem(blank, Surroundings(), frozenset()).peak()
        return int(share * max(peak, self.model.unmoved_peak))

    def _count_unmoved(self) -> None:
        """Set ``peaks``, ``saved`` and ``left``, the memory of the graph alone if no tensor
        moves."""
        unmoved = self._problem(self.traced, Surroundings(), frozenset())
        taken = unmoved.sequence.live_bytes() + unmoved.elsewhere
        taken -= self.traced.bytes_of(self.persistent_tensors)
        first, *second = self.traced.parts
        given = views([part.given for part in second])
        saved = {view.storage for view in given if self.traced.is_planned(view)}
        parts = taken[: first.end], taken[first.end :]
        self.peaks = [int(part.max(initial=0)) for part in parts]
        self.saved = self.traced.bytes_of(saved)
        self.left = self.traced.bytes_of(self._gradients())

    def _gradients(self) -> set[int]:
        """Storages of parameters' gradients that the backward part returns."""
        first, *second = self.traced.parts
        return {
            gradient.storage
            for part in second
            for slot, gradient in zip(first.given, part.returned, strict=False)
            if isinstance(slot, View)
            and slot.storage in self.persistent_tensors
            and isinstance(gradient, View)
            and self.traced.storages[gradient.storage].owner is Owner.RETURNED
        }

    def later_gradients(self, at_least: bool) -> int:
        """Return the most bytes of gradients that the later graphs of a step leave in fast memory;
        with ``at_least``, if all movable gradients move."""

        def left(one: PlannedGraph) -> int:
            """Return the bytes that the backward part of a graph leaves."""
            moved = one.traced.gradients if at_least or one.program is None else one.moving
            return one.traced.bytes_of(one._gradients() - moved)

        return max((sum(map(left, later)) for later in self.later_graphs), default=0)

    def _movable(self) -> frozenset[int]:
        """Return the caller's storages and the gradients that may be in slow memory."""
        return self.traced.movable.intersection(self.persistent_tensors) | self.traced.gradients

    def _make_plan(self) -> None:
        """Plan the graph within its budget and build its program; replaces the plan before."""
        before, budgeted = self.program, self.model.budget is not None
        if budgeted:
            self.model.release_idle()  # planning needs memory
        for one in self.persistent_tensors.values():
            one.leave_changed_file()
        if budgeted and before is not None and before.copies:
            self.model.persistent.rest(self.persistent_tensors.values())
        self._shifts = {
            s: one.in_file.shift
            for s, one in self.persistent_tensors.items()
            if one.in_file is not None
        }
        movable = self._movable()
        self.traced, placed, self.surroundings, self.refused = self._choose_version(movable)
        self.moving = movable.intersection((*placed.problem.storage, *self.traced.streamed))
        with torch.inference_mode(False), torch.no_grad():
            self.program = ExecutablePlan(
                self.traced, placed, self.memory, self.moving, self._shifts
            )
        self.unmoved_peak = self._problem(
            self.versions.whole, self.surroundings, frozenset()
        ).peak()
        self._has_run = False
        self.history.forget()
        if before is not None:
            before.arena.close()
        if budgeted:
            return_freed_blocks()

    def _choose_version(
        self, movable: frozenset[int]
    ) -> tuple[Traced, Placed, Surroundings, TooSmall | None]:
        """Choose the version with the fewest kernels in blocks that keeps the budget, and plan it.

        Returns the version, its placement, the surroundings, and None. In the first step, in which
        a share is not final, a share that is too small is replaced by the smallest budget that
        works; the last result is then the refusal. Raises `TooSmall`.
        """
        around, settings = self.model.surroundings(self), self.model.settings
        tried = []
        for version in self.versions.finer(
            around.budget, lambda: self._problem(self.versions.whole, around, movable).needed()
        ):
            search = GraphSearch(
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
            tried.append((version, search, found))
        assert around.budget is not None
        if self.model.start_offloading_idle(self):
            return self._choose_version(movable)
        # What operators allocate themselves may make blocks larger than the whole kernel.
        version, search, failed = min(tried, key=lambda each: each[1].make(movable).needed().max())
        refusal = search.refusal(around.budget, failed)
        if not isinstance(settings.fast_memory, float) or self.history.steps:
            raise refusal
        found = search.attempt(refusal.smallest)
        assert not isinstance(found, int)
        return version, found, around._replace(budget=refusal.smallest), refusal

    def _problem(
        self, traced: Traced, surroundings: Surroundings, moving: frozenset[int]
    ) -> GraphProblem:
        """Return the placement problem with the latest times in which the caller's storages in
        ``moving`` may move."""
        seconds, link = self.history.kernel_seconds(traced), self.history.link
        moving -= traced.streamed
        return problem_of(
            self.name, traced, seconds, link, self.memory, moving, surroundings, self._shifts
        )

    def _outdated(self) -> bool:
        """Return whether other graphs take more memory than the plan leaves them, or the budget has
        changed, unless the plan moves nothing and still fits."""
        before, now = self.surroundings, self.model.surroundings(self)
        if now.budget is None:
            return False
        taken, left = ((one.persistent, one.gradients, *one.results) for one in (now, before))
        return bool(
            self.refused is not None
            or now.offload_idle > before.offload_idle
            or self.placed_peak > now.budget
            or any(map(operator.gt, taken, left))
            or (now.budget != before.budget and self._program.copies)
        )

    def _find_persistent(self, given: Sequence[Any]) -> None:
        """Set ``persistent_tensors`` from the arguments of a run. Tensors that the run writes no
        longer use a file of weights as their place."""
        known, fresh = self.model.persistent, self.traced.fresh()
        self.persistent_tensors = {
            storage: known.of(tensor, storage in fresh, storage in self.traced.movable)
            for storage, tensor in self.traced.tensors(given).items()
        }
        known.find_in_files(self.persistent_tensors.values())
        written = {s for call in self.traced.calls for s in call.writes}
        for storage, one in self.persistent_tensors.items():
            if storage in written and one.in_file:
                one.leave_file()

    def _files_changed(self) -> bool:
        """Return whether tensors that the plan reads from files of weights have changed since, so
        that the files are out of date."""
        if self._shifts:
            self.place_parameters()
        return any(
            self.persistent_tensors[s].in_file is None for s in self._shifts.keys() & self.moving
        )

    def place_parameters(self) -> None:
        """Offload or reload parameters, buffers and optimizer state as the plan expects."""
        self.model.persistent.place(
            (one, s in self.moving) for s, one in self.persistent_tensors.items()
        )

    @property
    def _program(self) -> ExecutablePlan:
        """The program of the current plan."""
        assert self.program is not None
        return self.program

    @property
    def updates(self) -> dict[int, Update]:
        """Optimizer updates by the position of their gradient among the results of the backward
        graph."""
        return self.traced.updates

    @property
    def problem(self) -> GraphProblem:
        """The placement problem that the plan solves."""
        return self._program.problem

    @property
    def predicted_seconds(self) -> float:
        """Predicted seconds of a step, from the times of kernels and copies in measured steps."""
        return self.history.predicted_seconds(
            self.traced, self.problem.sequence, self._program.placed.placement
        )

    @property
    def placed_peak(self) -> int:
        """Peak in bytes of fast memory under the plan."""
        return self._program.placed.peak

    @property
    def kernels_in_blocks(self) -> tuple[str, ...]:
        """Operators of the kernels that run block by block, because their operands exceed the
        budget."""
        wholes = (getattr(call.target, "whole", None) for call in self.traced.calls)
        return tuple(whole.kind for whole in wholes if whole is not None)

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies between the memories, in both directions."""
        return sum(copy.bytes for copy in self._program.copies) + sum(
            profile.transferred for profile in self.traced.profiles
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a table row for each kernel: predicted seconds, seconds in the last step, and
        bytes of fast memory in use under the plan."""
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
        """Update the prediction from the steps measured so far; the plan stays."""
        self.history.adopt_recent_times(self._program)
        self._program.problem = self._problem(self.traced, self.surroundings, self.moving)

    def _held_updates(self) -> frozenset[int]:
        """Return the positions of updates that must be left to the optimizer's own step: the
        gradient is not complete, a hook reads it, or several layers share the graph."""
        is_left = self.model.updates.is_left
        return frozenset(
            i for i, update in self.updates.items() if self._shared or is_left(update.parameter)
        )

    def _places(self) -> dict[int, FileRegion | FilePlace]:
        """Return the places in slow memory of the caller's tensors that move."""
        moving = self.moving.intersection(self.persistent_tensors)
        return {s: self.persistent_tensors[s].reserve(None) for s in moving}

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the forward part, or the only one, and return its results. Raises `SlowMemoryError`
        in a forked process if the plan copies tensors."""
        with self.model.lock, torch.no_grad():
            self.model.begin(self)
            self._observe_memory(0, arguments, arguments)
            self.prepare(arguments)
            if self.model.leave_shared_updates(self):
                self.prepare(arguments)
            if os.getpid() != self.model.process and self.moved_bytes:
                raise SlowMemoryError(
                    "a forked process cannot copy the plan's tensors: compile the module in it"
                )
            program, begun = self._program, time.perf_counter()
            self.model.make_room(program)
            self.place_parameters()
            held = self._held_updates()
            self.model.offload_gradients(self)
            session = Session(
                self.backward,
                program,
                self.traced.tensors(arguments),
                self._places(),
                {i: update.count for i, update in self.updates.items() if i not in held},
            )
            self.times = session.times
            returned = session.run(0, arguments)
            for one in returned[: self.kept]:
                if _is_plain(one) and one.untyped_storage().nbytes() >= SMALLEST:
                    self.results.of(one)
            session.times.total = time.perf_counter() - begun
            if len(program.captured.parts) == 1:
                self._finish(session)
            else:
                self.open.add(session)
            return returned

    def backward(self, session: Session, arguments: Sequence[Any]) -> list[Any]:
        """Run the backward part of ``session`` and return its results. Raises `LoadmasterError` if
        the run has ended already."""
        with self.model.lock, torch.no_grad():
            begun = time.perf_counter()
            self._check_sizes(session)
            parameters = (session.tensors[s] for s in self.traced.given)
            self._observe_memory(1, arguments, parameters)
            self.model.check_share()
            if session.finished:
                raise LoadmasterError(
                    "backward was called twice for one forward (retain_graph): the plan has given"
                    " its tensors back"
                )
            self.model.make_room(session.program, session)
            if session.offload_slot is not None:
                session.reload()
            if any(
                session.tensors[s].untyped_storage().data_ptr() != place.address
                for s, place in session.places.items()
            ):
                # Another graph, which has run since the forward pass, has moved them.
                self.place_parameters()
                session.places.update(self._places())
            session.refresh()
            self._select_updates(session)
            self._make_gradients(session)
            try:
                returned = session.run(1, arguments)
            except BaseException:
                self._publish_updates(session)
                self.model.updates.made.clear()  # the caller need not make this step
                raise
            self._publish_updates(session)
            for i, update in self.updates.items():
                if update.held:
                    returned[i], update.gradient = update.gradient, None
            session.times.total += time.perf_counter() - begun
            self._finish(session)
            return returned

    def _check_sizes(self, session: Session) -> None:
        """Raise `LoadmasterError` if a parameter's storage has changed its size since the forward
        pass."""
        storages = session.program.captured.storages
        for storage, tensor in session.tensors.items():
            if tensor.untyped_storage().nbytes() != storages[storage].bytes:
                session.abandon()
                raise LoadmasterError(
                    f"{storages[storage].name}: its memory was replaced between a forward pass and"
                    " its backward pass: resize parameters before a forward pass"
                )

    def _select_updates(self, session: Session) -> None:
        """Decide which updates are made in this backward pass.

        Raises `LoadmasterError` if a parameter to be updated has changed since the forward pass,
        has a gradient already, or was updated without a step of the optimizer after it.
        """
        held = self._held_updates()
        for i, update in self.updates.items():
            use = use_of_gradient(update.parameter)
            update.dropped = use == "none"
            update.held = use != "added" or i not in session.updates or i in held
            if update.held:
                continue
            if update.count != session.updates[i]:
                raise LoadmasterError(
                    "parameters were updated since this forward pass: with the option optimizer,"
                    " call backward after each forward pass"
                )
            if update.has_other_state:
                raise LoadmasterError(
                    "the state of the optimizer was replaced since this forward pass: with the"
                    " option optimizer, load state, and step with other compiled modules, before"
                    " a forward pass"
                )
            if update.parameter.grad is not None:
                raise LoadmasterError(
                    "a parameter has a gradient already, which the update in the backward pass"
                    " would miss: call zero_grad() before (with the option optimizer, gradients of"
                    " several backward passes do not add up)"
                )
            if id(update.parameter) in self.model.updates.made:
                raise LoadmasterError(
                    "an earlier backward pass has updated the parameters, and no optimizer.step()"
                    " came after it: call it after every backward pass, also after one that you"
                    " undo; to skip updates, compile the model without the option optimizer"
                )

    def _make_gradients(self, session: Session) -> None:
        """Create the gradients that the backward part moves, in slow memory. Raises
        `SlowMemoryError`."""
        moving = self.traced.gradients & self.moving
        for view in session.program.captured.parts[1].returned:
            if isinstance(view, View) and view.storage in moving:
                made = self.model.gradients.created(view)
                session.gradients[view.storage], session.places[view.storage] = made
                del made  # autograd copies gradients that have other references

    def _observe_memory(self, part: int, arguments: Iterable[Any], given: Iterable[Any]) -> None:
        """Note the memory in use when a part begins: with a budget, gradients of the parameters
        ``given``; and results of graphs, without the part's ``arguments`` and, in the backward
        part, the graph's own results."""
        gradients = 0
        own = {one.untyped_storage()._cdata for one in arguments if _is_plain(one)}
        others = (one for one in self.model.graphs if part == 0 or one is not self)
        results = sum(one.results.bytes(own) for one in others)
        if (
            self.program is not None
            and self.model.budget is not None
            and self.traced.device.type == "cpu"
        ):
            there = (one.grad for one in given if isinstance(one, torch.nn.Parameter))
            known = (self.model.gradients.of(one, movable=True) for one in there if _is_plain(one))
            gradients = sum(one.bytes for one in known)
        most = (self.earlier_gradients, gradients), (self.held_results, results)
        for seen, now in most:
            if now > seen[part]:
                seen[part] = now
                self.model.join(self)

    def _publish_updates(self, session: Session) -> None:
        """Mark updated parameters as changed for autograd, and their gradients as spent."""
        for i, update in self.updates.items():
            if not update.held and update.count != session.updates[i]:
                torch.autograd.graph.increment_version(update.parameter)
                self.model.updates.made.add(id(update.parameter))
                update.parameter.grad = SpentGradient(update.parameter)
                for storage in self.traced.states[i]:
                    self.persistent_tensors[storage].fresh = False
        for one in self.persistent_tensors.values():
            one.changed()

    def _finish(self, session: Session) -> None:
        """End a run, and note its times."""
        session.end()
        self.history.note(session.times)
        if not self._has_run and self.model.budget is not None:
            return_freed_blocks()  # memory freed by the compiler, and by planning again
        self._has_run = True

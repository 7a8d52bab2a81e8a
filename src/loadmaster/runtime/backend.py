"""``torch.compile(model, backend="loadmaster", options={...})``."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.errors import BudgetError, LoadmasterError
from loadmaster.kernel_sequence import CopyLink
from loadmaster.move_timing import time_moves
from loadmaster.runtime.captured import Captured, NotPlannable, Part, View, capture, lasting_inputs, movable_storages
from loadmaster.runtime.device_memory import DeviceMemory
from loadmaster.runtime.executor import Session, Times, run_part, session_of
from loadmaster.runtime.kernel_profile import CallProfile, CallProfiles
from loadmaster.runtime.placing import Placed, Problem, place, problem_of
from loadmaster.runtime.program import Program, observed, prepare
from loadmaster.runtime.resting import Lasting, LastingTensors, can_rest
from loadmaster.runtime.updates import Update, with_updates
from loadmaster.tensor_placement import Mode
from loadmaster.units import parse_bytes

OPTIONS = ("fast_memory", "mode", "slow_memory", "slow_limit", "refine_after", "optimizer")
_RECENT = 6
"""Steps whose times are remembered."""
_SMALLEST = 64 << 10
"""Bytes from which on a parameter, or the like, is worth moving."""


@dataclass(frozen=True)
class Settings:
    """The options of a compiled model.

    Attributes
    ----------
    fast_memory
        Bytes of fast memory that a step may take: parameters, inputs, results, and all that lies between. None: as much as it needs.
        A share, such as 0.5, is of what each graph takes when nothing moves.
    mode
        ``async``: copies overlap kernels. ``sync``: they do not.
    slow_memory
        Folder on a local disk for the unlinked file (CPU); by default that for temporary files.
    slow_limit
        Bytes of slow memory at most.
    refine_after
        Steps after which a plan is made again from the times that were measured; 0: never.
    optimizer
        Updates parameters in the backward pass, each as soon as its gradient is complete; the gradient ends there. None: gradients are
        results.
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
        for name in options:
            if name not in OPTIONS:
                raise BudgetError(f"option {name!r} is unknown: the loadmaster backend has {', '.join(OPTIONS)}")
        budget = options.get("fast_memory")
        if isinstance(budget, str) and budget.strip().endswith("%"):
            try:
                budget = float(budget.strip()[:-1]) / 100
            except ValueError:
                raise BudgetError(f"fast_memory {budget!r}: write bytes, such as '2 GiB', or a percentage, such as '50%'") from None
        elif budget is not None and not isinstance(budget, float):
            budget = parse_bytes(budget)
        if isinstance(budget, float) and not 0 < budget <= 1:
            raise BudgetError(
                f"fast_memory {budget}: a share lies between 0 and 1; write bytes, such as '2 GiB', or a percentage, such as '50%'"
            )
        mode = options.get("mode", "async")
        if mode not in ("sync", "async"):
            why = ": operands of kernels must be in fast memory, so tensors have to move" if mode == "static" else ""
            raise BudgetError(f"mode {mode!r}: write sync or async{why}")
        optimizer = options.get("optimizer")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise BudgetError(f"optimizer of type {type(optimizer).__name__}: give one of torch.optim")
        folder = options.get("slow_memory")
        limit = options.get("slow_limit")
        return cls(
            budget,
            Mode(mode),
            None if folder is None else Path(folder),
            None if limit is None else parse_bytes(limit),
            int(options.get("refine_after", 3)),
            optimizer,
        )


@dataclass
class Fallback:
    """A graph that runs unplanned, and why."""

    graph: str
    reason: str


@dataclass
class Model:
    """What the graphs of one compiled model share: settings, fast and slow memory, one budget."""

    settings: Settings
    options: Mapping[str, Any]
    lock: threading.RLock = field(default_factory=threading.RLock)
    profiles: CallProfiles = field(default_factory=CallProfiles)
    plans: list[PlannedGraph] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    shared: set[int] = field(default_factory=set)
    """Parameters (by ``id``) with gradients from more than one graph: these are complete only when all backward passes are over."""
    yielding: bool = False
    """No graph keeps parameters in the fast memory while others run."""
    forms: dict[Any, dict[str, Any]] = field(default_factory=dict)
    """States of optimizers that were seen."""
    _memory: DeviceMemory | None = None
    _lasting: LastingTensors | None = None
    _waiting: weakref.WeakSet[Session] = field(default_factory=weakref.WeakSet)

    def memory(self, device: torch.device) -> DeviceMemory:
        """Fast and slow memory on a device; made at the first use."""
        with self.lock:
            if self._memory is None:
                self._memory = self._made(device)
            return self._memory

    def lasting(self, device: torch.device) -> LastingTensors:
        """Parameters and the like of all graphs."""
        if self._lasting is None:
            memory = self.memory(device)
            self._lasting = LastingTensors(memory.file if can_rest() else None)
        return self._lasting

    def _made(self, device: torch.device) -> DeviceMemory:
        if device.type == "cuda":
            from loadmaster.runtime.cuda_memory import CudaMemory

            return CudaMemory(device, self.settings.slow_limit)
        from loadmaster.runtime.cpu_memory import CpuMemory

        return CpuMemory(self.settings.slow_memory, self.settings.slow_limit)

    def make_room(self, program: Program, session: Session | None = None) -> None:
        """Bring what other runs have left in arenas to the slow memory, as far as the budget or the arena itself asks for it."""
        others = [plan.program for plan in self.plans if plan.program is not None and plan.program is not program]
        budget = self.settings.fast_memory
        tight = budget is not None and (
            isinstance(budget, float) or program.placed.peak + sum(other.arena.bytes for other in others) > budget
        )
        for waiting in list(self._waiting):
            if waiting is not session and waiting.parked is None and not waiting.finished and (tight or waiting.program is program):
                waiting.park()
        if tight:
            for other in others:
                other.arena.drop()

    def release_idle(self) -> None:
        """Give back the memory of arenas that hold nothing."""
        with self.lock:
            busy = {id(session.program) for session in self._waiting if session.parked is None and not session.finished}
            for plan in self.plans:
                if plan.program is not None and id(plan.program) not in busy:
                    plan.program.arena.drop()

    def share(self, plan: PlannedGraph) -> bool:
        """Find parameters that another run under way updates as well as this plan; whether there are new ones."""
        mine = {id(update.parameter) for update in plan.updates.values()}
        before = len(self.shared)
        for session in self._waiting:
            if not session.finished and session.program is not plan.program:
                self.shared |= mine & session.parameters
        return len(self.shared) > before

    def resting_bytes(self) -> int:
        """Bytes of parameters and the like that are in the slow memory between steps."""
        return 0 if self._lasting is None else self._lasting.resting_bytes()

    def hand_over(self, ours: bool) -> None:
        """Before others run the module, or after: parameters lie where they would without a plan, or where plans want them."""
        with self.lock:
            if self._lasting is not None and not ours:
                self._lasting.wake_all()
            for plan in self.plans if ours else ():
                plan.settle()

    def wait(self, session: Session) -> None:
        """The first part of a run is over; the second may come, or never."""
        self._waiting.add(session)

    def resume(self, session: Session) -> None:
        """The second part of a run begins."""
        if session.finished:
            raise LoadmasterError("backward was called twice for one forward (retain_graph): the plan has given its tensors back")
        self.make_room(session.program, session)
        if session.parked is not None:
            session.unpark()
        self._waiting.discard(session)


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


class CompiledGraph:
    """What Dynamo has captured: one graph, or a forward and a backward graph, planned for every combination of shapes that comes."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.graphs: list[torch.fx.GraphModule] = []
        self.kept: int | None = None
        self.plans: dict[Any, PlannedGraph] = {}
        self.unplanned = False

    def forward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the first graph."""
        key = tuple((a.shape, a.stride()) if isinstance(a, torch.Tensor) else a for a in arguments) if self._dynamic() else None
        with self.model.lock:
            if key not in self.plans:
                self.plans[key] = PlannedGraph(self.model, f"graph {len(self.model.plans)}", self.graphs, self.kept)
        return self.plans[key].forward(arguments)

    def backward(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the second graph."""
        for plan in list(self.plans.values()):  # another thread may add one
            if plan.program is not None and _fits(plan.program.captured.parts[1], arguments):
                return plan.backward(session_of(plan.program.captured.parts[1], arguments), arguments)
        raise LoadmasterError("a backward pass came whose forward pass was not planned")

    def _dynamic(self) -> bool:
        return any(isinstance(node.meta.get("val"), torch.SymInt) for node in self.graphs[0].graph.find_nodes(op="placeholder"))


def _fits(part: Part, arguments: Sequence[Any]) -> bool:
    """Whether a plan is for these shapes."""
    return all(
        argument.shape == view.size if isinstance(view, View) else not isinstance(view, int) or view == argument
        for view, argument in zip(part.given, arguments, strict=True)
    )


def unplanned(graph: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    """The graph as it is, each value freed after its last use: what runs where nothing can be planned."""

    def run(arguments: list[Any]) -> Any:
        return torch.fx.Interpreter(graph).boxed_run(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


_MODELS: weakref.WeakValueDictionary[int, Model] = weakref.WeakValueDictionary()
"""By the ``id`` of their options, which they keep: a model lives as long as Dynamo keeps one of its graphs."""
_MODELS_LOCK = threading.Lock()


def model_of(options: Mapping[str, Any]) -> Model:
    """What the graphs that were compiled with this very object of options share."""
    with _MODELS_LOCK:
        model = _MODELS.get(id(options))
        if model is None:
            model = _MODELS[id(options)] = Model(Settings.of(options), options)
        return model


def loadmaster(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Callable[..., Any]:
    """Compile one graph that Dynamo has captured; see `Settings` for the options."""
    from functorch.compile import default_partition
    from torch._dynamo.backends.common import aot_autograd

    model = model_of({} if options is None else options)
    plan = CompiledGraph(model)

    def partition(joint: torch.fx.GraphModule, joint_inputs: Any, **more: Any) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule]:
        plan.kept = more["num_fwd_outputs"]
        return default_partition(joint, joint_inputs, **more)  # type: ignore[no-any-return]

    def forward(part: torch.fx.GraphModule, _: Any) -> Callable[[list[Any]], Any]:
        plan.graphs.insert(0, part)
        return _boxed(plan, plan.forward, part)

    def backward(part: torch.fx.GraphModule, _: Any) -> Callable[[list[Any]], Any]:
        plan.graphs.append(part)
        return _boxed(plan, plan.backward, part)

    with torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
        return cast(
            Callable[..., Any],
            aot_autograd(
                fw_compiler=forward,
                bw_compiler=backward,
                inference_compiler=forward,
                partition_fn=partition,
                keep_inference_input_mutations=True,
            )(graph, inputs),
        )


def _boxed(plan: CompiledGraph, run: Callable[[Sequence[Any]], list[Any]], part: torch.fx.GraphModule) -> Callable[[list[Any]], Any]:
    plain = unplanned(part)

    def call(arguments: list[Any]) -> Any:
        if not plan.unplanned:
            given = list(arguments)
            try:
                planned = run(given)
            except NotPlannable as reason:
                plan.unplanned = True
                plan.model.shared |= {id(a) for a in given if isinstance(a, torch.Tensor) and a.requires_grad}
                plan.model.fallbacks.append(Fallback(str(plan.graphs[0].graph.find_nodes(op="output")[0].prev), str(reason)))
            else:
                arguments.clear()
                return planned
        return plain(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


__all__ = ["CompiledGraph", "Model", "PlannedGraph", "Settings", "loadmaster", "model_of"]

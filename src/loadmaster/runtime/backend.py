"""``torch.compile(model, backend="loadmaster", options={...})``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.errors import BudgetError, LoadmasterError
from loadmaster.move_timing import time_moves
from loadmaster.runtime.captured import Captured, NotPlannable, Part, View, capture
from loadmaster.runtime.device_memory import DeviceMemory
from loadmaster.runtime.executor import Session, Times, run_part, session_of
from loadmaster.runtime.kernel_profile import CallProfile, CallProfiles
from loadmaster.runtime.placing import Problem, place, problem_of
from loadmaster.runtime.program import Program, prepare
from loadmaster.tensor_placement import Mode
from loadmaster.units import parse_bytes

OPTIONS = ("fast_memory", "mode", "slow_memory", "slow_limit", "refine_after")


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
    """

    fast_memory: int | float | None = None
    mode: Mode = Mode.ASYNC
    slow_memory: Path | None = None
    slow_limit: int | None = None
    refine_after: int = 3

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
        folder = options.get("slow_memory")
        limit = options.get("slow_limit")
        return cls(
            budget,
            Mode(mode),
            None if folder is None else Path(folder),
            None if limit is None else parse_bytes(limit),
            int(options.get("refine_after", 3)),
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
    lock: threading.RLock = field(default_factory=threading.RLock)
    profiles: CallProfiles = field(default_factory=CallProfiles)
    plans: list[PlannedGraph] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    _memory: DeviceMemory | None = None
    _waiting: weakref.WeakSet[Session] = field(default_factory=weakref.WeakSet)

    def memory(self, device: torch.device) -> DeviceMemory:
        """Fast and slow memory on a device; made at the first use."""
        with self.lock:
            if self._memory is None:
                self._memory = self._made(device)
            return self._memory

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

    def wait(self, session: Session) -> None:
        """The first part of a run is over; the second may come, or never."""
        self._waiting.add(session)

    def resume(self, session: Session) -> None:
        """The second part of a run begins."""
        if session.finished:
            raise LoadmasterError("backward was called twice for one forward (retain_graph): the plan has given its tensors back")
        self._waiting.discard(session)
        self.make_room(session.program, session)
        if session.parked is not None:
            session.unpark()


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
        self._kernel_seconds: NDArray[np.float64] = np.zeros(0)
        self._measured: NDArray[np.float64] = np.zeros(0)
        self._open: weakref.WeakSet[Session] = weakref.WeakSet()

    def prepare(self, given: Sequence[Any]) -> Program:
        """Capture, profile, place, pack. Raises `BudgetError` and `NotPlannable`."""
        if self.program is not None:
            return self.program
        self.captured = capture(self.graphs, given, self.kept)
        memory = self.model.memory(self.captured.device)
        self.profiles = self.model.profiles.of(self.captured)
        self._kernel_seconds = np.array([profile.seconds for profile in self.profiles])
        self._measured = np.full(len(self.profiles), np.inf)
        self._plan(memory)
        assert self.program is not None
        return self.program

    def _plan(self, memory: DeviceMemory) -> None:
        assert self.captured is not None
        settings = self.model.settings
        problem = problem_of(self.name, self.captured, self.profiles, self._kernel_seconds, memory.link, memory.alignment)
        unmoved = place(problem, None, settings.mode)
        self.unmoved_peak = unmoved.peak
        budget = self.budget
        placed = unmoved if budget is None or unmoved.peak <= budget else place(problem, budget, settings.mode)
        if self.program is not None:
            self.program.arena.close()
        self.problem = problem
        self.program = prepare(self.captured, self.profiles, problem, placed, memory)
        self.times = Times(len(self.captured.calls), len(self.program.copies))
        if self not in self.model.plans:
            self.model.plans.append(self)

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
            program = self.prepare(arguments)
            self._refine()
            assert self.program is not None
            program = self.program
            self.model.make_room(program)
            session = Session(program, self.memory)
            part = program.captured.parts[0]
            returned = self._run(session, 0, arguments)
            if len(program.captured.parts) == 1:
                self._over(session)
            elif program.captured.parts[1].saved:
                self._open.add(session)
                self.model.wait(session)
            else:
                session.drain()
                session.end()
            assert part.end <= len(program.launches)
            return returned

    def backward(self, session: Session | None, arguments: Sequence[Any]) -> list[Any]:
        """Run the second part of a run; of a new one, if the first has left nothing behind."""
        with self.model.lock, torch.no_grad():
            assert self.program is not None
            if session is None:
                session = Session(self.program, self.memory)
            self.model.resume(session)
            returned = self._run(session, 1, arguments)
            self._over(session)
            return returned

    def _run(self, session: Session, part: int, arguments: Sequence[Any]) -> list[Any]:
        if part == 0:
            self.times.start()
        try:
            return run_part(session, session.program.captured.parts[part], arguments, self.times)
        except BaseException:
            session.drain()
            session.end()
            raise

    def _over(self, session: Session) -> None:
        session.drain()
        session.end()
        self.steps += 1
        if self.steps > 1:
            self._measured = np.minimum(self._measured, self.times.kernels)

    def _refine(self) -> None:
        """After a few steps, plan again with the times that were measured in them, once."""
        if self.steps < self.model.settings.refine_after or self.refined or not self.model.settings.refine_after or len(self._open):
            return
        self.refined = True
        assert self.program is not None
        assert self.captured is not None
        if self.captured.device.type == "cuda":  # kernels run beside the host: what it saw is not their time
            return
        if np.isfinite(self._measured).all():
            self._kernel_seconds = self._measured
        self.model.make_room(self.program)
        self._plan(self.memory)


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
        for plan in self.plans.values():
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


_MODELS: dict[int, tuple[Any, Model]] = {}
_MODELS_LOCK = threading.Lock()


def model_of(options: Mapping[str, Any]) -> Model:
    """What the graphs that were compiled with this very object of options share."""
    with _MODELS_LOCK:
        if id(options) not in _MODELS:
            _MODELS[id(options)] = options, Model(Settings.of(options))
        return _MODELS[id(options)][1]


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
                plan.model.fallbacks.append(Fallback(str(plan.graphs[0].graph.find_nodes(op="output")[0].prev), str(reason)))
            else:
                arguments.clear()
                return planned
        return plain(arguments)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


__all__ = ["CompiledGraph", "Model", "PlannedGraph", "Settings", "loadmaster", "model_of"]

"""What the graphs of one compiled model share: options, memories, one budget."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.core.units import parse_bytes
from loadmaster.integrations.torch_compile.devices.device_memory import DeviceMemory
from loadmaster.integrations.torch_compile.executor import Session
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.program import Program
from loadmaster.integrations.torch_compile.resting import LastingTensors, can_rest
from loadmaster.placement.decisions import Mode

if TYPE_CHECKING:
    from loadmaster.integrations.torch_compile.planned_graph import PlannedGraph

OPTIONS = ("fast_memory", "mode", "slow_memory", "slow_limit", "refine_after", "optimizer")


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
            from loadmaster.integrations.torch_compile.devices.cuda_memory import CudaMemory

            return CudaMemory(device, self.settings.slow_limit)
        from loadmaster.integrations.torch_compile.devices.cpu_memory import CpuMemory

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

"""What the graphs of one compiled model share: options, memories, one budget."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.core.units import format_bytes, parse_bytes
from loadmaster.integrations.torch_compile.devices.device_memory import DeviceMemory
from loadmaster.integrations.torch_compile.executor import Session, Times
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.placing import TooSmall
from loadmaster.integrations.torch_compile.program import Program
from loadmaster.integrations.torch_compile.resting import Lasting, LastingTensors, can_rest
from loadmaster.integrations.torch_compile.step_peak import Footprint, left_after, step_peak
from loadmaster.integrations.torch_compile.updates import Updates
from loadmaster.placement.decisions import Mode

OPTIONS = ("fast_memory", "mode", "slow_memory", "slow_limit", "refine_after", "optimizer")


@dataclass(frozen=True)
class Settings:
    """The options of a compiled model.

    Attributes
    ----------
    fast_memory
        Bytes of fast memory that a step may take: parameters, inputs, results, and all that lies between. None: as much as it needs.
        A share, such as 0.5, is of what a whole step takes, over all graphs, when nothing moves.
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


class Surroundings(NamedTuple):
    """What a graph's plan has to reckon with: bytes that others of the model take, and the budget.

    ``lasting`` are other graphs' parameters and the like; ``gradients`` are there when the backward part begins. ``yielding``: no graph
    keeps parameters in the fast memory while others run.
    """

    lasting: int
    gradients: int
    yielding: bool
    budget: int | None


class Planned(Protocol):
    """What a model, and who reports on it, ask of a graph with its plan."""

    name: str
    times: Times

    @property
    def program(self) -> Program | None:
        """What runs; None before the first step."""

    @property
    def changes(self) -> frozenset[int]:
        """Parameters (by ``id``) that the graph's runs update."""

    @property
    def refused(self) -> TooSmall | None:
        """Why the plan takes more than the share that was known when it was made."""

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory for a step."""

    @property
    def unmoved_peak(self) -> int:
        """Most bytes that the graph takes when nothing moves."""

    @property
    def placed_peak(self) -> int:
        """Most bytes that it takes by the plan."""

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies, both ways."""

    @property
    def predicted_seconds(self) -> float:
        """Time of a step."""

    def settle(self) -> None:
        """Have parameters rest where the plan wants them."""

    def foretell(self) -> None:
        """Predict again, from the steps so far."""

    def rows(self) -> list[dict[str, Any]]:
        """Each kernel, with its times."""


class Model:
    """What the graphs of one compiled function or module share: settings, fast and slow memory, one budget.

    A model owns its lists of plans and fallbacks, what lasts from step to step, the updates of parameters, and what is known of whole
    steps; graphs change these only by its methods, under ``lock``.
    """

    def __init__(self, settings: Settings, options: Mapping[str, Any]) -> None:
        self.settings, self.options = settings, options
        self.lock = threading.RLock()
        self.profiles = CallProfiles()
        self.updates = Updates(settings.optimizer)
        self.plans: list[Planned] = []
        self.fallbacks: list[Fallback] = []
        self._yielding = False
        self._memory: DeviceMemory | None = None
        self._lasting: LastingTensors | None = None
        self._waiting: weakref.WeakSet[Session] = weakref.WeakSet()
        self._footprints: dict[Planned, Footprint] = {}
        self._step: list[Planned] = []
        self._gradients: dict[Planned, int] = {}
        self._transient = 0

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

    @property
    def unmoved_peak(self) -> int:
        """Most bytes that a step takes when nothing moves, over all graphs of the steps seen so far."""
        return self._transient + (0 if self._lasting is None else self._lasting.bytes())

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory that a step may take; of a share, as far as steps are known."""
        given = self.settings.fast_memory
        return int(given * self.unmoved_peak) if isinstance(given, float) else given

    def begin(self, plan: Planned) -> None:
        """The forward part of a graph is about to run. A step is over when no backward part is outstanding."""
        if all(session.finished for session in self._waiting):
            self._step.clear()
        if plan in self._footprints:
            self._see(plan)

    def account(self, plan: Planned, taken: Footprint) -> None:
        """A graph that is about to run takes this much in a step when nothing moves."""
        self._footprints[plan] = taken
        self._see(plan)

    def _see(self, plan: Planned) -> None:
        if plan not in self._step:
            self._step.append(plan)
        step = [self._footprints[one] for one in self._step]
        self._transient = max(self._transient, step_peak(step))
        for one, gradients in zip(self._step, left_after(step), strict=True):
            self._gradients[one] = max(self._gradients.get(one, 0), gradients)

    def surroundings(self, plan: Planned, own: Iterable[Lasting]) -> Surroundings:
        """What others take, but for tensors of the plan's ``own``, and the budget for all."""
        lasting = 0 if self._lasting is None else self._lasting.fast_bytes(own, self._yielding)
        return Surroundings(lasting, self._gradients.get(plan, 0), self._yielding, self.budget)

    def yield_room(self, own: Iterable[Lasting]) -> bool:
        """From now on parameters of a graph rest while others run; whether that leaves the graph with its ``own`` more room."""
        known, kept = self._lasting, list(own)
        if self._yielding or known is None or known.fast_bytes(kept, True) == known.fast_bytes(kept):
            return False
        self._yielding = True
        known.rest_movable(kept)
        return True

    def judge(self) -> None:
        """The graphs of a step are known, and so is its share. Raises `BudgetError` if some graph takes more."""
        budget, share = self.budget, self.settings.fast_memory
        if budget is None or not isinstance(share, float):
            return
        for plan in self._step:
            if plan.refused is not None and plan.refused.smallest > budget:
                raise BudgetError(
                    f"fast_memory {share:.4g} of what a step takes ({format_bytes(self.unmoved_peak)}) is {format_bytes(budget)}, "
                    f"which is too small: {plan.refused.why}"
                )

    def add(self, plan: Planned) -> None:
        """A graph has a plan."""
        if plan not in self.plans:
            self.plans.append(plan)

    def fall_back(self, graph: str, reason: str, given: Iterable[Any]) -> None:
        """A graph runs unplanned; the gradients of what it was ``given`` are not complete without it."""
        self.fallbacks.append(Fallback(graph, reason))
        self.updates.leave(id(one) for one in given if isinstance(one, torch.Tensor) and one.requires_grad)

    def make_room(self, program: Program, session: Session | None = None) -> None:
        """Bring what other runs have left in arenas to the slow memory, as far as the budget or the arena itself asks for it."""
        others = [plan.program for plan in self.plans if plan.program is not None and plan.program is not program]
        budget = self.budget
        tight = budget is not None and program.placed.peak + sum(other.arena.bytes for other in others) > budget
        for waiting in list(self._waiting):
            if waiting is not session and waiting.parked is None and not waiting.finished and (tight or waiting.program is program):
                waiting.park()
        if tight:
            for other in others:
                other.arena.drop()

    def clear_arenas(self) -> None:
        """Under a budget, have nothing in arenas while a graph is captured: its kernels are tried with operands of their own."""
        if self.settings.fast_memory is not None:
            for waiting in list(self._waiting):
                if waiting.parked is None and not waiting.finished:
                    waiting.park()
        self.release_idle()

    def release_idle(self) -> None:
        """Give back the memory of arenas that hold nothing."""
        with self.lock:
            busy = {id(session.program) for session in self._waiting if session.parked is None and not session.finished}
            for plan in self.plans:
                if plan.program is not None and id(plan.program) not in busy:
                    plan.program.arena.drop()

    def share(self, plan: Planned) -> bool:
        """Find parameters that another run under way updates as well as this plan; whether there are new ones."""
        others = [session.parameters for session in self._waiting if not session.finished and session.program is not plan.program]
        shared = plan.changes.intersection(frozenset().union(*others)) - self.updates.left
        self.updates.leave(shared)
        return bool(shared)

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

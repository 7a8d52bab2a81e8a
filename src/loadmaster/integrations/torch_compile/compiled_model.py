"""The model of one call of ``torch.compile``: options, memories and the budget, which all its
graphs share."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.core.units import format_bytes, format_seconds, parse_bytes
from loadmaster.integrations.torch_compile.devices.slow_file import DeviceMemory
from loadmaster.integrations.torch_compile.executor import Program, Session
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.persistent import (
    SMALLEST,
    PersistentTensor,
    PersistentTensors,
    Region,
    can_offload,
)
from loadmaster.integrations.torch_compile.placing import Surroundings
from loadmaster.integrations.torch_compile.step_peak import (
    COMPILER,
    Footprint,
    Planned,
    SeenSteps,
    beyond_allowed,
)
from loadmaster.integrations.torch_compile.updates import Updates
from loadmaster.placement.decisions import Mode


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
        budget = options.get("fast_memory")
        if isinstance(budget, str) and budget.strip().endswith("%"):
            try:
                budget = float(budget.strip()[:-1]) / 100
            except ValueError:
                raise BudgetError(
                    f"fast_memory {budget!r}: write bytes, such as '2 GiB', or a percentage, such"
                    " as '50%'"
                ) from None
        elif budget is not None and not isinstance(budget, float):
            budget = parse_bytes(budget)
        if isinstance(budget, float) and not 0 < budget <= 1:
            raise BudgetError(
                f"fast_memory {budget}: a share lies between 0 and 1; write bytes, such as '2 GiB',"
                " or a percentage, such as '50%'"
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


_UPDATES = "_loadmaster_updates"


_LOG = logging.getLogger("loadmaster")


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


class Model:
    """What the graphs of one compiled function or module share: settings, fast and slow memory, one
    budget.

    A model owns its lists of plans and fallbacks, the persistent tensors, and the updates of
    parameters; graphs change these only by its methods, under ``lock``. ``steps`` is what is known
    of whole steps. ``told`` says that the line on the first step was logged, or is not wanted.
    """

    def __init__(self, settings: Settings, options: Mapping[str, Any]) -> None:
        self.settings, self.options = settings, options
        self.lock = threading.RLock()
        self.profiles = CallProfiles()
        self.updates = Updates(settings.optimizer)
        self.plans: list[Planned] = []
        self.fallbacks: list[Fallback] = []
        self.steps = SeenSteps()
        self.told = False
        self._offload_idle = False
        self._memory: DeviceMemory | None = None
        self._persistent: PersistentTensors | None = None
        self._gradients: PersistentTensors | None = None
        self._waiting: weakref.WeakSet[Session] = weakref.WeakSet()
        self._objects: dict[int, int] = {}

    def memory(self, device: torch.device) -> DeviceMemory:
        """Fast and slow memory on a device; made at the first use."""
        with self.lock:
            if self._memory is None:
                self._memory = self._made(device)
            return self._memory

    def persistent(self, device: torch.device) -> PersistentTensors:
        """Parameters, buffers and optimizer state of all graphs; made at the first use."""
        if self._persistent is None:
            memory = self.memory(device)
            self._persistent = PersistentTensors(memory.file if can_offload() else None)
        return self._persistent

    def gradients(self, device: torch.device) -> PersistentTensors:
        """Gradients that callers keep; made at the first use."""
        if self._gradients is None:
            self._gradients = PersistentTensors(self.persistent(device).file)
        return self._gradients

    def _made(self, device: torch.device) -> DeviceMemory:
        if device.type == "cuda":
            from loadmaster.integrations.torch_compile.devices.cuda_memory import CudaMemory

            return CudaMemory(device, self.settings.slow_limit)
        from loadmaster.integrations.torch_compile.devices.cpu_memory import CpuMemory

        return CpuMemory(self.settings.slow_memory, self.settings.slow_limit)

    @property
    def unmoved_peak(self) -> int:
        """Most bytes that a step takes when nothing moves, over all graphs of the steps seen so
        far."""
        return self.steps.peak + (0 if self._persistent is None else self._persistent.bytes())

    @property
    def objects(self) -> int:
        """Bytes of the budget that objects of the graphs take, which no plan can use."""
        return beyond_allowed(self._objects.values())

    @property
    def budget(self) -> int | None:
        """Bytes of fast memory that tensors may take in a step; None if there is no limit. A share
        is of the steps seen so far."""
        given = self.settings.fast_memory
        if given is None:
            return None
        whole = (
            int(given * (self.unmoved_peak + self.objects)) if isinstance(given, float) else given
        )
        return whole - self.objects

    @property
    def of_last_step(self) -> list[Planned]:
        """Graphs of the step under way, or of the last one; others were compiled for steps before,
        as for the first, and run no more."""
        return list(self.steps.now)

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

    def begin(self, plan: Planned) -> None:
        """Note that the forward part of a graph is about to run. A new step begins if no backward
        part is outstanding, and there was one or the graph has run in this step.

        The first step is summed up in the log when the second begins: its graphs are known then.
        """
        if plan in self.plans and not self.told:
            self.told = True
            _LOG.warning("%s", self.summary())
        if all(session.finished for session in self._waiting) and (
            plan in self.steps.now or any(len(one.graphs) > 1 for one in self.steps.now)
        ):
            self.steps.now.clear()
        self.steps.join(plan)

    def account(self, plan: Planned, taken: Footprint, objects: tuple[int, int]) -> None:
        """Note what a graph that is about to run takes in a step when nothing moves, and whose
        ``objects`` take how many bytes.

        Plans for several shapes share the objects of one captured graph.
        """
        self._objects |= [objects]
        self.steps.join(plan, taken)

    def note_gradients(
        self, plan: Planned, part: int, tensors: Iterable[torch.Tensor], device: torch.device
    ) -> None:
        """Note the gradients of earlier backward passes that are there when a part of a graph
        begins."""
        known = self.gradients(device)
        self.steps.note_gradients(
            plan, part, sum(known.of(tensor, movable=True).bytes for tensor in tensors)
        )

    def rest_gradients(self, plan: Planned) -> None:
        """Offload gradients of earlier backward passes if a graph needs the room, and drop what the
        page cache holds of them."""
        known, budget = self._gradients, self.budget
        if known is None or known.file is None or budget is None:
            return
        if plan.placed_peak + known.fast_bytes([]) > budget:
            known.offload_movable([])
        else:
            known.forget_cached()

    def surroundings(self, plan: Planned, own: Iterable[PersistentTensor]) -> Surroundings:
        """Return what other graphs take, without the plan's ``own`` tensors, and the budget for
        all."""
        persistent = (
            0 if self._persistent is None else self._persistent.fast_bytes(own, self._offload_idle)
        )
        left = self.steps.left_after(plan, self._offload_idle)
        return Surroundings(
            persistent, left, self.steps.results_beside(plan), self._offload_idle, self.budget
        )

    def start_offloading_idle(self, plan: Planned, own: Iterable[PersistentTensor]) -> bool:
        """Offload what graphs keep while others run, from now on; say whether that leaves more room
        for a graph, beside its ``own``."""
        known, kept = self._persistent, list(own)
        if self._offload_idle or known is None:
            return False
        if known.fast_bytes(kept, True) == known.fast_bytes(kept) and self.steps.left_after(
            plan, True
        ) == self.steps.left_after(plan, False):
            return False
        self._offload_idle = True
        known.offload_movable(kept)
        return True

    def check_share(self) -> None:
        """Check the plans of a step against the share, once all its graphs are known. Raises
        `BudgetError` if a graph takes more."""
        budget, share = self.budget, self.settings.fast_memory
        if budget is None or not isinstance(share, float):
            return
        for plan in self.steps.now:
            if plan.refused is not None and plan.refused.smallest > budget:
                raise BudgetError(
                    f"fast_memory {share:.4g} of what a step takes"
                    f" ({format_bytes(self.unmoved_peak)}) is {format_bytes(budget)}, which is too"
                    f" small: {plan.refused.why}"
                )

    def add(self, plan: Planned) -> None:
        """Add a graph that has a plan to the model's plans, once."""
        if plan not in self.plans:
            self.plans.append(plan)

    def fall_back(self, graph: str, reason: str, given: Iterable[Any]) -> None:
        """Note that a graph runs unplanned; updates leave the parameters ``given`` to it to the
        optimizer, which sees all gradients."""
        self.fallbacks.append(Fallback(graph, reason))
        if not self.plans:
            self.reload_parameters()  # `make_room_to_compile` may have offloaded them
        self.updates.leave(
            id(one) for one in given if isinstance(one, torch.Tensor) and one.requires_grad
        )

    @property
    def _programs(self) -> list[Program]:
        return [plan.program for plan in self.plans if plan.program is not None]

    @property
    def _arena_bytes(self) -> int:
        return sum(program.arena.bytes for program in self._programs)

    @property
    def standing_arenas(self) -> int:
        """Bytes of arenas that keep their memory between steps, as those of a GPU do."""
        return 0 if self._memory is None or self._memory.shrinks else self._arena_bytes

    @property
    def _in_arenas(self) -> list[Session]:
        """Runs under way whose tensors wait in an arena."""
        waiting = list(self._waiting)
        return [one for one in waiting if one.offload_slot is None and not one.finished]

    def make_room(self, program: Program, session: Session | None = None) -> None:
        """Offload what other runs have left in arenas, if the budget needs the room or the
        program's own arena holds it."""
        others, budget = [one for one in self._programs if one is not program], self.budget
        taken = program.placed.peak + sum(other.arena.bytes for other in others)
        tight = budget is not None and taken > budget
        for waiting in self._in_arenas:
            if waiting is not session and (tight or waiting.program is program):
                waiting.offload()
        if tight:
            for other in others:
                other.arena.drop()

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
        given = self.settings.fast_memory
        own = {
            id(one): one
            for one in inputs
            if type(one) is torch.nn.Parameter
            and one.device.type == "cpu"
            and one.nbytes >= SMALLEST
        }
        whole = [one for one in own.values() if one.untyped_storage().nbytes() == one.nbytes]
        if (
            given is None
            or given == 1.0
            or not whole
            or self.persistent(torch.device("cpu")).file is None
        ):
            return
        with self.lock:
            known = self.persistent(torch.device("cpu"))
            entries = [known.of(one, movable=True) for one in whole]
            known.find_in_files(entries)
            held = known.fast_bytes([]) + self._arena_bytes
            unmoved = max(self.unmoved_peak, known.bytes())
            if held + COMPILER > (int(given * unmoved) if isinstance(given, float) else given):
                self.clear_arenas()
                known.offload_movable([])

    def make_room_for_trials(self, most: int, budget: int, device: torch.device) -> None:
        """Offload persistent tensors if they and the operands of a kernel that is profiled, at
        ``most`` so many bytes, exceed a budget."""
        known = self.persistent(device)
        if known.file is not None and known.fast_bytes([]) + min(most, budget) > budget:
            known.offload_movable([])

    def release_idle(self) -> None:
        """Give back the memory of arenas that hold nothing."""
        with self.lock:
            busy = {id(session.program) for session in self._in_arenas}
            for program in self._programs:
                if id(program) not in busy:
                    program.arena.drop()

    def clear_idle(self) -> None:
        """Give back the memory of idle arenas if the rest and a small buffer could need it."""
        budget = self.budget
        known = [one for one in (self._persistent, self._gradients) if one is not None]
        taken = sum(one.fast_bytes([]) for one in known) + self._arena_bytes
        if budget is not None and taken > budget:
            self.release_idle()

    def persistent_if_any(self) -> PersistentTensors | None:
        """Parameters, buffers and optimizer state of all graphs; None before the first step."""
        return self._persistent

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
        for known in (self._persistent, self._gradients):
            one = None if known is None else known.known(tensor)
            if one is not None and isinstance(one.place, Region) and one.rests(tensor):
                return one
        return None

    def keep_state(self, state: Iterable[torch.Tensor], fresh: bool = False) -> None:
        """Count optimizer state, ``fresh`` if nothing was written to it, and offload it unless all
        fits beside the plans."""
        assert self._persistent is not None
        known = self._persistent
        new = [
            (tensor, known.of(tensor, fresh, movable=known.file is not None))
            for tensor in state
            if known.known(tensor) is None
        ]
        if not new:
            return
        kept, budget = sum(one.bytes for _, one in new), self.budget
        taken = max((plan.placed_peak for plan in self.plans), default=0)
        if (
            budget is not None
            and known.file is not None
            and (self.offloaded_bytes() or taken + kept > budget)
        ):
            known.reserve([one for _, one in new])
            for tensor, one in new:
                known.offload(one, tensor)

    def leave_step(self, name: str, reason: str) -> None:
        """Note once that an optimizer's step runs as it is, and why."""
        fallback = Fallback(name, reason)
        if fallback not in self.fallbacks:
            self.fallbacks.append(fallback)

    def leave_shared_updates(self, plan: Planned) -> bool:
        """Leave parameters that another run under way updates too to the optimizer; say whether
        there were new ones."""
        others = [session.parameters for session in self._waiting if not session.finished]
        shared = plan.changes.intersection(frozenset().union(*others)) - self.updates.left
        self.updates.leave(shared)
        return bool(shared)

    def offloaded_bytes(self) -> int:
        """Bytes of parameters, buffers and optimizer state that are in the slow memory between
        steps."""
        return 0 if self._persistent is None else self._persistent.offloaded_bytes()

    def reload_parameters(self) -> None:
        """Put parameters, buffers and optimizer state where they are without a plan, before
        somebody else runs the module."""
        with self.lock:
            if self._persistent is not None:
                self._persistent.reload_all()

    def place_parameters(self) -> None:
        """Put parameters, buffers and optimizer state where the plans expect them, before the
        module runs by its plans again."""
        with self.lock:
            for plan in self.plans:
                plan.place_parameters()

    def wait(self, session: Session) -> None:
        """Note that the first part of a run is over; the second may come, or never."""
        self._waiting.add(session)

    def resume(self, session: Session) -> None:
        """Prepare the second part of a run. Raises `LoadmasterError` if the run is over already."""
        if session.finished:
            raise LoadmasterError(
                "backward was called twice for one forward (retain_graph): the plan has given its"
                " tensors back"
            )
        self.make_room(session.program, session)
        if session.offload_slot is not None:
            session.reload()
        self._waiting.discard(session)

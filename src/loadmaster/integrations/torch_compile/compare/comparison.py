"""Compares variants of running one step of one module (planned, unmoved, rivals) by time and peak,
for ``loadmaster run``."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import BudgetError, ModelError
from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.core.progress import Progress, no_progress
from loadmaster.core.provenance import Label, costs_of, merged
from loadmaster.integrations.torch_compile import backend
from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.compare import measurement, rivals
from loadmaster.integrations.torch_compile.compare.measurement import STATED
from loadmaster.integrations.torch_compile.compare.run_json import (
    BudgetJson,
    DifferenceJson,
    RivalJson,
)
from loadmaster.integrations.torch_compile.compiled_model import Model
from loadmaster.integrations.torch_compile.cpu_memory import SlowFile

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-4),
}


def optimizer_of(name: str | None, module: nn.Module) -> torch.optim.Optimizer | None:
    """PyTorch's own optimizer of that name, for all parameters of a module. Raises
    `BudgetError`."""
    if name is None:
        return None
    if name not in OPTIMIZERS:
        raise BudgetError(f"optimizer {name!r}: write {' or '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name](module.parameters())


class Snapshot:
    """Parameters, buffers and inputs as they were, to begin from again: a step may change all."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        self._buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
        given = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
        tensors = (*module.parameters(), *module.buffers(), *given)
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def restore(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Begin again; the optimizer has no state yet."""
        for there, before in self._buffers:
            there.update(before)
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
        if optimizer is not None:
            optimizer.state.clear()


LEVEL = 0.9
"""Confidence level of the interval for a median. Five steps are enough for it."""


@dataclass
class Variant:
    """One variant of running a step, and what was measured of it; ``model`` is the planned model,
    None for rivals.

    What is printed of it has the names of `run_json`. Rivals know the plan at their own peak, and
    how they compare with it.
    """

    name: str
    call: Callable[..., Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    measured_peak: int | None = None
    failed: str = ABSENT
    optimizer: torch.optim.Optimizer | None = None
    model: Model | None = None
    predicted: list[float] = field(default_factory=list)
    loadmaster_at_its_peak: Variant = ABSENT
    difference: DifferenceJson | None = ABSENT
    beaten: bool = ABSENT
    peak_kept: bool = ABSENT

    @property
    def works(self) -> bool:
        """Whether steps could be run so far."""
        return self.failed is ABSENT

    @property
    def step_seconds(self) -> float | None:
        """The median of the steps, None before the first."""
        return _median(self.seconds)

    @property
    def step_cpu_seconds(self) -> float | None:
        """The same of processor time, which other processes on the machine hardly change."""
        return _median(self.cpu_seconds)

    def predict(self) -> None:
        """Note what the next step should take, by the steps before it: on a busy machine, other
        load slows down both."""
        if self.model is not None:
            for plan in self.model.of_last_step:
                plan.refresh_prediction()
            self.predicted.append(self.model.summary().predicted_step_seconds)

    def figures(self) -> dict[str, Any]:
        """What is printed of a plan under a budget."""
        assert self.model is not None
        found = {"measured_over_predicted": None, **vars(self.model.summary())}
        if self.seconds:
            found["predicted_step_seconds"] = statistics.median(self.predicted)
            found["measured_over_predicted"] = difference(self.seconds, self.predicted)
        return json_of(self, BudgetJson, **found)

    def compare_at_its_peak(self) -> None:
        """Compare with the one plan that has this rival's own peak for a budget; beaten if that
        keeps it and is faster for certain."""
        plan = self.loadmaster_at_its_peak
        if plan is ABSENT:
            return
        self.difference, self.beaten = None, False
        if plan.works and plan.measured_peak and self.measured_peak and self.seconds:
            self.difference = difference(plan.seconds, self.seconds)
            self.peak_kept = plan.measured_peak <= self.measured_peak + STATED
            self.beaten = self.peak_kept and self.difference.verdict == "faster"


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def difference(mine: Sequence[float], theirs: Sequence[float]) -> DifferenceJson:
    """How long steps of a plan take relative to a rival's, run in turns: the median over pairs of
    neighbouring steps, and an interval for it.

    The interval reaches from the ``k``-th smallest ratio to the ``k``-th largest, with the largest
    ``k`` for which it holds the true median with a probability of at least ``LEVEL``, whatever the
    ratios' distribution; too few steps have none. The verdict is ``no difference`` unless the whole
    interval is on one side of 1.
    """
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    outside, middle = _outside(len(ratios)), statistics.median(ratios)
    if outside is None:
        return DifferenceJson(middle, None, None, "no difference")
    low, high = ratios[outside], ratios[-1 - outside]
    verdict: Any = "faster" if high < 1 else "slower" if low > 1 else "no difference"
    return DifferenceJson(middle, low, high, verdict)


def _outside(count: int) -> int | None:
    """How many of the smallest and of the largest of ``count`` values the interval for their median
    leaves out."""
    missed, found = 0.0, None
    for left_out in range((count + 1) // 2):
        missed += 2 * math.comb(count, left_out) / 2**count
        if missed > 1 - LEVEL:
            break
        found = left_out
    return found


_WARM_UP_STEPS = 2
"""Steps before the first that is measured."""
_TOLERANCE, _UPDATED = 1e-4, 10
"""Error that results may have on a GPU or where kernels run in blocks, and how many times that
where an optimizer has updated parameters."""
_PREDICTION_STEPS = 3
"""Steps in turns before the first whose time is predicted."""


@dataclass
class Workload:
    """A module with its inputs, for training steps or inferences. Steps begin with the same random
    state."""

    module: nn.Module
    inputs: Any
    training: bool
    device: torch.device
    seed: int = 0
    optimizer: str | None = None

    def resident(self, variant: Variant) -> int:
        """Bytes of parameters, buffers, optimizer state and inputs, without those that are
        offloaded, and of arenas that stay between steps."""
        state = [] if variant.optimizer is None else [*variant.optimizer.state.values()]
        given = tree_leaves((self.inputs, state))
        storages: dict[int, int] = {
            one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
            for one in (*self.module.parameters(), *self.module.buffers(), *given)
            if isinstance(one, torch.Tensor)
        }
        bytes, model = sum(storages.values()), variant.model
        return bytes if model is None else bytes - model.offloaded_bytes() + model.standing_arenas

    def step(self, variant: Variant) -> Any:
        """Run one step; it returns the outputs and leaves gradients in the parameters."""
        self.forget()
        torch.manual_seed(self.seed)
        given = self.inputs if isinstance(self.inputs, tuple | list | dict) else (self.inputs,)
        with torch.set_grad_enabled(self.training), variant.around():
            out = variant.call(**given) if isinstance(given, dict) else variant.call(*given)
            if self.training:
                loss = sum(
                    leaf.float().square().mean() if leaf.dim() else leaf for leaf in _floating(out)
                )
                torch.as_tensor(loss).backward()
                if variant.optimizer is not None:
                    variant.optimizer.step()
        return out

    def forget(self) -> None:
        """Drop gradients."""
        for parameter in self.module.parameters():
            parameter.grad = None

    def results(self, variant: Variant, start: Snapshot) -> list[torch.Tensor]:
        """Copies of the outputs and gradients of a step from ``start`` on; with an optimizer,
        outputs and parameters of two steps."""
        start.restore(variant.optimizer)
        updated = self.optimizer is not None
        out = [
            leaf.detach().clone()
            for _ in range(2 if updated else 1)
            for leaf in _floating(self.step(variant))
        ]
        left = (p if updated else p.grad for p in self.module.parameters())
        return out + [tensor.detach().clone() for tensor in left if tensor is not None]


def _floating(out: Any) -> list[torch.Tensor]:
    return [
        leaf
        for leaf in tree_leaves(out)
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]


def compiled(module: nn.Module, how: Any, options: Any = None) -> Callable[..., Any]:
    """The module compiled whole by a backend."""
    return torch.compile(module, backend=how, options=options)  # type: ignore[no-any-return]


def compare(
    work: Workload,
    options: dict[str, Any],
    steps: int,
    with_rivals: bool,
    budgets: Sequence[int | float] = (),
    progress: Progress = no_progress,
    tell: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Run the plan against the unmoved graphs, and against rivals: what ``loadmaster run --json``
    prints.

    With rivals, every one is set against one plan, whose budget is the peak that was measured of
    the rival: medians of steps in turns, with an interval. Plans under ``budgets`` (bytes, or
    shares of the unmoved peak) are measured beside them. Once the plan itself has been checked and
    its peak measured, ``tell`` is told how long the rest will take, and Ctrl-C ends it with what is
    known: figures of what has not been measured are None, and steps are those that all variants
    have run.
    """
    begun = time.process_time()
    ours, eager = _planned(work, options), Variant("eager", work.module)
    unmoved = Variant("unmoved", compiled(work.module, rivals.unmoved_backend()))
    first, rest, more = [ours, unmoved], [], []
    if with_rivals:
        first.append(eager)
        rest = [*(_training_rivals(work, options) if work.training else _inference_rivals(work))]
        more = [_planned(work, options | {"fast_memory": budget}) for budget in (None, *budgets)]
    turns, others = Turns(work, [*first, *rest, *more], progress), [*first[2:], *rest]
    for variant in (unmoved, eager, *rest):
        variant.optimizer = optimizer_of(work.optimizer, work.module)
    found = turns.check(first, eager)
    for variant in first:
        before = time.process_time()
        turns.measure_peak(variant)
    if with_rivals:
        now, count = time.process_time(), len(first)
        # Each rival, a plan at the peak of each, and plans beside them.
        ways = 2 * len(rest) + len(more) + 1
        left = (now - begun) / count * ways + (now - before) * (count + ways) * (steps + 1)
        tell(
            f"comparing takes about {max(1, round(left / 60))} min of processor time more; Ctrl-C"
            " prints what is known by then"
        )
    turns.each(rest + more, "1 of 4: compiling", turns.warm, lost=True)
    turns.each(rest + more, "2 of 4: measuring peaks", turns.measure_peak)
    turns.plan_at_peaks(others, more, options)
    found["gradients_equal"] &= turns.rest_is_right(ours)
    found["steps"] = timed = 0 if turns.stopped else turns.timed((ours, *more), steps)
    for rival in others:
        rival.compare_at_its_peak()
    found |= _summary(work, ours, unmoved)
    budget = found["budget"]
    found |= {
        "interrupted": timed < steps,
        "budget_kept": budget is None or (ours.measured_peak or 0) <= budget + STATED,
        "rivals": {one.name: json_of(one, RivalJson) for one in others},
    }
    if with_rivals:
        executor = more[0]  # a plan under which nothing moves
        found["executor_step_seconds"] = executor.step_seconds
        found["executor_step_cpu_seconds"] = executor.step_cpu_seconds
        found["budgets"] = [variant.figures() for variant in (ours, *more[1:])]
    return found


def _planned(work: Workload, options: dict[str, Any]) -> Variant:
    optimizer = optimizer_of(work.optimizer, work.module)
    call = compiled(work.module, backend.loadmaster, options | {"optimizer": optimizer})
    model = model_of(call)
    model.told = True
    return Variant("loadmaster", call, optimizer=optimizer, model=model)


def _training_rivals(work: Workload, options: dict[str, Any]) -> Iterator[Variant]:
    parameters = {
        p.untyped_storage().data_ptr() for p in [*work.module.parameters(), *work.module.buffers()]
    }
    folder = options.get("slow_memory")
    around: Any = partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
    if work.device.type == "cpu":
        around = rivals.SavedToFile(
            SlowFile(None if folder is None else Path(folder)),
            lambda t: t.untyped_storage().data_ptr() in parameters,
        ).hooks
    yield Variant("save_on_cpu", work.module, around)
    if rivals.blocks_of(work.module):
        yield Variant("checkpoint", work.module, lambda: rivals.checkpointed(work.module))
    share = options.get("fast_memory")
    yield Variant(
        "activation_memory_budget",
        compiled(work.module, rivals.unmoved_backend(share if isinstance(share, float) else 0.5)),
    )


def _inference_rivals(work: Workload) -> Iterator[Variant]:
    yield Variant("torch.export", rivals.exported(work.module))
    yield Variant(
        "inductor",
        compiled(work.module, "inductor", {"memory_planning": True, "memory_pool": "combined"}),
    )


def _check_planned(ours: Variant) -> None:
    """Raise `ModelError` where no graph of the module runs by a plan, so that there is nothing to
    measure."""
    assert ours.model is not None
    if not ours.works or ours.model.of_last_step:
        return
    left_out = "; ".join(map(str, ours.model.fallbacks))
    raise ModelError(
        "no part of the module runs by a plan: "
        + (
            left_out
            or "torch.compile captures no graph of it. It leaves out nn.RNN, nn.GRU and nn.LSTM,"
            " unless torch._dynamo.config.allow_rnn is set to True where the factory is defined;"
            " TORCH_LOGS=graph_breaks names what else it leaves out"
        )
    )


def _same(mine: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Whether results are equal bit for bit."""
    return len(mine) == len(right) and all(map(torch.equal, mine, right))


def _distance(mine: list[torch.Tensor], right: list[torch.Tensor], order: float) -> float:
    """The largest norm of a difference, relative to the norm of the tensor."""
    norm, pairs = partial(torch.linalg.vector_norm, ord=order), zip(mine, right, strict=True)
    both = ((a.double(), b.double()) for a, b in pairs if a.numel())
    return max((float(norm(a - b) / norm(b).clamp_min(1e-12)) for a, b in both), default=0.0)


@dataclass
class Turns:
    """Variants that run steps of one module in turns; Ctrl-C keeps what is finished."""

    work: Workload
    variants: list[Variant]
    progress: Progress
    stopped: bool = False

    def __post_init__(self) -> None:
        self._start = Snapshot(self.work.module, self.work.inputs)

    def each(
        self,
        variants: Sequence[Variant],
        stage: str,
        act: Callable[[Variant], None],
        *,
        lost: bool = False,
    ) -> None:
        """Do something with every variant that works, and tell which; after Ctrl-C with none.
        ``lost``: without it they are of no use."""
        for number, variant in enumerate(variants):
            try:
                if not self.stopped and variant.works:
                    self.progress(f"{stage} {variant.name}", number / len(variants))
                    act(variant)
                    continue
            except KeyboardInterrupt:
                self.stopped = True
            if lost and variant.works:
                variant.failed = "stopped before it was measured"

    def check(self, first: Sequence[Variant], eager: Variant) -> dict[str, Any]:
        """Compile the first variants: the plan, then the unmoved graphs. Say which kernels run in
        blocks, how far results are from the unmoved graphs', and whether that is as close as it
        should be."""
        measurement.return_freed_memory()
        ours, unmoved = first[:2]
        for number, variant in enumerate(first):
            self.progress(f"1 of 4: compiling {variant.name}", number / len(self.variants))
            self.warm(variant)
            if variant is ours:
                _check_planned(ours)
        self._right, mine, plain = map(self.results, (unmoved, ours, eager))
        equal = _same(mine, self._right)
        error = 0.0 if equal else _distance(mine, self._right, 2)
        assert ours.model is not None
        kinds = Counter(kind for plan in ours.model.plans for kind in plan.kernels_in_blocks)
        allowed = _TOLERANCE * (_UPDATED if self.work.optimizer else 1)
        # Kernels of a GPU add in any order, and choose algorithms by layouts.
        close = error <= (allowed if kinds or self.work.device.type != "cpu" else 0.0)
        return {
            "gradients_equal": equal,
            "kernels_in_blocks": dict(sorted(kinds.items())),
            "error": error,
            "results_close": close,
            "max_difference_eager": _distance(mine, plain, math.inf),
        }

    def plan_at_peaks(
        self, others: Sequence[Variant], planned: Sequence[Variant], options: dict[str, Any]
    ) -> None:
        """Make a plan at the peak of each rival; where nothing needs to move, it is the first of
        those that were ``planned``."""

        def plan(rival: Variant) -> None:
            peak = rival.measured_peak
            if not peak:
                return
            variant = planned[0]
            if peak < (variant.measured_peak or 0):
                budget = {"fast_memory": peak, "refine_after": 2}
                variant = _planned(self.work, options | budget)
                self.variants.append(variant)
                self.warm(variant)
                self.measure_peak(variant)
            rival.loadmaster_at_its_peak = variant

        self.each(others, "3 of 4: planning at the peak of", plan)

    def rest_is_right(self, ours: Variant) -> bool:
        """Whether results of all plans but ours are right."""
        same: list[bool] = []
        self.each(
            [one for one in self.variants if one.model is not None and one is not ours],
            "3 of 4: checking results of",
            lambda each: same.append(_same(self.results(each), self._right)),
        )
        return all(same)

    def restore_parameters(self, variant: Variant) -> None:
        """Put parameters where the variant expects them, before its steps."""
        for other in self.variants:
            if other.model is not None and other is not variant:
                other.model.reload_parameters()
        if variant.model is not None:
            variant.model.place_parameters()

    def warm(self, variant: Variant) -> None:
        """Run the first steps, which compile and plan, up to the refinement of a plan."""
        self.restore_parameters(variant)
        refined = 0 if variant.model is None else variant.model.settings.refine_after
        try:
            for _ in range(_WARM_UP_STEPS + refined):
                self.work.step(variant)
        except (RuntimeError, BudgetError, torch._dynamo.exc.TorchDynamoException) as error:
            if variant.model is not None and not isinstance(error, BudgetError):
                raise
            variant.failed = str(error).splitlines()[0]

    def results(self, variant: Variant) -> list[torch.Tensor]:
        """Results of a variant; see `Workload.results`."""
        self.restore_parameters(variant)
        return self.work.results(variant, self._start)

    def measure_peak(self, variant: Variant) -> None:
        """Measure the peak: what is resident, and the most that a step takes above it."""
        if not variant.works:
            return
        self.restore_parameters(variant)
        self._release_all()
        with measurement.peak_of(self.work.device) as peak:
            self.work.step(variant)
        self._release_all()
        variant.measured_peak = self.work.resident(variant) + peak.bytes

    def _release_all(self) -> None:
        self.work.forget()
        for variant in self.variants:
            if variant.model is not None:
                variant.model.release_idle()

    def timed(self, planned: Sequence[Variant], steps: int) -> int:
        """Time steps as processes usually run: giving memory back slows down who allocates much.

        Steps run in turns, forwards and backwards, so that other load on the machine and the order
        of variants favour none. Returns how many steps of every variant were timed: all, or those
        that all variants had run when Ctrl-C came.
        """
        measurement.keep_freed_memory()
        working = [variant for variant in self.variants if variant.works]
        try:
            for number, variant in enumerate(working):
                self.progress(
                    f"4 of 4: timing, beginning with {variant.name}", number / len(working)
                )
                self.restore_parameters(variant)
                self.work.step(variant)
            for variant in planned:
                for plan in variant.model.plans if variant.model is not None else ():
                    plan.history.forget()  # those of steps that give memory back are longer
            for variant in _PREDICTION_STEPS * [one for one in planned if one.works]:
                self.restore_parameters(variant)
                self.work.step(variant)
            for number in range(steps):
                for turn, variant in enumerate(working[:: -1 if number % 2 else 1]):
                    self.progress(
                        f"4 of 4: timing step {number + 1} of {steps}",
                        (number + turn / len(working)) / steps,
                    )
                    self.time_step(variant)
        except KeyboardInterrupt:
            steps = min(len(variant.cpu_seconds) for variant in working)
            for variant in working:
                del variant.seconds[steps:], variant.cpu_seconds[steps:], variant.predicted[steps:]
        return steps

    def time_step(self, variant: Variant) -> None:
        """Time a step, and predict it before."""
        self.restore_parameters(variant)
        self.work.forget()
        variant.predict()
        start, busy = time.perf_counter(), time.process_time()
        self.work.step(variant)
        if self.work.device.type == "cuda":
            torch.cuda.synchronize(self.work.device)
        variant.seconds.append(time.perf_counter() - start)
        variant.cpu_seconds.append(time.process_time() - busy)


def _summary(work: Workload, ours: Variant, unmoved: Variant) -> dict[str, Any]:
    assert ours.model is not None
    plans = ours.model.of_last_step
    costs = (costs for plan in plans for costs in plan.problem.sequence.costs)
    return ours.figures() | {
        "unmoved_peak": max((plan.unmoved_peak for plan in plans), default=0),
        "unmoved_measured_peak": unmoved.measured_peak,
        "resident": work.resident(unmoved),
        "unmoved_step_seconds": unmoved.step_seconds,
        "unmoved_step_cpu_seconds": unmoved.step_cpu_seconds,
        "costs": costs_of(merged(costs)),
        "label": Label.MEASURED,
        "waiting_seconds": sum(plan.times.waiting for plan in plans),
        "graphs": len(ours.model.plans),
        "fallbacks": ours.model.fallbacks,
        "results_copied": sum(plan.times.copied_results for plan in plans),
        "device": str(work.device),
        "kernels": [row for plan in plans for row in plan.rows()],
    }

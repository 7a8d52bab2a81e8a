"""Compares variants of running one step of one module (planned, unmoved, rivals) by time and peak, for ``loadmaster run``."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import BudgetError
from loadmaster.core.progress import Progress, no_progress
from loadmaster.core.provenance import Label, costs_json, merged
from loadmaster.integrations.torch_compile import backend
from loadmaster.integrations.torch_compile.compare import measurement, rivals
from loadmaster.integrations.torch_compile.compare.measurement import STATED
from loadmaster.integrations.torch_compile.compare.training import Snapshot, bytes_of, optimizer_of, state_bytes
from loadmaster.integrations.torch_compile.compiled_model import Model
from loadmaster.integrations.torch_compile.devices.slow_file import SlowFile
from loadmaster.integrations.torch_compile.owners import model_of

_WARM_UP_STEPS = 2
"""Steps before the first that is measured."""
LEVEL = 0.9
"""Confidence level of the interval for a median. Five steps are enough for it."""
NO_DIFFERENCE = "no difference"
_PREDICTION_STEPS = 3
"""Steps measured before the times of the following ones are predicted."""


@dataclass
class Variant:
    """One variant of running a step, and what was measured of it; ``model`` is the planned model, None for rivals."""

    name: str
    call: Callable[..., Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak: int | None = None
    failed: str = ""
    optimizer: torch.optim.Optimizer | None = None
    model: Model | None = None

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of a step; None before the first."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def step_cpu_seconds(self) -> float | None:
        """Median processor seconds of a step, which other processes on the machine hardly change; None before the first."""
        return statistics.median(self.cpu_seconds) if self.cpu_seconds else None

    def figures(self) -> dict[str, Any]:
        """The figures that are printed, by name."""
        figures = {"step_seconds": self.step_seconds, "step_cpu_seconds": self.step_cpu_seconds, "measured_peak": self.peak}
        return figures | ({"failed": self.failed} if self.failed else {})


@dataclass(frozen=True)
class Difference:
    """How long steps of a plan take relative to a rival's: the median over pairs of neighbouring steps, and an interval for it.

    The interval reaches from the ``k``-th smallest ratio to the ``k``-th largest, with the largest ``k`` for which it holds the true median
    with a probability of at least ``LEVEL``, whatever the ratios' distribution; too few steps have none. ``verdict`` is ``faster``,
    ``slower``, or ``no difference``, unless the whole interval is on one side of 1.
    """

    ratio: float
    low: float | None
    high: float | None
    verdict: str

    @staticmethod
    def of(mine: Sequence[float], theirs: Sequence[float]) -> Difference:
        """Compare the seconds of steps that were run in turns."""
        ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
        outside = _outside(len(ratios))
        if outside is None:
            return Difference(statistics.median(ratios), None, None, NO_DIFFERENCE)
        low, high = ratios[outside], ratios[-1 - outside]
        verdict = "faster" if high < 1 else "slower" if low > 1 else NO_DIFFERENCE
        return Difference(statistics.median(ratios), low, high, verdict)


def _outside(count: int) -> int | None:
    """How many of the smallest and of the largest of ``count`` values the interval for their median leaves out."""
    missed, found = 0.0, None
    for left_out in range((count + 1) // 2):
        missed += 2 * math.comb(count, left_out) / 2**count
        if missed > 1 - LEVEL:
            break
        found = left_out
    return found


@dataclass
class Workload:
    """A module with its inputs, for training steps or inferences. Steps begin with the same random state."""

    module: nn.Module
    inputs: Any
    training: bool
    device: torch.device
    seed: int = 0
    optimizer: str | None = None

    def resident(self, variant: Variant) -> int:
        """Bytes of parameters, buffers, optimizer state and inputs, without those that are offloaded."""
        tensors = [*self.module.parameters(), *self.module.buffers(), *(t for t in tree_leaves(self.inputs) if isinstance(t, torch.Tensor))]
        bytes = sum((bytes_of(tensors) | state_bytes(variant.optimizer)).values())
        return bytes - (variant.model.offloaded_bytes() if variant.model is not None else 0)

    def step(self, variant: Variant) -> Any:
        """Run one step; it returns the outputs and leaves gradients in the parameters."""
        self.forget()
        torch.manual_seed(self.seed)
        given, named = ((), self.inputs) if isinstance(self.inputs, dict) else (_tuple(self.inputs), {})
        if not self.training:
            with torch.no_grad(), variant.around():
                return variant.call(*given, **named)
        with variant.around():
            out = variant.call(*given, **named)
            loss = sum(leaf.float().square().mean() if leaf.dim() else leaf for leaf in _floating(out))
            torch.as_tensor(loss).backward()
            if variant.optimizer is not None:
                variant.optimizer.step()
        return out

    def forget(self) -> None:
        """Drop gradients."""
        for parameter in self.module.parameters():
            parameter.grad = None

    def results(self, variant: Variant, start: Snapshot) -> list[torch.Tensor]:
        """Copies of the outputs and gradients of a step from ``start`` on; with an optimizer, outputs and parameters of two steps."""
        if self.optimizer is None:
            out = [leaf.detach().clone() for leaf in _floating(self.step(variant))]
            return out + [p.grad.clone() for p in self.module.parameters() if p.grad is not None]
        start.restore(variant.optimizer)
        out = [leaf.detach().clone() for _ in range(2) for leaf in _floating(self.step(variant))]
        return out + [p.detach().clone() for p in self.module.parameters()]


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _floating(out: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


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
) -> dict[str, Any]:
    """Run the plan against the unmoved graphs, and against rivals: what ``loadmaster run --json`` prints.

    With rivals, every one is set against one plan, whose budget is the peak that was measured of the rival: medians of steps in turns, with
    an interval. Plans under ``budgets`` (bytes, or shares of the unmoved peak) are measured beside them. Ctrl-C while steps are timed ends
    the timing with the steps that all variants have run.
    """
    start = Snapshot(work.module)
    ours = _planned(work, options)
    unmoved = Variant("unmoved", compiled(work.module, rivals.unmoved_backend()))
    eager = Variant("eager", work.module)
    others = [eager, *(_training_rivals(work, options) if work.training else _inference_rivals(work))] if with_rivals else []
    more = [_planned(work, options | {"fast_memory": budget}) for budget in (None, *budgets)] if with_rivals else []
    variants = [ours, unmoved, *others, *more]
    for variant in (unmoved, eager, *others[1:]):
        variant.optimizer = optimizer_of(work.optimizer, work.module)
    measurement.return_freed_memory()
    for variant in _told(variants, "1 of 4: compiling", progress):
        _warm(work, variant, variants)
    right, mine, plain = (_results(work, variant, variants, start) for variant in (unmoved, ours, eager))
    equal, difference = _same(mine, right), _difference(mine, plain)
    del mine, plain
    for variant in _told(variants, "2 of 4: measuring peaks", progress):
        _measure_peak(work, variant, variants)
    at_peaks = {}
    for rival in _told(others, "3 of 4: planning at the peak of", progress):
        if rival.peak and rival.peak >= (more[0].peak or 0):
            at_peaks[rival.name] = more[0]  # nothing needs to move
        elif rival.peak:
            variant = at_peaks[rival.name] = _planned(work, options | {"fast_memory": rival.peak, "refine_after": 2})
            variants.append(variant)
            _warm(work, variant, variants)
            _measure_peak(work, variant, variants)
    working = [variant for variant in variants if not variant.failed]
    for variant in working:
        equal &= variant.model is None or variant is ours or _same(_results(work, variant, variants, start), right)
    del right
    measurement.keep_freed_memory()  # times are taken as processes usually run: giving memory back slows down who allocates much
    for variant in working:
        _restore_parameters(variant, variants)
        for _ in range(_PREDICTION_STEPS if variant in (ours, *more) else 1):
            work.step(variant)
    for variant in (ours, *more):
        assert variant.model is not None
        for plan in variant.model.plans:
            plan.refresh_prediction()  # from steps under the conditions of those that follow
    timed = _interleave(work, working, steps, progress)
    summary = _summary(work, ours, unmoved, equal, difference) | {"steps": timed, "interrupted": timed < steps}
    summary["rivals"] = {variant.name: variant.figures() | _compared(variant, at_peaks.get(variant.name)) for variant in others}
    if with_rivals:
        summary["executor_step_seconds"] = more[0].step_seconds  # of a plan under which nothing moves
        summary["executor_step_cpu_seconds"] = more[0].step_cpu_seconds
        summary["budgets"] = [_under_budget(variant) for variant in (ours, *more[1:])]
    return summary


def _planned(work: Workload, options: dict[str, Any]) -> Variant:
    optimizer = optimizer_of(work.optimizer, work.module)
    options |= {} if optimizer is None else {"optimizer": optimizer}
    call = compiled(work.module, backend.loadmaster, options)
    return Variant("loadmaster", call, optimizer=optimizer, model=model_of(call))


def _under_budget(variant: Variant) -> dict[str, Any]:
    assert variant.model is not None
    plans = variant.model.plans
    return variant.figures() | {
        "budget": max((plan.budget or 0 for plan in plans), default=None),
        "planned_peak": max((plan.placed_peak for plan in plans), default=None),
        "predicted_step_seconds": sum(plan.predicted_seconds for plan in plans if plan.program is not None),
        "moved_bytes": sum(plan.moved_bytes for plan in plans),
    }


def _compared(rival: Variant, plan: Variant | None) -> dict[str, Any]:
    """A rival against the one plan that has the rival's own peak for a budget; beaten if that keeps it and is faster for certain."""
    if rival.failed or plan is None:
        return {}
    figures: dict[str, Any] = {"loadmaster_at_its_peak": plan.figures(), "difference": None, "beaten": False}
    if plan.failed or plan.peak is None or rival.peak is None:
        return figures
    difference = Difference.of(plan.seconds, rival.seconds)
    within = plan.peak <= rival.peak + STATED
    return figures | {"difference": asdict(difference), "peak_kept": within, "beaten": within and difference.verdict == "faster"}


def _training_rivals(work: Workload, options: dict[str, Any]) -> Iterator[Variant]:
    parameters = {p.untyped_storage().data_ptr() for p in [*work.module.parameters(), *work.module.buffers()]}
    folder = options.get("slow_memory")
    if work.device.type == "cpu":
        file = rivals.SavedToFile(
            SlowFile(None if folder is None else Path(folder)), lambda t: t.untyped_storage().data_ptr() in parameters
        )
        yield Variant("save_on_cpu", work.module, file.hooks)
    else:
        yield Variant("save_on_cpu", work.module, lambda: torch.autograd.graph.save_on_cpu(pin_memory=True))
    if rivals.blocks_of(work.module):
        yield Variant("checkpoint", work.module, lambda: rivals.checkpointed(work.module))
    share = options.get("fast_memory")
    yield Variant("activation_memory_budget", compiled(work.module, rivals.budgeted_backend(share if isinstance(share, float) else 0.5)))
    on_gpu = work.device.type == "cuda"
    yield Variant("enable_activation_offloading", compiled(work.module, rivals.offloading_backend()), failed="" if on_gpu else "needs CUDA")


def _inference_rivals(work: Workload) -> Iterator[Variant]:
    yield Variant("torch.export", rivals.exported(work.module))
    yield Variant("inductor", compiled(work.module, "inductor", {"memory_planning": True, "memory_pool": "combined"}))


def _warm(work: Workload, variant: Variant, variants: Sequence[Variant]) -> None:
    """Run the first steps, which compile and plan, up to the refinement of a plan."""
    if variant.failed:
        return
    _restore_parameters(variant, variants)
    try:
        for _ in range(_WARM_UP_STEPS if variant.model is None else _WARM_UP_STEPS + variant.model.settings.refine_after):
            work.step(variant)
    except (RuntimeError, BudgetError, torch._dynamo.exc.TorchDynamoException) as error:
        if variant.model is not None and not isinstance(error, BudgetError):
            raise
        variant.failed = str(error).splitlines()[0]


def _restore_parameters(variant: Variant, variants: Sequence[Variant]) -> None:
    """Put parameters where the variant expects them, before its steps."""
    for other in variants:
        if other.model is not None and other is not variant:
            other.model.reload_parameters()
    if variant.model is not None:
        variant.model.place_parameters()


def _results(work: Workload, variant: Variant, variants: Sequence[Variant], start: Snapshot) -> list[torch.Tensor]:
    _restore_parameters(variant, variants)
    return work.results(variant, start)


def _same(mine: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    """Whether results are equal bit for bit."""
    return len(mine) == len(right) and all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))


def _difference(mine: list[torch.Tensor], plain: list[torch.Tensor]) -> float:
    """The largest difference, relative to the largest value of its tensor."""
    pairs = ((a, b) for a, b in zip(mine, plain, strict=True) if a.numel())
    return max((float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) for a, b in pairs), default=0.0)


def _measure_peak(work: Workload, variant: Variant, variants: Sequence[Variant]) -> None:
    """Measure the peak: parameters, buffers, inputs, and the most that a step takes above them."""
    if variant.failed:
        return
    _restore_parameters(variant, variants)
    _release_all(work, variants)
    with measurement.peak_of(work.device) as peak:
        work.step(variant)
    _release_all(work, variants)
    variant.peak = work.resident(variant) + peak.bytes


def _release_all(work: Workload, variants: Sequence[Variant]) -> None:
    work.forget()
    for variant in variants:
        if variant.model is not None:
            variant.model.release_idle()


def _told(variants: Sequence[Variant], stage: str, progress: Progress) -> Iterator[Variant]:
    """Iterate over variants and tell which one it is."""
    for number, variant in enumerate(variants):
        progress(f"{stage} {variant.name}", number / len(variants))
        yield variant


def _interleave(work: Workload, variants: list[Variant], steps: int, progress: Progress) -> int:
    """Run steps in turns, forwards and backwards, so that other load on the machine and the order of variants favour none.

    Returns how many steps of every variant were timed: all, or at least one if Ctrl-C ended it.
    """
    try:
        for number in range(steps):
            for turn, variant in enumerate(reversed(variants) if number % 2 else variants):
                progress(f"4 of 4: timing step {number + 1} of {steps}", (number + turn / len(variants)) / steps)
                _time_step(work, variant, variants)
    except KeyboardInterrupt:
        known = min(len(variant.cpu_seconds) for variant in variants)
        if not known:
            raise
        for variant in variants:
            del variant.seconds[known:], variant.cpu_seconds[known:]
        return known
    return steps


def _time_step(work: Workload, variant: Variant, variants: Sequence[Variant]) -> None:
    _restore_parameters(variant, variants)
    work.forget()
    start, busy = time.perf_counter(), time.process_time()
    work.step(variant)
    if work.device.type == "cuda":
        torch.cuda.synchronize(work.device)
    variant.seconds.append(time.perf_counter() - start)
    variant.cpu_seconds.append(time.process_time() - busy)


def _summary(work: Workload, ours: Variant, unmoved: Variant, equal: bool, difference: float) -> dict[str, Any]:
    assert ours.model is not None
    plans = ours.model.plans
    budgets = [plan.budget for plan in plans if plan.budget is not None]
    return {
        "budget": max(budgets, default=None),
        "unmoved_peak": max((plan.unmoved_peak for plan in plans), default=0),
        "planned_peak": max((plan.placed_peak for plan in plans), default=0),
        "measured_peak": ours.peak,
        "unmoved_measured_peak": unmoved.peak,
        "resident": work.resident(unmoved),
        "step_seconds": ours.step_seconds,
        "unmoved_step_seconds": unmoved.step_seconds,
        "step_cpu_seconds": ours.step_cpu_seconds,
        "unmoved_step_cpu_seconds": unmoved.step_cpu_seconds,
        "predicted_step_seconds": sum(plan.predicted_seconds for plan in plans),
        "costs": costs_json(merged(costs for plan in plans for costs in plan.costs)),
        "label": str(Label.MEASURED),
        "waiting_seconds": sum(plan.times.waiting for plan in plans),
        "moved_bytes": sum(plan.moved_bytes for plan in plans),
        "graphs": len(plans),
        "fallbacks": [{"graph": f.graph, "reason": f.reason} for f in ours.model.fallbacks],
        "results_copied": sum(plan.times.copied_results for plan in plans),
        "gradients_equal": equal,
        "max_difference_eager": difference,
        "device": str(work.device),
        "kernels": [row for plan in plans for row in plan.rows()],
    }

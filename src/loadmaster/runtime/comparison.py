"""One module, one step, several ways to run it: time per step, peak, and what differs. What ``loadmaster run`` prints."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadmaster.runtime import backend, measurement, rivals
from loadmaster.runtime.slow_file import SlowFile

_WARM = 2


@dataclass
class Way:
    """One way to run a step, and what was measured of it."""

    name: str
    call: Callable[..., Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    seconds: list[float] = field(default_factory=list)
    peak: int | None = None
    failed: str = ""

    @property
    def step_seconds(self) -> float | None:
        """Median over the steps."""
        return statistics.median(self.seconds) if self.seconds else None


@dataclass
class Workload:
    """A module with its inputs, for training steps or inferences. Steps begin with the same random state."""

    module: nn.Module
    inputs: Any
    training: bool
    device: torch.device
    seed: int = 0

    def resident(self) -> int:
        """Bytes of parameters, buffers and inputs."""
        tensors = [*self.module.parameters(), *self.module.buffers(), *(t for t in tree_leaves(self.inputs) if isinstance(t, torch.Tensor))]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

    def step(self, way: Way) -> Any:
        """One step; its outputs, and gradients in the parameters."""
        self.forget()
        torch.manual_seed(self.seed)
        given, named = ((), self.inputs) if isinstance(self.inputs, dict) else (_tuple(self.inputs), {})
        if not self.training:
            with torch.no_grad(), way.around():
                return way.call(*given, **named)
        with way.around():
            out = way.call(*given, **named)
            loss = sum(leaf.float().square().mean() if leaf.dim() else leaf for leaf in _floating(out))
            torch.as_tensor(loss).backward()
        return out

    def forget(self) -> None:
        """Drop gradients."""
        for parameter in self.module.parameters():
            parameter.grad = None

    def results(self, way: Way) -> list[torch.Tensor]:
        """Outputs and gradients of a step, copied."""
        out = [leaf.detach().clone() for leaf in _floating(self.step(way))]
        return out + [p.grad.clone() for p in self.module.parameters() if p.grad is not None]


def _tuple(inputs: Any) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)


def _floating(out: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def compiled(module: nn.Module, how: Any, options: Any = None) -> Callable[..., Any]:
    """The module compiled whole by a backend."""
    return torch.compile(module, backend=how, options=options)  # type: ignore[no-any-return]


def compare(work: Workload, options: dict[str, Any], steps: int, with_rivals: bool) -> dict[str, Any]:
    """Run the plan against the unmoved graphs, and against rivals: what ``loadmaster run --json`` prints."""
    ours = Way("loadmaster", compiled(work.module, backend.loadmaster, options))
    unmoved = Way("unmoved", compiled(work.module, rivals.unmoved_backend()))
    ways = [ours, unmoved]
    eager = Way("eager", work.module)
    others = [eager, *_rivals(work, options)] if with_rivals else []
    ways += others
    measurement.return_freed_memory()
    for way in ways:
        _warm(work, way, _WARM + int(options.get("refine_after", 3)) if way is ours else _WARM)
    equal, difference = _differences(work, ours, unmoved, eager)
    model = backend.model_of(options)
    for way in ways:
        _measure_peak(work, way, model)
    working = [way for way in ways if not way.failed]
    measurement.keep_freed_memory()  # times are taken as processes usually run: giving memory back slows down who allocates much
    for way in working:
        work.step(way)
    _interleave(work, working, steps)
    return _summary(work, model, ours, unmoved, others, equal, difference)


def _rivals(work: Workload, options: dict[str, Any]) -> Iterator[Way]:
    if not work.training:
        return
    parameters = {p.untyped_storage().data_ptr() for p in [*work.module.parameters(), *work.module.buffers()]}
    folder = options.get("slow_memory")
    if work.device.type == "cpu":
        file = rivals.SavedToFile(
            SlowFile(None if folder is None else Path(folder)), lambda t: t.untyped_storage().data_ptr() in parameters
        )
        yield Way("save_on_cpu", work.module, file.hooks)
    else:
        yield Way("save_on_cpu", work.module, lambda: torch.autograd.graph.save_on_cpu(pin_memory=True))
    if rivals.blocks_of(work.module):
        yield Way("checkpoint", work.module, lambda: rivals.checkpointed(work.module))
    share = options.get("fast_memory")
    yield Way("activation_memory_budget", compiled(work.module, rivals.budgeted_backend(share if isinstance(share, float) else 0.5)))


def _warm(work: Workload, way: Way, steps: int) -> None:
    try:
        for _ in range(steps):
            work.step(way)
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as error:
        if way.name == "loadmaster":
            raise
        way.failed = str(error).splitlines()[0]


def _differences(work: Workload, ours: Way, unmoved: Way, eager: Way) -> tuple[bool, float]:
    """Whether results are the unmoved graphs' bit for bit, and the largest difference from eager relative to its largest value."""
    mine, same, plain = work.results(ours), work.results(unmoved), work.results(eager)
    equal = len(mine) == len(same) and all(torch.equal(a, b) for a, b in zip(mine, same, strict=True))
    difference = 0.0
    for a, b in zip(mine, plain, strict=True):
        difference = max(difference, float((a - b).abs().max() / b.abs().max().clamp_min(1e-12)) if a.numel() else 0.0)
    return equal, difference


def _measure_peak(work: Workload, way: Way, model: backend.Model) -> None:
    """Parameters, buffers, inputs, and the most that a step takes above them."""
    if way.failed:
        return
    work.forget()
    model.release_idle()
    with measurement.peak_of(work.device) as peak:
        work.step(way)
    work.forget()
    model.release_idle()
    way.peak = work.resident() + peak.bytes


def _interleave(work: Workload, ways: list[Way], steps: int) -> None:
    """Steps in turns, so that whatever else the machine does falls on all alike."""
    for _ in range(steps):
        for way in ways:
            work.forget()
            start = time.perf_counter()
            work.step(way)
            if work.device.type == "cuda":
                torch.cuda.synchronize(work.device)
            way.seconds.append(time.perf_counter() - start)


def _summary(
    work: Workload, model: backend.Model, ours: Way, unmoved: Way, others: list[Way], equal: bool, difference: float
) -> dict[str, Any]:
    plans = model.plans
    budgets = [plan.budget for plan in plans if plan.budget is not None]
    return {
        "budget": max(budgets, default=None),
        "unmoved_peak": max((plan.unmoved_peak for plan in plans), default=0),
        "planned_peak": max((plan.placed_peak for plan in plans), default=0),
        "measured_peak": ours.peak,
        "unmoved_measured_peak": unmoved.peak,
        "step_seconds": ours.step_seconds,
        "unmoved_step_seconds": unmoved.step_seconds,
        "predicted_step_seconds": sum(plan.predicted_seconds for plan in plans),
        "waiting_seconds": sum(plan.times.waiting for plan in plans),
        "moved_bytes": sum(plan.moved_bytes for plan in plans),
        "graphs": len(plans),
        "fallbacks": [{"graph": f.graph, "reason": f.reason} for f in model.fallbacks],
        "results_copied": sum(plan.times.copied_results for plan in plans),
        "gradients_equal": equal,
        "max_difference_eager": difference,
        "device": str(work.device),
        "rivals": {
            way.name: {"step_seconds": way.step_seconds, "measured_peak": way.peak} | ({"failed": way.failed} if way.failed else {})
            for way in others
        },
    }

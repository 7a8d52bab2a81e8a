"""Compares variants of one step of a module (planned, without moves, rivals) by time and peak
memory, for ``loadmaster run``."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import BudgetError, LoadmasterError, ModelError, error_text
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
from loadmaster.integrations.torch_compile.compiled_model import CompiledModel, CompileOptions
from loadmaster.integrations.torch_compile.cpu_memory import SlowFile
from loadmaster.workloads.frontends.frontend import require_trained

OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": partial(torch.optim.SGD, lr=1e-3),
    "adamw": partial(torch.optim.AdamW, lr=1e-4),
}


def _once(tensor: Tensor) -> Tensor:
    """Return a view of an expanded tensor with each element once, which can be written."""
    for dim, stride in enumerate(tensor.stride() if tensor.layout is torch.strided else ()):
        if stride == 0:
            tensor = tensor.narrow(dim, 0, min(tensor.shape[dim], 1))
    return tensor


class Snapshot:
    """Values of a module's parameters and buffers, and of its inputs, to restore after steps."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        self._buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
        tensors = map(_once, (*module.parameters(), *module.buffers(), *_tensors(inputs)))
        self._values = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def restore(self, optimizer: Optimizer | None) -> None:
        """Restore all values, and clear the optimizer's state."""
        for there, before in self._buffers:
            there.update(before)
        with torch.no_grad():
            for tensor, value in self._values:
                tensor.copy_(value)
        if optimizer is not None:
            optimizer.state.clear()


LEVEL = 0.9
"""Confidence level of the interval for a median; it needs at least five steps."""


@dataclass
class Variant:
    """One variant of a step, and its measurements.

    Printed attributes have the names of `run_json`. ``model`` is the planned model, None for
    rivals. ``loadmaster_at_its_peak`` of a rival is the plan with the rival's peak as its budget,
    and ``difference``, ``beaten`` and ``peak_kept`` compare the two.
    """

    name: str
    call: Callable[..., Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    measured_peak: int | None = None
    failed: str = ABSENT
    optimizer: Optimizer | None = None
    model: CompiledModel | None = None
    predicted: list[float] = field(default_factory=list)
    loadmaster_at_its_peak: Variant = ABSENT
    difference: DifferenceJson | None = ABSENT
    beaten: bool = ABSENT
    peak_kept: bool = ABSENT

    @property
    def works(self) -> bool:
        """Whether no step has failed so far."""
        return self.failed is ABSENT

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of the steps; None before the first."""
        return _median(self.seconds)

    @property
    def step_cpu_seconds(self) -> float | None:
        """Median processor seconds of the steps, which other processes hardly affect; None before
        the first."""
        return _median(self.cpu_seconds)

    def predict(self) -> None:
        """Append the predicted seconds of the next step, from the latest steps, which the same load
        on the machine slows down."""
        if self.model is not None:
            for plan in self.model.last_step_graphs:
                plan.refresh_prediction()
            self.predicted.append(self.model.summary().predicted_step_seconds)

    def figures(self) -> dict[str, Any]:
        """Return the printed figures of a plan under a budget (`BudgetJson`)."""
        assert self.model is not None
        found = {"measured_over_predicted": None, **vars(self.model.summary())}
        if self.seconds:
            found["predicted_step_seconds"] = statistics.median(self.predicted)
            found["measured_over_predicted"] = difference(self.seconds, self.predicted)
        return json_of(self, BudgetJson, **found)

    def compare_at_its_peak(self) -> None:
        """Compare this rival with the plan whose budget is the rival's peak. The rival is beaten if
        the plan keeps that peak and the whole interval of ratios is below 1."""
        plan = self.loadmaster_at_its_peak
        if plan is ABSENT:
            return
        self.difference, self.beaten = None, False
        if plan.works and plan.measured_peak and self.measured_peak and self.seconds:
            self.difference = difference(plan.seconds, self.seconds)
            self.peak_kept = plan.measured_peak <= self.measured_peak + STATED
            self.beaten = self.peak_kept and self.difference.verdict == "faster"


def _median(values: Sequence[float]) -> float | None:
    """Return the median; None without values."""
    return statistics.median(values) if values else None


def difference(mine: Sequence[float], theirs: Sequence[float]) -> DifferenceJson:
    """Return the seconds of a plan's steps relative to a rival's, run in turns: the median ratio
    over pairs of neighbouring steps, and an interval for it.

    The interval reaches from the ``k``-th smallest ratio to the ``k``-th largest, with the largest
    ``k`` for which it holds the true median with a probability of at least ``LEVEL``, whatever the
    ratios' distribution; too few steps have none. The verdict is ``no difference`` unless the whole
    interval is on one side of 1.
    """
    ratios = sorted(a / b for a, b in zip(mine, theirs, strict=True))
    outside, middle = _left_out(len(ratios)), statistics.median(ratios)
    if outside < 0:
        return DifferenceJson(middle, None, None, "no difference")
    low, high = ratios[outside], ratios[-1 - outside]
    verdict: Any = "faster" if high < 1 else "slower" if low > 1 else "no difference"
    return DifferenceJson(middle, low, high, verdict)


def _left_out(count: int) -> int:
    """Return how many of the smallest, and of the largest, of ``count`` values are outside of the
    interval for the median; a negative number if there are too few values."""
    pairs = (math.comb(count, k) / (1 << count - 1) for k in range((count + 1) // 2))
    return sum(missed <= 1 - LEVEL for missed in accumulate(pairs)) - 1


_WARM_UP_STEPS = 2
"""Number of steps before the first measured one."""
_TOLERANCE, _UPDATED = 1e-4, 10
"""Allowed relative error of results on a GPU or if kernels run in blocks, and its factor for
parameters updated by an optimizer."""
_LEAST_NORM = 0.01
"""Share of the largest norm that norms of other tensors count as at least: with the tolerance, some
eight units in the last place of float32."""
_PREDICTION_STEPS = 3
"""Number of steps in turns before the first prediction."""


@dataclass
class MeasuredModule:
    """A module with its inputs, for training steps or inferences. Every step begins with the same
    random state. ``optimizer`` makes an optimizer of parameters."""

    module: nn.Module
    inputs: Any
    training: bool
    device: torch.device
    optimizer: Callable[[list[nn.Parameter]], Optimizer] | None = None

    def make_optimizer(self) -> Optimizer | None:
        """Return a new optimizer of all parameters; None without one or the other."""
        parameters = [*self.module.parameters()]
        return self.optimizer(parameters) if self.optimizer and parameters else None

    def resident(self, variant: Variant) -> int:
        """Return the bytes in fast memory between steps: parameters, buffers, optimizer state,
        inputs, and standing arenas, without offloaded tensors."""
        given = [] if variant.optimizer is None else [*variant.optimizer.state.values()]
        storages: dict[int, int] = {
            one.untyped_storage().data_ptr(): one.untyped_storage().nbytes()
            for one in _tensors(
                [*self.module.parameters(), *self.module.buffers(), self.inputs, given]
            )
        }
        bytes, model = sum(storages.values()), variant.model
        if model is None:
            return bytes
        return bytes - model.persistent.offloaded_bytes() + model.standing_arenas

    def step(self, variant: Variant) -> Any:
        """Run one step and return its outputs; gradients stay in the parameters."""
        self.module.zero_grad()
        torch.manual_seed(0)
        given = self.inputs if isinstance(self.inputs, tuple | list | dict) else (self.inputs,)
        with torch.set_grad_enabled(self.training), variant.around():
            out = variant.call(**given) if isinstance(given, dict) else variant.call(*given)
            if self.training:
                require_trained(_loss_of(out)).backward()
                if variant.optimizer is not None:
                    variant.optimizer.step()
        return out

    def results(self, variant: Variant, start: Snapshot) -> list[Tensor]:
        """Return copies of the outputs and gradients of a step from the state ``start``; with an
        optimizer, of the outputs and parameters of two steps."""
        start.restore(variant.optimizer)
        updated = self.optimizer is not None
        out = [
            leaf.detach().clone()
            for _ in range(1 + updated)
            for leaf in _tensors(self.step(variant))
        ]
        left = (p if updated else p.grad for p in self.module.parameters())
        return out + [tensor.detach().clone() for tensor in left if tensor is not None]


class _MeanSquare(torch.autograd.Function):  # type: ignore[misc]
    """Mean of the squared magnitudes of a tensor's elements. Its gradient is the only other tensor
    of that size: no plan would count more."""

    @staticmethod
    def forward(context: Any, tensor: Tensor) -> Tensor:
        context.save_for_backward(tensor)
        # Another dtype for the norm itself would copy the tensor.
        return torch.linalg.vector_norm(tensor).double().square() / max(tensor.numel(), 1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (tensor,) = context.saved_tensors
        return tensor * (gradient * 2 / max(tensor.numel(), 1))


def _loss_of(out: Any) -> Tensor:
    """Return the sum of the losses (scalars) of a result; without any, of the mean squares of its
    tensors."""
    leaves = [leaf for leaf in _tensors(out) if leaf.is_floating_point() or leaf.is_complex()]
    real = [leaf for leaf in leaves if leaf.requires_grad and not leaf.is_complex()]
    losses = [leaf for leaf in real if not leaf.dim()]
    return torch.as_tensor(sum(losses or map(_MeanSquare.apply, leaves)))


def _tensors(out: Any) -> list[Tensor]:
    """Return the tensors of a result."""
    return [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]


def compiled(module: nn.Module, how: Any, options: Any = None) -> Callable[..., Any]:
    """Return the module compiled by a backend of ``torch.compile``."""
    return torch.compile(module, backend=how, options=options)  # type: ignore[no-any-return]


def compare(
    work: MeasuredModule,
    options: dict[str, Any],
    steps: int,
    with_rivals: bool,
    budgets: Sequence[int | float] = (),
    progress: Progress = no_progress,
    tell: Callable[[str], object] = lambda _: None,
) -> dict[str, Any]:
    """Measure the plan, the graphs without moves, and rivals; return the object that ``loadmaster
    run --json`` prints.

    Each rival is compared with a plan whose budget is the rival's measured peak: ratios of steps
    run in turns, with an interval. Plans under ``budgets`` (bytes, or shares of the unmoved peak)
    are measured, too. Once the plan itself is checked and its peak measured, ``tell`` is called
    with the expected time of the rest. Ctrl-C then ends the measurements: figures not yet measured
    are None, and only steps that all variants have run count.
    """
    begun = time.process_time()
    options = options | {"fast_memory": CompileOptions.of(options).fast_memory}
    ours, eager = _planned_variant(work, options), Variant("eager", work.module)
    unmoved = Variant("unmoved", compiled(work.module, rivals.unmoved_backend()))
    first, rest, more = [ours, unmoved], [], []
    if with_rivals:
        first.append(eager)
        rest = [*(_training_rivals(work, options) if work.training else _inference_rivals(work))]
        more = [
            _planned_variant(work, options | {"fast_memory": budget}) for budget in (None, *budgets)
        ]
    turns, others = AlternatingRuns(work, [*first, *rest, *more], progress), [*first[2:], *rest]
    for variant in (unmoved, eager, *rest):
        variant.optimizer = work.make_optimizer()
    found = turns.check(first, eager)
    for variant in first:
        before = time.process_time()
        turns.measure_peak(variant)
    if with_rivals:
        now, count = time.process_time(), len(first)
        # Rivals, a plan at the peak of each, and plans under other budgets.
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


def _planned_variant(work: MeasuredModule, options: dict[str, Any]) -> Variant:
    """Return the variant of a step that Loadmaster plans."""
    optimizer = work.make_optimizer()
    call = compiled(work.module, backend.loadmaster, options | {"optimizer": optimizer})
    model = model_of(call)
    model.summary_logged = True
    return Variant("loadmaster", call, optimizer=optimizer, model=model)


def _training_rivals(work: MeasuredModule, options: dict[str, Any]) -> Iterator[Variant]:
    """Yield the techniques to compare training with: activations saved to the slow memory,
    checkpoints, and PyTorch's activation memory budget."""
    parameters = {
        p.untyped_storage().data_ptr() for p in [*work.module.parameters(), *work.module.buffers()]
    }
    folder = options.get("slow_memory")
    around: Any = partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
    if work.device.type == "cpu":
        around = partial(
            rivals.saved_to_file,
            SlowFile(folder and Path(folder)),
            lambda t: t.untyped_storage().data_ptr() in parameters,
        )
    yield Variant("save_on_cpu", work.module, around)
    if rivals.blocks_of(work.module):
        yield Variant("checkpoint", work.module, lambda: rivals.checkpointed(work.module))
    share = options.get("fast_memory")
    yield Variant(
        "activation_memory_budget",
        compiled(work.module, rivals.unmoved_backend(share if isinstance(share, float) else 0.5)),
    )


def _inference_rivals(work: MeasuredModule) -> Iterator[Variant]:
    """Yield the techniques to compare inference with: an exported graph and Inductor's memory
    planning."""
    yield Variant("torch.export", rivals.exported(work.module))
    yield Variant(
        "inductor",
        compiled(work.module, "inductor", {"memory_planning": True, "memory_pool": "combined"}),
    )


def _check_planned(ours: Variant, module: nn.Module) -> None:
    """Raise `ModelError` if no graph of the module runs by a plan."""
    assert ours.model is not None
    if not ours.works or ours.model.last_step_graphs:
        return
    recurrent = (
        "nn.RNN, nn.GRU and nn.LSTM need torch._dynamo.config.allow_rnn = True where the factory is"
        " defined; "
        if any(isinstance(part, nn.RNNBase) for part in module.modules())
        else ""
    )
    raise ModelError(
        "no part of the module runs by a plan: "
        + (
            "; ".join(map(str, ours.model.fallbacks))
            or f"torch.compile captures no graph of it: {recurrent}TORCH_LOGS=graph_breaks says why"
        )
    )


def _distance(mine: list[Tensor], right: list[Tensor], order: float) -> float:
    """Return the largest norm of a difference of two tensors, relative to the norm of the tensor in
    ``right``, whose numbers that are not finite count as zero; 1e300 if other numbers are not
    finite in ``mine``. ``order`` is that of the norm.

    A norm counts as at least a hundredth of the largest: gradients that are zero but for rounding,
    such as of a bias before a normalisation, have no digits to compare.
    """
    norm, found = partial(torch.linalg.vector_norm, ord=order), 0.0
    pairs = [(a, b) for a, b in zip(mine, right, strict=True) if a.numel()]
    norms = [float(norm(b.cdouble().nan_to_num(0, 0, 0))) for _, b in pairs]
    least = max(1e-12, _LEAST_NORM * max(norms, default=0.0))
    for (a, b), size in zip(pairs, norms, strict=True):
        same = torch.isclose(a, b, 0, 0, equal_nan=True)
        gap = norm((a.cdouble() - b.cdouble()).masked_fill(same, 0)) / max(size, least)
        found = max(found, float(gap.nan_to_num(1e300, 1e300)))
    return found


@dataclass
class AlternatingRuns:
    """Runs steps of all variants of one module in turns. After Ctrl-C (``stopped``) finished
    measurements are kept."""

    work: MeasuredModule
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
        """Call ``act`` for every working variant, and report progress under the name ``stage``.

        After Ctrl-C the remaining variants are skipped; with ``lost`` they count as failed.
        """
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
        """Compile the variants ``first`` (the plan, the graphs without moves, others), and check
        the plan's results.

        Returns the kernels in blocks, the error relative to the graphs without moves and whether it
        is within the tolerance, and the largest difference from eager mode.
        """
        measurement.return_freed_memory()
        ours, unmoved = first[:2]
        for number, variant in enumerate(first):
            self.progress(f"1 of 4: compiling {variant.name}", number / len(self.variants))
            self.warm(variant)
            if variant is ours:
                _check_planned(ours, self.work.module)
        self._right, mine, plain = map(self.results, (unmoved, ours, eager))
        # Outputs and what is left in parameters are of different sizes.
        left = [
            p for p in self.work.module.parameters() if self.work.optimizer or p.grad is not None
        ]
        at = len(self._right) - len(left)
        error = max(
            _distance(mine[part], self._right[part], 2) for part in (slice(at), slice(at, None))
        )
        assert ours.model is not None
        kinds = Counter(kind for plan in ours.model.plans for kind in plan.kernels_in_blocks)
        allowed = _TOLERANCE * (_UPDATED if self.work.optimizer else 1)
        # GPU kernels sum in any order, and choose algorithms by layouts.
        close = error <= (allowed if kinds or self.work.device.type != "cpu" else 0.0)
        return {
            "gradients_equal": not _distance(mine, self._right, math.inf),
            "kernels_in_blocks": dict(sorted(kinds.items())),
            "error": error,
            "results_close": close,
            "max_difference_eager": _distance(mine, plain, math.inf),
        }

    def plan_at_peaks(
        self, others: Sequence[Variant], planned: Sequence[Variant], options: dict[str, Any]
    ) -> None:
        """Make a plan at the peak of each rival in ``others``. If that is at least the peak of the
        plan without a budget, ``planned[0]``, it is that plan."""

        def plan(rival: Variant) -> None:
            """Set the planned variant with the same peak as the rival, made anew if the first needs
            more."""
            peak = rival.measured_peak
            if not peak:
                return
            variant = planned[0]
            if peak < (variant.measured_peak or 0):
                budget = {"fast_memory": peak, "refine_after": 2}
                variant = _planned_variant(self.work, options | budget)
                self.variants.append(variant)
                self.warm(variant)
                self.measure_peak(variant)
            rival.loadmaster_at_its_peak = variant

        self.each(others, "3 of 4: planning at the peak of", plan)

    def rest_is_right(self, ours: Variant) -> bool:
        """Return whether results of all plans but ``ours`` equal those of the graphs without
        moves."""
        same: list[bool] = []
        self.each(
            [one for one in self.variants if one.model is not None and one is not ours],
            "3 of 4: checking results of",
            lambda each: same.append(not _distance(self.results(each), self._right, math.inf)),
        )
        return all(same)

    def restore_parameters(self, variant: Variant) -> None:
        """Offload or reload parameters as the variant expects, before its steps."""
        for other in self.variants:
            if other.model is not None and other is not variant:
                other.model.reload_parameters()
        if variant.model is not None:
            variant.model.place_parameters()

    def warm(self, variant: Variant) -> None:
        """Run the first steps, which compile and plan, including the plan with measured times.
        Raises `ModelError` if the module itself fails."""
        self.restore_parameters(variant)
        refined = 0 if variant.model is None else variant.model.settings.refine_after
        try:
            for _ in range(_WARM_UP_STEPS + refined):
                self.work.step(variant)
        except LoadmasterError as error:
            if not isinstance(error, BudgetError):
                raise
            variant.failed = str(error)
        except Exception as error:
            if variant.model is None:
                variant.failed = str(error).partition("\n")[0]
                return
            try:
                self.work.step(Variant("eager", self.work.module))
            except Exception as own:
                raise ModelError(f"the module fails with its inputs: {error_text(own)}") from own
            raise

    def results(self, variant: Variant) -> list[Tensor]:
        """Return the results of a variant; see `MeasuredModule.results`."""
        self.restore_parameters(variant)
        return self.work.results(variant, self._start)

    def measure_peak(self, variant: Variant) -> None:
        """Measure the peak of a variant: resident bytes, plus the most that a step takes above
        them.

        Pieces of freed memory that glibc cannot return before a step hide as much of its peak. They
        differ from step to step, so the larger of two peaks counts.
        """
        if not variant.works:
            return
        peaks = []
        for _ in range(2):
            self.restore_parameters(variant)
            self._release_all()
            with measurement.peak_of(self.work.device) as peak:
                self.work.step(variant)
            peaks.append(peak.bytes)
        self._release_all()
        variant.measured_peak = self.work.resident(variant) + max(peaks)

    def _release_all(self) -> None:
        """Free the memory that idle variants keep."""
        self.work.module.zero_grad()
        for variant in self.variants:
            if variant.model is not None:
                variant.model.release_idle()

    def timed(self, planned: Sequence[Variant], steps: int) -> int:
        """Time steps of all working variants, and return how many of each were timed: all, or after
        Ctrl-C those that all variants have run.

        Freed memory is kept by glibc, as usual; returning it would slow down variants that allocate
        much. Variants run in turns, in alternating order, so that other load on the machine and the
        order favour none.
        """
        measurement.return_freed_memory(measurement.LARGE)
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
                    plan.history.forget()  # steps that return freed memory were slower
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
        """Predict a step's seconds, then time the step."""
        self.restore_parameters(variant)
        self.work.module.zero_grad()
        variant.predict()
        start, busy = time.perf_counter(), time.process_time()
        self.work.step(variant)
        if self.work.device.type == "cuda":
            torch.cuda.synchronize(self.work.device)
        variant.seconds.append(time.perf_counter() - start)
        variant.cpu_seconds.append(time.process_time() - busy)


def _summary(work: MeasuredModule, ours: Variant, unmoved: Variant) -> dict[str, Any]:
    """Return the comparison's figures as JSON: peaks in bytes, times in seconds, and rows of
    kernels."""
    assert ours.model is not None
    plans = ours.model.last_step_graphs
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

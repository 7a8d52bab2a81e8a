"""Ways of running one step, what was measured of them, and whether one is faster than another."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import BudgetError
from loadmaster.integrations.torch_compile.compiled_model import Model

OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": {"lr": 1e-3}, "adamw": {"lr": 1e-4}}


def optimizer_of(name: str | None, module: nn.Module) -> torch.optim.Optimizer | None:
    """PyTorch's own optimizer of that name, for all parameters of a module. Raises
    `BudgetError`."""
    if name is None:
        return None
    if name not in OPTIMIZERS:
        raise BudgetError(f"optimizer {name!r}: write {' or '.join(OPTIMIZERS)}")
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    return kind(module.parameters(), **OPTIMIZERS[name])


def state_bytes(optimizer: torch.optim.Optimizer | None) -> dict[int, int]:
    """Storages of an optimizer's state, by address, and their bytes."""
    if optimizer is None:
        return {}
    return bytes_of(
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def bytes_of(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Storages of tensors, by address, and their bytes."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


class Snapshot:
    """Parameters, buffers and inputs as they were, to begin from again: a step may change all."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        self._buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
        given = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
        self._tensors = [*module.parameters(), *module.buffers(), *given]
        self._values = [t.detach().clone() for t in self._tensors]

    def restore(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Begin again; the optimizer has no state yet."""
        for there, before in self._buffers:
            replaced = {name: value for name, value in before.items() if there[name] is not value}
            there.update(replaced)
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._values, strict=True):
                tensor.copy_(value)
        if optimizer is not None:
            optimizer.state.clear()


LEVEL = 0.9
"""Confidence level of the interval for a median. Five steps are enough for it."""
NO_DIFFERENCE = "no difference"


@dataclass
class Variant:
    """One variant of running a step, and what was measured of it; ``model`` is the planned model,
    None for rivals."""

    name: str
    call: Callable[..., Any]
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak: int | None = None
    failed: str = ""
    optimizer: torch.optim.Optimizer | None = None
    model: Model | None = None
    predicted: list[float] = field(default_factory=list)

    def predict(self) -> None:
        """Note what the next step should take, by the steps before it: on a busy machine, other
        load slows down both."""
        if self.model is not None:
            for plan in self.model.of_last_step:
                plan.refresh_prediction()
            self.predicted.append(self.model.summary().predicted_step_seconds)

    def prediction(self) -> dict[str, Any]:
        """The figures of predictions, by name: the median, and how long steps took relative to what
        each was predicted to take."""
        if not self.seconds:
            now = 0.0 if self.model is None else self.model.summary().predicted_step_seconds
            return {"predicted_step_seconds": now, "measured_over_predicted": None}
        ratio = Difference.of(self.seconds, self.predicted)
        found = {"ratio": ratio.ratio, "low": ratio.low, "high": ratio.high}
        return {
            "predicted_step_seconds": statistics.median(self.predicted),
            "measured_over_predicted": found,
        }

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of a step; None before the first."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def step_cpu_seconds(self) -> float | None:
        """Median processor seconds of a step, which other processes on the machine hardly change;
        None before the first."""
        return statistics.median(self.cpu_seconds) if self.cpu_seconds else None

    def figures(self) -> dict[str, Any]:
        """The figures that are printed, by name."""
        figures = {
            "step_seconds": self.step_seconds,
            "step_cpu_seconds": self.step_cpu_seconds,
            "measured_peak": self.peak,
        }
        return figures | ({"failed": self.failed} if self.failed else {})


@dataclass(frozen=True)
class Difference:
    """How long steps of a plan take relative to a rival's: the median over pairs of neighbouring
    steps, and an interval for it.

    The interval reaches from the ``k``-th smallest ratio to the ``k``-th largest, with the largest
    ``k`` for which it holds the true median with a probability of at least ``LEVEL``, whatever the
    ratios' distribution; too few steps have none. ``verdict`` is ``faster``, ``slower``, or ``no
    difference``, unless the whole interval is on one side of 1.
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
    """How many of the smallest and of the largest of ``count`` values the interval for their median
    leaves out."""
    missed, found = 0.0, None
    for left_out in range((count + 1) // 2):
        missed += 2 * math.comb(count, left_out) / 2**count
        if missed > 1 - LEVEL:
            break
        found = left_out
    return found

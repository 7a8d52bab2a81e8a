"""Baselines by name, each from its file; see :class:`loadmaster.core.registry.Registry`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from loadmaster.core.errors import PlacementError
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.core.arrays import Ints
    from loadmaster.placement.sequence import KernelSequence
    from loadmaster.placement.strategies.result import BaselineResult

    Baseline: TypeAlias = Callable[[KernelSequence, Ints], BaselineResult]

_PACKAGE = "loadmaster.placement.strategies"

PLACING: Registry[Baseline] = Registry(_PACKAGE, "BASELINE", "baseline", PlacementError)
"""Baselines that can be asked for a placement."""
IN_HARDWARE: Registry[Baseline] = Registry(_PACKAGE, "HARDWARE", "baseline", PlacementError)
"""What hardware does by itself, which is compared with only."""

AUTO, PROGRAM = "auto", "program"
ENGINES = {
    AUTO: "The best of the integer program and of all baselines that the mode allows.",
    PROGRAM: "The integer program of AutoTM (ASPLOS 2020).",
}
"""Strategies that are no baselines."""


def baseline_names() -> tuple[str, ...]:
    """Names of all baselines, those of hardware last."""
    return PLACING.names + IN_HARDWARE.names


def strategy_summaries() -> dict[str, str]:
    """What a placement can be asked for by name, with a sentence on each."""
    return ENGINES | PLACING.summaries()


def baseline(name: str, sequence: KernelSequence, limits: Ints) -> BaselineResult:
    """Simulate a baseline with ``limits`` bytes of fast memory while each kernel runs, shape
    (kernels,).

    All but ``all-fast`` keep the limits.

    Raises
    ------
    CapacityError
        If the strategy cannot keep the limits.
    PlacementError
        If there is no baseline of that name, or the machine cannot have it.
    """
    return (IN_HARDWARE if name in IN_HARDWARE.names else PLACING).find(name)(sequence, limits)

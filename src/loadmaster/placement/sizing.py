"""Sizes the fast memory: the slowdown over a range of limits, and the smallest limit for a given
slowdown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import CapacityError, PackingError, PlacementError
from loadmaster.core.progress import Progress, deferred_interrupts, no_progress
from loadmaster.core.units import parse_bytes_of
from loadmaster.placement.answer import MemoryPlan
from loadmaster.placement.place import place
from loadmaster.placement.sequence import KernelSequence

_RESOLUTION = 1 / 256
"""Resolution of the search for the smallest limit, as a share of the peak with everything fast."""


@dataclass(frozen=True)
class SmallestFast:
    """The placement with the smallest limit that was found to be enough.

    No limit of ``too_small`` bytes or less is enough: the lower bound there is too slow, or nothing
    fits; None if no limit was ruled out.
    """

    plan: MemoryPlan
    max_slowdown: float
    too_small: int | None


@validate_arguments(PlacementError)
@deferred_interrupts()
def slowdown_curve(
    sequence: KernelSequence, limits: Iterable[int | str], **options: Any
) -> tuple[MemoryPlan | CapacityError, ...]:
    """Place a sequence under each of several limits on the fast memory, in bytes; the result for an
    infeasible limit is the error.

    ``options`` are those of :func:`loadmaster.placement.place.place`. If a smaller limit led to a
    faster placement, that placement is used for the larger limit too, so the curve never rises.
    After Ctrl-C the last placement is used for all larger limits.
    """
    found: list[MemoryPlan | CapacityError] = []
    whole = sequence.peak_bytes
    for limit in sorted(parse_bytes_of(n, whole) if isinstance(n, str) else n for n in limits):
        before = found[-1] if found else None
        if (
            isinstance(before, MemoryPlan)
            and before.interrupted
            and options.get("time_limit") is None
        ):
            found.append(before.within(limit, None))
            continue
        try:
            plan: MemoryPlan | CapacityError = place(sequence, limit, **options)
        except CapacityError as error:
            plan = error
        if isinstance(before, MemoryPlan) and (
            not isinstance(plan, MemoryPlan) or before.seconds < plan.seconds
        ):
            plan = before.within(limit, plan)
        found.append(plan)
    return tuple(found)


@validate_arguments(PlacementError)
@deferred_interrupts()
def smallest_fast(
    sequence: KernelSequence,
    max_slowdown: float,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> SmallestFast:
    """Find the least fast memory with which a step takes at most ``max_slowdown`` times what it
    takes with everything fast.

    Halves the range of limits some eight times. ``options`` are those of
    :func:`loadmaster.placement.place.place`.

    Raises
    ------
    PlacementError
        If ``max_slowdown`` is no number of at least 1, or no limit up to the peak of the placement
        with everything fast is enough.
    """
    if not 1 <= max_slowdown < float("inf"):
        raise PlacementError(
            f"the slowdown allowed is {max_slowdown}: give a number of at least 1, such as 1.1"
        )
    report = progress or no_progress
    peak = sequence.peak_bytes
    # Gaps between buffers come on top of the live bytes.
    gaps = max(peak // 16, sequence.alignment)
    for high in range(peak, 2 * peak + gaps, gaps):
        best, _ = _enough(sequence, high, max_slowdown, options)
        if best:
            break
    else:
        raise PlacementError(
            f"{sequence.name}: found no placement within {high} bytes that takes at most"
            f" {max_slowdown} times as long as everything fast: allow more, or another strategy"
        )
    low, too_small = -1, None
    step = max(1, int(peak * _RESOLUTION))
    while high - low > step:
        middle = (low + high) // 2
        report(f"trying {middle} bytes", 1 - (high - low) / max(1, peak))
        plan, impossible = _enough(sequence, middle, max_slowdown, options)
        if not plan:
            low = middle
            if impossible:
                too_small = middle
        else:
            best, high = plan, middle
        if best.interrupted and options.get("time_limit") is None:
            break
    return SmallestFast(best, max_slowdown, too_small)


def _enough(
    sequence: KernelSequence, limit: int, max_slowdown: float, options: dict[str, Any]
) -> tuple[MemoryPlan | None, bool]:
    """Return a placement within the limit that is fast enough, if one is found, and whether it is
    proven that there is none."""
    try:
        plan = place(sequence, limit, **options)
    except CapacityError as error:
        return None, not isinstance(error, PackingError)
    if plan.slowdown <= max_slowdown:
        return plan, False
    return None, plan.lower_bound > max_slowdown * plan.all_fast_seconds

"""What may be asked of `place`."""

from __future__ import annotations

import math

from loadmaster.core.arguments import require_known
from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import PlacementError
from loadmaster.placement.decisions import Mode
from loadmaster.placement.strategies.registry import ENGINES, IN_HARDWARE, PLACING


def checked_mode(mode: Mode | str) -> Mode:
    """The mode of this name."""
    require_known("mode", mode, [each.value for each in Mode], PlacementError)
    return Mode(mode)


def check_arguments(fast: int, strategy: str, gap: float | None, time_limit: float | None) -> None:
    """Refuse what makes no sense."""
    if type(fast) is not int or not 0 <= fast < WHOLE_LIMIT:
        raise PlacementError(
            f"fast memory is {fast!r}: give a whole number of bytes from 0 to 2^62"
        )
    strategies = (*ENGINES, *PLACING.names)
    if strategy in IN_HARDWARE.names:
        raise PlacementError(
            f"strategy {strategy!r} is what hardware does by itself: others are compared with it,"
            f" and it places nothing: choose from {', '.join(strategies)}"
        )
    require_known("strategy", strategy, strategies, PlacementError)
    if gap is not None and not 0 <= gap < math.inf:
        raise PlacementError(f"gap is {gap}: give a number of at least 0, such as 0.01 for 1 %")
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise PlacementError(f"time limit is {time_limit}: give a number of seconds above 0")

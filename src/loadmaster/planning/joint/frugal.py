"""What hardly takes longer than the best and costs less, in energy times time: plans of times so
close are told apart by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from loadmaster.planning.decisions import Score
from loadmaster.planning.goal import as_good_as

T = TypeVar("T")


class Frugal(Generic[T]):
    """Of all that is offered, what is as good as the best and costs less than everything that is
    better."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, int, T]] = []
        self._late: int | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def offer(self, score: Score, cost: Callable[[], int], entry: T) -> None:
        """Keep what is worth it; its cost is asked for only where the score is near the best."""
        late, objective, _ = score
        if self._late is None or late < self._late:
            self._kept, self._late = [], late
        if late > self._late or (self._kept and objective > as_good_as(self._kept[0][0])):
            return
        spent = cost()
        if all(spent < own for reached, own, _ in self._kept if reached <= objective):
            kept = [one for one in self._kept if one[0] < objective or one[1] < spent]
            self._kept = sorted([*kept, (objective, spent, entry)], key=lambda one: one[:2])
            most = as_good_as(self._kept[0][0])
            self._kept = [one for one in self._kept if one[0] <= most]

    def least(self) -> T:
        """What costs least; something must have been offered."""
        return self._kept[-1][2]

    def clear(self) -> None:
        """Forget all that was offered."""
        self._kept, self._late = [], None

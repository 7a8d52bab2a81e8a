"""Effort: budgets of all searches, counted in work, so that the same effort gives the same answer
on every machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from loadmaster.core.arguments import instead
from loadmaster.core.errors import LoadmasterError


@dataclass(frozen=True)
class Effort:
    """Budgets of all searches; each search takes a share of one of them, written beside it.

    Attributes
    ----------
    evaluations
        Simulated schedules of a joint search, for up to 256 jobs; 0: no joint search.
    packings
        Rounds of a joint search, each of which ends with packing the best schedule.
    nodes
        Nodes of an exact search.
    pieces
        Simulated pieces of operators in the choice of cuts.
    work
        Budget of the strategies of allocation, mapping and placement, in per cent of their
        default.
    """

    name: str
    evaluations: int
    packings: int
    nodes: int
    pieces: int
    work: float

    TEST: ClassVar[Effort]
    QUICK: ClassVar[Effort]
    NORMAL: ClassVar[Effort]
    THOROUGH: ClassVar[Effort]

    def __post_init__(self) -> None:
        """Raise LoadmasterError for budgets out of range."""
        if (
            min(self.evaluations, self.nodes, self.pieces) < 0
            or self.packings < 1
            or not self.work > 0
        ):
            raise LoadmasterError(
                f"effort {self.name!r}: budgets are at least 0, and there are work and at least one"
                " packing"
            )

    def evaluations_of(self, jobs: int) -> int:
        """Simulated schedules of ``jobs`` jobs: fewer for more than 256, so that the simulated jobs
        are as many, but at least an eighth."""
        return self.evaluations * 256 // max(256, min(jobs, 8 * 256))

    def share(self, budget: int) -> int:
        """Scale a strategy's default budget by ``work``, to at least 1."""
        return max(1, int(budget * self.work / 100))

    def divided(self, cases: float) -> Effort:
        """Divide ``work`` among ``cases`` searches that are one to the caller."""
        return replace(self, work=self.work / cases)

    @staticmethod
    def of(effort: Effort | str, error: type[LoadmasterError] = LoadmasterError) -> Effort:
        """Return an effort, or the level of that name; raises ``error`` for an unknown name."""
        if isinstance(effort, Effort):
            return effort
        if not isinstance(effort, str) or effort not in LEVELS:
            # Of the levels the least is for tests.
            raise error(f"effort {effort!r}: {instead(str(effort), [*LEVELS][1:])}")
        return LEVELS[effort]


LEVELS = {
    effort.name: effort
    for effort in (
        Effort("test", 64, 4, 500, 400_000, 5.0),
        Effort("quick", 384, 3, 2_000, 6_000_000, 25.0),
        Effort("normal", 1536, 3, 5_000, 8_000_000, 100.0),
        Effort("thorough", 12_288, 4, 50_000, 64_000_000, 800.0),
    )
}
"""Efforts by name, the least first."""
Effort.TEST, Effort.QUICK, Effort.NORMAL, Effort.THOROUGH = LEVELS.values()

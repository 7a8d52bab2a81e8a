"""What another planner takes beside what Loadmaster takes and what anything must take, after a
check of the other's own plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from loadmaster.allocation.allocate import aligned, allocate
from loadmaster.allocation.answer import Allocation
from loadmaster.allocation.problem import Problem
from loadmaster.allocation.verify import verify_buffers
from loadmaster.core.violation import Violation
from loadmaster.integrations.dumps.arena import Arena


@dataclass(frozen=True)
class Comparison:
    """An arena, what is wrong with the planner's own addresses (nothing, or at most 20 violations),
    and Loadmaster's answer."""

    arena: Arena
    problem: Problem
    violations: tuple[Violation, ...]
    answer: Allocation

    @property
    def verdict(self) -> str:
        """How far the planner is from the floor, in words."""
        taken, peak, bound = self.arena.taken, self.answer.peak, self.answer.lower_bound
        if self.violations:
            return "their plan does not hold"
        if taken is None:
            return "the dump does not say what is taken"
        if taken < bound:
            return "below the bound: buffers share memory in a way that the dump does not show"
        if taken == bound:
            return "at the floor"
        if peak is not None and peak < taken:
            return f"{1 - peak / taken:.1%} could be saved"
        return f"within {taken / bound - 1:.2%} of the bound" if bound else "above an empty floor"


def compare(
    arena: Arena, *, capacity: int | None = None, alignment: int | None = None, **options: Any
) -> Comparison:
    """Check the planner's addresses and pack the same buffers. Options are those of `allocate`."""
    violations = (
        () if arena.offsets is None else verify_buffers(arena.problem, arena.offsets, arena.stated)
    )
    problem = aligned(arena.problem, alignment)
    answer = allocate(problem, capacity, **options)
    return Comparison(arena, problem, violations, answer)

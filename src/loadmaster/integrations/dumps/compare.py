"""Compares another planner's arena with Loadmaster's packing and the lower bound, and checks the
planner's own addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.allocation.allocate import aligned, allocate
from loadmaster.allocation.problem import Allocation, AllocationJson, Problem
from loadmaster.allocation.verify import verify_buffers
from loadmaster.core.errors import Violation
from loadmaster.core.json_object import json_of
from loadmaster.integrations.dumps.arena import DumpedArena


@dataclass(frozen=True)
class _Theirs:
    """Figures of another planner in its arena: stated, recomputed from its addresses, and
    checked."""

    name: str
    """Name of the arena."""
    verdict: str
    """Distance of the planner from the bound, in words; the wording is not stable."""
    theirs: int | None
    """Bytes of the arena by the planner's addresses; null if the dump has none."""
    theirs_stated: int | None
    """Bytes of the arena as stated in the dump; null if not stated."""
    violations: Sequence[Violation]
    """Violations by the planner's addresses, found by the independent verifier; empty if they are
    valid."""


@dataclass(frozen=True)
class ArenaComparisonJson(AllocationJson, _Theirs):
    """An arena; figures are those of Loadmaster's own packing unless they are called `theirs`."""


@dataclass(frozen=True)
class ArenasJson:
    """Another planner's arenas, each beside Loadmaster's packing."""

    VERSION = 1
    file: str
    """Path of the dump."""
    planner: str
    """Name of the planner."""
    arenas: Sequence[ArenaComparisonJson]
    """The arenas of the dump."""


@dataclass(frozen=True)
class Comparison:
    """An arena, violations by the planner's own addresses (at most 20), and Loadmaster's
    packing."""

    arena: DumpedArena
    problem: Problem
    violations: tuple[Violation, ...]
    answer: Allocation

    @property
    def verdict(self) -> str:
        """Return the distance of the planner from the lower bound, in words."""
        taken, peak, bound = self.arena.taken, self.answer.peak, self.answer.lower_bound
        if self.violations:
            return "their plan does not hold"
        if taken is None:
            return "the dump does not say what is taken"
        if taken < bound and (self.problem.alignment > self.arena.problem.alignment).any():
            return "below the bound, which is for larger alignments"
        if taken < bound:
            return "below the bound: buffers share memory in a way that the dump does not show"
        if taken == bound:
            return "at the floor"
        if peak is not None and peak < taken:
            return f"{1 - peak / taken:.1%} could be saved"
        return f"within {taken / bound - 1:.2%} of the bound" if bound else "above an empty floor"

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as `ComparisonJson`."""
        return json_of(
            self.answer.as_json(len(self.problem)),
            ArenaComparisonJson,
            name=self.arena.name,
            verdict=self.verdict,
            theirs=self.arena.taken,
            theirs_stated=self.arena.stated,
            violations=self.violations,
        )


def compare(
    arena: DumpedArena, *, capacity: int | None = None, alignment: int | None = None, **options: Any
) -> Comparison:
    """Check the planner's addresses and pack the same buffers. Options are those of `allocate`."""
    violations = (
        () if arena.offsets is None else verify_buffers(arena.problem, arena.offsets, arena.stated)
    )
    problem = aligned(arena.problem, alignment)
    answer = allocate(problem, capacity, **options)
    return Comparison(arena, problem, violations, answer)

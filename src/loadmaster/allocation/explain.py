"""Explains infeasibility: a small set of buffers that cannot fit together, its least bytes, and the
demands without which it would fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.problem import FREE, Infeasibility, Problem, joined

_WORK = 0.5
"""Work of each feasibility test, in per cent of the usual exact search."""
_TESTS = 2_000
"""Most feasibility tests."""


def explain(problem: Problem, capacity: int) -> Infeasibility:
    """Explain why a problem proven infeasible does not fit.

    If a bound exceeds the capacity, the fewest of the largest buffers behind it are named. Else a
    deletion filter removes buffers while the rest is still proven infeasible. O(n log^2 n), or at
    most ``_TESTS`` short exact searches.
    """
    whole = _Whole(problem, capacity)
    bound = packing_problem(problem).bound(capacity)
    if bound.bound > capacity:
        keep = whole.fewest(bound)
        irreducible = whole.is_irreducible(keep)
    else:
        keep, irreducible = whole.irreducible()
    core = whole.only(keep)
    required = packing_problem(core).bound(capacity).bound
    if required <= capacity:
        lowest = _search(core, -1) if irreducible else None
        proven = lowest is not None and lowest.status == "optimal"
        required = max(lowest.peak if lowest is not None and proven else 0, capacity + 1)
    return Infeasibility(
        required,
        capacity,
        required - capacity,
        whole.instant(keep),
        whole.kind(keep),
        tuple(whole.name(unit) for unit in keep),
        irreducible,
    )


def _search(problem: Problem, capacity: int) -> _native.Packed | None:
    """Run a short exact search; None if pins of aliases overlap."""
    try:
        return packing_problem(problem).allocate(capacity, work=_WORK, strategy="exact")
    except ValueError:
        return None


def _fits(problem: Problem, capacity: int) -> bool | None:
    """Whether a packing within a capacity exists; None if a short search does not decide it."""
    found = _search(problem, capacity)
    if found is None or found.status == "infeasible":
        return False
    return None if found.status == "unknown" else True


@dataclass(frozen=True)
class _Unit:
    """A unit of explanation: a buffer, an alias group or a reserved range."""

    members: tuple[int, ...]
    size: int
    range: tuple[int, int] | None = None


class _Whole:
    """A problem divided into units."""

    def __init__(self, problem: Problem, capacity: int) -> None:
        self.problem, self.capacity = problem, capacity
        alone = problem.solid.copy()
        alone[problem.alias_rows[:, 1]] = False
        self.units = [_Unit((at,), int(problem.size[at])) for at in np.flatnonzero(alone).tolist()]
        for group in problem.aliases:
            ends = [int(problem.size[member]) + up for member, up in group if problem.solid[member]]
            if ends:
                self.units.append(_Unit(tuple(member for member, _ in group), max(ends)))
        self._of = {member: at for at, unit in enumerate(self.units) for member in unit.members}
        # Proofs number reserved ranges after the buffers.
        for number, (low, high) in enumerate(joined(problem.reserved), len(problem)):
            self._of[number] = len(self.units)
            self.units.append(_Unit((), high - low, (low, high)))

    def name(self, unit: int) -> str:
        """Return the names of a unit's buffers, or its reserved range."""
        it = self.units[unit]
        if it.range is not None:
            return "(reserved {}-{})".format(*it.range)
        return "+".join(self.problem.name(member) for member in it.members)

    def only(self, units: Sequence[int]) -> Problem:
        """Return the subproblem of some units."""
        some = [self.units[unit] for unit in units]
        members = np.array(sorted(m for unit in some for m in unit.members), dtype=np.int64)
        ranges = tuple(unit.range for unit in some if unit.range is not None)
        return replace(self.problem.only(members), reserved=ranges)

    def fits(self, units: Sequence[int]) -> bool | None:
        """Whether some units fit; None if not decided."""
        return _fits(self.only(units), self.capacity) if len(units) else True

    def fewest(self, bound: _native.Packed) -> list[int]:
        """Return the fewest units behind a bound that together exceed the capacity, the largest
        first; reserved ranges only if needed."""

        def exceeds(some: Sequence[int]) -> bool:
            """Whether the bound of some units alone exceeds the capacity."""
            if bound.proof == "pairs":
                return sum(self.units[unit].size for unit in some) > self.capacity
            sub = packing_problem(self.only(some))
            return sub.bound(self.capacity).bound > self.capacity

        units = sorted({self._of[witness] for witness in bound.witnesses.tolist()})
        units.sort(key=lambda unit: -self.units[unit].size)
        order = [unit for unit in units if self.units[unit].members]
        if not exceeds(order):
            order = [unit for unit in units if not self.units[unit].members] + order
        few, enough = 0, len(order)
        while enough - few > 1:
            middle = (few + enough) // 2
            few, enough = (few, middle) if exceeds(order[:middle]) else (middle, enough)
        return sorted(order[:enough])

    def is_irreducible(self, keep: Sequence[int]) -> bool:
        """Whether the rest fits if any one unit is left out."""
        sizes = [self.units[unit].size for unit in keep]
        plain = not self.only(keep).features - {"conflict pairs", "gaps"}
        if plain and sum(sizes) - min(sizes) <= self.capacity:
            return True
        return len(keep) <= _TESTS and all(
            self.fits([*keep[:at], *keep[at + 1 :]]) is True for at in range(len(keep))
        )

    def irreducible(self) -> tuple[list[int], bool]:
        """Run the deletion filter: remove ever smaller blocks of units while the rest is still
        proven infeasible; return the units, and whether the set is irreducible."""
        keep = list(range(len(self.units)))
        tests, block = 0, max(1, len(keep) // 2)
        while True:
            proven, at = True, 0
            while at < len(keep) and tests < _TESTS:
                rest = keep[:at] + keep[at + block :]
                tests += 1
                verdict = self.fits(rest)
                if verdict is False:
                    keep = rest
                else:
                    at, proven = at + block, proven and verdict is True
            if block == 1:
                return keep, proven and tests < _TESTS
            block //= 2

    def instant(self, keep: Sequence[int]) -> int | None:
        """Return the first instant at which all units are alive; None without a common clock."""
        if self.problem.conflicts is not None:
            return None
        parts = self.problem.parts
        wanted = {unit for unit in keep if self.units[unit].members}
        unit = np.array([self._of.get(owner, -1) for owner in parts.owner.tolist()])
        mine = np.isin(unit, list(wanted))
        for instant in np.unique(parts.lower[mine]).tolist():
            at = mine & (parts.lower <= instant) & (instant < parts.upper)
            if len(np.unique(unit[at])) == len(wanted):
                return int(instant)
        return None

    def kind(self, keep: Sequence[int]) -> str:
        """Return the fewest demands without which the units would fit."""
        sub = self.only(keep)
        sub = replace(sub, reserved=self.problem.reserved if sub.reserved else ())
        give_up: dict[str, tuple[str, Any]] = {
            "reserved ranges": ("reserved", ()),
            "pins": ("pin", np.full_like(sub.pin, FREE)),
            "alignment": ("alignment", np.ones_like(sub.alignment)),
        }
        demands = [name for name in give_up if name in sub.features]

        def without(names: Iterable[str]) -> Problem:
            """Return the problem without some demands."""
            return replace(sub, **dict(give_up[name] for name in names))

        plain = packing_problem(without(demands)).bound(self.capacity)
        clique = plain.proof == "load" or self.problem.conflicts is not None
        if plain.bound > self.capacity and clique:
            return "load"
        undecided = False
        for count in range(1, len(demands) + 1):
            for some in combinations(demands, count):
                verdict = _fits(without(some), self.capacity)
                if verdict:
                    return " and ".join(some)
                undecided |= verdict is None
        return "undecided" if undecided else "fragmentation"

"""The makespan of a mapping in exact arithmetic: what a claim of optimality rests on."""

from __future__ import annotations

from fractions import Fraction

from loadmaster.core.units import PICOSECONDS
from loadmaster.mapping.group import Group, Queues
from loadmaster.mapping.timeline import simulate

_MOST_STEPS = 100_000
"""Most jobs x cores for arithmetic with fractions, about a second."""
_MOST_TWO_CLOCKS = 200
"""Most jobs if some demand bandwidth and others do not, because fractions then grow."""


def exact_makespan(group: Group, queues: Queues) -> Fraction | None:
    """Exact makespan of one row of queues in seconds; None if computing it would take too long."""
    two_clocks = bool(group.usable_demand.any()) and not group.every_job_uses_bandwidth
    if group.jobs * group.cores > _MOST_STEPS or (two_clocks and group.jobs > _MOST_TWO_CLOCKS):
        return None
    makespan: Fraction = max(simulate(group, queues, Fraction)[1])
    return makespan


def is_proven(makespan: Fraction | float, bound: float) -> bool:
    """Whether a makespan exceeds a bound by less than a picosecond and less than a billionth of
    itself."""
    exact = Fraction(makespan)
    return exact - Fraction(bound) <= min(Fraction(1, PICOSECONDS), exact / 10**9)

"""The makespan of a mapping in exact arithmetic: what a claim of optimality rests on."""

from __future__ import annotations

from fractions import Fraction

from loadmaster.core.units import PICOSECONDS
from loadmaster.mapping.group import Group, Queues
from loadmaster.mapping.timeline import simulate

_MOST_STEPS = 100_000
"""Jobs times cores up to which fractions are quick enough, about a second."""
_MOST_TWO_CLOCKS = 200
"""Jobs up to which fractions stay small enough where some jobs ask for no bandwidth and others
do."""


def exact_makespan(group: Group, queues: Queues) -> Fraction | None:
    """Seconds that one row of queues takes, without rounding; None where that would take too
    long."""
    two_clocks = bool(group.asked.any()) and not group.every_job_uses_bandwidth
    if group.jobs * group.cores > _MOST_STEPS or (two_clocks and group.jobs > _MOST_TWO_CLOCKS):
        return None
    makespan: Fraction = max(simulate(group, queues, Fraction)[1])
    return makespan


def is_proven(makespan: Fraction | float, bound: float) -> bool:
    """Whether a makespan is less than a picosecond, and less than a billionth of itself, above a
    bound."""
    exact = Fraction(makespan)
    return exact - Fraction(bound) <= min(Fraction(1, PICOSECONDS), exact / 10**9)

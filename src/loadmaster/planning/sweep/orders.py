"""Orders axes of a sweep: along which machines become no worse, so that plans of smaller machines
hold for larger ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import attrgetter
from typing import Any

from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.planning.sweep.axes import Axis, machine
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.targets.hardware import COPY_FIELDS, Target, core_places, is_within

_ORDERED = frozenset(
    [
        "scratchpad",
        "bandwidth",
        "capacity",
        "read_bandwidth",
        "write_bandwidth",
        "count",
        "clock",
        "lanes",
        "buffer",
        "job_overhead",
        "noc_bandwidth",
        "noc_latency",
        "int8",
        "fp16",
        "fp32",
    ]
).union(COPY_FIELDS)
"""Fields that machines may be compared by; whether they may here,
:func:`~loadmaster.targets.hardware.is_within` says."""


def order_of(axis: Axis, target: Target, *, energy: bool = False) -> int:
    """1 if machines become no worse along the axis, -1 if they become no better, 0 if neither is
    known.

    A plan for the worse machine is valid on the better one with the same addresses and no later
    times; with ``energy``, also with no more energy (larger memories may take more per byte).
    """
    if not axis.is_machine or axis.name.rpartition(".")[2] not in _ORDERED:
        return 0
    low, high = (
        machine(target, [(axis.name, value)]) for value in (axis.values[0], axis.values[-1])
    )
    if is_within(low, high) and (not energy or _takes_no_more(high, low)):
        return 1
    return -1 if is_within(high, low) and (not energy or _takes_no_more(low, high)) else 0


def _takes_no_more(larger: Target, smaller: Target) -> bool:
    """Whether a plan for the smaller machine takes no more energy on the larger one, which has the
    same kinds of cores."""
    mine = energy_rates(larger)
    theirs = energy_rates(smaller)
    places = core_places(smaller, larger)
    pairs = [
        *zip_longest(mine.memories, theirs.memories, fillvalue=0),
        (mine.static_power, theirs.static_power),
    ]
    pairs += [
        (mine.buffers[place], rate)
        for place, rate in zip(places or (), theirs.buffers, strict=True)
    ]
    return all(a <= b for a, b in pairs)


def is_no_better(
    one: Sequence[float | str], other: Sequence[float | str], orders: Sequence[int]
) -> bool:
    """Whether one point's values, given the order of every axis, are those of a machine that is no
    better than the other's."""
    return all(
        a == b
        or (
            order != 0 and not isinstance(a, str) and not isinstance(b, str) and (a - b) * order < 0
        )
        for a, b, order in zip(one, other, orders, strict=True)
    )


@dataclass
class WarmStarts:
    """Offers plans of smaller machines to points that are worse by ``rank``; ``source`` is, by
    point, the point whose plan it was offered last.

    ``orders`` has for every axis its :func:`order_of`.
    """

    orders: Sequence[int]
    rank: Callable[[DesignPoint], Any] = attrgetter("makespan")
    source: dict[str, str] = field(default_factory=dict)
    offered: set[tuple[str, str]] = field(default_factory=set)

    def of(self, points: Mapping[str, DesignPoint]) -> dict[str, str]:
        """Points that are worse than a point with no better machine, each with the source of the
        best such plan.

        A plan is offered to a point only once, so repeated calls come to an end. O(points^2).
        """
        found = {}
        ranks = {key: self.rank(each) for key, each in points.items() if each.makespan is not None}
        at = {key: tuple(points[key].at.values()) for key in ranks}
        for key, rank in ranks.items():
            within = [other for other in ranks if is_no_better(at[other], at[key], self.orders)]
            best = min(within, key=lambda other: (ranks[other], str(at[other])))
            source = self.source.get(best, best)
            if ranks[best] < rank and (key, source) not in self.offered:
                found[key] = source
        self.offered |= found.items()
        self.source |= found
        return found

"""Which points of a sweep are slower than a smaller machine, and so should have its plan as a
candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.planning.sweep.orders import is_no_better
from loadmaster.planning.sweep.points import DesignPoint

_SAME = 1e-12
"""Relative difference of makespans that counts as none."""


@dataclass
class Heirs:
    """Points that have been planned with the plan of a smaller machine as a candidate: ``source``
    is whose plan each was offered last.

    ``orders`` say along which axes machines become better
    (:func:`~loadmaster.planning.sweep.orders.order_of`), in the order of points' values.
    """

    orders: Sequence[int]
    source: dict[str, str] = field(default_factory=dict)
    offered: set[tuple[str, str]] = field(default_factory=set)

    def of(self, points: Mapping[str, DesignPoint]) -> dict[str, str]:
        """Points slower than one with no better machine, each with the point whose plan the fastest
        of those has.

        No plan is offered to a point twice, so that asking again and again comes to an end.
        O(points^2).
        """
        found = {}
        spans = {key: point.makespan for key, point in points.items() if point.makespan is not None}
        at = {key: tuple(points[key].at.values()) for key in spans}
        for key, makespan in spans.items():
            within = [other for other in spans if is_no_better(at[other], at[key], self.orders)]
            fastest = min(within, key=lambda other: (spans[other], str(at[other])))
            source = self.source.get(fastest, fastest)
            if spans[fastest] < makespan * (1 - _SAME) and (key, source) not in self.offered:
                found[key] = source
        self.offered |= set(found.items())
        self.source |= found
        return found

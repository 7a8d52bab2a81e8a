"""Files that several commands write."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loadmaster.core.files import OutputDirectory
    from loadmaster.planning.plan import Plan


def write_plan(plan: Plan, place: OutputDirectory, *, report: bool) -> None:
    """Write plan.json and, with ``report``, report.html and trace.pftrace."""
    plan.save(place.draft / "plan.json")
    if report:
        plan.report(place.draft)

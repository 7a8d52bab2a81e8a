"""Colours that people with any common colour blindness can tell apart: Okabe and Ito's, then Tol's muted ones."""

from __future__ import annotations

from loadmaster.planning.plan_records import PlanRecord

PALETTE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#332288",
    "#999933",
    "#882255",
    "#44aa99",
)
MERGED = "#9aa1a9"
COPY = "#5b6570"


def network_colours(plan: PlanRecord) -> dict[str, str]:
    """A colour for each network, the same in all charts of a report; they repeat after ten networks."""
    return {network.name: PALETTE[i % len(PALETTE)] for i, network in enumerate(plan.networks)}

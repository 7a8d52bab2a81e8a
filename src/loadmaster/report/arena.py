"""The summary of a plan of TFLM's arena in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from loadmaster.core.units import format_bytes
from loadmaster.report.view import Notes, Part, Table

_SOURCES = {
    "probed": "probed with TFLM's interpreter: its reference kernels",
    "log": "from the target's log",
    "unknown": "not known",
}
_REQUIREMENTS = (
    "Runs on unmodified TFLM from 20 July 2026 on; the firmware's resolver must register IF, SLICE"
    " and CONCATENATION. The results of both files are the same bits for random inputs, or nothing"
    " is written."
)
"""What a network in bands needs of its target."""


def arena_summary(figures: Mapping[str, Any]) -> list[Part]:
    """Make a table of the arena's head with and without the plan, its bound, and what was measured;
    ``figures`` as in ``--json``."""
    before, head, after = figures["head_before"], figures["head"], figures["measured"]
    less = f", {1 - head / before:.1%} less" if head < before else ""
    rows = [
        ("Status", figures["status"]),
        ("Planned", _count(figures)),
        ("Head before", _bytes(before)),
        ("Head", f"{_bytes(head)}{less}"),
        ("Lower bound", _bytes(figures["lower_bound"])),
        ("Scratch", _scratch(figures)),
    ]
    if figures["bands"]:
        runs = "; ".join(
            f"operators {each['first']} to {each['last']} in {each['bands']}"
            for each in figures["bands"]
        )
        rows.append(("Bands", f"{runs}: {figures['work'] - 1:.1%} more multiply-accumulates"))
    offers = ", ".join(
        f"{each['head_at_least']} bytes for {each['work'] - 1:.1%} more work"
        for each in figures["front"] or ()
        if each["work"] > 1 or each["head_at_least"] < head
    )
    if offers:
        rows.append(("In bands", f"at least {offers} (--arena)"))
    if after is not None:
        own = figures["measured_before"]
        heads = f"head {own['head']} before, {after['head']} with the plan; tail {after['tail']}"
        least = f"{_bytes(own['least'])} before, {_bytes(after['least'])} with the plan"
        rows += [("Measured", heads), ("Arena", f"{least}: the least that runs")]
    return [Table(("", "~"), rows), Notes(list(_notes(figures)))]


def _notes(figures: Mapping[str, Any]) -> Iterator[str]:
    measured = figures["measured"] is not None
    if figures["bands"]:
        yield _REQUIREMENTS
        if not measured:
            yield "Not run here: compare its results with those of the old file yourself."
    if not figures["front"] and figures["head"] == figures["head_before"]:
        yield "Already optimal: nothing is gained."
    if measured:
        yield (
            "Measured on this machine; the tail holds structures, which are smaller where pointers"
            " have 32 bits."
        )
    if figures["scratch"] == "unknown":
        yield (
            "Scratch buffers are not known: TFLM puts them around the plan, and the arena may take"
            f" up to {_bytes(figures['growth_at_most'])} more than without a plan. Give --scratch"
            " to plan with them."
        )


def _count(figures: Mapping[str, Any]) -> str:
    shared = f", {figures['in_place']} in the place of an operand" if figures["in_place"] else ""
    fixed = f", {figures['fixed']} where the file has them" if figures["fixed"] else ""
    return f"{figures['tensors']} tensors{shared}{fixed}"


def _scratch(figures: Mapping[str, Any]) -> str:
    sizes, source = [each["bytes"] for each in figures["scratch_buffers"]], figures["scratch"]
    if sizes:
        found = f"{len(sizes)} buffers, the largest of {max(sizes)} bytes, "
    else:
        found = "" if source == "unknown" else "none, "
    return found + _SOURCES[source]


def _bytes(size: int) -> str:
    return f"{size} bytes ({format_bytes(size)})" if size >= 1024 else f"{size} bytes"

"""The summary of a plan of TFLM's arena in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.units import format_bytes
from loadmaster.report.text import printable, shortened

_SOURCES = {
    "probed": "probed with TFLM's interpreter: its reference kernels",
    "log": "from the target's log",
    "unknown": "not known",
}

NOTHING_GAINED = {
    "optimal": "Already optimal: nothing gained.",
    "feasible": "Nothing gained: no better addresses were found.",
}
"""Where a plan takes what TFLM takes without it."""
_REQUIREMENTS = (
    "Runs on unmodified TFLM from 20 July 2026 on; the firmware's resolver must register IF, SLICE"
    " and CONCATENATION. The results of both files are the same bits for random inputs, or nothing is"
    " written."
)
"""What a network in bands needs of its target."""


def arena_summary(figures: Mapping[str, Any]) -> RenderableType:
    """Make a table of the arena's head with and without the plan, its bound, and what was measured;
    ``figures`` as in ``--json``."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    before, head, bound = figures["head_before"], figures["head"], figures["lower_bound"]
    table.add_row("Status", figures["status"])
    table.add_row("Planned", _count(figures))
    table.add_row("Head before", _bytes(before))
    table.add_row(
        "Head", _bytes(head) + (f", {1 - head / before:.1%} less" if head < before else "")
    )
    table.add_row("Lower bound", _bytes(bound))
    table.add_row("Scratch", _scratch(figures))
    notes = []
    if figures["bands"]:
        runs = "; ".join(
            f"operators {each['first']} to {each['last']} in {each['bands']}"
            for each in figures["bands"]
        )
        table.add_row("Bands", f"{runs}: {figures['work'] - 1:.1%} more multiply-accumulates")
        notes.append(_REQUIREMENTS)
        if figures["measured"] is None:
            notes.append("Not run here: compare its results with those of the old file yourself.")
    for name, text in reason_rows(figures, head):
        table.add_row(name, text)
    if head == before:
        notes.append(NOTHING_GAINED[figures["status"]])
    if figures["reason"]:
        notes.append(f"Nothing is written: {figures['reason']}.")
    if (after := figures["measured"]) is not None:
        own = figures["measured_before"]
        table.add_row(
            "Measured",
            f"head {own['head']} before, {after['head']} with the plan; tail {after['tail']}",
        )
        table.add_row(
            "Arena",
            f"{_bytes(own['least'])} before, {_bytes(after['least'])} with the plan: the least that"
            " runs",
        )
        notes.append(
            "Measured on this machine; the tail holds structures, which are smaller where pointers"
            " have 32 bits."
        )
    if figures["scratch"] == "unknown":
        notes.append(
            "Scratch buffers are not known: TFLM puts them around the plan, and the arena may take"
            f" up to {_bytes(figures['growth_at_most'])} more than without a plan. Give --scratch"
            " to plan with them."
        )
    front = [Text(), _front(figures)] if figures["front"] else []
    return Group(table, *(Text(note) for note in notes), *front)


def reason_rows(figures: Mapping[str, Any], head: int) -> list[tuple[str, str]]:
    """Rows on what makes the peak of an arena, and on what was tried against it; ``head`` is what
    the plan takes."""
    rows = []
    for number, peak in enumerate(figures["peaks"]):
        tensors = [f"{printable(each['name'])} {each['bytes']}" for each in peak["tensors"]]
        text = f"{peak['operator']}, {peak['bytes']} bytes: {shortened(tensors)}"
        rows.append(("Next peak at" if number else "Peak at", text))
    better = [each for each in figures["remedies"] if each["head"] < head]
    for each in better:
        work = f" for {each['work'] - 1:.1%} more work" if each["work"] > 1 else ""
        saved = f"{1 - each['head'] / head:.1%} less{work} ({each['option']})"
        rows.append(("Would help", f"{each['what']}: {each['head']} bytes, {saved}"))
    useless = [each["what"] for each in figures["remedies"] if each not in better]
    useless = [each for each in dict.fromkeys(useless) if each != "bands"]
    if useless:
        rows.append(("No gain from", ", ".join(useless)))
    if figures["no_bands"]:
        rows.append(("In bands", f"not possible: {figures['no_bands']}"))
    return rows


def _front(figures: Mapping[str, Any]) -> RenderableType:
    """Make a table of all heads that bands reach."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("Head at least", "More work", "Bands"):
        table.add_column(heading, justify="right")
    for each in figures["front"]:
        work = f"{each['work'] - 1:.1%}"
        table.add_row(_bytes(each["head_at_least"]), work, f"{each['bands']}")
    return table


def _count(figures: Mapping[str, Any]) -> str:
    shared = f", {figures['in_place']} in the place of an operand" if figures["in_place"] else ""
    fixed = f", {figures['fixed']} where the file has them" if figures["fixed"] else ""
    return f"{figures['tensors']} tensors{shared}{fixed}"


def _scratch(figures: Mapping[str, Any]) -> str:
    buffers = figures["scratch_buffers"]
    found = (
        f"{len(buffers)} buffers, the largest of"
        f" {max((each['bytes'] for each in buffers), default=0)} bytes, "
        if buffers
        else ""
    )
    none = "" if buffers or figures["scratch"] == "unknown" else "none, "
    return f"{found}{none}{_SOURCES[figures['scratch']]}"


def _bytes(size: int) -> str:
    return f"{size} bytes ({format_bytes(size)})" if size >= 1024 else f"{size} bytes"

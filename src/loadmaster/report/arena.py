"""The texts of a plan of TFLM's arena."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from loadmaster.report.text import exact_bytes, shortened
from loadmaster.report.view import Json, Table

_SOURCES = {
    "probed": "probed with TFLM's interpreter: its reference kernels",
    "log": "from the target's log",
    "unknown": "not known",
}
NOTHING_GAINED = {
    "optimal": "Already optimal: nothing gained.",
    "feasible": "Nothing gained: no better addresses were found.",
}
"""By status, the remark on a plan that needs as much as TFLM without a plan."""
_REQUIREMENTS = (
    "Runs on unmodified TFLM from 20 July 2026 on; the firmware's resolver must register IF, SLICE"
    " and CONCATENATION. The results of both files are the same bits for random inputs, or nothing"
    " is written."
)
"""Remark on the requirements of a network in bands."""


def arena_rows(figures: Json) -> Iterator[tuple[str, str]]:
    """Yield table rows of a plan: planned tensors, the head with and without the plan, and
    measurements. ``figures`` are as in ``--json``."""
    before = figures["head_before"]
    head = figures["head"]
    after = figures["measured"]
    less = f", {1 - head / before:.1%} less" if head < before else ""
    yield "Status", figures["status"]
    yield "Planned", _tensors_text(figures)
    yield "Head before", exact_bytes(before)
    yield "Head", f"{exact_bytes(head)}{less}"
    yield "Lower bound", exact_bytes(figures["lower_bound"])
    yield "Scratch", _scratch_text(figures)
    if figures["bands"]:
        runs = "; ".join(
            f"operators {each['first']} to {each['last']} in {each['bands']}"
            for each in figures["bands"]
        )
        yield "Bands", f"{runs}: {figures['work'] - 1:.1%} more multiply-accumulates"
        yield "Time", f"{figures['time'] - 1:.1%} more, estimated for reference kernels"
    yield from reason_rows(figures, head)
    if after is not None:
        own = figures["measured_before"]
        heads = f"head {own['head']} before, {after['head']} with the plan; tail {after['tail']}"
        least = f"{exact_bytes(own['least'])} before, {exact_bytes(after['least'])} with the plan"
        yield "Measured", heads
        yield "Arena", f"{least}: the least that runs"


def reason_rows(figures: Json, head: int) -> Iterator[tuple[str, str]]:
    """Yield table rows of the operators at the peak of an arena, and of remedies; ``head`` is that
    of the plan in bytes."""
    for number, peak in enumerate(figures["peaks"]):
        tensors = [f"{each['name']} {each['bytes']}" for each in peak["tensors"]]
        text = f"{peak['operator']}, {peak['bytes']} bytes: {shortened(tensors)}"
        yield "Next peak at" if number else "Peak at", text
    useless: dict[str, None] = {}
    for each in figures["remedies"]:
        if each["head"] < head:
            work = f" for {each['work'] - 1:.1%} more work" if each["work"] > 1 else ""
            saved = f"{1 - each['head'] / head:.1%} less{work} ({each['option']})"
            yield "Would help", f"{each['what']}: {each['head']} bytes, {saved}"
        elif each["what"] != "bands":
            useless[each["what"]] = None
    if useless:
        yield "No gain from", ", ".join(useless)
    if figures["no_bands"]:
        yield "In bands", f"not possible: {figures['no_bands']}"


def front_table(front: Sequence[Json]) -> Table:
    """Return the table of a Pareto front of bands."""
    return Table(
        [
            {
                ">Head at least": exact_bytes(each["head_at_least"]),
                ">More work": f"{each['work'] - 1:.1%}",
                ">More time, estimated": f"{each['time'] - 1:.1%}",
                ">Bands": f"{each['bands']}",
            }
            for each in front
        ]
    )


def arena_notes(figures: Json) -> Iterator[str]:
    """Yield remarks on a plan."""
    measured = figures["measured"] is not None
    if figures["bands"]:
        yield _REQUIREMENTS
        if not measured:
            yield "Not run here: compare its results with those of the old file yourself."
    if figures["head"] == figures["head_before"]:
        yield NOTHING_GAINED[figures["status"]]
    if figures["reason"]:
        yield f"No model is written: {figures['reason']}."
    if measured:
        yield (
            "Measured on this machine; the tail holds structures, which are smaller where pointers"
            " have 32 bits."
        )
    if figures["scratch"] == "unknown":
        yield (
            "Scratch buffers are not known: TFLM puts them around the plan, and the arena may take"
            f" up to {exact_bytes(figures['growth_at_most'])} more than without a plan. Give"
            " --scratch to plan with them."
        )


def _tensors_text(figures: Json) -> str:
    """Describe the planned tensors: how many, in place, and fixed by the file."""
    shared = f", {figures['in_place']} in the place of an operand" if figures["in_place"] else ""
    fixed = f", {figures['fixed']} where the file has them" if figures["fixed"] else ""
    return f"{figures['tensors']} tensors{shared}{fixed}"


def _scratch_text(figures: Json) -> str:
    """Describe the scratch buffers and the source of their sizes."""
    sizes = [each["bytes"] for each in figures["scratch_buffers"]]
    source = figures["scratch"]
    if sizes:
        found = f"{len(sizes)} buffers, the largest of {max(sizes)} bytes, "
    else:
        found = "" if source == "unknown" else "none, "
    return found + _SOURCES[source]

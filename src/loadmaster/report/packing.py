"""The views of a packing, and of a plan of TFLM's arena."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from loadmaster.allocation.memories.problem import BankAllocation
from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Allocation, Infeasibility, Load, Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes
from loadmaster.report.text import (
    NOTHING,
    clipped,
    exact_bytes,
    gap_text,
    plural,
    printable,
    search_rows,
    shortened,
)
from loadmaster.report.view import (
    ALL,
    BOTH,
    DRAWN,
    Figure,
    Figures,
    Json,
    Line,
    MemoryMap,
    Notes,
    Page,
    PagePart,
    Section,
    Shape,
    Table,
    TimeAxis,
    bounded,
    first_rows,
    pairs,
)

_HINT = (
    "Drag to pan, hold Ctrl and scroll to zoom in time, or use arrows, + and -; 0 resets. Hover"
    " over a rectangle for its buffer. Colours only tell neighbours apart."
)
_LISTED = 30
_TIME = (
    "Work counts multiply-accumulates. Time is estimated for TFLM's reference kernels, in which"
    " those of depthwise layers take longer than others, and slices copy. Measure it on the target."
)
_SOURCES = {
    "probed": "probed with TFLM's interpreter: its reference kernels",
    "log": "from the target's log",
    "unknown": "not known",
}
_NOTHING_GAINED = {
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


def packing_page(
    answer: Allocation | BankAllocation,
    problem: Problem | None = None,
    beyond: Allocation | None = None,
    arena: Json | None = None,
) -> Page:
    """Make the page of a packing in one or several memories.

    Parameters
    ----------
    answer, problem
        The packing; its buffers, if the packing has no problem of its own.
    beyond
        If nothing fits, a packing above the capacity, to draw.
    arena
        For a TFLM file, the operators at the peak and remedies, as in ``--json``.
    """
    shown, proof = answer, _proof(answer)
    if isinstance(answer, Allocation):
        value, found, among = answer.peak, f"peak {format_bytes(answer.peak or 0)}", ""
        problem = answer.problem if problem is None else problem
        if beyond is not None:
            shown = replace(beyond, capacity=answer.capacity)
            proof += ". Drawn is a packing that exceeds the capacity"
    else:
        value, found = answer.cost, f"cost {answer.cost or 0:,}"
        among = f" in {', '.join(bank.name for bank in answer.banks)}"
    offsets, memories = shown.offsets, getattr(answer, "memory", None)
    placed = offsets if problem is None else problem
    count = 0 if placed is None else len(placed)

    def sections() -> list[Section]:
        """Return the report's sections."""
        rows = search_rows(answer, answer.seconds)
        rows |= {"Buffers": f"{count}", "Proof": proof or NOTHING}
        maps, fullest = list[MemoryMap](), []
        if problem is not None and problem.conflicts is None and offsets is not None:
            for drawn, members in _memories(shown, offsets):
                maps.append(replace(drawn, shapes=regions(problem, offsets, members)))
                fullest.append(_fullest(problem, offsets, drawn.title, members))
        return [
            Section("", [Figures(_figures(shown))], ALL),
            Section("How it was found", [pairs(rows.items())], BOTH),
            Section("Memory over time", maps, DRAWN, _HINT),
            *fullest,
            Section("What makes the peak", _reasons(answer, arena or {}), BOTH),
        ]

    def rows() -> Iterable[Json]:
        """Yield the addresses of the buffers as JSON."""
        for at, offset in enumerate([] if answer.offsets is None else answer.offsets.tolist()):
            memory = {} if memories is None else {"memory": memories[at]}
            yield {"buffer": at, **memory, "offset": offset}

    far = "" if value is None else f", {gap_text(answer.status, value, answer.lower_bound)}"
    axis = TimeAxis(1.0)
    if problem is not None:
        first = int(problem.lower.min(initial=0))
        last = int(problem.upper.max(initial=1))
        axis = TimeAxis(last, start=first, label="time (as in the file)")
    return Page(
        clipped(printable(f"Allocation of {plural(count, 'buffer')}{among}"), 60),
        "Where each buffer lies in memory while it is alive",
        sections,
        axis,
        f"{answer.status}, {'no packing' if value is None else found}{far}",
        rows,
    )


def _memories(
    answer: Allocation | BankAllocation, offsets: Ints
) -> Iterator[tuple[MemoryMap, Ints]]:
    """Yield an empty map of each memory, and the indices of the buffers in it."""
    if isinstance(answer, Allocation):
        sizes = answer.peak or 0, answer.lower_bound, answer.capacity
        yield MemoryMap("memory", (), *sizes), np.arange(len(offsets))
        return
    for bank in answer.banks:
        peak = answer.packings[bank.name].peak or 0
        members = np.flatnonzero(np.array(answer.memory) == bank.name)
        yield MemoryMap(bank.name, (), peak, None, bank.capacity), members


def _figures(answer: Allocation | BankAllocation) -> list[Figure]:
    """Return the figures of a packing: peak or cost with its bound, and peaks and capacities of
    memories."""
    bound = answer.lower_bound
    if isinstance(answer, Allocation):
        figures = [bounded("Peak", answer.peak, bound, exact_bytes)]
        if answer.capacity is not None:
            figures.append(Figure("Capacity", exact_bytes(answer.capacity)))
        return figures
    figures = [bounded("Cost of spilling", answer.cost, bound, "{:,.0f}".format)]
    for bank in answer.banks:
        if bank.name in answer.packings:
            packed = answer.packings[bank.name]
            room = "" if bank.capacity is None else f"of {format_bytes(bank.capacity)}, "
            holds = room + plural(0 if packed.offsets is None else len(packed.offsets), "buffer")
            figures.append(Figure(f"Peak of {bank.name}", exact_bytes(packed.peak or 0), holds))
    return figures


def _reasons(answer: Allocation | BankAllocation, arena: Json) -> list[PagePart]:
    """Return the operators at the peak of a TFLM arena, and remedies; nothing for other answers."""
    if isinstance(answer, BankAllocation) or "peaks" not in arena:
        return []
    # Within a capacity any packing will do, which says nothing of what is possible.
    least = answer.lower_bound if answer.capacity is not None else answer.peak
    reasons = pairs(_reason_rows(arena, least or answer.lower_bound))
    gained = answer.capacity is not None or answer.peak != arena["head_before"]
    return [reasons, Line("" if gained else _NOTHING_GAINED[answer.status])]


def _proof(answer: Allocation | BankAllocation) -> str:
    """Return in words the proof of the bound, or the proof that nothing fits."""
    proof = answer.reason if isinstance(answer, BankAllocation) else answer.certificate
    if isinstance(proof, Infeasibility):
        return f"Nothing fits: {proof}"
    if isinstance(proof, Load):
        when = "two by two" if proof.instant is None else f"at instant {proof.instant}"
        return f"{plural(len(proof.buffers), 'buffer')} of {proof.bytes:,} bytes together {when}"
    return proof or ""


def regions(problem: Problem, offsets: Ints, members: Ints) -> list[Shape]:
    """Make the rectangles of a memory's map, one for each part of the buffers ``members``."""
    parts = problem.parts
    drawn = np.flatnonzero(np.isin(parts.owner, members))
    owners = parts.owner[drawn]
    low, high = (offsets[owners] + end[drawn] for end in (parts.low, parts.high))
    columns = (parts.lower[drawn], parts.upper[drawn], low, high, owners)
    return [
        Shape(start, end, bottom, top, partial(dict, name=problem.name(buffer)), buffer)
        for start, end, bottom, top, buffer in zip(*map(np.ndarray.tolist, columns), strict=True)
    ]


def _fullest(problem: Problem, offsets: Ints, memory: str, members: Ints) -> Section:
    """Make a table of the buffers ``members`` alive at the peak of a memory, largest first.
    O(buffers log buffers)."""
    heading = f"When the most of {memory} is in use"
    if not len(members):
        return Section(heading, [Line(f"Nothing is in {memory}.")])
    (peak,) = peaks(problem, members)
    rows = [
        {
            "Buffer": problem.name(b),
            ">Size": format_bytes(int(problem.size[b])),
            ">Address": f"{offsets[b]:,}",
            ">Alive": f"{problem.lower[b]} to {problem.upper[b]}",
        }
        for b in peak.buffers
    ]
    said = (
        f"At instant {peak.instant}: {plural(len(peak.buffers), 'buffer')} with"
        f" {format_bytes(peak.bytes)}, gaps in them included."
    )
    return Section(heading, [first_rows(rows, _LISTED, "smaller buffer")], hint=said)


def arena_page(figures: Json, *placed: tuple[Problem, Ints]) -> Page:
    """Make the page of a plan of TFLM's arena.

    Parameters
    ----------
    figures
        The plan as in ``--json``.
    placed
        The packing problem and the addresses of its buffers, before and with the plan.
    """
    peaks = (("before", figures["head_before"]), ("with the plan", figures["head"]))
    maps = [
        MemoryMap(name, regions(problem, addresses, np.arange(len(problem))), peak)
        for (problem, addresses), (name, peak) in zip(placed, peaks, strict=False)
    ]
    halves = " With bands two instants are an operator." if figures["bands"] else ""
    instants = f"An instant is an operator, those of a subgraph each time that it runs.{halves}"
    notes = Notes(list(_arena_notes(figures)))
    sections = [
        Section("Memory over the operators", maps, hint=instants),
        Section("The plan", [pairs(_arena_rows(figures)), notes], BOTH),
        Section("In bands", [_front_table(figures["front"])], BOTH, _TIME),
    ]
    last = max((int(problem.upper.max(initial=1)) for problem, _ in placed), default=1)
    return Page(
        f"The arena of {figures['model']}",
        "What lies where while each operator runs",
        lambda: sections,
        TimeAxis(last, label="instant"),
    )


def _arena_rows(figures: Json) -> Iterator[tuple[str, str]]:
    """Yield table rows of a plan: planned tensors, the head with and without the plan, and
    measurements. ``figures`` are as in ``--json``."""
    before = figures["head_before"]
    head = figures["head"]
    after = figures["measured"]
    less = f", {1 - head / before:.1%} less" if head < before else ""
    yield "Status", figures["status"]
    shared = f", {figures['in_place']} in the place of an operand" if figures["in_place"] else ""
    fixed = f", {figures['fixed']} where the file has them" if figures["fixed"] else ""
    yield "Planned", f"{figures['tensors']} tensors{shared}{fixed}"
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
    yield from _reason_rows(figures, head)
    if after is not None:
        own = figures["measured_before"]
        heads = f"head {own['head']} before, {after['head']} with the plan; tail {after['tail']}"
        least = f"{exact_bytes(own['least'])} before, {exact_bytes(after['least'])} with the plan"
        yield "Measured", heads
        yield "Arena", f"{least}: the least that runs"


def _reason_rows(figures: Json, head: int) -> Iterator[tuple[str, str]]:
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


def _front_table(front: Sequence[Json]) -> Table:
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


def _arena_notes(figures: Json) -> Iterator[str]:
    """Yield remarks on a plan."""
    measured = figures["measured"] is not None
    if figures["bands"]:
        yield _REQUIREMENTS
        if not measured:
            yield "Not run here: compare its results with those of the old file yourself."
    if figures["head"] == figures["head_before"]:
        yield _NOTHING_GAINED[figures["status"]]
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


def _scratch_text(figures: Json) -> str:
    """Describe the scratch buffers and the source of their sizes."""
    sizes = [each["bytes"] for each in figures["scratch_buffers"]]
    source = _SOURCES[figures["scratch"]]
    if sizes:
        return f"{len(sizes)} buffers, the largest of {max(sizes)} bytes, {source}"
    return source if figures["scratch"] == "unknown" else f"none, {source}"

"""The views of a packing, and of a plan of TFLM's arena."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from loadmaster.allocation.memories.problem import BankAllocation
from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Allocation, Infeasibility, Load, Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes
from loadmaster.report.arena import (
    NOTHING_GAINED,
    arena_notes,
    arena_rows,
    front_table,
    reason_rows,
)
from loadmaster.report.text import (
    NOTHING,
    clipped,
    exact_bytes,
    plural,
    printable,
    reached,
    search_rows,
)
from loadmaster.report.view import (
    ALL,
    BOTH,
    DRAWN,
    Facts,
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
    count = 0 if offsets is None else len(offsets)
    count = count if problem is None else len(problem)

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

    far = "" if value is None else f", {reached(answer.status, value, answer.lower_bound)}"
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
            peak = exact_bytes(packed.peak or 0)
            figures.append(Figure(f"Peak of {bank.name}", peak, holds))
    return figures


def _reasons(answer: Allocation | BankAllocation, arena: Json) -> list[PagePart]:
    """Return the operators at the peak of a TFLM arena, and remedies; nothing for other answers."""
    if isinstance(answer, BankAllocation) or "peaks" not in arena:
        return []
    reasons = pairs(reason_rows(arena, answer.peak or answer.lower_bound))
    gained = answer.peak != arena["head_before"]
    return [reasons, Line("" if gained else NOTHING_GAINED[answer.status])]


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

    def tip(buffer: int) -> Facts:
        """Return the tooltip of a buffer."""
        return {"name": problem.name(buffer)}

    return [
        Shape(start, end, bottom, top, partial(tip, buffer), buffer)
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
    sections = [
        Section("Memory over the operators", maps, hint=instants),
        Section("The plan", [pairs(arena_rows(figures)), Notes(list(arena_notes(figures)))], BOTH),
        Section("In bands", [front_table(figures["front"])], BOTH, _TIME),
    ]
    last = max((int(problem.upper.max(initial=1)) for problem, _ in placed), default=1)
    title = f"The arena of {figures['model']}"
    axis = TimeAxis(last, label="instant")
    return Page(title, "What lies where while each operator runs", lambda: sections, axis)

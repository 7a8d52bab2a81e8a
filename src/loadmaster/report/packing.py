"""What is shown of a packing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from loadmaster.allocation.memories.problem import BankAllocation
from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Allocation, Infeasibility, Load, Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes
from loadmaster.report.arena import NOTHING_GAINED, reason_rows
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
    Axis,
    Chart,
    Figure,
    Figures,
    Line,
    MemoryMap,
    Page,
    Part,
    Row,
    Section,
    Shape,
    Timeline,
    bounded,
    first_rows,
    pairs,
)

_HINT = (
    "Drag to pan, hold Ctrl and scroll to zoom in time, or use arrows, + and -; 0 resets. Hover"
    " over a rectangle for its buffer. Colours only tell neighbours apart."
)
_LISTED = 30


@dataclass(frozen=True)
class Memory:
    """One memory with the buffers in it; sizes in bytes."""

    name: str
    members: Ints
    peak: int
    bound: int | None
    capacity: int | None


def packing_page(
    answer: Allocation | BankAllocation,
    problem: Problem | None = None,
    beyond: Allocation | None = None,
    arena: Mapping[str, Any] | None = None,
) -> Page:
    """Make the page of a packing in one memory or in several.

    Parameters
    ----------
    answer, problem
        The packing, and its buffers where the packing does not have them.
    beyond
        If nothing fits, a packing that exceeds the capacity, which is drawn.
    arena
        Of a file of TFLM's, what makes its peak.
    """
    shown, proof, banks = answer, _proof(answer), None
    if isinstance(answer, Allocation):
        value, found = answer.peak, f"peak {format_bytes(answer.peak or 0)}"
        problem = answer.problem if problem is None else problem
        if beyond is not None:
            shown = replace(beyond, capacity=answer.capacity)
            proof += ". Drawn is a packing that exceeds the capacity"
    else:
        value = answer.cost
        found = f"cost {answer.cost or 0:,}"
        banks = answer.banks
    offsets, homes = shown.offsets, getattr(answer, "memory", None)
    count = 0 if offsets is None else len(offsets)
    count = count if problem is None else len(problem)

    def sections() -> list[Section]:
        rows = search_rows(answer, answer.seconds)
        rows |= {"Buffers": f"{count}", "Proof": proof or NOTHING}
        maps: list[Chart] = [_bars(shown)]
        fullest = []
        if problem is not None and problem.conflicts is None and offsets is not None:
            memories = _memories(problem, shown)
            maps = [memory_map(problem, offsets, each) for each in memories]
            fullest = [_fullest(problem, offsets, each) for each in memories]
        return [
            Section("", [Figures(_figures(shown))], ALL),
            Section("How it was found", [pairs(rows.items())], BOTH),
            Section("Memory over time", [Line(_HINT, "hint"), *maps], DRAWN),
            *fullest,
            Section("What makes the peak", _reasons(answer, arena or {}), BOTH),
        ]

    def rows() -> Iterable[Mapping[str, Any]]:
        for at, offset in enumerate([] if answer.offsets is None else answer.offsets.tolist()):
            home = {} if homes is None else {"memory": homes[at]}
            yield {"buffer": at, **home, "offset": offset}

    title = f"Allocation of {plural(count, 'buffer')}"
    if banks is not None:
        title += f" in {', '.join(bank.name for bank in banks)}"
    far = "" if value is None else f", {reached(answer.status, value, answer.lower_bound)}"
    axis = Axis(1.0)
    if problem is not None:
        first = int(problem.lower.min(initial=0))
        last = int(problem.upper.max(initial=1))
        axis = Axis(last, start=first, label="time (as in the file)")
    return Page(
        clipped(printable(title), 60),
        "Where each buffer lies in memory while it is alive",
        sections,
        axis,
        f"{answer.status}, {'no packing' if value is None else found}{far}",
        rows,
    )


def _memories(problem: Problem, answer: Allocation | BankAllocation) -> list[Memory]:
    if isinstance(answer, Allocation):
        every, bound = np.arange(len(problem)), answer.lower_bound
        return [Memory("memory", every, answer.peak or 0, bound, answer.capacity)]
    homes, packed = np.array(answer.memory), answer.packings
    return [
        Memory(
            bank.name,
            np.flatnonzero(homes == bank.name),
            packed[bank.name].peak or 0,
            None,
            bank.capacity,
        )
        for bank in answer.banks
    ]


def _sizes(answer: Allocation | BankAllocation) -> dict[str, int]:
    """Return peaks and, of one memory, the lower bound and the capacity, by name."""
    if isinstance(answer, BankAllocation):
        return {f"Peak of {name}": each.peak or 0 for name, each in answer.packings.items()}
    bound, capacity = answer.lower_bound, answer.capacity
    sizes = {"Peak": answer.peak, "Lower bound": bound, "Capacity": capacity}
    return {name: size for name, size in sizes.items() if size is not None}


def _figures(answer: Allocation | BankAllocation) -> list[Figure]:
    """List peaks, bounds and capacities."""
    figures = {name: Figure(name, exact_bytes(size)) for name, size in _sizes(answer).items()}
    if isinstance(answer, Allocation):
        if answer.peak is not None:
            figures["Peak"] = bounded("Peak", answer.peak, answer.lower_bound, exact_bytes)
        return list(figures.values())
    for bank in answer.banks:
        if figure := figures.get(f"Peak of {bank.name}"):
            packed = answer.packings[bank.name].offsets
            room = "" if bank.capacity is None else f"of {format_bytes(bank.capacity)}, "
            holds = room + plural(0 if packed is None else len(packed), "buffer")
            figures[figure.name] = replace(figure, distance=holds)
    name = "Cost of spilling"
    bound = answer.lower_bound
    digits = "{:,.0f}".format
    cost = Figure(name, NOTHING, digits(bound))
    if answer.cost is not None:
        cost = bounded(name, answer.cost, bound, digits)
    return [cost, *figures.values()]


def _bars(answer: Allocation | BankAllocation) -> Timeline:
    """Make a bar for each size: nothing was packed, or there is no time to draw it over."""
    sizes = _sizes(answer)
    names = [f"{name.removeprefix('Peak of ')} {format_bytes(n)}" for name, n in sizes.items()]
    shapes = [Shape(0, size, lane, lane + 1) for lane, size in enumerate(sizes.values())]
    return Timeline("", names, shapes)


def _reasons(answer: Allocation | BankAllocation, arena: Mapping[str, Any]) -> list[Part]:
    """Say what makes the peak of an arena of TFLM's."""
    if isinstance(answer, BankAllocation) or "peaks" not in arena:
        return []
    reasons = pairs(reason_rows(arena, answer.peak or answer.lower_bound))
    gained = answer.peak != arena["head_before"]
    return [reasons, Line("" if gained else NOTHING_GAINED[answer.status])]


def _proof(answer: Allocation | BankAllocation) -> str:
    """Say what proves the bound, or that nothing fits."""
    proof = answer.reason if isinstance(answer, BankAllocation) else answer.certificate
    if isinstance(proof, Infeasibility):
        return f"Nothing fits: {proof}"
    if isinstance(proof, Load):
        when = "two by two" if proof.instant is None else f"at instant {proof.instant}"
        return f"{plural(len(proof.buffers), 'buffer')} need {proof.bytes:,} bytes together {when}"
    return proof or ""


def memory_map(problem: Problem, offsets: Ints, memory: Memory) -> MemoryMap:
    """Make the map of a memory: a rectangle for each part of a buffer."""
    parts = problem.parts
    mine = np.flatnonzero(np.isin(parts.owner, memory.members))
    owners = parts.owner[mine]
    low = offsets[owners] + parts.low[mine]
    high = offsets[owners] + parts.high[mine]
    columns = (parts.lower[mine], parts.upper[mine], low, high, owners)

    def tip(buffer: int) -> dict[str, str]:
        return {"name": problem.name(buffer)}

    shapes = [
        Shape(start, end, bottom, top, partial(tip, buffer), buffer)
        for start, end, bottom, top, buffer in zip(*map(np.ndarray.tolist, columns), strict=True)
    ]
    return MemoryMap(memory.name, shapes, memory.peak, memory.bound, memory.capacity)


def _fullest(problem: Problem, offsets: Ints, memory: Memory) -> Section:
    """List the largest buffers that are alive when the most bytes of the memory are. O(buffers log
    buffers)."""
    heading = f"When the most of {memory.name} is in use"
    mine = memory.members
    if not len(mine):
        return Section(heading, [Line(f"Nothing is in {memory.name}.")])
    (peak,) = peaks(problem, mine)
    rows: list[Row] = [
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
    return Section(heading, [Line(said, "hint"), first_rows(rows, _LISTED, "smaller buffer")])

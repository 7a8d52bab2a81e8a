"""A packing's page, its summary in the terminal, and its view in notebooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.allocation.memories.problem import BankAllocation
from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Allocation, Infeasibility, Load, Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.arena import NOTHING_GAINED, reason_rows
from loadmaster.report.text import NOTHING, clipped, plural, printable, reached, search_rows
from loadmaster.report.view import (
    Axis,
    Bar,
    Box,
    Figure,
    Figures,
    Line,
    MemoryMap,
    Page,
    Part,
    Section,
    Table,
    View,
    bounded,
    first_rows,
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
    problem: Problem, answer: Allocation | BankAllocation, beyond: Allocation | None = None
) -> Page:
    """Make the page of a packing in one memory or in several.

    ``answer`` has offsets; if it has none, ``beyond`` is a packing that exceeds the capacity.
    """
    shown, proof = answer, _proof(answer)
    if beyond is not None and isinstance(answer, Allocation):
        shown = replace(beyond, capacity=answer.capacity)
        proof += ". Drawn is a packing that exceeds the capacity"
    offsets = shown.offsets
    assert offsets is not None
    memories, count = _memories(problem, shown), plural(len(problem), "buffer")
    spent = f"{count}; {format_seconds(answer.seconds)}, {answer.strategy}, seed {answer.seed}"
    status = Figure("Status", answer.status, distance=spent)
    maps = [memory_map(problem, offsets, each) for each in memories]
    axis = Axis(
        int(problem.upper.max(initial=1)),
        start=int(problem.lower.min(initial=0)),
        label="time (as in the file)",
    )
    head = [Figures([*_figures(shown, format_bytes), status]), Line(f"{proof}." if proof else "")]
    sections = [
        Section("", head),
        Section("Memory over time", [Line(_HINT, "hint"), *maps]),
        *(_fullest(problem, offsets, each) for each in memories),
    ]
    return Page(count, "Where each buffer lies in memory while it is alive", sections, axis)


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


def _figures(answer: Allocation | BankAllocation, shown: Callable[[float], str]) -> list[Figure]:
    """List peaks, bounds and capacities; ``shown`` formats bytes."""
    figures = {name: Figure(name, shown(size)) for name, size in _sizes(answer).items()}
    if isinstance(answer, Allocation):
        if answer.peak is not None:
            figures["Peak"] = bounded("Peak", answer.peak, answer.lower_bound, shown)
        return list(figures.values())
    for bank in answer.banks:
        if figure := figures.get(f"Peak of {bank.name}"):
            packed = answer.packings[bank.name].offsets
            room = "" if bank.capacity is None else f"of {shown(bank.capacity)}, "
            holds = room + plural(0 if packed is None else len(packed), "buffer")
            figures[figure.name] = replace(figure, distance=holds)
    name, bound, digits = "Cost of spilling", answer.lower_bound, "{:,.0f}".format
    cost = Figure(name, NOTHING, digits(bound))
    if answer.cost is not None:
        cost = bounded(name, answer.cost, bound, digits)
    return [cost, *figures.values()]


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
    low, high = offsets[owners] + parts.low[mine], offsets[owners] + parts.high[mine]
    columns = (parts.lower[mine], parts.upper[mine], low, high, owners)
    boxes = [Box(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def tip(item: int) -> dict[str, str]:
        return {"name": problem.name(int(owners[item]))}

    return MemoryMap(memory.name, boxes, tip, memory.peak, memory.bound, memory.capacity)


def _fullest(problem: Problem, offsets: Ints, memory: Memory) -> Section:
    """List the largest buffers that are alive when the most bytes of the memory are. O(buffers log
    buffers)."""
    heading, mine = f"When the most of {memory.name} is in use", memory.members
    if not len(mine):
        return Section(heading, [Line(f"Nothing is in {memory.name}.")])
    (peak,) = peaks(problem, mine)
    rows = [
        (
            problem.name(b),
            format_bytes(int(problem.size[b])),
            f"{offsets[b]:,}",
            f"{problem.lower[b]} to {problem.upper[b]}",
        )
        for b in peak.buffers
    ]
    said = (
        f"At instant {peak.instant}: {plural(len(peak.buffers), 'buffer')} with"
        f" {format_bytes(peak.bytes)}, gaps in them included."
    )
    columns = ("Buffer", ">Size", ">Address", ">Alive")
    table = first_rows(columns, rows, _LISTED, "smaller buffer")
    return Section(heading, [Line(said, "hint"), table])


def packing_summary(
    problem: Problem, answer: Allocation | BankAllocation, arena: Mapping[str, Any]
) -> Iterable[Part]:
    """Iterate over tables of the answer and its bounds; ``arena`` says of a file of TFLM's what
    makes its peak."""
    rows = {
        **search_rows(answer, answer.seconds),
        "Buffers": f"{len(problem)}",
        "Proof": _proof(answer) or NOTHING,
    }
    yield Table(("", "~"), list(rows.items()))
    yield Figures(_figures(answer, lambda size: f"{size:.0f} ({format_bytes(size)})"))
    if isinstance(answer, Allocation) and "peaks" in arena:
        yield Table(("", "~"), reason_rows(arena, answer.peak or answer.lower_bound))
        if answer.peak == arena["head_before"]:
            yield Line(NOTHING_GAINED[answer.status])


def view(answer: Allocation | BankAllocation) -> View:
    """Make the view of a packing in notebooks."""
    one = isinstance(answer, Allocation)
    value = answer.peak if isinstance(answer, Allocation) else answer.cost
    homes = None if isinstance(answer, Allocation) else answer.memory
    offsets = [] if answer.offsets is None else answer.offsets.tolist()
    found = "no packing"
    if value is not None:
        what = f"peak {format_bytes(value)}" if one else f"cost {value:,}"
        found = f"{what}, {reached(answer.status, value, answer.lower_bound)}"

    def pictures() -> Iterable[MemoryMap | Sequence[Bar]]:
        problem = answer.problem if isinstance(answer, Allocation) else None
        if answer.offsets is None or problem is None or problem.conflicts is not None:
            # Nothing was packed, or there is no time to draw it over.
            yield [Bar(name, size, format_bytes(size)) for name, size in _sizes(answer).items()]
        else:
            yield memory_map(problem, answer.offsets, _memories(problem, answer)[0])

    def rows() -> Iterable[Mapping[str, Any]]:
        for at, offset in enumerate(offsets):
            home = {} if homes is None else {"memory": homes[at]}
            yield {"buffer": at, **home, "offset": offset}

    title = f"Allocation of {plural(len(offsets), 'buffer')}"
    if isinstance(answer, BankAllocation):
        title += f" in {', '.join(bank.name for bank in answer.banks)}"
    figures = _figures(answer, format_bytes)
    return View(clipped(printable(title), 60), f"{answer.status}, {found}", figures, pictures, rows)

"""A packing's page, its summary in the terminal, and its view in notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.allocation.answer import Allocation, Infeasibility, Load
from loadmaster.allocation.memories.problem import BankAllocation
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.text import clipped, plural, printable, reached
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
_COLUMNS, _ROWS = 64, 10
"""Characters of the map in a terminal."""
_MAPPED = 50_000
"""The most buffers of which a map is drawn in a terminal."""


@dataclass(frozen=True)
class _Memory:
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
    shown = answer
    if beyond is not None and isinstance(answer, Allocation):
        shown = replace(beyond, capacity=answer.capacity)
    offsets = shown.offsets
    assert offsets is not None
    memories, count = _memories(problem, shown), plural(len(problem), "buffer")
    spent = f"{count}; {format_seconds(answer.seconds)}, {answer.strategy}, seed {answer.seed}"
    cards = [*map(_peak_figure, memories), Figure("Status", answer.status, detail=spent)]
    maps = [memory_map(problem, offsets, each) for each in memories]
    axis = Axis(
        int(problem.upper.max(initial=1)),
        start=int(problem.lower.min(initial=0)),
        label="time (as in the file)",
    )
    sections = [
        Section("", [Figures(cards), Line(_proof(answer))]),
        Section("Memory over time", [Line(_HINT, "hint"), *maps]),
        *(_fullest(problem, offsets, each) for each in memories),
    ]
    return Page(count, "Where each buffer lies in memory while it is alive", sections, axis)


def _memories(problem: Problem, answer: Allocation | BankAllocation) -> list[_Memory]:
    if isinstance(answer, Allocation):
        every, bound = np.arange(len(problem)), answer.lower_bound
        return [_Memory("memory", every, answer.peak or 0, bound, answer.capacity)]
    homes, packed = np.array(answer.memory), answer.packings
    return [
        _Memory(
            bank.name,
            np.flatnonzero(homes == bank.name),
            packed[bank.name].peak or 0,
            None,
            bank.capacity,
        )
        for bank in answer.banks
    ]


def _peak_figure(memory: _Memory) -> Figure:
    name = f"Peak of {memory.name}"
    room = "" if memory.capacity is None else f"capacity {format_bytes(memory.capacity)}"
    if memory.bound is None:
        return Figure(name, format_bytes(memory.peak), "", room, room)
    figure = bounded(name, memory.peak, memory.bound, format_bytes)
    return replace(figure, detail="; ".join(filter(None, (figure.detail, room))))


def _proof(answer: Allocation | BankAllocation) -> str:
    """Say what proves the bound."""
    if isinstance(answer, BankAllocation):
        return f"Spilling costs {answer.cost:,}; any packing costs at least {answer.lower_bound:,}."
    proof = answer.certificate
    if isinstance(proof, Infeasibility):
        return f"Nothing fits: {proof}. Drawn is a packing that exceeds the capacity."
    if isinstance(proof, Load):
        when = "two by two" if proof.instant is None else f"at instant {proof.instant}"
        return f"{plural(len(proof.buffers), 'buffer')} need {proof.bytes:,} bytes together {when}."
    return ""


def memory_map(problem: Problem, offsets: Ints, memory: _Memory) -> MemoryMap:
    """Make the map of a memory: a rectangle for each part of a buffer."""
    parts = problem.parts
    mine = np.flatnonzero(np.isin(parts.owner, memory.members))
    owners = parts.owner[mine]
    low, high = offsets[owners] + parts.low[mine], offsets[owners] + parts.high[mine]
    columns = (parts.lower[mine], parts.upper[mine], low, high, owners)
    boxes = [Box(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    def tip(items: Sequence[int]) -> dict[str, str]:
        return {"name": problem.name(int(owners[items[0]]))}

    return MemoryMap(memory.name, boxes, tip, memory.peak, memory.bound, memory.capacity)


def _fullest(problem: Problem, offsets: Ints, memory: _Memory) -> Section:
    """List the largest buffers that are alive when the most bytes of the memory are. O(buffers log
    buffers)."""
    heading, mine = f"When the most of {memory.name} is in use", memory.members
    if not len(mine):
        return Section(heading, [Line(f"Nothing is in {memory.name}.")])
    instants = np.concatenate((problem.lower[mine], problem.upper[mine]))
    change = np.concatenate((problem.size[mine], -problem.size[mine]))
    order = np.lexsort((change, instants))
    fullest = int(instants[order][int(np.argmax(np.cumsum(change[order])))])
    alive = mine[(problem.lower[mine] <= fullest) & (problem.upper[mine] > fullest)]
    alive = alive[np.argsort(-problem.size[alive], kind="stable")]
    rows = [
        (
            problem.name(b),
            format_bytes(int(problem.size[b])),
            f"{offsets[b]:,}",
            f"{problem.lower[b]} to {problem.upper[b]}",
        )
        for b in alive.tolist()
    ]
    said = (
        f"At instant {fullest}: {plural(len(alive), 'buffer')} with"
        f" {format_bytes(int(problem.size[alive].sum()))}, gaps in them included."
    )
    columns = ("Buffer", ">Size", ">Address", ">Alive")
    table = first_rows(heading, columns, rows, _LISTED, "smaller buffer")
    return Section(heading, [Line(said, "hint"), table])


def packing_summary(problem: Problem, answer: Allocation | BankAllocation) -> Iterable[Part]:
    """Iterate over tables of the answer and its bounds, and of memories or a coarse map."""
    rows = [
        ("Status", answer.status + (" (stopped early)" if answer.interrupted else "")),
        ("Buffers", f"{len(problem)}"),
        *(_one_memory(answer) if isinstance(answer, Allocation) else _several(answer)),
        ("Strategy", f"{answer.strategy}, seed {answer.seed}"),
        ("Took", f"{format_seconds(answer.seconds)} ({format_seconds(answer.cpu_seconds)} of CPU)"),
    ]
    yield Table("Packing", ("", "~"), rows)
    if isinstance(answer, BankAllocation):
        if answer.packings:
            yield _banks(answer)
    elif answer.offsets is not None and answer.peak and len(problem) <= _MAPPED:
        yield Line(_map(problem, answer.offsets, answer.peak))


def _bytes(size: int) -> str:
    return f"{size} ({format_bytes(size)})"


def _over(value: int, bound: int) -> str:
    return f", {value / bound - 1:.2%} over the bound" if value > bound > 0 else ""


def _one_memory(answer: Allocation) -> Iterable[tuple[str, str]]:
    if answer.peak is not None:
        yield "Peak", _bytes(answer.peak) + _over(answer.peak, answer.lower_bound)
    yield "Lower bound", _bytes(answer.lower_bound)
    if answer.capacity is not None:
        yield "Capacity", _bytes(answer.capacity)
    proof = answer.certificate
    if isinstance(proof, Load):
        when = ", two by two" if proof.instant is None else f" at instant {proof.instant}"
        yield "Proof", f"{proof.bytes} bytes needed by {len(proof.buffers)} buffers{when}"
    elif proof is not None:
        yield "Proof" if isinstance(proof, str) else "Reason", str(proof)


def _several(answer: BankAllocation) -> Iterable[tuple[str, str]]:
    if answer.cost is not None:
        yield "Cost", f"{answer.cost}{_over(answer.cost, answer.lower_bound)}"
    yield "Lower bound", f"{answer.lower_bound}"
    if answer.reason is not None:
        yield "Reason", str(answer.reason)


def _banks(answer: BankAllocation) -> Table:
    rows = []
    for bank in answer.banks:
        packing = answer.packings[bank.name]
        count = 0 if packing.offsets is None else len(packing.offsets)
        room = "as it takes" if bank.capacity is None else _bytes(bank.capacity)
        rows.append((bank.name, f"{count}", _bytes(packing.peak or 0), room))
    return Table("Memories", ("Memory", ">Buffers", ">Peak", ">Capacity"), rows)


def _map(problem: Problem, offsets: Ints, peak: int) -> str:
    """Draw a map with time to the right and addresses upwards; a darker cell is fuller."""
    parts = problem.parts
    low, high = offsets[parts.owner] + parts.low, offsets[parts.owner] + parts.high
    begin, end = int(parts.lower.min()), int(parts.upper.max())
    height = peak / _ROWS
    floors = np.arange(_ROWS)[:, None] * height
    shades, lines = " .:-=+*#%@", [""] * _ROWS
    for column in range(_COLUMNS):
        instant = begin + (column + 0.5) * (end - begin) / _COLUMNS
        alive = (parts.lower <= instant) & (parts.upper > instant)
        covered = np.minimum(high[alive], floors + height) - np.maximum(low[alive], floors)
        full = np.maximum(covered, 0).sum(axis=1) / height
        lines = [
            line + shades[min(9, int(share * 9.999))]
            for line, share in zip(lines, full.tolist(), strict=True)
        ]
    drawn = "\n".join(f"|{line}|" for line in lines[::-1])
    return f"{drawn}\nFrom instant {begin} to {end}, from address 0 (below) to {peak}."


def view(answer: Allocation | BankAllocation) -> View:
    """Make the view of a packing in notebooks."""
    return _allocation(answer) if isinstance(answer, Allocation) else _bank_allocation(answer)


def _allocation(answer: Allocation) -> View:
    offsets, peak, problem = answer.offsets, answer.peak, answer.problem
    levels = {"Peak": peak, "Lower bound": answer.lower_bound, "Capacity": answer.capacity}
    known = [
        Bar(name, size, format_bytes(size)) for name, size in levels.items() if size is not None
    ]
    far = "" if peak is None else reached(answer.status, peak, answer.lower_bound)
    found = "no packing" if peak is None else f"peak {format_bytes(peak)}, {far}"

    def pictures() -> Iterable[MemoryMap | Sequence[Bar]]:
        if offsets is None or peak is None or problem is None or problem.conflicts is not None:
            # Nothing was packed, or there is no time to draw it over.
            yield known
        else:
            yield memory_map(problem, offsets, _memories(problem, answer)[0])

    def rows() -> Iterable[Mapping[str, Any]]:
        numbered = enumerate([] if offsets is None else offsets.tolist())
        return ({"buffer": at, "offset": offset} for at, offset in numbered)

    title = f"Allocation of {plural(0 if offsets is None else len(offsets), 'buffer')}"
    figures = [Figure(bar.name, bar.text) for bar in known]
    return View(title, f"{answer.status}, {found}", figures, pictures, rows)


def _bank_allocation(answer: BankAllocation) -> View:
    memory, cost = answer.memory or (), answer.cost
    offsets = [] if answer.offsets is None else answer.offsets.tolist()
    figures, bars, found = [], [], "no packing"
    if cost is not None:
        figures.append(bounded("Cost", cost, answer.lower_bound, lambda value: f"{value:,.0f}"))
        found = f"cost {cost:,}, {reached(answer.status, cost, answer.lower_bound)}"
    for bank in answer.banks if answer.packings else ():
        peak = answer.packings[bank.name].peak or 0
        room = "" if bank.capacity is None else f"of {format_bytes(bank.capacity)}"
        figures.append(Figure(f"Peak {bank.name}", format_bytes(peak), "", room))
        bars.append(Bar(bank.name, peak, format_bytes(peak)))

    def rows() -> Iterable[Mapping[str, Any]]:
        places = enumerate(zip(memory, offsets, strict=True))
        return ({"buffer": at, "memory": name, "offset": offset} for at, (name, offset) in places)

    names = ", ".join(bank.name for bank in answer.banks)
    title = clipped(printable(f"Allocation of {plural(len(memory), 'buffer')} in {names}"), 60)
    return View(title, f"{answer.status}, {found}", figures, lambda: [bars], rows)

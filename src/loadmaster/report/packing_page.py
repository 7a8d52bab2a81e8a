"""The HTML report of a packing: the map of every memory over time, with peak, bound and capacity,
and what holds the bound."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from bokeh.models import Range1d
from bokeh.models.annotations import Span
from bokeh.plotting import figure

from loadmaster.allocation.answer import Allocation, Infeasibility, Load
from loadmaster.allocation.memories.problem import BankAllocation
from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.charts import cursor, framed, hover, level, movable, rectangles, wide_range
from loadmaster.report.colours import PALETTE
from loadmaster.report.memory_map import BOUND, CAPACITY, PEAK, TALL, scale_for
from loadmaster.report.merging import MAX_SHAPES
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.tables import card, table
from loadmaster.report.text import Html, chart_text, clipped, percent, plural, printable, to_html

_HINT = (
    "Drag to pan, hold Ctrl and scroll to zoom in time, or use arrows, + and -; 0 resets. Hover"
    " over a rectangle for its buffer. Colours only tell neighbours apart."
)
_LISTED = 30


@dataclass(frozen=True)
class MemoryMap:
    """One memory with the buffers in it; sizes in bytes."""

    name: str
    members: Ints
    peak: int
    lower_bound: int | None
    capacity: int | None


def render_packing(
    problem: Problem, answer: Allocation | BankAllocation, beyond: Allocation | None = None
) -> str:
    """Render the page of a packing in one memory or in several; the same packing gives the same
    text.

    ``answer`` has offsets; if it has none, ``beyond`` is a packing that exceeds the capacity.
    """
    shown = answer
    if beyond is not None and isinstance(answer, Allocation):
        shown = replace(beyond, capacity=answer.capacity)
    offsets = shown.offsets
    assert offsets is not None
    page, maps = Page(), _maps(problem, shown)
    begin, end = int(problem.lower.min(initial=0)), int(problem.upper.max(initial=1))
    x_range, line = wide_range(float(begin), float(max(end, begin + 1))), cursor()
    drawn = [page.place(draw_memory(problem, offsets, each, x_range, line)) for each in maps]
    spent = f"{format_seconds(answer.seconds)}, {answer.strategy}, seed {answer.seed}"
    cards = [
        *map(_card, maps),
        card("Status", answer.status, f"{plural(len(problem), 'buffer')}; {spent}"),
    ]
    head = section("", Html(f"<div class=cards>{''.join(cards)}</div>"), _proof(answer))
    sections = [
        head,
        section("Memory over time", hint(_HINT), *drawn),
        *(_peak(problem, offsets, each) for each in maps),
    ]
    return in_page(
        plural(len(problem), "buffer"),
        "Where each buffer lies in memory while it is alive",
        sections,
        page,
    )


def _maps(problem: Problem, answer: Allocation | BankAllocation) -> list[MemoryMap]:
    if isinstance(answer, Allocation):
        return [
            MemoryMap(
                "memory",
                np.arange(len(problem)),
                answer.peak or 0,
                answer.lower_bound,
                answer.capacity,
            )
        ]
    homes = np.array(answer.memory)
    return [
        MemoryMap(
            bank.name,
            np.flatnonzero(homes == bank.name),
            answer.packings[bank.name].peak or 0,
            None,
            bank.capacity,
        )
        for bank in answer.banks
    ]


def _card(memory: MemoryMap) -> Html:
    bound = "" if memory.lower_bound is None else f"lower bound {format_bytes(memory.lower_bound)}"
    if memory.lower_bound:
        bound += (
            f", {percent(memory.peak / memory.lower_bound - 1)} above"
            if memory.peak > memory.lower_bound
            else ", which it meets"
        )
    room = "" if memory.capacity is None else f"capacity {format_bytes(memory.capacity)}"
    return card(
        f"Peak of {memory.name}", format_bytes(memory.peak), "; ".join(filter(None, (bound, room)))
    )


def _proof(answer: Allocation | BankAllocation) -> Html:
    if isinstance(answer, BankAllocation):
        return Html(
            f"<p>Spilling costs {answer.cost:,}; any packing costs at least"
            f" {answer.lower_bound:,}.</p>"
        )
    proof = answer.certificate
    if isinstance(proof, Infeasibility):
        return Html(
            f"<p>Nothing fits: {to_html(str(proof))}. Drawn is a packing that exceeds the"
            " capacity.</p>"
        )
    if not isinstance(proof, Load):
        return Html("")
    when = "two by two" if proof.instant is None else f"at instant {proof.instant}"
    return Html(
        f"<p>{plural(len(proof.buffers), 'buffer')} need {proof.bytes:,} bytes together {when}.</p>"
    )


def draw_memory(
    problem: Problem,
    offsets: Ints,
    memory: MemoryMap,
    x_range: Range1d,
    line: Span,
    time: str = "time (as in the file)",
) -> tuple[figure, str]:
    """Draw address against time, a rectangle for each part of a buffer; the smallest are left out
    if there are too many."""
    parts = problem.parts
    mine = np.flatnonzero(np.isin(parts.owner, memory.members))
    area = (parts.upper - parts.lower)[mine].astype(float) * (parts.high - parts.low)[mine]
    kept = mine[np.sort(np.argsort(-area, kind="stable")[:MAX_SHAPES])]
    close = memory.capacity is not None and memory.capacity <= TALL * max(1, memory.peak)
    most = max(1, memory.peak, (memory.capacity or 0) if close else 0)
    scale = scale_for(most)
    title = f"{chart_text(clipped(memory.name, 40))}: peak {format_bytes(memory.peak)}"
    y_range = Range1d(start=0, end=1.08 * most / scale.bytes)
    plot = framed(
        title,
        420,
        x_range,
        y_range,
        time,
        f"address ({scale.name})",
        tools="xpan,reset",
    )
    movable(plot, line, box="both")
    owner = parts.owner[kept].tolist()
    low, high = (offsets[parts.owner[kept]] + edge[kept] for edge in (parts.low, parts.high))
    data = {
        "left": parts.lower[kept].tolist(),
        "right": parts.upper[kept].tolist(),
        "bottom": (low / scale.bytes).tolist(),
        "top": (high / scale.bytes).tolist(),
        "colour": [PALETTE[buffer % len(PALETTE)] for buffer in owner],
        "name": [printable(problem.name(buffer)) for buffer in owner],
        "size": [format_bytes(int(problem.size[buffer])) for buffer in owner],
        "address": [f"{a:,} to {b:,}" for a, b in zip(low.tolist(), high.tolist(), strict=True)],
        "time": [
            f"{a} to {b}"
            for a, b in zip(parts.lower[kept].tolist(), parts.upper[kept].tolist(), strict=True)
        ],
    }
    hover(
        plot,
        [rectangles(plot, data, "colour", 0.6)],
        "name",
        (("size", "size"), ("address", "address"), ("alive", "time")),
    )
    _levels(plot, memory, scale.bytes, close)
    left_out = len(mine) - len(kept)
    return (
        plot,
        (
            f"The {plural(left_out, 'smallest rectangle')} (bytes x time) are not drawn."
            if left_out
            else ""
        ),
    )


def _levels(plot: figure, memory: MemoryMap, scale: int, close: bool) -> None:
    if close and memory.capacity is not None:
        level(
            plot,
            memory.capacity / scale,
            f"capacity {format_bytes(memory.capacity)}",
            CAPACITY,
            "solid",
        )
    at_bound = memory.peak == memory.lower_bound
    text = f"peak {format_bytes(memory.peak)}" + (", which is the lower bound" if at_bound else "")
    level(plot, memory.peak / scale, text, PEAK, "dashed", below=True)
    if memory.lower_bound is not None and not at_bound:
        level(
            plot,
            memory.lower_bound / scale,
            f"lower bound {format_bytes(memory.lower_bound)}",
            BOUND,
            "dotted",
            below=True,
        )


def _peak(problem: Problem, offsets: Ints, memory: MemoryMap) -> Html:
    """Make a table of the largest buffers that are alive when the most bytes of the memory are.
    O(buffers log buffers)."""
    heading = f"When the most of {memory.name} is in use"
    mine = memory.members
    if not len(mine):
        return section(heading, Html(f"<p>Nothing is in {to_html(memory.name)}.</p>"))
    (peak,) = peaks(problem, mine)
    alive = peak.buffers
    rows = [
        (
            problem.name(b),
            format_bytes(int(problem.size[b])),
            f"{offsets[b]:,}",
            f"{problem.lower[b]} to {problem.upper[b]}",
        )
        for b in alive[:_LISTED]
    ]
    more = f"and {plural(len(alive) - _LISTED, 'smaller buffer')}" if len(alive) > _LISTED else ""
    said = (
        f"At instant {peak.instant}: {plural(len(alive), 'buffer')} with"
        f" {format_bytes(peak.bytes)}, gaps in them included."
    )
    return section(
        heading,
        hint(said),
        table(heading, ("Buffer", ">Size", ">Address", ">Alive"), rows),
        hint(more),
    )

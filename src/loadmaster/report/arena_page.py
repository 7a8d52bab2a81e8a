"""The HTML report of a plan of TFLM's arena: the memory over the operators before and after, what
makes the peak, and what bands offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.models import Range1d
from bokeh.plotting import figure

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes
from loadmaster.report.arena import reason_rows
from loadmaster.report.charts import cursor, framed, hover, wide_range
from loadmaster.report.colours import PALETTE
from loadmaster.report.memory_map import scale_for
from loadmaster.report.packing_page import MemoryMap, draw_memory
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.tables import card, table
from loadmaster.report.text import Html, percent, printable

Placed = tuple[Problem, Ints]
"""Buffers, and their addresses."""
_NO_TIME = (
    "Work counts multiply-accumulates. Time is not estimated: it grows by more, as early layers are"
    " slow for each and slices copy. Measure it on the target."
)


def render_arena(figures: Mapping[str, Any], before: Placed, after: Placed) -> str:
    """Render the page; ``figures`` are those of ``--json``."""
    page, head = Page(), figures["head"]
    cards = [
        card("Head before", format_bytes(figures["head_before"]), "as TFLM places it"),
        card("Head", format_bytes(head), f"{figures['status']} for these buffers"),
        card("Multiply-accumulates", f"x {figures['work']:.3f}", "of those before"),
    ]
    maps = [
        page.place(_memory(placed, name, peak))
        for placed, name, peak in (
            (before, "before", figures["head_before"]),
            (after, "with the plan", head),
        )
    ]
    refused = hint(f"No model is written: {figures['reason']}." if figures["reason"] else "")
    sections = [
        section("", Html(f"<div class=cards>{''.join(cards)}</div>"), refused),
        section("Memory over the operators", hint(_instants(figures)), *maps),
        section("Why", table("Why", ("What", "Found"), reason_rows(figures, head))),
    ]
    if figures["front"]:
        rows = [
            (f"{each['head_at_least']:,}", percent(each["work"] - 1), each["bands"])
            for each in figures["front"]
        ]
        columns = (">Head at least (bytes)", ">More work", ">Bands")
        drawn = page.place(_front(figures["front"]))
        sections.append(
            section("In bands", drawn, hint(_NO_TIME), table("In bands", columns, rows))
        )
    title = f"The arena of {printable(figures['model'])}"
    return in_page(title, "What lies where while each operator runs", sections, page)


def _instants(figures: Mapping[str, Any]) -> str:
    halves = " With bands two instants are an operator." if figures["bands"] else ""
    return f"An instant is an operator, those of a subgraph each time that it runs.{halves}"


def _memory(placed: Placed, name: str, peak: int) -> tuple[figure, str]:
    problem, addresses = placed
    memory = MemoryMap(name, np.arange(len(problem)), peak, None, None)
    end = float(problem.upper.max(initial=1))
    return draw_memory(problem, addresses, memory, wide_range(0.0, end), cursor(), "instant")


def _front(choices: Sequence[Mapping[str, Any]]) -> tuple[figure, str]:
    """Draw the head over the extra work, as steps: between two choices the one before holds."""
    top, most = choices[0]["head_at_least"], choices[-1]["work"] - 1
    scale = scale_for(top)
    plot = framed(
        "Head at least, over extra work",
        320,
        Range1d(start=-0.02 * most, end=1.04 * most or 1.0),
        Range1d(start=0, end=1.08 * top / scale.bytes),
        "extra multiply-accumulates (share)",
        f"head ({scale.name})",
    )
    data = {
        "x": [each["work"] - 1 for each in choices],
        "y": [each["head_at_least"] / scale.bytes for each in choices],
        "name": [format_bytes(each["head_at_least"]) for each in choices],
        "work": [percent(each["work"] - 1) for each in choices],
        "bands": [each["bands"] for each in choices],
    }
    plot.step(data["x"], data["y"], mode="after", line_color=PALETTE[0])
    marks = plot.scatter("x", "y", source=data, size=8, color=PALETTE[0])
    hover(plot, [marks], "name", (("more work", "work"), ("bands", "bands")))
    return plot, ""

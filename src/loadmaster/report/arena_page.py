"""The page of a plan of TFLM's arena: the memory over the operators before and after, what makes
the peak, and what bands offer."""

from __future__ import annotations

import numpy as np

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.report.arena import arena_notes, arena_rows, front_table
from loadmaster.report.packing import regions
from loadmaster.report.view import (
    BOTH,
    Axis,
    Json,
    Line,
    MemoryMap,
    Notes,
    Page,
    Section,
    pairs,
)

Placed = tuple[Problem, Ints]
"""Buffers, and their addresses."""
_TIME = (
    "Work counts multiply-accumulates. Time is estimated for TFLM's reference kernels, in which"
    " those of depthwise layers take longer than others, and slices copy. Measure it on the target."
)


def arena_page(figures: Json, *placed: Placed) -> Page:
    """Make the page of a plan of TFLM's arena.

    Parameters
    ----------
    figures
        As in ``--json``.
    placed
        Buffers before and with the plan, which are drawn.
    """
    peaks = (("before", figures["head_before"]), ("with the plan", figures["head"]))
    maps = [
        MemoryMap(name, regions(problem, addresses, np.arange(len(problem))), peak)
        for (problem, addresses), (name, peak) in zip(placed, peaks, strict=False)
    ]
    halves = " With bands two instants are an operator." if figures["bands"] else ""
    instants = f"An instant is an operator, those of a subgraph each time that it runs.{halves}"
    sections = [
        Section("Memory over the operators", [Line(instants, "hint"), *maps]),
        Section("The plan", [pairs(arena_rows(figures)), Notes(list(arena_notes(figures)))], BOTH),
        Section("In bands", [front_table(figures["front"]), Line(_TIME, "hint")], BOTH),
    ]
    last = max((int(problem.upper.max(initial=1)) for problem, _ in placed), default=1)
    title = f"The arena of {figures['model']}"
    axis = Axis(last, label="instant")
    return Page(title, "What lies where while each operator runs", lambda: sections, axis)

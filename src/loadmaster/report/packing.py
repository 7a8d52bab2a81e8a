"""The summary of a packing in the terminal: a table, and a coarse map of the memory over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.allocation.answer import Allocation, Load
from loadmaster.allocation.memories.problem import BankAllocation
from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.arena import NOTHING_GAINED, reason_rows

_COLUMNS, _ROWS = 64, 10
_MAPPED = 50_000
"""The most buffers of which a map is drawn."""


def packing_summary(
    problem: Problem, answer: Allocation, figures: Mapping[str, Any]
) -> RenderableType:
    """Make a table of the answer and its bounds, and a map if there is a packing; ``figures`` say
    of an arena what makes its peak."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _rows(problem, answer):
        table.add_row(name, value)
    if "peaks" in figures:
        for name, value in reason_rows(figures, answer.peak or answer.lower_bound):
            table.add_row(name, value)
        if answer.peak == figures["head_before"]:
            table.add_row("", NOTHING_GAINED[answer.status])
    if answer.offsets is None or not answer.peak or len(problem) > _MAPPED:
        return table
    return Group(table, Text(), _map(problem, answer.offsets, answer.peak))


def banks_summary(problem: Problem, answer: BankAllocation) -> RenderableType:
    """Make tables of the answer and its bounds, and of the memories."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("Status", answer.status + (" (stopped early)" if answer.interrupted else ""))
    table.add_row("Buffers", f"{len(problem)}")
    if answer.cost is not None:
        over = (
            f", {answer.cost / answer.lower_bound - 1:.2%} over the bound"
            if answer.cost > answer.lower_bound > 0
            else ""
        )
        table.add_row("Cost", f"{answer.cost}{over}")
    table.add_row("Lower bound", f"{answer.lower_bound}")
    if answer.reason is not None:
        table.add_row("Reason", str(answer.reason))
    table.add_row("Strategy", f"{answer.strategy}, seed {answer.seed}")
    table.add_row(
        "Took", f"{format_seconds(answer.seconds)} ({format_seconds(answer.cpu_seconds)} of CPU)"
    )
    if not answer.packings:
        return table
    memories = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("Memory", "Buffers", "Peak", "Capacity"):
        memories.add_column(heading, justify="left" if heading == "Memory" else "right")
    for bank in answer.banks:
        packing = answer.packings[bank.name]
        capacity = (
            "as it takes"
            if bank.capacity is None
            else f"{bank.capacity} ({format_bytes(bank.capacity)})"
        )
        count = 0 if packing.offsets is None else len(packing.offsets)
        memories.add_row(
            bank.name, f"{count}", f"{packing.peak} ({format_bytes(packing.peak or 0)})", capacity
        )
    return Group(table, Text(), memories)


def _rows(problem: Problem, answer: Allocation) -> list[tuple[str, str]]:
    rows = [
        ("Status", answer.status + (" (stopped early)" if answer.interrupted else "")),
        ("Buffers", f"{len(problem)}"),
    ]
    if answer.peak is not None:
        over = (
            f", {answer.peak / answer.lower_bound - 1:.2%} over the bound"
            if answer.peak > answer.lower_bound
            else ""
        )
        rows.append(("Peak", f"{answer.peak} ({format_bytes(answer.peak)}{over})"))
    rows.append(("Lower bound", f"{answer.lower_bound} ({format_bytes(answer.lower_bound)})"))
    if answer.capacity is not None:
        rows.append(("Capacity", f"{answer.capacity} ({format_bytes(answer.capacity)})"))
    if isinstance(answer.certificate, Load):
        when = (
            ", two by two"
            if answer.certificate.instant is None
            else f" at instant {answer.certificate.instant}"
        )
        where = f"{len(answer.certificate.buffers)} buffers{when}"
        rows.append(("Proof", f"{answer.certificate.bytes} bytes needed by {where}"))
    elif answer.certificate is not None:
        rows.append(
            ("Proof" if isinstance(answer.certificate, str) else "Reason", str(answer.certificate))
        )
    took = f"{format_seconds(answer.seconds)} ({format_seconds(answer.cpu_seconds)} of CPU)"
    return [*rows, ("Strategy", f"{answer.strategy}, seed {answer.seed}"), ("Took", took)]


def _map(problem: Problem, offsets: Ints, peak: int) -> Text:
    """Draw a map with time to the right and addresses upwards; a darker cell is fuller."""
    parts = problem.parts
    low, high = offsets[parts.owner] + parts.low, offsets[parts.owner] + parts.high
    begin, end = int(parts.lower.min()), int(parts.upper.max())
    columns, instants = (
        np.arange(_COLUMNS),
        begin + (np.arange(_COLUMNS) + 0.5) * (end - begin) / _COLUMNS,
    )
    height = peak / _ROWS
    full = np.zeros((_ROWS, _COLUMNS))
    for column, instant in zip(columns.tolist(), instants.tolist(), strict=True):
        alive = (parts.lower <= instant) & (parts.upper > instant)
        for row in range(_ROWS):
            covered = np.minimum(high[alive], (row + 1) * height) - np.maximum(
                low[alive], row * height
            )
            full[row, column] = np.maximum(covered, 0).sum() / height
    shades = " .:-=+*#%@"
    lines = ["".join(shades[min(9, int(share * 9.999))] for share in line) for line in full[::-1]]
    return Text(
        "\n".join(f"|{line}|" for line in lines)
        + f"\nFrom instant {begin} to {end}, from address 0 (below) to {peak}."
    )

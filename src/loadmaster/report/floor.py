"""The table that sets another planner's memory beside Loadmaster's and the bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_LONGEST_NAME = 32
"""Characters up to which names of arenas stay on one line."""
_COLUMNS = ("Arena", "Buffers", "Theirs", "Loadmaster", "Bound", "Status", "")


def floor_table(arenas: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Make a row of each arena, and lines for what is wrong with a plan; ``arenas`` as in
    ``--json``, figures in bytes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    longest = max((len(arena["name"]) for arena in arenas), default=0)
    for heading in _COLUMNS:
        table.add_column(
            heading,
            justify="left" if heading in ("Arena", "Status", "") else "right",
            overflow="fold",
            # Words of the verdict go to the next line before a name is broken.
            no_wrap=heading not in ("Arena", ""),
            min_width=min(longest, _LONGEST_NAME) if heading == "Arena" else None,
        )
    notes = []
    for arena in arenas:
        figures = [_figure(arena[name]) for name in ("theirs", "peak", "lower_bound")]
        table.add_row(
            arena["name"], str(arena["buffers"]), *figures, arena["status"], arena["verdict"]
        )
        stated, recomputed = arena["theirs_stated"], arena["theirs"]
        if stated is not None and stated != recomputed:
            notes.append(
                f"{arena['name']}: the dump states {_figure(stated)} bytes; its own addresses take"
                f" {_figure(recomputed)}."
            )
        notes += [
            f"{arena['name']}: {each['rule']}: {each['message']}" for each in arena["violations"]
        ]
        if arena.get("reason") is not None:
            needed, available = (
                _figure(arena["reason"][name]) for name in ("required", "available")
            )
            notes.append(
                f"{arena['name']}: {arena['reason']['kind']}: {needed} bytes required, {available}"
                " available."
            )
    return Group(table, *(Text(note) for note in notes))


def _figure(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def transients_table(packs: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Make a row of each transient resource of an IREE program; ``packs`` as in ``--json``, figures
    in bytes."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("Function", "Slices", "IREE", "Loadmaster", "Bound", "Status"):
        table.add_column(
            heading,
            justify="left" if heading in ("Function", "Status") else "right",
            overflow="fold",
        )
    for pack in packs:
        figures = [_figure(pack[name]) for name in ("before", "bytes", "lower_bound")]
        table.add_row(pack["function"], str(pack["slices"]), *figures, pack["status"])
    return table

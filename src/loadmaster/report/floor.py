"""The table that sets another planner's memory beside Loadmaster's and the bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from loadmaster.report.view import Notes, Part, Table


def floor_table(arenas: Sequence[Mapping[str, Any]]) -> list[Part]:
    """Make a row of each arena, and lines for what is wrong with a plan; ``arenas`` as in
    ``--json``, figures in bytes."""
    rows = [
        (
            arena["name"],
            str(arena["buffers"]),
            *(_figure(arena[name]) for name in ("theirs", "peak", "lower_bound")),
            arena["status"],
            arena["verdict"],
        )
        for arena in arenas
    ]
    columns = ("Arena", ">Buffers", ">Theirs", ">Loadmaster", ">Bound", "Status", "~")
    notes = [f"{arena['name']}: {note}" for arena in arenas for note in _notes(arena)]
    return [Table(columns, rows), Notes(notes)]


def _notes(arena: Mapping[str, Any]) -> Iterable[str]:
    stated, recomputed, reason = arena["theirs_stated"], arena["theirs"], arena.get("reason")
    if stated is not None and stated != recomputed:
        yield (
            f"the dump states {_figure(stated)} bytes; its own addresses take"
            f" {_figure(recomputed)}."
        )
    for each in arena["violations"]:
        yield f"{each['rule']}: {each['message']}"
    if reason is not None:
        needed, available = _figure(reason["required"]), _figure(reason["available"])
        yield f"{reason['kind']}: {needed} bytes required, {available} available."


def _figure(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def transients_table(packs: Sequence[Mapping[str, Any]]) -> Table:
    """Make a row of each transient resource of an IREE program; ``packs`` as in ``--json``, figures
    in bytes."""
    rows = [
        (
            pack["function"],
            str(pack["slices"]),
            *(_figure(pack[name]) for name in ("before", "bytes", "lower_bound")),
            pack["status"],
        )
        for pack in packs
    ]
    columns = ("~Function", ">Slices", ">IREE", ">Loadmaster", ">Bound", "Status")
    return Table(columns, rows)

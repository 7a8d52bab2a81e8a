"""Tables of another planner's memory beside Loadmaster's and the lower bound."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from loadmaster.report.view import Json, Notes, PagePart, Table


def floor_table(arenas: Sequence[Json]) -> list[PagePart]:
    """Return a table with a row for each arena, and a line for each violation of a plan; ``arenas``
    as in ``--json``, figures in bytes."""
    heads = {
        "Arena": "name",
        ">Buffers": "buffers",
        ">Theirs": "theirs",
        ">Loadmaster": "peak",
        ">Bound": "lower_bound",
        "Status": "status",
        "~": "verdict",
    }
    notes = [f"{arena['name']}: {note}" for arena in arenas for note in _notes(arena)]
    return [_table(heads, arenas), Notes(notes)]


def _notes(arena: Json) -> Iterable[str]:
    """Yield the remarks on an arena: a peak other than stated, violations, and why it cannot be
    smaller."""
    stated, recomputed = arena["theirs_stated"], arena["theirs"]
    if stated not in (None, recomputed):
        yield (
            f"the dump states {_cell(stated)} bytes; its own addresses take {_cell(recomputed)}."
        )
    for each in arena["violations"]:
        yield f"{each['rule']}: {each['message']}"
    if reason := arena.get("reason"):
        yield (
            f"{reason['kind']}: {_cell(reason['required'])} bytes required,"
            f" {_cell(reason['available'])} available."
        )


def transients_table(packs: Sequence[Json]) -> Table:
    """Return a table with a row for each transient resource of an IREE program; ``packs`` as in
    ``--json``, figures in bytes."""
    heads = {
        "~Function": "function",
        ">Slices": "slices",
        ">IREE": "before",
        ">Loadmaster": "bytes",
        ">Bound": "lower_bound",
        "Status": "status",
    }
    return _table(heads, packs)


def _table(heads: Mapping[str, str], found: Iterable[Json]) -> Table:
    """Return a table of records, one column for each key of ``heads``."""
    return Table([{head: _cell(each[key]) for head, key in heads.items()} for each in found])


def _cell(value: str | int | None) -> str:
    """Format a cell; "-" for None."""
    return "-" if value is None else value if isinstance(value, str) else f"{value:,}"

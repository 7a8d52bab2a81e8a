"""The printer of views for terminals: plain text that suits log files too."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from loadmaster.core.names import printable_text
from loadmaster.report.view import (
    Beside,
    Figures,
    Line,
    Notes,
    Part,
    Table,
    text_of,
)

_WRAPPED = 16
"""Characters of a column at least, where its text may be wrapped."""


def printed(parts: Iterable[Part]) -> Group:
    """Make text and tables of the parts, with an empty line before and after each table; charts
    are for pages."""
    shown: list[RenderableType] = []
    text_before = True
    for part in parts:
        made = _shown(part)
        text = isinstance(part, Line | Notes)
        if made and shown and not (text and text_before):
            shown.append(Text())
        shown += made
        text_before = text if made else text_before
    return Group(*shown)


def _shown(part: Part) -> list[RenderableType]:
    match part:
        case Line():
            bold = "bold" if part.style == "strong" else ""
            return [_text(part.text, bold)] if part.text else []
        case Notes():
            return [_text(line) for line in part.lines]
        case Figures():
            rows = [[each.name, each.value, each.bound, each.distance] for each in part.figures]
            heads = [part.head, ">Value", ">Bound", "~Distance"]
            if not any(each.bound for each in part.figures):
                heads, rows = [part.head, ">Value", "~"], [[*row[:2], row[3]] for row in rows]
            return [_table(Table(heads, rows))]
        case Beside():
            grid = RichTable.grid(padding=(0, 3, 0, 0))
            grid.add_row(*map(_table, part.tables))
            return [grid]
        case Table():
            return [_table(part), *([_text(part.rest)] if part.rest else [])]
    return []


def _text(text: str, style: str = "") -> Text:
    return Text(printable_text(text), style=style)


def _table(table: Table) -> RichTable:
    """Make a table without lines; without heads if all are empty."""
    heads = [column.lstrip(">~") for column in table.columns]
    shown = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        show_edge=False,
        show_header=any(heads),
    )
    rows = [[_text(text_of(cell)) for cell in row] for row in table.rows]
    for at, (head, column) in enumerate(zip(heads, table.columns, strict=True)):
        wraps, title = column.startswith("~"), _text(head)
        cells = [title, *(row[at] for row in rows)]
        widest = max(cell_len(line) for cell in cells for line in cell.plain.split("\n"))
        shown.add_column(
            title,
            justify="right" if column.startswith(">") else "left",
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            min_width=min(widest, _WRAPPED) if wraps else widest,
        )
    for row in rows:
        shown.add_row(*row)
    return shown

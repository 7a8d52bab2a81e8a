"""Prints views on terminals as plain text, which suits log files, too."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from loadmaster.core.names import printable_text
from loadmaster.report.text import clipped
from loadmaster.report.view import TERMINAL, Beside, Figures, Line, Notes, Page, PagePart, Table

_NARROW = 80
"""Characters of a line; headings of wider tables are wrapped."""
_WRAPPED = 16
"""Least characters of a column whose text may be wrapped."""


def printed(shown: Page | Iterable[PagePart]) -> Group:
    """Return the texts and tables of a page or of parts, with an empty line around each table;
    charts and hints are left out."""
    if isinstance(shown, Page):
        shown = [part for section in shown.on(TERMINAL) for part in section.parts]
    found: list[RenderableType] = []
    text_before = True
    for part in filter(None, shown):
        made = _renderables(part)
        text = isinstance(part, Line | Notes)
        if made and found and not (text and text_before):
            found.append(Text())
        found += made
        text_before = text if made else text_before
    return Group(*found)


def _renderables(part: PagePart) -> list[RenderableType]:
    """Return a part of a report as rich renderables; empty for parts that terminals leave out."""
    match part:
        case Line(text, style):
            return [_text(text, "bold" if style == "strong" else "")]
        case Notes(lines):
            return [_text(line) for line in lines]
        case Figures():
            return [_table(part.table())]
        case Beside(tables):
            grid = RichTable.grid(padding=(0, 3, 0, 0))
            grid.add_row(*map(_table, tables))
            return [grid]
        case Table():
            return [_table(part), *([_text(part.rest)] if part.rest else [])]
    return []


def _text(text: str, style: str = "") -> Text:
    """Return a printable text of rich; long words are clipped, as they would widen all lines."""
    words = re.sub(r"\S{61,}", lambda word: clipped(word[0], 60), text)
    return Text(printable_text(words), style=style)


def _table(table: Table) -> RichTable:
    """Return a table without ruled lines, and without a head if all headings are empty."""
    columns = [column for column in table.rows[0] if not column.startswith("+")]
    rows = [[_text(row[column]) for column in columns] for row in table.rows[: table.limit]]
    for row in rows:
        row[0] = Text(clipped(row[0].plain, table.width))
    left_out = len(table.rows) - len(rows)
    if left_out:
        rows.append([_text(f"{left_out} more"), *[Text()] * (len(columns) - 1)])
    heads = [column.lstrip("+>~") for column in columns]
    widths = [
        max(cell_len(line) for cell in cells for line in cell.plain.split("\n"))
        for cells in zip(*rows, strict=True)
    ]
    least = [
        _WRAPPED if column.startswith("~") else max(len(head), width)
        for column, head, width in zip(columns, heads, widths, strict=True)
    ]
    if sum(width + 2 for width in least) > _NARROW:
        # Headings may be wrapped, figures may not.
        heads = [
            head.replace(" ", "\n").replace(".", ".\n") if len(head) > width else head
            for head, width in zip(heads, widths, strict=True)
        ]
    shown = RichTable(
        box=None,
        pad_edge=False,
        padding=(0, 2, 0, 0),
        header_style="bold",
        show_edge=False,
        show_header=any(heads),
    )
    for head, column, width in zip(heads, columns, widths, strict=True):
        wraps, title = column.startswith("~"), _text(head)
        widest = max(width, *(cell_len(line) for line in title.plain.split("\n")))
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

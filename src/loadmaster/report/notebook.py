"""The printer of views for notebooks: an answer in one line, as text, as HTML, and as a table of
pandas."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from loadmaster.core.packages import package
from loadmaster.report.picture import draw
from loadmaster.report.text import NOTHING, printable, to_html
from loadmaster.report.view import View

_BUILDERS = {
    "PlanRecord": "plan",
    "Allocation": "packing",
    "BankAllocation": "packing",
    "JobMapping": "mapping",
    "MemoryPlan": "placement",
    "Graph": "inspection",
}
"""The module whose ``view`` shows an answer, by class name: showing one answer does not import the
packages of all others."""
_HEADS = ("", "Value", "Bound", "Distance")


def line(answer: object) -> str:
    """Return an answer in one line, such as ``<Plan of squeezenet on edge-npu: feasible, 1.23 ms,
    4.5 % above the bound>``."""
    return f"<{_headline(_view(answer))}>"


def text(answer: object) -> str:
    """Return title, figures and notes of an answer as plain text."""
    view = _view(answer)
    rows = _rows(view)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if at in (1, 2) else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([_headline(view), *lines, *map(printable, view.notes)])


def html(answer: object) -> str:
    """Return title, figures, pictures and notes of an answer as HTML."""
    view = _view(answer)
    body = ""
    for row in _rows(view):
        tag = "th" if row == _HEADS else "td"
        cells = (f"<{tag}>{to_html(cell) or NOTHING * (tag == 'td')}</{tag}>" for cell in row)
        body += f"<tr>{''.join(cells)}</tr>"
    notes = "".join(f"<div><small>{to_html(note)}</small></div>" for note in view.notes)
    title = f"<div><b>{to_html(view.title)}</b>: {to_html(view.headline)}</div>"
    pictures = "".join(map(draw, view.pictures()))
    return f"<div>{title}<table>{body}</table>{pictures}{notes}</div>"


def table(answer: object) -> Any:
    """Return the rows of an answer as a pandas ``DataFrame``."""
    pandas = package("pandas", f"{type(answer).__name__}.to_pandas")
    return pandas.DataFrame(list(_view(answer).rows()))


def _view(answer: object) -> View:
    name = next(
        _BUILDERS[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in _BUILDERS
    )
    made: View = import_module(f"loadmaster.report.{name}").view(answer)
    return made


def _headline(view: View) -> str:
    return printable(f"{view.title}: {view.headline}")


def _rows(view: View) -> list[tuple[str, ...]]:
    """Return the figures with their heads, or names and values alone where no figure has a
    bound."""
    rows = [
        tuple(map(printable, (each.name, each.value, each.bound, each.distance)))
        for each in view.figures
    ]
    return [_HEADS, *rows] if any(each.bound for each in view.figures) else [r[:2] for r in rows]

"""The printer of views for notebooks: an answer in one line, as text, as HTML, and as a table of
pandas."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from typing import Any

from rich.console import Console

from loadmaster.core.errors import package
from loadmaster.report.picture import draw
from loadmaster.report.terminal import printed
from loadmaster.report.text import NOTHING, printable, to_html
from loadmaster.report.view import Figures, Line, Notes, View

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


def line(answer: object) -> str:
    """Return an answer in one line, such as ``<Plan of squeezenet on edge-npu: feasible, 1.23 ms,
    4.5 % above the bound>``."""
    return f"<{_headline(_view(answer))}>"


def text(answer: object) -> str:
    """Return title, figures and notes of an answer as plain text."""
    view, file = _view(answer), StringIO()
    parts = [Line(_headline(view)), Figures(view.figures, ""), Notes(view.notes)]
    Console(file=file, width=1000, force_terminal=False).print(printed(parts))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines() if line.strip())


def html(answer: object) -> str:
    """Return title, figures, pictures and notes of an answer as HTML."""
    view = _view(answer)
    rows = [(each.name, each.value, each.bound, each.distance) for each in view.figures]
    body = "".join(
        f"<tr>{''.join(f'<td>{to_html(cell) or NOTHING}</td>' for cell in row)}</tr>"
        for row in [("", "Value", "Bound", "Distance"), *rows]
    )
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

"""Prints answers in notebooks: as a line, as text, as HTML, and as a pandas table."""

from __future__ import annotations

from importlib import import_module
from io import StringIO
from typing import Any

from rich.console import Console

from loadmaster.core.errors import package
from loadmaster.report.picture import draw
from loadmaster.report.terminal import printed
from loadmaster.report.text import NOTHING, printable, to_html
from loadmaster.report.view import NOTEBOOK, Chart, Figures, Line, Notes, Page, PagePart, Table

_BUILDERS = {
    "PlanRecord": "plan",
    "Allocation": "packing",
    "BankAllocation": "packing",
    "JobMapping": "mapping",
    "MemoryPlan": "placement",
    "Graph": "inspection",
}
"""The module ``NAME`` with the function ``NAME_page`` that makes the page of an answer, by class
name, so that only the module of the answer is imported."""


def line(answer: object) -> str:
    """Return an answer in one line, such as ``<Plan of squeezenet on edge-npu: feasible, 1.23 ms,
    4.5 % above the bound>``."""
    return f"<{_headline(_page(answer))}>"


def text(answer: object) -> str:
    """Return title, figures and notes of an answer as plain text."""
    page, file = _page(answer), StringIO()
    shown = [Line(_headline(page)), *_parts(page)]
    Console(file=file, width=1000, force_terminal=False).print(printed(shown))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines() if line.strip())


def html(answer: object) -> str:
    """Return title, figures, pictures and notes of an answer as HTML."""
    page = _page(answer)
    title = f"<b>{to_html(page.title)}</b>: {to_html(page.headline)}"
    return f"<div><div>{title}</div>{''.join(map(_html, _parts(page)))}</div>"


def table(answer: object) -> Any:
    """Return the rows of an answer as a pandas ``DataFrame``."""
    pandas = package("pandas", f"{type(answer).__name__}.to_pandas")
    return pandas.DataFrame(list(_page(answer).rows()))


def _page(answer: object) -> Page:
    """Return the page of an answer, by its class."""
    kinds = (kind.__name__ for kind in type(answer).__mro__)
    name = next(_BUILDERS[kind] for kind in kinds if kind in _BUILDERS)
    made: Page = getattr(import_module(f"loadmaster.report.{name}"), f"{name}_page")(answer)
    return made


def _headline(page: Page) -> str:
    """Return title and headline as one printable line."""
    return printable(f"{page.title}: {page.headline}")


def _parts(page: Page) -> list[PagePart]:
    """Return all parts of the sections for notebooks."""
    return [part for section in page.on(NOTEBOOK) for part in section.parts]


def _html(part: PagePart) -> str:
    """Return a part of a report as HTML; empty for parts that notebooks leave out."""
    match part:
        case Chart():
            return draw(part)
        case Line(text):
            return f"<div><small>{to_html(text)}</small></div>"
        case Notes():
            return "".join(_html(Line(line)) for line in part.lines)
        case Figures():
            return _html(part.table())
        case Table():
            heads = [head.lstrip("+>~") for head in part.rows[0]]
            rows = [heads, *(row.values() for row in part.rows)]
            body = "".join(
                f"<tr>{''.join(f'<td>{to_html(cell) or NOTHING}</td>' for cell in row)}</tr>"
                for row in rows
            )
            return f"<table>{body}</table>"
    return ""

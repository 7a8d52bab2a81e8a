"""Printing of JSON, tables and violations for several commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from loadmaster.core.json_object import json_of
from loadmaster.core.names import printable_text

if TYPE_CHECKING:
    from loadmaster.core.errors import Violation
    from loadmaster.report.view import Page, PagePart

_NARROWEST = 80
"""Least width in columns of tables, so that no figure is truncated; a narrower terminal wraps
lines."""
_WIDEST = 1000
"""Width in columns in which the needed width of a table is measured."""


def versioned(kind: Any, value: object, **given: object) -> dict[str, Any]:
    """Return a command's JSON object of type ``kind`` (see `json_of`), with the type's version
    first."""
    return {"version": kind.VERSION, **json_of(value, kind, **given)}


def say(text: str, *, err: bool = False, newline: bool = True) -> None:
    """Print text, with ``err`` on standard error, without control characters for the terminal.

    All output of the program goes through this function or `print_tables`.
    """
    typer.echo(printable_text(text), err=err, nl=newline)


def print_tables(shown: Page | Iterable[PagePart]) -> None:
    """Print tables and text on standard output in the terminal's width, but wide enough for all
    figures."""
    from rich.console import Console
    from rich.measure import Measurement

    from loadmaster.report.terminal import printed

    made, console = printed(shown), Console()
    unlimited = console.options.update(width=_WIDEST)
    needed = max(_NARROWEST, Measurement.get(console, unlimited, made).minimum)
    if console.width < needed:
        console = Console(width=needed, soft_wrap=True)
    console.print(made)


def print_violations(violations: tuple[Violation, ...], what: str) -> None:
    """Print violations on standard error; ``what`` is the name of the checked object."""
    for violation in violations:
        say(f"{violation.rule}: {violation.message}", err=True)
    say(f"the {what} does not hold; violations: {len(violations)}", err=True)

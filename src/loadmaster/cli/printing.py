"""Printing of JSON, tables and violations for several commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import typer

from loadmaster.core.json_object import json_of
from loadmaster.core.names import printable_text

if TYPE_CHECKING:
    from loadmaster.core.errors import Violation
    from loadmaster.report.view import Page, Part

_NARROWEST = 80
"""Columns for which tables are laid out at least, so that no figure is cut; a narrower terminal
breaks the lines."""
_WIDEST = 1000
"""Columns within which the width is measured that a table needs."""


def versioned(kind: Any, value: object, **given: object) -> dict[str, Any]:
    """Make a command's JSON object of its type, as `json_of`, with the type's version in front."""
    return {"version": kind.VERSION, **json_of(value, kind, **given)}


def say(text: str, *, err: bool = False, newline: bool = True) -> None:
    """Print text, on standard error if so asked; names in it can do nothing to the terminal.

    Everything that the program prints goes through here, or through `print_tables`.
    """
    typer.echo(printable_text(text), err=err, nl=newline)


def print_tables(shown: Page | Iterable[Part]) -> None:
    """Print tables and text on standard output, as wide as the terminal but never so narrow that
    figures would be cut."""
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
    """Print violations on standard error; ``what`` names what was checked."""
    for violation in violations:
        say(f"{violation.rule}: {violation.message}", err=True)
    say(f"the {what} does not hold: {len(violations)} violations", err=True)

"""Printing of JSON, tables and violations for several commands."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadmaster.core.names import printable_text

if TYPE_CHECKING:
    from loadmaster.core.violation import Violation
    from loadmaster.report.view import Part

_SCHEMAS = Path(__file__).parent / "schemas"
_NARROWEST = 80
"""Columns for which tables are laid out at least, so that no figure is cut; a narrower terminal
breaks the lines."""
_WIDEST = 1000
"""Columns within which the width is measured that a table needs."""


def versioned(name: str, shown: dict[str, Any]) -> dict[str, Any]:
    """Put the version that its schema states in front of a command's JSON object; ``name`` is that
    of the schema's file."""
    schema = json.loads((_SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return {"version": schema["properties"]["version"]["const"], **shown}


def attributes(of: object, *names: str) -> dict[str, Any]:
    """Attributes of an answer as JSON has them, by the same names."""
    return {name: getattr(of, name) for name in names}


def say(text: str, *, err: bool = False, newline: bool = True) -> None:
    """Print text, on standard error if so asked; names in it can do nothing to the terminal.

    Everything that the program prints goes through here, or through `print_tables`.
    """
    typer.echo(printable_text(text), err=err, nl=newline)


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object on standard output."""
    say(json.dumps(value, indent=2, allow_nan=False))


def print_tables(parts: Iterable[Part]) -> None:
    """Print tables and text on standard output, as wide as the terminal but never so narrow that
    figures would be cut."""
    from rich.console import Console
    from rich.measure import Measurement

    from loadmaster.report.terminal import printed

    shown, console = printed(parts), Console()
    unlimited = console.options.update(width=_WIDEST)
    needed = max(_NARROWEST, Measurement.get(console, unlimited, shown).minimum)
    if console.width < needed:
        console = Console(width=needed, soft_wrap=True)
    console.print(shown)


def violations_json(violations: Sequence[Violation]) -> list[dict[str, str]]:
    """Violations as every ``--json`` has them, under ``violations``."""
    return [{"rule": each.rule, "message": each.message} for each in violations]


def print_violations(violations: tuple[Violation, ...], what: str) -> None:
    """Print violations on standard error; ``what`` names what was checked."""
    for violation in violations:
        say(f"{violation.rule}: {violation.message}", err=True)
    say(f"the {what} does not hold: {len(violations)} violations", err=True)

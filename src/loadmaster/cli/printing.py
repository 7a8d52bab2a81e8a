"""What several commands print alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import RenderableType

    from loadmaster.core.violation import Violation

_NARROWEST = 80
"""Columns for which tables are laid out: in a narrower terminal, lines are broken by the terminal, and no figure is cut."""


def print_json(value: dict[str, Any]) -> None:
    """Print one object on standard output."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_tables(*parts: RenderableType) -> None:
    """Print tables and text on standard output, as wide as the terminal but never so narrow that figures would be cut."""
    from rich.console import Console

    console = Console()
    if console.width < _NARROWEST:
        console = Console(width=_NARROWEST, soft_wrap=True)
    for part in parts:
        console.print(part)


def print_violations(violations: tuple[Violation, ...], what: str) -> None:
    """Say on standard error what does not hold."""
    for violation in violations:
        typer.echo(f"{violation.rule}: {violation.message}", err=True)
    typer.echo(f"the {what} does not hold: {len(violations)} violations", err=True)

"""What several commands print alike."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from loadmaster.planning.verify.plan import Violation


def print_json(value: dict[str, Any]) -> None:
    """Print one object on standard output."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def print_violations(violations: tuple[Violation, ...], what: str) -> None:
    """Say on standard error what does not hold."""
    for violation in violations:
        typer.echo(f"{violation.rule}: {violation.message}", err=True)
    typer.echo(f"the {what} does not hold: {len(violations)} violations", err=True)

"""``loadmaster export``: the group of commands that are found in this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from loadmaster.cli.options import grouped
from loadmaster.core.errors import LoadmasterError
from loadmaster.core.registry import Registry

EXPORTS: Registry[Callable[..., Any]] = Registry(
    "loadmaster.cli.commands.export", "COMMAND", "export", LoadmasterError
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Write a plan in the form in which another system runs it.",
)
for _name in EXPORTS.names:
    app.command(_name)(grouped(EXPORTS.find(_name)))

"""The ``loadmaster`` command: which commands there are, and how mistakes end."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import typer

from loadmaster.cli.commands.allocate import allocate_command
from loadmaster.cli.commands.inspect import inspect_command
from loadmaster.cli.commands.map import map_command
from loadmaster.cli.commands.place import place_command
from loadmaster.cli.commands.plan import plan_command
from loadmaster.cli.commands.profile import profile_command
from loadmaster.cli.commands.run import run_command
from loadmaster.cli.commands.targets import targets_command
from loadmaster.cli.commands.verify import verify_command
from loadmaster.core.errors import LoadmasterError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Plans neural networks onto accelerators: which core runs each layer and when, which memory holds each tensor, "
    "and at which address.",
)
app.command("plan")(plan_command)
app.command("map")(map_command)
app.command("place")(place_command)
app.command("allocate")(allocate_command)
app.command("run")(run_command)
app.command("profile")(profile_command)
app.command("verify")(verify_command)
app.command("targets")(targets_command)
app.command("inspect")(inspect_command)

# What typer raises for a command line that it cannot parse; it exports the subclass only.
_UsageError: Any = typer.BadParameter.__mro__[1]


def main() -> NoReturn:
    """Run the command line; any mistake is one line on standard error and exit code 2."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except LoadmasterError as error:
        code = _refuse(str(error))
    except _UsageError as error:
        code = _refuse(f"{error.format_message()} (see --help)")
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        typer.echo("loadmaster: interrupted", err=True)
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(message: str) -> int:
    typer.echo(f"loadmaster: {' '.join(message.split())}", err=True)
    return 2


if __name__ == "__main__":
    main()

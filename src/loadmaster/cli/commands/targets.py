"""``loadmaster targets``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from loadmaster.cli.output import Output, say, versioned


@dataclass(frozen=True)
class TargetJson:
    """A target."""

    name: str
    """Name of the target for `--target`."""
    description: str
    """Description of the machine."""
    toml: str
    """Text of the target file."""


@dataclass(frozen=True)
class TargetsJson:
    """Bundled targets."""

    VERSION = 1
    targets: Sequence[TargetJson]
    """All targets, or the named one."""


def targets_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Print this target's TOML, to start one's own from."),
    ] = None,
    *,
    output: Output,
) -> None:
    """List the bundled targets, or print the TOML of one.

    Example: `loadmaster targets edge-npu > my-npu.toml`
    """
    from loadmaster.targets.load import bundled, source_text, target

    names = bundled() if name is None else [name]
    if output.as_json:
        shown = [
            TargetJson(name=known, toml=source_text(known), description=target(known).description)
            for known in names
        ]
        output.show(versioned(TargetsJson, {"targets": shown}), list)
    elif output.quiet:
        return
    elif name is not None:
        say(source_text(name), newline=False)
    else:
        width = max(map(len, names))
        for known in names:
            say(f"{known:{width}}  {target(known).description}")

"""``loadmaster targets``."""

from __future__ import annotations

from typing import Annotated

import typer


def targets_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this target's TOML, to start one's own from.")] = None,
) -> None:
    """List the bundled targets, or print the TOML of one.

    Example: `loadmaster targets edge-npu > my-npu.toml`
    """
    from loadmaster.targets.load import bundled, bundled_text, target

    if name is not None:
        typer.echo(bundled_text(name), nl=False)
        return
    width = max(len(known) for known in bundled())
    for known in bundled():
        typer.echo(f"{known:{width}}  {target(known).description}")

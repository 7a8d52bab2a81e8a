"""``loadmaster export iree``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import Json
from loadmaster.cli.printing import print_json, print_tables


def iree_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="An `.onnx` file, or an `.mlir` file that iree-compile takes.")],
    out: Annotated[
        Path, typer.Option(metavar="PLANNED.vmfb", help="Where the program goes; large weights of an `.onnx` file go beside it.")
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- FLAG...]", help="Flags of iree-compile; without any, the program is for this machine's processor."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile a model with IREE (3.13), with the transient memory of the program packed by Loadmaster.

    Static shapes only. A program is written if its plan has passed the checker, and is never larger than IREE's own.

    Example: `loadmaster export iree model.onnx --out planned.vmfb -- --iree-hal-target-device=local
    --iree-hal-local-target-device-backends=llvm-cpu`
    """
    from loadmaster.integrations.iree.export import export_program

    exported = export_program(model, out, flags or ())
    rows = [asdict(each) for each in exported.packs]
    if as_json:
        print_json({"model": str(model), "packs": rows, "written": [str(path) for path in exported.written]})
        return
    from loadmaster.report.floor import transients_table

    print_tables(transients_table(rows))
    for path in exported.written:
        typer.echo(f"wrote {path}")


COMMAND = iree_command

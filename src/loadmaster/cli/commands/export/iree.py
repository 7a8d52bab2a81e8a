"""``loadmaster export iree``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import out_to
from loadmaster.cli.output import Output, versioned


def iree_command(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="An `.onnx` file, or an `.mlir` file that iree-compile takes."
        ),
    ],
    out: Annotated[
        Path,
        out_to(
            "Where the program goes; large weights of an `.onnx` file go beside it.", "PLANNED.vmfb"
        ),
    ],
    flags: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- FLAG...]",
            help="Flags of iree-compile; without any, the program is for this machine's processor.",
        ),
    ] = None,
    *,
    output: Output,
) -> None:
    """Compile a model with IREE (3.13), with the transient memory of the program packed by
    Loadmaster.

    Only static shapes are supported. A program is written only if its plan passes the checker; its
    transient memory is never larger than with IREE's own plan.

    Example: `loadmaster export iree model.onnx --out planned.vmfb -- --iree-hal-target-device=local
    --iree-hal-local-target-device-backends=llvm-cpu`
    """
    from loadmaster.integrations.iree.export import ProgramJson, export_program
    from loadmaster.report.floor import transients_table

    exported = export_program(model, out, flags or ())
    shown = versioned(ProgramJson, exported, model=str(model))
    output.show(shown, lambda: [transients_table(shown["packs"])], exported.written)

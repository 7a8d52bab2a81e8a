"""``loadmaster calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import NETWORK, Reading, option, out_to
from loadmaster.cli.output import Output, versioned


def calibrate_command(
    target: Annotated[
        str,
        typer.Argument(metavar="TARGET", help="A target file, or a bundled target to start from."),
    ],
    measured: Annotated[
        Path,
        typer.Argument(
            metavar="MEASURED.csv",
            help=(
                "Measured times: of `loadmaster profile --out`; of layer shapes"
                " (K,C,Y,X,R,S,type,seconds); or of operators (op,seconds)."
            ),
        ),
    ],
    network: Annotated[
        str | None,
        option("MODEL", NETWORK, "The network whose operators the file names. Default: none."),
    ] = None,
    *,
    reading: Reading,
    out: Annotated[
        Path | None, out_to("Where the calibrated target goes. Default: nowhere.", "FILE.toml")
    ] = None,
    output: Output,
) -> None:
    """Fit a target's figures to measured times of layers, and show the errors that remain.

    Effective bandwidths, the overhead of a job, and the efficiency of every kind of operator are
    fitted. Figures that the measurements do not determine are kept, and are named. Errors are
    shown before and after the fit, and for layers that the fit did not use.

    Example: `loadmaster calibrate my-npu.toml layers.csv --out my-npu-calibrated.toml`
    """
    from loadmaster.core.files import replace_file
    from loadmaster.cost.calibration.answer import CalibrationJson
    from loadmaster.cost.calibration.calibrate import calibrate
    from loadmaster.report.calibration import calibration_summary

    graph = None if network is None else reading.load([network])[0]
    found = calibrate(target, measured, graph)
    files = [] if out is None else [replace_file(out, found.text, "the target")]
    shown = versioned(CalibrationJson, found.as_json())
    output.show(shown, lambda: calibration_summary(found), files)

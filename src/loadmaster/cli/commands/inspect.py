"""``loadmaster inspect``."""

from __future__ import annotations

from typing import Annotated

import typer

from loadmaster.cli.options import Batch, Dim, Json, Precision, Training, load_networks
from loadmaster.cli.printing import print_json, print_tables


def inspect_command(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    batch: Batch = None,
    dim: Dim = None,
    precision: Precision = None,
    training: Training = False,
    as_json: Json = False,
) -> None:
    """Show what was read of a network.

    Operators by kind, multiply-accumulates, bytes of weights and activations, and what was not understood.

    Example: `loadmaster inspect onnx:resnet50 --batch 8`
    """
    from loadmaster.report.inspection import inspection, inspection_json

    graph = load_networks([model], batch, dim, precision, training)[0]
    if as_json:
        print_json(inspection_json(graph))
    else:
        print_tables(inspection(graph))

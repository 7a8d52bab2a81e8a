"""``loadmaster inspect``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import NETWORKS, Overrides, Reading, machine_of, out_to, target_of
from loadmaster.cli.output import PageOutput, versioned


def inspect_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=NETWORKS)],
    target: Annotated[
        str | None,
        target_of("The machine of the page's roofline. Default: a page without one."),
    ] = None,
    overrides: Overrides = None,
    *,
    reading: Reading,
    out: Annotated[
        Path | None, out_to("Where network.json and report.html go. Default: nowhere.")
    ] = None,
    output: PageOutput,
) -> None:
    """Show the contents of a network.

    Operators by kind, multiply-accumulates, bytes of weights and activations, and unknown
    operators.

    Example: `loadmaster inspect onnx:resnet50 --batch 8`

    Example: `loadmaster inspect onnx:resnet50 --precision int8 --target edge-npu --out resnet50`
    """
    from loadmaster.report.inspection import InspectionJson, inspection_json, inspection_page

    machine = machine_of(target, overrides)
    with output.working(out) as (place, _):
        graph = reading.load([model])[0]
        shown = versioned(InspectionJson, inspection_json(graph))
        page = partial(inspection_page, graph, machine)
        files = output.publish(place, {"network.json": shown}, page)
    output.show(shown, page, files)

"""``loadmaster inspect``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import (
    MACHINE,
    NETWORKS,
    Batch,
    Dim,
    Json,
    NoReport,
    Overrides,
    Precision,
    Quiet,
    Training,
    load_networks,
    machine_of,
    option,
    out_to,
)
from loadmaster.cli.printing import print_results, versioned

if TYPE_CHECKING:
    from loadmaster.core.files import OutputDirectory
    from loadmaster.targets.hardware import Target
    from loadmaster.workloads.graph import Graph


def inspect_command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=NETWORKS)],
    target: Annotated[
        str | None,
        option(
            "NAME|FILE.toml",
            MACHINE,
            "The machine of the page's roofline. Default: a page without one.",
        ),
    ] = None,
    overrides: Overrides = None,
    batch: Batch = None,
    dim: Dim = None,
    precision: Precision = None,
    training: Training = False,
    out: Annotated[
        Path | None, out_to("Where network.json and report.html go. Default: nowhere.")
    ] = None,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show what was read of a network.

    Operators by kind, multiply-accumulates, bytes of weights and activations, and what was not
    understood.

    Example: `loadmaster inspect onnx:resnet50 --batch 8`

    Example: `loadmaster inspect onnx:resnet50 --precision int8 --target edge-npu --out resnet50`
    """
    from loadmaster.core.files import directory_if_asked
    from loadmaster.report.inspection import inspection_json, inspection_summary

    machine = machine_of(target, overrides)
    with directory_if_asked(out) as place:
        graph = load_networks([model], batch, dim, precision, training)[0]
        shown = versioned("inspect", inspection_json(graph))
        files = [] if place is None else _write(graph, shown, machine, place, page=not no_report)
    print_results(shown, lambda: inspection_summary(graph), files, as_json=as_json, quiet=quiet)


def _write(
    graph: Graph,
    shown: dict[str, Any],
    machine: Target | None,
    place: OutputDirectory,
    *,
    page: bool,
) -> list[Path]:
    place.write("network.json", json.dumps(shown, indent=1, allow_nan=False) + "\n")
    if page:
        from loadmaster.report.inspection import inspection_page
        from loadmaster.report.page import render

        place.write("report.html", render(inspection_page(graph, machine)))
    return place.publish()

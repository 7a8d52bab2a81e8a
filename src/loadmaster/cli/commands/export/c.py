"""``loadmaster export c``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import NETWORK, Batch, Dim, Json, Quiet, out_to, sizes_of
from loadmaster.cli.printing import print_results, say, versioned


def c_command(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN.json", help="A plan made with --precision fp32.")
    ],
    model: Annotated[
        list[str],
        typer.Option(
            metavar="MODEL.onnx[,MODEL.onnx...]",
            rich_help_panel=NETWORK,
            help="The plan's networks in its order, with their weights.",
        ),
    ],
    out: Annotated[Path, out_to("The folder for the program.")],
    batch: Batch = None,
    dim: Dim = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write a program in C that runs a plan on a host.

    Cores are threads, memories are arrays of bytes, and every tensor, band and piece lies at its
    planned address. Jobs and copies wait for what the plan says and for nothing else. The program
    computes in float32 with plain kernels, so that its outputs can be compared with those of other
    runtimes, also while `--jitter SEED` delays all jobs and copies at random.

    Example: `loadmaster export c plan/plan.json --model network.onnx --out program`, then `make -C
    program`
    """
    from loadmaster.integrations.c_program.export import export_program
    from loadmaster.planning.plan import Plan

    sources = [source for text in model for source in text.split(",")]
    exported = export_program(Plan.load(plan), sources, out, batch=batch, dims=sizes_of(dim or []))
    program = exported.program
    counts = {
        "jobs": len(program.jobs),
        "copies": len(program.copies),
        "memories": dict(program.memories),
        "inputs": [port.name for port in program.inputs],
        "outputs": [port.name for port in program.outputs],
    }
    said = f"{counts['jobs']} jobs on {len(program.cores)} cores, {counts['copies']} copies"
    print_results(
        versioned("export-c", counts),
        lambda: [said],
        exported.written,
        as_json=as_json,
        quiet=quiet,
    )
    if not as_json and not quiet:
        say(f"next: cd {out} && make && ./program, which lists the files that it takes")


COMMAND = c_command

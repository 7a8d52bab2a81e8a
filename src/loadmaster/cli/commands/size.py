"""``loadmaster size``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import (
    GOAL,
    EffortLevel,
    MachineOptions,
    MiniBatches,
    Models,
    Reading,
    Required,
    Seed,
    TimingOptions,
    option,
    out_to,
)
from loadmaster.cli.output import PageOutput, versioned
from loadmaster.core.errors import PlanError


def size_command(
    models: Models,
    vary: Annotated[
        str,
        option(
            "FIELD=LOW:HIGH",
            GOAL,
            "What is sought: `scratchpad=256KiB:8MiB` (in steps of the low end),"
            " `bandwidth=1GB/s:32GB/s:1GB/s` (with a step), any "
            "field of the target with numbers (`cores.ws.count=1:8`,"
            " `cores.ws.clock=500MHz,1GHz`).",
        ),
    ],
    *,
    machine: MachineOptions,
    reading: Reading,
    mini_batches: MiniBatches = 1,
    required: Required,
    times: TimingOptions,
    effort: EffortLevel = "normal",
    seed: Seed = 0,
    out: Annotated[
        Path | None,
        out_to(
            "Where size.json goes, and plan.json, report.html and trace.json.gz of the least value"
            " that suffices. Default: nowhere."
        ),
    ] = None,
    output: PageOutput,
) -> None:
    """Find the least scratchpad, bandwidth or other figure with which networks run fast enough.

    Both ends are proven: by a checked and written plan for the least value that suffices, and by a
    lower bound, under the same costs, for the largest value that is impossible. Values between
    them, for which no plan was found and none is excluded, are named. Ctrl-C prints the results so
    far.

    Exit code 1 means that no value of the range was found to suffice.

    Example: `loadmaster size onnx:squeezenet onnx:resnet50 --target edge-npu --precision int8
    --vary scratchpad=256KiB:8MiB --fps 500`

    Example: `loadmaster size bert.onnx --target edge-npu --vary bandwidth=2GB/s:64GB/s --makespan
    12ms --energy 90mJ --out least`
    """
    from loadmaster.core.progress import Stopwatch, deferred_interrupts
    from loadmaster.planning.sweep.axes import parse_axis
    from loadmaster.planning.sweep.size import SizeJson, size
    from loadmaster.report.sweep import size_summary

    due = times.arguments(PlanError)
    limits, axis = required.limits(due["deadlines"]), parse_axis(vary)
    with output.working(out) as (place, progress):
        target, graphs = machine.read(), reading.load(models)
        with deferred_interrupts():
            watch = Stopwatch()
            found = size(
                graphs,
                target,
                axis,
                limits,
                mini_batches=mini_batches,
                periods=due["periods"],
                effort=effort,
                seed=seed,
                progress=progress,
            )
            seconds, cpu_seconds = watch.read()
            shown = versioned(SizeJson, found.as_json(), seconds=seconds, cpu_seconds=cpu_seconds)
            if place and found.plan:
                found.plan.save(place.draft / "plan.json")
                if not output.no_report:
                    found.plan.report(place.draft)
            files = output.publish(place, {"size.json": shown})
    output.show(shown, lambda: size_summary(found, effort), files)
    if not found.least:
        raise typer.Exit(1)

"""``loadmaster plan``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import (
    GOAL,
    SEARCH,
    MachineOptions,
    MiniBatches,
    Models,
    Reading,
    Required,
    SearchOptions,
    TimingOptions,
    option,
    out_to,
)
from loadmaster.cli.output import PageOutput, print_violations, say, versioned
from loadmaster.cli.run_in_fork import run_in_fork
from loadmaster.cli.start import spent
from loadmaster.core.errors import PlanError

SWEEP = "Sweep"
FOLDER = Path("loadmaster-plan")
"""Default folder of files."""

if TYPE_CHECKING:
    from loadmaster.targets.hardware import Target
    from loadmaster.workloads.graph import Graph


def plan_command(
    models: Models,
    *,
    machine: MachineOptions,
    reading: Reading,
    mini_batches: MiniBatches = 1,
    objective: Annotated[
        str,
        option(
            "NAME",
            GOAL,
            "What is minimised: throughput (the makespan), latency, energy, or edp (energy x"
            " makespan).",
            autocompletion=lambda: ["throughput", "latency", "energy", "edp"],
        ),
    ] = "throughput",
    network: Annotated[
        str | None,
        option("NAME", GOAL, "Whose latency counts. Default: the first network's."),
    ] = None,
    times: TimingOptions,
    cut: Annotated[
        str,
        option(
            "auto|none",
            SEARCH,
            "Cut operators into pieces for several cores and small memories, or leave them whole.",
        ),
    ] = "auto",
    what_if: Annotated[
        bool,
        option(
            None,
            GOAL,
            "Also plan quickly for twice each bandwidth, twice the fast memory, one core more, and"
            " other dataflows.",
            "--what-if",
        ),
    ] = False,
    search: SearchOptions,
    sweep: Annotated[
        list[str] | None,
        option(
            "AXIS=LOW:HIGH",
            SWEEP,
            "What-if: `scratchpad=1MiB:32MiB` (doubling), `bandwidth=4GB/s,10GB/s`, any field of"
            " the target (`cores.ws.count=1:4`), `batch=1:8`, `mini-batches=1:4`,"
            " `networks=a,b,a+b`. May be repeated.",
        ),
    ] = None,
    required: Required,
    workers: Annotated[
        int | None,
        option("N", SWEEP, "Processes of a sweep. Default: all processors.", min=1),
    ] = None,
    cluster: Annotated[
        str | None,
        option(
            "dask://HOST:PORT", SWEEP, "Sweep on the workers of a Dask scheduler. Default: here."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_to(
            "Where plan.json, report.html and trace.json.gz go. Default: loadmaster-plan, or with"
            " `--json` nowhere."
        ),
    ] = None,
    output: PageOutput,
) -> None:
    """Plan networks on a target, check the plan, write a report.

    Networks are planned together. The plan is checked by code that shares nothing with the planner,
    and plan.json, report.html and trace.json.gz are written. Ctrl-C ends the search and keeps the
    best plan so far; a second Ctrl-C exits without a plan.

    Deadlines come before the objective: exit code 3 means that the plan is valid, but some
    mini-batch misses its deadline.

    With --sweep, networks are planned on every machine of a range, and sweep.json and sweep.html
    are written; --fps, --makespan and --energy are the limits that a point must keep. Finished
    points are in sweep.sqlite: after Ctrl-C, the same command continues.

    Example: `loadmaster plan onnx:resnet50 bert.onnx --target edge-npu --precision int8 --set
    dram.bandwidth="8 GB/s" --out plan`

    Example: `loadmaster plan onnx:resnet50 bert.onnx --target edge-npu --mini-batches 4 --objective
    energy --period resnet50=5ms --deadline resnet50=8ms`
    """
    from loadmaster.core.progress import Stopwatch, deferred_interrupts
    from loadmaster.planning.planner import plan
    from loadmaster.planning.verify.plan import verify
    from loadmaster.planning.what_if import what_if as changes_of
    from loadmaster.report.plan import plan_page
    from loadmaster.report.plan_json import PlanJson, plan_json

    folder = out if out is not None or output.as_json else FOLDER
    options: dict[str, Any] = {
        "mini_batches": mini_batches,
        **search.arguments(),
        "cut": cut,
        "objective": objective,
        "network": network,
        **times.arguments(PlanError),
    }
    if sweep and what_if:
        raise PlanError("--what-if is for one machine: leave it out, or --sweep")
    if sweep:
        _sweep(
            sweep,
            lambda batch: replace(reading, batch=batch).load(models),
            machine.read(),
            options | {"limits": required.limits(options["deadlines"])},
            batch=reading.batch,
            cluster=cluster,
            workers=workers,
            folder=folder,
            output=output,
        )
        return
    only_swept = {"workers": workers, "cluster": cluster, **vars(required)}
    given = [f"--{name}" for name, value in only_swept.items() if value is not None]
    if given:
        raise PlanError(
            f"{' and '.join(given)}: for sweeps only: give --sweep scratchpad=1MiB:32MiB too"
        )
    target = machine.read()
    with output.working(folder) as (place, progress), ExitStack() as others:
        graphs = reading.load(models)
        others.enter_context(deferred_interrupts())
        watch = Stopwatch()
        limit = options["time_limit"]
        # Seconds include reading the networks.
        left = None if limit is None else max(0.0, limit - spent())
        done = plan(graphs, target, progress=progress, **options | {"time_limit": left})
        seconds, cpu_seconds = watch.read()
        changes = changes_of(graphs, target, progress=progress, **options) if what_if else ()
        progress("verifying", 0.0)
        checked = others.enter_context(run_in_fork(partial(verify, done), done))
        if place:
            progress("writing", 0.0)
            drawn = others.enter_context(
                run_in_fork(list if output.no_report else partial(done.report, place.draft), done)
            )
            done.save(place.draft / "plan.json")
            drawn()
        violations = checked()
        files = place.publish() if place else []
    found = plan_json(
        done, changes, violations=violations, seconds=seconds, cpu_seconds=cpu_seconds
    )
    output.show(
        versioned(PlanJson, found),
        partial(plan_page, done, changes, (seconds, cpu_seconds)),
        files,
    )
    if violations:
        print_violations(violations, "plan")
        raise typer.Exit(1)
    if done.missed:
        say(
            f"{done.missed} of {len(done.mini_batches)} mini-batches miss their deadlines", err=True
        )
        raise typer.Exit(3)


def _sweep(
    axes: Sequence[str],
    load: Callable[[int | None], list[Graph]],
    target: Target,
    options: dict[str, Any],
    *,
    batch: int | None,
    cluster: str | None,
    workers: int | None,
    folder: Path | None,
    output: PageOutput,
) -> None:
    """Plan every point of a sweep, write files and print the table. Exit code 1 if a plan is
    invalid.

    ``load`` reads the networks at a batch size, which is ``batch`` or an axis.
    """
    from loadmaster.planning.sweep.axes import BATCH, parse_axes
    from loadmaster.planning.sweep.design_space import SweepJson
    from loadmaster.planning.sweep.store import SweepStore
    from loadmaster.planning.sweep.sweep import sweep
    from loadmaster.planning.sweep.workers import dask_cluster, local_processes
    from loadmaster.report.sweep import sweep_page

    if cluster and workers:
        raise PlanError(
            "--workers counts processes of this machine, and --cluster has workers of its own: give"
            " one of them"
        )
    space = parse_axes(axes)
    with output.working(folder) as (place, progress):
        # A model with a symbolic batch cannot be read without one.
        sizes = next((axis.numbers for axis in space if axis.name == BATCH), ())
        if sizes and batch:
            raise PlanError(f"--batch {batch} and an axis {BATCH}: give one of them")
        graphs = load(int(sizes[0].value) if sizes else batch)
        with local_processes(workers) if cluster is None else dask_cluster(cluster) as executor:
            found = sweep(
                graphs,
                target,
                space,
                executor=executor,
                store=None if folder is None else SweepStore(folder / "sweep.sqlite"),
                progress=progress,
                load=load,
                **options,
            )
        shown = versioned(SweepJson, found.as_json())
        page = partial(sweep_page, found)
        files = output.publish(place, {"sweep.json": shown}, page, "sweep.html")
    output.show(shown, page, files)
    if broken := sum(bool(point.violations) for point in found.points):
        say(f"{broken} plans do not hold", err=True)
        raise typer.Exit(1)

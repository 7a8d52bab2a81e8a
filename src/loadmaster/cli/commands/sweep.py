"""``loadmaster plan --sweep``: the same networks on many machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadmaster.cli.output import PageOutput
from loadmaster.cli.printing import say, versioned
from loadmaster.core.errors import PlanError

if TYPE_CHECKING:
    from loadmaster.targets.hardware import Target
    from loadmaster.workloads.graph import Graph


def sweep_plans(
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

    ``load`` reads the networks at a batch size, which is ``batch`` unless it is an axis.
    """
    from loadmaster.planning.sweep.axes import BATCH, parse_axes
    from loadmaster.planning.sweep.design_space import SweepJson
    from loadmaster.planning.sweep.store import SweepStore
    from loadmaster.planning.sweep.sweep import sweep
    from loadmaster.planning.sweep.workers import dask_cluster, local_processes
    from loadmaster.report.sweep import sweep_page

    if cluster is not None and workers is not None:
        raise PlanError(
            "--workers counts processes of this machine, and --cluster has workers of its own: give"
            " one of them"
        )
    space = parse_axes(axes)
    with output.working(folder) as (place, progress):
        # A model with a symbolic batch cannot be read without one.
        sizes = next((axis.numbers for axis in space if axis.name == BATCH), ())
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

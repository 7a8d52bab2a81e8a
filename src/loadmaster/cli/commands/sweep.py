"""``loadmaster plan --sweep``: the same networks on many machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadmaster.cli.options import load_networks
from loadmaster.cli.printing import print_results, say, versioned
from loadmaster.core.errors import PlanError

if TYPE_CHECKING:
    from loadmaster.core.files import OutputDirectory
    from loadmaster.planning.sweep.design_space import Sweep
    from loadmaster.planning.sweep.limits import Limits


def sweep_plans(
    axes: Sequence[str],
    networks: dict[str, Any],
    machine: tuple[str, Sequence[str]],
    limits: Limits,
    options: dict[str, Any],
    pool: dict[str, Any],
    folder: Path | None,
    *,
    page: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Plan every point of the axes, write files, print the table; exit code 1 if a plan does not
    hold.

    ``machine`` is the target's name and what is overridden in it.
    """
    from loadmaster.cli.progress_line import LateProgress
    from loadmaster.core.files import directory_if_asked
    from loadmaster.planning.sweep.axes import parse_axes
    from loadmaster.planning.sweep.store import SweepStore
    from loadmaster.planning.sweep.sweep import sweep
    from loadmaster.planning.sweep.workers import dask_cluster, local_processes
    from loadmaster.report.sweep import sweep_summary
    from loadmaster.targets.load import target as read_target

    cluster, workers = pool["cluster"], pool["workers"]
    if cluster is not None and workers is not None:
        raise PlanError(
            "--workers counts processes of this machine, and --cluster has workers of its own: give"
            " one of them"
        )
    space, target = parse_axes(axes), read_target(*machine)
    with directory_if_asked(folder) as place, LateProgress(quiet) as progress:
        progress("reading", 0.0)
        graphs = load_networks(**networks)
        shared: dict[str, Any] = {
            "limits": limits,
            "load": lambda batch: load_networks(**(networks | {"batch": batch})),
        }
        with local_processes(workers) if cluster is None else dask_cluster(cluster) as executor:
            store = None if folder is None else SweepStore(folder / "sweep.sqlite")
            found = sweep(
                graphs,
                target,
                space,
                executor=executor,
                store=store,
                progress=progress,
                **shared,
                **options,
            )
        files = [] if place is None else _write(found, place, page)
    print_results(
        versioned("sweep", found.as_json()),
        lambda: sweep_summary(found),
        files,
        as_json=as_json,
        quiet=quiet,
    )
    broken = sum(bool(point.violations) for point in found.points)
    if broken:
        say(f"{broken} plans do not hold", err=True)
        raise typer.Exit(1)


def _write(found: Sweep, place: OutputDirectory, page: bool) -> list[Path]:
    place.write(
        "sweep.json",
        json.dumps(versioned("sweep", found.as_json()), indent=1, allow_nan=False) + "\n",
    )
    if page:
        from loadmaster.report.page import render
        from loadmaster.report.sweep import sweep_page

        place.write("sweep.html", render(sweep_page(found)))
    return place.publish()

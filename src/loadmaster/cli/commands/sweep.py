"""``loadmaster plan --sweep``: the same networks on many machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from loadmaster.cli.options import load_networks
from loadmaster.cli.printing import print_json, print_tables
from loadmaster.core.errors import PlanError

if TYPE_CHECKING:
    from loadmaster.planning.sweep.design_space import Sweep


def sweep_plans(
    axes: Sequence[str],
    networks: dict[str, Any],
    target: str,
    overrides: Sequence[str],
    options: dict[str, Any],
    *,
    cluster: str | None,
    workers: int | None,
    out: Path,
    as_json: bool,
) -> None:
    """Plan every point of the axes, write files, print the table; exit code 1 if a plan does not hold."""
    from loadmaster.cli.progress_line import LateProgress
    from loadmaster.core.files import output_directory
    from loadmaster.core.units import parse_seconds
    from loadmaster.planning.plan_records import ROUNDS
    from loadmaster.planning.sweep.design_space import parse_axes
    from loadmaster.planning.sweep.store import SweepStore
    from loadmaster.planning.sweep.sweep import sweep
    from loadmaster.planning.sweep.workers import dask_cluster, local_processes
    from loadmaster.report.sweep_page import render_sweep
    from loadmaster.targets.load import target as read_target

    if cluster is not None and workers is not None:
        raise PlanError("--workers counts processes of this machine, and --cluster has workers of its own: give one of them")
    space, machine = parse_axes(axes), read_target(target, overrides)
    limit, rounds = options["time_limit"], options["rounds"]
    options |= {"time_limit": None if limit is None else parse_seconds(limit), "rounds": ROUNDS if rounds is None else rounds}
    with output_directory(out) as place, LateProgress() as progress:
        progress("reading", 0.0)
        graphs = load_networks(**networks)
        with local_processes(workers) if cluster is None else dask_cluster(cluster) as executor:
            store = SweepStore(out / "sweep.sqlite")
            found = sweep(graphs, machine, space, executor=executor, store=store, progress=progress, **options)
        place.write("sweep.json", json.dumps(found.as_json(), indent=1, allow_nan=False) + "\n")
        place.write("sweep.html", render_sweep(found))
        files = place.publish()
    _show(found, files, as_json)
    broken = sum(point.violations > 0 for point in found.points)
    if broken:
        typer.echo(f"{broken} plans do not hold", err=True)
        raise typer.Exit(1)


def _show(found: Sweep, files: list[Path], as_json: bool) -> None:
    if as_json:
        print_json(found.as_json() | {"files": [str(file) for file in files]})
        return
    from loadmaster.report.sweep import sweep_summary

    print_tables(sweep_summary(found))
    for file in files:
        typer.echo(f"wrote {file}")

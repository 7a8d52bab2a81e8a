"""``loadmaster map``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.commands.options import Batch, Dim, Json, Precision, Training, sizes_of
from loadmaster.commands.printing import print_json
from loadmaster.errors import MappingError

if TYPE_CHECKING:
    from loadmaster.job_mapping import JobMapping


def map_command(
    jobs: Annotated[
        list[str], typer.Argument(metavar="JOBS...", help="Networks (`.onnx`, `onnx:NAME`), job lists or job analysis tables (`.csv`).")
    ],
    target: Annotated[str | None, typer.Option(metavar="NAME|FILE.toml", help="Whose cores run them; a table of costs needs none.")] = None,
    bandwidth: Annotated[
        str | None, typer.Option(metavar="BYTES_PER_S", help="That all cores share; the target's main memory has one.")
    ] = None,
    objective: Annotated[
        str, typer.Option(metavar="NAME[,NAME]", help="makespan, throughput, energy or edp; two of them for a Pareto front.")
    ] = "makespan",
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="auto, magma, annealing, herald, ai-mt, random, ga, de, es, cma-es, tbpsa, pso, a2c or ppo.")
    ] = "auto",
    samples: Annotated[int | None, typer.Option(min=1, metavar="N", help="Evaluate at most so many mappings of a group.")] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="S", help="Stop after so long, such as `1` or `200 ms`, with the best so far.")
    ] = None,
    cost: Annotated[str, typer.Option(metavar="dataflow|maestro|FILE.csv", help="What jobs cost.")] = "dataflow",
    allocator: Annotated[str, typer.Option(metavar="demand|even", help="How cores share the bandwidth.")] = "demand",
    group_size: Annotated[int | None, typer.Option(min=1, metavar="N", help="Map so many jobs at a time, group after group.")] = None,
    mini_batches: Annotated[int, typer.Option(min=1, metavar="N", help="Instances of every network or list.")] = 1,
    dependencies: Annotated[bool, typer.Option("--dependencies", help="A job starts when its inputs exist.")] = False,
    timing: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:period=S,deadline=S,priority=X", help="When a network's mini-batches come and are due."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field of the target, or `magma.mutation=0.1`.")
    ] = None,
    warm_start: Annotated[Path | None, typer.Option(metavar="FILE", help="Start from an earlier mapping's JSON.")] = None,
    batch: Batch = None,
    dim: Dim = None,
    precision: Precision = None,
    training: Training = False,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="Same input and seed, same mapping.")] = 0,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Use up to so many threads.")] = 1,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Where mapping.json goes.")] = None,
    as_json: Json = False,
) -> None:
    """Map jobs of many networks onto cores that share one bandwidth.

    Which core runs each job, and in which order. Jobs depend on nothing and load and store all their operands, as in M3E, unless
    --dependencies is given.

    Example: `loadmaster map onnx:resnet50 onnx:squeezenet --target m3e-s2 --bandwidth "16 GB/s" --precision int8`
    """
    from contextlib import nullcontext
    from dataclasses import asdict

    from loadmaster.job_mapping import read_warm_start
    from loadmaster.job_pool import read_pool
    from loadmaster.job_timing import job_times_of, latencies, parse_timing
    from loadmaster.mapper import map_dependent_jobs, map_jobs, pareto_front
    from loadmaster.output import output_directory
    from loadmaster.progress import LateProgress
    from loadmaster.targets import target as read_target
    from loadmaster.units import parse_bandwidth, parse_seconds

    fields, settings = _strategy_settings(overrides or [], strategy)
    machine = None if target is None else read_target(target, fields)
    if machine is None and bandwidth is None:
        raise MappingError("map: give a --target, or --bandwidth for jobs whose costs are in a table")
    rate = (
        min(machine.main.read_bandwidth, machine.main.write_bandwidth)
        if machine is not None and bandwidth is None
        else parse_bandwidth(bandwidth or "")
    )
    options: dict[str, Any] = {"samples": samples, "time_limit": None if time_limit is None else parse_seconds(time_limit), "seed": seed}
    start = None if warm_start is None else read_warm_start(warm_start)
    with output_directory(out) if out is not None else nullcontext() as place, LateProgress() as progress:
        progress("reading", 0.0)
        read: dict[str, Any] = {"batch": batch, "dims": sizes_of(dim or []), "precision": precision, "training": training}
        pool = read_pool(jobs, machine, cost, mini_batches=mini_batches, **read)
        options["progress"] = progress
        found: tuple[JobMapping, ...]
        timings = [parse_timing(text) for text in timing or []]
        if dependencies or timings:
            if "," in objective or group_size is not None or start is not None or settings:
                message = "go with one objective, and with neither --group-size nor --warm-start nor settings"
                raise MappingError(f"map: --dependencies and --timing {message}")
            release, due, weight = job_times_of(pool, timings)
            after = pool.after if dependencies else [()] * len(pool.after)
            options |= {"objective": objective, "strategy": strategy, "allocator": allocator}
            found = (map_dependent_jobs(pool.analysis, rate, after, release=release, due=due, weight=weight, **options),)
        else:
            options |= {"strategy": strategy, "allocator": allocator, "group_size": group_size, "settings": settings, "threads": threads}
            names = objective.split(",")
            if len(names) > 2:
                raise MappingError(f"--objective {objective!r}: give one objective, or two for a Pareto front")
            if len(names) == 2:
                found = pareto_front(pool.analysis, rate, (names[0], names[1]), warm_start=start, **options)
            else:
                found = (map_jobs(pool.analysis, rate, objective=objective, warm_start=start, **options),)
        files = []
        if place is not None:
            for number, mapping in enumerate(found):
                mapping.save(place.draft / ("mapping.json" if len(found) == 1 else f"mapping-{number}.json"))
            files = place.publish()
    served = latencies(pool, timings, found[0]) if timings else ()
    if as_json:
        shown = found[0].as_json() if "," not in objective else {"objectives": names, "front": [each.as_json() for each in found]}
        print_json(shown | ({"networks": [asdict(each) for each in served]} if served else {}))
        return
    from rich.console import Console

    from loadmaster.report.mapping import front_summary, latency_summary, mapping_summary

    Console().print(mapping_summary(found[0]) if "," not in objective else front_summary(found))
    if served:
        Console().print(latency_summary(served))
    for file in files:
        typer.echo(f"wrote {file}")


def _strategy_settings(overrides: list[str], strategy: str) -> tuple[list[str], dict[str, float]]:
    """Overrides of the target, and settings of the strategy, which begin with its name."""
    fields, settings = [], {}
    for override in overrides:
        name, _, value = override.partition("=")
        if not name.startswith(f"{strategy}."):
            fields.append(override)
            continue
        try:
            settings[name.removeprefix(f"{strategy}.")] = float(value)
        except ValueError:
            raise MappingError(f"--set {override!r}: write {name}=NUMBER") from None
    return fields, settings

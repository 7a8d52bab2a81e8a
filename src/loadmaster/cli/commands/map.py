"""``loadmaster map``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import (
    GOAL,
    MACHINE,
    NETWORK,
    NETWORKS,
    SEARCH,
    MiniBatches,
    OptionalTarget,
    Reading,
    SearchOptions,
    Threads,
    TimingOptions,
    by_network,
    machine_of,
    option,
    out_to,
    overrides_of,
    strategy_of,
)
from loadmaster.cli.output import PageOutput, versioned
from loadmaster.core.errors import MappingError
from loadmaster.cost.registry import COST_MODELS, DEFAULT
from loadmaster.mapping.strategies.registry import STRATEGIES

if TYPE_CHECKING:
    from loadmaster.mapping.answer import JobMapping
    from loadmaster.targets.hardware import Target
    from loadmaster.workloads.job import NetworkTiming

_FREE_ONLY = "--group-size, --warm-start"
_WAITING = "--dependencies, --period, --deadline and --priority"


def map_command(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOBS...", help=f"{NETWORKS} Or job lists and job analysis tables (`.csv`)."
        ),
    ],
    target: OptionalTarget = None,
    overrides: Annotated[
        list[str] | None, overrides_of("a field of the target, or `magma.mutation=0.1`")
    ] = None,
    bandwidth: Annotated[
        str | None,
        option(
            "BYTES_PER_S",
            MACHINE,
            "That all cores share, such as `16 GB/s`. Default: the target's main memory.",
        ),
    ] = None,
    allocator: Annotated[
        str,
        option("demand|even", MACHINE, "How cores share the bandwidth."),
    ] = "demand",
    cost: Annotated[
        str,
        option("|".join([*COST_MODELS.names, "FILE.csv"]), MACHINE, "What jobs cost."),
    ] = DEFAULT,
    *,
    reading: Reading,
    mini_batches: MiniBatches = 1,
    dependencies: Annotated[
        bool,
        option(
            None,
            NETWORK,
            "A job starts when its inputs exist. Default: jobs wait for nothing.",
            "--dependencies",
        ),
    ] = False,
    cut: Annotated[
        bool,
        option(
            None,
            NETWORK,
            "Divide long operators into pieces that several cores share. Default: whole.",
            "--cut",
        ),
    ] = False,
    objective: Annotated[
        str,
        option(
            "NAME[,NAME]",
            GOAL,
            "makespan, throughput, energy or edp; two of them for a Pareto front.",
        ),
    ] = "makespan",
    times: TimingOptions,
    priority: Annotated[
        list[str] | None,
        option("NAME=X", GOAL, "What a second counts that a job of a network is late. Default: 1."),
    ] = None,
    strategy: Annotated[str, strategy_of(STRATEGIES.names)] = "auto",
    samples: Annotated[
        int | None,
        option(
            "N",
            SEARCH,
            "Evaluate at most so many mappings of a group. Default: the strategy's.",
            min=1,
        ),
    ] = None,
    group_size: Annotated[
        int | None,
        option(
            "N",
            SEARCH,
            "Map so many jobs at a time, group after group. Default: all at once.",
            min=1,
        ),
    ] = None,
    warm_start: Annotated[
        Path | None,
        option("FILE", SEARCH, "Start from an earlier mapping's JSON. Default: from nothing."),
    ] = None,
    search: SearchOptions,
    threads: Threads = 1,
    out: Annotated[
        Path | None, out_to("Where mapping.json and report.html go. Default: nowhere.")
    ] = None,
    output: PageOutput,
) -> None:
    """Map jobs of many networks onto cores that share one bandwidth.

    The answer is the core of each job and the order of jobs on each core. Jobs are independent,
    and load and store all their operands, as in M3E, unless --dependencies is given.

    Exit code 3 means that some mini-batch misses its deadline.

    With --cut, operators that are much longer than all others are divided into pieces, and the
    bound holds for every division.

    Example: `loadmaster map onnx:resnet50 onnx:squeezenet --target m3e-s2 --bandwidth "16 GB/s"
    --precision int8`

    Example: `loadmaster map onnx:resnet50 --target m3e-s2 --bandwidth "64 GB/s" --precision int8
    --cut`
    """
    from loadmaster.core.json_object import json_of
    from loadmaster.core.progress import deferred_interrupts
    from loadmaster.cost.job_pool import is_listed, read_pool
    from loadmaster.mapping.answer import FrontJson, MapJson, MappedBatch, read_warm_start
    from loadmaster.mapping.map_dependent_jobs import map_dependent_jobs
    from loadmaster.mapping.map_jobs import map_jobs, pareto_front
    from loadmaster.mapping.network_timing import job_times_of, mini_batches_of
    from loadmaster.report.mapping import mapping_page
    from loadmaster.workloads.job import network_timings, require_network

    fields, settings = _strategy_settings(overrides or [], strategy)
    machine = machine_of(target, fields)
    rate = _bandwidth(machine, bandwidth)
    objectives, many = objective.split(","), "," in objective
    options: dict[str, Any] = {
        "strategy": strategy,
        "allocator": allocator,
        "samples": samples,
        **search.arguments(),
    }
    if not many:
        options["objective"] = objective
    free_only = {
        "group_size": group_size,
        "settings": settings,
        "warm_start": warm_start and read_warm_start(warm_start),
    }
    due, priorities = times.arguments(MappingError), _priorities(priority)
    timed = any(due.values()) or bool(priorities)
    timings: dict[str, NetworkTiming] = {}
    find: Callable[[], JobMapping | tuple[JobMapping, ...]]
    with output.working(out) as (place, options["progress"]):
        read = reading.arguments()
        if any(read.values()) and all(map(is_listed, jobs)):
            raise MappingError(
                "map: --batch, --dim, --precision and --training are for networks: give one, or"
                " leave them out"
            )
        read["mini_batches"] = mini_batches
        if cut:
            if dependencies or timed or group_size or warm_start or many or cost != DEFAULT:
                raise MappingError(
                    f"map: --cut goes with one objective and the cost model {DEFAULT}, and without"
                    f" {_FREE_ONLY}, {_WAITING}"
                )
            if machine is None:
                raise MappingError(
                    "map: --cut needs the --target whose cores are to run the pieces"
                )
            from loadmaster.cost.divided_jobs import divide_jobs
            from loadmaster.mapping.divided_jobs import map_divided_jobs

            options |= {"settings": settings, "threads": threads}
            divided = divide_jobs(jobs, machine, rate, **read)
            pools = divided.ways
            find = partial(map_divided_jobs, divided, rate, **options)
        else:
            pool = read_pool(jobs, machine, cost, **read)
            if not dependencies and not timed:
                if len(objectives) > 2:
                    raise MappingError(
                        f"--objective {objective!r}: give one objective, or two for a Pareto front"
                    )
                options |= free_only | {"threads": threads}
                find = partial(map_jobs, pool.analysis, rate, **options)
                if many:
                    find = partial(pareto_front, pool.analysis, rate, objectives, **options)
            elif any(free_only.values()):
                raise MappingError(
                    f"map: {_WAITING} go with neither --group-size nor --warm-start nor settings"
                )
            elif many:
                raise MappingError(f"map: {_WAITING} go with one objective")
            else:
                for name in priorities:
                    require_network("priority", name, dict.fromkeys(pool.network), MappingError)
                every = network_timings(pool.network, **due, error=MappingError)
                timings = every if timed else {}
                if not dependencies:
                    pool = replace(pool, after=((),) * len(pool.after))
                release, ends, weight = job_times_of(pool, every, priorities)
                options |= {"release": release, "due": ends, "weight": weight}
                find = partial(map_dependent_jobs, pool.analysis, rate, pool.after, **options)
            pools = (pool,)
        # Ctrl-C ends the search; its answer is written all the same.
        with deferred_interrupts():
            answer = find()
            found = answer if isinstance(answer, tuple) else (answer,)
            pool = next(pool for pool in pools if pool.analysis.jobs == found[0].jobs)
            served = mini_batches_of(pool, timings, found[0]) if timings else ()
            if place:
                for number, mapping in enumerate(found):
                    name = "mapping.json" if len(found) == 1 else f"mapping-{number}.json"
                    mapping.save(place.draft / name)
            page = partial(mapping_page, found, pool, rate, allocator, served, timings.values())
            files = output.publish(place, {}, page)
    if many:
        shown = versioned(
            FrontJson, {"objectives": objectives, "front": [each.as_json() for each in found]}
        )
    else:
        shown = versioned(MapJson, found[0].as_json())
    if served:
        shown["mini_batches"] = [
            json_of(each, MappedBatch, deadline=timings[each.network].deadline) for each in served
        ]
    output.show(shown, page, files)
    if any(each.missed for each in served):
        raise typer.Exit(3)


def _priorities(texts: list[str] | None) -> dict[str, float]:
    """Parse the weights of lateness, by network. Raises `MappingError`."""
    form = "NAME=X with a number of at least 0, such as resnet50=2"

    def number(text: str) -> float:
        """Return a weight; raise MappingError unless it is a finite number of at least 0."""
        try:
            if 0 <= float(text) < float("inf"):
                return float(text)
        except ValueError:
            pass
        raise MappingError(f"--priority {text!r}: write {form}")

    return by_network("priority", texts, number, form, MappingError)


def _bandwidth(machine: Target | None, given: str | None) -> float:
    """Return the bandwidth in bytes/s that the cores share. Raises `LoadmasterError`."""
    from loadmaster.core.units import parse_bandwidth

    if given is not None:
        return parse_bandwidth(given)
    if not machine:
        raise MappingError(
            "map: give a --target, or --bandwidth for jobs whose costs are in a table"
        )
    return min(machine.main.read_bandwidth, machine.main.write_bandwidth)


def _strategy_settings(overrides: list[str], strategy: str) -> tuple[list[str], dict[str, float]]:
    """Divide ``--set`` into overrides of the target, and settings of the strategy, which begin with
    its name."""
    fields, settings = [], {}
    for override in overrides:
        name, _, value = override.partition("=")
        owner, _, setting = name.partition(".")
        if owner not in STRATEGIES.names:
            fields.append(override)
            continue
        if owner != strategy:
            raise MappingError(
                f"--set {override!r}: is a setting of the strategy {owner}, and {strategy} was"
                f" chosen: add --strategy {owner}"
            )
        try:
            settings[setting] = float(value)
        except ValueError:
            raise MappingError(f"--set {override!r}: write {name}=NUMBER") from None
    return fields, settings

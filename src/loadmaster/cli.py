"""The ``loadmaster`` command: parse, call, print. Results go to standard output, everything else to standard error.

Only what every call needs is imported at the top: ``--help`` must answer at once.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from loadmaster.errors import AllocationError, LoadmasterError, MappingError, ModelError, OutputError, PlanError

if TYPE_CHECKING:
    from loadmaster.allocations import Allocation
    from loadmaster.banks import Bank, BankAllocation
    from loadmaster.buffers import Problem
    from loadmaster.graph import Graph
    from loadmaster.job_mapping import JobMapping
    from loadmaster.plans import Plan
    from loadmaster.verification import Violation

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Plans neural networks onto accelerators: which core runs each layer and when, which memory holds each tensor, "
    "and at which address.",
)

# What typer raises for a command line that it cannot parse; it exports the subclass only.
_UsageError: Any = typer.BadParameter.__mro__[1]

Models = Annotated[
    list[str], typer.Argument(metavar="MODEL...", help="`.onnx` or `.onnx.gz` files, or `onnx:NAME` (resnet50, vgg19, ...).")
]
Batch = Annotated[int | None, typer.Option(min=1, metavar="N", help="Leading dimension of the networks' inputs.")]
Dim = Annotated[list[str] | None, typer.Option(metavar="NAME=N", help="Size of a symbolic dimension, or of `INPUT.AXIS`. May be repeated.")]
Precision = Annotated[str | None, typer.Option(metavar="int8|fp16|fp32", help="Plan floating-point tensors at this width.")]
Memory = Annotated[
    list[str] | None,
    typer.Option(
        "--memory",
        metavar="NAME[=BYTES]",
        help="A memory, the best first, such as `sram=1MiB,alignment=64,reserved=0-4096`; without BYTES it takes whatever is spilled. "
        "May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]


@app.command("plan")
def plan_command(
    models: Models,
    target: Annotated[str, typer.Option(metavar="NAME|FILE.toml", help="A bundled target (`loadmaster targets`) or a file.")],
    batch: Batch = None,
    dim: Dim = None,
    precision: Precision = None,
    mini_batches: Annotated[int, typer.Option(min=1, metavar="N", help="Instances of every network; they share its weights.")] = 1,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help='Override a field of the target: `dram.bandwidth="8 GB/s"`.')
    ] = None,
    time_limit: Annotated[str | None, typer.Option(metavar="S", help="Stop the search after so long, such as `5` or `2 min`.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="Same input and seed, same plan.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where plan.json, report.html and trace.pftrace go.")] = Path("loadmaster-plan"),
    as_json: Json = False,
) -> None:
    """Plan networks on a target, check the plan, write a report.

    Networks are planned together. The plan is checked by code that shares nothing with the planner, and plan.json, report.html and
    trace.pftrace are written. Ctrl-C ends the search and keeps the best plan so far.

    Example: `loadmaster plan onnx:resnet50 bert.onnx --target edge-npu --precision int8 --set dram.bandwidth="8 GB/s" --out plan`
    """
    from loadmaster.output import output_directory
    from loadmaster.planner import plan
    from loadmaster.progress import LateProgress
    from loadmaster.targets import target as read_target
    from loadmaster.units import parse_seconds
    from loadmaster.verification import verify

    machine = read_target(target, overrides or ())
    limit = None if time_limit is None else parse_seconds(time_limit)
    with output_directory(out) as place, LateProgress() as progress:
        progress("reading", 0.0)
        graphs = _load(models, batch, dim, precision)
        started, started_cpu = time.perf_counter(), time.process_time()
        result = plan(graphs, machine, mini_batches=mini_batches, seed=seed, time_limit=limit, progress=progress)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - started_cpu
        progress("verifying", 0.0)
        violations = verify(result)
        progress("writing", 0.0)
        result.save(place.draft / "plan.json")
        result.report(place.draft)
        files = place.publish()
    if as_json:
        _print_json(_summary_json(result, seconds, cpu_seconds, files, violations))
    else:
        _print_summary(result, seconds, cpu_seconds, files)
    if violations:
        _print_violations(violations, "plan")
        raise typer.Exit(1)


@app.command("map")
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
        pool = read_pool(jobs, machine, cost, mini_batches=mini_batches, batch=batch, dims=_dims(dim or []), precision=precision)
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
        _print_json(shown | ({"networks": [asdict(each) for each in served]} if served else {}))
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


@app.command("allocate")
def allocate_command(
    buffers: Annotated[Path, typer.Argument(metavar="BUFFERS.csv", help="Columns id, lower, upper (or end, inclusive), size, and more.")],
    capacity: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Find any packing that fits, such as `1MiB`. Without it, the lowest peak.")
    ] = None,
    memory: Memory = None,
    alignment: Annotated[str | None, typer.Option(metavar="BYTES", help="Every offset is a multiple of it.")] = None,
    strategy: Annotated[
        str, typer.Option(metavar="NAME", help="auto, best-fit, greedy, telamalloc, exact, local-search or cp-sat.")
    ] = "auto",
    time_limit: Annotated[
        str | None, typer.Option(metavar="S", help="Stop after so long, such as `5` or `200 ms`, with the best so far.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, metavar="N", help="Same input and seed, same packing.")] = 0,
    threads: Annotated[int, typer.Option(min=1, metavar="N", help="Use up to so many threads.")] = 1,
    output: Annotated[Path | None, typer.Option(metavar="OUT.csv", help="Where the buffers go, with their offsets.")] = None,
    as_json: Json = False,
) -> None:
    """Give buffers with known lifetimes addresses in one memory, or in several.

    With several memories, buffers that do not fit into the best one are spilled to the next at the least cost. Exit code 1 if they do not
    fit, or no packing was found.

    Example: `loadmaster allocate buffers.csv --capacity 1MiB --output packed.csv`, or with `--memory sram=1MiB --memory dram`
    """
    from loadmaster.allocator import aligned, allocate
    from loadmaster.buffers_csv import read_buffers
    from loadmaster.units import parse_bytes, parse_seconds

    limit = None if time_limit is None else parse_seconds(time_limit)
    room, step = (None if text is None else parse_bytes(text) for text in (capacity, alignment))
    if output is not None:
        _require_writable(output.parent, "--output")
    problem = aligned(read_buffers(buffers), step)
    if memory:
        if room is not None:
            raise AllocationError("--capacity belongs to one memory: write --memory NAME=BYTES")
        from loadmaster.bank_allocator import allocate_banks

        spread = allocate_banks(problem, _banks(memory), strategy=strategy, time_limit=limit, seed=seed, threads=threads)
        _show_packing(problem, spread, output, as_json)
    else:
        answer = allocate(problem, room, strategy=strategy, time_limit=limit, seed=seed, threads=threads)
        _show_packing(problem, answer, output, as_json)


@app.command("verify")
def verify_command(
    plan: Annotated[Path | None, typer.Argument(metavar="[PLAN.json]", help="A plan; or give --buffers.")] = None,
    buffers: Annotated[Path | None, typer.Option(metavar="OUT.csv", help="Buffers with their offsets, instead of a plan.")] = None,
    capacity: Annotated[str | None, typer.Option(metavar="BYTES", help="With --buffers: what every buffer must end within.")] = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Check a plan file, or the offsets of buffers; exit code 1 if it does not hold.

    The checks share no code with the planner or the allocator.

    Example: `loadmaster verify plan/plan.json`, or `loadmaster verify --buffers packed.csv --capacity 1MiB`
    """
    if (plan is None) == (buffers is None):
        raise PlanError("verify: give either PLAN.json or --buffers OUT.csv")
    if plan is not None and (capacity is not None or memory):
        raise PlanError("verify: --capacity and --memory belong to --buffers: a plan names its own memories")
    if capacity is not None and memory:
        raise PlanError("verify: --capacity belongs to one memory: write --memory NAME=BYTES")
    source = plan or buffers
    assert source is not None
    what, counts, violations = ("plan", *_check_plan(source)) if plan else ("packing", *_check_packing(source, capacity, memory))
    if as_json:
        _print_json({"valid": not violations, "violations": [{"rule": v.rule, "message": v.message} for v in violations]})
    elif not violations:
        typer.echo(f"{source}: the {what} holds ({counts})")
    if violations:
        _print_violations(violations, what)
        raise typer.Exit(1)


def _check_plan(file: Path) -> tuple[str, tuple[Violation, ...]]:
    from loadmaster.plans import Plan
    from loadmaster.verification import verify

    plan = Plan.load(file)
    return f"{len(plan.jobs)} jobs, {len(plan.allocations)} allocations, {len(plan.transfers)} transfers", verify(plan)


def _check_packing(file: Path, capacity: str | None, memory: list[str] | None) -> tuple[str, tuple[Violation, ...]]:
    from loadmaster.buffers_csv import read_bank_solution, read_solution
    from loadmaster.units import parse_bytes
    from loadmaster.verification import verify_banks, verify_buffers

    if memory:
        problem, homes, offsets = read_bank_solution(file)
        return f"{len(problem)} buffers in {len(memory)} memories", verify_banks(problem, homes, offsets, _banks(memory))
    problem, offsets = read_solution(file)
    if problem.homes is not None:
        raise AllocationError(f"{file}: buffers name memories: say what memories there are, with --memory")
    violations = verify_buffers(problem, offsets, None if capacity is None else parse_bytes(capacity))
    peak = int((offsets + problem.size)[problem.solid].max(initial=0))
    return f"{len(problem)} buffers, peak {peak}", violations


@app.command("targets")
def targets_command(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this target's TOML, to start one's own from.")] = None,
) -> None:
    """List the bundled targets, or print the TOML of one.

    Example: `loadmaster targets edge-npu > my-npu.toml`
    """
    from loadmaster.targets import bundled, bundled_text, target

    if name is not None:
        typer.echo(bundled_text(name), nl=False)
        return
    width = max(len(known) for known in bundled())
    for known in bundled():
        typer.echo(f"{known:{width}}  {target(known).description}")


@app.command("inspect")
def inspect_command(
    model: Annotated[str, typer.Argument(metavar="MODEL")],
    batch: Batch = None,
    dim: Dim = None,
    precision: Precision = None,
    as_json: Json = False,
) -> None:
    """Show what was read of a network.

    Operators by kind, multiply-accumulates, bytes of weights and activations, and what was not understood.

    Example: `loadmaster inspect onnx:resnet50 --batch 8`
    """
    from loadmaster.report.inspection import inspection, inspection_json

    graph = _load([model], batch, dim, precision)[0]
    if as_json:
        _print_json(inspection_json(graph))
    else:
        from rich.console import Console

        Console().print(inspection(graph))


def _load(models: list[str], batch: int | None, dim: list[str] | None, precision: str | None) -> list[Graph]:
    from loadmaster.frontends import load

    return [load(model, batch=batch, dims=_dims(dim or []), precision=precision) for model in models]


def _dims(options: list[str]) -> dict[str, int]:
    sizes = {}
    for option in options:
        name, _, size = option.rpartition("=")
        if not name or not size.strip().isascii() or not size.strip().isdecimal() or int(size) < 1:
            raise ModelError(f"--dim {option!r}: write NAME=N with a whole number of at least 1, such as sequence=128")
        sizes[name.strip()] = int(size)
    return sizes


def _require_writable(directory: Path, option: str = "--out") -> None:
    """Find out before the work, not after it."""
    from tempfile import TemporaryFile

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(f"{option} {directory}: cannot be written: {error.strerror}") from None


def _summary_json(plan: Plan, seconds: float, cpu_seconds: float, files: list[Path], violations: tuple[Violation, ...]) -> dict[str, Any]:
    metrics = plan.metrics
    return {
        "status": plan.status,
        "makespan": metrics.makespan.value,
        "lower_bound": metrics.makespan.lower_bound,
        "throughput": metrics.throughput.value,
        "inferences_per_second": metrics.inferences_per_second.value,
        "traffic_bytes": int(metrics.traffic[plan.target.main.name].value),
        "links": {name: {"bytes": int(cost.value), "lower_bound": int(cost.lower_bound)} for name, cost in metrics.traffic.items()},
        "memories": {
            name: {"peak": use.peak, "lower_bound": use.lower_bound, "capacity": use.capacity} for name, use in metrics.memory.items()
        },
        "utilisation": {name: rate.value for name, rate in metrics.utilisation.items()},
        "jobs": len(plan.jobs),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "seed": plan.seed,
        "estimated": True,
        "violations": len(violations),
        "notes": list(plan.notes),
        "files": [str(file) for file in files],
    }


def _allocation_json(answer: Allocation, buffers: int) -> dict[str, Any]:
    from dataclasses import asdict, is_dataclass

    kept = ("status", "peak", "lower_bound", "capacity", "seconds", "cpu_seconds", "strategy", "seed", "interrupted", "counters")
    proof = answer.certificate
    shown: dict[str, Any] = {name: getattr(answer, name) for name in kept} | {"buffers": buffers}
    key = "reason" if answer.status == "infeasible" else "certificate"
    return shown | {key: asdict(proof) if is_dataclass(proof) and not isinstance(proof, type) else proof}


def _banks(options: list[str]) -> tuple[Bank, ...]:
    """Memories from `NAME[=BYTES][,alignment=BYTES][,reserved=LOW-HIGH]...`."""
    from loadmaster.banks import Bank, check_banks
    from loadmaster.units import parse_bytes

    banks = []
    for option in options:
        first, *more = option.split(",")
        name, _, capacity = first.partition("=")
        alignment, reserved = 1, []
        for key, _, value in (word.partition("=") for word in more):
            if key == "alignment":
                alignment = parse_bytes(value)
            elif key == "reserved" and "-" in value:
                low, _, high = value.partition("-")
                reserved.append((parse_bytes(low), parse_bytes(high)))
            else:
                raise AllocationError(f"--memory {option!r}: write NAME[=BYTES][,alignment=BYTES][,reserved=LOW-HIGH], such as sram=1MiB")
        banks.append(Bank(name.strip(), parse_bytes(capacity) if capacity else None, alignment, tuple(reserved)))
    return check_banks(banks)


def _show_packing(problem: Problem, answer: Allocation | BankAllocation, output: Path | None, as_json: bool) -> None:
    """Write what was found, and say what it is; exit code 1 if it is nothing."""
    from loadmaster.allocations import Allocation
    from loadmaster.buffers_csv import write_buffers

    if output is not None and answer.offsets is not None:
        write_buffers(output, problem, answer.offsets, None if isinstance(answer, Allocation) else answer.memory)
    if as_json:
        count = len(problem)
        _print_json(_allocation_json(answer, count) if isinstance(answer, Allocation) else _banks_json(answer, count))
    else:
        from rich.console import Console

        from loadmaster.report.packing import banks_summary, packing_summary

        Console().print(packing_summary(problem, answer) if isinstance(answer, Allocation) else banks_summary(problem, answer))
        if output is not None and answer.offsets is not None:
            typer.echo(f"wrote {output}")
    if answer.offsets is None:
        raise typer.Exit(1)


def _banks_json(answer: BankAllocation, buffers: int) -> dict[str, Any]:
    from dataclasses import asdict, is_dataclass

    kept = ("status", "cost", "lower_bound", "seconds", "cpu_seconds", "strategy", "seed", "interrupted", "counters")
    shown: dict[str, Any] = {name: getattr(answer, name) for name in kept} | {"buffers": buffers}
    shown["memories"] = {
        bank.name: {"capacity": bank.capacity, "alignment": bank.alignment}
        | ({"peak": packing.peak, "buffers": len(packing.offsets)} if packing is not None and packing.offsets is not None else {})
        for bank, packing in ((bank, answer.packings.get(bank.name)) for bank in answer.banks)
    }
    return shown | {"reason": asdict(answer.reason) if is_dataclass(answer.reason) else answer.reason}


def _print_json(value: dict[str, Any]) -> None:
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def _print_summary(plan: Plan, seconds: float, cpu_seconds: float, files: list[Path]) -> None:
    from rich.console import Console

    from loadmaster.report.terminal import summary

    Console().print(summary(plan, seconds=seconds, cpu_seconds=cpu_seconds))
    for file in files:
        typer.echo(f"wrote {file}")


def _print_violations(violations: tuple[Violation, ...], what: str) -> None:
    for violation in violations:
        typer.echo(f"{violation.rule}: {violation.message}", err=True)
    typer.echo(f"the {what} does not hold: {len(violations)} violations", err=True)


def main() -> NoReturn:
    """Run the command line; any mistake is one line on standard error and exit code 2."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except LoadmasterError as error:
        code = _refuse(str(error))
    except _UsageError as error:
        code = _refuse(f"{error.format_message()} (see --help)")
    except KeyboardInterrupt:
        code = 130
    if code == 130:
        typer.echo("loadmaster: interrupted", err=True)
    sys.exit(code if isinstance(code, int) else 0)


def _refuse(message: str) -> int:
    typer.echo(f"loadmaster: {' '.join(message.split())}", err=True)
    return 2


if __name__ == "__main__":
    main()

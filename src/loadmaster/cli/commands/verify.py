"""``loadmaster verify``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.options import (
    NETWORK,
    SEARCH,
    Memory,
    Overrides,
    Reading,
    Seed,
    machine_of,
    memories_of,
    option,
    parsed,
    plan_file,
    target_of,
)
from loadmaster.cli.output import Output, print_tables, print_violations, say, versioned
from loadmaster.core.errors import AllocationError, PlanError

PACKING = "Buffers"

if TYPE_CHECKING:
    from loadmaster.core.errors import Violation
    from loadmaster.targets.hardware import Target


def verify_command(
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="[PLAN.json]", help="A plan, or the folder that has it; or give --buffers."
        ),
    ] = None,
    buffers: Annotated[
        Path | None,
        option(
            "OUT.csv", PACKING, "Buffers with their offsets, instead of a plan. Default: a plan."
        ),
    ] = None,
    capacity: Annotated[
        str | None,
        option(
            "BYTES",
            PACKING,
            "With --buffers: what every buffer must end within. Default: anything.",
        ),
    ] = None,
    memory: Memory = None,
    against: Annotated[
        list[str] | None,
        option(
            "MODEL[,MODEL...]",
            NETWORK,
            "The plan's networks in its order, to check that it is one of them. May be repeated.",
        ),
    ] = None,
    run: Annotated[
        list[str] | None,
        option(
            "MODEL[,MODEL...]",
            NETWORK,
            "The plan's networks in its order, ONNX files, to run the plan and compare its"
            " outputs with theirs. May be repeated.",
        ),
    ] = None,
    orders: Annotated[
        int,
        option("N", SEARCH, "With --run: in how many orders jobs and copies are run.", min=1),
    ] = 3,
    seed: Seed = 0,
    target: Annotated[
        str | None,
        target_of("With --against: the machine. Default: the plan's own is believed."),
    ] = None,
    overrides: Overrides = None,
    *,
    reading: Reading,
    output: Output,
    context: typer.Context,
) -> None:
    """Check a plan file, or the offsets of buffers; exit code 1 if they are invalid.

    The checks share no code with the planner or the allocator. With --against, the networks are
    read again with the options that were given to `plan`, and every job is costed again: the plan
    must be one of these networks, with all of their operators, sizes and work, and its bounds must
    be proven. With --target too, it must be for that machine.

    With --run, jobs and copies are run by ONNX operators on memories of the planned size, every
    tensor at its planned address, in several orders that the plan allows; outputs must equal those
    of the whole networks. Inputs, and weights that a file lacks, are random.

    Example: `loadmaster verify plan/plan.json`, or `loadmaster verify --buffers packed.csv
    --capacity 1MiB`

    Example: `loadmaster verify plan/plan.json --against onnx:resnet50,bert.onnx --precision int8
    --target edge-npu`

    Example: `loadmaster verify plan/plan.json --run network.onnx --precision int8`
    """
    if (plan is None) == (buffers is None):
        raise PlanError("verify: give either PLAN.json or --buffers OUT.csv")
    if plan and (capacity is not None or memory):
        raise PlanError(
            "verify: --capacity and --memory belong to --buffers: a plan names its own memories"
        )
    if capacity is not None and memory:
        raise PlanError("verify: --capacity belongs to one memory: write --memory NAME=BYTES")
    if (plan is None or not (against or run)) and (against or run or any(vars(reading).values())):
        raise PlanError(
            "verify: networks and what they are read with belong to PLAN.json --against MODEL or"
            " --run MODEL"
        )
    if (target or overrides) and not against:
        raise PlanError("verify: --target and --set belong to PLAN.json --against MODEL")
    for name in ("orders", "seed"):
        source_of_value: Any = context.get_parameter_source(name)
        if not run and source_of_value.name != "DEFAULT":
            raise PlanError(f"verify: --{name} is for running a plan: give --run MODEL too")
    if reading.training and run:
        raise PlanError("verify: --training is for torch modules, and --run for ONNX files")
    source = plan_file(plan) if plan else buffers
    assert source is not None
    execution, what = None, "plan" if plan else "packing"
    counts, violations = (
        _check_plan(source, _models(against), reading, machine_of(target, overrides))
        if plan
        else _check_packing(source, capacity, memory)
    )
    if run and not violations:
        from loadmaster.integrations.execute.run import run_plan
        from loadmaster.planning.plan import Plan

        options = reading.arguments()
        del options["training"]
        execution = run_plan(Plan.load(source), _models(run), **options, orders=orders, seed=seed)
        violations = execution.violations
    if output.as_json:
        from loadmaster.core.json_object import ABSENT
        from loadmaster.integrations.execute.execution import VerifyJson

        found = {"valid": not violations, "violations": violations, "run": execution or ABSENT}
        output.show(versioned(VerifyJson, found), list)
    elif not output.quiet:
        if execution:
            from loadmaster.integrations.execute.summary import execution_summary

            print_tables(execution_summary(execution))
        if not violations:
            say(f"{source}: the {what} holds ({counts})")
    if violations:
        print_violations(violations, what)
        raise typer.Exit(1)


def _models(texts: list[str] | None) -> list[str]:
    """Return the models of all options, which separate them by commas."""
    return [
        model
        for text in texts or ()
        for model in ([text] if os.path.exists(text) else text.split(","))
    ]


def _check_plan(
    file: Path, models: list[str], reading: Reading, machine: Target | None
) -> tuple[str, tuple[Violation, ...]]:
    """Verify a plan, against networks if some are given. Return what was checked and the
    violations."""
    from loadmaster.planning.plan import Plan
    from loadmaster.planning.verify.plan import verify
    from loadmaster.planning.verify_against import verify_against

    plan = Plan.load(file)
    counts = (
        f"{len(plan.jobs)} jobs, {len(plan.allocations)} allocations, {len(plan.transfers)}"
        " transfers"
    )
    if not models:
        return counts, verify(plan)
    known = "these networks" if machine is None else f"these networks on {machine.name}"
    return f"{counts}; it is one of {known}", verify_against(plan, reading.load(models), machine)


def _check_packing(
    file: Path, capacity: str | None, memory: list[str] | None
) -> tuple[str, tuple[Violation, ...]]:
    """Verify addresses of buffers, in several memories if ``memory`` names them. Return what was
    checked and the violations."""
    from loadmaster.allocation.buffers_csv import read_bank_solution, read_solution
    from loadmaster.allocation.memories.verify import verify_banks
    from loadmaster.allocation.verify import verify_buffers
    from loadmaster.core.units import parse_bytes

    if memory:
        problem, memory_names, offsets = read_bank_solution(file)
        return f"{len(problem)} buffers in {len(memory)} memories", verify_banks(
            problem, memory_names, offsets, memories_of(memory)
        )
    problem, offsets = read_solution(file)
    if problem.allowed is not None:
        raise AllocationError(
            f"{file}: buffers name memories: say what memories there are, with --memory"
        )
    violations = verify_buffers(problem, offsets, parsed(capacity, parse_bytes))
    peak = int((offsets + problem.size)[problem.solid].max(initial=0))
    return f"{len(problem)} buffers, peak {peak}", violations

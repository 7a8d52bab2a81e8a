"""``loadmaster verify``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.options import Json, Memory, memories_of
from loadmaster.cli.printing import print_json, print_violations
from loadmaster.core.errors import AllocationError, PlanError

if TYPE_CHECKING:
    from loadmaster.planning.verify.plan import Violation


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
        print_json({"valid": not violations, "violations": [{"rule": v.rule, "message": v.message} for v in violations]})
    elif not violations:
        typer.echo(f"{source}: the {what} holds ({counts})")
    if violations:
        print_violations(violations, what)
        raise typer.Exit(1)


def _check_plan(file: Path) -> tuple[str, tuple[Violation, ...]]:
    from loadmaster.planning.plan import Plan
    from loadmaster.planning.verify.plan import verify

    plan = Plan.load(file)
    return f"{len(plan.jobs)} jobs, {len(plan.allocations)} allocations, {len(plan.transfers)} transfers", verify(plan)


def _check_packing(file: Path, capacity: str | None, memory: list[str] | None) -> tuple[str, tuple[Violation, ...]]:
    from loadmaster.allocation.buffers_csv import read_bank_solution, read_solution
    from loadmaster.core.units import parse_bytes
    from loadmaster.planning.verify.plan import verify_banks, verify_buffers

    if memory:
        problem, homes, offsets = read_bank_solution(file)
        return f"{len(problem)} buffers in {len(memory)} memories", verify_banks(problem, homes, offsets, memories_of(memory))
    problem, offsets = read_solution(file)
    if problem.homes is not None:
        raise AllocationError(f"{file}: buffers name memories: say what memories there are, with --memory")
    violations = verify_buffers(problem, offsets, None if capacity is None else parse_bytes(capacity))
    peak = int((offsets + problem.size)[problem.solid].max(initial=0))
    return f"{len(problem)} buffers, peak {peak}", violations

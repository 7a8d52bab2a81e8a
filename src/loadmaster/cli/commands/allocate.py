"""``loadmaster allocate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.allocation.strategies.registry import STRATEGIES
from loadmaster.cli.options import Json, Memory, memories_of, one_of
from loadmaster.cli.printing import print_json, print_tables
from loadmaster.core.errors import AllocationError, OutputError
from loadmaster.integrations.dumps.readers.registry import READERS

if TYPE_CHECKING:
    from loadmaster.allocation.answer import Allocation
    from loadmaster.allocation.memories.problem import BankAllocation
    from loadmaster.allocation.problem import Problem
    from loadmaster.integrations.dumps.arena import Arena
    from loadmaster.integrations.dumps.compare import Comparison


def allocate_command(
    buffers: Annotated[
        Path,
        typer.Argument(
            metavar="BUFFERS.csv",
            help="Columns id, lower, upper (or end, inclusive), size, and more; or a `.tflite` file, for its arena; or, with "
            "--from, another planner's dump.",
        ),
    ],
    planner: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLANNER",
            help=f"Read another planner's dump; say what it takes, what Loadmaster takes and what anything must: {one_of(READERS.names)}",
        ),
    ] = None,
    arena: Annotated[str | None, typer.Option(metavar="NAME", help="With --from: only this arena of the dump.")] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="BYTES", help="Find any packing that fits, such as `1MiB`. Without it, the lowest peak.")
    ] = None,
    memory: Memory = None,
    alignment: Annotated[str | None, typer.Option(metavar="BYTES", help="Every offset is a multiple of it.")] = None,
    strategy: Annotated[str, typer.Option(metavar="NAME", help=one_of(STRATEGIES.names))] = "auto",
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
    from loadmaster.allocation.allocate import aligned, allocate
    from loadmaster.core.units import parse_bytes, parse_seconds

    limit = None if time_limit is None else parse_seconds(time_limit)
    room, step = (None if text is None else parse_bytes(text) for text in (capacity, alignment))
    if output is not None:
        _require_writable(output.parent, "--output")
    if planner is not None:
        if memory:
            raise AllocationError("--memory with --from: write the buffers of one arena with --output, and give that file with --memory")
        arenas = _arenas(buffers, planner, arena, output)
        from loadmaster.integrations.dumps.compare import compare

        found = [
            compare(each, capacity=room, alignment=step, strategy=strategy, time_limit=limit, seed=seed, threads=threads) for each in arenas
        ]
        _show_comparisons(buffers, planner, found, output, as_json)
        return
    if arena is not None:
        raise AllocationError("--arena names an arena of another planner's dump: say whose it is with --from")
    problem = aligned(_problem(buffers), step)
    if memory:
        if room is not None:
            raise AllocationError("--capacity belongs to one memory: write --memory NAME=BYTES")
        from loadmaster.allocation.memories.allocate import allocate_banks

        spread = allocate_banks(problem, memories_of(memory), strategy=strategy, time_limit=limit, seed=seed, threads=threads)
        _show_packing(problem, spread, output, as_json)
    else:
        answer = allocate(problem, room, strategy=strategy, time_limit=limit, seed=seed, threads=threads)
        _show_packing(problem, answer, output, as_json)


def _problem(path: Path) -> Problem:
    if path.suffix.lower() == ".tflite":
        from loadmaster.integrations.tflite.export import tflite_problem

        return tflite_problem(path)
    from loadmaster.allocation.buffers_csv import read_buffers

    return read_buffers(path)


def _show_packing(problem: Problem, answer: Allocation | BankAllocation, output: Path | None, as_json: bool) -> None:
    """Write and print the answer; exit code 1 if there is no packing."""
    from loadmaster.allocation.answer import Allocation
    from loadmaster.allocation.buffers_csv import write_buffers

    if output is not None and answer.offsets is not None:
        write_buffers(output, problem, answer.offsets, None if isinstance(answer, Allocation) else answer.memory)
    if as_json:
        count = len(problem)
        print_json(_allocation_json(answer, count) if isinstance(answer, Allocation) else _banks_json(answer, count))
    else:
        from loadmaster.report.packing import banks_summary, packing_summary

        print_tables(packing_summary(problem, answer) if isinstance(answer, Allocation) else banks_summary(problem, answer))
        if output is not None and answer.offsets is not None:
            typer.echo(f"wrote {output}")
    if answer.offsets is None:
        raise typer.Exit(1)


def _arenas(path: Path, planner: str, name: str | None, output: Path | None) -> list[Arena]:
    """Arenas of a dump: the one that is asked for, or all."""
    from loadmaster.core.arguments import require_known

    arenas = READERS.find(planner)(path)
    if name is not None:
        require_known(f"arena in {path}", name, [arena.name for arena in arenas], AllocationError)
        arenas = [arena for arena in arenas if arena.name == name]
    if output is not None and len(arenas) > 1:
        raise AllocationError(
            f"--output takes the buffers of one arena: choose with --arena {arenas[0].name!r}, or another of {len(arenas)}"
        )
    if output is not None and len(arenas[0].problem.in_place):
        raise AllocationError(f"--output: {path} has kernels that may write over an operand, which its columns cannot say: use --json")
    return arenas


def _show_comparisons(path: Path, planner: str, found: list[Comparison], output: Path | None, as_json: bool) -> None:
    """Write and print comparisons; exit code 1 if a planner's own addresses do not hold, or Loadmaster has none."""
    from loadmaster.allocation.buffers_csv import write_buffers

    for each in found if output is not None else ():
        if output is not None and each.answer.offsets is not None:
            write_buffers(output, each.problem, each.answer.offsets, None)
    rows = [_comparison_json(each) for each in found]
    if as_json:
        print_json({"file": str(path), "planner": planner, "arenas": rows})
    else:
        from loadmaster.report.floor import floor_table

        print_tables(floor_table(rows))
        if output is not None and found[0].answer.offsets is not None:
            typer.echo(f"wrote {output}")
    if any(each.violations or each.answer.offsets is None for each in found):
        raise typer.Exit(1)


def _comparison_json(found: Comparison) -> dict[str, Any]:
    arena = found.arena
    theirs = {
        "name": arena.name,
        "verdict": found.verdict,
        "theirs": arena.taken,
        "theirs_stated": arena.stated,
        "violations": [{"rule": each.rule, "message": each.message} for each in found.violations],
    }
    return theirs | _allocation_json(found.answer, len(found.problem))


def _allocation_json(answer: Allocation, buffers: int) -> dict[str, Any]:
    from dataclasses import asdict, is_dataclass

    kept = ("status", "peak", "lower_bound", "capacity", "seconds", "cpu_seconds", "strategy", "seed", "interrupted", "counters")
    proof = answer.certificate
    shown: dict[str, Any] = {name: getattr(answer, name) for name in kept} | {"buffers": buffers}
    key = "reason" if answer.status == "infeasible" else "certificate"
    return shown | {key: asdict(proof) if is_dataclass(proof) and not isinstance(proof, type) else proof}


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


def _require_writable(directory: Path, option: str) -> None:
    """Check before the search that files can be written to the directory of ``option``."""
    from tempfile import TemporaryFile

    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise OutputError(f"{option} {directory}: cannot be written: {error.strerror}") from None

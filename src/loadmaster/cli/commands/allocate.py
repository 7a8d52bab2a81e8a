"""``loadmaster allocate``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.allocation.strategies.registry import STRATEGIES
from loadmaster.cli.options import (
    MACHINE,
    Memory,
    SearchOptions,
    Threads,
    memories_of,
    one_of,
    option,
    out_to,
    parsed,
    strategy_of,
)
from loadmaster.cli.output import PageOutput, versioned
from loadmaster.core.errors import AllocationError
from loadmaster.core.files import directory_if_asked
from loadmaster.integrations.dumps.readers.registry import READERS, read_dump

if TYPE_CHECKING:
    from loadmaster.allocation.memories.problem import BankAllocation
    from loadmaster.allocation.problem import Allocation, Problem

DUMP = "Another planner's dump"


def allocate_command(
    buffers: Annotated[
        Path,
        typer.Argument(
            metavar="BUFFERS.csv",
            help=(
                "Columns id, lower, upper (or end, inclusive), size, and more; or a `.tflite` file,"
                " for its arena; or, with --from, another planner's dump."
            ),
        ),
    ],
    planner: Annotated[
        str | None,
        option(
            "PLANNER",
            DUMP,
            "Read another planner's dump; say what it takes, what Loadmaster takes and what"
            f" anything must. Default: a file of buffers. {one_of(READERS.names)}",
            "--from",
        ),
    ] = None,
    arena: Annotated[
        str | None,
        option("NAME", DUMP, "With --from: only this arena of the dump. Default: all."),
    ] = None,
    capacity: Annotated[
        str | None,
        option(
            "BYTES",
            MACHINE,
            "Find any packing that fits, such as `1MiB`."
            " Default: the packing with the lowest peak.",
        ),
    ] = None,
    memory: Memory = None,
    alignment: Annotated[
        str | None,
        option(
            "BYTES", MACHINE, "Every offset is a multiple of it. Default: as the file says, or 1."
        ),
    ] = None,
    strategy: Annotated[str, strategy_of(STRATEGIES.names)] = "auto",
    *,
    search: SearchOptions,
    threads: Threads = 1,
    out: Annotated[
        Path | None,
        out_to(
            "Where the buffers go with their offsets: a file, or a directory for packed.csv and"
            " report.html. Default: nowhere.",
            "OUT.csv|DIR",
        ),
    ] = None,
    output: PageOutput,
) -> None:
    """Give buffers with known lifetimes addresses in one memory, or in several.

    With several memories, buffers that do not fit into the best one are spilled to the next at the
    least cost. Exit code 1 if they do not fit, or no packing was found.

    Example: `loadmaster allocate buffers.csv --capacity 1MiB --out packed.csv`, or with `--memory
    sram=1MiB --memory dram`
    """
    from loadmaster.allocation.allocate import aligned, allocate
    from loadmaster.allocation.buffers_csv import write_buffers
    from loadmaster.allocation.memories.problem import BankAllocationJson
    from loadmaster.allocation.problem import Allocation
    from loadmaster.core.units import parse_bytes
    from loadmaster.integrations.tflite.export_json import AllocateJson
    from loadmaster.report.packing import packing_page

    room = parsed(capacity, parse_bytes)
    step = parsed(alignment, parse_bytes)
    if memory and room is not None:
        raise AllocationError("--capacity belongs to one memory: write --memory NAME=BYTES")
    options: dict[str, Any] = {"strategy": strategy, "threads": threads, **search.arguments()}
    folder, name = out, "packed.csv"
    if out is not None and out.suffix.lower() == ".csv":
        folder, name = out.parent, out.name
    if planner is not None:
        if memory:
            raise AllocationError(
                "--memory with --from: write the buffers of one arena with --out, and give that"
                " file, without its column offset, with --memory"
            )
        options |= {"capacity": room, "alignment": step}
        _compare(buffers, planner, arena, folder, name, options, output)
        return
    if arena is not None:
        raise AllocationError(
            "--arena names an arena of another planner's dump: say whose it is with --from"
        )
    with directory_if_asked(folder) as place:
        problem = aligned(_problem(buffers), step)
        answer: Allocation | BankAllocation
        if memory:
            from loadmaster.allocation.memories.allocate import allocate_banks

            answer = allocate_banks(problem, memories_of(memory), **options)
        else:
            answer = allocate(problem, room, **options)
        page, beyond = out == folder and not output.no_report, None
        if place and answer.offsets is not None:
            memories = getattr(answer, "memory", None)
            write_buffers(place.draft / name, problem, answer.offsets, memories)
        elif place and page and isinstance(answer, Allocation):
            # Nothing fits: draw a packing above the capacity.
            beyond = allocate(problem, **options)
        drawn = page and (beyond or answer).offsets is not None
        draw = partial(packing_page, answer, problem, beyond) if drawn else None
        files = output.publish(place, {}, draw)
    wanted = not memory and (output.as_json or not output.quiet)
    reasons = _reasons(buffers, step) if wanted else {}
    kind = BankAllocationJson if memory else AllocateJson
    shown = versioned(kind, answer.as_json(len(problem)) | reasons)
    output.show(shown, lambda: packing_page(answer, problem, arena=shown), files)
    if answer.offsets is None:
        raise typer.Exit(1)


def _problem(path: Path) -> Problem:
    """Return the buffers of a CSV file or of a .tflite model; raise AllocationError for other
    networks."""
    if path.suffix.lower() == ".tflite":
        from loadmaster.integrations.tflite.export import tflite_problem

        return tflite_problem(path)
    from loadmaster.allocation.buffers_csv import read_buffers

    if str(path).startswith(("onnx:", "torch:")) or ".onnx" in path.suffixes:
        raise AllocationError(
            f"{path}: is a network, and here buffers are packed whose lifetimes are known (a CSV"
            f" file, or a .tflite): `loadmaster plan {path} --target edge-npu` decides on them"
        )
    return read_buffers(path)


def _reasons(path: Path, alignment: int | None) -> dict[str, Any]:
    """Return the operators at the peak and the remedies for a ``.tflite`` file; nothing for other
    files."""
    if path.suffix.lower() != ".tflite":
        return {}
    from loadmaster.integrations.tflite.lifetimes import UNIT
    from loadmaster.integrations.tflite.why import arena_reasons

    step = alignment or UNIT
    if step < UNIT or step & (step - 1):
        # Bands are tried with TFLM's alignment if the given one is impossible for TFLM.
        step = UNIT
    return vars(arena_reasons(path, alignment=step))


def _compare(
    path: Path,
    planner: str,
    arena: str | None,
    folder: Path | None,
    name: str,
    options: dict[str, Any],
    output: PageOutput,
) -> None:
    """Write and print comparisons with another planner. Exit code 1 if its own addresses are
    invalid, or Loadmaster found none."""
    from loadmaster.allocation.buffers_csv import write_buffers
    from loadmaster.core.arguments import require_known
    from loadmaster.integrations.dumps.compare import ArenasJson, compare
    from loadmaster.report.floor import floor_table

    with directory_if_asked(folder) as place:
        arenas = read_dump(planner, path)
        if arena is not None:
            require_known(
                f"arena in {path}", arena, [each.name for each in arenas], AllocationError
            )
            arenas = [each for each in arenas if each.name == arena]
        if place and len(arenas) > 1:
            raise AllocationError(
                f"--out takes the buffers of one arena: choose with --arena {arenas[0].name!r}, or"
                f" another of {len(arenas)}"
            )
        if place and len(arenas[0].problem.in_place):
            raise AllocationError(
                f"--out: {path} has kernels that may write over an operand, which its columns"
                " cannot say: leave --out out"
            )
        found = [compare(each, **options) for each in arenas]
        if place and found[0].answer.offsets is not None:
            write_buffers(place.draft / name, found[0].problem, found[0].answer.offsets, None)
        files = output.publish(place, {})
    rows = [each.as_json() for each in found]
    shown = versioned(ArenasJson, {"file": str(path), "planner": planner, "arenas": rows})
    output.show(shown, lambda: floor_table(rows), files)
    if any(each.violations or each.answer.offsets is None for each in found):
        raise typer.Exit(1)

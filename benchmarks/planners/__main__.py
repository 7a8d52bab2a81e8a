"""How far memory planners are from the floor: ``python -m benchmarks.planners [PLANNER:FILE ...]
[--only NAME] [--json FILE]``.

Each program is given to every planner that is installed and takes its kind: XLA (JAX), IREE, Vela,
ONNX Runtime, TFLM and Inductor. Their plans are read and checked, and the same buffers are packed.
Dumps that are there already are given as ``PLANNER:FILE``, such as ``iree:model.txt``; then nothing
else is done. ``--only`` keeps programs and planners whose names have a text in them. Ratio is what
a planner takes over what Loadmaster takes; time is Loadmaster's, check included.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.planners.dumps import PLANNERS, is_installed
from benchmarks.planners.programs import programs
from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.dumps.arena import DumpedArena
from loadmaster.integrations.dumps.compare import Comparison, compare
from loadmaster.integrations.dumps.readers.registry import READERS
from loadmaster.integrations.tflite.export import export_model
from loadmaster.integrations.tflite.interpreter import is_installed as has_interpreter

HEADER = (
    f"{'program':36}{'planner':16}{'buffers':>8}{'theirs':>15}{'Loadmaster':>15}{'bound':>15} "
    f" {'status':10}{'ms':>9}{'ratio':>8}"
)


def show(program: str, planner: str, found: Comparison) -> dict[str, Any]:
    arena, answer = found.arena, found.answer
    row = {
        "program": program,
        "planner": planner,
        "arena": arena.name,
        "buffers": len(arena.problem),
        "theirs": arena.taken,
        "loadmaster": answer.peak,
        "lower_bound": answer.lower_bound,
        "status": answer.status,
        "seconds": answer.seconds,
        "ratio": None if arena.taken is None or not answer.peak else arena.taken / answer.peak,
        "violations": [violation.message for violation in found.violations],
    }
    line(row)
    return row


def line(row: dict[str, Any]) -> None:
    theirs, ours = (
        f"{row[name]:,}" if row[name] is not None else "-" for name in ("theirs", "loadmaster")
    )
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.4f}"
    figures = (
        f"{row['buffers']:8}{theirs:>15}{ours:>15}{row['lower_bound']:15,} "
        f" {row['status']:10}{row['seconds'] * 1e3:9.1f}{ratio:>8}"
    )
    print(f"{row['program'][:35]:36}{row['planner']:16}{figures}", flush=True)
    for message in row["violations"]:
        print(f"    their plan does not hold: {message}")


def of_dump(program: str, planner: str, path: Path) -> Iterator[dict[str, Any]]:
    """Rows of a dump's arenas that have more than one buffer."""
    for arena in READERS.find(planner)(path):
        if len(arena.problem) > 1:
            yield show(program, planner, compare(arena))


def of_tflm(program: str, path: Path) -> dict[str, Any]:
    """TFLM's arena as its own interpreter measures it, scratch buffers included."""
    exported = export_model(path)
    taken = exported.plan.head_before if exported.before is None else exported.before.head
    return show(
        program,
        "tflm",
        compare(DumpedArena("head", exported.problem, None, taken)),
    )


def of_inductor(only: str) -> Iterator[dict[str, Any]]:
    """Rows of Inductor's pools, which are taken while it generates code."""
    from benchmarks.planners.inductor import inductor, modules

    for program, (module, inputs) in modules().items():
        if only in f"{program} inductor":
            yield from (
                show(program, "inductor", compare(arena)) for arena in inductor(module, inputs)
            )


def made(only: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Rows of everything that can be made here."""
    missing = {install for _, _, module, install in PLANNERS.values() if not is_installed(module)}
    missing |= set() if has_interpreter() else {"'loadmaster[tflite]'"}
    missing |= set() if is_installed("torch") else {"torch==2.13.0"}
    for program, path in programs(folder).items():
        for planner, (dump, kind, module, _) in PLANNERS.items():
            if path.suffix == kind and is_installed(module) and only in f"{program} {planner}":
                place = folder / f"{path.stem}-{planner}"
                place.mkdir()
                try:
                    yield from of_dump(program, planner, dump(path, place))
                except (LoadmasterError, RuntimeError) as error:
                    print(f"{program[:35]:36}{planner:16}{' '.join(str(error).split())[:160]}")
        if path.suffix == ".tflite" and has_interpreter() and only in f"{program} tflm":
            yield of_tflm(program, path)
    yield from of_inductor(only) if is_installed("torch") else ()
    for install in sorted(missing):
        print(f"not installed, so not measured: pip install {install}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dumps", nargs="*", metavar="PLANNER:FILE")
    parser.add_argument(
        "--only", default="", help="programs and planners whose names have this in them"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="where the rows go as well")
    arguments = parser.parse_args()
    print(HEADER)
    rows: list[dict[str, Any]] = []
    for dump in arguments.dumps:
        planner, _, path = dump.partition(":")
        rows += of_dump(Path(path).name, planner, Path(path))
    if not arguments.dumps:
        with tempfile.TemporaryDirectory() as folder:
            rows += made(arguments.only, Path(folder))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Compiles a model to an IREE program whose transient memory Loadmaster has packed.

The compiler is stopped before its packing pass, packing operations are replaced by addresses, and
compilation continues: first with the rest of the stream phase's pipelines, then with all later
phases.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from math import gcd
from pathlib import Path

import numpy as np

from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.problem import Buffer, Problem
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.verify import verify_buffers
from loadmaster.core.arrays import Ints
from loadmaster.core.errors import (
    AllocationError,
    MissingPackageError,
    ModelError,
    OutputError,
    package,
)
from loadmaster.core.files import output_directory
from loadmaster.core.registry import Status
from loadmaster.integrations.iree.packs import ALIGNMENT, find_packs, function_of
from loadmaster.integrations.iree.printed import Dump, PlacedPack, find_dumps, placed_packs

VERSION = "3.13"
"""Supported release; in others passes and pipelines may have other names."""
_PACKAGE = "iree-base-compiler"
TARGET = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)
"""Default flags of the compilation target: the processor of this machine."""


def require_version() -> None:
    """Raise `MissingPackageError` if IREE's compiler is not installed, or is not of release
    `VERSION`."""
    install = f"pip install 'loadmaster[iree]' ({_PACKAGE} {VERSION})"
    try:
        found = version(_PACKAGE)
    except PackageNotFoundError:
        raise MissingPackageError(
            f"exporting to IREE needs {_PACKAGE}, which is not installed: {install}"
        ) from None
    if found.split(".")[:2] != VERSION.split("."):
        raise MissingPackageError(
            f"exporting to IREE calls passes of {_PACKAGE} {VERSION} by name, and {found} is"
            f" installed: {install}"
        )


_MODULES = {
    "iree-import-onnx": "iree.compiler.tools.import_onnx",
    "iree-compile": "iree.compiler.tools.scripts.iree_compile",
    "iree-opt": "iree.compiler.tools.scripts.iree_opt",
}


def tool(name: str) -> list[str]:
    """Return the command of one of IREE's tools in this Python's installation."""
    return [sys.executable, "-m", _MODULES[name]]


def run_tool(name: str, arguments: Sequence[str | Path], log: Path) -> None:
    """Run a tool, with its standard error written to the file ``log``.

    Raises
    ------
    ModelError
        If the tool fails; the message has the first error that it prints.
    """
    with log.open("wb") as file:
        done = subprocess.run(
            [*tool(name), *map(str, arguments)],
            stdout=subprocess.DEVNULL,
            stderr=file,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    if done.returncode:
        raise ModelError(f"{name} failed: {_first_error(log)}")


def _first_error(log: Path) -> str:
    """Return the first line of a log with ``error:``, else the last line."""
    last = "no reason given"
    with log.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if "error:" in line.lower():
                return line.strip()[:400]
            last = line.strip()[:400] or last
    return last


_PASS = "iree-stream-layout-slices"
_PIPELINES = ("--iree-stream-cmd-transformation-pipeline", "--iree-stream-optimization-pipeline")
_LARGEST_ALIGNMENT = 256
"""Largest alignment in bytes that is inferred from IREE's own addresses."""
_OPSET = 17
"""Oldest ONNX operator set that IREE's importer supports in full."""
_TEXT = "IREE's text"
_WEIGHTS = ".irpa"
_RESULT = re.compile(r"(%[\w$.-]+)#(\d+)\b")
_STOPS = ("--compile-to", "--compile-from", "--mlir-print", "-o", "--output")


@dataclass(frozen=True)
class PlannedPack:
    """The plan of one transient resource."""

    function: str
    """Name of the resource's function."""
    slices: int
    """Number of slices."""
    before: int
    """Bytes of the resource as packed by IREE."""
    bytes: int
    """Bytes of the resource with the plan."""
    lower_bound: int
    """Lower bound in bytes for all plans."""
    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best."""


@dataclass(frozen=True)
class ProgramJson:
    """Transient memory of a program compiled by IREE."""

    VERSION = 1
    model: str
    """Path of the model."""
    packs: Sequence[PlannedPack]
    """Transient resources of the program."""


@dataclass(frozen=True)
class ExportedProgram:
    """The planned resources, and the written files: the program, and its weights if they are in a
    separate file."""

    packs: tuple[PlannedPack, ...]
    written: tuple[Path, ...]


def export_program(source: Path, out: Path, flags: Sequence[str] = ()) -> ExportedProgram:
    """Compile a model with a plan of its transient memory.

    Parameters
    ----------
    source
        An `.onnx` file, or an `.mlir` file for ``iree-compile``.
    out
        Path of the program. Large weights of an `.onnx` file are written beside it, with the suffix
        `.irpa`.
    flags
        Further flags of ``iree-compile``; without any, the target is the processor of this machine.

    Raises
    ------
    MissingPackageError
        If IREE is not installed, or is of another release.
    ModelError
        If IREE cannot compile the model.
    AllocationError
        If sizes are not static, there is nothing to pack, or a plan is invalid. No file is written
        then.
    """
    require_version()
    given = [flag for flag in flags if flag.startswith(_STOPS)]
    if given:
        raise ModelError(
            f"{given[0]}: leave it out: where the compiler stops and what it prints is for the"
            " export to say"
        )
    if source.suffix not in (".mlir", ".onnx") or not source.is_file():
        raise ModelError(f"{source}: is no .mlir or .onnx file that is there")
    if out.is_dir():
        raise OutputError(
            f"{out}: a directory is in the way: give a file's name, such as {out / 'planned.vmfb'}"
        )
    if out.suffix == _WEIGHTS:
        raise OutputError(
            f"{out}: weights are called so: give the program another suffix, such as .vmfb"
        )
    with (
        output_directory(out.parent) as results,
        tempfile.TemporaryDirectory(prefix="loadmaster-") as folder,
    ):
        try:
            plans = _export(
                source.resolve(), Path(folder), results.draft / out.name, tuple(flags) or TARGET
            )
        except (ModelError, AllocationError) as error:
            raise type(error)(f"{source}: {str(error).replace(folder, '')}") from None
        return ExportedProgram(plans, tuple(results.publish()))


def _export(source: Path, work: Path, out: Path, target: Sequence[str]) -> tuple[PlannedPack, ...]:
    """Import, plan and compile a model with IREE's tools in the folder ``work``; return the planned
    packs."""
    module = _import_model(source, work, out.with_suffix(_WEIGHTS))
    text, plans = _plan_module(module, work, target)
    (work / "planned.mlir").write_text(text, encoding="utf-8", errors="surrogateescape")
    run_tool(
        "iree-opt", [work / "planned.mlir", *_PIPELINES, "-o", work / "stream.mlir"], work / "log"
    )
    run_tool(
        "iree-compile",
        [work / "stream.mlir", "--compile-from=stream", *target, "-o", out],
        work / "log",
    )
    return plans


def _import_model(source: Path, work: Path, weights: Path) -> Path:
    """Return the path of the model as MLIR; large weights are written to the file ``weights``."""
    if source.suffix == ".mlir":
        return source
    module = work / "model.mlir"
    parameters: list[str | Path] = ["--externalize-params", "--save-params-to", weights]
    run_tool(
        "iree-import-onnx", [source, *_upgrade(source), *parameters, "-o", module], work / "log"
    )
    return module


def _upgrade(source: Path) -> list[str]:
    """Return the importer's flags that upgrade a model to operator set `_OPSET`; none if it is not
    older."""
    onnx = package("onnx", "exporting to IREE")
    try:
        model = onnx.load(str(source), load_external_data=False)
    except Exception as error:  # Whatever protobuf makes of a damaged file.
        raise ModelError(f"is no ONNX model ({type(error).__name__})") from None
    version = max(
        (each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0
    )
    return ["--opset-version", str(_OPSET)] if version < _OPSET else []


def _plan_module(
    module: Path, work: Path, target: Sequence[str]
) -> tuple[str, tuple[PlannedPack, ...]]:
    """Return the module before the packing pass, with packing operations replaced by planned
    addresses."""
    printed = [f"--mlir-print-ir-{when}={_PASS}" for when in ("before", "after")]
    stop = [
        "--mlir-print-ir-module-scope",
        "--mlir-disable-threading",
        "--compile-to=stream",
        "-o",
        str(work / "stopped.mlir"),
    ]
    run_tool("iree-compile", [module, *target, *printed, *stop], work / "printed")
    lines = (work / "printed").read_text(encoding="utf-8", errors="surrogateescape").split("\n")
    dumps = list(find_dumps(lines))
    first = _program_dump(lines, dumps)
    if first is None:
        raise AllocationError(
            "IREE has no transient memory to pack: compile it with iree-compile alone"
        )
    answers = [_pack(each) for each in placed_packs(dumps[first:], _TEXT)]
    body = [lines[number] for number in dumps[first].lines]
    return "\n".join(_with_addresses(body, answers)), tuple(plan for plan, _ in answers)


def _program_dump(lines: Sequence[str], dumps: Sequence[Dump]) -> int | None:
    """Return the index of the dump of the whole program before packing; None if there is none.
    Dumps of programs that IREE compiles to fold constants precede it."""
    program = _names(lines, dumps[-1]) if dumps else frozenset()
    packs = {
        number: sum("stream.resource.pack" in lines[at] for at in dump.lines)
        for number, dump in enumerate(dumps)
        if dump.before and _names(lines, dump) == program
    }
    most = max(packs, key=packs.__getitem__, default=None)
    return most if most is not None and packs[most] else None


def _names(lines: Sequence[str], dump: Dump) -> frozenset[str]:
    """Return the names of the functions in the module of a dump."""
    heads = (function_of(lines[number]) for number in dump.lines)
    return frozenset(head[1] for head in heads if head and head[0] == "util.func" and head[1])


Answer = tuple[PlannedPack, Ints]
"""The plan of a resource, and the address of each slice."""


def _pack(placed: PlacedPack) -> Answer:
    """Pack one resource; IREE's own addresses are kept unless a smaller packing is found."""
    pack = placed.pack
    if placed.total is None or placed.offsets is None:
        raise AllocationError(
            f"what IREE makes of the pack in {pack.function} is not printed: please report it"
        )
    alignment = gcd(_LARGEST_ALIGNMENT, placed.total, *placed.offsets)
    if alignment % ALIGNMENT:
        what = (
            f"give --iree-stream-resource-min-offset-alignment={ALIGNMENT} or more, or leave it out"
        )
        raise AllocationError(
            f"IREE's addresses in {pack.function} are multiples of {alignment} only: {what}"
        )
    slices = [
        Buffer(f"{at}", first, last + 1, -(-size // alignment) * alignment, alignment)
        for at, (first, last, size) in enumerate(pack.slices)
    ]
    problem = problem_of(slices)
    theirs = np.array(placed.offsets, dtype=np.int64)
    _require_valid(problem, theirs, placed.total, f"IREE's own plan of {pack.function}")
    answer = allocate(problem)
    offsets, total = theirs, placed.total
    if answer.offsets is not None and answer.peak is not None and answer.peak < total:
        offsets, total = answer.offsets, answer.peak
    _require_valid(problem, offsets, total, f"the plan of {pack.function}")
    status: Status = "optimal" if total == answer.lower_bound else "feasible"
    plan = PlannedPack(pack.function, len(slices), placed.total, total, answer.lower_bound, status)
    return plan, offsets


def _require_valid(problem: Problem, offsets: Ints, total: int, what: str) -> None:
    """Raise AllocationError if addresses violate the problem or exceed ``total`` bytes."""
    violations = verify_buffers(problem, offsets, total)
    if violations:
        raise AllocationError(f"{what} does not hold ({violations[0].message}): please report it")


def _with_addresses(lines: Sequence[str], answers: Sequence[Answer]) -> Iterator[str]:
    """Yield the lines of a module with constants in place of the results of its packing operations;
    ``answers`` has one entry for each operation."""
    packs = find_packs(lines, _TEXT)
    if [(pack.function, len(pack.slices)) for pack in packs] != [
        (plan.function, plan.slices) for plan, _ in answers
    ]:
        raise AllocationError(
            "IREE prints other packs in the module than in its functions: please report it"
        )
    begins = {pack.begin: (at, pack) for at, pack in enumerate(packs)}
    constants: dict[str, int] = {}
    after = 0
    for number, line in enumerate(lines):
        if function_of(line):
            constants.clear()
        if number in begins:
            at, pack = begins[number]
            constants[pack.result], after = at, pack.end
            plan, offsets = answers[at]
            for result, value in enumerate([plan.bytes, *offsets.tolist()]):
                yield f"    {_constant(at, result)} = arith.constant {value} : index"
        if number >= after:
            yield _RESULT.sub(
                lambda match: (
                    _constant(constants[match[1]], match[2]) if match[1] in constants else match[0]
                ),
                line,
            )


def _constant(at: int, result: int | str) -> str:
    """Return the name of the constant for a result of packing operation ``at``."""
    return f"%packed_{at}_{result}"

"""From a ``.tflite`` file to one with a plan of TFLM's arena in it, which is written only if it has
been checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.errors import AllocationError, LoadmasterError
from loadmaster.core.files import replace_file
from loadmaster.integrations.tflite.arena import (
    ArenaPlan,
    addresses_of,
    arena_problem,
    arena_violations,
    plan_arena,
    plan_entries,
)
from loadmaster.integrations.tflite.in_place import in_place_pairs, kernels_in_place
from loadmaster.integrations.tflite.interpreter import CannotLoad, Measured, is_installed, measure
from loadmaster.integrations.tflite.lifetimes import UNIT, Lifetimes, lifetimes
from loadmaster.integrations.tflite.memory_log import read_memory_log
from loadmaster.integrations.tflite.planned_file import ONLINE, planned_offsets, with_plan
from loadmaster.integrations.tflite.probe import probe
from loadmaster.integrations.tflite.scratch import UNKNOWN, Scratch
from loadmaster.workloads.frontends.tflite.model import TfliteModel, parse_model, read_file

_TEMPLATE = """\
// Written by Loadmaster for {title}: {head} bytes of arena.
// Planned tensors in the order of the file, then scratch buffers in the order in which kernels ask
// for them.
#include "tensorflow/lite/micro/memory_planner/memory_plan_struct.h"

const struct BufferPlan k{symbol}Plan = {{
    {count},
    {{
{entries}
    }},
}};
"""


def buffer_plan(title: str, found: Lifetimes, scratch: Scratch, plan: ArenaPlan) -> str:
    """The source of one C or C++ file; ``title`` names the model, and the constant after it.

    Raises
    ------
    AllocationError
        If it is not known which scratch buffers kernels ask for one by one: probing finds how many
        bytes an operator's take together.
    """
    if scratch.source == "unknown" or (scratch.source == "probed" and scratch.buffers):
        raise AllocationError(
            f"{title}: --c-struct lists every scratch buffer that kernels ask for: give the log of"
            " a target's build with --scratch FILE"
        )
    owners = [
        *(tensor.name for tensor in found.tensors),
        *(buffer.name for buffer in scratch.buffers),
    ]
    lines = (
        f"        {{{offset}}},  // {_comment(owner)}"
        for owner, offset in zip(owners, (*plan.offsets, *plan.scratch_offsets), strict=True)
    )
    return _TEMPLATE.format(
        title=_comment(title),
        head=plan.head,
        symbol=_symbol(title),
        count=len(owners),
        entries="\n".join(lines),
    )


def _symbol(title: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", title)
    return "".join(word[:1].upper() + word[1:] for word in words) or "Model"


def _comment(text: str) -> str:
    """Text that cannot end a line of comment early or go on after it."""
    return "".join(
        char if char.isascii() and char.isprintable() and char != "\\" else "?" for char in text
    )


PROBE, NONE = "probe", "none"


@dataclass(frozen=True)
class ExportedModel:
    """What was planned for a model: the file with the plan, the plan, what it is made for, and what
    was measured of both files."""

    name: str
    data: bytes
    plan: ArenaPlan
    found: Lifetimes
    scratch: Scratch
    problem: Problem
    before: Measured | None
    after: Measured | None
    work: float = 1.0
    """Multiply-accumulates over those of the file as it was."""
    time: float = 1.0
    """The same of time, estimated for TFLM's reference kernels."""
    bands: tuple[tuple[int, int, int], ...] = ()
    """First and last operator of what runs in bands, and how many."""

    @property
    def addresses(self) -> Ints:
        """Addresses of the problem's buffers."""
        offsets = [*self.plan.offsets, *self.plan.scratch_offsets]
        return addresses_of(self.problem, self.found, self.scratch, offsets)


def export_model(
    source: str | Path,
    *,
    alignment: int = UNIT,
    in_place: str | None = None,
    scratch: str | None = None,
    measured: bool = True,
) -> ExportedModel:
    """Plan the arena of a ``.tflite`` file.

    Parameters
    ----------
    source
        The file.
    alignment
        Bytes; a power of two of at least 16 of which every address is a multiple.
    in_place
        Operators whose kernels may write over an operand: a library of kernels, or names with
        commas between them.
    scratch
        Where the scratch buffers of kernels are known from: ``probe``, with TFLM's interpreter,
        which is usual where it is installed and can load the file; the log of a target's build; or
        ``none``.
    measured
        Whether both files are loaded into TFLM's interpreter, where it is installed.

    Raises
    ------
    LoadmasterError
        If the file cannot be read, planned or measured; the message begins with its name.
    """
    try:
        model = parse_model(read_file(source))
        found = lifetimes(model)
        known = _scratch(model, found, scratch)
        pairs = tuple(in_place_pairs(model, found, kernels_in_place(in_place))) if in_place else ()
        problem = arena_problem(found, known, alignment, pairs)
        plan = plan_arena(found, known, alignment, pairs, problem)
        data = with_plan(model, plan_entries(found, plan.offsets))
        check_file(data, model, known, plan, alignment, pairs)
        files = (model.root.file.data, data) if measured and known.source == "probed" else ()
        measurements = [measure(file, plan.head_before, least=True) for file in files]
    except LoadmasterError as error:
        if isinstance(error, CannotLoad) and scratch is None:
            return export_model(source, alignment=alignment, in_place=in_place, scratch=NONE)
        raise type(error)(" ".join(f"{source}: {error}".split())) from None
    before, after = measurements or (None, None)
    if before is not None and after is not None:
        if after.head > plan.head or (after.head < plan.head and not known.bounds):
            raise AllocationError(
                f"{source}: TFLM's interpreter takes {after.head} bytes, not {plan.head} as"
                " planned: please report it"
            )
        plan = replace(plan, head=after.head, head_before=before.head)
    if plan.head > plan.head_before:
        raise AllocationError(
            f"{source}: the head would grow from {plan.head_before} to {plan.head} bytes: leave the"
            " file as it is"
        )
    name = Path(source).stem
    return ExportedModel(name, data, plan, found, known, problem, before, after)


def write_model(model: ExportedModel, path: Path, c_struct: Path | None = None) -> list[Path]:
    """Write the file with the plan and, if asked for, its C source."""
    source = (
        None
        if c_struct is None
        else buffer_plan(model.name, model.found, model.scratch, model.plan)
    )
    written = [replace_file(path, model.data, "the model with its plan")]
    if c_struct is not None and source is not None:
        written.append(replace_file(c_struct, source, "the plan in C"))
    return written


def tflite_problem(source: str | Path) -> Problem:
    """The packing problem of a file's arena, without scratch buffers. Raises `ModelError`, with the
    file's name, if it cannot be read."""
    try:
        return arena_problem(lifetimes(parse_model(read_file(source))), UNKNOWN)
    except LoadmasterError as error:
        raise type(error)(" ".join(f"{source}: {error}".split())) from None


def check_file(
    data: bytes,
    before: TfliteModel,
    scratch: Scratch,
    plan: ArenaPlan,
    alignment: int,
    pairs: Sequence[tuple[int, int]],
) -> None:
    """Read a planned file again: it must hold what it held, and a plan in which nothing overlaps.

    Raises
    ------
    AllocationError
        If it does not, in which case it must not be written.
    """
    after = parse_model(data)
    if _contents(after) != _contents(before):
        raise AllocationError(
            "the file with the plan does not hold what it held before: please report it"
        )
    found, entries = lifetimes(before), planned_offsets(after)
    if any(old not in (ONLINE, new) for old, new in zip(found.entries, entries, strict=True)):
        raise AllocationError("the plan moves what the file has an address for: please report it")
    offsets = [entries[tensor.number] for tensor in found.tensors]
    problem = arena_problem(found, scratch, alignment, pairs)
    violations = arena_violations(
        problem, found, scratch, [*offsets, *plan.scratch_offsets], plan.head
    )
    if violations:
        raise AllocationError(f"the plan does not hold ({violations[0].message}): please report it")


def _contents(model: TfliteModel) -> list[object]:
    """What a file holds, without where it holds it: tensors with their bytes, operators with their
    options."""
    data = memoryview(model.root.file.data)
    return [
        (
            subgraph.name,
            subgraph.inputs,
            subgraph.outputs,
            [
                (t.name, t.shape, t.dtype, t.is_variable, data[t.content[0] : sum(t.content)])
                for t in subgraph.tensors
            ],
            [
                (op.kind, op.inputs, op.outputs, op.intermediates, op.bodies)
                for op in subgraph.operators
            ],
        )
        for subgraph in model.subgraphs
    ]


def _scratch(model: TfliteModel, found: Lifetimes, source: str | None) -> Scratch:
    if source == NONE or (source is None and not is_installed()):
        return UNKNOWN
    return (
        probe(model, found)
        if source in (None, PROBE)
        else read_memory_log(Path(source or ""), found)
    )

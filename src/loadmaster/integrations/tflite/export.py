"""Plans TFLM's arena for a ``.tflite`` file, and writes the file with the checked plan."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadmaster.allocation.problem import Problem
from loadmaster.core.arrays import Ints
from loadmaster.core.errors import AllocationError, LoadmasterError
from loadmaster.integrations.tflite.arena import (
    ArenaPlan,
    TensorArena,
    addresses_of,
    arena_problem,
    plan_arena,
)
from loadmaster.integrations.tflite.in_place import in_place_pairs, kernels_in_place
from loadmaster.integrations.tflite.interpreter import ArenaBytes, CannotLoad, is_installed, measure
from loadmaster.integrations.tflite.lifetimes import UNIT, Lifetimes, lifetimes, plan_entries
from loadmaster.integrations.tflite.planned_file import planned_offsets, with_plan
from loadmaster.integrations.tflite.scratch import UNKNOWN, Scratch, probe, read_memory_log
from loadmaster.workloads.frontends.tflite.model import TfliteModel, parse_model, read_file

_TEMPLATE = """\
// Written by Loadmaster for {title}: {head} bytes of arena.
// For the file as it was: TFLM's NonPersistentMemoryPlannerShim refuses files that hold a plan.
// Planned tensors in the order of the file, then scratch buffers in the order in which kernels ask
// for them.
#include "tensorflow/lite/micro/memory_planner/memory_plan_struct.h"

extern const struct BufferPlan k{symbol}Plan;
const struct BufferPlan k{symbol}Plan = {{
    {count},
    {{
{entries}
    }},
}};
"""


def buffer_plan(model: ExportedModel) -> str:
    """Return a C or C++ source with the plan as a constant named after the model.

    Raises
    ------
    AllocationError
        If the single scratch buffers are unknown, as probing gives only their sum for each
        operator, or the file holds addresses, which TFLM's shim refuses.
    """
    if model.plan.fixed:
        raise AllocationError(
            f"{model.name}: --c-struct is for files without a plan, which TFLM's shim refuses:"
            " convert the model again, without it"
        )
    scratch = model.arena.scratch
    if scratch.source == "unknown" or (scratch.source == "probed" and scratch.buffers):
        raise AllocationError(
            f"{model.name}: --c-struct lists every scratch buffer that kernels ask for: give the"
            " log of a target's build with --scratch FILE"
        )
    lines = [
        f"        {{{offset}}},  // {_comment(owner.name)}"
        for owner, offset in zip(model.arena.owners, model.plan.offsets, strict=True)
    ]
    words = re.findall(r"[A-Za-z0-9]+", model.name)
    return _TEMPLATE.format(
        title=_comment(model.name),
        head=model.plan.head,
        symbol="".join(word[:1].upper() + word[1:] for word in words) or "Model",
        count=len(lines),
        entries="\n".join(lines),
    )


def _comment(text: str) -> str:
    """Return a text that is safe in a ``//`` comment of C."""
    # Question marks are part of trigraphs, one of which continues the line.
    return re.sub(r"[^ ->@-\[\]-~]", "_", text)


@contextmanager
def naming(source: str | Path) -> Iterator[None]:
    """Prefix errors raised within the block with the name of a file, on one line."""
    try:
        yield
    except LoadmasterError as error:
        raise type(error)(" ".join(f"{source}: {error}".split())) from None


PROBE, NONE = "probe", "none"


@dataclass(frozen=True)
class ExportedModel:
    """A model with a plan of its arena.

    Attributes
    ----------
    name, data
        Name of the model; contents of the file with the plan.
    plan, arena, problem
        The plan, and the arena and packing problem that it is for.
    before, after
        Measurements of the original and of the new file; None if not measured.
    """

    name: str
    data: bytes
    plan: ArenaPlan
    arena: TensorArena
    problem: Problem
    before: ArenaBytes | None = None
    after: ArenaBytes | None = None
    work: float = 1.0
    """Ratio of multiply-accumulates to those of the original file."""
    time: float = 1.0
    """Ratio of the time to that of the original file, estimated for TFLM's reference kernels."""
    bands: tuple[tuple[int, int, int], ...] = ()
    """First operator, last operator and number of bands of every region in bands."""

    @property
    def addresses(self) -> Ints:
        """Addresses of the problem's buffers."""
        return addresses_of(self.problem, self.plan.offsets)

    def measured(self, before: ArenaBytes) -> ExportedModel:
        """Measure the file with TFLM's interpreter, and return the model with the measurement and
        that of the original file. Raises `AllocationError` if the head differs from the plan."""
        after = measure(self.data, self.plan.head, least=True)
        # Buffers of one kernel, of which the sum is known, may lie apart.
        apart = self.arena.scratch.known and after.head < self.plan.head
        if after.head != self.plan.head and not apart:
            raise AllocationError(
                f"TFLM's interpreter takes {after.head} bytes, not {self.plan.head} as planned:"
                " please report it"
            )
        plan = replace(self.plan, head=after.head, head_before=before.head)
        return replace(self, before=before, after=after, plan=plan)

    @property
    def least(self) -> int:
        """Bytes of the smallest arena, measured; the planned head if it was not measured."""
        if self.after is None:
            return self.plan.head
        return self.after.least or self.after.head + self.after.tail


def export_model(
    source: str | Path,
    *,
    alignment: int = UNIT,
    in_place: str | None = None,
    scratch: str | None = None,
) -> ExportedModel:
    """Plan the arena of a ``.tflite`` file.

    Parameters
    ----------
    source
        The file.
    alignment
        Bytes, a power of two of at least 16; every address is a multiple.
    in_place
        Operators whose kernels may write over an operand: a kernel library, or a list of names
        separated by commas.
    scratch
        Source of the kernels' scratch buffers: ``probe`` (TFLM's interpreter, the default if it is
        installed and can load the file), the log of a target's build, or ``none``.

    Raises
    ------
    LoadmasterError
        If the file cannot be read, planned or measured; the message begins with its name.
    """
    try:
        with naming(source):
            model = parse_model(read_file(source))
            found = lifetimes(model)
            arena = TensorArena(found, _scratch(model, found, scratch))
            pairs = in_place_pairs(model, found, kernels_in_place(in_place)) if in_place else ()
            problem = arena_problem(arena, alignment, pairs)
            plan = plan_arena(arena, problem)
            data = with_plan(model, plan_entries(found, plan.offsets))
            check_file(data, model, found, plan)
            exported = ExportedModel(Path(source).stem, data, plan, arena, problem)
            if arena.scratch.source == "probed":
                before = measure(model.root.file.data, plan.head_before, least=True)
                exported = exported.measured(before)
                plan = exported.plan
            # TFLM itself places at multiples of 16 bytes: more costs what it costs.
            if plan.head > plan.head_before and alignment == UNIT:
                raise AllocationError(
                    f"the head would grow from {plan.head_before} to {plan.head} bytes: leave the"
                    " file as it is"
                )
    except CannotLoad:
        if scratch is not None:
            raise
        return export_model(source, alignment=alignment, in_place=in_place, scratch=NONE)
    return exported


def model_files(
    model: ExportedModel, path: Path, c_struct: Path | None = None
) -> list[tuple[str | Path, bytes | str, str]]:
    """Return what `replace_files` takes: the file with the plan, and its C source if a path is
    given."""
    files: list[tuple[str | Path, bytes | str, str]] = [(path, model.data, "the model")]
    if c_struct:
        files.append((c_struct, buffer_plan(model), "the plan in C"))
    return files


def tflite_problem(source: str | Path) -> Problem:
    """Return the packing problem of a file's arena, without scratch buffers. Raises `ModelError`,
    with the file's name, if it cannot be read."""
    with naming(source):
        return arena_problem(TensorArena(lifetimes(parse_model(read_file(source))), UNKNOWN))


def check_file(data: bytes, before: TfliteModel, found: Lifetimes, plan: ArenaPlan) -> None:
    """Check that a planned file has the contents of the original file, and the plan.

    Raises
    ------
    AllocationError
        If it has not; the file must then not be written.
    """
    after = parse_model(data)
    pairs = zip(_places(before), _places(after), strict=True)
    if (
        not data.endswith(before.root.file.data)
        or any(known != there[: len(known)] for known, there in pairs)
        or planned_offsets(after) != plan_entries(found, plan.offsets)
    ):
        raise AllocationError(
            "the file with the plan does not hold what it held before and the plan: please report"
            " it"
        )


def _places(model: TfliteModel) -> list[list[int]]:
    """Return the places of operator codes, subgraphs and buffers, counted from the end of the
    file."""
    end = len(model.root.file.data)
    return [[end - table.position for table in model.root.tables(field)] for field in (1, 2, 4)]


def _scratch(model: TfliteModel, found: Lifetimes, source: str | None) -> Scratch:
    """Return the scratch buffers from the source that the option names; unknown if it is ``none``,
    or by default without an interpreter."""
    if source == NONE or (source is None and not is_installed()):
        return UNKNOWN
    if source is None or source == PROBE:
        return probe(model, found)
    return read_memory_log(Path(source), found)

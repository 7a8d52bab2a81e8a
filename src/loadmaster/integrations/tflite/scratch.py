"""Scratch buffers, which kernels request beside their tensors; a plan in a file has no entries for
them.

TFLM places them around the planned tensors. Their sizes depend on the kernel library. They are read
from the log of a build for the target: first tensors in the order of the file, then scratch buffers
in the order of requests. Or they are measured with TFLM's interpreter (reference kernels): a copy
of the model with one operator, and all its tensors at address 0, has a head of its largest tensor
plus the operator's scratch buffers. If the interpreter cannot load such a copy, the whole model
with all tensors at address 0 gives an upper bound of the operator's scratch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from loadmaster.core.errors import ModelError
from loadmaster.integrations.dumps.readers.tflm_log import logged_plans
from loadmaster.integrations.tflite.flatbuffer_writer import Numbers, Table
from loadmaster.integrations.tflite.interpreter import ArenaBytes, measure, measure_each
from loadmaster.integrations.tflite.lifetimes import (
    ArenaBuffer,
    Lifetimes,
    Span,
    arena_bytes,
    needs_room,
    plan_entries,
)
from loadmaster.integrations.tflite.planned_file import (
    ONLINE,
    copied_operator,
    file_with,
    plan_fields,
    with_plan,
)
from loadmaster.workloads.frontends.tflite.flatbuffer import FlatTable
from loadmaster.workloads.frontends.tflite.model import OperatorEntry, SubgraphEntry, TfliteModel


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch buffers of a model, and the source of their sizes; ``bounds``: some sizes are upper
    bounds."""

    buffers: tuple[ArenaBuffer, ...]
    source: Literal["probed", "log", "unknown"]
    bounds: bool = False

    @property
    def known(self) -> bool:
        """Whether the sizes are known."""
        return self.source != "unknown"


UNKNOWN = Scratch((), "unknown")


def read_memory_log(path: Path, found: Lifetimes) -> Scratch:
    """Read scratch buffers from the last plan in a log of TFLM.

    Raises
    ------
    AllocationError
        If the file cannot be read or holds no plan.
    ModelError
        If the plan is one of another model.
    """
    plan, tensors = logged_plans(path)[-1], found.tensors
    if len(plan) < len(tensors):
        raise ModelError(
            f"{path}: has {len(plan)} buffers, but the model has {len(tensors)} tensors to plan: it"
            " is of another model"
        )
    for line, tensor in zip(plan, tensors, strict=False):
        if (line.size, (line.first, line.last)) != (tensor.bytes, tensor.span):
            raise ModelError(
                f"{path}: {line.name} has {line.size} bytes in scopes {line.first} to {line.last},"
                f" but tensor {tensor.name!r} {tensor.bytes} in {tensor.span[0]} to"
                f" {tensor.span[1]}: the log is of another model"
            )
    rest = [
        ArenaBuffer(f"scratch {number}", line.size, (line.first, line.last))
        for number, line in enumerate(plan[len(tensors) :], len(tensors))
    ]
    return Scratch(tuple(rest), "log")


@dataclass(frozen=True, slots=True)
class ProbeModel:
    """A copy of a model with one operator: new tables to put before the model's file, and the
    copy's head without scratch."""

    name: str
    front: bytes
    head: int
    span: Span


def probe(model: TfliteModel, found: Lifetimes) -> Scratch:
    """Measure the scratch of every operator that runs; O(operators) loads of the interpreter.

    Raises
    ------
    ModelError
        If the interpreter can load neither an operator by itself nor the whole model.
    """
    tried = trials(model, found)
    answers = measure_each(
        model.root.file.data,
        [trial.front for trial in tried],
        max((trial.head for trial in tried), default=0),
    )
    heads = [answer.head if isinstance(answer, ArenaBytes) else None for answer in answers]
    bound = 0
    if None in heads:
        # All tensors are at address 0, and scratch is above the largest one alive with it.
        whole = with_plan(model, plan_entries(found, [0] * len(found.tensors)))
        bound = measure(whole, max((tensor.bytes for tensor in found.tensors), default=0)).head
    sizes = []
    for trial, head in zip(tried, heads, strict=True):
        first, last = trial.span
        alive = (t for t in found.tensors if t.span[0] <= last and first <= t.span[1])
        largest = max((tensor.bytes for tensor in alive), default=0)
        sizes.append(bound - largest if head is None else head - trial.head)
    return replace(scratch_of(tried, sizes), bounds=None in heads)


def trials(model: TfliteModel, found: Lifetimes) -> list[ProbeModel]:
    """Return a copy of the model for each operator that runs, without operators that run subgraphs,
    which request no scratch. O(operators x buffers)."""
    buffers = list(model.root.tables(4))
    spans: dict[tuple[int, int], Span] = {}
    for visit in found.visits:
        key = (visit.subgraph, visit.operator)
        spans[key] = (spans.get(key, visit.span)[0], visit.span[1])
    made = []
    for (number, index), span in spans.items():
        operator = model.subgraphs[number].operators[index]
        if not operator.bodies:
            name = f"operator {index} of subgraph {number} ({operator.kind})"
            front, head = _model_of_one(model, model.subgraphs[number], operator, buffers)
            made.append(ProbeModel(name, front, head, span))
    return made


def scratch_of(tried: Sequence[ProbeModel], sizes: Sequence[int]) -> Scratch:
    """Return the scratch of each trial's operator."""
    buffers = (
        ArenaBuffer(f"scratch of {trial.name}", size, trial.span)
        for trial, size in zip(tried, sizes, strict=True)
        if size > 0
    )
    return Scratch(tuple(buffers), "probed")


def _model_of_one(
    model: TfliteModel,
    subgraph: SubgraphEntry,
    operator: OperatorEntry,
    all_buffers: Sequence[FlatTable],
) -> tuple[bytes, int]:
    """Return the tables of a model with one operator, to put before the file that they point into,
    and the bytes of its largest tensor."""
    operands = (operator.inputs, operator.outputs, operator.intermediates)
    used = list(dict.fromkeys(index for each in operands for index in each if index >= 0))
    place = {tensor: position for position, tensor in enumerate(used)} | {-1: -1}
    tensors = [subgraph.tensors[index] for index in used]
    given = [
        place[index]
        for index in used
        if index in operator.inputs and needs_room(subgraph.tensors[index])
    ]
    renumbered = [[place[index] for index in each] for each in operands]
    copied = copied_operator(operator, *renumbered)
    main: Table = {
        0: [tensor.table for tensor in tensors],
        1: Numbers("i", given),
        2: Numbers("i", renumbered[1]),
        3: [copied],
    }
    # Buffers that no tensor uses are replaced by the empty first one, so that loading is fast.
    used_buffers = {tensor.table.number(2, "I") for tensor in tensors}
    buffers = [all_buffers[n if n in used_buffers else 0] for n in range(len(all_buffers))]
    offsets = [0 if needs_room(tensor) else ONLINE for tensor in tensors]
    head = max(map(arena_bytes, tensors), default=0)
    return file_with(model, {2: [main], **plan_fields(offsets, buffers)}, b""), head

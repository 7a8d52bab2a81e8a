"""Lifetimes of a model's tensors in TFLM's arena, in the scopes that TFLM counts
(``AllocationInfoBuilder`` of its micro_allocator).

Scope 0 is before the first operator, where the inputs begin. Every operator is the next scope; so
is every run of a subgraph, whose operators follow in the place of the operator that runs it. A
tensor is alive from the first scope that writes it to the last that uses it, both included. Tensors
of a subgraph that runs several times are alive from its first run to its last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadmaster.core.errors import ModelError
from loadmaster.integrations.tflite.planned_file import ONLINE, planned_offsets
from loadmaster.workloads.frontends.tflite.model import TensorEntry, TfliteModel
from loadmaster.workloads.graph import width_of

UNIT = 16
"""Alignment in bytes of sizes and addresses in TFLM's arena."""
LARGEST_OFFSET = 2**31
"""Bytes; TFLM's offsets and sizes are below this limit."""
NEVER = -1
"""Scope of a tensor without uses, which TFLM places like the others."""
MOST_VISITS = 250_000
"""Most runs of operators; those of a subgraph count in every run of the subgraph."""
_DEEPEST = 100
"""Most levels of nested subgraphs."""
_TYPES = """
    bool int8 uint8 int4 float8e4m3fn float8e5m2 int16 uint16 float16 bfloat16 float32 int32 uint32
    int64 uint64 double complex64 complex128
"""
_ELEMENT_BYTES = {name: max(8, width_of(name)) // 8 for name in _TYPES.split()} | {"resource": 4}
"""Bytes of an element as TFLM counts them: an element of four bits takes a byte."""
_HANDLE = "VAR_HANDLE"
"""Operator whose result, the handle of a variable, is not in the planned arena."""

Span = tuple[int, int]
"""First and last scope, both included."""


@dataclass(frozen=True, slots=True)
class ArenaBuffer:
    """A tensor in the arena, or a scratch buffer of an operator.

    ``bytes`` are rounded up to :data:`UNIT`. Of a tensor, ``number`` counts the tensors of all
    subgraphs in order, and ``offset`` is its address in the file's plan; None without one. A
    variable (``lasts``) keeps its bytes between inferences, whatever the span that TFLM counts.
    """

    name: str
    bytes: int
    span: Span
    number: int = -1
    offset: int | None = None
    lasts: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """One run of an operator, from its own scope to the last scope of the subgraphs that it
    runs."""

    subgraph: int
    operator: int
    span: Span


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Lifetimes of a model's tensors.

    Attributes
    ----------
    tensors
        Tensors in the arena, in the order of the file.
    positions
        Index in ``tensors`` by (subgraph, tensor).
    visits
        All runs of operators in order.
    entries
        The file's plan: for each tensor of all subgraphs an address, or :data:`ONLINE`.
    """

    tensors: tuple[ArenaBuffer, ...]
    positions: Mapping[tuple[int, int], int]
    visits: tuple[Visit, ...]
    entries: tuple[int, ...]


def lifetimes(model: TfliteModel) -> Lifetimes:
    """Return the lifetimes of a model's tensors, by the same walk as TFLM's. O(operands of all runs
    of operators).

    Raises
    ------
    ModelError
        If subgraphs run each other in a cycle, TFLM does not support a tensor's type or size, or
        the file's plan does not match its tensors.
    """
    entries = planned_offsets(model)
    walk = _LifetimeWalk(model)
    walk.enter(0)
    found: list[ArenaBuffer] = []
    positions: dict[tuple[int, int], int] = {}
    number = 0
    for index, subgraph in enumerate(model.subgraphs):
        handles = {
            output
            for operator in subgraph.operators
            if operator.kind == _HANDLE
            for output in operator.outputs
        }
        for position, tensor in enumerate(subgraph.tensors):
            # TFLM keeps a variable in the tail, unless the file's plan has an address for it.
            lasts = tensor.is_variable and tensor.count > 0 and entries[number] != ONLINE
            if (needs_room(tensor) or lasts) and position not in handles:
                name = tensor.name or f"tensor {position}"
                positions[index, position] = len(found)
                found.append(
                    ArenaBuffer(
                        name if index == 0 else f"{name} of subgraph {index}",
                        _tensor_bytes(tensor),
                        walk.spans[index][position],
                        number,
                        None if entries[number] == ONLINE else entries[number],
                        lasts,
                    )
                )
            number += 1
    return Lifetimes(tuple(found), positions, tuple(walk.visits), entries)


def plan_entries(found: Lifetimes, offsets: Sequence[int]) -> tuple[int, ...]:
    """Return the entries of a plan for all tensors of a file; tensors that are not planned keep
    theirs."""
    entries = list(found.entries)
    for tensor, offset in zip(found.tensors, offsets, strict=False):
        entries[tensor.number] = offset
    return tuple(entries)


def needs_room(tensor: TensorEntry) -> bool:
    """Return whether a tensor is in the planned arena: neither a constant, nor a variable, nor
    empty."""
    return not tensor.constant and not tensor.is_variable and tensor.count > 0


def element_bytes(tensor: TensorEntry) -> int:
    """Return the bytes of an element of a tensor as TFLM counts them. Raises `ModelError`."""
    width = _ELEMENT_BYTES.get(tensor.dtype)
    if width is None:
        raise ModelError(
            f"tensor {tensor.name!r} has elements of type {tensor.dtype}, which TFLM cannot hold:"
            " convert it with another"
        )
    return width


def row_bytes(image: TensorEntry) -> int:
    """Return the bytes of a row of a feature map of one image."""
    return element_bytes(image) * image.count // image.shape[1]


def rounded(size: int) -> int:
    """Return a size in bytes rounded up to a multiple of :data:`UNIT`."""
    return -(-size // UNIT) * UNIT


def arena_bytes(tensor: TensorEntry) -> int:
    """Return the bytes of a tensor in the arena, rounded up; 0 if it is not there. Raises
    `ModelError`."""
    return _tensor_bytes(tensor) if needs_room(tensor) else 0


def _tensor_bytes(tensor: TensorEntry) -> int:
    """Return the bytes of a tensor, rounded up. Raises `ModelError`."""
    size = rounded(element_bytes(tensor) * tensor.count)
    if size >= LARGEST_OFFSET:
        raise ModelError(
            f"tensor {tensor.name!r} takes {size} bytes, and TFLM counts below 2^31: convert the"
            " model with smaller sizes"
        )
    return size


class _LifetimeWalk:
    """Walks a model as TFLM does, with its scopes, and records every tensor's lifetime."""

    def __init__(self, model: TfliteModel) -> None:
        self.spans = [[(NEVER, NEVER)] * len(subgraph.tensors) for subgraph in model.subgraphs]
        self.visits: list[Visit] = []
        self._model = model
        self._scope = 0
        self._open: list[int] = []

    def enter(self, number: int) -> None:
        """Visit a subgraph at the current scope."""
        if number in self._open:
            raise ModelError(
                f"subgraph {number} runs itself, at once or by others: convert the model again"
            )
        if len(self._open) == _DEEPEST:
            raise ModelError(
                f"more than {_DEEPEST} subgraphs run one within the other: convert the model with"
                " flatter control flow"
            )
        self._open.append(number)
        subgraph, spans = self._model.subgraphs[number], self.spans[number]
        self._create(spans, subgraph.inputs)
        for index, operator in enumerate(subgraph.operators):
            self._scope += 1
            first = self._scope
            if len(self.visits) >= MOST_VISITS:
                raise ModelError(
                    f"more than {MOST_VISITS} operators run, those of subgraphs each time: convert"
                    " the model without so many"
                )
            self._create(spans, operator.outputs)
            for body in operator.bodies:
                self._scope += 1
                self.enter(body)
            for tensor in (*operator.inputs, *operator.outputs):
                if tensor >= 0:
                    spans[tensor] = spans[tensor][0], self._scope
            self.visits.append(Visit(number, index, (first, self._scope)))
        self._create(spans, subgraph.outputs)
        self._open.pop()

    def _create(self, spans: list[Span], tensors: Iterable[int]) -> None:
        """Extend lifetimes to the current scope, where those without a begin begin."""
        for tensor in tensors:
            begin = spans[tensor][0]
            spans[tensor] = self._scope if begin == NEVER else begin, self._scope

"""What a ``.tflite`` file holds: subgraphs of tensors and operators, with where each lies in the
file.

Reading takes time and memory linear in the number of tensors and operators; the bytes of weights
are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from loadmaster.core.errors import ModelError
from loadmaster.core.files import is_special, why_unreadable
from loadmaster.workloads.frontends.tflite.flatbuffer import Flatbuffer, FlatTable
from loadmaster.workloads.frontends.tflite.schema import CUSTOM, IDENTIFIER, OPERATORS, TYPES

LARGEST_FILE = 2**31
"""FlatBuffers hold less than this many bytes; weights may be behind them."""
_SCHEMA_VERSION = 3
_BODIES = {"IF": (92, 2), "WHILE": (93, 2), "CALL_ONCE": (103, 1)}
"""Of operators that run other subgraphs: the number of their options' type, and how many subgraphs
these name."""
_EXAMPLE = "give the path of a .tflite file"

Indices = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a subgraph.

    ``constant`` says whether the file holds its bytes, which ``content`` gives the position and
    length of; they may be beyond what was read. A variable keeps its value from one
    inference to the next. ``table`` is its table in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    constant: bool
    content: tuple[int, int]
    is_variable: bool
    table: FlatTable

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class OperatorEntry:
    """One operator: operands are indices of its subgraph's tensors, -1 for an optional one that is
    absent.

    ``kind`` is the schema's name, or ``CUSTOM:name``. ``bodies`` are the subgraphs that it runs.
    ``table`` is its table in the file.
    """

    kind: str
    inputs: Indices
    outputs: Indices
    intermediates: Indices
    bodies: Indices
    options: FlatTable | None
    table: FlatTable


@dataclass(frozen=True, slots=True)
class SubgraphEntry:
    """One subgraph: its tensors, its operators in the order in which they run, and which tensors
    come in and go out."""

    name: str
    tensors: tuple[TensorEntry, ...]
    inputs: Indices
    outputs: Indices
    operators: tuple[OperatorEntry, ...]


@dataclass(frozen=True, slots=True)
class TfliteModel:
    """A file: ``subgraphs``, of which the first is the network, and the root table, for those who
    need more."""

    subgraphs: tuple[SubgraphEntry, ...]
    root: FlatTable


def read_file(path: str | Path) -> bytes:
    """Read the bytes of a file. Raises `ModelError`, without the file's name, if it cannot be
    read."""
    path = Path(path)
    try:
        if is_special(path):
            raise ModelError(f"is not a file: {_EXAMPLE}")
        with path.open("rb") as file:
            # Behind these there is nothing but weights.
            return file.read(LARGEST_FILE)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot be read ({why_unreadable(path, error)}): {_EXAMPLE}") from None


def parse_model(data: bytes) -> TfliteModel:
    """Read what a file's bytes hold.

    Raises
    ------
    ModelError
        Naming the subgraph, operator or tensor at fault, but not the file.
    """
    if data[4:8] != IDENTIFIER:
        raise ModelError(
            f"is not a TensorFlow Lite file, which has {IDENTIFIER.decode()} at its fifth byte:"
            f" {_EXAMPLE}"
        )
    root = Flatbuffer(data).root
    if (version := root.number(0, "I")) != _SCHEMA_VERSION:
        raise ModelError(
            f"has version {version} of the format, not {_SCHEMA_VERSION}: convert the model with a"
            " current converter"
        )
    kinds = tuple(map(_kind, root.tables(1)))
    contents = tuple(map(_content, root.tables(4)))
    subgraphs = tuple(
        _subgraph(table, number, kinds, contents) for number, table in enumerate(root.tables(2))
    )
    if not subgraphs or not subgraphs[0].tensors:
        raise ModelError(
            "holds no network: its first subgraph has no tensors; convert the model again"
        )
    for number, subgraph in enumerate(subgraphs):
        for index, operator in enumerate(subgraph.operators):
            _require_within(
                operator.bodies, len(subgraphs), _where(number, index, operator.kind), "subgraph"
            )
    return TfliteModel(subgraphs, root)


def _kind(table: FlatTable) -> str:
    """Return the name of an operator. Old files store its number in a byte, which new files leave
    at 127 for larger numbers."""
    number = max(table.number(0, "b"), table.number(3))
    if not 0 <= number < len(OPERATORS):
        return f"BUILTIN_{number}"
    return f"{CUSTOM}:{table.text(1)}" if OPERATORS[number] == CUSTOM else OPERATORS[number]


def _content(table: FlatTable) -> tuple[int, int]:
    """Return where a buffer's bytes are in the file, and how many; those behind the FlatBuffer are
    given by their distance from the file's start."""
    at = table.number(1, "Q")
    return (at, table.number(2, "Q")) if at > 1 else table.content(0)


def _subgraph(
    table: FlatTable,
    number: int,
    kinds: Sequence[str],
    contents: Sequence[tuple[int, int]],
) -> SubgraphEntry:
    """Read a subgraph; raise ModelError if an input or output is not one of its tensors."""
    tensors = tuple(
        _tensor(entry, f"tensor {index} of subgraph {number}", contents)
        for index, entry in enumerate(table.tables(0))
    )
    inputs, outputs = table.numbers(1), table.numbers(2)
    _require_within((*inputs, *outputs), len(tensors), f"subgraph {number}", "tensor")
    operators = tuple(
        _operator(entry, number, index, kinds, len(tensors))
        for index, entry in enumerate(table.tables(3))
    )
    return SubgraphEntry(table.text(4), tensors, inputs, outputs, operators)


def _tensor(table: FlatTable, where: str, contents: Sequence[tuple[int, int]]) -> TensorEntry:
    """Read a tensor; raise ModelError for negative dimensions, unknown element types and missing
    buffers. ``contents`` holds where each buffer is in the file."""
    name = table.text(3)
    shape = table.numbers(0)
    number = table.number(1, "b")
    if min(shape, default=0) < 0:
        raise ModelError(
            f"{where} ({name!r}) has a negative dimension, {list(shape)}: convert the model with"
            " fixed sizes"
        )
    if not 0 <= number < len(TYPES):
        raise ModelError(
            f"{where} ({name!r}) has the unknown element type {number}: convert the model with a"
            " supported type"
        )
    buffer = table.number(2, "I")
    _require_within((buffer,), len(contents), where, "buffer")
    content = contents[buffer]
    return TensorEntry(
        name,
        shape,
        TYPES[number],
        content[1] > 0 or table.number(10, "I") > 0,
        content,
        bool(table.number(5, "b")),
        table,
    )


def _operator(
    table: FlatTable, subgraph: int, index: int, kinds: Sequence[str], tensors: int
) -> OperatorEntry:
    """Read an operator of a subgraph with ``tensors`` tensors; raise ModelError for indices out of
    range, a missing result, or control flow without its subgraphs."""
    code = table.number(0, "I")
    _require_within(
        (code,), len(kinds), f"operator {index} of subgraph {subgraph}", "operator code"
    )
    kind = kinds[code]
    where = _where(subgraph, index, kind)
    inputs, outputs, others = map(table.numbers, (1, 2, 8))
    there = [tensor for tensor in (*inputs, *outputs, *others) if tensor != -1]
    _require_within(there, tensors, where, "tensor")
    if -1 in outputs:
        raise ModelError(
            f"{where} has no tensor for a result: the file is damaged, convert the model again"
        )
    options = table.table(4)
    bodies: Indices = ()
    if kind in _BODIES:
        number, count = _BODIES[kind]
        if options is None or table.number(3, "B") != number:
            raise ModelError(
                f"{where} does not say which subgraphs it runs: the file is damaged, convert the"
                " model again"
            )
        bodies = tuple(map(options.number, range(count)))
    return OperatorEntry(kind, inputs, outputs, others, bodies, options, table)


def _where(subgraph: int, index: int, kind: str) -> str:
    """Return the operator's number and kind for messages."""
    return f"operator {index} of subgraph {subgraph} ({kind})"


def _require_within(indices: Sequence[int], count: int, where: str, what: str) -> None:
    """Raise ModelError if an index is not below ``count``."""
    for index in indices:
        if not 0 <= index < count:
            raise ModelError(
                f"{where} names {what} {index}, but there are {count}: the file is damaged, convert"
                " the model again"
            )

"""Kernel sequences with their costs as versioned JSON, plain or gzipped: measured or made by hand,
independent of targets.

A captured step that any target may cost is written by :mod:`loadmaster.cost.kernels.work`.

One object with the keys ``format`` ("loadmaster kernel sequence"), ``version`` (1), ``name``,
``alignment``, ``link``, ``notes``, ``costs``, ``tensors`` and ``kernels``. ``costs`` says what
times come from, in ``[label, source, number of kernels]``, and may be left out. A tensor is
``[name, bytes, kind]``. A kernel has ``name``, ``kind``, ``operands``, ``algorithms`` and, if it
was measured, ``measured``. An operand is ``[number of the tensor, "r", "w" or "rw", fast seconds,
slow seconds]``, an algorithm ``[name, seconds, workspace]``; null stands for infinite.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.errors import PlacementError
from loadmaster.core.files import replace_file, why_unreadable
from loadmaster.core.provenance import Label, Provenance
from loadmaster.core.record_json import parse_object, summary
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelOperand,
    KernelSequence,
    StoredKind,
    StoredTensor,
)

FORMAT = "loadmaster kernel sequence"
VERSION = 1
LARGEST_FILE = 2**28
"""Bytes after decompression: a hundred times what a step of 20,000 kernels takes."""


@validate_arguments(PlacementError)
def write_sequence(sequence: KernelSequence, path: str | Path) -> Path:
    """Write a sequence; gzipped if the name ends in ``.gz``. The same sequence gives the same
    bytes.

    Raises :class:`~loadmaster.core.errors.OutputError` if the file cannot be written.
    """
    return write_text(sequence_to_text(sequence), Path(path), "the sequence")


def write_text(text: str, path: Path, what: str) -> Path:
    """Write text, gzipped if the name ends in ``.gz``; raises
    :class:`~loadmaster.core.errors.OutputError` if that fails."""
    return replace_file(
        path, gzip.compress(text.encode(), mtime=0) if path.suffix == ".gz" else text, what
    )


def sequence_to_text(sequence: KernelSequence) -> str:
    """Return the JSON text of a sequence, one tensor or kernel a line."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "name": sequence.name,
        "alignment": sequence.alignment,
    }
    head |= {"page": sequence.page} if sequence.page else {}
    head |= {"link": vars(sequence.link), "notes": list(sequence.notes)}
    head |= {"costs": [[str(part.label), part.source, part.count] for part in sequence.costs]}
    return lines_of(
        head, tensors=sequence.tensors, kernels=list(map(_kernel_record, sequence.kernels))
    )


def lines_of(head: Mapping[str, Any], **lists: Sequence[Any]) -> str:
    """Return the JSON text of an object, with a line for each key of the head and for each record
    of the lists."""
    lines = [f"{_dump(key)}: {_dump(value)}" for key, value in head.items()]
    for key, records in lists.items():
        body = ",\n".join(map(_dump, records))
        lines.append(f'"{key}": [\n{body}\n]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


_dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def _kernel_record(kernel: Kernel) -> dict[str, Any]:
    """Return a kernel as a JSON object; infinite times become null."""
    record: dict[str, Any] = {"name": kernel.name, "kind": kernel.kind}
    record["operands"] = [
        [o.tensor, "r" * o.read + "w" * o.write, o.fast_seconds, _finite(o.slow_seconds)]
        for o in kernel.operands
    ]
    record["algorithms"] = kernel.algorithms
    if kernel.measured is not None:
        record["measured"] = [[_finite(seconds) for seconds in row] for row in kernel.measured]
    return record


def _finite(seconds: float) -> float | None:
    """Return seconds; None for infinity."""
    return seconds if math.isfinite(seconds) else None


def read_text(path: Path) -> str:
    """Read the text of a file, gzipped or not. Raises `PlacementError` if there is none."""
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            data = (gzip.GzipFile(fileobj=file) if zipped else file).read(LARGEST_FILE)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise PlacementError(
            f"{path}: is not a complete gzip file ({error}): copy or write it again"
        ) from None
    except (OSError, ValueError) as error:
        raise PlacementError(f"{path}: cannot be read: {why_unreadable(path, error)}") from None
    if len(data) == LARGEST_FILE:
        raise PlacementError(
            f"{path}: is larger than {LARGEST_FILE >> 20} MiB, which no sequence of kernels is"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PlacementError(
            f"{path}: byte {error.start} is not UTF-8 text: give a file that this program wrote"
        ) from None


def sequence_from_object(data: dict[str, Any], name: str) -> KernelSequence:
    """Read the sequence that a JSON object describes; errors call it ``name``.

    Raises
    ------
    PlacementError
        The object is of another version, or has missing, unknown, repeated or wrong fields.
    """
    sequence: KernelSequence = validated(data, name, FORMAT, VERSION, _schema())
    return sequence


def validated(data: dict[str, Any], name: str, form: str, version: int, schema: Any) -> Any:
    """Return what a schema makes of an object. Raises `PlacementError` unless it is of that format
    and version, and suits the schema."""
    from pydantic import TypeAdapter, ValidationError

    if data.get("format") != form:
        raise PlacementError(f'{name}: is no kernel sequence: its "format" must be "{form}"')
    if data.get("version") != version:
        raise PlacementError(
            f"{name}: version: this program reads version {version}: write the file again with it"
        )
    parts = {key: value for key, value in data.items() if key not in ("format", "version")}
    try:
        return TypeAdapter(schema).validate_python(parts)
    except ValidationError as error:
        raise PlacementError(f"{name}: {summary(error, 'kernel sequence')}") from None
    except PlacementError as error:
        raise PlacementError(f"{name}: {error}") from None


def object_in(text: str, name: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `PlacementError` if the text is none, or has a key twice."""

    def refuse(constant: str) -> Any:
        """Raise PlacementError for numbers that JSON does not have."""
        raise PlacementError(f"{name}: {constant} is no JSON: write null for what is infinite")

    return parse_object(text, name, "kernel sequence", PlacementError, refuse)


def object_of(kind: Any, /, **fields: Any) -> Any:
    """The schema of an object with these fields and no others, each a schema or a pair of schema
    and default, of which a ``kind`` is made."""
    from pydantic import AfterValidator, ConfigDict, create_model

    config: Any = ConfigDict(extra="forbid")
    model: Any = create_model(kind.__name__, __config__=config, **fields)
    return Annotated[model, AfterValidator(lambda record: kind(**vars(record)))]


def row_of(kind: Any, *columns: Any) -> Any:
    """The schema of a list with these items, of which a ``kind`` is made."""
    from pydantic import AfterValidator

    return Annotated[GenericAlias(tuple, columns), AfterValidator(lambda row: kind(*row))]


def some(item: Any) -> Any:
    """The schema of a list of any length."""
    return GenericAlias(tuple, (item, ...))


@cache
def text_and_whole() -> tuple[Any, Any]:
    """The schemas of text, and of a whole number of at least 0."""
    from pydantic import Field

    return (
        Annotated[str, Field(strict=True, max_length=2**16)],
        Annotated[int, Field(strict=True, ge=0, lt=WHOLE_LIMIT)],
    )


def tensors_schema() -> Any:
    """The schema of the tensors of a file."""
    return some(row_of(StoredTensor, *text_and_whole(), StoredKind))


@cache
def _schema() -> Any:
    """Make the schema of the file; :func:`loadmaster.placement.sequence.check` finds values that
    contradict each other."""
    from pydantic import AfterValidator, Field, StrictBool

    text, whole = text_and_whole()
    seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    # Null is what is infinite.
    or_infinite = Annotated[
        seconds | None, AfterValidator(lambda value: math.inf if value is None else value)
    ]
    rates = dict.fromkeys(
        ("to_fast", "to_slow", "asynchronous_to_fast", "asynchronous_to_slow"), seconds
    )
    kernel = object_of(
        Kernel,
        name=text,
        kind=text,
        operands=some(row_of(_operand, whole, Literal["r", "w", "rw"], seconds, or_infinite)),
        algorithms=some(row_of(Algorithm, text, seconds, whole)),
        measured=(some(some(or_infinite)) | None, None),
    )
    return object_of(
        KernelSequence,
        name=text,
        alignment=whole,
        page=(whole, 0),
        link=object_of(CopyLink, **rates, shared=(StrictBool, False)),
        notes=some(text),
        costs=(some(row_of(Provenance, Label, text, whole)), ()),
        tensors=tensors_schema(),
        kernels=some(kernel),
    )


def _operand(tensor: int, use: str, fast_seconds: float, slow_seconds: float) -> KernelOperand:
    """Return the operand of a row."""
    return KernelOperand(tensor, "r" in use, "w" in use, fast_seconds, slow_seconds)

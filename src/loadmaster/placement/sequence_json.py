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

_ACCESS = {(True, False): "r", (False, True): "w", (True, True): "rw"}


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
        [o.tensor, _ACCESS[o.read, o.write], o.fast_seconds, _finite(o.slow_seconds)]
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
    file = validated(data, name, FORMAT, VERSION, _model())
    try:
        return _sequence_from(file)
    except PlacementError as error:
        raise PlacementError(f"{name}: {error}") from None


def validated(data: dict[str, Any], name: str, form: str, version: int, model: Any) -> Any:
    """Return the record of a pydantic model that an object describes. Raises `PlacementError`
    unless it is of that format and version, and suits the model."""
    from pydantic import ValidationError

    if data.get("format") != form:
        raise PlacementError(f'{name}: is no kernel sequence: its "format" must be "{form}"')
    if data.get("version") != version:
        raise PlacementError(
            f"{name}: version: this program reads version {version}: write the file again with it"
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise PlacementError(f"{name}: {summary(error, 'kernel sequence')}") from None


def object_in(text: str, name: str) -> dict[str, Any]:
    """Parse a JSON object. Raises `PlacementError` if the text is none, or has a key twice."""

    def refuse(constant: str) -> Any:
        """Raise PlacementError for numbers that JSON does not have."""
        raise PlacementError(f"{name}: {constant} is no JSON: write null for what is infinite")

    return parse_object(text, name, "kernel sequence", PlacementError, refuse)


@cache
def _model() -> Any:
    """Make the schema of the file; :func:`loadmaster.placement.sequence.check` finds values that
    contradict each other."""
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field

    whole = Annotated[int, Field(strict=True, ge=0, lt=WHOLE_LIMIT)]
    seconds = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
    # Null is what is infinite.
    or_infinite = Annotated[
        seconds | None, AfterValidator(lambda value: math.inf if value is None else value)
    ]
    rate = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
    text = Annotated[str, Field(strict=True, max_length=2**16)]

    class Record(BaseModel):
        """An object of the file without further keys."""

        model_config = ConfigDict(extra="forbid")

    class LinkRecord(Record):
        """The link in the file, in bytes per second."""

        to_fast: rate
        to_slow: rate
        asynchronous_to_fast: rate
        asynchronous_to_slow: rate
        shared: Annotated[bool, Field(strict=True)] = False

    class KernelRecord(Record):
        """A kernel in the file."""

        name: text
        kind: text
        operands: list[tuple[whole, Literal["r", "w", "rw"], seconds, or_infinite]]
        algorithms: list[tuple[text, seconds, whole]]
        measured: tuple[tuple[or_infinite, ...], ...] | None = None

    class SequenceRecord(Record):
        """The file: a sequence of kernels, its tensors and its link."""

        format: text
        version: whole
        name: text
        alignment: whole
        page: whole = 0
        link: LinkRecord
        notes: tuple[text, ...]
        costs: Annotated[list[tuple[Label, text, whole]], Field(default_factory=list)]
        tensors: list[tuple[text, whole, StoredKind]]
        kernels: list[KernelRecord]

    return SequenceRecord


def _sequence_from(file: Any) -> KernelSequence:
    """Return the sequence that a checked file describes."""

    def kernel(record: Any) -> Kernel:
        """Return the kernel of a record."""
        operands = tuple(
            KernelOperand(t, "r" in use, "w" in use, fast, slow)
            for t, use, fast, slow in record.operands
        )
        algorithms = tuple(Algorithm(*each) for each in record.algorithms)
        return Kernel(record.name, record.kind, operands, algorithms, record.measured)

    return KernelSequence(
        name=file.name,
        tensors=tuple(StoredTensor(*tensor) for tensor in file.tensors),
        kernels=tuple(map(kernel, file.kernels)),
        link=CopyLink(**file.link.model_dump()),
        alignment=file.alignment,
        page=file.page,
        notes=file.notes,
        costs=tuple(Provenance(*part) for part in file.costs),
    )

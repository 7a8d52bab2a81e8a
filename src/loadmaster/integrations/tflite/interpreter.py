"""Measures the arena of models with TFLM's interpreter (extra ``tflite``), which has the reference
kernels."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadmaster.core.errors import ModelError, missing

_MODULE = "loadmaster.integrations.tflite.interpreter_process"
_PACKAGE = "tflite_micro"
_ROOM = 2**22
"""Bytes beside the head in the first arena that is tried."""


@dataclass(frozen=True, slots=True)
class ArenaBytes:
    """Measured bytes of an arena: the head with the planned buffers, the tail with persistent data,
    and the least arena that the interpreter accepts."""

    head: int
    """Bytes of the planned buffers."""
    tail: int
    """Bytes of the interpreter's persistent data."""
    least: int | None = None
    """Bytes of the smallest arena that the interpreter accepts; null if not measured."""


class CannotLoad(ModelError):
    """Raised if TFLM's interpreter cannot load a model; the message gives its reason."""


def is_installed() -> bool:
    """Return whether TFLM's interpreter is installed."""
    return find_spec(_PACKAGE) is not None


def measure(data: bytes, head: int, least: bool = False) -> ArenaBytes:
    """Measure one model with an expected ``head`` in bytes; with ``least`` also the smallest arena.

    Raises
    ------
    CannotLoad
        If the interpreter cannot load it.
    """
    found = measure_each(b"", [data], head, least)[0]
    if isinstance(found, str):
        raise CannotLoad(f"TFLM's interpreter cannot load it: {found}")
    return found


def measure_each(
    old: bytes, fronts: Sequence[bytes], head: int, least: bool = False
) -> list[ArenaBytes | str]:
    """Measure models that each consist of new bytes followed by ``old``. A result is a reason if
    the interpreter cannot load the model.

    Raises
    ------
    MissingPackageError
        If there is no interpreter.
    """
    if not is_installed():
        raise missing(ModuleNotFoundError(name=_PACKAGE), "probing with TFLM's interpreter")
    answers: list[ArenaBytes | str] = []
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        paths = [Path(folder, f"{number}") for number in range(len(fronts) + 1)]
        for path, data in zip(paths, (*fronts, old), strict=True):
            path.write_bytes(data)
        *jobs, shared = map(str, paths)
        while len(answers) < len(jobs):
            rest = jobs[len(answers) :]
            found, reason = _ask(old=shared, fronts=rest, arena=head + _ROOM, least=least)
            answers += [each.get("error") or ArenaBytes(**each) for each in found]
            if len(found) < len(rest):
                answers.append(reason)
    return answers


def differing(old: bytes, new: bytes, head: int, seeds: Sequence[int] = (1, 2, 3)) -> str | None:
    """Run two models on random inputs, and return the first output that differs in any bit, or why
    a model does not run; None if all outputs are equal."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        paths = [Path(folder, name) for name in ("old", "new")]
        for path, data in zip(paths, (old, new), strict=True):
            path.write_bytes(data)
        compared = [str(path) for path in paths]
        found, reason = _ask(compare=compared, seeds=list(seeds), arena=head + _ROOM)
    return found[-1]["differs"] if found else f"TFLM's interpreter cannot run it: {reason}"


def _ask(**request: object) -> tuple[list[dict[str, Any]], str]:
    """Send a request to an interpreter process, and return its answers, and the reason if it ended
    early."""
    done = subprocess.run(
        [sys.executable, "-m", _MODULE],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
    reason = (
        f"it ended with signal {-done.returncode}" if done.returncode < 0 else f"it ended: {last}"
    )
    return [json.loads(line) for line in done.stdout.splitlines()], reason

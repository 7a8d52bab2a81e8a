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
"""Bytes beside the head with which an interpreter is tried first."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes of the arena: ``head`` is what is planned, ``tail`` what lasts; ``least`` the smallest
    arena that can be allocated in."""

    head: int
    """Bytes of what is planned."""
    tail: int
    """Bytes of what lasts."""
    least: int | None = None
    """Bytes of the smallest arena that can be allocated in; null if it was not sought."""


class CannotLoad(ModelError):
    """TFLM's interpreter does not take a model: with its reason."""


def is_installed() -> bool:
    """Whether TFLM's interpreter is there."""
    return find_spec(_PACKAGE) is not None


def measure(data: bytes, head: int, least: bool = False) -> Measured:
    """Measure one model whose head is expected to take ``head`` bytes.

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
) -> list[Measured | str]:
    """Measure models that are each some bytes before those of ``old``; the reason where the
    interpreter cannot load one.

    Raises
    ------
    MissingPackageError
        If there is no interpreter.
    """
    if not is_installed():
        raise missing(ModuleNotFoundError(name=_PACKAGE), "probing with TFLM's interpreter")
    answers: list[Measured | str] = []
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        paths = [Path(folder, f"{number}") for number in range(len(fronts) + 1)]
        for path, data in zip(paths, (*fronts, old), strict=True):
            path.write_bytes(data)
        *jobs, shared = map(str, paths)
        while len(answers) < len(jobs):
            rest = jobs[len(answers) :]
            found, reason = _asked(old=shared, fronts=rest, arena=head + _ROOM, least=least)
            answers += [each.get("error") or Measured(**each) for each in found]
            if len(found) < len(rest):
                answers.append(reason)
    return answers


def differing(old: bytes, new: bytes, head: int, seeds: Sequence[int] = (1, 2, 3)) -> str | None:
    """What is different between two models that should give the same bits for random inputs: an
    output, or why one does not run; None if nothing is."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        paths = [Path(folder, name) for name in ("old", "new")]
        for path, data in zip(paths, (old, new), strict=True):
            path.write_bytes(data)
        compared = [str(path) for path in paths]
        found, reason = _asked(compare=compared, seeds=list(seeds), arena=head + _ROOM)
    return found[-1]["differs"] if found else f"TFLM's interpreter cannot run it: {reason}"


def _asked(**request: object) -> tuple[list[dict[str, Any]], str]:
    """Answers of a process, and why there are no more if it has ended before the last."""
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

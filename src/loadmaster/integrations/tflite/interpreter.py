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
        shared = Path(folder, "old")
        shared.write_bytes(old)
        jobs = []
        for number, front in enumerate(fronts):
            path = Path(folder, f"front-{number}")
            path.write_bytes(front)
            jobs.append({"front": str(path), "arena": head + _ROOM, "least": least})
        while len(answers) < len(jobs):
            answers += _answers(shared, jobs[len(answers) :])
    return answers


def differing(old: bytes, new: bytes, head: int, seeds: Sequence[int] = (1, 2, 3)) -> str | None:
    """What is different between two models that should give the same bits for random inputs: an
    output, or why one does not run; None if nothing is."""
    with tempfile.TemporaryDirectory(prefix="loadmaster-") as folder:
        paths = [Path(folder, name) for name in ("old", "new")]
        for path, data in zip(paths, (old, new), strict=True):
            path.write_bytes(data)
        request = {"compare": [str(path) for path in paths], "seeds": list(seeds)}
        text = json.dumps(request | {"arena": head + _ROOM})
        done = subprocess.run(
            [sys.executable, "-m", _MODULE], input=text, capture_output=True, text=True, check=False
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return f"TFLM's interpreter ended: {last}"
    found: str | None = json.loads(done.stdout.splitlines()[-1])["differs"]
    return found


def _answers(old: Path, jobs: Sequence[dict[str, object]]) -> list[Measured | str]:
    """What a process says, at least one answer: a job that ends it is answered here."""
    request = json.dumps({"old": str(old), "jobs": jobs})
    done = subprocess.run(
        [sys.executable, "-m", _MODULE], input=request, capture_output=True, text=True, check=False
    )
    answers = [_answer(json.loads(line)) for line in done.stdout.splitlines()]
    if len(answers) < len(jobs):
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        answers.append(
            f"it ended with signal {-done.returncode}"
            if done.returncode < 0
            else f"it ended: {last}"
        )
    return answers


def _answer(line: dict[str, int | str]) -> Measured | str:
    if "error" in line:
        return str(line["error"])
    least = line.get("least")
    return Measured(int(line["head"]), int(line["tail"]), None if least is None else int(least))

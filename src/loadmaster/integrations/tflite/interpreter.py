"""Runs models in TFLM's interpreter (extra ``tflite``), which has the reference kernels, and
measures their arenas.

The interpreter runs in a separate process, which a bad model may crash. The process reads a
function of this module and its arguments, pickled, from standard input, and writes what the
function yields, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from loadmaster.core.errors import ModelError, missing
from loadmaster.workloads.frontends.tflite.model import SubgraphEntry, parse_model

_PACKAGE = "tflite_micro"
_ROOM = 2**28
"""Bytes beside the head in an arena that is surely large enough; they take memory only where they
are written."""
_UNIT = 16
_REPORT = re.compile(r"Arena allocation (head|tail) (\d+) bytes")


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
    while len(answers) < len(fronts):
        rest = fronts[len(answers) :]
        found, reason = _ask(_arenas, old, rest, head + _ROOM, least)
        answers += [each if isinstance(each, str) else ArenaBytes(**each) for each in found]
        if len(found) < len(rest):
            answers.append(reason)
    return answers


def differing(old: bytes, new: bytes, head: int) -> str | None:
    """Run two models on random inputs, and return the first output that differs in any bit, or why
    the new model does not run; None if all outputs are equal. Raises `ModelError` if the old model
    does not run."""
    found, reason = _ask(_differences, old, new, head + _ROOM)
    if not found:
        raise ModelError(
            f"TFLM's interpreter cannot run it as it is, so bands cannot be checked: {reason}"
        )
    ran: list[str | None] = found[1:]
    return ran[0] if ran else f"TFLM's interpreter cannot run it: {reason}"


def _ask(function: Callable[..., Iterator[Any]], *given: object) -> tuple[list[Any], str]:
    """Return what a function yields in the interpreter's process, and the reason if that ended
    early."""
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import main; main()"],
        input=pickle.dumps((function, given)),
        capture_output=True,
        check=False,
    )
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    last = (lines or ["no reason given"])[-1]
    reason = (
        f"it ended with signal {-done.returncode}" if done.returncode < 0 else f"it ended: {last}"
    )
    return [json.loads(line) for line in done.stdout.splitlines()], reason


# --- In the interpreter's process.


def main() -> None:
    """Answer one request."""
    function, given = pickle.load(sys.stdin.buffer)
    for answer in function(*given):
        print(json.dumps(answer), flush=True)


def _differences(old: bytes, new: bytes, arena: int) -> Iterator[str | None]:
    """Yield None once the old model has run; then the first output of any inference that differs
    between two models in any bit, None if none does."""
    network = parse_model(old).subgraphs[0]
    expected = list(_inferences(old, network, arena))
    yield None
    for one, other in zip(expected, _inferences(new, network, arena), strict=True):
        for index, tensor in enumerate(network.outputs):
            if one[index] != other[index]:
                yield f"output {network.tensors[tensor].name!r} differs for random inputs"
                return
    yield None


def _inferences(data: bytes, network: SubgraphEntry, arena: int) -> Iterator[list[bytes]]:
    """Yield the outputs of a model for random inputs of each of three seeds."""
    interpreter, log = _loaded(data, arena)
    if interpreter is None:
        raise RuntimeError(_first_lines(log))
    for seed in (1, 2, 3):
        rng = np.random.default_rng(seed)
        for index, tensor in enumerate(network.inputs):
            entry = network.tensors[tensor]
            interpreter.set_input(_random_input(rng, entry.shape, np.dtype(entry.dtype)), index)
        interpreter.invoke()
        yield [np.array(interpreter.get_output(i)).tobytes() for i in range(len(network.outputs))]


def _random_input(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return random values of a shape and type: small integers, or normally distributed numbers."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(max(limits.min, -128), min(limits.max, 127), shape).astype(dtype)
    return rng.normal(0, 1.5, shape).astype(dtype)


def _arenas(
    old: bytes, fronts: Sequence[bytes], arena: int, least: bool
) -> Iterator[dict[str, int] | str]:
    """Yield the head and the tail of each model's arena in bytes, with ``least`` the smallest arena
    too; or why it cannot be loaded."""
    for front in fronts:
        interpreter, log = _loaded(front + old, arena)
        if interpreter is None:
            yield _first_lines(log)
            continue
        found = {name: int(text) for name, text in _REPORT.findall(log)}
        if least:
            found["least"] = _least_arena(front + old, sum(found.values()))
        yield found


def _first_lines(log: str) -> str:
    """Return the first lines of an interpreter's output as one."""
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    return "; ".join(lines[:3]) or "no reason given"


def _loaded(data: bytes, arena: int) -> tuple[Any, str]:
    """Load a model in an arena; return the interpreter (None if it failed) and its output."""
    from tflite_micro.python.tflite_micro import runtime

    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            interpreter = runtime.Interpreter.from_bytes(data, arena_size=arena)
            interpreter.print_allocations()
        except (RuntimeError, ValueError):
            interpreter = None
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        return interpreter, file.read().decode("utf-8", "replace")


def _fits(data: bytes, arena: int) -> bool:
    """Return whether a model can be loaded in an arena, tested in a forked process, because some
    kernels crash without memory."""
    child = os.fork()
    if child == 0:
        os._exit(_loaded(data, arena)[0] is None)
    return os.waitpid(child, 0)[1] == 0


def _least_arena(data: bytes, low: int) -> int:
    """Return the smallest arena in bytes, at least ``low``. Allocation itself may need more than
    the memory that remains in use, but not several times as much."""
    sizes = range(-(-low // _UNIT) * _UNIT, 4 * low + 2**20, _UNIT)
    if _fits(data, sizes[0]):
        return sizes[0]
    return sizes[bisect_left(sizes, True, 0, len(sizes) - 1, key=lambda size: _fits(data, size))]

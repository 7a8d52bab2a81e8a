"""Loads models into TFLM's interpreter in a separate process, which a bad model may crash.

Run as ``python -m``, with a request in JSON on standard input. A request with ``compare`` names two
files, which are run with random inputs of ``seeds``; the answer is a line with the difference.
Other requests name ``old``, a file, and ``fronts``, files that are put before ``old``. The answer
is a line of JSON for each of them: ``head`` and ``tail`` in bytes, and ``least``, the smallest
arena that the interpreter accepts, if requested; or an ``error``. ``arena`` is the size in bytes
that is tried first.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

_UNIT = 16
_LARGER = 8
"""Factor by which an arena that is too small is enlarged, at most twice."""
_REPORT = re.compile(r"Arena allocation (head|tail) (\d+) bytes")


def main() -> None:
    """Answer one request."""
    request = json.load(sys.stdin)
    if "compare" in request:
        old, new = (Path(path).read_bytes() for path in request["compare"])
        print(
            json.dumps({"differs": _first_difference(old, new, request["seeds"], request["arena"])})
        )
        return
    old = Path(request["old"]).read_bytes()
    for front in request["fronts"]:
        data = Path(front).read_bytes() + old
        print(json.dumps(_measure(data, request["arena"], request["least"])), flush=True)


def _first_difference(old: bytes, new: bytes, seeds: list[int], arena: int) -> str | None:
    """Return the first output of any inference that differs between two models in any bit; None if
    none does."""
    from loadmaster.workloads.frontends.tflite.model import parse_model

    network = parse_model(old).subgraphs[0]
    each = [_interpreter(data, arena) for data in (old, new)]
    for seed in seeds:
        rng = np.random.default_rng(seed)
        for index, tensor in enumerate(network.inputs):
            entry = network.tensors[tensor]
            value = _random_input(rng, entry.shape, np.dtype(entry.dtype))
            for interpreter in each:
                interpreter.set_input(value, index)
        for interpreter in each:
            interpreter.invoke()
        for index, tensor in enumerate(network.outputs):
            one, other = (np.array(interpreter.get_output(index)) for interpreter in each)
            if one.tobytes() != other.tobytes():
                return f"output {network.tensors[tensor].name!r} differs for inputs of seed {seed}"
    return None


def _interpreter(data: bytes, arena: int) -> Any:
    """Return TFLM's interpreter in the first arena that is large enough, of up to three sizes."""
    from tflite_micro.python.tflite_micro import runtime

    for size in (arena, arena * _LARGER):
        try:
            return runtime.Interpreter.from_bytes(data, arena_size=size)
        except RuntimeError:
            continue
    return runtime.Interpreter.from_bytes(data, arena_size=arena * _LARGER**2)


def _random_input(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Return random values of a shape and type: small integers, or normally distributed numbers."""
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(max(limits.min, -128), min(limits.max, 127), shape).astype(dtype)
    return rng.normal(0, 1.5, shape).astype(dtype)


def _measure(data: bytes, arena: int, least: bool) -> dict[str, Any]:
    """Return the head and the tail of TFLM's arena in bytes, with ``least`` the smallest arena too;
    or the error."""
    for size in (arena, arena * _LARGER, arena * _LARGER**2):
        found, log = _try_arena(data, size)
        if found:
            return found | (
                {"least": _least_arena(data, found["head"] + found["tail"], size)} if least else {}
            )
    lines = [" ".join(line.split()) for line in log.splitlines() if line.strip()]
    return {"error": "; ".join(lines[:3]) or "no reason given"}


def _try_arena(data: bytes, arena: int) -> tuple[dict[str, int], str]:
    """Load a model in an arena, and return its head and tail (empty if that fails) and the
    interpreter's output."""
    from tflite_micro.python.tflite_micro import runtime

    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            runtime.Interpreter.from_bytes(data, arena_size=arena).print_allocations()
        except (RuntimeError, ValueError):
            found = False
        else:
            found = True
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        log = file.read().decode("utf-8", "replace")
    return {name: int(size) for name, size in _REPORT.findall(log)} if found else {}, log


def _fits(data: bytes, arena: int) -> bool:
    """Return whether a model can be loaded in an arena, tested in a forked process, because some
    kernels crash without memory."""
    child = os.fork()
    if child == 0:
        os._exit(0 if _try_arena(data, arena)[0] else 1)
    return os.waitpid(child, 0)[1] == 0


def _least_arena(data: bytes, low: int, high: int) -> int:
    """Return the smallest arena in bytes, at least ``low`` and at most ``high``. Allocation itself
    may need more than the memory that remains in use."""
    few, many = -(-low // _UNIT), -(-high // _UNIT)
    if _fits(data, few * _UNIT):
        return few * _UNIT
    while many - few > 1:
        middle = (few + many) // 2
        if _fits(data, middle * _UNIT):
            many = middle
        else:
            few = middle
    return many * _UNIT


if __name__ == "__main__":
    main()

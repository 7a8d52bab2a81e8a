"""What is packed: files of other people, lifetimes of real networks, and how a call is timed."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import loadmaster as lm
from loadmaster import _native
from loadmaster.core.arrays import Ints

Plain = tuple[Ints, Ints, Ints]
"""Lower, upper and size of every buffer."""

FIXTURES = Path(__file__).parents[2] / "fixtures"
OURS = tuple(
    str(FIXTURES / f"{name}.onnx.gz") for name in ("bert-base", "dlrm", "gpt2", "mobilenetv2")
)
SHIPPED = tuple(
    f"onnx:{name}"
    for name in (
        "squeezenet",
        "resnet50",
        "densenet121",
        "inception_v1",
        "inception_v2",
        "shufflenet",
    )
)
"""Those of the networks that the onnx package ships whose lifetimes are not a chain."""


def read(path: Path) -> Plain | None:
    """The plain columns of a file, or nothing if it is no such file."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    if not rows or not {"lower", "upper", "size"} <= rows[0].keys():
        return None
    lower, upper, size = (
        np.array([int(row[name]) for row in rows], dtype=np.int64)
        for name in ("lower", "upper", "size")
    )
    return lower, upper, size


def packing_problem(plain: Plain) -> _native.PackingProblem:
    """The problem as the native core takes it."""
    lower, upper, size = plain
    count = len(size)
    ones, zeros = np.ones(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    return _native.PackingProblem(
        size, ones, -ones, np.arange(count + 1, dtype=np.int64), lower, upper, zeros, size
    )


def clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds and the result."""
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


def tiling(count: int, seed: int) -> Plain:
    """A rectangle cut into pieces: the optimum is the load bound, 2^20."""
    random = np.random.default_rng(seed)
    pieces = [(0, 1 << 20, 0, 1 << 10)]
    while len(pieces) < count:
        at = max(
            range(len(pieces)),
            key=lambda i: (
                (pieces[i][1] - pieces[i][0])
                * (pieces[i][3] - pieces[i][2])
                * random.uniform(0.3, 1.3)
            ),
        )
        left, right, low, high = pieces.pop(at)
        if high - low < 8 or random.random() < 0.5:
            cut = left + int((right - left) * random.beta(2, 2))
            pieces += (
                [(left, cut, low, high), (cut, right, low, high)]
                if left < cut < right
                else [(left, right, low, high)]
            )
        else:
            cut = low + 1 + int((high - low - 2) * random.beta(2, 2))
            pieces += [(left, right, low, cut), (left, right, cut, high)]
    random.shuffle(pieces)
    table = np.array(pieces, dtype=np.int64)
    return table[:, 0].copy(), table[:, 1].copy(), 1024 * (table[:, 3] - table[:, 2])


def networks() -> Iterator[tuple[str, Plain]]:
    """Lifetimes of real networks at int8, batch 1."""
    for source in [*OURS, *SHIPPED]:
        yield Path(source).name.removesuffix(".onnx.gz").removeprefix("onnx:"), lifetimes(source)


def lifetimes(source: str) -> Plain:
    """Inputs and activations in execution order: alive from the operator that makes them to the
    last that reads them."""
    graph = lm.load(source, precision="int8")
    made = dict.fromkeys((graph.tensors[name].storage for name in graph.inputs), 0)
    last = dict(made)
    for at, op in enumerate(graph.ops):
        for access in op.writes:
            made.setdefault(graph.tensors[access.tensor].storage, at)
        for access in (*op.reads, *op.writes):
            last[graph.tensors[access.tensor].storage] = at
    last |= {graph.tensors[name].storage: len(graph.ops) for name in graph.outputs}
    kept = [
        name
        for name in made
        if graph.tensors[name].kind in ("activation", "input") and graph.tensors[name].bytes
    ]
    lower, upper, size = np.array(
        [(made[name], last[name] + 1, graph.tensors[name].bytes) for name in kept], dtype=np.int64
    ).T
    return lower.copy(), upper.copy(), size.copy()


def load_of(plain: Plain) -> int:
    """Bytes alive at the fullest instant."""
    lower, upper, size = plain
    when = np.concatenate([upper, lower])
    return int(np.cumsum(np.concatenate([-size, size])[np.argsort(when, kind="stable")]).max())

"""How long copies between the memories of a CPU take, made as planned steps make them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadmaster.integrations.torch_compile.devices.arena import large_pages
from loadmaster.integrations.torch_compile.devices.slow_file import SlowFile, pages
from loadmaster.workloads.graph import Graph

_SIZES = 12
"""How many sizes of copies are measured."""


@dataclass(frozen=True)
class CopyTime:
    """The median seconds of copying so many bytes to the fast memory, or from it."""

    to_fast: bool
    bytes: int
    seconds: float


def measure_copies(graph: Graph, folder: Path, repeats: int) -> Iterator[CopyTime]:
    """Measure copies between a file of the folder and memory, both ways, of bytes as many as the
    graph's tensors have.

    A copy of few bytes takes longer for each than one of many. So there are several, of tensors
    evenly spaced by size: all their bytes over all their seconds is the bandwidth at which tensors
    of this graph are copied, one with another.

    Raises :class:`~loadmaster.core.errors.SlowMemoryError` where steps could not have their slow
    memory either.
    """
    file = SlowFile(folder)
    try:
        for size in _sizes(
            [
                tensor.bytes
                for tensor in graph.tensors.values()
                if tensor.alias_of is None and tensor.bytes
            ]
        ):
            for to_fast, seconds in copy_seconds(file, size, repeats).items():
                yield CopyTime(to_fast, size, seconds)
    finally:
        file.close()


def copy_seconds(file: SlowFile, size: int, repeats: int) -> dict[bool, float]:
    """Median seconds of copying so many bytes, in whole pages, to the file (False) and from it
    (True); the first copy does not count."""
    count = pages(size)
    slot, block = file.reserve(count), large_pages(count)
    block.write(b"\1" * count)
    found = {}
    with memoryview(block) as memory:
        for to_fast, copy in ((False, file.write), (True, file.read)):
            seconds = []
            for _ in range(repeats + 1):
                started = time.perf_counter()
                copy(memory, slot)
                seconds.append(time.perf_counter() - started)
            found[to_fast] = statistics.median(seconds[1:])
    file.release(slot, count)
    return found


def _sizes(bytes_: Sequence[int]) -> list[int]:
    """Some of the tensors' sizes, from the smallest to the largest."""
    every = sorted(bytes_)
    return (
        [every[(2 * rank + 1) * len(every) // (2 * _SIZES)] for rank in range(_SIZES)]
        if len(every) > _SIZES
        else every
    )

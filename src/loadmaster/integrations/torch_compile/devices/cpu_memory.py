"""Memory of a CPU: an arena in anonymous memory, an unlinked file, and a thread for each direction
that copies between them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loadmaster import _native
from loadmaster.integrations.torch_compile.captured import View, on_storage
from loadmaster.integrations.torch_compile.devices import allocator_hook
from loadmaster.integrations.torch_compile.devices.slow_file import (
    PAGE,
    Copy,
    FastArena,
    SlowFile,
    pages,
)
from loadmaster.placement.sequence import CopyLink
from loadmaster.workloads.graph import Graph


def large_pages(bytes: int) -> mmap.mmap:
    """Anonymous memory in large pages, where the system has them.

    A transfer without the page cache is a request to the disk for each piece of memory that is in
    one place: with pages of 4 KiB it took three times as long as with those of 2 MiB (0.95 and 3.0
    GB/s).
    """
    memory = mmap.mmap(-1, bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Arena:
    """``bytes`` of anonymous memory; pages take fast memory from their first use until `drop`."""

    def __init__(self, bytes: int) -> None:
        self.bytes = max(pages(bytes), mmap.PAGESIZE)
        self._map = large_pages(self.bytes)
        self._anchor = ctypes.c_char.from_buffer(self._map)
        self.base = ctypes.addressof(self._anchor)
        self._memory = memoryview(self._map)
        _native.add_arena(self.base, self.bytes)

    def tensor(self, view: View, offset: int, bytes: int) -> torch.Tensor:
        """The tensor of a storage of ``bytes`` that lies at ``offset``. It is valid while the arena
        is."""
        storage: Any = torch._C._construct_storage_from_data_pointer(
            self.base + offset, torch.device("cpu"), bytes
        )
        return on_storage(storage, view)

    def part(self, offset: int, bytes: int) -> memoryview:
        """Whole pages from ``offset`` on."""
        return self._memory[offset : offset + pages(bytes)]

    def drop(self, start: int = 0) -> None:
        """Return the pages from ``start`` on to the system; their contents are lost."""
        if pages(start) < self.bytes:
            self._map.madvise(mmap.MADV_DONTNEED, pages(start), self.bytes - pages(start))

    def close(self) -> None:
        """Unmap the memory; its tensors must not be used any more."""
        _native.remove_arena(self.base)
        self._memory.release()
        del self._anchor
        with contextlib.suppress(BufferError):
            self._map.close()


_PROBE = 16 << 20
"""Bytes of the copies by which the slow memory's bandwidth is measured."""


def return_freed_blocks() -> None:
    """Return what compiling and planning have allocated and freed to the system; glibc keeps most
    of it otherwise."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class CpuMemory:
    """Fast and slow memory of one budget on the CPU; ``folder`` is where the file goes."""

    alignment = PAGE
    shrinks = True

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self._places_results = allocator_hook.install_allocator()
        self.file = SlowFile(folder, limit)
        self._engines = {
            to_fast: ThreadPoolExecutor(1, "loadmaster-copy") for to_fast in (False, True)
        }
        self._free = {False: 0.0, True: 0.0}  # when each thread had made its last copy
        self.link = self._measured()

    def _measured(self) -> CopyLink:
        """Bandwidths both ways, of a few copies."""
        probe = (
            _PROBE
            if self.file.limit is None
            else max(min(_PROBE, self.file.limit // PAGE * PAGE), PAGE)
        )
        to_slow, to_fast = (
            probe / seconds for seconds in copy_seconds(self.file, probe, repeats=1).values()
        )
        return CopyLink(to_fast, to_slow, to_fast, to_slow)

    def arena(self, bytes: int) -> Arena:
        """Fast memory for a plan."""
        return Arena(bytes)

    def script(self, grants: Sequence[tuple[int, int]]) -> _native.AllocationScript | None:
        """A script with which a kernel allocates at planned offsets; None where our allocator is
        not installed."""
        return _native.AllocationScript(list(grants)) if self._places_results else None

    def reserve(self, bytes: int) -> int:
        """Reserve bytes of the file for a step; their offset. Raises `SlowMemoryError`."""
        return self.file.reserve(bytes)

    def release(self, slot: int, bytes: int) -> None:
        """Release reserved bytes of the file."""
        self.file.release(slot, bytes)

    def copy(self, arena: FastArena, copy: Copy) -> FileCopy:
        """Start a copy in the thread of its direction."""
        assert isinstance(arena, Arena)
        return FileCopy(
            self._engines[copy.to_fast].submit(self._copy, arena, copy, time.perf_counter())
        )

    def _copy(self, arena: Arena, copy: Copy, asked: float) -> float:
        """Copy, and return the seconds since the thread could begin: waking it up is part of what a
        copy takes."""
        start = max(asked, self._free[copy.to_fast])
        with arena.part(copy.offset, copy.bytes) as memory:
            if copy.to_fast:
                (copy.file or self.file).read(memory, copy.slot)
            else:
                self.file.write(memory, copy.slot)
        self._free[copy.to_fast] = end = time.perf_counter()
        return end - start

    def synchronize(self) -> None:
        """Wait until both threads are idle."""
        for engine in self._engines.values():
            engine.submit(int).result()

    def close(self) -> None:
        """End the threads and close the file."""
        for engine in self._engines.values():
            engine.shutdown()
        self.file.close()


class FileCopy:
    """A copy in one of the threads."""

    def __init__(self, future: Future[float]) -> None:
        self._future = future

    def wait(self) -> float:
        """Wait for the copy and return its seconds."""
        return self._future.result()


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

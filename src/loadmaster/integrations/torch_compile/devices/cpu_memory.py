"""Memory of a CPU: an arena in anonymous memory, an unlinked file, and a thread for each direction
that copies between them."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from loadmaster import _native
from loadmaster.integrations.torch_compile.devices import allocator_hook
from loadmaster.integrations.torch_compile.devices.arena import Arena
from loadmaster.integrations.torch_compile.devices.copy_times import copy_seconds
from loadmaster.integrations.torch_compile.devices.device_memory import Copy, FastArena
from loadmaster.integrations.torch_compile.devices.slow_file import PAGE, SlowFile
from loadmaster.placement.sequence import CopyLink

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
            if copy.file is not None:
                assert copy.to_fast
                copy.file.read(memory, copy.slot)
            else:
                (self.file.read if copy.to_fast else self.file.write)(memory, copy.slot)
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

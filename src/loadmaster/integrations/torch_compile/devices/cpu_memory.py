"""Memory of a CPU: an arena in anonymous memory, an unlinked file, and a thread for each direction that copies between them."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from loadmaster import _native
from loadmaster.integrations.torch_compile.devices import allocator_hook
from loadmaster.integrations.torch_compile.devices.arena import Arena
from loadmaster.integrations.torch_compile.devices.device_memory import Copy, FastArena
from loadmaster.integrations.torch_compile.devices.slow_file import PAGE, SlowFile
from loadmaster.placement.sequence import CopyLink

_PROBE = 16 << 20


class CpuMemory:
    """Fast and slow memory of one budget on the CPU; ``folder`` is where the file goes."""

    alignment = PAGE
    shrinks = True

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self._leads = allocator_hook.leads()
        self.file = SlowFile(folder, limit)
        self._engines = {to_fast: ThreadPoolExecutor(1, "loadmaster-copy") for to_fast in (False, True)}
        self.link = self._measured()

    def _measured(self) -> CopyLink:
        """Bandwidths both ways, of a few copies."""
        probe = _PROBE if self.file.limit is None else max(min(_PROBE, self.file.limit // PAGE * PAGE), PAGE)
        slot = self.file.reserve(probe)
        block = mmap.mmap(-1, probe)
        block.write(b"\1" * probe)
        seconds = {}
        with memoryview(block) as memory:
            for what in (self.file.write, self.file.read):
                what(memory, slot)
                start = time.perf_counter()
                what(memory, slot)
                seconds[what] = time.perf_counter() - start
        self.file.release(slot, probe)
        to_slow, to_fast = (probe / taken for taken in seconds.values())
        return CopyLink(to_fast, to_slow, to_fast, to_slow)

    def arena(self, bytes: int) -> Arena:
        """Fast memory for a plan."""
        return Arena(bytes)

    def script(self, grants: Sequence[tuple[int, int]]) -> _native.AllocationScript | None:
        """What lets a kernel allocate at planned offsets; None where PyTorch's allocator cannot be led."""
        return _native.AllocationScript(list(grants)) if self._leads else None

    def reserve(self, bytes: int) -> int:
        """Bytes of the file for a step."""
        return self.file.reserve(bytes)

    def release(self, slot: int, bytes: int) -> None:
        """Take them back."""
        self.file.release(slot, bytes)

    def copy(self, arena: FastArena, copy: Copy) -> FileCopy:
        """Start a copy in its direction's thread."""
        assert isinstance(arena, Arena)
        return FileCopy(self._engines[copy.to_fast].submit(self._copy, arena, copy))

    def _copy(self, arena: Arena, copy: Copy) -> float:
        start = time.perf_counter()
        with arena.part(copy.offset, copy.bytes) as memory:
            (self.file.read if copy.to_fast else self.file.write)(memory, copy.slot)
        return time.perf_counter() - start

    def settle(self) -> None:
        """Wait until both threads have nothing to do."""
        for engine in self._engines.values():
            engine.submit(int).result()

    def close(self) -> None:
        """End the threads and give the file back."""
        for engine in self._engines.values():
            engine.shutdown()
        self.file.close()


class FileCopy:
    """A copy in one of the threads."""

    def __init__(self, future: Future[float]) -> None:
        self._future = future

    def wait(self) -> float:
        """Wait for the copy; its seconds."""
        return self._future.result()

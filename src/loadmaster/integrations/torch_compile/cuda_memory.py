"""Memory of a GPU: an arena in device memory, a bounded pool of pinned host memory, and a copy
stream for each direction.

Copies wait for the kernels before them, and kernels for the copies that they need, by CUDA events
and without blocking the host. PyTorch's allocator for CUDA cannot be given addresses kernel by
kernel, so results are copied to their addresses in the arena at device bandwidth, and their bytes
count as the kernel's own. An arena has its full size as long as its plan exists.
"""

from __future__ import annotations

import mmap
import time
import weakref
from typing import Any

import torch
from torch.cuda._pin_memory_utils import pin_memory, unpin_memory

from loadmaster.core.errors import SlowMemoryError
from loadmaster.core.units import format_bytes
from loadmaster.integrations.torch_compile.cpu_memory import ArenaCopy, FastArena, Wait, pages
from loadmaster.placement.sequence import CopyLink

_PROBE = 64 << 20
"""Bytes of the copies that measure the link's bandwidth."""


class CudaArena(FastArena):
    """An arena of ``bytes`` in device memory."""

    def __init__(self, device: torch.device, bytes: int) -> None:
        self.device, self.bytes = device, bytes
        self.memory = torch.empty(max(bytes, 1), dtype=torch.uint8, device=device)
        self.base = self.memory.data_ptr()

    def close(self) -> None:
        """Return the memory to PyTorch once no stream uses it."""
        torch.cuda.synchronize(self.device)
        self.memory = torch.empty(0, dtype=torch.uint8, device=self.device)


class Pinned:
    """Host memory registered with the GPU, in whole pages.

    PyTorch's pool of pinned memory is not used, because it rounds up to powers of two and keeps
    freed memory.
    """

    def __init__(self, bytes: int) -> None:
        self.bytes = pages(max(bytes, 1))
        self.memory = torch.frombuffer(mmap.mmap(-1, self.bytes), dtype=torch.uint8)
        try:
            pin_memory(self.memory.data_ptr(), self.bytes)
        except RuntimeError as error:
            raise SlowMemoryError(
                f"pinned memory: {format_bytes(self.bytes)} cannot be had:"
                f" {str(error).splitlines()[0]}"
            ) from None
        self.close = weakref.finalize(self, unpin_memory, self.memory.data_ptr())


class CudaMemory:
    """Fast and slow memory of one budget on a GPU; at most ``limit`` bytes are pinned."""

    file: None = None
    alignment = 512
    shrinks = False

    def __init__(self, device: torch.device, limit: int | None = None) -> None:
        self.device, self.limit = device, limit
        self._used: dict[int, Pinned] = {}
        self._spare: list[Pinned] = []
        self._next = 0
        self._streams = {to_fast: torch.cuda.Stream(device) for to_fast in (False, True)}
        self.link = self._measure_link()

    @property
    def pinned(self) -> int:
        """Bytes of host memory that are pinned."""
        return sum(block.bytes for block in (*self._used.values(), *self._spare))

    def _measure_link(self) -> CopyLink:
        """Measure copies between pinned host memory and the GPU in both directions, in bytes per
        second."""
        block = Pinned(_PROBE if self.limit is None else min(_PROBE, self.limit))
        host, there = block.memory, torch.empty(block.bytes, dtype=torch.uint8, device=self.device)
        rates = []
        for to, source in ((there, host), (host, there)):
            for _ in range(2):
                torch.cuda.synchronize(self.device)
                start = time.perf_counter()
                to.copy_(source, non_blocking=True)
                torch.cuda.synchronize(self.device)
                seconds = time.perf_counter() - start
            rates.append(block.bytes / seconds)
        block.close()
        to_fast, to_slow = rates
        return CopyLink(to_fast, to_slow, to_fast, to_slow)

    def arena(self, bytes: int) -> CudaArena:
        """Return an arena of ``bytes`` for a plan."""
        return CudaArena(self.device, bytes)

    def script(self, grants: list[tuple[int, int]]) -> None:
        """Return None: PyTorch's allocator for CUDA takes no addresses."""

    def reserve(self, bytes: int) -> int:
        """Reserve pinned memory for a step, and return the number of its first slot. Raises
        `SlowMemoryError`."""
        fitting = [block for block in self._spare if block.bytes >= bytes]
        if fitting:
            block = min(fitting, key=lambda block: block.bytes)
            self._spare.remove(block)
        else:
            self._give_spare_back()
            if self.limit is not None and self.pinned + pages(bytes) > self.limit:
                raise SlowMemoryError(
                    f"pinned memory: at least {format_bytes(self.pinned + pages(bytes))} are"
                    f" needed, but slow_limit allows {format_bytes(self.limit)}: raise slow_limit,"
                    " or fast_memory"
                )
            block = Pinned(bytes)
        slot = self._next
        self._used[slot] = block
        self._next += block.bytes
        return slot

    def release(self, slot: int, bytes: int) -> None:
        """Release reserved memory; it stays pinned for the next reservation."""
        self._spare.append(self._used.pop(slot))

    def _give_spare_back(self) -> None:
        """Free the spare blocks of pinned memory."""
        if self._spare:
            torch.cuda.synchronize(self.device)  # the host has not waited for copies
        while self._spare:
            self._spare.pop().close()

    def copy(self, arena: Any, copy: ArenaCopy) -> Wait:
        """Start a copy in the stream of its direction, after the kernels so far."""
        start = max(slot for slot in self._used if slot <= copy.slot)
        host = self._used[start].memory[copy.slot - start :][: copy.bytes]
        there = arena.memory[copy.offset :][: copy.bytes]
        stream = self._streams[copy.to_fast]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            to, source = (there, host) if copy.to_fast else (host, there)
            to.copy_(source, non_blocking=True)
            done = torch.cuda.Event()
            done.record(stream)

        def wait() -> float:
            """Make later kernels wait for the copy; return 0, its seconds are unknown."""
            torch.cuda.current_stream(self.device).wait_event(done)
            return 0.0

        return wait

    def synchronize(self) -> None:
        """Wait until both streams are idle."""
        for stream in self._streams.values():
            stream.synchronize()

    def close(self) -> None:
        """Free pinned memory once no copy uses it."""
        self._spare += self._used.values()
        self._used.clear()
        self._give_spare_back()

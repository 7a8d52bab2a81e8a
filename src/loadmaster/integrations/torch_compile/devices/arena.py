"""The fast memory of a CPU: one anonymous mapping, with tensors at the addresses of a plan."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from typing import Any

import torch

from loadmaster import _native
from loadmaster.integrations.torch_compile.captured import View, on_storage
from loadmaster.integrations.torch_compile.devices.slow_file import pages


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

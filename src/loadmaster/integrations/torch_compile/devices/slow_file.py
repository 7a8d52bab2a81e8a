"""The slow memory of a CPU: an unlinked file, read and written without the page cache.

The file never has a name: its space is freed when its descriptor closes, however the process ends.
It is opened with O_DIRECT, so that its pages never are in the page cache: a copy to it frees
memory, and a copy from it is a true read. Addresses, offsets and lengths are multiples of `PAGE`.
Space is reserved (posix_fallocate) before a step needs it, so that a full disk is found early. A
file system that knows no O_DIRECT, or that keeps files in memory (tmpfs), is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from loadmaster.core.errors import SlowMemoryError
from loadmaster.integrations.torch_compile.captured import View
from loadmaster.placement.sequence import CopyLink

PAGE = 4096
_AT_ONCE = 64 << 20
_IN_MEMORY = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}


def pages(count: int) -> int:
    """Bytes, rounded up to whole pages."""
    return -(-count // PAGE) * PAGE


def _file_system(file: int) -> int:
    """The kind of file system that a file is on: the first field of ``struct statfs``."""
    status = (ctypes.c_long * 64)()
    return int(status[0]) if ctypes.CDLL(None).fstatfs(file, status) == 0 else 0


class SlowFile:
    """Regions of an unlinked file in ``folder``, of which at most ``limit`` bytes are reserved."""

    def __init__(self, folder: Path | None, limit: int | None = None) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.limit = limit
        self.bytes = 0
        self.used = 0
        self._free: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        try:
            self._file = os.open(
                self.folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            why = (
                "its file system has no O_DIRECT"
                if error.errno in (errno.EINVAL, errno.EOPNOTSUPP)
                else error.strerror
            )
            raise SlowMemoryError(
                f"slow_memory {self.folder}: no file can be made there ({why}): name a folder on a"
                " local disk"
            ) from None
        self._close = weakref.finalize(self, os.close, self._file)
        if kind := _IN_MEMORY.get(_file_system(self._file)):
            raise SlowMemoryError(
                f"slow_memory {self.folder}: {kind} keeps files in memory: name a folder on a local"
                " disk"
            )

    def reserve(self, count: int) -> int:
        """Reserve ``count`` bytes (whole pages) on the disk; their offset. Raises
        `SlowMemoryError`."""
        with self._lock:
            for i, (offset, size) in enumerate(self._free):
                if size >= count:
                    self._free[i : i + 1] = [(offset + count, size - count)] if size > count else []
                    self.used += count
                    return offset
            last = self._free[-1:]
            if last and last[0][0] + last[0][1] < self.bytes:
                last = []
            offset = last[0][0] if last else self.bytes  # a free region at the end grows
            self._extend(offset + count)
            if last:
                self._free.pop()
            self.used += count
            return offset

    def _extend(self, size: int) -> None:
        more = size - self.bytes
        try:
            if self.limit is not None and size > self.limit:
                raise OSError(errno.ENOSPC, f"slow_limit allows {self.limit}")
            if more:
                os.posix_fallocate(self._file, self.bytes, more)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.bytes)  # what it got before the disk was full
            raise SlowMemoryError(
                f"slow_memory {self.folder}: {more} bytes more cannot be had: {error.strerror}"
            ) from None
        self.bytes = size

    def release(self, offset: int, count: int) -> None:
        """Release reserved bytes; adjacent free regions are merged."""
        if not count:
            return
        with self._lock:
            self.used -= count
            merged: list[tuple[int, int]] = []
            for start, size in sorted([*self._free, (offset, count)]):
                if merged and merged[-1][0] + merged[-1][1] == start:
                    merged[-1] = (merged[-1][0], merged[-1][1] + size)
                else:
                    merged.append((start, size))
            self._free = merged

    def write(self, memory: memoryview, offset: int) -> None:
        """Copy ``memory`` (whole pages) to the file; the interpreter lock is released meanwhile."""
        self._transfer(
            memory, offset, "written", lambda part, at: os.pwritev(self._file, [part], at)
        )

    def read(self, memory: memoryview, offset: int) -> None:
        """Fill ``memory`` (whole pages) from the file."""
        self._transfer(memory, offset, "read", lambda part, at: os.preadv(self._file, [part], at))

    def mapped(self, offset: int, count: int) -> mmap.mmap:
        """Map bytes of the file into memory; reads and writes there go through the page cache,
        until `forget`."""
        return mmap.mmap(
            self._file, count, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        )

    def forget(self, offset: int, count: int) -> None:
        """Drop this part of the file from the page cache; it must be written and not mapped in any
        page."""
        os.posix_fadvise(self._file, offset, count, os.POSIX_FADV_DONTNEED)

    def _transfer(
        self, memory: memoryview, offset: int, what: str, call: Callable[[memoryview, int], int]
    ) -> None:
        done = 0
        while done < len(memory):
            try:
                moved = call(memory[done : done + _AT_ONCE], offset + done)
            except OSError as error:
                raise SlowMemoryError(
                    f"slow_memory {self.folder}: bytes cannot be {what}: {error.strerror}"
                ) from None
            if moved <= 0:
                raise SlowMemoryError(
                    f"slow_memory {self.folder}: the file ended early: {what} {done} of"
                    f" {len(memory)} bytes"
                )
            done += moved

    def close(self) -> None:
        """Close the file; its space is freed."""
        self._close()


_PRESENT, _SWAPPED, _OF_FILE = 63, 62, 61
"""Bits of an entry of ``/proc/self/pagemap``."""


class WeightFile:
    """A file that is read without the page cache."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._file)

    def read(self, memory: memoryview, offset: int) -> None:
        """Fill ``memory`` from ``offset`` on (whole pages) as far as the file reaches. Raises
        `SlowMemoryError`."""
        done = 0
        while done < len(memory):
            try:
                count = os.preadv(self._file, [memory[done : done + _AT_ONCE]], offset + done)
            except OSError as error:
                raise SlowMemoryError(
                    f"{self.path}: weights cannot be read: {error.strerror}"
                ) from None
            if count % PAGE or not count:  # the end of the file
                return
            done += count

    def forget(self, offset: int, bytes: int) -> None:
        """Drop this part from the page cache."""
        os.posix_fadvise(self._file, offset, bytes, os.POSIX_FADV_DONTNEED)


@cache
def _opened(path: str, device: int, inode: int) -> WeightFile | None:
    try:
        file = WeightFile(path)
        file.read(memoryview(mmap.mmap(-1, PAGE)), 0)
    except (OSError, SlowMemoryError):
        return None
    return file


@dataclass(frozen=True)
class FilePlace:
    """Where a tensor's bytes are: in a file at ``offset``, and mapped privately at ``address``."""

    file: WeightFile
    offset: int
    address: int
    bytes: int

    @property
    def shift(self) -> int:
        """Bytes from the beginning of a page to the tensor."""
        return self.offset % PAGE

    @property
    def slot(self) -> int:
        """The offset of the page in which the tensor begins."""
        return self.offset - self.shift

    def changed(self) -> bool:
        """Whether somebody has written to a page of the tensor: then it is memory of this process.
        O(pages), a megabyte of them in 1 ms."""
        first, count = self.address // PAGE, -(-(self.address % PAGE + self.bytes) // PAGE)
        with Path("/proc/self/pagemap").open("rb", buffering=0) as table:
            table.seek(8 * first)
            entries = np.frombuffer(table.read(8 * count), dtype=np.uint64)
        there = (entries >> np.uint64(_PRESENT) | entries >> np.uint64(_SWAPPED)) & np.uint64(1)
        return bool((there & ~(entries >> np.uint64(_OF_FILE)) & np.uint64(1)).any())

    def forget(self, changed: bool = False) -> None:
        """Drop what was read through the mapping from memory; the tensor must not be `changed`,
        whatever versions of it say."""
        start, end = pages(self.address), (self.address + self.bytes) // PAGE * PAGE
        if end > start:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED
            )
        self.file.forget(self.slot, pages(self.shift + self.bytes))


class FileMapping(NamedTuple):
    """A private mapping of a file into this process."""

    start: int
    end: int
    offset: int
    path: str
    inode: int


def file_mappings() -> list[FileMapping]:
    """Private mappings of files, by address. O(mappings of the process)."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/") and words[1][3] == "p":
            start, end = (int(word, 16) for word in words[0].split("-"))
            found.append(FileMapping(start, end, int(words[2], 16), words[5], int(words[4])))
    return found


def place_in_file(address: int, bytes: int, mappings: Sequence[FileMapping]) -> FilePlace | None:
    """Where the bytes at ``address`` are in a file; None if they are in none of the ``mappings`` as
    a whole."""
    for one in mappings:
        if one.start <= address and address + bytes <= one.end:
            try:
                status = os.stat(one.path)
            except OSError:  # the file is gone
                return None
            file = (
                _opened(one.path, status.st_dev, status.st_ino)
                if status.st_ino == one.inode
                else None
            )
            return (
                None
                if file is None
                else FilePlace(file, one.offset + address - one.start, address, bytes)
            )
    return None


class Copy(NamedTuple):
    """A copy of ``bytes`` of a tensor between ``offset`` in the arena and ``slot`` in the slow
    memory, both in bytes."""

    to_fast: bool
    offset: int
    slot: int
    bytes: int
    file: SlowFile | WeightFile | None = None


class FastArena(Protocol):
    """Fast memory of one plan."""

    bytes: int
    base: int

    def tensor(self, view: View, offset: int, bytes: int) -> torch.Tensor:
        """The tensor of a storage of ``bytes`` at ``offset``."""

    def drop(self, start: int = 0) -> None:
        """Free memory from ``start`` on until it is used again; its contents are lost."""

    def close(self) -> None:
        """Free all memory for good."""


class Pending(Protocol):
    """A copy under way."""

    def wait(self) -> float:
        """Have what is computed next see the copy; return its seconds, 0 if not known. Raises what
        the copy raised."""


class DeviceMemory(Protocol):
    """Fast and slow memory of one budget."""

    link: CopyLink
    alignment: int
    shrinks: bool
    """Whether an arena can give back what is above an address, for results that need the room."""

    @property
    def file(self) -> SlowFile | None:
        """The file to which parameters, buffers and optimizer state are offloaded between steps;
        None if they are not."""

    def arena(self, bytes: int) -> FastArena:
        """Fast memory for a plan."""

    def script(self, grants: Sequence[tuple[int, int]]) -> Any:
        """A script with which a kernel allocates at planned offsets (``begin(base)``), or None
        where that is not possible."""

    def reserve(self, bytes: int) -> int:
        """Reserve slow memory for a step; the slot at which it begins. Raises `SlowMemoryError`."""

    def release(self, slot: int, bytes: int) -> None:
        """Release reserved slow memory."""

    def copy(self, arena: FastArena, copy: Copy) -> Pending:
        """Start a copy, after those that were started before in the same direction and after the
        kernels so far."""

    def synchronize(self) -> None:
        """Wait for every copy that was started, also those that nobody holds any more after an
        interrupt."""

    def close(self) -> None:
        """Free all memory."""

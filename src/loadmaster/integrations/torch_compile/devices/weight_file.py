"""Weights that lie in a file already, such as one of safetensors: the file is their slow memory,
and no second copy is made.

A library that maps a file into memory leaves tensors whose bytes are those of the file. Where they
are is in ``/proc/self/maps``, so nothing needs to know the file's format. Steps read the file with
O_DIRECT, in whole pages: a tensor that begins inside of a page is read with what is before it, and
lies as far behind the beginning of a page in fast memory, too.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loadmaster.core.errors import SlowMemoryError
from loadmaster.integrations.torch_compile.devices.slow_file import PAGE, pages

_AT_ONCE = 64 << 20
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

    def forget(self) -> None:
        """Drop what was read through the mapping from memory; the tensor must not be `changed`."""
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

"""The slow memory of a CPU: an unlinked file, read and written past the page cache.

The file has no name from its first moment on: when its descriptor closes, by whatever end of the process, its bytes are gone. It is opened
with O_DIRECT, so that its pages never are in the page cache: a copy to it frees memory, and a copy from it is a true read. Addresses,
offsets and lengths are multiples of `PAGE`. Space is reserved (posix_fallocate) before a step needs it: a full disk is found out then.
Where a file system knows no O_DIRECT (tmpfs), the backend says so and stops.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from loadmaster.errors import SlowMemoryError

PAGE = 4096
_AT_ONCE = 64 << 20


def pages(count: int) -> int:
    """Bytes, rounded up to whole pages."""
    return -(-count // PAGE) * PAGE


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
            self._file = os.open(self.folder, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            why = "its file system has no O_DIRECT" if error.errno in (errno.EINVAL, errno.EOPNOTSUPP) else error.strerror
            raise SlowMemoryError(f"slow_memory {self.folder}: no file can be made there ({why}): name a folder on a local disk") from None
        self._close = weakref.finalize(self, os.close, self._file)

    def reserve(self, count: int) -> int:
        """Offset of ``count`` bytes (whole pages) that are on the disk for sure. Raises `SlowMemoryError`."""
        with self._lock:
            for i, (offset, size) in enumerate(self._free):
                if size >= count:
                    self._free[i : i + 1] = [(offset + count, size - count)] if size > count else []
                    self.used += count
                    return offset
            try:
                if self.limit is not None and self.bytes + count > self.limit:
                    raise OSError(errno.ENOSPC, f"more than the {self.limit} bytes allowed")
                if count:
                    os.posix_fallocate(self._file, self.bytes, count)
            except OSError as error:
                raise SlowMemoryError(f"slow_memory {self.folder}: {count} bytes more cannot be had: {error.strerror}") from None
            offset, self.bytes = self.bytes, self.bytes + count
            self.used += count
            return offset

    def release(self, offset: int, count: int) -> None:
        """Take bytes back that were reserved; neighbours grow together."""
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
        self._transfer(memory, offset, "written", lambda part, at: os.pwritev(self._file, [part], at))

    def read(self, memory: memoryview, offset: int) -> None:
        """Fill ``memory`` (whole pages) from the file."""
        self._transfer(memory, offset, "read", lambda part, at: os.preadv(self._file, [part], at))

    def _transfer(self, memory: memoryview, offset: int, what: str, call: Callable[[memoryview, int], int]) -> None:
        done = 0
        while done < len(memory):
            try:
                moved = call(memory[done : done + _AT_ONCE], offset + done)
            except OSError as error:
                raise SlowMemoryError(f"slow_memory {self.folder}: bytes cannot be {what}: {error.strerror}") from None
            if moved <= 0:
                raise SlowMemoryError(f"slow_memory {self.folder}: the file ended early: {what} {done} of {len(memory)} bytes")
            done += moved

    def close(self) -> None:
        """Give the file back."""
        self._close()

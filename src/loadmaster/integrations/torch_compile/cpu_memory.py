"""Memory of a CPU: an arena in anonymous memory, an unlinked file that is read and written without
the page cache, and a copying thread for each direction.

The file has no name, so its space is freed when its descriptor closes, however the process ends.
It is opened with O_DIRECT, so that its pages are never in the page cache: a copy to it frees
memory, and a copy from it reads the disk. Addresses, offsets and lengths are multiples of `PAGE`.
Space is reserved (posix_fallocate) before a step needs it, so that a full disk is found early. File
systems without O_DIRECT, or that keep files in memory (tmpfs), are refused.

Operators write to the addresses of a plan because a replaced allocator gives them memory there; see
src/native/runtime. The native part relies on the binary layout of ``c10::Allocator`` of PyTorch
2.11 to 2.13. Whether the installed build has this layout is tested, first in a forked process,
which may crash, then in this one. Without it, results are copied to their addresses.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import signal
import statistics
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from loadmaster import _native
from loadmaster.core.errors import SlowMemoryError
from loadmaster.core.units import format_bytes
from loadmaster.integrations.torch_compile.captured import CPU, View, at_address, on_storage
from loadmaster.placement.sequence import CopyLink

if TYPE_CHECKING:
    from loadmaster.workloads.graph import Graph

PAGE = 4096
_TRANSFER_BYTES = 64 << 20
_MEMORY_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs"}


def pages(count: int) -> int:
    """Return a number of bytes rounded up to whole pages."""
    return -(-count // PAGE) * PAGE


class DirectFile:
    """A file that is read and written without the page cache, in whole pages. Error messages call
    it ``name``."""

    is_whole = True
    """Whether transfers beyond its end are errors."""

    def __init__(self, name: str, path: str | Path, flags: int) -> None:
        self.name = name
        self._file = os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o600)
        self.close = weakref.finalize(self, os.close, self._file)  # frees an unlinked file's space

    def write(self, memory: memoryview, offset: int) -> None:
        """Write ``memory`` to the file at ``offset`` without the interpreter lock. Raises
        `SlowMemoryError`."""
        self._transfer(os.pwritev, memory, offset, "written")

    def read(self, memory: memoryview, offset: int) -> None:
        """Fill ``memory`` from the file at ``offset``. Raises `SlowMemoryError`."""
        self._transfer(os.preadv, memory, offset, "read")

    def forget(self, offset: int, count: int) -> None:
        """Drop ``count`` bytes at ``offset`` from the page cache; they must be written to the disk,
        and their pages not mapped."""
        os.posix_fadvise(self._file, offset, count, os.POSIX_FADV_DONTNEED)

    def _transfer(
        self, call: Callable[..., int], memory: memoryview, offset: int, what: str
    ) -> None:
        """Read or write a block of the file with ``call``, in pieces; raise SlowMemoryError on
        failure."""
        done = 0
        while done < len(memory):
            try:
                moved = call(self._file, [memory[done : done + _TRANSFER_BYTES]], offset + done)
            except OSError as error:
                raise SlowMemoryError(
                    f"{self.name}: bytes cannot be {what}: {error.strerror}"
                ) from None
            done += moved
            if not moved or moved % PAGE:
                if self.is_whole:
                    raise SlowMemoryError(
                        f"{self.name}: the file ended early: {what} {done} of {len(memory)} bytes"
                    )
                break


class SlowFile(DirectFile):
    """An allocator of regions of an unlinked file in ``folder``, of at most ``limit`` bytes (None:
    no limit)."""

    def __init__(self, folder: Path | None, limit: int | None = None) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.limit = limit
        self.bytes = 0
        self.used = 0
        self._free: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        name = f"slow_memory {self.folder}"
        try:
            super().__init__(name, self.folder, os.O_TMPFILE | os.O_RDWR)
        except OSError as error:
            why = (
                "its file system has no O_DIRECT"
                if error.errno in (errno.EINVAL, errno.EOPNOTSUPP)
                else error.strerror
            )
            raise SlowMemoryError(
                f"{name}: no file can be made there ({why}): name a folder on a local disk"
            ) from None
        # `struct statfs` begins with the type of the file system; if that is unknown, 0 stays.
        status = (ctypes.c_long * 64)()
        ctypes.CDLL(None).fstatfs(self._file, status)
        if kind := _MEMORY_FILE_SYSTEMS.get(status[0]):
            raise SlowMemoryError(
                f"{name}: {kind} keeps files in memory: name a folder on a local disk"
            )

    def reserve(self, count: int) -> int:
        """Reserve ``count`` bytes (whole pages) of the file, first fit, and return their offset.
        Raises `SlowMemoryError`."""
        with self._lock:
            for i, (offset, size) in enumerate(self._free):
                if size >= count:
                    self._free[i : i + 1] = [(offset + count, size - count)] if size > count else []
                    self.used += count
                    return offset
            grows = bool(self._free) and sum(self._free[-1]) == self.bytes
            offset = self._free[-1][0] if grows else self.bytes  # a free region at the end grows
            self._extend(offset + count)
            if grows:
                self._free.pop()
            self.used += count
            return offset

    def _extend(self, size: int) -> None:
        """Grow the file to ``size`` bytes; raise SlowMemoryError if the disk or the limit does not
        allow it."""
        more = size - self.bytes
        if self.limit is not None and size > self.limit:
            raise SlowMemoryError(
                f"{self.name}: at least {format_bytes(size)} are needed, but slow_limit allows"
                f" {format_bytes(self.limit)}: raise slow_limit, or fast_memory"
            )
        try:
            if more:
                os.posix_fallocate(self._file, self.bytes, more)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self.bytes)  # undo a partial extension
            raise SlowMemoryError(
                f"{self.name}: {format_bytes(more)} more cannot be had: {error.strerror}; free"
                " space there, or name another folder by slow_memory"
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
                if merged and sum(merged[-1]) == start:
                    merged[-1] = merged[-1][0], merged[-1][1] + size
                else:
                    merged.append((start, size))
            self._free = merged

    def mapped(self, offset: int, count: int) -> mmap.mmap:
        """Map ``count`` bytes of the file at ``offset`` into memory, for access through the page
        cache."""
        return mmap.mmap(
            self._file, count, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE, offset=offset
        )


_PRESENT_OR_SWAPPED, _FILE_PAGE = np.uint64(3 << 62), np.uint64(1 << 61)
"""Bits of an entry of ``/proc/self/pagemap``: the page is present or swapped; it belongs to a
file."""


class WeightFile(DirectFile):
    """A file of weights, opened for reading. Reads may extend beyond its end."""

    is_whole = False

    def __init__(self, path: str) -> None:
        super().__init__(path, path, os.O_RDONLY)


_WEIGHT_FILES: weakref.WeakValueDictionary[tuple[int, int], WeightFile] = (
    weakref.WeakValueDictionary()
)
"""Open files of weights by device and inode; each is closed with the last tensor's place in it."""


def _open_weights(path: str, status: os.stat_result) -> WeightFile:
    """Return a file of weights. Raises `OSError` and `SlowMemoryError` if it cannot be read
    directly."""
    key = status.st_dev, status.st_ino
    file = _WEIGHT_FILES.get(key)
    if file is None:
        file = WeightFile(path)
        file.read(memoryview(mmap.mmap(-1, PAGE)), 0)
        _WEIGHT_FILES[key] = file
    return file


@dataclass(frozen=True)
class FilePlace:
    """The place of a tensor in a file of weights at ``offset``, privately mapped at ``address``."""

    file: WeightFile
    offset: int
    address: int
    bytes: int

    @property
    def shift(self) -> int:
        """Bytes from the beginning of the tensor's first page to the tensor."""
        return self.offset % PAGE

    @property
    def slot(self) -> int:
        """Offset of the tensor's first page in the file."""
        return self.offset - self.shift

    def changed(self) -> bool:
        """Return whether a page of the tensor was written, so that it is an anonymous page now.
        O(pages)."""
        first, count = self.address // PAGE, -(-(self.address % PAGE + self.bytes) // PAGE)
        with Path("/proc/self/pagemap").open("rb", buffering=0) as table:
            table.seek(8 * first)
            entries = np.frombuffer(table.read(8 * count), dtype=np.uint64)
        return bool(((entries & _PRESENT_OR_SWAPPED > 0) & (entries & _FILE_PAGE == 0)).any())

    def forget(self, changed: bool = False) -> None:
        """Drop the mapping's pages from memory. The tensor must not be `changed`; the argument
        ``changed`` is ignored."""
        start, end = pages(self.address), (self.address + self.bytes) // PAGE * PAGE
        if end > start:
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED
            )
        self.file.forget(self.slot, pages(self.shift + self.bytes))


FileMapping: TypeAlias = tuple[int, int, int, str, int]
"""A private mapping of a file into this process: first address, end address, offset in the file,
path, inode."""


def file_mappings() -> list[FileMapping]:
    """Return the private mappings of files in this process, by address. O(mappings)."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if len(words) == 6 and words[5].startswith("/") and words[1][3] == "p":
            start, end = (int(word, 16) for word in words[0].split("-"))
            found.append((start, end, int(words[2], 16), words[5], int(words[4])))
    return found


def place_in_file(address: int, bytes: int, mappings: Sequence[FileMapping]) -> FilePlace | None:
    """Return the place in a file of ``bytes`` at ``address``; None if no mapping holds all of them,
    or the file was replaced or cannot be read directly."""
    for start, end, offset, path, inode in mappings:
        if start <= address and address + bytes <= end:
            # The file may be gone, or cannot be read directly.
            with contextlib.suppress(OSError, SlowMemoryError):
                status = os.stat(path)
                if status.st_ino == inode:
                    file = _open_weights(path, status)
                    return FilePlace(file, offset + address - start, address, bytes)
    return None


class ArenaCopy(NamedTuple):
    """A copy of ``bytes`` of a tensor between offset ``offset`` of the arena and offset ``slot`` of
    the slow memory, or of ``file`` if it is not None."""

    to_fast: bool
    offset: int
    slot: int
    bytes: int
    file: DirectFile | None = None


Wait: TypeAlias = Callable[[], float]
"""Function that makes the following kernels wait for a copy. Returns the copy's seconds, 0 if not
known; raises the copy's error."""


class FastArena:
    """Fast memory of one plan: ``bytes`` from address ``base`` on."""

    bytes: int
    base: int
    device = CPU

    def tensor(self, view: View, offset: int, bytes: int) -> torch.Tensor:
        """Return the tensor of a view whose storage has ``bytes`` at ``offset``. It is valid as
        long as the arena is."""
        return on_storage(at_address(self.base + offset, bytes, self.device), view)

    def drop(self, start: int = 0) -> None:
        """Free the memory from ``start`` on until its next use, if the device can; its contents are
        lost."""


def large_pages(bytes: int) -> mmap.mmap:
    """Allocate anonymous memory in large pages, if the system has them.

    A transfer with O_DIRECT is a disk request for each physically contiguous piece of memory: 0.95
    GB/s with pages of 4 KiB, 3.0 GB/s with pages of 2 MiB.
    """
    memory = mmap.mmap(-1, bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


class Arena(FastArena):
    """An arena in anonymous memory; a page takes fast memory from its first use until `drop`."""

    def __init__(self, bytes: int) -> None:
        self.bytes = max(pages(bytes), mmap.PAGESIZE)
        self._map = large_pages(self.bytes)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._memory = memoryview(self._map)
        _native.add_arena(self.base, self.bytes)
        # Whatever PyTorch allocates at these addresses later is not the arena's.
        self._forget = weakref.finalize(self, _native.remove_arena, self.base)
        self._forget.atexit = False

    def part(self, offset: int, bytes: int) -> memoryview:
        """Return the whole pages that hold ``bytes`` at ``offset``."""
        return self._memory[offset : offset + pages(bytes)]

    def drop(self, start: int = 0) -> None:
        """Return the pages from ``start`` on to the system."""
        if pages(start) < self.bytes:
            self._map.madvise(mmap.MADV_DONTNEED, pages(start), self.bytes - pages(start))

    def close(self) -> None:
        """Unmap the memory."""
        self._forget()
        self._memory.release()
        with contextlib.suppress(BufferError):
            self._map.close()


@cache
def _mkl() -> ctypes.CDLL | None:
    """Return PyTorch's library if it has the functions of MKL (``mkl_free_buffers`` and
    ``mkl_mem_stat`` by their internal names); else None."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        library.mkl_serv_mem_stat.restype = ctypes.c_int64
        library.mkl_serv_free_buffers.restype = None
    except (OSError, AttributeError):
        return None
    return library


def library_bytes() -> int:
    """Return the bytes of MKL's buffers, in use or cached; 0 without MKL."""
    library = _mkl()
    return 0 if library is None else int(library.mkl_serv_mem_stat(ctypes.byref(ctypes.c_int())))


def free_library_buffers() -> None:
    """Free MKL's buffers that no operator uses."""
    library = _mkl()
    if library is not None:
        library.mkl_serv_free_buffers()


_TRIAL_SECONDS = 20.0
"""Seconds after which a check in a forked process counts as failed."""


@cache
def install_allocator() -> bool:
    """Install our allocator in front of PyTorch's, so that operators write to planned addresses.

    Returns whether that worked, and warns if not. Only the first call has an effect.
    """
    reason = _install_or_reason()
    if reason:
        warnings.warn(
            f"loadmaster: this build of torch ({torch.__version__}) {reason}: results are copied to"
            " their places, which takes more memory and time; temporaries of operators are not"
            " part of the plan, so budgets are estimates",
            RuntimeWarning,
            stacklevel=2,
        )
    return not reason


def _install_or_reason() -> str:
    """Install our allocator. Returns the reason if that is not possible, else an empty string."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        set_allocator = (
            ctypes.cast(library._ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh, ctypes.c_void_p).value
            or 0
        )
        standard = library._ZN3c1022GetDefaultCPUAllocatorEv
    except (OSError, AttributeError):
        return "does not let its CPU allocator be replaced"
    standard.restype = ctypes.c_void_p

    def asked() -> bool:
        """Install the allocator, and return whether it works."""
        _native.install_allocator(set_allocator, standard())
        return _allocator_works()

    if not survives(asked):
        return "has a CPU allocator of another form"
    return "" if asked() else "asks another CPU allocator than the one that was set"


def _allocator_works() -> bool:
    """Return whether scripted allocations get their addresses, and all others are recorded and
    freed."""
    spot = ctypes.create_string_buffer(256)
    address = -(-ctypes.addressof(spot) // 64) * 64
    script = _native.AllocationScript([(64, 0)])
    script.begin(address)
    planned = torch.full((64,), 7, dtype=torch.uint8)
    right = (
        not _native.end_script()
        and planned.data_ptr() == address
        and spot[address - ctypes.addressof(spot)] == b"\7"
    )
    _native.start_recording()
    kept, gone = torch.ones(1000, dtype=torch.uint8), torch.ones(2000, dtype=torch.uint8)
    address = kept.data_ptr()
    del gone
    seen = [row for row in _native.stop_recording() if row[1] in (1000, 2000)]
    grown = kept.clone().resize_(5000)
    right &= bool((grown[:1000] == 1).all()) and [row[1] for row in seen] == [1000, 2000]
    return right and seen[0][0] == address and [row[2] >= 0 for row in seen] == [False, True]


def survives(check: Callable[[], bool]) -> bool:
    """Return whether a check that may crash succeeds in a fork of this process within
    `_TRIAL_SECONDS`."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # forking with threads; the check needs no locks of theirs
        child = os.fork()
    if not child:
        verdict = 1
        try:
            signal.alarm(int(_TRIAL_SECONDS))
            verdict = 0 if check() else 1
        finally:
            os._exit(verdict)
    end = time.monotonic() + 2 * _TRIAL_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


_PROBE = 16 << 20
"""Bytes of the copies that measure the bandwidth of slow memory."""


def return_freed_blocks() -> None:
    """Return memory freed by compiling and planning to the system; glibc would keep most of it."""
    gc.collect()
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class CpuMemory:
    """Fast and slow memory of one budget on the CPU; see `SlowFile` for ``folder`` and ``limit``.

    Attributes
    ----------
    link
        Bandwidths of copies.
    shrinks
        Whether an arena can free its memory above an address while a plan runs.
    file
        File to which parameters, buffers and optimizer state are offloaded between steps; None:
        they are not offloaded.
    """

    alignment = PAGE
    shrinks = True

    def __init__(self, folder: Path | None = None, limit: int | None = None) -> None:
        self._places_results = install_allocator()
        self.file = SlowFile(folder, limit)
        self.reserve, self.release = self.file.reserve, self.file.release
        self._engines = {
            to_fast: ThreadPoolExecutor(1, "loadmaster-copy") for to_fast in (False, True)
        }
        self._free = {False: 0.0, True: 0.0}  # end of each thread's last copy
        probe = max(min(_PROBE, limit or _PROBE) // PAGE * PAGE, PAGE)
        to_slow, to_fast = (
            probe / seconds for seconds in copy_seconds(self.file, probe, repeats=1).values()
        )
        self.link = CopyLink(to_fast, to_slow, to_fast, to_slow)

    def arena(self, bytes: int) -> Arena:
        """Return an arena of ``bytes`` for a plan."""
        return Arena(bytes)

    def script(self, grants: list[tuple[int, int]]) -> _native.AllocationScript | None:
        """Return a script that makes a kernel allocate (bytes, offset) ``grants`` in order; None if
        our allocator is not installed."""
        return _native.AllocationScript(grants) if self._places_results else None

    def copy(self, arena: Any, copy: ArenaCopy) -> Wait:
        """Start a copy in the thread of its direction, after earlier copies of that direction."""
        engine = self._engines[copy.to_fast]
        return engine.submit(self._copy, arena, copy, time.perf_counter()).result

    def _copy(self, arena: Arena, copy: ArenaCopy, asked: float) -> float:
        """Make a copy that was ``asked`` for at that time, and return its seconds, including the
        time to wake up the thread."""
        start = max(asked, self._free[copy.to_fast])
        with arena.part(copy.offset, copy.bytes) as memory:
            file = copy.file or self.file
            (file.read if copy.to_fast else file.write)(memory, copy.slot)
        self._free[copy.to_fast] = end = time.perf_counter()
        return end - start

    def synchronize(self) -> None:
        """Wait until both threads are idle."""
        for engine in self._engines.values():
            engine.submit(int).result()


_MEASURED_SIZES = 12
"""Number of sizes of copies that are measured."""


@dataclass(frozen=True)
class CopyTime:
    """Median seconds of copying ``bytes`` to fast memory, or from it."""

    to_fast: bool
    bytes: int
    seconds: float


def measure_copies(graph: Graph, folder: Path, repeats: int) -> Iterator[CopyTime]:
    """Measure copies between a file in ``folder`` and memory, in both directions, with sizes of the
    graph's tensors.

    Small copies have a lower bandwidth, so sizes are taken evenly from the sorted sizes of all
    tensors: the sum of bytes over the sum of seconds is the mean bandwidth for this graph.

    Raises :class:`~loadmaster.core.errors.SlowMemoryError` if the folder cannot hold slow memory.
    """
    every = sorted(t.bytes for t in graph.tensors.values() if t.alias_of is None and t.bytes)
    count = min(len(every), _MEASURED_SIZES)
    file = SlowFile(folder)
    try:
        for rank in range(count):
            size = every[(2 * rank + 1) * len(every) // (2 * count)]
            for to_fast, seconds in copy_seconds(file, size, repeats).items():
                yield CopyTime(to_fast, size, seconds)
    finally:
        file.close()


def copy_seconds(file: SlowFile, size: int, repeats: int) -> dict[bool, float]:
    """Return the median seconds of copying ``size`` bytes, in whole pages, to the file (key False)
    and from it (True); the first copy does not count."""
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

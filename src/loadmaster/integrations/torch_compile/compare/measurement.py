"""How much fast memory a step takes: anonymous resident memory of this process on the CPU, the
allocator's peak on CUDA."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

STATED = 8 << 20
"""Bytes that a process takes outside of the plan: Python objects, tables of the kernels' libraries,
stacks of threads."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of these options of glibc's ``mallopt``."""
_SMALL, _LARGE = 128 << 10, 32 << 20
"""Bytes of a freed block from which on glibc returns it to the system: in a new process, and at
most."""


def return_freed_memory() -> None:
    """Have glibc return freed blocks of 128 KiB and more to the system at once; otherwise they
    count until the process ends."""
    _set_thresholds(_SMALL)


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for later allocations, as it does by itself in a process that
    allocates much."""
    _set_thresholds(_LARGE)


def _set_thresholds(bytes: int) -> None:
    library = ctypes.CDLL(None)
    for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        library.mallopt(option, bytes)


def status_bytes(process: int | str = "self") -> dict[str, int]:
    """What the kernel says of a process's memory, in bytes: `RssAnon`, `VmHWM` and the like."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        words[0].rstrip(":"): int(words[1]) * 1024
        for words in lines
        if len(words) == 3 and words[2] == "kB"
    }


@dataclass
class Peak:
    """The most ``bytes`` above those at the start, set when the measured block has ended."""

    bytes: int = 0


@contextmanager
def peak_of(device: torch.device) -> Iterator[Peak]:
    """Measure the peak of what runs inside, above what is there when it starts.

    On the CPU the kernel's own high-water mark is reset and read (VmHWM, less mapped files and
    shared memory): nothing is sampled, and nothing that is short escapes.
    """
    peak = Peak()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    start = status_bytes()
    yield peak
    end = status_bytes()
    shared = max(end["RssFile"] + end["RssShmem"], start["RssFile"] + start["RssShmem"])
    peak.bytes = end["VmHWM"] - shared - start["RssAnon"]

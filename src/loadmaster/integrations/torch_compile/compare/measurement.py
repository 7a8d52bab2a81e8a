"""How much fast memory a step takes: anonymous resident memory of this process on the CPU, the allocator's peak on CUDA."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

STATED = 8 << 20
"""Bytes that a process takes beside the plan: Python objects, tables of the kernels' libraries, stacks of threads."""

_STATUS = Path("/proc/self/status")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_SMALL, _LARGE = 128 << 10, 32 << 20


def return_freed_memory() -> None:
    """Have glibc give freed memory back to the system at once, from 128 KiB on: else it counts for as long as the process lives."""
    _set_thresholds(_SMALL)


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for the next who asks, as it comes to do by itself in a process that allocates much."""
    _set_thresholds(_LARGE)


def _set_thresholds(bytes: int) -> None:
    library = ctypes.CDLL(None)
    for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        library.mallopt(option, bytes)


def _fields() -> dict[str, int]:
    lines = (line.split() for line in _STATUS.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3 and words[2] == "kB"}


@dataclass
class Peak:
    """Most bytes above those at the start, once the measured block has ended."""

    bytes: int = 0


@contextmanager
def peak_of(device: torch.device) -> Iterator[Peak]:
    """Measure the peak of what runs inside, above what is there when it starts.

    On the CPU the kernel's own high-water mark is reset and read (VmHWM, less mapped files and shared memory): nothing is sampled, and
    nothing that is short escapes.
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
    start = _fields()
    yield peak
    end = _fields()
    shared = max(end["RssFile"] + end["RssShmem"], start["RssFile"] + start["RssShmem"])
    peak.bytes = end["VmHWM"] - shared - start["RssAnon"]

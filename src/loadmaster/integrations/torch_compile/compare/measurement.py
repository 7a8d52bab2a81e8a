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

from loadmaster.integrations.torch_compile.cpu_memory import return_freed_blocks

STATED = 8 << 20
"""Bytes that a process may take outside of the plan: Python objects, tables of kernel libraries,
stacks of threads."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of the options M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's ``mallopt``."""
_SMALL, LARGE = 128 << 10, 32 << 20
"""Least and greatest threshold in bytes from which on glibc returns freed blocks to the system; it
uses the greatest by itself in a process that allocates much."""


def return_freed_memory(least: int = _SMALL) -> None:
    """Make glibc return freed blocks of at least ``least`` bytes to the system at once, so that
    they do not count in later peaks."""
    library = ctypes.CDLL(None)
    for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        library.mallopt(option, least)


def status_bytes(process: int | str = "self") -> dict[str, int]:
    """Return the memory fields of ``/proc/PROCESS/status`` (``RssAnon``, ``VmHWM``, ...) in
    bytes."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        words[0].rstrip(":"): int(words[1]) * 1024
        for words in lines
        if len(words) == 3 and words[2] == "kB"
    }


class HighWater:
    """The Linux kernel's high-water mark of a process's memory since this object was made, without
    mapped files and shared memory. It is not sampled, so no short peak is missed."""

    def __init__(self, process: int | str = "self") -> None:
        Path(f"/proc/{process}/clear_refs").write_text("5")
        self._process, self.before = process, status_bytes(process)

    def bytes(self) -> int:
        """Return the most bytes so far."""
        now = status_bytes(self._process)
        return now["VmHWM"] - max(one["RssFile"] + one["RssShmem"] for one in (now, self.before))


@dataclass
class MeasuredPeak:
    """Peak in bytes above the start of a measured block, set at its end."""

    bytes: int = 0


@contextmanager
def peak_of(device: torch.device) -> Iterator[MeasuredPeak]:
    """Measure the peak of the memory that the block takes above its start."""
    peak = MeasuredPeak()
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before
        return
    return_freed_blocks()
    mark = HighWater()
    yield peak
    peak.bytes = mark.bytes() - mark.before["RssAnon"]

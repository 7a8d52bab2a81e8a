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
"""Bytes that a process takes outside of the plan: Python objects, tables of the kernels' libraries,
stacks of threads."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Numbers of these options of glibc's ``mallopt``."""
_SMALL, _LARGE = 128 << 10, 32 << 20
"""Bytes of a freed block from which on glibc returns it to the system: in a new process, and at
most."""


def return_freed_memory(least: int = _SMALL) -> None:
    """Have glibc return freed blocks of 128 KiB, or ``least`` bytes, and more to the system at
    once; otherwise they count until the process ends."""
    library = ctypes.CDLL(None)
    for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
        library.mallopt(option, least)


def keep_freed_memory() -> None:
    """Have glibc keep freed memory for later allocations, as it does by itself in a process that
    allocates much."""
    return_freed_memory(_LARGE)


def status_bytes(process: int | str = "self") -> dict[str, int]:
    """What the kernel says of a process's memory, in bytes: `RssAnon`, `VmHWM` and the like."""
    lines = (line.split() for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return {
        words[0].rstrip(":"): int(words[1]) * 1024
        for words in lines
        if len(words) == 3 and words[2] == "kB"
    }


class HighWater:
    """The kernel's own high-water mark of a process's memory, less mapped files and shared memory,
    from when this is made: nothing is sampled, and nothing that is short escapes."""

    def __init__(self, process: int | str = "self") -> None:
        Path(f"/proc/{process}/clear_refs").write_text("5")
        self._process, self.before = process, status_bytes(process)

    def bytes(self) -> int:
        """The most bytes so far."""
        now = status_bytes(self._process)
        return now["VmHWM"] - max(one["RssFile"] + one["RssShmem"] for one in (now, self.before))


@dataclass
class Peak:
    """The most ``bytes`` above those at the start, set when the measured block has ended."""

    bytes: int = 0


@contextmanager
def peak_of(device: torch.device) -> Iterator[Peak]:
    """Measure the peak of what runs inside, above what is there when it starts."""
    peak = Peak()
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

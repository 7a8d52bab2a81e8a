"""The interface of a device to the executor: a fast arena, a slow memory, and asynchronous copies
between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from loadmaster.integrations.torch_compile.captured import View
from loadmaster.integrations.torch_compile.devices.slow_file import SlowFile, WeightFile
from loadmaster.placement.sequence import CopyLink


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

"""What the executor asks of a device: a fast arena, a slow memory, and copies between them that can be waited for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from loadmaster.integrations.torch_compile.captured import View
from loadmaster.integrations.torch_compile.devices.slow_file import SlowFile
from loadmaster.placement.sequence import CopyLink


class Copy(NamedTuple):
    """``bytes`` of a tensor between ``offset`` in the arena and ``slot`` in the slow memory."""

    to_fast: bool
    offset: int
    slot: int
    bytes: int


class FastArena(Protocol):
    """Fast memory of one plan."""

    bytes: int
    base: int

    def tensor(self, view: View, offset: int, bytes: int) -> torch.Tensor:
        """The tensor of a storage of ``bytes`` at ``offset``."""

    def drop(self, start: int = 0) -> None:
        """Give memory from ``start`` on back until it is used again; its contents are lost."""

    def close(self) -> None:
        """Give all memory back for good."""


class Pending(Protocol):
    """A copy under way."""

    def wait(self) -> float:
        """Let what is computed next see the copy; its seconds, as far as they are known. Raises what the copy raised."""


class DeviceMemory(Protocol):
    """Fast and slow memory of one budget."""

    link: CopyLink
    alignment: int
    shrinks: bool
    """Whether an arena can give back what is above an address, for results that need the room."""

    @property
    def file(self) -> SlowFile | None:
        """Where tensors of PyTorch's own may rest between steps, if anywhere."""

    def arena(self, bytes: int) -> FastArena:
        """Fast memory for a plan."""

    def script(self, grants: Sequence[tuple[int, int]]) -> Any:
        """What lets a kernel allocate at planned offsets (``begin(base)``), or None where that is not possible."""

    def reserve(self, bytes: int) -> int:
        """Slow memory for a step. Raises `SlowMemoryError`."""

    def release(self, slot: int, bytes: int) -> None:
        """Take it back."""

    def copy(self, arena: FastArena, copy: Copy) -> Pending:
        """Start a copy, after those that were started before in the same direction and after the kernels so far."""

    def settle(self) -> None:
        """Wait for every copy that was started, also those that an interrupt has made their owners forget."""

    def close(self) -> None:
        """Give everything back."""

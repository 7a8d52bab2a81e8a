"""Readers of dumps by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.core.errors import AllocationError
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    pass

Reader = Callable[[Path], "list[Arena]"]
"""Function that reads the arenas of a dump from its path."""

READERS: Registry[Reader] = Registry(
    "loadmaster.integrations.dumps.readers", "READER", "planner", AllocationError
)

"""Readers of dumps by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.core.errors import AllocationError
from loadmaster.core.names import unique_names
from loadmaster.core.registry import Registry

if TYPE_CHECKING:
    from loadmaster.integrations.dumps.arena import DumpedArena

Reader = Callable[[Path], "list[DumpedArena]"]
"""Function that reads the arenas of a dump from its path."""

READERS: Registry[Reader] = Registry(
    "loadmaster.integrations.dumps.readers", "READER", "planner", AllocationError
)


def read_dump(planner: str, path: Path) -> list[DumpedArena]:
    """Return the arenas of a planner's dump, with a number after names that are taken."""
    arenas = READERS.find(planner)(path)
    names = unique_names(arena.name for arena in arenas)
    return [replace(arena, name=name) for arena, name in zip(arenas, names, strict=True)]

"""Readers of dumps by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loadmaster.core.errors import AllocationError
from loadmaster.core.registry import Registry
from loadmaster.integrations.dumps.arena import Arena

Reader = Callable[[Path], list[Arena]]

READERS: Registry[Reader] = Registry("loadmaster.integrations.dumps.readers", "READER", "planner", AllocationError)

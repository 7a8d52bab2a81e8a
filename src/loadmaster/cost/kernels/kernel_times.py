"""The file of measured kernel times (sqlite): seconds by the call, the places of its operands, and
the machine."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from loadmaster.core.errors import PlacementError
from loadmaster.core.store import Store
from loadmaster.cost.cache import default_place
from loadmaster.workloads.graph import Graph, Invocation, Op

MOST_MOVED = 4
"""The most operands that are measured in both memories, the largest ones: up to 16 measurements a
kernel."""
SMALLEST_MOVED = 2**16
"""Bytes below which an operand is measured in the fast memory only, as the difference is less than
the noise."""


def conditions(threads: int) -> tuple[int, str, str]:
    """Return the conditions of a measurement in this process besides the call: threads, release of
    torch, and processor."""
    from importlib.metadata import version

    return threads, version("torch"), processor()


@cache
def processor() -> str:
    """Return the model of the processor, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "unknown",
    )


@dataclass(frozen=True, slots=True)
class Case:
    """A call to measure, with the storages that its tensors are in.

    ``storages`` are their names, ``bytes`` their sizes; tensor ``i``, arguments before results, is
    in ``storage_of[i]``; ``moved`` are the storages that are measured in both memories.
    """

    invocation: Invocation
    storages: tuple[str, ...]
    bytes: tuple[int, ...]
    storage_of: tuple[int, ...]
    moved: tuple[int, ...]

    def key(self, slow: Sequence[int], setting: tuple[int, str, str]) -> str:
        """Return the key of a measurement with the storages ``slow`` in the slow memory."""
        said = [self.invocation.text, self.storage_of, sorted(slow), *setting]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()

    @property
    def combinations(self) -> list[tuple[int, ...]]:
        """Return the sets of storages to measure in the slow memory, the empty one first."""
        return [
            tuple(storage for bit, storage in enumerate(self.moved) if mask >> bit & 1)
            for mask in range(2 ** len(self.moved))
        ]


def case_of(graph: Graph, op: Op) -> Case | None:
    """Return the case to measure for an operator, or None if it cannot be run by itself."""
    call = op.invocation
    if call is None:
        return None
    owners = [graph.tensors[name].storage for name in (*call.arguments, *call.results)]
    storages = tuple(dict.fromkeys(owners))
    sizes = tuple(graph.tensors[name].bytes for name in storages)
    largest = sorted(
        (i for i, size in enumerate(sizes) if size >= SMALLEST_MOVED), key=lambda i: -sizes[i]
    )[:MOST_MOVED]
    return Case(
        call,
        storages,
        sizes,
        tuple(storages.index(owner) for owner in owners),
        tuple(sorted(largest)),
    )


class KernelTimes:
    """Measured seconds in one sqlite file, which several processes may share."""

    def __init__(self, place: Path) -> None:
        self._store = Store(place, "times")

    def all(self) -> dict[str, tuple[float, str]]:
        """Read all measurements: seconds and the kind of slow memory, by key."""
        return {
            key: (row["seconds"], row["slow"])
            for key, content in self._store.all().items()
            for row in [json.loads(content)]
        }

    def put(self, key: str, slow: str, seconds: float) -> None:
        """Write one measurement at once, so that an interrupted profile can continue."""
        self._store.put(key, json.dumps({"slow": slow, "seconds": seconds}).encode())


def default_threads() -> int:
    """Return the number of threads that torch uses by default."""
    import torch

    return int(torch.get_num_threads())


def profile_place() -> Path:
    """Return the path of the file of measured times, which is that of the cache of job analyses.

    Raises :class:`~loadmaster.core.errors.PlacementError` where ``LOADMASTER_CACHE`` turns it off.
    """
    place = default_place()
    if place is None:
        raise PlacementError(
            "LOADMASTER_CACHE is empty, and measured times need a file: set it to a file's name"
        )
    return place

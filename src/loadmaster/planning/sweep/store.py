"""Stores points of sweeps in an sqlite file, keyed by content, so that a stopped sweep can be
resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadmaster.core.errors import Violation
from loadmaster.core.store import Store
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph


def networks_key(graphs: Sequence[Graph]) -> str:
    """Digest of the content of networks, and of the code that plans them."""
    parts = [
        [getattr(graph, part.name) for part in fields(graph) if part.name != "source"]
        for graph in graphs
    ]
    return hashlib.sha256(_code() + repr(parts).encode()).hexdigest()


def point_key(networks: str, options: Mapping[str, Any], target: Target) -> str:
    """Digest of one point: the key of its networks, how they are planned, and its machine."""
    return hashlib.sha256(f"{networks} {sorted(options.items())!r} {target!r}".encode()).hexdigest()


@lru_cache(maxsize=1)
def _code() -> bytes:
    """Digest of the package, native code included, so that points of other versions are not
    reused."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in code_files())).digest()


def code_files() -> list[Path]:
    """Files of the package, Python and native, in order."""
    from loadmaster import _native

    return sorted([*Path(__file__).parents[2].rglob("*.py"), Path(_native.__file__)])


class SweepStore:
    """A store of points in one file, which several processes may share."""

    def __init__(self, place: Path) -> None:
        self._store = Store(place, "plans")
        self._store.all()

    def get(self, key: str) -> DesignPoint | None:
        """Return the point with this key, or None."""
        content = self._store.get(key)
        if content is None:
            return None
        found = json.loads(content)
        return DesignPoint(
            **found | {"violations": tuple(Violation(**each) for each in found["violations"])}
        )

    def put(self, key: str, point: DesignPoint) -> None:
        """Store a point; it is on disk when this returns."""
        self._store.put(key, json.dumps(asdict(point)).encode())

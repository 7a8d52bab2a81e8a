"""Stores points of sweeps in an sqlite file, keyed by content, so that a stopped sweep can be
resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from loadmaster.core.errors import Violation
from loadmaster.core.store import Store
from loadmaster.cost.cache import code_digest
from loadmaster.planning.sweep.points import DesignPoint
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph


def networks_key(graphs: Sequence[Graph]) -> str:
    """Digest of the content of networks, and of the code that plans them."""
    parts = [
        [getattr(graph, part.name) for part in fields(graph) if part.name != "source"]
        for graph in graphs
    ]
    return hashlib.sha256(f"{code_digest()} {parts!r}".encode()).hexdigest()


def point_key(networks: str, options: Mapping[str, Any], target: Target) -> str:
    """Digest of one point: the key of its networks, how they are planned, and its machine."""
    return hashlib.sha256(f"{networks} {sorted(options.items())!r} {target!r}".encode()).hexdigest()


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

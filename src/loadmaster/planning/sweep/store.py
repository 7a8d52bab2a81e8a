"""Points of sweeps in an sqlite file, by content, so that a sweep that was stopped goes on where it
was."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from loadmaster.core.errors import OutputError
from loadmaster.planning.sweep.points import DesignPoint, point_from
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph

_LOCK_SECONDS = 10.0
"""Seconds to wait for another process that is writing."""
_SCHEMA = "CREATE TABLE IF NOT EXISTS points (key TEXT PRIMARY KEY, content TEXT NOT NULL)"


def networks_key(graphs: Sequence[Graph]) -> str:
    """Digest of networks, wherever they were read from, and of the code that plans."""
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
    """Digest of the package, native code included: what another version planned is not taken for
    this one's."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in code_files())).digest()


def code_files() -> list[Path]:
    """Files of the package, Python and native, in order."""
    from loadmaster import _native

    return sorted([*Path(__file__).parents[2].rglob("*.py"), Path(_native.__file__)])


class SweepStore:
    """Points in one file, which several processes may share."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._run(_SCHEMA)

    def get(self, key: str) -> DesignPoint | None:
        """What was put there under this key, or None."""
        rows = self._run("SELECT content FROM points WHERE key = ?", key)
        return point_from(json.loads(rows[0][0])) if rows else None

    def put(self, key: str, point: DesignPoint) -> None:
        """Keep a point; it is on the disk when this returns."""
        self._run("INSERT OR REPLACE INTO points VALUES (?, ?)", key, json.dumps(asdict(point)))

    def _run(self, statement: str, *values: str) -> list[Any]:
        try:
            with (
                closing(sqlite3.connect(self._place, timeout=_LOCK_SECONDS)) as connection,
                connection,
            ):
                return connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise OutputError(
                f"{self._place}: cannot keep the points of a sweep: {error}: remove it, or choose"
                " another --out"
            ) from None

"""Bytes by key in an sqlite file: what was costly to find is kept, and looked up by its content."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from loadmaster.core.errors import OutputError

_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True)
class Store:
    """Bytes by key in a table of a file, which several processes may share.

    Entries are kept with their digests: one that is damaged is as if it were not there. All methods
    raise OutputError where the file cannot be opened, read or written.

    Parameters
    ----------
    place : Path
        The file; it is made when something is put there first.
    table : str
        The table, an identifier.
    limit : int, optional
        Bytes that are kept at most: the oldest entries make room.
    wait : float
        Seconds to wait for another process that is writing.
    """

    place: Path
    table: str
    limit: int | None = None
    wait: float = 10.0

    def get(self, key: str) -> bytes | None:
        """The entry of a key, or None."""
        return self.all("WHERE key = ?", key).get(key)

    def all(self, where: str = "", *values: str) -> dict[str, bytes]:
        """All entries, or those of a condition in SQL. O(entries)."""
        if not os.path.exists(self.place):
            return {}
        with self._connected() as connection:
            rows = connection.execute(f"SELECT key, content FROM {self.table} {where}", values)
            return {key: own for key, content in rows if (own := _sound(content)) is not None}

    def put(self, key: str, content: bytes) -> None:
        """Keep an entry, on the disk when this returns; one of the same key goes."""
        with self._connected() as connection:
            kept = hashlib.sha256(content).digest() + content
            connection.execute(f"INSERT OR REPLACE INTO {self.table} VALUES (?, ?)", (key, kept))
            if self.limit is not None:
                connection.execute(
                    f"DELETE FROM {self.table} WHERE rowid IN (SELECT row FROM (SELECT rowid AS"
                    " row, sum(length(content)) OVER (ORDER BY rowid DESC) AS bytes FROM"
                    f" {self.table}) WHERE bytes > ?)",
                    (self.limit,),
                )

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Open the database with the table; report failures as OutputError."""
        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            with (
                closing(sqlite3.connect(self.place, timeout=self.wait)) as connection,
                connection,
            ):
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {self.table}"
                    " (key TEXT PRIMARY KEY, content BLOB NOT NULL)"
                )
                yield connection
        except (sqlite3.Error, OSError) as error:
            cure = "wait for the process that uses it" if "locked" in str(error) else "remove it"
            raise OutputError(
                f"{self.place}: cannot keep results in this file: {error}: {cure}, or name another"
            ) from None


def _sound(content: object) -> bytes | None:
    """An entry less its digest, unless it is damaged."""
    if not isinstance(content, bytes):
        return None
    own = content[_DIGEST:]
    return own if hashlib.sha256(own).digest() == content[:_DIGEST] else None

"""A cache of job analyses in an sqlite file, by content: equal work on equal cores and memories is
analysed once.

Nothing depends on the file: where it cannot be opened, read or written, or holds anything else than
what was put there, work is done again.
"""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.core.errors import OutputError
from loadmaster.core.store import Store
from loadmaster.cost.base import JobAnalysis, kind_key
from loadmaster.targets.hardware import Core, Memory, Target
from loadmaster.workloads.job import Job

_VARIABLE = "LOADMASTER_CACHE"
_LARGEST = 2**28
"""Bytes kept at most; the oldest analyses are deleted."""
_LOCK_SECONDS = 0.5
"""Seconds to wait for another process that is writing."""


def default_place() -> Path | None:
    """Return the file that ``LOADMASTER_CACHE`` names, None if that is empty; without it, one in
    the user's folder for caches."""
    if _VARIABLE in os.environ:
        return Path(os.environ[_VARIABLE]) if os.environ[_VARIABLE] else None
    try:
        home = Path.home()
    except RuntimeError:
        return None
    usual = {"darwin": home / "Library" / "Caches", "win32": home / "AppData" / "Local"}.get(
        sys.platform, home / ".cache"
    )
    return Path(os.environ.get("XDG_CACHE_HOME") or usual) / "loadmaster" / "job-analyses.sqlite"


def code_files() -> list[Path]:
    """Return the files of the package, Python and native, in order."""
    from loadmaster import _native

    return sorted([*Path(__file__).parents[1].rglob("*.py"), Path(_native.__file__)])


@cache
def code_digest() -> str:
    """Return the digest of the package's code, so that what another version has kept is not
    used."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in code_files())).hexdigest()


def work_key(model: str, jobs: Iterable[Job], target: Target) -> str:
    """Return the key of an analysis: all of jobs, cores and memories but their names, and the
    code."""
    digest = _new_hash(model)
    parts: list[Core | Memory] = [*target.cores, *target.memories]
    for part in parts:
        digest.update(kind_key(part).encode())
    for job in jobs:
        operands = [(each.bytes, each.role, each.nest) for each in (*job.reads, *job.writes)]
        work = (job.kind, job.nests, job.elements, job.bits, len(job.reads), operands)
        digest.update(repr(work).encode())
    return digest.hexdigest()


def text_key(text: str) -> str:
    """Return the key of a table that was read from text."""
    return _new_hash(f"text {text}").hexdigest()


def _new_hash(what: str) -> hashlib._Hash:
    """Return a hash that depends on the code."""
    return hashlib.sha256(f"{what} {code_digest()} ".encode())


def cached(
    place: str | Path | None,
    large: bool,
    key: Callable[[], str],
    make: Callable[[], JobAnalysis],
) -> JobAnalysis:
    """Return the analysis that a file has under a key; without one it is made and, if the file can
    be written, kept there. The oldest are deleted where it is full. Without a file, large analyses
    are kept at the default place."""
    if place is None and large:
        place = default_place()
    if place is None:
        return make()
    store, name, content = Store(Path(place), "costs", _LARGEST, _LOCK_SECONDS), key(), None
    with suppress(OutputError):
        content = store.get(name)
    if content is not None:
        return _analysis_of(content)
    found = make()
    with suppress(OutputError):
        store.put(name, _bytes_of(found))
    return found


def _bytes_of(analysis: JobAnalysis) -> bytes:
    """Return a job analysis as an .npz file, without its provenance."""
    # Where costs come from, those who look them up know: names of targets and files are no part of
    # the key.
    columns: dict[str, Any] = {
        name: np.asarray(value)
        for name, value in vars(analysis).items()
        if value is not None and name != "provenance"
    }
    file = io.BytesIO()
    np.savez(file, **columns)
    return file.getvalue()


def _analysis_of(content: bytes) -> JobAnalysis:
    """Return the job analysis in an .npz file."""
    with np.load(io.BytesIO(content), allow_pickle=False) as columns:
        values: dict[str, Any] = dict(columns)
    values |= {name: tuple(values[name].tolist()) for name in ("jobs", "cores")}
    if "clock" in values:
        values["clock"] = float(values["clock"])
    return JobAnalysis(**values)

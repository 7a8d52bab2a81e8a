"""What users see of a finished plan: an HTML page, a Perfetto trace and a summary in the terminal.

Drawing libraries are loaded when something is drawn, so that importing the package costs nothing.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.core.errors import OutputError

if TYPE_CHECKING:
    from loadmaster.planning.plan_records import PlanRecord

__all__ = ["write_report"]


def write_report(plan: PlanRecord, directory: Path) -> list[Path]:
    """Write ``report.html`` and ``trace.pftrace`` into ``directory``, which is made if need be, and return their paths.

    The same plan gives the same bytes. Raises :class:`~loadmaster.core.errors.OutputError` if a file cannot be written; a file is replaced
    as a whole or not at all.
    """
    from loadmaster.report.html import render_page
    from loadmaster.report.perfetto import render_trace

    contents = {"report.html": render_page(plan).encode(), "trace.pftrace": render_trace(plan)}
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{directory}: cannot make this directory for the report: {error.strerror or error}") from error
    return [_replace(directory / name, content) for name, content in contents.items()]


def _replace(path: Path, content: bytes) -> Path:
    """Put ``content`` at ``path`` in one step, by way of a neighbouring file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_bytes(content)
        os.replace(draft, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot write the report: {error.strerror or error}") from error
    finally:
        draft.unlink(missing_ok=True)
    return path

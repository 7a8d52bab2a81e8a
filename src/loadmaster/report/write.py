"""Writes the reports of a finished plan: an HTML page and a trace.

Drawing libraries are loaded on first use.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.core.errors import OutputError
from loadmaster.core.files import replace_files

if TYPE_CHECKING:
    from loadmaster.planning.plan_records import PlanRecord


def write_report(plan: PlanRecord, directory: Path) -> list[Path]:
    """Write ``report.html`` and ``trace.json.gz`` into ``directory``, which is created if missing,
    and return their paths.

    Equal plans give equal bytes. Raises :class:`~loadmaster.core.errors.OutputError` if a file
    cannot be written; a file is replaced as a whole or not at all.
    """
    from loadmaster.report.page import render
    from loadmaster.report.plan import plan_page
    from loadmaster.report.trace import render_trace

    page, trace = render(plan_page(plan)), render_trace(plan)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{directory}: cannot make this directory for the report: {error.strerror or error}"
        ) from error
    what = "the report"
    return replace_files(
        [(directory / "report.html", page, what), (directory / "trace.json.gz", trace, what)]
    )

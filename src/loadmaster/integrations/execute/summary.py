"""The summary of an execution in the terminal."""

from __future__ import annotations

from dataclasses import astuple

from loadmaster.integrations.execute.execution import Execution
from loadmaster.report.text import plural
from loadmaster.report.view import Line, Notes, PagePart, table


def execution_summary(found: Execution) -> list[PagePart]:
    """Return a table of outputs, with a line on the run above and remarks below."""
    title = (
        f"{found.jobs} jobs and {found.copies} copies in {found.orders} orders (seed {found.seed}),"
        f" operators of {found.runtime}; outputs against the model run in one go:"
    )
    rows = [
        [f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in astuple(row)]
        for row in found.outputs
    ]
    columns = ("network", ">mini-batch", "output", "type", ">elements", ">difference", ">at most")
    notes = []
    if found.width > 1:
        notes.append(
            f"The model computes in wider types than the plan: {found.width} bytes stand for each"
            " byte of the plan."
        )
    if found.drawn:
        notes.append(
            f"Random values stand for {plural(found.drawn, 'weight')} that no file beside the model"
            " has in full."
        )
    return [Line(title), table(columns, rows), Notes(notes)]

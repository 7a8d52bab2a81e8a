"""``loadmaster report``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import NoReport, out_to, plan_file
from loadmaster.cli.output import Output, publish
from loadmaster.cli.printing import versioned
from loadmaster.core.errors import PlanError

FOLDER = Path("loadmaster-report")
"""Where files go unless told."""


def report_command(
    first: Annotated[
        Path, typer.Argument(metavar="PLAN.json", help="A plan that `loadmaster plan` wrote.")
    ],
    second: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER.json]", help="The plan that is set beside it. Default: none."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        out_to(
            "Where report.html and trace.pftrace, or comparison.html, go. Default:"
            " loadmaster-report, or with `--json` nowhere."
        ),
    ] = None,
    no_report: NoReport = False,
    *,
    output: Output,
) -> None:
    """Draw the page of a plan, or set two side by side: figures, schedules, links and memories over
    one time axis.

    Plans may be of other machines, networks or options; what one has and the other has not is left
    empty.

    Example: `loadmaster report small --out page`, or `loadmaster report small/plan.json
    large/plan.json --out compared`
    """
    from loadmaster.core.files import directory_if_asked
    from loadmaster.planning.plan import Plan
    from loadmaster.report.comparison import (
        ComparisonJson,
        comparison_json,
        comparison_page,
        comparison_summary,
    )
    from loadmaster.report.plan import plan_summary

    folder = None if no_report or (output.as_json and out is None) else out or FOLDER
    if second is None and output.as_json:
        raise PlanError(
            "report: --json says how two plans differ: give OTHER.json, or read PLAN.json"
        )
    plan = Plan.load(plan_file(first))
    other = None if second is None else Plan.load(plan_file(second))
    with directory_if_asked(folder) as place:
        if other is None and place is not None:
            plan.report(place.draft)
        page = partial(comparison_page, plan, other) if other is not None else None
        files = publish(place, {}, page, "comparison.html")
    if other is None:
        output.show({}, lambda: plan_summary(plan), files)
        return
    shown = versioned(ComparisonJson, comparison_json(plan, other))
    output.show(shown, lambda: comparison_summary(plan, other), files)

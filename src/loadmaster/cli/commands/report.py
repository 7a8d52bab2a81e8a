"""``loadmaster report``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from loadmaster.cli.options import out_to, plan_file
from loadmaster.cli.output import PageOutput, versioned
from loadmaster.core.errors import PlanError

FOLDER = Path("loadmaster-report")
"""Default folder of files."""


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
            "Where report.html and trace.json.gz, or comparison.html, go. Default:"
            " loadmaster-report, or with `--json` nowhere."
        ),
    ] = None,
    *,
    output: PageOutput,
) -> None:
    """Draw the page of a plan, or of two plans side by side: figures, schedules, links and memories
    over one time axis.

    The plans may have different machines, networks or options; figures that only one has are left
    empty for the other.

    Example: `loadmaster report small --out page`, or `loadmaster report small/plan.json
    large/plan.json --out compared`
    """
    from loadmaster.core.files import directory_if_asked
    from loadmaster.planning.plan import Plan
    from loadmaster.planning.verify.plan import verify
    from loadmaster.report.comparison import ComparisonJson, comparison_json, comparison_page
    from loadmaster.report.plan import plan_page

    folder = None if output.no_report or (output.as_json and out is None) else out or FOLDER
    if output.as_json and not second:
        raise PlanError(
            "report: --json says how two plans differ: give OTHER.json, or read PLAN.json"
        )
    plans, shown = [], {}
    for file in filter(None, (first, second)):
        plans.append(Plan.load(plan_file(file)))
        # Pages lean on what plans must keep.
        for wrong in verify(plans[-1]):
            raise PlanError(f"{file}: the plan does not hold: {wrong.rule}: {wrong.message}")
    page = partial(plan_page, plans[0])
    if second:
        shown = versioned(ComparisonJson, comparison_json(*plans))
        page = partial(comparison_page, *plans)
    with directory_if_asked(folder) as place:
        if place and not second:
            plans[0].report(place.draft)
        files = output.publish(place, {}, page if second else None, "comparison.html")
    output.show(shown, page, files)

"""``loadmaster report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.options import Json, NoReport, Quiet, out_to
from loadmaster.cli.printing import print_results, versioned

if TYPE_CHECKING:
    from loadmaster.core.files import OutputDirectory
    from loadmaster.planning.plan import Plan

FOLDER = Path("loadmaster-report")
"""Where files go unless told."""


def report_command(
    first: Annotated[
        Path, typer.Argument(metavar="PLAN.json", help="A plan that `loadmaster plan` wrote.")
    ],
    second: Annotated[
        Path, typer.Argument(metavar="OTHER.json", help="The plan that is set beside it.")
    ],
    out: Annotated[
        Path | None,
        out_to("Where comparison.html goes. Default: loadmaster-report, or with `--json` nowhere."),
    ] = None,
    no_report: NoReport = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Set two plans side by side: figures, schedules, links and memories over one time axis.

    Plans may be of other machines, networks or options; what one has and the other has not is left
    empty.

    Example: `loadmaster report small/plan.json large/plan.json --out compared`
    """
    from loadmaster.core.files import directory_if_asked
    from loadmaster.planning.plan import Plan
    from loadmaster.report.comparison import comparison_json, comparison_summary

    plans = Plan.load(first), Plan.load(second)
    with directory_if_asked(
        None if no_report or (as_json and out is None) else out or FOLDER
    ) as place:
        files = [] if place is None else _write(plans, place)
    shown = versioned("report", comparison_json(*plans))
    print_results(shown, lambda: [comparison_summary(*plans)], files, as_json=as_json, quiet=quiet)


def _write(plans: tuple[Plan, Plan], place: OutputDirectory) -> list[Path]:
    from loadmaster.report.comparison_page import render_comparison

    place.write("comparison.html", render_comparison(*plans))
    return place.publish()

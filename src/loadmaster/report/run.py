"""The summary of a run in the terminal: a row for each way to run the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from loadmaster.core.units import format_bytes, format_seconds

COLUMNS = ("", ">step", ">measured peak", ">planned", ">loadmaster at this peak", "against it")


def run_summary(result: Mapping[str, Any]) -> RenderableType:
    """Make a table with a row for each way to run the step, and say whether results were equal."""
    budget = result["budget"]
    table = Table(title=None if budget is None else f"budget {format_bytes(budget)}")
    for column in COLUMNS:
        table.add_column(
            column.removeprefix(">"), justify="right" if column.startswith(">") else "left"
        )
    for row in run_rows(result):
        table.add_row(*row)
    equal = "DIFFER"
    if result["gradients_equal"]:
        equal = "equal"
    elif result["results_close"]:
        equal = (
            f"within {result['error']:.1e} of the unmoved graphs'"
            f" ({sum(result['kernels_in_blocks'].values())} kernels in blocks)"
        )
    stopped = f"; stopped after {result['steps']} timed steps" if result["interrupted"] else ""
    moved, closeness = format_bytes(result["moved_bytes"]), _closeness(result)
    table.caption = (
        f"{moved} moved in a step; results {equal}; steps and peaks are"
        f" {result['label']}{closeness}{stopped}"
    )
    return table


def _closeness(result: Mapping[str, Any]) -> str:
    """Say how long steps took relative to what was predicted before each."""
    found = result["measured_over_predicted"]
    if found is None:
        return ""
    interval = "" if found["low"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"
    return f"; they took {found['ratio']:.2f}{interval} of what was predicted before each"


def run_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """List the cells of every row, in the order of :data:`COLUMNS`."""
    rows = [
        _row("loadmaster", result["step_seconds"], result["measured_peak"], result["planned_peak"]),
        _row(
            f"  predicted from {result['costs']['label']} kernels",
            result["predicted_step_seconds"],
            None,
        ),
        _row(
            "same graphs, nothing moved",
            result["unmoved_step_seconds"],
            result["unmoved_measured_peak"],
            result["unmoved_peak"],
        ),
    ]
    if "executor_step_seconds" in result:
        rows.append(_row("  by the executor", result["executor_step_seconds"], None))
    for name, rival in result["rivals"].items():
        mine = rival.get("loadmaster_at_its_peak", {})
        seconds = mine.get("step_seconds")
        shown = (
            "refused" if mine.get("failed") else "-" if seconds is None else format_seconds(seconds)
        )
        rows.append(
            _row(
                name,
                rival["step_seconds"],
                rival["measured_peak"],
                None,
                shown,
                rival.get("failed") or _verdict(rival),
            )
        )
    return rows


def _row(
    name: str, seconds: float | None, peak: int | None, planned: int | None = None, *more: str
) -> tuple[str, ...]:
    figures = [
        None if seconds is None else format_seconds(seconds),
        *(None if b is None else format_bytes(b) for b in (peak, planned)),
    ]
    return name, *(text or "-" for text in figures), *(more or ("", ""))


def _verdict(rival: Mapping[str, Any]) -> str:
    """Describe how the plan under a rival's peak compares: the verdict, and the interval of its
    time relative to the rival's."""
    found: Mapping[str, Any] | None = rival.get("difference")
    if found is None:
        return "-"
    if not rival["peak_kept"]:
        return "takes more memory"
    interval = (
        f" ({found['low']:.2f} to {found['high']:.2f} of its time)"
        if found["low"] is not None
        else ", too few steps"
    )
    return f"{found['verdict']}{interval}"

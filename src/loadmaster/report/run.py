"""The view of a run: steps of the plan and of other methods that save memory, and measured over
predicted seconds of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from loadmaster.core.units import SIZES, format_bytes, format_seconds
from loadmaster.report.text import NOTHING, if_known
from loadmaster.report.view import (
    BOTH,
    Curve,
    Json,
    Line,
    Mark,
    Page,
    Polyline,
    Scatter,
    Section,
    Shape,
    Table,
    TimeAxis,
    first_rows,
    table,
)

_LISTED = 50
_ABOUT = "Times are medians of steps run in turns."
_RIVALS = " Against a rival stands a plan whose budget is the peak that was measured of the rival."


def run_page(model: str, result: Json, kernels: Sequence[Json]) -> Page:
    """Make the page of the measurements of ``loadmaster run``.

    Parameters
    ----------
    model
        The model argument of the command.
    result, kernels
        The contents of run.json and kernels.json.
    """
    timed = [row for row in kernels if row["measured_seconds"] > 0 and row["predicted_seconds"] > 0]
    about = _ABOUT + (_RIVALS if result["rivals"] else "")
    sections = [
        Section("Ways to run the step", [ways(result)], BOTH, about),
        Section("", [Line(_outcome(result))], BOTH),
        Section("Fast memory, by kernel", [_memory(result, kernels)] if kernels else []),
        Section("Predicted against measured, by kernel", [_kernel_chart(timed)] if timed else []),
        Section("Longest kernels", [_kernels(kernels)]),
    ]
    return Page(
        model, "Steps under a budget of fast memory, measured on this machine", lambda: sections
    )


def _equality(result: Json) -> str:
    """Describe how close results are to those of the graphs without moves."""
    if result["gradients_equal"]:
        return "are equal bit for bit to those of the unmoved graphs"
    if result["results_close"]:
        blocks = sum(result["kernels_in_blocks"].values())
        why = f" ({blocks} kernels in blocks)" if blocks else ""
        return f"are within {result['error']:.1e} of the unmoved graphs'{why}"
    return "DIFFER"


def _memory(result: Json, kernels: Sequence[Json]) -> Curve:
    """Make the curve of planned bytes of fast memory over a step's kernels, with the budget."""
    shapes = [
        Shape(
            k,
            k + 1,
            0,
            row["fast_bytes"],
            partial(dict, kernel=row["kernel"], operator=row["operator"]),
        )
        for k, row in enumerate(kernels)
    ]
    budget = result["budget"]
    limit = None if budget is None else (budget, f"budget {format_bytes(budget)}")
    axis = TimeAxis(len(kernels), label="kernel, in the order in which they run")
    return Curve("", "planned fast memory", shapes, SIZES, limit, axis=axis)


def _kernel_chart(rows: Sequence[Json]) -> Scatter:
    """Make the chart of measured over predicted seconds of each kernel on logarithmic axes, with
    the line of equality."""
    marks = []
    for row in rows:
        predicted, measured = row["predicted_seconds"], row["measured_seconds"]
        facts = {
            "operator": row["operator"],
            "predicted": format_seconds(predicted),
            "measured": format_seconds(measured),
        }
        marks.append(Mark(predicted, measured, row["kernel"], facts, size=7))
    ends = [time for mark in marks for time in (mark.x, mark.y)]
    equal = Polyline([(end, end) for end in (min(ends), max(ends))], dash="dashed")
    remark = "Above the dashed line a kernel took longer than predicted."
    labels = "predicted (s)", "measured (s)"
    return Scatter("", *labels, marks, [equal], logarithmic=True, remark=remark)


def _kernels(kernels: Sequence[Json]) -> Table:
    """Return the table of kernels, the longest first, predicted and measured."""
    rows = [
        {
            "Kernel": row["kernel"],
            "Operator": row["operator"],
            ">Predicted": format_seconds(row["predicted_seconds"]),
            ">Measured": format_seconds(row["measured_seconds"]),
        }
        for row in sorted(kernels, key=lambda row: -row["measured_seconds"])
    ]
    return first_rows(rows, _LISTED, "shorter kernel")


def ways(result: Json) -> Table:
    """Make a table with a row for each variant of the step, with the comparison to rivals if there
    are any."""
    named = {
        "loadmaster": ("step_seconds", "measured_peak", "planned_peak"),
        f"  predicted from {result['costs']['label']} kernels": ("predicted_step_seconds", "", ""),
        "same graphs, nothing moved": (
            "unmoved_step_seconds",
            "unmoved_measured_peak",
            "unmoved_peak",
        ),
        "  by the executor": ("executor_step_seconds", "", ""),
    }
    rows = [
        (
            name,
            if_known(result[step], format_seconds),
            *(if_known(result.get(peak), format_bytes) for peak in peaks),
            "",
            "",
        )
        for name, (step, *peaks) in named.items()
        if step in result
    ]
    for name, rival in result["rivals"].items():
        mine = rival.get("loadmaster_at_its_peak", {})
        step = if_known(rival["step_seconds"], format_seconds)
        peak = if_known(rival["measured_peak"], format_bytes)
        own = if_known(mine.get("step_seconds"), format_seconds)
        shown = "refused" if mine.get("failed") else own
        rows.append((name, step, peak, NOTHING, shown, rival.get("failed") or _verdict(rival)))
    heads = "", ">step", ">measured peak", ">planned", ">loadmaster at this peak", "~against it"
    count = len(heads) if result["rivals"] else 4
    return table(heads[:count], (row[:count] for row in rows))


def _verdict(rival: Json) -> str:
    """Describe the comparison of a rival with the plan at its peak: the verdict, and the interval
    of the ratio of their times."""
    found: Json | None = rival.get("difference")
    if found is None:
        return NOTHING
    if not rival["peak_kept"]:
        return "takes more memory"
    if found["low"] is None:
        return f"{found['verdict']}, too few steps"
    return f"{found['verdict']} ({found['low']:.2f} to {found['high']:.2f} of its time)"


def _outcome(result: Json) -> str:
    """Describe whether results were equal, the budget was kept, and times were as predicted."""
    found, close = result["measured_over_predicted"], ""
    if found is not None:
        low, high = found["low"], found["high"]
        interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
        close = f"; steps took {found['ratio']:.2f}{interval} of what was predicted before each"
    stopped = f"; stopped after {result['steps']} timed steps" if result["interrupted"] else ""
    peak, budget = result["measured_peak"], result["budget"]
    kept = "kept" if result["budget_kept"] else "EXCEEDED"
    if result["budget_kept"] and None not in (peak, budget) and peak > budget:
        kept += " within the 8 MiB that Python and libraries may take beside it"
    return (
        f"Results {_equality(result)}; the budget of {if_known(budget, format_bytes)} was {kept};"
        f" {format_bytes(result['moved_bytes'])} moved in a step,"
        f" {format_seconds(result['waiting_seconds'])} waiting for it. Times and peaks are"
        f" {result['label']}, predictions are estimates{close}{stopped}."
    )

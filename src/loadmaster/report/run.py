"""What is shown of a run: the plan's steps beside other ways to save memory, and predicted against
measured seconds of kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.report.text import NOTHING, SIZES
from loadmaster.report.view import (
    BOTH,
    TERMINAL,
    Axis,
    Curve,
    Figure,
    Figures,
    Line,
    Mark,
    Page,
    Path,
    Row,
    Scatter,
    Section,
    Shape,
    Table,
    first_rows,
)

_LISTED = 50
_ABOUT = "Times are medians of steps run in turns."
_RIVALS = " Against a rival stands a plan whose budget is the peak that was measured of the rival."


def run_page(model: str, result: Mapping[str, Any], kernels: Sequence[Mapping[str, Any]]) -> Page:
    """Make the page of what ``loadmaster run`` measured.

    Parameters
    ----------
    model
        What was run, as it was written.
    result, kernels
        The contents of run.json and kernels.json.
    """
    timed = [row for row in kernels if row["measured_seconds"] > 0 and row["predicted_seconds"] > 0]
    budget = f"budget {_bytes(result['budget'])}"
    unmoved = result["unmoved_step_seconds"], result["unmoved_measured_peak"]
    cards = (
        (
            "Step",
            _seconds(result["step_seconds"]),
            f"predicted {_seconds(result['predicted_step_seconds'])}",
        ),
        ("Nothing moved", _seconds(unmoved[0]), f"peak {_bytes(unmoved[1])}"),
        (
            "Peak",
            _bytes(result["measured_peak"]),
            f"planned {_bytes(result['planned_peak'])}, {budget}",
        ),
        (
            "Moved in a step",
            _bytes(result["moved_bytes"]),
            f"waiting {_seconds(result['waiting_seconds'])}",
        ),
    )
    figures = [Figure(name, value, distance=said) for name, value, said in cards]
    kept = "kept" if result["budget_kept"] else "EXCEEDED"
    outcome = (
        f"Results {_equality(result)}; the budget was {kept}. Times and peaks are measured,"
        " predictions are estimates."
    )
    about = _ABOUT + (_RIVALS if result["rivals"] else "")
    sections = [
        Section("", [Figures(figures), Line(outcome, "strong")]),
        Section("", [Line(budget if result["budget"] else "")], (TERMINAL,)),
        Section("Ways to run the step", [ways(result), Line(about, "hint")], BOTH),
        Section("", [Line(_outcome(result))], (TERMINAL,)),
        Section("Fast memory, by kernel", [_memory(result, kernels)] if kernels else []),
        Section("Predicted against measured, by kernel", [_kernel_chart(timed)] if timed else []),
        Section("Longest kernels", [_kernels(kernels)]),
    ]
    description = "Steps under a budget of fast memory, measured on this machine"
    return Page(model, description, lambda: sections)


def _equality(result: Mapping[str, Any]) -> str:
    """Say how close results are to those of the unmoved graphs."""
    if result["gradients_equal"]:
        return "are equal bit for bit to those of the unmoved graphs"
    if result["results_close"]:
        blocks = sum(result["kernels_in_blocks"].values())
        why = f" ({blocks} kernels in blocks)" if blocks else ""
        return f"are within {result['error']:.1e} of the unmoved graphs'{why}"
    return "DIFFER"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else format_seconds(value)


def _bytes(value: int | None) -> str:
    return NOTHING if value is None else format_bytes(value)


def _memory(result: Mapping[str, Any], kernels: Sequence[Mapping[str, Any]]) -> Curve:
    """Draw the planned bytes of fast memory over the kernels of a step, under the budget."""
    tips = [{name: row[name] for name in ("kernel", "operator")} for row in kernels]
    shapes = [
        Shape(k, k + 1, 0, row["fast_bytes"], tip.copy)
        for k, (row, tip) in enumerate(zip(kernels, tips, strict=True))
    ]
    budget = result["budget"]
    limit = None if budget is None else (budget, f"budget {format_bytes(budget)}")
    axis = Axis(len(kernels), label="kernel, in the order in which they run")
    return Curve("", "planned fast memory", shapes, SIZES, limit, axis=axis)


def _kernel_chart(rows: Sequence[Mapping[str, Any]]) -> Scatter:
    """Draw measured over predicted seconds of each kernel on logarithmic axes, with a line where
    both are equal."""
    marks = []
    for row in rows:
        predicted = row["predicted_seconds"]
        measured = row["measured_seconds"]
        times = {"predicted": _seconds(predicted), "measured": _seconds(measured)}
        facts = {"operator": row["operator"], **times}
        marks.append(Mark(predicted, measured, row["kernel"], facts, size=7))
    ends = [time for mark in marks for time in (mark.x, mark.y)]
    equal = Path([(min(ends), min(ends)), (max(ends), max(ends))], dash="dashed")
    remark = "Above the dashed line a kernel took longer than predicted."
    labels = "predicted (s)", "measured (s)"
    return Scatter("", *labels, marks, [equal], logarithmic=True, remark=remark)


def _kernels(kernels: Sequence[Mapping[str, Any]]) -> Table:
    rows: list[Row] = [
        {
            "Kernel": row["kernel"],
            "Operator": row["operator"],
            ">Predicted": _seconds(row["predicted_seconds"]),
            ">Measured": _seconds(row["measured_seconds"]),
        }
        for row in sorted(kernels, key=lambda row: -row["measured_seconds"])
    ]
    return first_rows(rows, _LISTED, "shorter kernel")


def ways(result: Mapping[str, Any]) -> Table:
    """Make a table with a row for each way to run the step."""
    predicted = f"  predicted from {result['costs']['label']} kernels"
    named = [
        ("loadmaster", "step_seconds", "measured_peak", "planned_peak"),
        (predicted, "predicted_step_seconds", "", ""),
        (
            "same graphs, nothing moved",
            "unmoved_step_seconds",
            "unmoved_measured_peak",
            "unmoved_peak",
        ),
        ("  by the executor", "executor_step_seconds", "", ""),
    ]
    rows: list[Row] = []
    for name, step, measured, planned in named:
        if step in result:
            peaks = _bytes(result.get(measured)), _bytes(result.get(planned))
            rows.append(_way(name, _seconds(result[step]), *peaks, result))
    for name, rival in result["rivals"].items():
        mine = rival.get("loadmaster_at_its_peak", {})
        shown = "refused" if mine.get("failed") else _seconds(mine.get("step_seconds"))
        found = _seconds(rival["step_seconds"]), _bytes(rival["measured_peak"]), NOTHING
        rows.append(_way(name, *found, result, shown, rival.get("failed") or _verdict(rival)))
    return Table(rows)


def _way(
    name: str,
    step: str,
    peak: str,
    planned: str,
    result: Mapping[str, Any],
    mine: str = "",
    verdict: str = "",
) -> Row:
    """Make a row; what belongs to rivals is there if there are any."""
    row = {"": name, ">step": step, ">measured peak": peak, ">planned": planned}
    against = {">loadmaster at this peak": mine, "~against it": verdict}
    return row | (against if result["rivals"] else {})


def _verdict(rival: Mapping[str, Any]) -> str:
    """Describe how the plan under a rival's peak compares: the verdict, and the interval of its
    time relative to the rival's."""
    found: Mapping[str, Any] | None = rival.get("difference")
    if found is None:
        return NOTHING
    if not rival["peak_kept"]:
        return "takes more memory"
    if found["low"] is None:
        return f"{found['verdict']}, too few steps"
    return f"{found['verdict']} ({found['low']:.2f} to {found['high']:.2f} of its time)"


def _outcome(result: Mapping[str, Any]) -> str:
    """Say in a line whether results were equal, and times as predicted."""
    found, close = result["measured_over_predicted"], ""
    if found is not None:
        low, high = found["low"], found["high"]
        interval = "" if low is None else f" ({low:.2f} to {high:.2f})"
        close = f"; they took {found['ratio']:.2f}{interval} of what was predicted before each"
    stopped = f"; stopped after {result['steps']} timed steps" if result["interrupted"] else ""
    return (
        f"{format_bytes(result['moved_bytes'])} moved in a step; results {_equality(result)}; steps"
        f" and peaks are {result['label']}{close}{stopped}"
    )

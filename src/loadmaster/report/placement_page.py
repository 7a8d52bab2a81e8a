"""The HTML report of a tensor placement: the memory map of the fast memory, prices of its bytes
over time, and copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from bokeh.models import FixedTicker, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.placement.answer import MemoryPlan
from loadmaster.placement.sequence import StoredKind
from loadmaster.report.charts import Canvas, chart, hover, level, rectangles, time_canvas
from loadmaster.report.colours import MERGED, PALETTE
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.memory_map import BOUND, CAPACITY, PEAK, Scale, scale_for
from loadmaster.report.merging import MAX_SHAPES, merge_neighbours
from loadmaster.report.page import Page, hint, in_page, section
from loadmaster.report.placement import movers, rival_rows, totals
from loadmaster.report.tables import card, table
from loadmaster.report.text import NOTHING, Html, percent, plural, printable, to_html

COLOURS = dict(
    zip(
        (StoredKind.INPUT, StoredKind.WEIGHT, StoredKind.INTERMEDIATE, StoredKind.OUTPUT),
        PALETTE,
        strict=False,
    )
)
_MOVERS = 50
_LANES = ("to slow, waiting", "to slow, overlapped", "to fast, waiting", "to fast, overlapped")


def render_placement(plan: MemoryPlan, curve: Sequence[Mapping[str, Any]] = ()) -> str:
    """Render the whole report, with the slowdown curve if there is one; the same placement gives
    the same text."""
    on, page = time_canvas(plan.seconds, plan.seconds, {}), Page()
    charts = section(
        "Fast memory over time",
        hint(
            "Drag to pan, hold Ctrl and scroll to zoom in time: all charts move together. Hover"
            " over a rectangle for its tensor."
        ),
        page.place(_draw_map(plan, on)),
        page.place(_draw_prices(plan, on)),
        page.place(_draw_copies(plan, on)),
    )
    about = Html(
        f"<p><strong>{to_html(figures_rest_on(plan.sequence.costs))}</strong></p>{_notes(plan.sequence.notes)}"
    )
    figures = section("Figures", table("Figures", ("", ""), totals(plan)))
    rivals = section(
        "Simpler strategies, same kernels and limit",
        table(
            "Simpler strategies", ("strategy", ">time", ">of all fast", ">moved"), rival_rows(plan)
        ),
    )
    sizes = (
        [section("Slowdown over fast memory", page.place(_draw_curve(plan, curve, on)))]
        if curve
        else []
    )
    sections = [
        section("", _headline(plan), about),
        charts,
        rivals,
        *sizes,
        _movers(plan),
        *_measured(plan),
        figures,
    ]
    return in_page(
        f"{printable(plan.sequence.name)}, {plan.mode}",
        "Which memory each tensor is in, and when it moves",
        sections,
        page,
    )


def _headline(plan: MemoryPlan) -> Html:
    cards = (
        card(
            "Time",
            format_seconds(plan.seconds),
            f"lower bound {format_seconds(plan.lower_bound)}, gap {percent(plan.gap)}",
        ),
        card(
            "Slowdown",
            f"{plan.slowdown:.3f} x",
            f"everything fast takes {format_seconds(plan.all_fast_seconds)}",
        ),
        card(
            "Fast memory",
            format_bytes(plan.peak_fast),
            f"of {format_bytes(plan.limit)}; all fast: {format_bytes(plan.sequence.peak_bytes)}",
        ),
        card(
            "Copies",
            format_bytes(plan.moved_bytes),
            plural(len(plan.placement.moves), "copy").replace("copys", "copies"),
        ),
    )
    return Html(f"<div class=cards>{''.join(cards)}</div>")


def _notes(lines: Sequence[str]) -> Html:
    return Html(
        f"<ul class=notes>{''.join(f'<li>{to_html(line)}</li>' for line in lines)}</ul>"
        if lines
        else ""
    )


def _measured(plan: MemoryPlan) -> list[Html]:
    """Make a table of estimated and measured seconds of the longest measured kernels, with
    everything fast."""
    kernels = [kernel for kernel in plan.sequence.kernels if kernel.measured is not None]
    if not kernels:
        return []
    guessed = [
        replace(kernel, measured=None).seconds([False] * len(kernel.operands)) for kernel in kernels
    ]
    found = [kernel.seconds([False] * len(kernel.operands)) for kernel in kernels]
    longest = sorted(range(len(kernels)), key=lambda i: (-found[i], i))[:_MOVERS]
    rows = [
        (kernels[i].name, kernels[i].kind, format_seconds(guessed[i]), format_seconds(found[i]))
        for i in longest
    ]
    total = (
        f"All {plural(len(kernels), 'measured kernel')}: estimated {format_seconds(sum(guessed))},"
        f" measured {format_seconds(sum(found))}."
    )
    shown = table("Measured kernels", ("kernel", "kind", ">estimated", ">measured"), rows)
    return [section("Estimated against measured, everything fast", hint(total), shown)]


def _movers(plan: MemoryPlan) -> Html:
    ranked = movers(plan)
    if not ranked:
        return section("Moves", hint("Nothing moves."))
    tensors = plan.sequence.tensors
    rows = [
        (tensors[t].name, tensors[t].kind.value, format_bytes(tensors[t].bytes), str(copies))
        for t, copies in ranked[:_MOVERS]
    ]
    rest = f"and {plural(len(ranked) - _MOVERS, 'tensor')} more" if len(ranked) > _MOVERS else ""
    return section(
        "Moves", table("Moves", ("tensor", "kind", ">bytes", ">copies"), rows), hint(rest)
    )


def _positions(plan: MemoryPlan) -> list[float]:
    """Return the second at which each position is reached: the start of every kernel, and the
    end."""
    return [*plan.timeline.kernel_start.tolist(), plan.seconds]


def _draw_map(plan: MemoryPlan, on: Canvas) -> tuple[figure, str]:
    """Draw address against time, a rectangle for each stay; the smallest are left out if there are
    too many."""
    at, scale = _positions(plan), scale_for(plan.limit)
    top = 1.06 * max(plan.limit, 1) / scale.bytes
    plot = chart(
        on,
        f"peak {format_bytes(plan.peak_fast)}, limit {format_bytes(plan.limit)}",
        380,
        Range1d(start=0, end=top),
        f"address ({scale.name})",
    )
    sizes = [plan.sequence.tensors[stay.tensor].bytes for stay in plan.placement.stays]
    ranked = sorted(
        range(len(sizes)),
        key=lambda i: (
            -sizes[i] * (plan.placement.stays[i].end - plan.placement.stays[i].start),
            i,
        ),
    )
    for kind in StoredKind:
        mine = [
            i
            for i in ranked[:MAX_SHAPES]
            if plan.sequence.tensors[plan.placement.stays[i].tensor].kind is kind
        ]
        if mine:
            renderer = rectangles(
                plot, _stay_columns(plan, on, scale, at, mine), COLOURS[kind], 0.6
            )
            hover(
                plot,
                [renderer],
                "name",
                (
                    ("kind", "kind"),
                    ("size", "size"),
                    ("address", "address"),
                    ("kernels", "kernels"),
                ),
            )
    level(
        plot,
        plan.limit / scale.bytes,
        f"limit {format_bytes(plan.limit)}",
        CAPACITY,
        "solid",
        below=True,
    )
    left_out = len(ranked) - MAX_SHAPES
    return (
        plot,
        (
            f"The {plural(left_out, 'smallest stay')} (bytes x kernels) are not drawn."
            if left_out > 0
            else ""
        ),
    )


def _stay_columns(
    plan: MemoryPlan, on: Canvas, scale: Scale, at: Sequence[float], mine: Sequence[int]
) -> dict[str, list[object]]:
    stays = [plan.placement.stays[i] for i in mine]
    tensors = [plan.sequence.tensors[stay.tensor] for stay in stays]
    low = [plan.offsets[i] for i in mine]
    return {
        "left": [on.unit.of(at[stay.start]) for stay in stays],
        "right": [on.unit.of(at[stay.end]) for stay in stays],
        "bottom": [offset / scale.bytes for offset in low],
        "top": [
            (offset + tensor.bytes) / scale.bytes
            for offset, tensor in zip(low, tensors, strict=True)
        ],
        "name": [printable(tensor.name) for tensor in tensors],
        "kind": [tensor.kind.value for tensor in tensors],
        "size": [format_bytes(tensor.bytes) for tensor in tensors],
        "address": [
            f"{offset:,} to {offset + tensor.bytes:,}"
            for offset, tensor in zip(low, tensors, strict=True)
        ],
        "kernels": [f"{stay.start} to {stay.end - 1}" for stay in stays],
    }


def _draw_prices(plan: MemoryPlan, on: Canvas) -> tuple[figure, str]:
    """Draw the seconds that a GiB more of fast memory would save, per second of each kernel."""
    at = _positions(plan)
    prices = plan.prices * 2**30
    starts, ends = at[:-1], at[1:]
    highest = float(prices.max(initial=0.0)) or 1.0
    plot = chart(
        on,
        "Price of fast memory (the multipliers of the lower bound)",
        200,
        Range1d(start=0, end=1.1 * highest),
        "seconds saved per GiB",
    )
    shown = np.flatnonzero(prices > 0).tolist()[:MAX_SHAPES]
    data: dict[str, list[object]] = {
        "left": [on.unit.of(starts[k]) for k in shown],
        "right": [on.unit.of(ends[k]) for k in shown],
        "bottom": [0.0 for _ in shown],
        "top": [float(prices[k]) for k in shown],
        "name": [printable(plan.sequence.kernels[k].name) for k in shown],
        "price": [format_seconds(float(prices[k])) for k in shown],
    }
    hover(plot, [rectangles(plot, data, PEAK, 0.6)], "name", (("a GiB saves", "price"),))
    return plot, "" if shown else "Fast memory is nowhere scarce."


def _draw_copies(plan: MemoryPlan, on: Canvas) -> tuple[figure, str]:
    """Draw copies in a lane for each direction, blocking or overlapped."""
    plot = chart(on, "Copies", 190, Range1d(start=len(_LANES) - 0.5, end=-0.5), "")
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(_LANES))))
    plot.yaxis.major_label_overrides = dict(enumerate(_LANES))
    moves, starts, ends = (
        plan.placement.moves,
        plan.timeline.move_start.tolist(),
        plan.timeline.move_end.tolist(),
    )
    lane = [2 * move.to_fast + (move.start != move.end) for move in moves]
    order = sorted(range(len(moves)), key=lambda i: (lane[i], starts[i], i))
    groups = merge_neighbours(
        [lane[i] for i in order], [starts[i] for i in order], [ends[i] for i in order], MAX_SHAPES
    )
    shown = [[order[i] for i in group] for group in groups]
    for single, colour in ((True, COLOURS[StoredKind.INPUT]), (False, MERGED)):
        mine = [group for group in shown if (len(group) == 1) is single]
        if not mine:
            continue
        data: dict[str, list[object]] = {
            "left": [on.unit.of(starts[group[0]]) for group in mine],
            "right": [on.unit.of(max(ends[i] for i in group)) for group in mine],
            "top": [lane[group[0]] - 0.38 for group in mine],
            "bottom": [lane[group[0]] + 0.38 for group in mine],
            "name": [
                (
                    printable(plan.sequence.tensors[moves[g[0]].tensor].name)
                    if single
                    else f"{len(g)} copies"
                )
                for g in mine
            ],
            "size": [
                format_bytes(sum(plan.sequence.tensors[moves[i].tensor].bytes for i in group))
                for group in mine
            ],
            "time": [on.unit.span(starts[group[0]], max(ends[i] for i in group)) for group in mine],
        }
        hover(plot, [rectangles(plot, data, colour)], "name", (("bytes", "size"), ("time", "time")))
    return (
        plot,
        "" if moves else f"Nothing is copied {NOTHING} every tensor stays where it is made.",
    )


def _draw_curve(
    plan: MemoryPlan, curve: Sequence[Mapping[str, Any]], on: Canvas
) -> tuple[figure, str]:
    """Draw time relative to everything fast against the limit, with the lower bound."""
    met = [point for point in curve if point["makespan"] is not None]
    scale = scale_for(max((point["capacity"] for point in curve), default=1))
    limits = [point["capacity"] / scale.bytes for point in met]
    highest = max((point["slowdown"] for point in met), default=1.0)
    x_range = Range1d(start=0, end=1.02 * max([*limits, 1e-9]))
    plot = chart(
        replace(on, x_range=x_range),
        "Time of all fast",
        300,
        Range1d(start=0, end=1.1 * highest),
        "slowdown",
    )
    plot.xaxis.axis_label = f"fast memory ({scale.name})"
    plot.line(
        limits,
        [point["slowdown"] for point in met],
        color=COLOURS[StoredKind.INTERMEDIATE],
        line_width=2,
    )
    plot.scatter(
        limits, [point["slowdown"] for point in met], color=COLOURS[StoredKind.INTERMEDIATE], size=6
    )
    bounds = [
        point["lower_bound"] / plan.all_fast_seconds if plan.all_fast_seconds > 0 else 1.0
        for point in met
    ]
    plot.line(limits, bounds, color=BOUND, line_dash="dotted", line_width=1.5)
    missing = len(curve) - len(met)
    return plot, "Dotted: the lower bound." + (
        f" At {plural(missing, 'limit')} nothing fits." if missing else ""
    )

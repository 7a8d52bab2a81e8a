"""A tensor placement's page, its summary in the terminal, and its view in notebooks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from loadmaster.core.provenance import described, weakest
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.placement.answer import MemoryPlan, Rival
from loadmaster.placement.explain import Stretch
from loadmaster.placement.sequence import StoredKind, StoredTensor
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import (
    NOTHING,
    SIZES,
    clipped,
    largest_unit,
    plural,
    printable,
    reached,
    search_rows,
)
from loadmaster.report.timeline import total_over_time
from loadmaster.report.view import (
    Axis,
    Box,
    Curve,
    Figure,
    Figures,
    Legend,
    Line,
    Mark,
    MemoryMap,
    Notes,
    Page,
    Part,
    Path,
    Scatter,
    Section,
    Span,
    Table,
    Timeline,
    View,
    bounded,
    first_rows,
)

KINDS = (StoredKind.INPUT, StoredKind.WEIGHT, StoredKind.INTERMEDIATE, StoredKind.OUTPUT)
"""Kinds of tensors, in the order of their colours."""
_LANES = ("to slow, waiting", "to slow, overlapped", "to fast, waiting", "to fast, overlapped")
_MOVERS, _MOVERS_ON_PAGE = 8, 50
_BAR = 40
_HINT = (
    "Drag to pan, hold Ctrl and scroll to zoom in time: all charts move together. Hover over a"
    " rectangle for its tensor."
)


def placement_page(plan: MemoryPlan, curve: Sequence[Mapping[str, Any]] = ()) -> Page:
    """Make the page of a placement, with the slowdown curve if there is one."""
    sequence = plan.sequence
    costs = Line(figures_rest_on(sequence.costs), "strong")
    axis = Axis(plan.seconds, plan.seconds, groups=[kind.value for kind in KINDS])
    charts = [
        Line(_HINT, "hint"),
        Legend(),
        _memory_map(plan),
        _prices(plan),
        _copies(plan),
    ]
    moves = _movers(plan, _MOVERS_ON_PAGE)
    sections = [
        Section("", [Figures(_figures(plan)), costs, Notes(sequence.notes)]),
        Section("Fast memory over time", charts),
        Section("Simpler strategies, same kernels and limit", [_rivals(plan)]),
        Section("Slowdown over fast memory", [_slowdowns(plan, curve)] if curve else []),
        Section("Moves", [moves] if moves.rows else [Line("Nothing moves.", "hint")]),
        Section("How it was found", [totals(plan)]),
    ]
    about = "Which memory each tensor is in, and when it moves"
    return Page(f"{sequence.name}, {plan.mode}", about, sections, axis)


def _figures(plan: MemoryPlan) -> list[Figure]:
    moves, fast, slow = plan.placement.moves, plan.all_fast_seconds, plan.all_slow_seconds
    # Both memories are read at once, so that a placement can beat everything fast.
    faster = ", as both memories are read at once" if plan.slowdown < 1 else ""
    rest = {
        "Slowdown": (f"{plan.slowdown:.3f} x", f"over everything fast{faster}"),
        "All fast": (format_seconds(fast), f"takes {format_bytes(plan.sequence.peak_bytes)}"),
        "All slow": (format_seconds(slow) if np.isfinite(slow) else "not possible", ""),
        "Fast memory": (
            format_bytes(plan.peak_fast),
            f"in use at most, limit {format_bytes(plan.limit)} ({plan.limit} bytes)",
        ),
        "Moved": (format_bytes(plan.moved_bytes), plural(len(moves), "move")),
    }
    figures = [Figure(name, value, "", said) for name, (value, said) in rest.items()]
    return [bounded("Time", plan.seconds, plan.lower_bound, format_seconds), *figures]


def totals(plan: MemoryPlan) -> Table:
    """Make a table of what was placed, how, and what more fast memory would save."""
    sequence = plan.sequence
    count = f"{len(sequence.tensors)} tensors"
    if plan.division is not None:
        count = f"{len(plan.division.whole.tensors)} tensors in {len(sequence.tensors)} pieces"
    saved = max(0.0, plan.seconds - plan.all_fast_seconds)
    beyond = (
        ""
        if plan.price_per_gib <= saved
        else f" (everything fast: {format_seconds(saved)}, as only one memory is read then)"
    )
    rows = {
        **search_rows(plan, plan.search_seconds),
        "Network": f"{sequence.name}: {len(sequence.kernels)} kernels, {count}",
        "Costs of kernels": described(sequence.costs),
        "Another GiB would save": (
            f"at most {format_seconds(plan.price_per_gib)}, by the price of the first byte{beyond}"
        ),
        "Mode": f"{plan.mode}, packed in round {plan.rounds}",
    }
    return Table(("", "~"), list(rows.items()))


def _rivals(plan: MemoryPlan) -> Table:
    """Compare time and bytes moved of this placement and of simpler strategies."""
    own = Rival(f"this ({plan.strategy})", plan.seconds, plan.moved_bytes)
    rows = []
    for rival in (own, *plan.rivals):
        if rival.makespan is None:
            rows.append((rival.name, "does not fit", NOTHING, NOTHING))
            continue
        relative = rival.makespan / plan.all_fast_seconds if plan.all_fast_seconds > 0 else 1.0
        moved = format_bytes(rival.moved_bytes)
        rows.append((rival.name, format_seconds(rival.makespan), f"{relative:.3f} x", moved))
    return Table(("strategy", ">time", ">of all fast", ">moved"), rows)


def _movers(plan: MemoryPlan, limit: int) -> Table:
    """List the tensors of which most bytes are copied, the pieces of each together."""
    moves, division = plan.placement.moves, plan.division
    whole = (plan.sequence if division is None else division.whole).tensors
    copied: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    copying: dict[int, list[float]] = defaultdict(list)
    spans = zip(plan.timeline.move_start.tolist(), plan.timeline.move_end.tolist(), strict=True)
    for move, span in zip(moves, spans, strict=True):
        tensor = move.tensor if division is None else division.of[move.tensor]
        copied[tensor][move.to_fast] += plan.sequence.sizes[move.tensor]
        copying[tensor] += span
    rows = [
        (
            whole[t].name,
            whole[t].kind.value,
            *(format_bytes(size) if size else NOTHING for size in (whole[t].bytes, *both)),
            format_seconds(min(copying[t])),
            format_seconds(max(copying[t])),
        )
        for t, both in sorted(copied.items(), key=lambda item: (-sum(item[1]), item[0]))
    ]
    columns = ("moves most", "kind", ">size", ">to slow", ">to fast", ">first copy", ">all done")
    return first_rows(columns, rows, limit, "tensor")


def _memory_map(plan: MemoryPlan) -> MemoryMap:
    """Make the map of the fast memory, with a colour for each kind of tensor."""
    at = [*plan.timeline.kernel_start.tolist(), plan.seconds]
    stays, tensors = plan.placement.stays, plan.sequence.tensors
    boxes = [
        Box(
            at[stay.start],
            at[stay.end],
            offset,
            offset + tensors[stay.tensor].bytes,
            KINDS.index(tensors[stay.tensor].kind),
        )
        for stay, offset in zip(stays, plan.offsets, strict=False)
    ]

    def tip(item: int) -> dict[str, str]:
        stay = stays[item]
        tensor = tensors[stay.tensor]
        kernels = f"{stay.start} to {stay.end - 1}"
        return {"name": tensor.name, "kind": tensor.kind.value, "kernels": kernels}

    return MemoryMap("fast memory", boxes, tip, plan.peak_fast, None, plan.limit)


def _prices(plan: MemoryPlan) -> Curve:
    """Make the curve of seconds that a GiB more of fast memory would save, per second of each
    kernel."""
    at = [*plan.timeline.kernel_start.tolist(), plan.seconds]
    prices = (plan.prices * 2**30).tolist()
    scarce = [k for k, price in enumerate(prices) if price > 0]

    def tip(items: Sequence[int]) -> dict[str, str]:
        kernels = [scarce[i] for i in items]
        most = format_seconds(max(prices[k] for k in kernels))
        return {"name": plan.sequence.kernels[kernels[0]].name, "a GiB saves": most}

    steps = [(at[k], at[k + 1], prices[k]) for k in scarce]
    remark = "" if scarce else "Fast memory is nowhere scarce."
    title = "Price of fast memory (the multipliers of the lower bound)"
    return Curve(title, "seconds saved per GiB", steps, tip=tip, remark=remark)


def _copies(plan: MemoryPlan) -> Timeline:
    """Make a lane of copies for each direction, blocking or overlapped."""
    moves, tensors = plan.placement.moves, plan.sequence.tensors
    lane = [2 * move.to_fast + (move.start != move.end) for move in moves]
    columns = lane, plan.timeline.move_start.tolist(), plan.timeline.move_end.tolist()

    def tip(item: int) -> dict[str, str]:
        tensor = tensors[moves[item].tensor]
        return {"name": tensor.name, "bytes": format_bytes(tensor.bytes)}

    colours = [KINDS.index(tensors[move.tensor].kind) for move in moves]
    spans = [Span(*span, alpha=1.0) for span in zip(*columns, colours, strict=True)]
    return Timeline("Copies" if moves else "No copies", _LANES, spans, tip, "copies")


def _slowdowns(plan: MemoryPlan, curve: Sequence[Mapping[str, Any]]) -> Scatter:
    """Draw time relative to everything fast against the limit, with the lower bound."""
    met = [point for point in curve if point["makespan"] is not None]
    scale, unit = largest_unit(max((p["capacity"] for p in curve), default=1) / 2, SIZES)
    fast = plan.all_fast_seconds
    marks = [
        Mark(
            point["capacity"] / scale,
            point["slowdown"],
            format_bytes(point["capacity"]),
            {
                "time": format_seconds(point["makespan"]),
                "of all fast": f"{point['slowdown']:.3f} x",
            },
            KINDS.index(StoredKind.INTERMEDIATE),
        )
        for point in met
    ]
    bounds = [(p["capacity"] / scale, p["lower_bound"] / fast if fast > 0 else 1.0) for p in met]
    paths = [Path([(mark.x, mark.y) for mark in marks], 2), Path(bounds, dash="dotted")]
    missing = len(curve) - len(met)
    more = f" At {plural(missing, 'limit')} nothing fits." if missing else ""
    label, remark = f"fast memory ({unit})", f"Dotted: the lower bound.{more}"
    return Scatter("Time of all fast", label, "slowdown", marks, paths, remark=remark, height=300)


def placement_summary(plan: MemoryPlan) -> list[Part]:
    """Make tables of totals, of simpler strategies, and of the tensors that move most."""
    figures = Figures(_figures(plan), weakest(plan.sequence.costs).capitalize())
    parts: list[Part] = [Notes(plan.sequence.notes), totals(plan), figures, _rivals(plan)]
    moves = _movers(plan, _MOVERS)
    if moves.rows:
        parts.append(replace(moves.brief(width=44), rest=moves.rest))
    return parts


def explanation(stored: StoredTensor, stretches: Iterable[Stretch]) -> list[Part]:
    """Explain in a table why a tensor is where it is, by stretches of its lifetime."""
    rows = []
    for s in stretches:
        saved = s.rent - s.copies - s.slower
        saves = (
            f"{'saves' if saved > 0 else 'costs'} {format_seconds(abs(saved))} against staying in"
            " the fast memory"
        )
        costs = tuple(_signed(value) for value in (s.rent, s.copies, s.slower))
        kernels, why = f"{s.start} to {s.end - 1}", saves if s.where == "slow" else ""
        rows.append((s.where, kernels, str(s.uses), *costs, why))
    columns = ("memory", "kernels", ">uses", ">rent", ">copies", ">slower kernels", "~")
    rent = (
        "Rent is what its bytes are worth in the fast memory meanwhile, by the multipliers of the"
        " lower bound: paid there, saved elsewhere."
    )
    name = f"{stored.name}: {stored.kind}, {format_bytes(stored.bytes)}"
    return [Line(name), Table(columns, rows, rent)]


def sizing(plan: MemoryPlan, max_slowdown: float, too_small: int | None) -> Line:
    """Describe the smallest fast memory that is enough, and the size that is proven too small."""
    proven = (
        "no smaller limit was ruled out"
        if too_small is None
        else f"proven: {format_bytes(too_small)} or less cannot do"
    )
    return Line(
        f"Smallest fast memory found for a slowdown of {max_slowdown}: {format_bytes(plan.limit)}"
        f" ({plan.limit} bytes); {proven}."
    )


def curve_table(points: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of slowdown over fast memory, with a bar for each limit."""
    slowdowns = [point["slowdown"] for point in points if point["slowdown"] is not None]
    rows = []
    for point in points:
        size, slowdown = format_bytes(point["capacity"]), point["slowdown"]
        if point["makespan"] is None:
            rows.append((size, "does not fit", NOTHING, NOTHING, ""))
            continue
        bar = "#" * max(1, round(_BAR * slowdown / max(slowdowns)))
        bound = format_seconds(point["lower_bound"])
        rows.append((size, format_seconds(point["makespan"]), f"{slowdown:.3f} x", bound, bar))
    columns = (">fast memory", ">time", ">of all fast", ">lower bound", "")
    return Table(columns, rows)


def _signed(seconds: float) -> str:
    sign = "-" if seconds < 0 else ""
    return f"{sign}{format_seconds(abs(seconds))}" if seconds else NOTHING


def view(plan: MemoryPlan) -> View:
    """Make the view of a placement in notebooks."""
    sequence, stays = plan.sequence, plan.placement.stays

    def pictures() -> Iterable[Curve]:
        alive = total_over_time((s.start, s.end, sequence.sizes[s.tensor]) for s in stays)
        yield Curve("fast memory", "", alive.triples(len(sequence.kernels)), plan.limit)

    def rows() -> Iterable[Mapping[str, Any]]:
        for tensor in plan.as_json()["tensors"]:
            named = {key: tensor[key] for key in ("name", "kind", "bytes")}
            for stay in tensor["fast"] or [{"start": None, "end": None, "offset": None}]:
                yield named | stay

    far = reached(plan.status, plan.seconds, plan.lower_bound)
    peak = f"{format_bytes(plan.peak_fast)} of fast memory"
    headline = f"{plan.status}, {format_seconds(plan.seconds)}, {far}, {peak}"
    title = f"Placement of {clipped(printable(sequence.name), 60)} ({plan.mode.value})"
    notes = (
        "Times are estimates; the picture shows bytes in the fast memory kernel by kernel, without"
        " workspaces.",
    )
    return View(title, headline, _figures(plan), pictures, rows, notes)

"""What is shown of a tensor placement."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from loadmaster.core.provenance import described, weakest
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.placement.answer import MemoryPlan, Rival
from loadmaster.placement.decisions import Stay
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
from loadmaster.report.view import (
    ALL,
    BOTH,
    DRAWN,
    TERMINAL,
    Axis,
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
    Row,
    Scatter,
    Section,
    Shape,
    Table,
    Timeline,
    bounded,
    first_rows,
    pairs,
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


def placement_page(
    plan: MemoryPlan,
    shown: Mapping[str, Any] = MappingProxyType({}),
    explained: Mapping[str, Sequence[Stretch]] = MappingProxyType({}),
) -> Page:
    """Make the page of a placement.

    Parameters
    ----------
    plan
        The placement.
    shown
        As in ``--json``: the slowdown curve, and what was found of the size of the fast memory, if
        that was asked for.
    explained
        By tensor, why it is where it is, by stretches of its lifetime.
    """
    sequence, costs = plan.sequence, plan.sequence.costs

    def sections() -> list[Section]:
        figures = Figures(_figures(plan), weakest(costs).capitalize())
        why = [
            part
            for tensor in sequence.tensors
            for part in _explanation(tensor, explained.get(tensor.name, ()))
        ]
        curve = shown.get("curve", ())
        slowdowns = [_slowdowns(plan, curve)] if curve else []
        nothing = Line("" if plan.placement.moves else "Nothing moves.")
        return [
            Section("", [Notes(sequence.notes), figures], ALL),
            Section("", [Line(figures_rest_on(costs), "strong")]),
            Section(
                "Fast memory over time", [Line(_HINT, "hint"), Legend(), _memory_map(plan)], DRAWN
            ),
            Section("", [_prices(plan), _copies(plan)]),
            Section("Simpler strategies, same kernels and limit", [_rivals(plan)], BOTH),
            Section("Moves", [_movers(plan), nothing], BOTH),
            Section("How it was found", [totals(plan)], BOTH),
            Section("Why tensors are where they are", why, BOTH),
            Section("", [_sizing(plan, shown)], BOTH),
            Section("Slowdown over fast memory", slowdowns),
            Section("", [_curve_table(curve)], (TERMINAL,)),
        ]

    def rows() -> Iterable[Mapping[str, Any]]:
        for tensor in plan.as_json()["tensors"]:
            named = {key: tensor[key] for key in ("name", "kind", "bytes")}
            for stay in tensor["fast"] or [{"start": None, "end": None, "offset": None}]:
                yield named | stay

    far = reached(plan.status, plan.seconds, plan.lower_bound)
    peak = f"{format_bytes(plan.peak_fast)} of fast memory"
    return Page(
        f"Placement of {clipped(printable(sequence.name), 60)} ({plan.mode.value})",
        "Which memory each tensor is in, and when it moves",
        sections,
        Axis(plan.seconds, plan.seconds, groups=[kind.value for kind in KINDS]),
        f"{plan.status}, {format_seconds(plan.seconds)}, {far}, {peak}",
        rows,
    )


def _figures(plan: MemoryPlan) -> list[Figure]:
    moves = plan.placement.moves
    fast = plan.all_fast_seconds
    slow = plan.all_slow_seconds
    # Both memories are read at once, so that a placement can beat everything fast.
    faster = ", as both memories are read at once" if plan.slowdown < 1 else ""
    most = f"in use at most, limit {format_bytes(plan.limit)} ({plan.limit} bytes)"
    rest = (
        ("Slowdown", f"{plan.slowdown:.3f} x", f"over everything fast{faster}"),
        ("All fast", format_seconds(fast), f"takes {format_bytes(plan.sequence.peak_bytes)}"),
        ("All slow", format_seconds(slow) if np.isfinite(slow) else "not possible", ""),
        ("Fast memory", format_bytes(plan.peak_fast), most),
        ("Moved", format_bytes(plan.moved_bytes), plural(len(moves), "move")),
    )
    figures = [Figure(name, value, distance=said) for name, value, said in rest]
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
    rows = search_rows(plan, plan.search_seconds) | {
        "Network": f"{sequence.name}: {len(sequence.kernels)} kernels, {count}",
        "Costs of kernels": described(sequence.costs),
        "Another GiB would save": (
            f"at most {format_seconds(plan.price_per_gib)}, by the price of the first byte{beyond}"
        ),
        "Mode": f"{plan.mode}, packed in round {plan.rounds}",
    }
    return pairs(rows.items())


def _rivals(plan: MemoryPlan) -> Table:
    """Compare time and bytes moved of this placement and of simpler strategies."""
    own = Rival(f"this ({plan.strategy})", plan.seconds, plan.moved_bytes)
    rows = []
    for rival in (own, *plan.rivals):
        time, relative, moved = "does not fit", NOTHING, NOTHING
        if rival.makespan is not None:
            share = rival.makespan / plan.all_fast_seconds if plan.all_fast_seconds > 0 else 1.0
            time = format_seconds(rival.makespan)
            relative = f"{share:.3f} x"
            moved = format_bytes(rival.moved_bytes)
        rows.append(
            {"strategy": rival.name, ">time": time, ">of all fast": relative, ">moved": moved}
        )
    return Table(rows)


def _movers(plan: MemoryPlan) -> Table:
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
    rows: list[Row] = []
    for t, both in sorted(copied.items(), key=lambda item: (-sum(item[1]), item[0])):
        slow, fast = (format_bytes(size) if size else NOTHING for size in both)
        rows.append(
            {
                "moves most": whole[t].name,
                "kind": whole[t].kind.value,
                ">size": format_bytes(whole[t].bytes),
                ">to slow": slow,
                ">to fast": fast,
                ">first copy": format_seconds(min(copying[t])),
                ">all done": format_seconds(max(copying[t])),
            }
        )
    return replace(first_rows(rows, _MOVERS_ON_PAGE, "tensor"), limit=_MOVERS, width=44)


def _memory_map(plan: MemoryPlan) -> MemoryMap:
    """Make the map of the fast memory, with a colour for each kind of tensor."""
    at = [*plan.timeline.kernel_start.tolist(), plan.seconds]
    tensors = plan.sequence.tensors

    def tip(stay: Stay) -> dict[str, str]:
        tensor = tensors[stay.tensor]
        kernels = f"{stay.start} to {stay.end - 1}"
        return {"name": tensor.name, "kind": tensor.kind.value, "kernels": kernels}

    shapes = [
        Shape(
            at[stay.start],
            at[stay.end],
            offset,
            offset + tensors[stay.tensor].bytes,
            partial(tip, stay),
            KINDS.index(tensors[stay.tensor].kind),
        )
        for stay, offset in zip(plan.placement.stays, plan.offsets, strict=False)
    ]
    return MemoryMap("fast memory", shapes, plan.peak_fast, None, plan.limit)


def _prices(plan: MemoryPlan) -> Curve:
    """Make the curve of seconds that a GiB more of fast memory would save, per second of each
    kernel."""
    at = [*plan.timeline.kernel_start.tolist(), plan.seconds]

    def tip(kernel: str, price: float) -> dict[str, str]:
        return {"name": kernel, "a GiB saves": format_seconds(price)}

    shapes = [
        Shape(at[k], at[k + 1], 0, price, partial(tip, plan.sequence.kernels[k].name, price))
        for k, price in enumerate((plan.prices * 2**30).tolist())
        if price > 0
    ]
    remark = "" if shapes else "Fast memory is nowhere scarce."
    title = "Price of fast memory (the multipliers of the lower bound)"
    return Curve(title, "seconds saved per GiB", shapes, remark=remark)


def _copies(plan: MemoryPlan) -> Timeline:
    """Make a lane of copies for each direction, blocking or overlapped."""
    moves, shapes = plan.placement.moves, []
    columns = moves, plan.timeline.move_start.tolist(), plan.timeline.move_end.tolist()

    def tip(tensor: StoredTensor) -> dict[str, str]:
        return {"name": tensor.name, "bytes": format_bytes(tensor.bytes)}

    for move, start, end in zip(*columns, strict=True):
        tensor, lane = plan.sequence.tensors[move.tensor], 2 * move.to_fast
        lane += move.start != move.end
        colour = KINDS.index(tensor.kind)
        shapes.append(Shape(start, end, lane, lane + 1, partial(tip, tensor), colour, alpha=1.0))
    return Timeline("Copies" if moves else "No copies", _LANES, shapes, "copies")


def _slowdowns(plan: MemoryPlan, curve: Sequence[Mapping[str, Any]]) -> Scatter:
    """Draw time relative to everything fast against the limit, with the lower bound."""
    scale, unit = largest_unit(max(point["capacity"] for point in curve) / 2, SIZES)
    fast = plan.all_fast_seconds
    marks, bounds = [], []
    for point in curve:
        if point["makespan"] is not None:
            x, slowdown = point["capacity"] / scale, point["slowdown"]
            time = format_seconds(point["makespan"])
            facts = {"time": time, "of all fast": f"{slowdown:.3f} x"}
            marks.append(Mark(x, slowdown, format_bytes(point["capacity"]), facts, 2))
            bounds.append((x, point["lower_bound"] / fast if fast > 0 else 1.0))
    paths = [Path([(mark.x, mark.y) for mark in marks], 2), Path(bounds, dash="dotted")]
    missing = len(curve) - len(marks)
    more = f" At {plural(missing, 'limit')} nothing fits." if missing else ""
    label = f"fast memory ({unit})"
    remark = f"Dotted: the lower bound.{more}"
    return Scatter("Time of all fast", label, "slowdown", marks, paths, remark=remark)


def _curve_table(points: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of slowdown over fast memory, with a bar for each limit."""
    most = max((point["slowdown"] or 0.0 for point in points), default=0.0)
    rows = []
    for point in points:
        time, slowdown, bound, bar = "does not fit", NOTHING, NOTHING, ""
        if point["makespan"] is not None:
            time, bound = map(format_seconds, (point["makespan"], point["lower_bound"]))
            slowdown = f"{point['slowdown']:.3f} x"
            bar = "#" * max(1, round(_BAR * point["slowdown"] / most))
        rows.append(
            {
                ">fast memory": format_bytes(point["capacity"]),
                ">time": time,
                ">of all fast": slowdown,
                ">lower bound": bound,
                "": bar,
            }
        )
    return Table(rows)


def _explanation(stored: StoredTensor, stretches: Iterable[Stretch]) -> list[Part]:
    """Explain in a table why a tensor is where it is, by stretches of its lifetime."""
    rows: list[Row] = []
    for s in stretches:
        saved = s.rent - s.copies - s.slower
        saves = (
            f"{'saves' if saved > 0 else 'costs'} {format_seconds(abs(saved))} against staying in"
            " the fast memory"
        )
        rent, copies, slower = (
            f"{'-' * (seconds < 0)}{format_seconds(abs(seconds))}" if seconds else NOTHING
            for seconds in (s.rent, s.copies, s.slower)
        )
        rows.append(
            {
                "memory": s.where,
                "kernels": f"{s.start} to {s.end - 1}",
                ">uses": str(s.uses),
                ">rent": rent,
                ">copies": copies,
                ">slower kernels": slower,
                "~": saves if s.where == "slow" else "",
            }
        )
    rent = (
        "Rent is what its bytes are worth in the fast memory meanwhile, by the multipliers of the"
        " lower bound: paid there, saved elsewhere."
    )
    name = f"{stored.name}: {stored.kind}, {format_bytes(stored.bytes)}"
    return [Line(name), Table(rows, rent)] if rows else []


def _sizing(plan: MemoryPlan, shown: Mapping[str, Any]) -> Line:
    """Describe the smallest fast memory that is enough, and the size that is proven too small."""
    if "max_slowdown" not in shown:
        return Line("")
    proven, too_small = "no smaller limit was ruled out", shown["too_small"]
    if too_small is not None:
        proven = f"proven: {format_bytes(too_small)} or less cannot do"
    return Line(
        f"Smallest fast memory found for a slowdown of {shown['max_slowdown']}:"
        f" {format_bytes(plan.limit)} ({plan.limit} bytes); {proven}."
    )

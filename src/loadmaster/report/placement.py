"""The view of a tensor placement."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np

from loadmaster.core.provenance import described, weakest
from loadmaster.core.units import SIZES, format_bytes, format_seconds
from loadmaster.placement.answer import MemoryPlan, Rival, ratio
from loadmaster.placement.decisions import Move, Stay
from loadmaster.placement.explain import Stretch
from loadmaster.placement.sequence import StoredKind, StoredTensor
from loadmaster.report.figures import figures_rest_on
from loadmaster.report.text import (
    NOTHING,
    clipped,
    gap_text,
    if_known,
    plural,
    printable,
    search_rows,
)
from loadmaster.report.view import (
    ALL,
    BOTH,
    DRAWN,
    PLAIN,
    Curve,
    Facts,
    Figure,
    Figures,
    Json,
    Legend,
    Line,
    Mark,
    MemoryMap,
    Notes,
    Page,
    PagePart,
    Polyline,
    Scatter,
    Section,
    Shape,
    Table,
    TimeAxis,
    TimelineChart,
    bounded,
    first_rows,
    pairs,
    table,
)

KINDS = (StoredKind.INPUT, StoredKind.WEIGHT, StoredKind.INTERMEDIATE, StoredKind.OUTPUT)
"""Kinds of tensors, in the order of their colours."""
_LANES = ("to slow, waiting", "to slow, overlapped", "to fast, waiting", "to fast, overlapped")
_FREER = "They may move tensors, and copy beside kernels, whatever the mode; before packing."
_MOVERS, _MOVERS_ON_PAGE = 8, 50
_HINT = (
    "Drag to pan, hold Ctrl and scroll to zoom in time: all charts move together. Hover over a"
    " rectangle for its tensor."
)


def placement_page(
    plan: MemoryPlan,
    shown: Json = MappingProxyType({}),
    explained: Mapping[str, Sequence[Stretch]] = MappingProxyType({}),
) -> Page:
    """Make the page of a placement.

    Parameters
    ----------
    plan
        The placement.
    shown
        The slowdown curve and the sizing of the fast memory as in ``--json``, if requested.
    explained
        By tensor, the reasons for its memory in each stretch of its lifetime.
    """
    sequence, costs = plan.sequence, plan.sequence.costs

    def sections() -> list[Section]:
        """Return the report's sections."""
        figures = Figures(_figures(plan), weakest(costs).capitalize())
        why = [
            part
            for tensor in sequence.tensors
            for part in _explanation(tensor, explained.get(tensor.name, ()))
        ]
        nothing = Line("" if plan.placement.moves else "Nothing moves.")
        return [
            Section("", [Notes(sequence.notes), figures], ALL),
            Section("", [Line(figures_rest_on(costs), "strong")]),
            Section("Fast memory over time", [Legend(), _memory_map(plan)], DRAWN, _HINT),
            Section("", [_prices(plan), _copies(plan)]),
            Section(
                "Simpler strategies, same kernels and limit", [_rivals(plan), Line(_FREER)], BOTH
            ),
            Section("Moves", [_most_moved(plan), nothing], BOTH),
            Section("How it was found", [totals(plan)], BOTH),
            Section("Why tensors are where they are", why, BOTH),
            Section("", [_sizing(plan, shown)], BOTH),
            Section("Slowdown over fast memory", _slowdowns(plan, shown.get("curve", ())), BOTH),
        ]

    def rows() -> Iterable[Json]:
        """Yield the stays of every tensor as JSON; one without addresses for tensors never in fast
        memory."""
        for tensor in plan.as_json()["tensors"]:
            named = {key: tensor[key] for key in ("name", "kind", "bytes")}
            for stay in tensor["fast"] or [{"start": None, "end": None, "offset": None}]:
                yield named | stay

    return Page(
        f"Placement of {clipped(printable(sequence.name), 60)} ({plan.mode.value})",
        "Which memory each tensor is in, and when it moves",
        sections,
        TimeAxis(plan.seconds, plan.seconds, groups=[kind.value for kind in KINDS]),
        f"{plan.status}, {format_seconds(plan.seconds)},"
        f" {gap_text(plan.status, plan.seconds, plan.lower_bound)},"
        f" {format_bytes(plan.peak_fast)} of fast memory",
        rows,
    )


def _figures(plan: MemoryPlan) -> list[Figure]:
    """Return the main figures: time, slowdown over all fast, fast memory in use and bytes moved."""
    slow = plan.all_slow_seconds
    # Both memories are read in parallel, so a placement can be faster than all in fast memory.
    why = ", as both memories are read at once, or by measured times"
    faster = why if plan.slowdown < 1 else ""
    return [
        # A proven optimum is at its bound, even if sums of seconds differ in their last digits.
        bounded(
            "Time",
            plan.seconds,
            plan.seconds if plan.status == "optimal" else plan.lower_bound,
            format_seconds,
        ),
        Figure("Slowdown", f"{plan.slowdown:.3f} x", f"over everything fast{faster}"),
        Figure(
            "All fast",
            format_seconds(plan.all_fast_seconds),
            f"takes {format_bytes(plan.sequence.peak_bytes)}",
        ),
        Figure("All slow", format_seconds(slow) if np.isfinite(slow) else "not possible"),
        Figure(
            "Fast memory",
            format_bytes(plan.peak_fast),
            f"in use at most, limit {format_bytes(plan.limit)} ({plan.limit} bytes)",
        ),
        Figure("Moved", format_bytes(plan.moved_bytes), plural(len(plan.placement.moves), "move")),
    ]


def totals(plan: MemoryPlan) -> Table:
    """Make a table of the placed tensors, the search, and the saving by more fast memory."""
    sequence = plan.sequence
    count = f"{len(sequence.tensors)} tensors"
    if plan.division is not None:
        count = f"{len(plan.division.whole.tensors)} tensors in {len(sequence.tensors)} pieces"
    saved = max(0.0, plan.seconds - plan.all_fast_seconds)
    beyond = "" if plan.price_per_gib <= saved else f" (everything fast: {format_seconds(saved)})"
    rows = search_rows(plan, plan.search_seconds) | {
        "Network": f"{sequence.name}: {plural(len(sequence.kernels), 'kernel')}, {count}",
        "Costs of kernels": described(sequence.costs),
        "Another GiB would save": (
            f"at most {format_seconds(plan.price_per_gib)}, by the price of the first byte{beyond}"
        ),
        "Mode": f"{plan.mode}, packed in round {plan.rounds}",
    }
    return pairs(rows.items())


def _rivals(plan: MemoryPlan) -> Table:
    """Make a table of time and bytes moved of this placement and of simpler strategies."""
    own = Rival(f"this ({plan.strategy})", plan.seconds, plan.moved_bytes)
    rows = []
    for rival in (own, *plan.rivals):
        moved = NOTHING if rival.makespan is None else format_bytes(rival.moved_bytes)
        rows.append((rival.name, *_time_and_slowdown(plan, rival.makespan), moved))
    return table(("strategy", ">time", ">of all fast", ">moved"), rows)


def _time_and_slowdown(plan: MemoryPlan, seconds: float | None) -> tuple[str, str]:
    """Format a time, and its ratio to the time with all tensors in fast memory; None: does not
    fit."""
    if seconds is None:
        return "does not fit", NOTHING
    return format_seconds(seconds), f"{ratio(seconds, plan.all_fast_seconds):.3f} x"


def _most_moved(plan: MemoryPlan) -> Table:
    """Make a table of the tensors with the most copied bytes, pieces of a tensor in sum."""
    division, sizes = plan.division, [tensor.bytes for tensor in plan.sequence.tensors]
    whole = (plan.sequence if division is None else division.whole).tensors
    moved: dict[int, Counter[bool]] = defaultdict(Counter)
    times: dict[int, list[float]] = defaultdict(list)
    for move, start, end in _timed_moves(plan):
        tensor = move.tensor if division is None else division.of[move.tensor]
        moved[tensor][move.to_fast] += sizes[move.tensor]
        times[tensor] += start, end
    rows = [
        {
            "moves most": whole[t].name,
            "kind": whole[t].kind.value,
            ">size": format_bytes(whole[t].bytes),
            ">to slow": format_bytes(to[False]),
            ">to fast": format_bytes(to[True]),
            ">first copy": format_seconds(min(times[t])),
            ">all done": format_seconds(max(times[t])),
        }
        for t, to in sorted(moved.items(), key=lambda item: -item[1].total())
    ]
    return replace(first_rows(rows, _MOVERS_ON_PAGE, "other tensor"), limit=_MOVERS)


def _timed_moves(plan: MemoryPlan) -> Iterator[tuple[Move, float, float]]:
    """Yield the moves with their starts and ends in seconds."""
    times = plan.timeline.move_start.tolist(), plan.timeline.move_end.tolist()
    return zip(plan.placement.moves, *times, strict=True)


def _kernel_starts(plan: MemoryPlan) -> list[float]:
    """Return the starts of kernels, and the end of the last."""
    return [*plan.timeline.kernel_start.tolist(), plan.seconds]


def _memory_map(plan: MemoryPlan) -> MemoryMap:
    """Make the map of the fast memory, with a colour for each kind of tensor."""
    at, tensors = _kernel_starts(plan), plan.sequence.tensors

    def tip(stay: Stay) -> Facts:
        """Return the tooltip of a stay."""
        kernels = f"{stay.start} to {stay.end - 1}"
        return _tip(tensors[stay.tensor]) | {"kernels": kernels}

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


def _tip(tensor: StoredTensor) -> Facts:
    """Return the tooltip of a tensor."""
    return {"name": tensor.name, "kind": tensor.kind.value, "bytes": format_bytes(tensor.bytes)}


def _prices(plan: MemoryPlan) -> Curve:
    """Make the curve of prices: seconds saved by another GiB of fast memory, per second of each
    kernel."""
    at, prices = _kernel_starts(plan), (plan.prices * 2**30).tolist()
    shapes = [
        Shape(at[k], at[k + 1], 0, price, partial(dict, kernel=plan.sequence.kernels[k].name))
        for k, price in enumerate(prices)
        if price > 0
    ]
    remark = "" if shapes else "Fast memory is nowhere scarce."
    title = "Price of fast memory (the multipliers of the lower bound)"
    return Curve(title, "seconds saved per GiB", shapes, remark=remark)


def _copies(plan: MemoryPlan) -> TimelineChart:
    """Make a lane of copies for each direction, blocking or overlapped."""
    shapes = []
    for move, start, end in _timed_moves(plan):
        tensor = plan.sequence.tensors[move.tensor]
        lane = 2 * move.to_fast + (move.start != move.end)
        colour = KINDS.index(tensor.kind)
        shapes.append(Shape(start, end, lane, lane + 1, partial(_tip, tensor), colour, alpha=1.0))
    return TimelineChart("Copies" if shapes else "No copies", _LANES, shapes)


def _slowdowns(plan: MemoryPlan, curve: Iterable[Json]) -> list[PagePart]:
    """Return the chart and table of the slowdown (time relative to all in fast memory) over the
    limit of fast memory, with the lower bound."""
    rows, marks = [], []
    for point in curve:
        size = format_bytes(point["capacity"])
        time, slowdown = _time_and_slowdown(plan, point["makespan"])
        least = if_known(point["lower_bound"], format_seconds)
        if point["slowdown"] is not None:
            bound = ratio(point["lower_bound"], plan.all_fast_seconds)
            facts = {"time": time, "of all fast": slowdown, "lower bound": least}
            marks.append(Mark(point["capacity"], point["slowdown"], size, facts, 2, bound=bound))
        rows.append((size, time, slowdown, least))
    heads = ">fast memory", ">time", ">of all fast", ">lower bound"
    remark = "The bar below a point ends at its lower bound."
    line = Polyline([(mark.x, mark.y) for mark in marks], 2)
    chart = Scatter(
        "", "fast memory", "time of all fast", marks, [line], units=(SIZES, PLAIN), remark=remark
    )
    return [chart, table(heads, rows)] if rows else []


def _explanation(stored: StoredTensor, stretches: Iterable[Stretch]) -> list[PagePart]:
    """Return a table of the reasons for a tensor's memory in each stretch of its lifetime."""
    rows = []
    for s in stretches:
        saved = s.rent - s.copies - s.slower
        saves = (
            f"{'saves' if saved > 0 else 'costs'} {format_seconds(abs(saved))} against staying in"
            " the fast memory"
        )
        times = (
            f"{'-' * (seconds < 0)}{format_seconds(abs(seconds))}" if seconds else NOTHING
            for seconds in (s.rent, s.copies, s.slower)
        )
        saved_there = saves * (s.where == "slow")
        rows.append((s.where, f"{s.start} to {s.end - 1}", str(s.uses), *times, saved_there))
    heads = ("memory", "kernels", ">uses", ">rent", ">copies", ">slower kernels", "~")
    rent = (
        "Rent is what its bytes are worth in the fast memory meanwhile, by the multipliers of the"
        " lower bound: paid there, saved elsewhere."
    )
    name = f"{stored.name}: {stored.kind}, {format_bytes(stored.bytes)}"
    return [Line(name), replace(table(heads, rows), rest=rent)] if rows else []


def _sizing(plan: MemoryPlan, shown: Json) -> Line:
    """Describe the smallest sufficient fast memory, and the largest size proven too small."""
    if "max_slowdown" not in shown:
        return Line("")
    proven, too_small = "no smaller limit was ruled out", shown["too_small"]
    if too_small is not None:
        proven = f"proven: {too_small} bytes or less cannot do"
    return Line(
        f"Smallest fast memory found for a slowdown of {shown['max_slowdown']}:"
        f" {format_bytes(plan.limit)} ({plan.limit} bytes); {proven}."
    )

"""The summary of a tensor placement in the terminal: its figures and bound, what moves, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from loadmaster.core.provenance import described, weakest
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.placement.answer import MemoryPlan, Rival
from loadmaster.report.text import NOTHING, clipped, percent, printable

_MOVERS = 8
_NAME = 44
_BAR = 40


def placement_summary(plan: MemoryPlan) -> RenderableType:
    """Make tables of totals, of simpler strategies, and of the tensors that move most."""
    parts: list[RenderableType] = [Text(printable(note)) for note in plan.sequence.notes]
    parts += [_pairs(totals(plan)), Text(), _rivals(plan)]
    if plan.placement.moves:
        parts += [Text(), _movers(plan)]
    return Group(*parts)


def totals(plan: MemoryPlan) -> list[tuple[str, str]]:
    """List name and value of the totals."""
    slow = (
        format_seconds(plan.all_slow_seconds)
        if plan.all_slow_seconds < float("inf")
        else "not possible"
    )
    sequence = plan.sequence
    count = f"{len(sequence.tensors)} tensors"
    if plan.division is not None:
        count = f"{len(plan.division.whole.tensors)} tensors in {len(sequence.tensors)} pieces"
    return [
        ("Network", f"{printable(sequence.name)}: {len(sequence.kernels)} kernels, {count}"),
        ("Status", plan.status + (" (stopped early)" if plan.interrupted else "")),
        (
            "Time",
            (
                f"{format_seconds(plan.seconds)}, {weakest(sequence.costs)}; {plan.slowdown:.3f} x"
                f" all fast{_faster_than_fast(plan)}"
            ),
        ),
        ("Costs of kernels", printable(described(sequence.costs))),
        ("Lower bound", f"{format_seconds(plan.lower_bound)}, gap {percent(plan.gap)}"),
        ("All fast, all slow", f"{format_seconds(plan.all_fast_seconds)}, {slow}"),
        (
            "Fast memory",
            (
                f"{format_bytes(plan.peak_fast)} in use at most, limit {format_bytes(plan.limit)}"
                f" ({plan.limit} bytes)"
            ),
        ),
        ("All fast would take", format_bytes(sequence.peak_bytes)),
        ("Moves", f"{len(plan.placement.moves)} copies, {format_bytes(plan.moved_bytes)}"),
        (
            "Another GiB would save",
            f"at most {format_seconds(plan.price_per_gib)}, by the price of the first byte"
            + _beyond_fast(plan),
        ),
        (
            "Strategy",
            f"{plan.strategy}, mode {plan.mode}, seed {plan.seed}, packed in round {plan.rounds}",
        ),
        (
            "Took",
            f"{format_seconds(plan.search_seconds)} ({format_seconds(plan.cpu_seconds)} of CPU)",
        ),
    ]


def _faster_than_fast(plan: MemoryPlan) -> str:
    """Why a placement can take less time than with everything in the fast memory."""
    return ", as both memories are read at once" if plan.slowdown < 1 else ""


def _beyond_fast(plan: MemoryPlan) -> str:
    """What everything fast would save, where another GiB may save more."""
    saved = max(0.0, plan.seconds - plan.all_fast_seconds)
    if plan.price_per_gib <= saved:
        return ""
    return f" (everything fast: {format_seconds(saved)}, as only one memory is read then)"


def rival_rows(plan: MemoryPlan) -> list[tuple[str, str, str, str]]:
    """List name, time, time relative to all fast, and bytes moved of this placement and of simpler
    strategies."""
    own = (
        f"this ({plan.strategy})",
        format_seconds(plan.seconds),
        f"{plan.slowdown:.3f} x",
        format_bytes(plan.moved_bytes),
    )
    return [own, *(_rival_row(plan, rival) for rival in plan.rivals)]


def _rival_row(plan: MemoryPlan, rival: Rival) -> tuple[str, str, str, str]:
    if rival.seconds is None:
        return rival.name, "does not fit", NOTHING, NOTHING
    relative = rival.seconds / plan.all_fast_seconds if plan.all_fast_seconds > 0 else 1.0
    return (
        rival.name,
        format_seconds(rival.seconds),
        f"{relative:.3f} x",
        format_bytes(rival.moved_bytes),
    )


def explanation(plan: MemoryPlan, tensor: int) -> RenderableType:
    """Make a table of why a tensor is where it is, by stretches of its lifetime."""
    from loadmaster.placement.explain import explain_tensor

    stored = plan.sequence.tensors[tensor]
    stretches = explain_tensor(plan.sequence, plan.placement, plan.prices, tensor)
    table = _columns("memory", "kernels", ">uses", ">rent", ">copies", ">slower kernels", "")
    for s in stretches:
        spent = s.copies + s.slower
        costs = tuple(_signed(value) for value in (s.rent, s.copies, s.slower))
        saves = (
            f"{'saves' if s.rent > spent else 'costs'} {format_seconds(abs(s.rent - spent))}"
            " against staying in the fast memory"
        )
        table.add_row(
            s.where,
            f"{s.start} to {s.end - 1}",
            str(s.uses),
            *costs,
            saves if s.where == "slow" else "",
        )
    rent = (
        "Rent is what its bytes are worth in the fast memory meanwhile, by the multipliers of the"
        " lower bound: paid there, saved elsewhere."
    )
    return Group(
        Text(f"{printable(stored.name)}: {stored.kind}, {format_bytes(stored.bytes)}"),
        table,
        Text(rent),
    )


def sizing(plan: MemoryPlan, max_slowdown: float, too_small: int | None) -> RenderableType:
    """Describe the smallest fast memory that is enough, and the size that is proven too small."""
    proven = (
        "no smaller limit was ruled out"
        if too_small is None
        else f"proven: {format_bytes(too_small)} or less cannot do"
    )
    return Text(
        f"Smallest fast memory found for a slowdown of {max_slowdown}: {format_bytes(plan.limit)}"
        f" ({plan.limit} bytes); {proven}."
    )


def curve_table(points: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Make a table of slowdown over fast memory, with a bar for each limit."""
    table = _columns(">fast memory", ">time", ">of all fast", ">lower bound", "")
    worst = max(
        (point["slowdown"] for point in points if point["slowdown"] is not None), default=1.0
    )
    for point in points:
        if point["makespan"] is None:
            table.add_row(format_bytes(point["capacity"]), "does not fit", NOTHING, NOTHING)
            continue
        bar = "#" * max(1, round(_BAR * point["slowdown"] / worst))
        times = (
            format_seconds(point["makespan"]),
            f"{point['slowdown']:.3f} x",
            format_seconds(point["lower_bound"]),
        )
        table.add_row(format_bytes(point["capacity"]), *times, bar)
    return table


def _signed(seconds: float) -> str:
    return (
        (f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds))
        if seconds
        else NOTHING
    )


def _rivals(plan: MemoryPlan) -> Table:
    table = _columns("strategy", ">time", ">of all fast", ">moved")
    for row in rival_rows(plan):
        table.add_row(*row)
    return table


def _movers(plan: MemoryPlan) -> Table:
    table = _columns("moves most", "kind", ">bytes", ">copies")
    for tensor, copies in movers(plan)[:_MOVERS]:
        stored = plan.sequence.tensors[tensor]
        table.add_row(
            Text(clipped(printable(stored.name), _NAME)),
            stored.kind.value,
            format_bytes(stored.bytes),
            str(copies),
        )
    return table


def movers(plan: MemoryPlan) -> Sequence[tuple[int, int]]:
    """List tensors and how often each is copied, most bytes first."""
    counts = Counter(move.tensor for move in plan.placement.moves)
    return sorted(
        counts.items(), key=lambda item: (-item[1] * plan.sequence.tensors[item[0]].bytes, item[0])
    )


def _columns(*names: str) -> Table:
    table = Table(
        box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False
    )
    for name in names:
        table.add_column(
            name.removeprefix(">"), justify="right" if name.startswith(">") else "left"
        )
    return table


def _pairs(rows: list[tuple[str, str]]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, Text(value))
    return table

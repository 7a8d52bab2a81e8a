"""The memory map of a plan: address against time, one rectangle per buffer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from bokeh.models import Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bytes
from loadmaster.planning.plan_records import MemoryUse, PlannedAllocation, PlannedTensor, PlanRecord
from loadmaster.report import figures
from loadmaster.report.charts import Canvas, chart, hover, level, rectangles
from loadmaster.report.colours import MERGED
from loadmaster.report.merging import MAX_SHAPES
from loadmaster.report.text import chart_text, clipped, plural, printable
from loadmaster.targets.hardware import Memory

CAPACITY, PEAK, BOUND = "#b42318", "#1f2933", "#067647"
TALL = 1.6
"""Ratio of capacity to peak above which the capacity is named in the title and has no line, which
would compress the map."""
_OUTLINED = 0.015
"""Least height of a buffer with an outline, as a share of the map's; on a thinner one the outline
would hide the colour."""
GRID_CELLS = 64
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))
ROWS = (
    ("network", "network"),
    ("kind", "kind"),
    ("size", "size"),
    ("address", "address"),
    ("lifetime", "lifetime"),
    ("producer", "producer"),
)
MERGED_ROWS = (("bytes", "size"), ("time", "lifetime"))


@dataclass(frozen=True)
class Scale:
    """The unit of the address axis."""

    name: str
    bytes: int


def scale_for(size: int) -> Scale:
    """Choose the largest unit of which the size holds two."""
    size_of, name = next(((s, n) for s, n in _UNITS if size >= 2 * s), _UNITS[-1])
    return Scale(name, size_of)


def draw_map(plan: PlanRecord, memory: Memory, on: Canvas) -> tuple[figure, str]:
    """Draw the map of one memory; also return a sentence on what was merged in it (empty if nothing
    was)."""
    use = figures.memory_use(plan, memory.name, memory.capacity)
    tall = use.capacity > TALL * max(1, use.peak)
    scale = scale_for(use.peak if tall else use.capacity)
    top = (1.14 * max(1, use.peak) if tall else 1.06 * max(use.capacity, use.peak)) / scale.bytes
    name = chart_text(clipped(memory.name, 40))
    plot = chart(
        on,
        f"{name}: {_claim(use)}",
        380,
        Range1d(start=0, end=top),
        f"address ({scale.name})",
        box="both",
    )
    shown, small = split(figures.allocations_of(plan, memory.name), MAX_SHAPES)
    _draw_merged(plot, on, scale, small)
    _draw_buffers(plot, on, scale, plan, shown, _OUTLINED * top)
    _draw_levels(plot, scale, use, tall)
    return plot, _remark(memory, small)


def _claim(use: MemoryUse) -> str:
    return (
        f"peak {format_bytes(use.peak)}, lower bound {format_bytes(use.lower_bound)}, capacity"
        f" {format_bytes(use.capacity)}"
    )


def _draw_levels(plot: figure, scale: Scale, use: MemoryUse, tall: bool) -> None:
    if not tall:
        level(
            plot,
            use.capacity / scale.bytes,
            f"capacity {format_bytes(use.capacity)}",
            CAPACITY,
            "solid",
            below=use.peak > use.capacity,
        )
    same = use.peak == use.lower_bound
    text = f"peak {format_bytes(use.peak)}" + (", which is the lower bound" if same else "")
    level(plot, use.peak / scale.bytes, text, PEAK, "dashed", below=use.peak > 0.95 * use.capacity)
    if not same:
        level(
            plot,
            use.lower_bound / scale.bytes,
            f"lower bound {format_bytes(use.lower_bound)}",
            BOUND,
            "dotted",
            below=True,
        )


def split(
    allocations: Sequence[PlannedAllocation], limit: int
) -> tuple[list[PlannedAllocation], list[list[PlannedAllocation]]]:
    """Split off the buffers to draw; group the others, the smallest in bytes x time, with near
    ones."""
    if len(allocations) <= limit:
        return list(allocations), []
    ranked = sorted(
        allocations, key=lambda a: (-(a.end - a.start) * a.bytes, a.start, a.offset, a.tensor)
    )
    keep = max(0, limit - GRID_CELLS**2)
    last = max(a.end for a in allocations) or 1.0
    top = max(a.offset + a.bytes for a in allocations) or 1
    cells: dict[tuple[int, int], list[PlannedAllocation]] = defaultdict(list)
    for a in ranked[keep:]:
        middle, centre = (a.start + a.end) / (2 * last), (a.offset + a.bytes / 2) / top
        cells[int(middle * GRID_CELLS), int(centre * GRID_CELLS)].append(a)
    return ranked[:keep], [cells[cell] for cell in sorted(cells)]


def _remark(memory: Memory, small: Sequence[Sequence[PlannedAllocation]]) -> str:
    if not small:
        return ""
    count = sum(map(len, small))
    return (
        f"{printable(memory.name)} holds more than {MAX_SHAPES:,} buffers over time: the"
        f" {plural(count, 'smallest buffer')} (bytes x time) are drawn as"
        f" {plural(len(small), 'grey rectangle')} around them, behind the others."
    )


def _box(
    on: Canvas, scale: Scale, group: Sequence[PlannedAllocation]
) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top of the rectangle around a few buffers."""
    left, right = min(a.start for a in group), max(a.end for a in group)
    bottom, top = min(a.offset for a in group), max(a.offset + a.bytes for a in group)
    return on.unit.of(left), on.unit.of(right), bottom / scale.bytes, top / scale.bytes


def _columns(
    on: Canvas, scale: Scale, groups: Sequence[Sequence[PlannedAllocation]]
) -> dict[str, list[object]]:
    boxes = [_box(on, scale, group) for group in groups]
    sides: dict[str, list[object]] = {
        side: [box[i] for box in boxes] for i, side in enumerate(("left", "right", "bottom", "top"))
    }
    sides["size"] = [format_bytes(sum(a.bytes for a in group)) for group in groups]
    sides["lifetime"] = [
        on.unit.span(min(a.start for a in g), max(a.end for a in g)) for g in groups
    ]
    return sides


def _draw_merged(
    plot: figure, on: Canvas, scale: Scale, small: Sequence[Sequence[PlannedAllocation]]
) -> None:
    if not small:
        return
    data = _columns(on, scale, small)
    data["name"] = [f"{plural(len(group), 'buffer')} merged" for group in small]
    hover(plot, [rectangles(plot, data, MERGED, 0.5)], "name", MERGED_ROWS)


def _draw_buffers(
    plot: figure,
    on: Canvas,
    scale: Scale,
    plan: PlanRecord,
    shown: Sequence[PlannedAllocation],
    outlined: float,
) -> None:
    """Draw the buffers with a renderer for each network, which the legend hides; outlines from a
    height of ``outlined`` on."""
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    by_network: dict[str, list[PlannedAllocation]] = {name: [] for name in on.colours}
    for allocation in shown:
        by_network[tensors[allocation.tensor].network].append(allocation)
    renderers = []
    for network, mine in by_network.items():
        data = _columns(on, scale, [[a] for a in mine]) | _tensor_columns(
            [tensors[a.tensor] for a in mine], mine
        )
        data["edge"] = [float(a.bytes >= outlined * scale.bytes) for a in mine]
        renderer = rectangles(plot, data, on.colours[network], "alpha", "edge")
        on.drawn.setdefault(network, []).append(renderer)
        renderers.append(renderer)
    hover(plot, renderers, "name", ROWS)


def _tensor_columns(
    tensors: Sequence[PlannedTensor], allocations: Sequence[PlannedAllocation]
) -> dict[str, list[object]]:
    """Make the columns of the tooltip; what a job produces is opaque, weights and inputs are
    pale."""
    return {
        "name": [printable(t.name) for t in tensors],
        "network": [printable(t.network) for t in tensors],
        "kind": [
            f"{printable(t.kind)}, an output of the network" if t.is_output else printable(t.kind)
            for t in tensors
        ],
        "address": [f"{a.offset:,} to {a.offset + a.bytes:,}" for a in allocations],
        "producer": [printable(t.producer) or "there from the start" for t in tensors],
        "alpha": [0.75 if t.producer else 0.3 for t in tensors],
    }

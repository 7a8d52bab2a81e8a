"""The chart of the schedule: a lane per core and per direction of copies, a rectangle per job,
coloured by network."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bokeh.models import FixedTicker, Range1d
from bokeh.plotting import figure

from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.planning.plan_records import PlannedJob, PlannedOperand, PlannedTransfer, PlanRecord
from loadmaster.report import figures
from loadmaster.report.charts import Canvas, chart, hover, rectangles
from loadmaster.report.colours import COPY, MERGED, shade
from loadmaster.report.cuts import family, piece
from loadmaster.report.legend import legend_name
from loadmaster.report.merging import MAX_SHAPES, merge_neighbours
from loadmaster.report.text import chart_text, clipped, comma, plural, printable

LANE_FILL = 0.76
JOB_ROWS = (
    ("network", "network"),
    ("operators", "operators"),
    ("piece", "piece"),
    ("core", "lane"),
    ("time", "time"),
    ("duration", "duration"),
    ("reads", "reads"),
    ("writes", "writes"),
)
COPY_ROWS = (("copy", "lane"), ("time", "time"), ("duration", "duration"), ("bytes", "bytes"))
MERGED_ROWS = (("lane", "lane"), ("time", "time"), ("busy", "busy"))


@dataclass(frozen=True)
class Lane:
    """A row of the chart, with its jobs or copies by start time."""

    name: str
    label: str
    items: Sequence[PlannedJob] | Sequence[PlannedTransfer]


@dataclass(frozen=True)
class Block:
    """One rectangle: the items [first, last) of a lane, more than one if neighbours were merged."""

    lane: int
    items: Sequence[PlannedJob | PlannedTransfer]

    @property
    def start(self) -> float:
        """Start of the first item, in seconds."""
        return self.items[0].start

    @property
    def end(self) -> float:
        """End of the last item, in seconds."""
        return max(item.end for item in self.items)


def lanes(plan: PlanRecord) -> list[Lane]:
    """Return lanes for the cores in the target's order, then for each direction with copies."""
    jobs: dict[str, list[PlannedJob]] = defaultdict(list)
    for job in sorted(plan.jobs, key=lambda j: (j.start, j.end)):
        jobs[job.core].append(job)
    moves: dict[tuple[str, str], list[PlannedTransfer]] = defaultdict(list)
    for move in figures.copies(plan):
        moves[move.source, move.destination].append(move)
    copying = [
        Lane(f"{source} to {to}", f"copy to {to}", moves[source, to])
        for source, to in sorted(moves)
    ]
    return [Lane(core.name, core.name, jobs[core.name]) for core in plan.target.cores] + copying


def blocks(rows: Sequence[Lane], limit: int) -> list[Block]:
    """Make at most ``limit`` rectangles for all items of the lanes."""
    items = [(i, item) for i, row in enumerate(rows) for item in row.items]
    groups = merge_neighbours(
        [i for i, _ in items],
        [item.start for _, item in items],
        [item.end for _, item in items],
        limit,
    )
    return [Block(items[g.start][0], [item for _, item in items[g.start : g.stop]]) for g in groups]


def draw_schedule(plan: PlanRecord, on: Canvas) -> tuple[figure, str]:
    """Draw the chart; also return a sentence on what was merged in it (empty if nothing was)."""
    rows = lanes(plan)
    shapes = blocks(rows, MAX_SHAPES)
    height = 92 + len(rows) * max(16, min(40, 640 // max(1, len(rows))))
    plot = chart(on, "Schedule", height, Range1d(start=len(rows) - 0.5, end=-0.5), "")
    _name_lanes(plot, rows)
    single = [b for b in shapes if len(b.items) == 1]
    _draw_jobs(plot, on, rows, single, _shades(plan))
    _draw_copies(plot, on, rows, single)
    merged = [b for b in shapes if len(b.items) > 1]
    _draw_merged(plot, on, rows, merged)
    return plot, _remark(merged)


def _name_lanes(plot: figure, rows: Sequence[Lane]) -> None:
    plot.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    plot.yaxis.major_label_overrides = {
        i: chart_text(clipped(row.label, 19)) for i, row in enumerate(rows)
    }
    plot.yaxis.update(major_tick_line_color=None, axis_line_color=None)
    plot.ygrid.grid_line_color = None


def _remark(merged: Sequence[Block]) -> str:
    if not merged:
        return ""
    count = sum(len(block.items) for block in merged)
    return (
        f"More than {MAX_SHAPES:,} rectangles would make this chart unusable: the"
        f" {plural(count, 'shortest job')} and copies are drawn as"
        f" {plural(len(merged), 'grey rectangle')}. trace.pftrace has every one of them."
    )


def _columns(on: Canvas, rows: Sequence[Lane], shapes: Sequence[Block]) -> dict[str, list[object]]:
    """Make the columns of some rectangles: place and time."""
    unit = on.unit
    return {
        "left": [unit.of(b.start) for b in shapes],
        "right": [unit.of(b.end) for b in shapes],
        "top": [b.lane - LANE_FILL / 2 for b in shapes],
        "bottom": [b.lane + LANE_FILL / 2 for b in shapes],
        "lane": [printable(rows[b.lane].name) for b in shapes],
        "time": [unit.span(b.start, b.end) for b in shapes],
    }


def _shades(plan: PlanRecord) -> dict[tuple[str, tuple[str, ...]], int]:
    """Number the operators in pieces of every network, so that neighbours have unlike shades; whole
    ones are not among them."""
    numbers: dict[str, int] = defaultdict(int)
    shades: dict[tuple[str, tuple[str, ...]], int] = {}
    for job in sorted(plan.jobs, key=lambda job: (job.start, job.name)):
        if job.tiles > 1 and (job.network, job.operators) not in shades:
            shades[job.network, job.operators] = numbers[job.network]
            numbers[job.network] += 1
    return shades


def _draw_jobs(
    plot: figure,
    on: Canvas,
    rows: Sequence[Lane],
    shapes: Sequence[Block],
    shades: dict[tuple[str, tuple[str, ...]], int],
) -> None:
    """Draw jobs with a renderer for each network, under the name by which the legend finds it.

    The pieces of an operator have one shade of the network's colour, in all mini-batches.
    """
    by_network: dict[str, list[tuple[Block, PlannedJob]]] = {name: [] for name in on.colours}
    for block in shapes:
        if isinstance(job := block.items[0], PlannedJob):
            by_network[job.network].append((block, job))
    renderers = []
    for number, (network, pairs) in enumerate(by_network.items()):
        data = _columns(on, rows, [block for block, _ in pairs]) | _job_columns(
            [job for _, job in pairs]
        )
        data["colour"] = [
            shade(on.colours[network], shades.get((network, job.operators), 0)) for _, job in pairs
        ]
        renderer = rectangles(plot, data, "colour", "alpha", "alpha")
        if network not in on.drawn:  # the legend hides the first, which hides the others
            renderer.name = legend_name(number)
        on.drawn.setdefault(network, []).append(renderer)
        renderers.append(renderer)
    hover(plot, renderers, "name", JOB_ROWS)


def _job_columns(jobs: Sequence[PlannedJob]) -> dict[str, list[object]]:
    """Make the columns of the tooltip; a job is the paler, the more of its time is without
    arithmetic."""
    lengths = [job.end - job.start for job in jobs]
    shares = [
        min(1.0, job.compute / length) if length > 0 else 1.0
        for job, length in zip(jobs, lengths, strict=True)
    ]
    return {
        "name": [printable(family(job)) for job in jobs],
        "piece": [piece(job) or "the whole" for job in jobs],
        "network": [printable(job.network) for job in jobs],
        "operators": [figures.operators_of(job.operators) for job in jobs],
        "duration": [_duration(job) for job in jobs],
        "reads": [_operands(job.reads) for job in jobs],
        "writes": [_operands(job.writes) for job in jobs],
        "alpha": [0.3 + 0.6 * share for share in shares],
    }


def _duration(job: PlannedJob) -> str:
    length = job.end - job.start
    return (
        f"{format_seconds(length)}: {format_seconds(job.compute)} computing,"
        f" {format_seconds(max(0.0, length - job.compute))} stalled"
    )


def _operands(operands: Iterable[PlannedOperand]) -> str:
    """Format bytes by memory."""
    total: dict[str, int] = defaultdict(int)
    for operand in operands:
        total[operand.memory] += operand.bytes
    return comma(f"{format_bytes(count)} {printable(memory)}" for memory, count in total.items())


def _draw_copies(plot: figure, on: Canvas, rows: Sequence[Lane], shapes: Sequence[Block]) -> None:
    pairs = [(b, move) for b in shapes if isinstance(move := b.items[0], PlannedTransfer)]
    if not pairs:
        return
    data = _columns(on, rows, [block for block, _ in pairs])
    data["name"] = [printable(move.tensor) for _, move in pairs]
    data["duration"] = [format_seconds(move.end - move.start) for _, move in pairs]
    data["bytes"] = [format_bytes(move.bytes) for _, move in pairs]
    hover(plot, [rectangles(plot, data, COPY, 0.75)], "name", COPY_ROWS)


def _draw_merged(plot: figure, on: Canvas, rows: Sequence[Lane], shapes: Sequence[Block]) -> None:
    if not shapes:
        return
    data = _columns(on, rows, shapes)
    data["name"] = [_merged_name(block) for block in shapes]
    data["busy"] = [
        format_seconds(sum(item.end - item.start for item in block.items)) for block in shapes
    ]
    hover(plot, [rectangles(plot, data, MERGED)], "name", MERGED_ROWS)


def _merged_name(block: Block) -> str:
    return (
        f"{len(block.items):,} {'jobs' if isinstance(block.items[0], PlannedJob) else 'copies'}"
        " merged"
    )

"""The charts of a plan: schedule, links, memory maps, stacks of operators, and the search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from operator import attrgetter

from loadmaster.core.units import BANDWIDTHS, TIMES, format_bandwidth, format_bytes, format_seconds
from loadmaster.planning.plan_records import (
    LinkSegment,
    PlannedJob,
    PlannedOperand,
    PlannedTransfer,
    PlanRecord,
)
from loadmaster.report.cuts import Band, Stack, family, piece
from loadmaster.report.figures import (
    allocations_of,
    copies,
    memory_use,
    objective_name,
    objective_units,
)
from loadmaster.report.text import comma, printable, shortened
from loadmaster.report.timeline import first_free_lines
from loadmaster.report.view import Curve, Facts, MemoryMap, Shape, TimeAxis, TimelineChart, steps
from loadmaster.targets.hardware import Memory


def time_axis(*plans: PlanRecord) -> TimeAxis:
    """Make the common time axis of plans, from zero to the end of the last job or copy."""
    span = max(plan.metrics.makespan.value for plan in plans)
    names = dict.fromkeys(network.name for plan in plans for network in plan.networks)
    ends = [job.end for plan in plans for job in plan.jobs]
    ends += [move.end for plan in plans for move in plan.transfers]
    return TimeAxis(max([span, *ends]), span, groups=tuple(names))


def schedule(plan: PlanRecord, axis: TimeAxis) -> TimelineChart:
    """Make the schedule: a lane for each core and for each direction of copies.

    Paler jobs spend more of their time without arithmetic. Pieces of one operator have the same
    shade of their network's colour.
    """
    moves = copies(plan)
    ways = sorted({(move.source, move.destination) for move in moves})
    cores = [core.name for core in plan.target.cores]
    lanes: dict[object, int] = {name: lane for lane, name in enumerate([*cores, *ways])}
    in_order = sorted(plan.jobs, key=lambda job: (job.start, job.name))
    cut = dict.fromkeys((job.network, job.operators) for job in in_order if job.tiles > 1)
    tints = {operators: number for number, operators in enumerate(cut)}
    shapes = []
    for job in plan.jobs:
        if job.core in lanes:
            lane, length = lanes[job.core], job.end - job.start
            busy = min(1.0, job.compute / length) if length > 0 else 1.0
            paint = (
                axis.groups.index(job.network),
                tints.get((job.network, job.operators), 0),
                0.3 + 0.6 * busy,
            )
            tip = partial(_job_tip, job)
            shapes.append(Shape(job.start, job.end, lane, lane + 1, tip, *paint))
    for move in moves:
        lane = lanes[move.source, move.destination]
        tip = partial(_copy_tip, move)
        shapes.append(Shape(move.start, move.end, lane, lane + 1, tip, colour=-1))
    names = [*cores, *(f"copy to {to}" for _, to in ways)]
    return TimelineChart("Schedule", names, shapes)


def _copy_tip(move: PlannedTransfer) -> Facts:
    """Return the tooltip of a copy."""
    return {
        "name": move.tensor,
        "copy": f"{move.source} to {move.destination}",
        "duration": format_seconds(move.end - move.start),
        "bytes": format_bytes(move.bytes),
    }


def _job_tip(job: PlannedJob) -> Facts:
    """Return the tooltip of a job."""
    length = job.end - job.start
    computing, stalled = job.compute, max(0.0, length - job.compute)
    return {
        "name": family(job),
        "network": job.network,
        "operators": shortened(job.operators),
        "piece": piece(job) or "the whole",
        "core": job.core,
        "duration": (
            f"{format_seconds(length)}: {format_seconds(computing)} computing,"
            f" {format_seconds(stalled)} stalled"
        ),
        "reads": _operands(job.reads),
        "writes": _operands(job.writes),
    }


def _operands(operands: Iterable[PlannedOperand]) -> str:
    """Format bytes by memory."""
    total: Counter[str] = Counter()
    for operand in operands:
        total[operand.memory] += operand.bytes
    return comma(f"{format_bytes(count)} {memory}" for memory, count in total.items())


def link(plan: PlanRecord, memory: Memory) -> Curve:
    """Make the curve of the rate of a memory's link."""
    read = memory.read_bandwidth
    limit = read if read == memory.write_bandwidth else None
    return link_curve(f"Link to {memory.name}", plan.links.get(memory.name, ()), limit)


def link_curve(title: str, segments: Sequence[LinkSegment], limit: float | None) -> Curve:
    """Make the curve of a link's rate and ``limit`` in bytes/s; without a common limit for reading
    and writing (None), that of its load."""
    if limit is None:
        loads = steps((s.start, s.end, 100 * s.load) for s in segments)
        return Curve(title, "load (%)", loads, limit=(100.0, "all of the link's time"))
    rates = steps((s.start, s.end, s.bytes_per_second) for s in segments)
    return Curve(title, "traffic", rates, BANDWIDTHS, (limit, f"limit {format_bandwidth(limit)}"))


def memory_map(plan: PlanRecord, memory: Memory, axis: TimeAxis) -> MemoryMap:
    """Make the map of a memory; results of jobs have full colours, weights and inputs pale ones."""
    use = memory_use(plan, memory.name, memory.capacity)
    tensors = {tensor.name: tensor for tensor in plan.tensors}

    def tip(name: str) -> Facts:
        """Return the tooltip of a tensor."""
        tensor = tensors[name]
        return {
            "name": tensor.name,
            "network": tensor.network,
            "kind": tensor.kind + ", an output of the network" * tensor.is_output,
            "producer": tensor.producer or "there from the start",
        }

    shapes = [
        Shape(
            a.start,
            a.end,
            a.offset,
            a.offset + a.bytes,
            partial(tip, a.tensor),
            axis.groups.index(tensors[a.tensor].network),
            alpha=0.75 if tensors[a.tensor].producer else 0.3,
        )
        for a in allocations_of(plan, memory.name)
    ]
    return MemoryMap(memory.name, shapes, use.peak, use.lower_bound, use.capacity)


def stack_chart(stack: Stack, axis: TimeAxis) -> TimelineChart:
    """Make a lane for each operator of a stack, with the lifetime of every band; overlapping bands
    are drawn on separate lines."""

    def tip(band: Band) -> Facts:
        """Return the tooltip of a band."""
        return {
            "name": band.tensor.name,
            "piece": piece(band.job),
            "size": format_bytes(band.tensor.bytes),
            "core": band.job.core,
        }

    shapes, bands = [], []
    for lane, operator in enumerate(stack):
        mine = sorted(operator.bands, key=attrgetter("start"))
        lines, count = first_free_lines((band.start, band.end) for band in mine)
        bands += mine
        for band, line in zip(mine, lines, strict=True):
            low, high = (lane + at / count for at in (line, line + 1))
            colour = axis.groups.index(band.job.network)
            tipped = partial(tip, band)
            shapes.append(Shape(band.start, band.end, low, high, tipped, colour, band.job.tile))
    own = replace(
        axis, start=min(band.start for band in bands), end=max(band.end for band in bands)
    )
    names = [operator.operator for operator in stack]
    title = printable(f"{stack[0].network}: {names[0]} to {names[-1]}")
    return TimelineChart(title, names, shapes, axis=own)


def search_charts(plan: PlanRecord) -> list[Curve]:
    """Make curves of the best objective, and of the total lateness, over the orders evaluated."""
    if len(plan.search) < 2:
        return []
    starts = [float(step.evaluations) for step in plan.search]
    end = max(1.0, 1.02 * starts[-1])
    found = list(zip(pairwise([*starts, end]), plan.search, strict=True))
    axis = TimeAxis(end, label="orders evaluated")
    what = objective_name(plan)
    best = steps((*span, step.value) for span, step in found)
    limit = plan.objective.lower_bound, "lower bound"
    remark = f"Lower bound: no plan of these jobs on this machine has a smaller {what}."
    drawn = [Curve("", what, best, objective_units(plan), limit, remark=remark, axis=axis)]
    late = steps((*span, step.lateness) for span, step in found)
    if any(shape.high for shape in late):
        remark = "How late mini-batches are comes before everything else."
        drawn.append(Curve("", "lateness", late, TIMES, remark=remark, axis=axis))
    return drawn

"""The charts of a plan: schedule, links, memory maps, stacks of operators, and the search."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from loadmaster.core.units import format_bandwidth, format_bytes, format_seconds
from loadmaster.planning.plan_records import LinkSegment, PlannedJob, PlannedOperand, PlanRecord
from loadmaster.report.cuts import Stack, family, piece
from loadmaster.report.figures import (
    allocations_of,
    copies,
    memory_use,
    objective_name,
    objective_unit,
)
from loadmaster.report.text import BANDWIDTHS, TIMES, comma, largest_unit, percent, shortened
from loadmaster.report.view import Axis, Box, Curve, MemoryMap, Span, Timeline
from loadmaster.targets.hardware import Memory


def time_axis(*plans: PlanRecord) -> Axis:
    """Make the time axis of plans, from zero to the end of the last job or copy."""
    span = max(plan.metrics.makespan.value for plan in plans)
    names = dict.fromkeys(network.name for plan in plans for network in plan.networks)
    ends = [job.end for plan in plans for job in plan.jobs]
    ends += [move.end for plan in plans for move in plan.transfers]
    return Axis(max([span, *ends]), span, groups=tuple(names))


def _numbers(axis: Axis) -> dict[str, int]:
    return {name: number for number, name in enumerate(axis.groups)}


def schedule(plan: PlanRecord, axis: Axis) -> Timeline:
    """Make a lane for each core and for each direction with copies.

    The paler a job, the more of its time is without arithmetic; pieces of one operator have one
    shade of their network's colour.
    """
    moves, networks, tints = copies(plan), _numbers(axis), _tints(plan)
    ways = sorted({(move.source, move.destination) for move in moves})
    cores = [core.name for core in plan.target.cores]
    lane: dict[object, int] = {name: number for number, name in enumerate([*cores, *ways])}
    jobs, spans = [job for job in plan.jobs if job.core in lane], []
    for job in jobs:
        length = job.end - job.start
        busy = min(1.0, job.compute / length) if length > 0 else 1.0
        tint = tints.get((job.network, job.operators), 0)
        colour = networks[job.network]
        spans.append(Span(lane[job.core], job.start, job.end, colour, tint, 0.3 + 0.6 * busy))
    spans += [Span(lane[m.source, m.destination], m.start, m.end, -1, 0, 0.75) for m in moves]

    def tip(item: int) -> dict[str, str]:
        if item < len(jobs):
            return _job_tip(jobs[item])
        move = moves[item - len(jobs)]
        return {
            "name": move.tensor,
            "copy": f"{move.source} to {move.destination}",
            "duration": format_seconds(move.end - move.start),
            "bytes": format_bytes(move.bytes),
        }

    lanes = [*cores, *(f"copy to {to}" for _, to in ways)]
    return Timeline("Schedule", lanes, spans, tip, "jobs and copies")


def _tints(plan: PlanRecord) -> dict[tuple[str, tuple[str, ...]], int]:
    """Number the operators in pieces of every network, so that neighbours have unlike shades."""
    count: dict[str, int] = defaultdict(int)
    tints: dict[tuple[str, tuple[str, ...]], int] = {}
    for job in sorted(plan.jobs, key=lambda job: (job.start, job.name)):
        if job.tiles > 1 and (job.network, job.operators) not in tints:
            tints[job.network, job.operators] = count[job.network]
            count[job.network] += 1
    return tints


def _job_tip(job: PlannedJob) -> dict[str, str]:
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
    total: dict[str, int] = defaultdict(int)
    for operand in operands:
        total[operand.memory] += operand.bytes
    return comma(f"{format_bytes(count)} {memory}" for memory, count in total.items())


def link(plan: PlanRecord, memory: Memory) -> Curve:
    """Make the curve of a memory's link."""
    segments, read = plan.links.get(memory.name, ()), memory.read_bandwidth
    limit = read if read == memory.write_bandwidth else None
    return link_curve(f"Link to {memory.name}", segments, limit)


def link_curve(title: str, segments: Sequence[LinkSegment], limit: float | None) -> Curve:
    """Make the curve of a rate and its limit in bytes/s, or of the load where reading and writing
    have limits of their own."""
    scale, unit = (0.01, "%") if limit is None else largest_unit(limit, BANDWIDTHS)
    steps = [
        (s.start, s.end, (s.load if limit is None else s.bytes_per_second) / scale)
        for s in segments
    ]

    def tip(items: Sequence[int]) -> dict[str, str]:
        mine = [(segments[i], segments[i].end - segments[i].start) for i in items]
        time = sum(seconds for _, seconds in mine) or 1.0
        rate = sum(s.bytes_per_second * seconds for s, seconds in mine) / time
        load = sum(s.load * seconds for s, seconds in mine) / time
        return {"name": format_bandwidth(rate), "load": percent(load)}

    if limit is None:
        return Curve(title, "load (%)", steps, 100.0, "all of the link's time", tip)
    name = f"limit {format_bandwidth(limit)}"
    return Curve(title, f"traffic ({unit})", steps, limit / scale, name, tip)


def memory_map(plan: PlanRecord, memory: Memory, axis: Axis) -> MemoryMap:
    """Make the map of a memory; what jobs produce is in full colour, weights and inputs are
    pale."""
    use, networks = memory_use(plan, memory.name, memory.capacity), _numbers(axis)
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    mine = [(a, tensors[a.tensor]) for a in allocations_of(plan, memory.name)]
    boxes = [
        Box(
            a.start,
            a.end,
            a.offset,
            a.offset + a.bytes,
            networks[tensor.network],
            0.75 if tensor.producer else 0.3,
        )
        for a, tensor in mine
    ]

    def tip(item: int) -> dict[str, str]:
        tensor = mine[item][1]
        return {
            "name": tensor.name,
            "network": tensor.network,
            "kind": tensor.kind + ", an output of the network" * tensor.is_output,
            "producer": tensor.producer or "there from the start",
        }

    return MemoryMap(memory.name, boxes, tip, use.peak, use.lower_bound, use.capacity)


def stack_chart(stack: Stack, axis: Axis) -> Timeline:
    """Make a lane for each operator of a stack, and in it every band from when it is written to
    when it is last read."""
    networks = _numbers(axis)
    bands = [(lane, band) for lane, o in enumerate(stack.operators) for band in o.bands]
    spans = [
        Span(lane, band.start, band.end, networks[band.job.network], band.job.tile)
        for lane, band in bands
    ]

    def tip(item: int) -> dict[str, str]:
        band = bands[item][1]
        size = format_bytes(band.tensor.bytes)
        named = {"name": band.tensor.name, "piece": piece(band.job)}
        return named | {"size": size, "core": band.job.core}

    names = [operator.name for operator in stack.operators]
    return Timeline(stack.title, names, spans, tip, "bands", stacked=True)


def search_charts(plan: PlanRecord) -> list[Curve]:
    """Make curves of the best objective, and of the total lateness, over the orders evaluated."""
    if len(plan.search) < 2:
        return []
    scale, unit = objective_unit(plan, max(step.value for step in plan.search))
    what, along = objective_name(plan), "orders evaluated"
    until = [float(step.evaluations) for step in plan.search[1:]]
    until.append(max(1.0, 1.02 * plan.search[-1].evaluations))

    def steps(values: Iterable[float]) -> list[tuple[float, float, float]]:
        starts = (float(step.evaluations) for step in plan.search)
        return list(zip(starts, until, values, strict=True))

    remark = f"Lower bound: no plan of these jobs on this machine has a smaller {what}."
    best = steps(step.value / scale for step in plan.search)
    bound = plan.objective.lower_bound / scale
    drawn = [Curve("", f"{what} ({unit})", best, bound, "lower bound", along=along, remark=remark)]
    late = [step.lateness for step in plan.search]
    if any(late):
        scale, unit = largest_unit(max(late), TIMES)
        remark = "How late mini-batches are comes before everything else."
        found = steps(value / scale for value in late)
        drawn.append(Curve("", f"lateness ({unit})", found, along=along, remark=remark))
    return drawn

"""Checks of a plan's metrics: each is recomputed from the records, and none is better than its
bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.core.units import (
    FEMTOJOULES,
    PICOSECONDS,
    format_bytes,
    format_rate,
    format_seconds,
)
from loadmaster.planning.plan_records import Cost, LinkSegment, PlannedTransfer, Rate
from loadmaster.planning.verify.energy import fj
from loadmaster.planning.verify.facts import Facts, bounded, ps, quoted, same, span, when
from loadmaster.targets.hardware import Memory


def curves(facts: Facts) -> Iterator[str]:
    """Curves of link use are in order, never above what the link can carry, and agree with the
    transfers at all times. O(n log n)."""
    for name, segments in facts.plan.links.items():
        for one, two in pairwise(segments):
            if ps(one.end) > ps(two.start):
                yield (
                    f"the curve of link {name} has {span(one.start, one.end)} before"
                    f" {span(two.start, two.end)}"
                )
        for segment in segments:
            yield from _excess(facts.memories[name], segment)
        # Damaged rates may overflow.
        with np.errstate(all="ignore"):
            deviations = list(_deviations(facts, name))
        yield from deviations


def _excess(memory: Memory, segment: LinkSegment) -> Iterator[str]:
    """A load above 1, or one too low for the bytes that the segment moves."""
    if segment.load > 1 + 1e-9:
        yield (
            f"the curve of link {memory.name} has a load of {segment.load:.9g} over"
            f" {span(segment.start, segment.end)}"
        )
    slowest, fastest = sorted(
        (segment.load * memory.read_bandwidth, segment.load * memory.write_bandwidth)
    )
    if not slowest * (1 - 1e-6) <= segment.bytes_per_second <= fastest * (1 + 1e-6):
        yield (
            f"the curve of link {memory.name} moves {segment.bytes_per_second:.9g} bytes/s over"
            f" {span(segment.start, segment.end)} with a load of {segment.load:.9g}, that is"
            f" between {slowest:.9g} and {fastest:.9g} bytes/s"
        )


def _deviations(facts: Facts, name: str) -> Iterator[str]:
    """The first time at which a curve has moved less than the transfers that have ended, or more
    than those that have begun: in bytes, or in seconds of the link's time.

    A millionth of all, and a picosecond's worth of every segment up to then, may go in rounding.
    """
    memory = facts.memories[name]
    moves = [each for each in facts.plan.transfers if name in (each.source, each.destination)]
    begins, ends = _instants(moves)
    sizes = np.array([move.bytes for move in moves], float)
    speeds = [
        memory.read_bandwidth if move.source == name else memory.write_bandwidth for move in moves
    ]
    # The segment at the end is empty, and the one before the first.
    segments = (*facts.plan.links[name], LinkSegment(0.0, 0.0, 0.0, 0.0))
    starts, stops = _instants(segments)
    at = np.unique(np.concatenate((begins, ends, starts, stops)))
    current = np.searchsorted(starts[:-1], at, "right") - 1
    since = np.where(stops[current] > at, at - starts[current], 0)
    measures = (
        (sizes, [each.bytes_per_second for each in segments], format_bytes),
        (sizes / speeds, [each.load for each in segments], format_seconds),
    )
    for amounts, per_second, shown in measures:
        rates = np.array(per_second) / PICOSECONDS
        least, most = _running(ends, amounts, at), _running(begins, amounts, at - 1)
        moved = _running(stops, rates * (stops - starts), at) + rates[current] * since
        room = amounts.sum() * 1e-6 + _running(starts, rates, at - 1)
        within = (least - room <= moved) & (moved <= most + room)
        if not within.all():
            i = within.argmin()
            yield (
                f"the curve of link {name} has moved {shown(moved[i])} by {when(at[i])}, when"
                f" {shown(least[i])} of its transfers have ended and {shown(most[i])} have begun"
            )


def _instants(records: Sequence[PlannedTransfer | LinkSegment]) -> Ints:
    """Return rows of starts and of ends, in picoseconds."""
    return np.array([[ps(each.start), ps(each.end)] for each in records], np.int64).reshape(-1, 2).T


def _running(times: Ints, amounts: Floats, at: Ints) -> Floats:
    """Return the sum of the amounts of all times until each instant."""
    order = np.argsort(times, kind="stable")
    sums: Floats = np.append(0.0, np.cumsum(amounts[order]))
    return sums[np.searchsorted(times[order], at, "right")]


Key = tuple[str, int]
"""Network and number of a mini-batch."""


def releases(facts: Facts) -> Iterator[str]:
    """Mini-batch ``k`` is released at ``k`` times its period; none of its jobs and no copy of its
    inputs starts earlier."""
    plan = facts.plan
    periods = {timing.network: ps(timing.period) for timing in plan.timings}
    release = {}
    for batch in plan.mini_batches:
        key = batch.network, batch.number
        release[key] = ps(batch.release)
        due = batch.number * periods.get(batch.network, 0)
        yield from same(f"the release of {_label(key)}", release[key], due, when)
    inputs = {tensor.name for tensor in plan.tensors if tensor.kind == "input"}
    users = [(job.network, job.mini_batch) for job in plan.jobs]
    users += [_batch_of(facts, copy) if copy.tensor in inputs else ("", 0) for copy in facts.copies]
    for step, key in zip(facts.steps, users, strict=True):
        if step.start < release.get(key, 0):
            yield f"{step.label} starts at {when(step.start)}, before its mini-batch is released"


def _batch_of(facts: Facts, copy: PlannedTransfer) -> Key:
    """Return network and mini-batch of a copy."""
    tensor = facts.tensors[copy.tensor]
    return tensor.network, tensor.mini_batch


def latencies(facts: Facts) -> Iterator[str]:
    """Every mini-batch is listed once, ends with its last job or copy of an output to main memory,
    and is marked as missed if it exceeds its deadline."""
    plan = facts.plan
    deadlines = {timing.network: timing.deadline for timing in plan.timings}
    for name, count in Counter(timing.network for timing in plan.timings).items():
        if count > 1:
            yield f"network {quoted(name)} has {count} timings"
    yield from (
        f"network {quoted(name)} is due after no time at all"
        for name, deadline in deadlines.items()
        if deadline == 0
    )
    ends = Counter[Key]()
    for job in plan.jobs:
        key = job.network, job.mini_batch
        ends[key] = max(ends[key], ps(job.end))
    for copy in facts.copies:
        key = _batch_of(facts, copy)
        to_main = copy.destination == plan.target.main.name
        if facts.tensors[copy.tensor].is_output and to_main and key in ends:
            ends[key] = max(ends[key], ps(copy.end))
    told = Counter((batch.network, batch.number) for batch in plan.mini_batches)
    yield from (f"{_label(key)} is told of {told[key]} times" for key in ends if told[key] != 1)
    yield from (f"{_label(key)} has no job" for key in told if key not in ends)
    longest = dict.fromkeys((network.name for network in plan.networks), 0)
    for batch in plan.mini_batches:
        key = batch.network, batch.number
        end = ends.get(key, ps(batch.end))
        yield from same(f"the end of {_label(key)}", ps(batch.end), end, when)
        latency = end - ps(batch.release)
        longest[batch.network] = max(longest[batch.network], latency)
        yield from same(f"the latency of {_label(key)}", ps(batch.latency), latency, when)
        deadline = deadlines.get(batch.network)
        if batch.missed != (deadline is not None and latency > ps(deadline)):
            yield (
                f"{_label(key)} is said {'' if batch.missed else 'not '}to have missed its"
                f" deadline, and takes {when(latency)}"
            )
    for name, found in longest.items():
        stated = plan.metrics.latency[name]
        what = f"the latency of network {quoted(name)}"
        yield from same(what, ps(stated.value), found, when)
        yield from bounded(what, stated, format_seconds)


def objective(facts: Facts) -> Iterator[str]:
    """The objective's value and bound are those of the plan's figures."""
    plan, metrics = facts.plan, facts.plan.metrics
    stated = plan.objective
    edp = [
        fj(joules) * picoseconds / (FEMTOJOULES * PICOSECONDS)
        for joules, picoseconds in (
            (metrics.energy.value, facts.makespan),
            (metrics.energy.lower_bound, ps(metrics.makespan.lower_bound)),
        )
    ]
    known = {"throughput": metrics.makespan, "energy": metrics.energy, "edp": Cost(*edp)}
    if stated.network in metrics.latency:
        known["latency"] = metrics.latency[stated.network]
    if stated.name not in known:
        yield (
            f"the objective {quoted(stated.name)} of network {quoted(stated.network)} is not known"
        )
        return
    reached = known[stated.name]
    if (stated.name == "latency") != bool(stated.network):
        yield (
            f"the objective {quoted(stated.name)} is said to be of network {quoted(stated.network)}"
        )
    for what, said, found in (
        ("value", stated.value, reached.value),
        ("bound", stated.lower_bound, reached.lower_bound),
    ):
        if abs(said - found) > 1e-12 * found:
            yield (
                f"the {what} of the objective {stated.name} is said to be {said:.17g}, but is"
                f" {found:.17g}"
            )


def _label(key: Key) -> str:
    """Name a mini-batch."""
    return f"mini-batch {key[1]} of network {quoted(key[0])}"


def makespan(facts: Facts) -> Iterator[str]:
    """The makespan is the end of the last job or transfer, and no less than its bound."""
    stated = facts.plan.metrics.makespan
    if ps(stated.value) != facts.makespan:
        apart = facts.makespan - ps(stated.value)
        yield (
            f"the makespan is said to be {when(ps(stated.value))}, but the last job or transfer"
            f" ends {when(abs(apart))} {'earlier' if apart < 0 else 'later'}, at"
            f" {when(facts.makespan)}"
        )
    yield from bounded("the makespan", stated, format_seconds)


def status(facts: Facts) -> Iterator[str]:
    """A plan is feasible, or optimal if no mini-batch is late and the objective meets its bound, in
    whole picoseconds if it is a time."""
    plan = facts.plan
    if plan.status not in ("optimal", "feasible"):
        yield f"the status {quoted(plan.status)} is neither 'optimal' nor 'feasible'"
    if plan.status != "optimal":
        return
    if plan.missed:
        yield f"the plan is said to be optimal, but {plan.missed} mini-batches miss their deadlines"
    reached = plan.objective
    if reached.name in ("throughput", "latency"):
        least = _least(reached.lower_bound)
        if ps(reached.value) > least:
            yield (
                f"the plan is said to be optimal, but its {reached.name} is"
                f" {when(ps(reached.value) - least)} above its bound"
            )
    elif reached.value > reached.lower_bound:
        yield (
            f"the plan is said to be optimal, but its {reached.name} is {reached.value:.17g}, above"
            f" {reached.lower_bound:.17g}"
        )


def work(facts: Facts) -> Iterator[str]:
    """The jobs of a network do all of its multiply-accumulates, for every mini-batch."""
    done: Counter[str] = Counter()
    for job in facts.plan.jobs:
        done[job.network] += job.macs
    for network in facts.plan.networks:
        due = network.macs * network.mini_batches
        if done[network.name] != due:
            yield (
                f"the jobs of network {quoted(network.name)} do {done[network.name]}"
                f" multiply-accumulates, the network has {due}"
            )


def rates(facts: Facts) -> Iterator[str]:
    """Throughput, inferences and utilisation follow from the jobs, the networks and the makespan,
    and no rate is above its bound.

    Bounds of rates follow from that of the makespan.
    """
    metrics = facts.plan.metrics
    seconds = facts.makespan / PICOSECONDS
    operations = 2 * sum(job.macs for job in facts.plan.jobs)
    least = metrics.makespan.lower_bound
    inferences = sum(network.batch * network.mini_batches for network in facts.plan.networks)
    amounts: list[tuple[str, Rate, float, float]] = [
        ("the throughput", metrics.throughput, operations, math.inf),
        ("the inferences per second", metrics.inferences_per_second, inferences, math.inf),
    ]
    for core, stated in metrics.utilisation.items():
        busy = math.fsum(facts.plan.jobs[i].compute for i in facts.core_orders[core])
        amounts.append((f"the utilisation of {core}", stated, busy, 1.0))
    for what, stated, amount, most in amounts:
        found = amount / seconds if seconds else 0.0
        if not math.isclose(stated.value, found, rel_tol=1e-9):
            yield (
                f"{what} is said to be {format_rate(stated.value, '')}, but is"
                f" {format_rate(found, '')}, {stated.value - found:+.3g} apart"
            )
        if stated.value > stated.upper_bound * (1 + 1e-9):
            yield (
                f"{what} is said to be {stated.value:.9g}, above its bound {stated.upper_bound:.9g}"
            )
        # A bound of 0 limits no rate.
        due = max(found, min(most, amount / least)) if least else stated.upper_bound
        if not math.isclose(stated.upper_bound, due, rel_tol=1e-9):
            yield (
                f"{what} is said to be at most {stated.upper_bound:.9g}, but in the makespan's"
                f" bound it would be {due:.9g}"
            )


def traffic(facts: Facts) -> Iterator[str]:
    """Traffic of a link is the sum of its transfers, and no less than its bound."""
    for name, stated in facts.plan.metrics.traffic.items():
        moved = sum(
            transfer.bytes
            for transfer in facts.plan.transfers
            if name in (transfer.source, transfer.destination)
        )
        yield from same(f"the traffic of {name} in bytes", stated.value, moved, "{:.17g}".format)
        yield from bounded(f"the traffic of {name} in bytes", stated, "{:.17g}".format)


def memory_use(facts: Facts) -> Iterator[str]:
    """Peaks and lower bounds of memories follow from the allocations, and the capacity from the
    target."""
    for name, stated in facts.plan.metrics.memory.items():
        group = facts.groups[name]
        allocations = [facts.plan.allocations[i] for i in group]
        found = {
            "peak": max((each.offset + each.bytes for each in allocations), default=0),
            "lower_bound": _most_alive(facts, group),
            "capacity": facts.capacities[name],
        }
        for figure, value in found.items():
            yield from same(f"the {figure} of {name} in bytes", getattr(stated, figure), value)


def _least(seconds: float) -> int:
    """The bound in whole picoseconds, rounded up but for the last bits of the float."""
    exact = seconds * PICOSECONDS
    return round(exact) if abs(exact - round(exact)) <= 4 * math.ulp(exact) else math.ceil(exact)


def _most_alive(facts: Facts, group: list[int]) -> int:
    """Most bytes of the given allocations that are alive at one time; at one instant, ends precede
    starts."""
    changes = []
    for i in group:
        (start, end), size = facts.spans[i], facts.plan.allocations[i].bytes
        if start < end:
            changes += [(start, size), (end, -size)]
    return max(accumulate(size for _, size in sorted(changes)), default=0)

"""Checks of a plan's figures: each is worked out again from the records, and none is better than
its bound."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT
from loadmaster.core.units import PICOSECONDS, format_rate
from loadmaster.planning.plan_records import PlannedJob, Rate
from loadmaster.planning.verify.facts import Facts, ps, quoted, when
from loadmaster.planning.verify.pieces import volume


def makespan(facts: Facts) -> Iterator[str]:
    """The makespan is the end of the last job or transfer, and no less than its bound."""
    stated = facts.plan.metrics.makespan
    if ps(stated.value) != facts.makespan:
        yield (
            f"the makespan is said to be {when(ps(stated.value))}, but the last job or transfer"
            f" ends {_apart(facts, ps(stated.value))}"
        )
    if _least(stated.lower_bound) > ps(stated.value):
        yield (
            f"the makespan of {when(ps(stated.value))} is said to be at least"
            f" {when(_least(stated.lower_bound))}"
        )


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
    """The jobs of a network do all of its multiply-accumulates, for every mini-batch; what they
    recompute is beside them."""
    done: Counter[str] = Counter()
    for job in facts.plan.jobs:
        done[job.network] += _owned_work(job)
    for network in facts.plan.networks:
        due = network.macs * network.mini_batches
        if done[network.name] != due:
            yield (
                f"the jobs of network {quoted(network.name)} do {done[network.name]}"
                f" multiply-accumulates, the network has {due}"
            )


def _owned_work(job: PlannedJob) -> int:
    """Multiply-accumulates of a job, without those that it recomputes."""
    return job.macs * volume(job.owns) // volume(job.ranges) if job.owns else job.macs


def rates(facts: Facts) -> Iterator[str]:
    """Throughput, inferences and utilisation follow from the jobs, the networks and the makespan,
    and no rate is above its bound.

    Bounds of rates follow from that of the makespan.
    """
    metrics = facts.plan.metrics
    seconds = facts.makespan / PICOSECONDS
    operations = 2 * sum(map(_owned_work, facts.plan.jobs))
    least = metrics.makespan.lower_bound
    yield from _rate("the throughput", metrics.throughput, operations / seconds if seconds else 0.0)
    yield from _bound("the throughput", metrics.throughput, operations / least if least else None)
    inferences = sum(network.batch * network.mini_batches for network in facts.plan.networks)
    yield from _rate(
        "the inferences per second",
        metrics.inferences_per_second,
        inferences / seconds if seconds else 0.0,
    )
    yield from _bound(
        "the inferences per second",
        metrics.inferences_per_second,
        inferences / least if least else None,
    )
    for core, stated in metrics.utilisation.items():
        busy = math.fsum(facts.plan.jobs[i].compute for i in facts.core_orders.get(core, ()))
        used = busy / seconds if seconds else 0.0
        yield from _rate(f"the utilisation of {core}", stated, used)
        yield from _bound(
            f"the utilisation of {core}",
            stated,
            max(used, min(1.0, busy / least)) if least else None,
        )


def traffic(facts: Facts) -> Iterator[str]:
    """Traffic of a link is the sum of its transfers, and no less than its bound."""
    for name, stated in facts.plan.metrics.traffic.items():
        moved = sum(
            transfer.bytes
            for transfer in facts.plan.transfers
            if name in (transfer.source, transfer.destination)
        )
        if stated.value != moved:
            yield (
                f"the traffic of {name} is said to be {stated.value:.17g} bytes, its transfers move"
                f" {moved}"
            )
        if stated.lower_bound > stated.value * (1 + 1e-9):
            yield (
                f"the traffic of {name}, {stated.value:.17g} bytes, is said to be at least"
                f" {stated.lower_bound:.17g}"
            )


def memory_use(facts: Facts) -> Iterator[str]:
    """Peaks and lower bounds of memories follow from the allocations, and the capacity from the
    target."""
    for name, stated in facts.plan.metrics.memory.items():
        group = facts.groups.get(name, [])
        peak = max(
            (facts.plan.allocations[i].offset + facts.plan.allocations[i].bytes for i in group),
            default=0,
        )
        found = {
            "peak": peak,
            "lower_bound": _most_alive(facts, group),
            "capacity": facts.capacities[name],
        }
        for figure, value in found.items():
            if getattr(stated, figure) != value:
                yield (
                    f"the {figure} of {name} is said to be {getattr(stated, figure)} bytes, but is"
                    f" {value}"
                )


def _least(seconds: float) -> int:
    """Fewest whole picoseconds that are no less than a bound, which a float may miss by its last
    bits."""
    exact = seconds * PICOSECONDS
    return round(exact) if abs(exact - round(exact)) <= 4 * math.ulp(exact) else math.ceil(exact)


def _apart(facts: Facts, stated: int) -> str:
    relation = "earlier" if facts.makespan < stated else "later"
    return f"{when(abs(facts.makespan - stated))} {relation}, at {when(facts.makespan)}"


def _rate(what: str, stated: Rate, found: float) -> Iterator[str]:
    if not math.isclose(stated.value, found, rel_tol=1e-9):
        yield (
            f"{what} is said to be {format_rate(stated.value, '')}, but is"
            f" {format_rate(found, '')}, {stated.value - found:+.3g} apart"
        )
    if stated.value > stated.upper_bound * (1 + 1e-9):
        yield f"{what} is said to be {stated.value:.9g}, above its bound {stated.upper_bound:.9g}"


def _bound(what: str, stated: Rate, due: float | None) -> Iterator[str]:
    """Bounds of rates are what is reached in the makespan's bound, if that says anything."""
    if due is not None and not math.isclose(stated.upper_bound, due, rel_tol=1e-9):
        yield (
            f"{what} is said to be at most {stated.upper_bound:.9g}, but in the makespan's bound it"
            f" would be {due:.9g}"
        )


def _most_alive(facts: Facts, group: list[int]) -> int:
    """Most bytes of the given allocations that are alive at one time; those that end go before
    those that start."""
    start, end, low, high = (column[group] for column in facts.boxes)
    lasting = start < end
    size = (high - low)[lasting]
    # Where sums may not fit 64 bits, as Python's whole numbers.
    size = size.astype(np.int64 if float(size.sum(dtype=np.float64)) < WHOLE_LIMIT else object)
    order = np.argsort(np.concatenate([end[lasting], start[lasting]]), kind="stable")
    return int(np.cumsum(np.concatenate([-size, size])[order]).max(initial=0))

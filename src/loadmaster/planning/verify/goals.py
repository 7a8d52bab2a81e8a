"""Checks of what a plan was made for: nothing starts before it is there, latencies and misses are
those of the jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from loadmaster.core.units import FEMTOJOULES, PICOSECONDS
from loadmaster.planning.verify.energy import fj
from loadmaster.planning.verify.facts import Facts, ps, quoted, when

Key = tuple[str, int]
"""Network and number of a mini-batch."""


def releases(facts: Facts) -> Iterator[str]:
    """Mini-batch ``k`` is released at ``k`` times its period; none of its jobs, nor a copy of its
    inputs, starts before."""
    plan = facts.plan
    periods = {timing.network: ps(timing.period) for timing in plan.timings}
    release = {}
    for batch in plan.mini_batches:
        release[batch.network, batch.number] = ps(batch.release)
        due = batch.number * periods.get(batch.network, 0)
        if ps(batch.release) != due:
            yield (
                f"{_label((batch.network, batch.number))} is said to be released at"
                f" {when(ps(batch.release))}, but is at {when(due)}"
            )
    for job in plan.jobs:
        if ps(job.start) < release.get((job.network, job.mini_batch), 0):
            yield (
                f"job {quoted(job.name)} starts at {when(ps(job.start))}, before its mini-batch is"
                " released"
            )
    for copy in facts.copies:
        tensor = facts.tensors[copy.tensor]
        if tensor.kind == "input" and ps(copy.start) < release.get(
            (tensor.network, tensor.mini_batch), 0
        ):
            yield (
                f"copy {quoted(copy.name)} starts at {when(ps(copy.start))}, before its mini-batch"
                " is released"
            )


def latencies(facts: Facts) -> Iterator[str]:
    """Every mini-batch is told of once, and ends with its last job, or copy of an output to main
    memory; late is who takes too long."""
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
    ends: dict[Key, int] = {}
    for job in plan.jobs:
        key = job.network, job.mini_batch
        ends[key] = max(ends.get(key, 0), ps(job.end))
    for copy in facts.copies:
        tensor = facts.tensors[copy.tensor]
        key = tensor.network, tensor.mini_batch
        if tensor.is_output and copy.destination == plan.target.main.name and key in ends:
            ends[key] = max(ends[key], ps(copy.end))
    told = Counter((batch.network, batch.number) for batch in plan.mini_batches)
    yield from (f"{_label(key)} is told of {told[key]} times" for key in ends if told[key] != 1)
    yield from (f"{_label(key)} has no job" for key in told if key not in ends)
    longest = dict.fromkeys((network.name for network in plan.networks), 0)
    for batch in plan.mini_batches:
        key = batch.network, batch.number
        end = ends.get(key, ps(batch.end))
        if ps(batch.end) != end:
            yield (
                f"{_label(key)} is said to end at {when(ps(batch.end))}, but its last job or copy"
                f" ends at {when(end)}"
            )
        latency = end - ps(batch.release)
        longest[batch.network] = max(longest[batch.network], latency)
        if ps(batch.latency) != latency:
            yield (
                f"{_label(key)} is said to take {when(ps(batch.latency))}, but takes"
                f" {when(latency)}"
            )
        deadline = deadlines.get(batch.network)
        if batch.missed != (deadline is not None and latency > ps(deadline)):
            yield (
                f"{_label(key)} is said {'' if batch.missed else 'not '}to have missed its"
                f" deadline, and takes {when(latency)}"
            )
    for name, found in longest.items():
        stated = plan.metrics.latency[name]
        if ps(stated.value) != found:
            yield (
                f"the latency of network {quoted(name)} is said to be {when(ps(stated.value))}, but"
                f" is {when(found)}"
            )
        if stated.lower_bound > stated.value:
            yield (
                f"the latency of network {quoted(name)}, {when(found)}, is said to be at least"
                f" {when(ps(stated.lower_bound))}"
            )


def objective(facts: Facts) -> Iterator[str]:
    """The objective's value and bound are those of the plan's figures."""
    plan, metrics = facts.plan, facts.plan.metrics
    stated = plan.objective
    known = {"throughput": metrics.makespan, "energy": metrics.energy} | (
        {"latency": metrics.latency[stated.network]} if stated.network in metrics.latency else {}
    )
    if stated.name == "edp":
        value = fj(metrics.energy.value) * facts.makespan / (FEMTOJOULES * PICOSECONDS)
        least = (
            fj(metrics.energy.lower_bound)
            * ps(metrics.makespan.lower_bound)
            / (FEMTOJOULES * PICOSECONDS)
        )
    elif stated.name in known:
        value, least = known[stated.name].value, known[stated.name].lower_bound
    else:
        yield (
            f"the objective {quoted(stated.name)} of network {quoted(stated.network)} is not known"
        )
        return
    if (stated.name == "latency") != bool(stated.network):
        yield (
            f"the objective {quoted(stated.name)} is said to be of network {quoted(stated.network)}"
        )
    for what, said, found in (("value", stated.value, value), ("bound", stated.lower_bound, least)):
        if abs(said - found) > 1e-12 * found:
            yield (
                f"the {what} of the objective {stated.name} is said to be {said:.17g}, but is"
                f" {found:.17g}"
            )


def _label(key: Key) -> str:
    return f"mini-batch {key[1]} of network {quoted(key[0])}"

"""Checks of single records and of what they call each other: numbers, names, references, and that no work is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import fields
from itertools import chain, pairwise
from typing import Any

from loadmaster.plans import Plan, PlannedTransfer
from loadmaster.units import PICOSECONDS, format_seconds
from loadmaster.verification.facts import Facts, ps, span, transfer_label

_LARGEST = 2**63
_LARGEST_FLOAT = 1e100
"""More than any figure of a machine, and far from overflow when figures are multiplied."""


def numbers(facts: Facts) -> Iterator[str]:
    """No number is negative, and whole numbers and picoseconds fit 64 bits; speeds and alignments are positive."""
    limits: dict[type, list[tuple[str, float]]] = {}
    for record in _records(facts.plan):
        kind = type(record)
        if kind not in limits:
            limits[kind] = _limits(kind)
        for name, limit in limits[kind]:
            value = getattr(record, name)
            if not 0 <= value < limit:
                yield f"{name} of {_label(record)} is {value!s:.40}, outside [0, {limit:.2g})"
    for memory in facts.plan.target.memories:
        for name in ("read_bandwidth", "write_bandwidth", "alignment"):
            if getattr(memory, name) == 0:
                yield f"{name} of {_label(memory)} is 0"


def names(facts: Facts) -> Iterator[str]:
    """Networks, tensors, memories with cores, and jobs with copies each have names that are not empty and occur once."""
    plan = facts.plan
    copies = (copy.name for copy in facts.copies)
    groups: dict[str, Iterable[str]] = {
        "network": (network.name for network in plan.networks),
        "tensor": (tensor.name for tensor in plan.tensors),
        "memory or core": chain((memory.name for memory in plan.target.memories), (core.name for core in plan.target.cores)),
        "job or copy": chain((job.name for job in plan.jobs), copies),
    }
    for what, group in groups.items():
        for name, count in Counter(group).items():
            if not name:
                yield f"a {what} has no name"
            elif count > 1:
                yield f"{count} times a {what} is called {name!r}"


def references(facts: Facts) -> Iterator[str]:
    """Every name that a record mentions is the name of something in the plan."""
    plan = facts.plan
    networks = {network.name for network in plan.networks}
    cores = {core.name for core in plan.target.cores}
    for tensor in plan.tensors:
        yield from _unknown(f"tensor {tensor.name!r}", "network", [tensor.network], networks)
        yield from _unknown(f"tensor {tensor.name!r}", "producer", [tensor.producer] if tensor.producer else [], facts.jobs)
    for job in plan.jobs:
        operands = (*job.reads, *job.writes)
        label = f"job {job.name!r}"
        yield from _unknown(label, "network", [job.network], networks)
        yield from _unknown(label, "core", [job.core], cores)
        yield from _unknown(label, "tensor", (operand.tensor for operand in operands), facts.tensors)
        yield from _unknown(label, "shared memory", (operand.memory for operand in operands), facts.memories)
        yield from _unknown(label, "job or copy", job.after, facts.step_of)
    for allocation in plan.allocations:
        label = f"an allocation from {format_seconds(allocation.start)} on"
        yield from _unknown(label, "tensor", [allocation.tensor], facts.tensors)
        yield from _unknown(label, "memory", [allocation.memory], facts.capacities)
    for transfer in plan.transfers:
        label = transfer_label(transfer)
        yield from _unknown(label, "tensor", [transfer.tensor], facts.tensors)
        yield from _unknown(label, "memory or core", (transfer.source, transfer.destination), facts.capacities)
        yield from _unknown(label, "job", [transfer.job] if transfer.job else [], facts.jobs)
        yield from _unknown(label, "job or copy", transfer.after, facts.step_of)
    yield from _keys(facts, cores)


def times(facts: Facts) -> Iterator[str]:
    """Nothing ends before it starts, and no job is shorter than its arithmetic."""
    plan = facts.plan
    timed: Iterable[Any] = chain(plan.jobs, plan.allocations, plan.transfers, *plan.links.values())
    for record in timed:
        if ps(record.start) > ps(record.end):
            yield f"{_label(record)} ends at {format_seconds(record.end)}, before it starts at {format_seconds(record.start)}"
    for job in plan.jobs:
        if ps(job.end) - ps(job.start) < ps(job.compute):
            yield f"job {job.name!r} runs over {span(job.start, job.end)}, less than its {format_seconds(job.compute)} of arithmetic"


def completeness(facts: Facts) -> Iterator[str]:
    """Every operator of every mini-batch of every network is done once: by one job, or by each of its tiles."""
    done: dict[tuple[str, int], dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for job in facts.plan.jobs:
        for operator in job.operators:
            done[job.network, job.mini_batch][operator].append((job.tile, job.tiles))
    batches = defaultdict(set)
    for name, batch in done:
        batches[name].add(batch)
    for network in facts.plan.networks:
        here = batches[network.name]
        for batch in sorted(here):
            yield from _covered(f"network {network.name!r}, mini-batch {batch}", tuple(operator.name for operator in network.operators), done[network.name, batch])
        if network.operators and len(here) < network.mini_batches:
            missing = next(batch for batch in range(network.mini_batches) if batch not in here)
            yield f"network {network.name!r}: no job does mini-batch {missing} of {network.mini_batches}"
        yield from (f"network {network.name!r} has no mini-batch {batch}" for batch in here if batch >= network.mini_batches)


def producers(facts: Facts) -> Iterator[str]:
    """Every tensor is written by the job that it names as its producer and by no other."""
    written = {(operand.tensor, job.name) for job in facts.plan.jobs for operand in job.writes}
    for tensor in facts.plan.tensors:
        if tensor.producer and (tensor.name, tensor.producer) not in written:
            yield f"job {tensor.producer!r} is to produce tensor {tensor.name!r} but does not write it"
    for name, job in sorted(written):
        producer = facts.tensors[name].producer
        if producer != job:
            yield f"job {job!r} writes tensor {name!r}, which " + (f"job {producer!r} produces" if producer else "exists from the start")


def cores(facts: Facts) -> Iterator[str]:
    """Jobs of one core follow one another. Sweeps the jobs by start."""
    for core, order in facts.core_orders.items():
        for first, second in pairwise(order):
            one, two = facts.plan.jobs[first], facts.plan.jobs[second]
            if facts.steps[second].start < facts.steps[first].end:
                first_span, second_span = span(one.start, one.end), span(two.start, two.end)
                yield f"core {core} runs job {one.name!r} over {first_span} and job {two.name!r} over {second_span}"


def _records(plan: Plan) -> Iterator[Any]:
    """Every record of the plan that holds numbers."""
    target, metrics = plan.target, plan.metrics
    yield from (plan, *target.cores, *target.memories, *plan.networks, *plan.tensors, *plan.allocations, *plan.transfers)
    for job in plan.jobs:
        yield from (job, *job.reads, *job.writes)
    yield from chain(*plan.links.values())
    yield from (metrics.makespan, metrics.throughput, metrics.inferences_per_second)
    yield from chain(metrics.utilisation.values(), metrics.traffic.values(), metrics.memory.values())
    if target.copy is not None:
        yield target.copy


def _limits(kind: Any) -> list[tuple[str, float]]:
    """Numeric fields of a record and what they must stay below."""
    limits = {"int": _LARGEST, "float": _LARGEST_FLOAT}
    seconds = ("start", "end", "compute")
    return [
        (field.name, _LARGEST / PICOSECONDS if field.name in seconds else limits[field.type])
        for field in fields(kind)
        if field.type in limits
    ]


def _label(record: Any) -> str:
    """What messages call a record of any kind."""
    kind = type(record).__name__.removeprefix("Planned").lower()
    if isinstance(record, PlannedTransfer):
        return transfer_label(record)
    if hasattr(record, "tensor"):
        return f"the {kind} of {record.tensor!r} in {record.memory}"
    return f"{kind} {record.name!r}" if hasattr(record, "name") else f"the {kind} record"


def _unknown(label: str, what: str, mentioned: Iterable[str], known: Container[str]) -> Iterator[str]:
    yield from (f"{label} names the {what} {name!r}, which the plan does not have" for name in mentioned if name not in known)


def _keys(facts: Facts, cores: set[str]) -> Iterator[str]:
    """Curves and figures are there for every shared memory and core, and for nothing else; those of private buffers are optional."""
    metrics = facts.plan.metrics
    shared = set(facts.memories)
    for what, present, needed, allowed in (
        ("links", facts.plan.links, shared, shared),
        ("metrics.traffic", metrics.traffic, shared, shared),
        ("metrics.utilisation", metrics.utilisation, cores, cores),
        ("metrics.memory", metrics.memory, shared, shared | cores),
    ):
        yield from _unknown(what, "memory or core", present, allowed)
        yield from (f"{what} has no entry for {name}" for name in sorted(needed - set(present)))


def _covered(where: str, operators: tuple[str, ...], done: dict[str, list[tuple[int, int]]]) -> Iterator[str]:
    """Operators of one mini-batch against the (tile, tiles) of the jobs that do them."""
    for operator in operators:
        parts = sorted(done.get(operator, ()))
        if not parts:
            yield f"{where}: no job does operator {operator!r}"
        elif parts[0][1] != len(parts) or parts != [(tile, len(parts)) for tile in range(len(parts))]:
            found = ", ".join(f"{tile} of {tiles}" for tile, tiles in parts[:4])
            yield f"{where}: operator {operator!r} is not done once: its jobs are the tiles {found}" + (", ..." if len(parts) > 4 else "")
    yield from (f"{where}: jobs do operator {name!r}, which the network does not have" for name in sorted(set(done) - set(operators)))

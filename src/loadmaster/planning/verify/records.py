"""Checks of single records and references between them: numbers, names, and completeness of the
work."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain, pairwise
from typing import Any

from loadmaster.core.units import PICOSECONDS, format_seconds
from loadmaster.planning.plan_records import PlannedTransfer, PlanRecord
from loadmaster.planning.verify.boxes import LARGEST
from loadmaster.planning.verify.facts import Facts, ps, quoted, span, transfer_label, when
from loadmaster.targets.hardware import Core

_WIDTHS = {"int8": 8, "fp16": 16, "bf16": 16, "fp32": 32, "fp64": 64}
"""Bits of the precisions that networks are planned at."""
_POSITIVE = (
    *("read_bandwidth", "write_bandwidth", "alignment", "burst"),
    *("rows", "columns", "accumulator", "noc_bandwidth", "weight_loading"),
)
"""Figures of memories and cores that are not 0."""
_LARGEST_FLOAT = 1e100
"""More than any figure of a machine, and far from overflow when figures are multiplied."""


def numbers(facts: Facts) -> Iterator[str]:
    """No number is negative, and whole numbers and picoseconds fit 64 bits; speeds and alignments
    are positive; energies are finite."""
    kinds: dict[type, list[Any]] = defaultdict(list)
    for record in _records(facts.plan):
        kinds[type(record)].append(record)
    for kind, records in kinds.items():
        for name, limit in _limits(kind):
            for record in records:
                # None is no number.
                value = getattr(record, name) or 0
                if not 0 <= value < limit:
                    yield _outside(f"{name} of {_label(record)}", value, limit)
    plan, target = facts.plan, facts.plan.target
    figures = [
        (f"the energy of {quoted(place)}", joules)
        for place, joules in chain(plan.byte_energy.items(), plan.metrics.energy_by.items())
    ]
    for core in target.cores:
        figures += (
            (f"macs_per_cycle of {_label(core)} at {bits!s:.40} bits", rate)
            for bits, rate in core.macs_per_cycle.items()
        )
        figures += (
            (f"the energy of {quoted(what)} of {_label(core)}", joules)
            for what, joules in core.energy.items()
        )
        for operator, share in core.efficiency.items():
            if not 0 < share <= 1:
                yield (
                    f"efficiency of {_label(core)} at {quoted(operator)} is {share!s:.40}, outside"
                    " (0, 1]"
                )
    for name in ("blocking", "overlapping") if target.copy else ():
        rates = getattr(target.copy, name)
        figures += ((f"{name} of the copy engine", rate) for rate in rates)
        if len(rates) < len(target.memories):
            yield (
                f"the copy engine has {len(rates)} {name} rates for {len(target.memories)} memories"
            )
    for what, value in figures:
        if not 0 <= value < _LARGEST_FLOAT:
            yield _outside(what, value, _LARGEST_FLOAT)
    if not target.memories:
        yield "the target has no memory"
    for part in (*target.memories, *target.cores):
        for name in _POSITIVE:
            if getattr(part, name, None) == 0:
                yield f"{name} of {_label(part)} is 0"


def _outside(what: str, value: float, limit: float) -> str:
    """Return the message for a number out of range."""
    return f"{what} is {value!s:.40}, outside [0, {limit:.2g})"


def names(facts: Facts) -> Iterator[str]:
    """Networks, tensors, memories with cores, and jobs with copies each have names that are not
    empty and occur once."""
    plan = facts.plan
    copies = (copy.name for copy in facts.copies)
    groups: dict[str, Iterable[str]] = {
        "network": (network.name for network in plan.networks),
        "tensor": (tensor.name for tensor in plan.tensors),
        "memory or core": chain(
            (memory.name for memory in plan.target.memories),
            (core.name for core in plan.target.cores),
        ),
        "job or copy": chain((job.name for job in plan.jobs), copies),
    }
    for what, group in groups.items():
        for name, count in Counter(group).items():
            if not name:
                yield f"a {what} has no name"
            elif count > 1:
                yield f"{count} times a {what} is called {quoted(name)}"


def references(facts: Facts) -> Iterator[str]:
    """Every name that a record mentions is the name of something in the plan."""
    plan = facts.plan
    networks = {network.name for network in plan.networks}
    # What may be empty mentions nothing then.
    jobs = {"", *facts.jobs}
    mentioned: tuple[tuple[str, Sequence[Any], str, Collection[str]], ...] = (
        (
            "network",
            (*plan.tensors, *plan.mini_batches, *plan.timings, *plan.jobs),
            "network",
            networks,
        ),
        ("producer", plan.tensors, "producer", jobs),
        ("core", plan.jobs, "core", facts.cores),
        ("tensor", (*plan.allocations, *plan.transfers), "tensor", facts.tensors),
        ("memory", plan.allocations, "memory", facts.capacities),
        ("job", plan.transfers, "job", jobs),
        ("memory or core", plan.transfers, "source", facts.capacities),
        ("memory or core", plan.transfers, "destination", facts.capacities),
    )
    for what, records, field, known in mentioned:
        for record in records:
            if (name := getattr(record, field)) not in known:
                yield _unknown(record, what, name)
    for record in facts.moving:
        for name in record.after:
            if name not in facts.step_of:
                yield _unknown(record, "job or copy", name)
    for job, operand, _ in facts.operands:
        if operand.tensor not in facts.tensors:
            yield _unknown(job, "tensor", operand.tensor)
        if operand.memory not in facts.memories:
            yield _unknown(job, "shared memory", operand.memory)
    yield from _keys(facts, networks)


def times(facts: Facts) -> Iterator[str]:
    """Nothing ends before it starts, no job is shorter than its arithmetic, and jobs and copies
    take time: what they use for no time overlaps nothing."""
    plan = facts.plan
    timed: list[Any] = [*facts.moving, *plan.allocations, *chain(*plan.links.values())]
    for record in timed:
        if ps(record.end) < ps(record.start):
            yield (
                f"{_label(record)} ends at {format_seconds(record.end)}, before it starts at"
                f" {format_seconds(record.start)}"
            )
    for step in facts.steps:
        if step.end == step.start:
            yield f"{step.label} takes no time: it starts and ends at {when(step.end)}"
    for job in plan.jobs:
        if ps(job.end) - ps(job.start) < ps(job.compute):
            yield (
                f"job {quoted(job.name)} runs over {span(job.start, job.end)}, less than its"
                f" {format_seconds(job.compute)} of arithmetic"
            )


def compute(facts: Facts) -> Iterator[str]:
    """No job's arithmetic time is shorter than its core's array (at the job's width) and lanes
    allow, up to two picoseconds of rounding."""
    for job in facts.plan.jobs:
        core = facts.cores[job.core]
        array = core.rows * core.columns * _rate(core, job.bits) * core.clock
        lanes = core.lanes * core.clock
        least = (
            max(_least(job.macs, array), _least(job.elements, lanes))
            + core.noc_latency
            + core.job_overhead
        ) * PICOSECONDS
        if ps(job.compute) + 2 < least * (1 - 1e-9):
            work = (
                f"{job.macs} multiply-accumulates of {job.bits} bits and {job.elements} scalar"
                " operations"
            )
            needs = when(least) if least < math.inf else "for ever"
            yield (
                f"job {quoted(job.name)} takes {format_seconds(job.compute)} of arithmetic for"
                f" {work}, its core {job.core} needs {needs}"
            )


def precisions(facts: Facts) -> Iterator[str]:
    """A network's precision is the width of most of its multiply-accumulates; unknown names of
    precisions are not checked."""
    done: dict[str, Counter[int]] = defaultdict(Counter)
    for job in facts.plan.jobs:
        done[job.network][job.bits] += job.macs
    for network in facts.plan.networks:
        macs, bits = done[network.name], _WIDTHS.get(network.precision)
        if bits is not None and any(macs.values()) and macs[bits] < max(macs.values()):
            most = max(macs, key=lambda width: (macs[width], width))
            yield (
                f"network {quoted(network.name)} is said to be planned at {network.precision}, but"
                f" multiplies mostly in {most} bits"
            )


def alike(facts: Facts) -> Iterator[str]:
    """All mini-batches of a network have the same work, and tensors of the same sizes."""
    found: dict[tuple[str, ...], Counter[int]] = defaultdict(Counter)
    batches = defaultdict[str, set[int]](set)
    for job in facts.plan.jobs:
        batches[job.network].add(job.mini_batch)
        more = ", ..." if len(job.operators) > 2 else ""
        who = f"operators {', '.join(quoted(name) for name in job.operators[:2])}{more}"
        for amount, unit in (
            (job.macs, "multiply-accumulates"),
            (job.elements, "scalar operations"),
        ):
            kind = f"{unit} ({job.kind}, {job.bits} bits)"
            found[job.network, who, kind][job.mini_batch] += amount
    for tensor in facts.plan.tensors:
        if tensor.kind != "weight":
            batches[tensor.network].add(tensor.mini_batch)
            who = f"tensor {quoted(tensor.storage)}"
            kind = f"bytes ({tensor.kind})"
            found[tensor.network, who, kind][tensor.mini_batch] += tensor.bytes
    for (network, who, kind), own in found.items():
        first, *others = sorted(batches[network])
        for batch in others:
            if own[batch] != own[first]:
                yield (
                    f"network {quoted(network)}: {who} has {own[batch]} {kind} in mini-batch"
                    f" {batch}, {own[first]} in mini-batch {first}"
                )


def completeness(facts: Facts) -> Iterator[str]:
    """Every operator of every mini-batch of every network is done once: by one job, or by each of
    its tiles."""
    done: dict[tuple[str, int], dict[str, list[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for job in facts.plan.jobs:
        for operator in job.operators:
            done[job.network, job.mini_batch][operator].append((job.tile, job.tiles))
    for network in facts.plan.networks:
        label = f"network {quoted(network.name)}"
        here = sorted(batch for name, batch in done if name == network.name)
        operators = [operator.name for operator in network.operators]
        for batch in here:
            where = f"{label}, mini-batch {batch}"
            yield from _covered(where, operators, done[network.name, batch])
        if network.operators and len(here) < network.mini_batches:
            missing = next(batch for batch in range(network.mini_batches) if batch not in here)
            yield f"{label}: no job does mini-batch {missing} of {network.mini_batches}"
        if here and here[-1] >= network.mini_batches:
            yield f"{label} has no mini-batch {here[-1]}"


def producers(facts: Facts) -> Iterator[str]:
    """Every tensor is written by the job that it names as its producer and by no other."""
    written = {(operand.tensor, job.name) for job, operand, writes in facts.operands if writes}
    for tensor in facts.plan.tensors:
        if tensor.producer and (tensor.name, tensor.producer) not in written:
            yield (
                f"job {quoted(tensor.producer)} is to produce tensor {quoted(tensor.name)} but does"
                " not write it"
            )
    for name, job in sorted(written):
        producer = facts.tensors[name].producer
        if producer != job:
            yield f"job {quoted(job)} writes tensor {quoted(name)}, which " + (
                f"job {quoted(producer)} produces" if producer else "exists from the start"
            )


def cores(facts: Facts) -> Iterator[str]:
    """Jobs of one core follow one another. Sweeps the jobs by start."""
    for core, order in facts.core_orders.items():
        for one, two in pairwise(order):
            if facts.steps[two].start < facts.steps[one].end:
                first, second = (
                    f"{facts.steps[i].label} over {span(job.start, job.end)}"
                    for i, job in ((i, facts.plan.jobs[i]) for i in (one, two))
                )
                yield f"core {core} runs {first} and {second}"


def _rate(core: Core, bits: int) -> float:
    """Multiply-accumulates per element and cycle at a width: the rate of the next wider one that
    the core has, or of its widest."""
    widths = sorted(core.macs_per_cycle)
    return (
        core.macs_per_cycle[next((width for width in widths if bits <= width), widths[-1])]
        if widths
        else 0.0
    )


def _least(work: int, rate: float) -> float:
    """Seconds that work takes at a rate."""
    if not work:
        return 0.0
    return work / rate if rate else math.inf


def _records(plan: PlanRecord) -> Iterator[Any]:
    """Every record of the plan that holds numbers."""
    target, metrics = plan.target, plan.metrics
    yield from (plan, target, plan.objective, *plan.timings, *plan.mini_batches)
    yield from (*target.cores, *target.memories, *plan.networks, *plan.tensors, *plan.allocations)
    yield from (*plan.jobs, *plan.transfers, *chain(*plan.links.values()))
    yield from (operand for job in plan.jobs for operand in (*job.reads, *job.writes))
    yield from (metrics.makespan, metrics.throughput, metrics.inferences_per_second, metrics.energy)
    for by_name in (metrics.latency, metrics.utilisation, metrics.traffic, metrics.memory):
        yield from by_name.values()


def _limits(kind: Any) -> list[tuple[str, float]]:
    """Numeric fields of a record, and their upper limits."""
    limits = {"int": LARGEST, "float": _LARGEST_FLOAT}
    seconds = ("start", "end", "compute", "release", "latency", "period", "deadline")
    return [
        (
            field.name,
            (
                LARGEST / PICOSECONDS
                if field.name in seconds
                else limits[str(field.type).removesuffix(" | None")]
            ),
        )
        for field in fields(kind)
        if str(field.type).removesuffix(" | None") in limits
    ]


def _label(record: Any) -> str:
    """Name of a record in messages."""
    kind = type(record).__name__.removeprefix("Planned").lower()
    if isinstance(record, PlannedTransfer):
        return transfer_label(record)
    if isinstance(record, str):
        return record
    if hasattr(record, "tensor"):
        return f"the {kind} of {quoted(record.tensor)} in {record.memory}"
    return f"{kind} {quoted(record.name)}" if hasattr(record, "name") else f"the {kind} record"


def _unknown(record: Any, what: str, name: str) -> str:
    """Return the message for a name that the plan does not have."""
    return f"{_label(record)} names the {what} {quoted(name)}, which the plan does not have"


def _keys(facts: Facts, networks: set[str]) -> Iterator[str]:
    """Curves and metrics exist for exactly the shared memories and cores; for cores without a
    buffer they are optional."""
    metrics = facts.plan.metrics
    shared, cores = set(facts.memories), set(facts.cores)
    places = shared | cores
    managed = {place for place in places if place in shared or facts.capacities[place]}
    for what, kind, present, needed, allowed in (
        ("links", "memory or core", facts.plan.links, shared, shared),
        ("metrics.traffic", "memory or core", metrics.traffic, shared, shared),
        ("metrics.utilisation", "memory or core", metrics.utilisation, cores, cores),
        ("metrics.memory", "memory or core", metrics.memory, managed, places),
        ("byte_energy", "memory or core", facts.plan.byte_energy, places, places),
        ("metrics.energy_by", "memory or core", metrics.energy_by, places, places),
        ("metrics.latency", "network", metrics.latency, networks, networks),
    ):
        yield from (_unknown(what, kind, name) for name in present if name not in allowed)
        yield from (f"{what} has no entry for {name}" for name in sorted(needed - set(present)))


def _covered(
    where: str, operators: Sequence[str], done: dict[str, list[tuple[int, int]]]
) -> Iterator[str]:
    """Operators of one mini-batch against the (tile, tiles) of the jobs that do them."""
    for operator in operators:
        parts = sorted(done.get(operator, ()))
        if not parts:
            yield f"{where}: no job does operator {quoted(operator)}"
        elif parts[0][1] != len(parts) or parts != [
            (tile, len(parts)) for tile in range(len(parts))
        ]:
            found = ", ".join(f"{tile} of {tiles}" for tile, tiles in parts[:4])
            yield (
                f"{where}: operator {quoted(operator)} is not done once: its jobs are the tiles"
                f" {found}" + (", ..." if len(parts) > 4 else "")
            )
    yield from (
        f"{where}: jobs do operator {quoted(name)}, which the network does not have"
        for name in sorted(set(done) - set(operators))
    )

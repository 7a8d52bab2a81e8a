"""Plans that the planner made, changed as a careless or dishonest writer would: what the file alone
can show must be found."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import groupby

import pytest
from tests.support.cut_networks import cut_plan, recomputing_plan
from tests.support.efforts import TEST
from tests.support.hand_plan import batches, energies
from tests.support.networks import GraphBuilder, npu, staged_machine

import loadmaster as lm
from loadmaster.planning.plan import Plan
from loadmaster.planning.plan_records import PlannedAllocation, PlannedJob
from loadmaster.planning.verify.plan import verify
from loadmaster.workloads.graph import Graph, OpClass, TensorKind
from loadmaster.workloads.job import Ranges

Mutations = Iterator[tuple[str, Plan]]
"""What was changed, and what came of it."""


def network(name: str, channels: int) -> Graph:
    """A sum of inputs, two convolutions, a sum over both, and an operator without arithmetic."""
    build = GraphBuilder(name)
    x = build.elementwise("double", *[build.tensor("x", (channels, 4, 4), TensorKind.INPUT)] * 2)
    one = build.conv("one", x, channels)
    two = build.conv("two", one, channels)
    build.elementwise("sum", one, two)
    build.tensor("y", (channels, 4, 4))
    build.op("Odd", OpClass.UNKNOWN, ["sum"], "y")
    return build.graph("y", "two")


@cache
def planned(kind: str) -> Plan:
    """A small plan: of two networks with several mini-batches, of operators in tiles, of a machine
    that copies operands."""
    if kind == "copies":
        return lm.plan([network("a", 8)], staged_machine(12_000), mini_batches=2, effort=TEST)
    if kind == "pieces":
        return cut_plan(2)
    if kind == "recomputed":
        return recomputing_plan()
    if kind == "tiles":
        return lm.plan([network("a", 32)], npu(2, 8_000), mini_batches=2, effort=TEST)
    return lm.plan([network("a", 8), network("b", 16)], npu(2, 20_000), mini_batches=3, effort=TEST)


def with_figures(plan: Plan) -> Plan:
    """The plan with the sums that a forger would mend: rates, energy, traffic, latencies."""
    makespan = max(record.end for record in (*plan.jobs, *plan.transfers))
    energy, by = energies(plan, makespan)
    mini_batches = batches(plan)
    metrics = plan.metrics
    busy = {
        core: sum(j.compute for j in plan.jobs if j.core == core) / makespan
        for core in metrics.utilisation
    }
    moved = {
        name: sum(t.bytes for t in plan.transfers if name in (t.source, t.destination))
        for name in metrics.traffic
    }
    metrics = replace(
        metrics,
        energy=replace(metrics.energy, value=energy),
        energy_by=by,
        throughput=replace(
            metrics.throughput,
            value=2 * sum(n.macs * n.mini_batches for n in plan.networks) / makespan,
        ),
        utilisation={
            core: replace(rate, value=busy[core]) for core, rate in metrics.utilisation.items()
        },
        traffic={
            name: replace(cost, value=float(moved[name])) for name, cost in metrics.traffic.items()
        },
        latency={
            n: replace(c, value=max(b.latency for b in mini_batches if b.network == n))
            for n, c in metrics.latency.items()
        },
    )
    return replace(plan, metrics=metrics, mini_batches=mini_batches)


def with_records(plan: Plan, part: str, change: Callable[[object], object]) -> Plan:
    return replace(plan, **{part: tuple(change(record) for record in getattr(plan, part))})


def weights_overwritten(plan: Plan) -> Mutations:
    """Each weight leaves main memory with its last use, and a tensor born later takes its place if
    it fits."""
    main = plan.target.main.name
    weights = {t.name for t in plan.tensors if t.kind == "weight"}
    for place in plan.allocations:
        if place.memory != main or place.tensor not in weights:
            continue
        uses = [
            j.end
            for j in plan.jobs
            if any((x.tensor, x.memory) == (place.tensor, main) for x in j.reads)
        ]
        uses += [t.end for t in plan.transfers if t.tensor == place.tensor and not t.job]
        last = max(uses, default=0.0)
        if last == place.end:
            continue
        shorter = with_records(
            plan, "allocations", lambda a, p=place, e=last: replace(a, end=e) if a is p else a
        )
        later = [
            a
            for a in plan.allocations
            if a.memory == main and a.start >= last and a.bytes <= place.bytes
        ]
        for heir in later[:1]:
            shorter = with_records(
                shorter,
                "allocations",
                lambda a, h=heir, p=place: replace(a, offset=p.offset) if a == h else a,
            )
        yield place.tensor, shorter


def outputs_dropped(plan: Plan) -> Mutations:
    """Each output that nothing else reads is forgotten by the network and its tensors."""
    for network_ in plan.networks:
        read = {name for operator in network_.operators for name in operator.reads}
        for output in set(network_.outputs) - read:
            kept = tuple(name for name in network_.outputs if name != output)
            changed = with_records(
                plan,
                "networks",
                lambda n, w=network_, k=kept: replace(n, outputs=k) if n is w else n,
            )
            key = network_.name, output
            yield (
                str(key),
                with_records(
                    changed,
                    "tensors",
                    lambda t, k=key: (
                        replace(t, is_output=False) if (t.network, t.storage) == k else t
                    ),
                ),
            )


def tensors_smaller(plan: Plan) -> Mutations:
    """Each activation of the last mini-batch is halved wherever it occurs."""
    last = {n.name: n.mini_batches - 1 for n in plan.networks}
    for tensor in plan.tensors:
        if (
            tensor.kind == "weight"
            or tensor.mini_batch != last[tensor.network]
            or not last[tensor.network]
        ):
            continue

        def halved(record, name=tensor.name):
            if isinstance(record, PlannedJob):
                reads, writes = (
                    tuple(halved(x) for x in part) for part in (record.reads, record.writes)
                )
                return replace(record, reads=reads, writes=writes)
            if getattr(record, "tensor", getattr(record, "name", None)) != name:
                return record
            return replace(record, bytes=-(-record.bytes // 2))

        changed = plan
        for part in ("tensors", "jobs", "transfers", "allocations"):
            changed = with_records(changed, part, halved)
        yield tensor.name, with_figures(changed)


def scalars_shortened(plan: Plan) -> Mutations:
    """Each job without multiplications takes no arithmetic."""
    for job in plan.jobs:
        if not job.macs and job.elements:
            yield (
                job.name,
                with_figures(
                    with_records(
                        plan, "jobs", lambda j, old=job: replace(j, compute=0.0) if j is old else j
                    )
                ),
            )


def precision_relabelled(plan: Plan) -> Mutations:
    for network_ in plan.networks:
        for precision in {"int8", "fp16", "fp32"} - {network_.precision}:
            yield (
                f"{network_.name} at {precision}",
                with_records(
                    plan,
                    "networks",
                    lambda n, w=network_, p=precision: replace(n, precision=p) if n is w else n,
                ),
            )


def wide_jobs_at_narrow_speed(plan: Plan) -> Mutations:
    """A job with multiplications says 32 bits, or all of a network do, and takes no longer for
    it."""
    for network_ in plan.networks:
        changed = with_records(
            plan, "jobs", lambda j, w=network_: replace(j, bits=32) if j.network == w.name else j
        )
        yield (
            network_.name,
            with_records(
                changed,
                "networks",
                lambda n, w=network_: replace(n, precision="fp32") if n is w else n,
            ),
        )


def bounds_raised(plan: Plan) -> Mutations:
    """The makespan's bound is brought up to the makespan, and the objective's and the status with
    it."""
    value = plan.metrics.makespan.value
    if plan.metrics.makespan.lower_bound < value:
        metrics = replace(plan.metrics, makespan=replace(plan.metrics.makespan, lower_bound=value))
        yield (
            "makespan",
            replace(
                plan,
                metrics=metrics,
                objective=replace(plan.objective, lower_bound=value),
                status="optimal",
            ),
        )


def tiles_that_read_less(plan: Plan) -> Mutations:
    """Each tile leaves out one part of what it reads in parts."""
    storage = {t.name: (t.storage, t.kind) for t in plan.tensors}
    for job in plan.jobs:
        for _, parts in groupby(
            job.reads if job.tiles > 1 else (), key=lambda x: storage[x.tensor]
        ):
            group = list(parts)
            for left_out in group if len(group) > 1 else ():
                yield (
                    f"{job.name} without {left_out.tensor}",
                    without_read(plan, job, left_out.tensor),
                )


def pieces_that_read_less(plan: Plan) -> Mutations:
    """Each piece leaves out one thing that it reads."""
    for job in plan.jobs:
        for operand in job.reads if job.ranges else ():
            yield f"{job.name} without {operand.tensor}", without_read(plan, job, operand.tensor)


def moved_ranges(ranges: Ranges) -> Iterator[Ranges]:
    """The same ranges with one of them an element shorter or longer at its end, where that leaves
    something."""
    for axis, (first, last) in enumerate(ranges):
        if last - first > 1:
            yield (*ranges[:axis], (first, last - 1), *ranges[axis + 1 :])


def pieces_moved(plan: Plan) -> Mutations:
    """Each piece makes a little less, and so does what it writes."""
    for job in plan.jobs:
        for ranges in moved_ranges(job.ranges):
            changed = with_records(
                plan, "jobs", lambda j, w=job, r=ranges: replace(j, ranges=r) if j is w else j
            )
            own = {operand.tensor for operand in job.writes}
            yield (
                job.name,
                with_records(
                    changed,
                    "tensors",
                    lambda t, o=own, r=ranges: replace(t, ranges=r) if t.name in o else t,
                ),
            )


def parts_moved(plan: Plan) -> Mutations:
    """Each part of a tensor holds a little less."""
    for tensor in plan.tensors:
        for ranges in moved_ranges(tensor.ranges):
            yield (
                tensor.name,
                with_records(
                    plan,
                    "tensors",
                    lambda t, w=tensor, r=ranges: replace(t, ranges=r) if t is w else t,
                ),
            )


def channels_moved(plan: Plan) -> Mutations:
    """Each tile over channels holds others, or does not say which."""
    for tensor in plan.tensors:
        if tensor.channels:
            *array, first, last = tensor.channels
            others = (
                (*array, first, last - 1),
                (*array, first + 1, last),
                (*array[:2], array[2] + 1, first, last),
                (),
            )
            for channels in (each for each in others if not each or each[3] < each[4]):
                yield (
                    tensor.name,
                    with_records(
                        plan,
                        "tensors",
                        lambda t, w=tensor, c=channels: replace(t, channels=c) if t is w else t,
                    ),
                )


def pieces_without_ranges(plan: Plan) -> Mutations:
    """Each piece does not say what it makes."""
    for job in plan.jobs:
        if job.ranges:
            yield (
                job.name,
                with_records(plan, "jobs", lambda j, w=job: replace(j, ranges=()) if j is w else j),
            )


def lacks_parts(plan: Plan, job: PlannedJob, storage: str) -> bool:
    """Whether a job reads some, and not all, parts of an operand."""
    read = {operand.tensor for operand in job.reads}
    parts = {
        tensor.name
        for tensor in plan.tensors
        if tensor.storage == storage and tensor.mini_batch == job.mini_batch
    }
    return bool(parts & read) and bool(parts - read)


def marks_changed(plan: Plan) -> Mutations:
    """Each piece that recomputes something does not say so, or owns a row more or less at either
    end."""
    for job in plan.jobs:
        if job.owns:
            moves = ((-1, 0), (1, 0), (0, -1))
            rows = [
                tuple(
                    (a + first, b + last) if d == 2 else (a, b) for d, (a, b) in enumerate(job.owns)
                )
                for first, last in moves
            ]
            for owns in ((), *rows):
                yield (
                    job.name,
                    with_records(
                        plan, "jobs", lambda j, w=job, o=owns: replace(j, owns=o) if j is w else j
                    ),
                )


def windows_grown(plan: Plan) -> Mutations:
    """Each operand in pieces that are read one by one is needed as a whole."""
    in_parts = {tensor.storage for tensor in plan.tensors if tensor.ranges}
    for info in plan.networks:
        for operator in info.operators:
            read_apart = {
                n.tensor
                for n in operator.operands
                if n.tensor in in_parts and any(w.axis is not None for w in n.windows)
            }
            for storage in read_apart:
                needs = tuple(
                    replace(n, windows=()) if n.tensor == storage else n for n in operator.operands
                )
                mine = replace(operator, operands=needs)
                operators = tuple(mine if o is operator else o for o in info.operators)
                changed = with_records(
                    plan,
                    "networks",
                    lambda n, w=info, o=operators: replace(n, operators=o) if n is w else n,
                )
                if any(
                    operator.name in job.operators
                    and job.ranges
                    and lacks_parts(plan, job, storage)
                    for job in plan.jobs
                ):
                    yield operator.name, changed


def inputs_of_another_mini_batch(plan: Plan) -> Mutations:
    """All mini-batches read the first's input, which is called a weight."""
    for network_ in plan.networks:
        for storage in network_.inputs if network_.mini_batches > 1 else ():
            first = next(
                t
                for t in plan.tensors
                if (t.network, t.storage, t.mini_batch) == (network_.name, storage, 0)
            )
            others = {
                t.name for t in plan.tensors if (t.network, t.storage) == (network_.name, storage)
            } - {first.name}

            def renamed(record, others=others, name=first.name):
                if isinstance(record, PlannedJob):
                    return replace(record, reads=tuple(renamed(x) for x in record.reads))
                return replace(record, tensor=name) if record.tensor in others else record

            end = max(a.end for a in plan.allocations)
            kept = tuple(t for t in plan.tensors if t.name not in others)
            changed = replace(
                plan, tensors=tuple(replace(t, kind="weight") if t is first else t for t in kept)
            )
            changed = with_records(with_records(changed, "jobs", renamed), "transfers", renamed)
            main = plan.target.main.name
            places = [a for a in plan.allocations if not (a.memory == main and a.tensor in others)]
            places = [
                replace(a, end=end) if (a.tensor, a.memory) == (first.name, main) else renamed(a)
                for a in places
            ]
            yield storage, replace(changed, allocations=tuple(places))


def without_read(plan: Plan, job: PlannedJob, tensor: str) -> Plan:
    """The plan with one operand of one job gone, and its transfers and tiles with it."""
    reads = tuple(x for x in job.reads if x.tensor != tensor)
    changed = with_records(plan, "jobs", lambda j: replace(j, reads=reads) if j is job else j)
    transfers = tuple(t for t in plan.transfers if (t.job, t.tensor) != (job.name, tensor))

    def tile(a: PlannedAllocation) -> bool:
        return (a.memory, a.tensor, a.start) == (job.core, tensor, job.start)

    return with_figures(
        replace(
            changed,
            transfers=transfers,
            allocations=tuple(a for a in plan.allocations if not tile(a)),
        )
    )


HARMFUL: dict[str, tuple[Callable[[Plan], Mutations], str, tuple[str, ...]]] = {
    "weights overwritten": (weights_overwritten, "weight", ("batches", "tiles", "copies")),
    "outputs dropped": (outputs_dropped, "dataflow", ("batches", "tiles", "copies")),
    "tensors smaller": (tensors_smaller, "alike", ("batches", "tiles", "copies")),
    "scalar jobs shortened": (scalars_shortened, "compute", ("batches", "tiles", "copies")),
    "precision relabelled": (precision_relabelled, "precision", ("batches", "tiles", "copies")),
    "fp32 at the speed of int8": (wide_jobs_at_narrow_speed, "compute", ("batches", "tiles")),
    "bound raised": (bounds_raised, "rate", ("batches", "tiles", "copies")),
    "tiles that read less": (tiles_that_read_less, "dataflow", ("tiles",)),
    "pieces that read less": (pieces_that_read_less, "window", ("pieces", "recomputed")),
    "pieces that make another part": (pieces_moved, "piece", ("pieces", "recomputed")),
    "parts that hold another part": (parts_moved, "part", ("pieces", "recomputed")),
    "tiles that hold other channels": (channels_moved, "part", ("tiles",)),
    "pieces without ranges": (pieces_without_ranges, "range", ("pieces", "recomputed")),
    "marks of what is recomputed": (marks_changed, "piece", ("recomputed",)),
    "windows that need more": (windows_grown, "window", ("pieces",)),
    "inputs of another mini-batch": (
        inputs_of_another_mini_batch,
        "dataflow",
        ("batches", "tiles", "copies"),
    ),
}
"""Mutations, the rule that each of them must break, and the plans that offer any."""


@pytest.mark.parametrize("kind", ["batches", "tiles", "copies", "pieces", "recomputed"])
def test_the_plans_hold_before_they_are_changed(kind: str) -> None:
    plan = planned(kind)
    assert verify(plan) == ()
    assert verify(with_figures(plan)) == (), "sums that are mended stay right"


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name, (_, _, kinds) in HARMFUL.items() for kind in kinds]
)
def test_every_harmful_mutation_is_found(name: str, kind: str) -> None:
    change, rule, _ = HARMFUL[name]
    mutations = list(change(planned(kind)))
    assert mutations, "a test that changes nothing proves nothing"
    missed = [
        what
        for what, plan in mutations
        if rule not in {violation.rule for violation in verify(plan)}
    ]
    assert not missed, f"{len(missed)} of {len(mutations)} are accepted: {missed[:5]}"

"""Plans that the planner made, changed as a careless or dishonest writer would: what the file alone
can show must be found."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
from tests.support.cut_networks import cut_plan, recomputing_plan
from tests.support.efforts import TEST
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


def with_records(plan: Plan, part: str, change: Callable[[object], object]) -> Plan:
    return replace(plan, **{part: tuple(change(record) for record in getattr(plan, part))})


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


def without_read(plan: Plan, job: PlannedJob, tensor: str) -> Plan:
    """The plan with one operand of one job gone, and its transfers and tiles with it."""
    reads = tuple(x for x in job.reads if x.tensor != tensor)
    changed = with_records(plan, "jobs", lambda j: replace(j, reads=reads) if j is job else j)
    transfers = tuple(t for t in plan.transfers if (t.job, t.tensor) != (job.name, tensor))

    def tile(a: PlannedAllocation) -> bool:
        return (a.memory, a.tensor, a.start) == (job.core, tensor, job.start)

    return replace(
        changed,
        transfers=transfers,
        allocations=tuple(a for a in plan.allocations if not tile(a)),
    )


HARMFUL: dict[str, tuple[Callable[[Plan], Mutations], str, tuple[str, ...]]] = {
    "pieces that read less": (pieces_that_read_less, "window", ("pieces", "recomputed")),
    "pieces that make another part": (pieces_moved, "piece", ("pieces", "recomputed")),
    "parts that hold another part": (parts_moved, "part", ("pieces", "recomputed")),
    "tiles that hold other channels": (channels_moved, "part", ("tiles",)),
    "pieces without ranges": (pieces_without_ranges, "range", ("pieces", "recomputed")),
    "marks of what is recomputed": (marks_changed, "piece", ("recomputed",)),
    "windows that need more": (windows_grown, "window", ("pieces",)),
}
"""Mutations, the rule that each of them must break, and the plans that offer any."""


@pytest.mark.parametrize("kind", ["batches", "tiles", "copies", "pieces", "recomputed"])
def test_the_plans_hold_before_they_are_changed(kind: str) -> None:
    assert verify(planned(kind)) == ()


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

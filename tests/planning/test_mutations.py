"""Plans that the planner made, changed as a careless or dishonest writer would: what the file alone
can show must be found."""

from dataclasses import replace
from functools import cache

import pytest
from tests.support.cut_networks import cut_plan
from tests.support.efforts import TEST
from tests.support.networks import GraphBuilder, npu, staged_machine

import loadmaster as lm
from loadmaster.planning.verify.plan import verify
from loadmaster.workloads.graph import OpClass, TensorKind


def network(name, channels):
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
def planned(kind):
    """A small plan: of two networks with several mini-batches, of operators in pieces, of a
    machine that copies operands."""
    if kind == "copies":
        return lm.plan([network("a", 8)], staged_machine(12_000), mini_batches=2, effort=TEST)
    if kind == "pieces":
        return cut_plan(2)
    return lm.plan([network("a", 8), network("b", 16)], npu(2, 20_000), mini_batches=3, effort=TEST)


def with_records(plan, part, change):
    return replace(plan, **{part: tuple(change(record) for record in getattr(plan, part))})


def with_one(plan, part, record, **changes):
    """The plan with one record changed."""
    return with_records(
        plan, part, lambda each: replace(each, **changes) if each is record else each
    )


def moved_ranges(ranges):
    """The same ranges with one of them an element shorter or longer at its end, where that leaves
    something."""
    for axis, (first, last) in enumerate(ranges):
        if last - first > 1:
            yield (*ranges[:axis], (first, last - 1), *ranges[axis + 1 :])


def pieces_moved(plan):
    """Each piece makes a little less, and so does what it writes."""
    for job in plan.jobs:
        for ranges in moved_ranges(job.ranges):
            changed = with_one(plan, "jobs", job, ranges=ranges)
            own = {operand.tensor for operand in job.writes}
            yield (
                job.name,
                with_records(
                    changed,
                    "tensors",
                    lambda t, o=own, r=ranges: replace(t, ranges=r) if t.name in o else t,
                ),
            )


def parts_moved(plan):
    """Each part of a tensor holds a little less."""
    for tensor in plan.tensors:
        for ranges in moved_ranges(tensor.ranges):
            yield tensor.name, with_one(plan, "tensors", tensor, ranges=ranges)


def pieces_without_ranges(plan):
    """Each piece does not say what it makes."""
    for job in plan.jobs:
        if job.ranges:
            yield job.name, with_one(plan, "jobs", job, ranges=())


def with_box(plan, job, operand, ranges):
    """The plan in which a job reads another box of a tensor."""
    reads = tuple(replace(x, ranges=ranges) if x is operand else x for x in job.reads)
    return with_one(plan, "jobs", job, reads=reads)


def boxes_of_pieces(plan):
    """What pieces read, but for sums: the job, the operand, its box, and that of the tensor."""
    tensors = {tensor.name: tensor for tensor in plan.tensors}
    for job in plan.jobs:
        for operand in job.reads if job.ranges else ():
            tensor = tensors[operand.tensor]
            held = tensor.ranges or tuple((0, extent) for extent in tensor.shape)
            if not tensor.summed:
                yield job, operand, operand.ranges or held, held


def operands_beyond(plan):
    """Each box that is read ends one element behind the tensor, or begins one before it."""
    for job, operand, box, held in boxes_of_pieces(plan):
        for axis, (first, last) in enumerate(held):
            for moved in ((first - 1, box[axis][1]), (box[axis][0], last + 1)):
                ranges = (*box[:axis], moved, *box[axis + 1 :])
                yield f"{job.name} {operand.tensor}", with_box(plan, job, operand, ranges)


def read_apart(plan):
    """Boxes that a piece reads where, along a dimension, another of the same storage ends."""
    found = list(boxes_of_pieces(plan))
    storage = {tensor.name: tensor.storage for tensor in plan.tensors}
    for job, operand, box, held in found:
        for other, before, its, _ in found:
            if other is job and storage[before.tensor] == storage[operand.tensor]:
                for axis, ((first, _), (_, last)) in enumerate(zip(box, its, strict=True)):
                    if first == last:
                        yield job, operand, axis, box, held


def operands_with_holes(plan):
    """Each box that goes on where another ends begins one element later."""
    for job, operand, axis, box, _ in read_apart(plan):
        first, last = box[axis]
        if first + 1 < last:
            ranges = (*box[:axis], (first + 1, last), *box[axis + 1 :])
            yield f"{job.name} {operand.tensor}", with_box(plan, job, operand, ranges)


HARMFUL = {
    "pieces that make another part": (pieces_moved, {"piece", "range"}),
    "parts that hold another part": (parts_moved, {"part", "range"}),
    "pieces without ranges": (pieces_without_ranges, {"range"}),
    "operands beyond their tensors": (operands_beyond, {"range"}),
    "operands that leave a hole": (operands_with_holes, {"read"}),
}
"""Mutations, and the rules of which each of them must break one."""


@pytest.mark.parametrize(("change", "rules"), HARMFUL.values(), ids=HARMFUL)
def test_every_harmful_mutation_is_found(change, rules):
    mutations = list(change(planned("pieces")))
    assert mutations, "a test that changes nothing proves nothing"
    missed = [
        what
        for what, plan in mutations
        if not rules & {violation.rule for violation in verify(plan)}
    ]
    assert not missed, f"{len(missed)} of {len(mutations)} are accepted: {missed[:5]}"

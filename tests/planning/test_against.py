"""Plans against the networks and machines that they are for: what the planner makes passes, and
whatever is changed is found."""

from collections import Counter
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from itertools import islice
from math import inf
from pathlib import Path

import numpy as np
import pytest
from tests.support.cut_networks import convolutions, cut_network, cut_plan
from tests.support.edits import edit, figure
from tests.support.efforts import SEPARATE, verified
from tests.support.hand_plan import finished
from tests.support.needs import FIXTURES
from tests.support.networks import GraphBuilder, npu, staged_machine
from tests.support.onnx_builder import constant, model
from tests.support.summed_networks import network as summed_network
from tests.support.summed_networks import summed_plan

import loadmaster as lm
from loadmaster.planning.plan_records import Cost, PlannedJob, Rate
from loadmaster.planning.verify.plan import verify
from loadmaster.planning.verify_against import verify_against
from loadmaster.workloads.graph import OpClass, TensorKind

TRUSTED = {"NetworkInfo.notes", "Target.description"}
"""Of records, what docs/plan-format.md says is taken on trust even with the networks and the
machine at hand."""
CHOSEN = {
    *(f"PlannedJob.{name}" for name in ("name", "core", "start", "end", "after")),
    *(f"PlannedAllocation.{name}" for name in ("offset", "start", "end")),
    *(f"PlannedTransfer.{name}" for name in ("start", "end", "after", "name")),
}
"""What a planner decides: changed, it is broken, or another plan of the same networks. Other tests
break these."""


@cache
def example(kind):
    """Networks and a small plan of them: of two with several mini-batches, on a machine that copies
    operands, of operators in pieces, of pieces that add to the sums of others, and of a chain."""
    if kind == "sums":
        return [summed_network(4)[1]], summed_plan()
    if kind == "pieces":
        return [cut_network()], cut_plan(3)
    if kind == "chain":
        return chain()
    # Links are so fast that they are not full where all transfers of a job take as long as it does.
    if kind == "copies":
        machine = staged_machine(12_000).with_memory(1, read_bandwidth=5e11, write_bandwidth=5e11)
        own = [network("a", 8)]
        return own, verified(own, machine, mini_batches=2)
    own = [network("a", 8), network("b", 16)]
    return own, verified(own, npu(1, 20_000, bandwidth=1e10), mini_batches=3)


def chain(change=lambda op: op, strides=(1, 1)):
    """Convolutions at fp32 with a change of their operators, and a plan of them, whole, on one core
    with main memory only."""
    graph = convolutions(strides=strides, skip=False)
    operators = tuple(change(replace(op, bits=32)) for op in graph.ops)
    own = [replace(graph, precision="fp32", ops=operators)]
    machine = npu(1, scratchpad=0, buffer=0, bandwidth=1e8)
    return own, lm.plan(own, machine, effort=SEPARATE, cut="none")


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


def mended(plan):
    """The plan with all the figures that follow from its records, and its bounds as they were, or
    as low as the values."""
    old, new = plan.metrics, finished(plan)
    least = min(old.makespan.lower_bound, new.metrics.makespan.value)
    faster = new.metrics.makespan.value / least

    def raised(rate, most=inf):
        return Rate(rate.value, max(rate.value, min(most, faster * rate.value)))

    def kept(value, before):
        return replace(value, lower_bound=min(value.value, before.lower_bound))

    if all(cost.value == old.traffic[name].value for name, cost in new.metrics.traffic.items()):
        new = replace(new, links=plan.links)
    found = new.metrics
    metrics = replace(
        found,
        makespan=kept(found.makespan, old.makespan),
        throughput=raised(found.throughput),
        inferences_per_second=raised(found.inferences_per_second),
        utilisation={core: raised(rate, 1.0) for core, rate in found.utilisation.items()},
        traffic={name: kept(cost, old.traffic[name]) for name, cost in found.traffic.items()},
        energy=kept(found.energy, old.energy),
        latency={name: kept(cost, old.latency[name]) for name, cost in found.latency.items()},
    )
    objective = replace(
        plan.objective, value=found.makespan.value, lower_bound=metrics.makespan.lower_bound
    )
    return replace(new, metrics=metrics, objective=objective)


# Every plan passes.


@pytest.mark.parametrize("kind", ["pieces", "copies", "batches", "chain"])
def test_what_the_planner_makes_is_a_plan_of_its_networks(kind):
    own, plan = example(kind)
    assert verify_against(mended(plan), own, plan.target) == (), "what is mended stays right"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "options", "changes", "more"),
    [
        ("ncf.onnx.gz", {"batch": 4}, [], {"mini_batches": 2}),
        ("onnxruntime-quantised-optimised.onnx.gz", {}, [], {}),
        (
            "traced-bert-opset13.onnx.gz",
            {"batch": 1, "dims": {"steps": 8}},
            ["scratchpad.capacity=64KiB"],
            {},
        ),
        (
            "traced-bert-opset13.onnx.gz",
            {"batch": 1, "dims": {"steps": 8}},
            ["scratchpad.capacity=8KiB"],
            {"cut": "none"},
        ),
    ],
)
def test_plans_of_files_pass(source, options, changes, more):
    machine = lm.target("edge-npu", changes)
    network_ = lm.load(FIXTURES / source, **options)
    verified([network_], machine, effort=SEPARATE, **more)


@pytest.mark.slow
@pytest.mark.parametrize(("training", "cut"), [(False, "auto"), (True, "none")])
def test_plans_of_torch_modules_pass(training, cut):
    pytest.importorskip("torch")
    machine = lm.target("edge-npu", ["scratchpad.capacity=16KiB"])
    network_ = lm.load("torch:tests.support.factories:layers", batch=64, training=training)
    verified([network_], machine, effort=SEPARATE, cut=cut)


# Every field that a plan states about its networks and its machine.


def exchanged(items, place, other):
    """The same items but for one."""
    return (*items[:place], other, *items[place + 1 :])


def variants(value):
    """Other values of the same type."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        if value > 1 or (isinstance(value, float) and value):
            yield type(value)(value / 2)
    elif isinstance(value, str):
        yield value + "'"
    elif isinstance(value, tuple) and value and all(isinstance(item, str | int) for item in value):
        yield from (value[:-1], ())


def mutants(record):
    """The record with each of its fields changed, and those of the records in it."""
    for field in fields(record):
        value, name = getattr(record, field.name), f"{type(record).__name__}.{field.name}"
        found = [(name, other) for other in variants(value)]
        if is_dataclass(value):
            found = mutants(value)
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            found = (
                (path, exchanged(value, place, other))
                for place, item in enumerate(value)
                for path, other in mutants(item)
            )
        for path, other in found:
            yield path, replace(record, **{field.name: other})


def few(found, most):
    """At most so many of each kind."""
    seen = Counter()
    for path, plan in found:
        if seen[path] < most:
            seen[path] += 1
            yield path, plan


def stated(plan):
    """The plan with each field of its records changed."""
    yield from ((path, replace(plan, target=target)) for path, target in mutants(plan.target))
    for part in ("networks", "tensors", "jobs", "allocations", "transfers"):
        records = getattr(plan, part)
        for place, record in enumerate(records):
            for path, other in mutants(record):
                yield path, replace(plan, **{part: exchanged(records, place, other)})


@pytest.mark.slow
def test_every_field_that_is_changed_is_found_or_listed_as_trusted():
    own, plan = example("pieces")
    tried = set()
    for path, changed in few(stated(plan), 2):
        if path not in TRUSTED | CHOSEN:
            tried.add(path)
            assert verify(changed) or verify_against(mended(changed), own, plan.target), path
    assert {
        "NetworkInfo.batch",
        "OperatorInfo.reads",
        "PlannedTensor.bytes",
        "PlannedJob.macs",
        "PlannedOperand.bytes",
    } <= tried


def test_the_story_of_a_plan_is_trusted_as_the_page_says():
    page = (Path(__file__).parents[2] / "docs" / "plan-format.md").read_text()
    trusted = page.partition("even with the networks and the machine")[2]
    own, plan = example("pieces")
    told = replace(plan, producer="somebody", seed=9, notes=("a note",), search=())
    assert verify_against(told, own, plan.target) == ()
    for word in ("producer", "seed", "notes", "search", "description"):
        assert f"`{word}`" in trusted


# Forgeries that are consistent throughout, so that the file alone shows nothing.


def outputs_dropped(plan):
    """An output becomes something that nobody uses."""
    info = plan.networks[0]
    last = info.outputs[-1]
    changed = with_records(
        plan, "networks", lambda n: replace(n, outputs=n.outputs[:-1], unused=(*n.unused, last))
    )
    yield with_records(
        changed, "tensors", lambda t: replace(t, is_output=False) if t.storage == last else t
    )


def tensors_smaller(plan):
    """A storage that is whole, and all that moves of it, is a third of its size in every
    mini-batch."""
    whole = {
        t.storage for t in plan.tensors if not t.ranges and "[" not in t.name and t.bytes > 100
    }
    for storage in sorted(whole):
        own = {t.name for t in plan.tensors if t.storage == storage}

        def less(record, own=own):
            if isinstance(record, PlannedJob):
                return replace(
                    record,
                    reads=tuple(less(x, own) for x in record.reads),
                    writes=tuple(less(x, own) for x in record.writes),
                )
            return (
                replace(record, bytes=record.bytes // 3)
                if (getattr(record, "tensor", "") or record.name) in own
                else record
            )

        changed = plan
        for part in ("tensors", "jobs", "transfers", "allocations"):
            changed = with_records(changed, part, less)
        yield changed


def precision_relabelled(plan):
    yield with_records(
        with_records(plan, "networks", lambda n: replace(n, precision="int8")),
        "jobs",
        lambda j: replace(j, bits=8),
    )


def scalars_for_nothing(plan):
    """Jobs do no scalar operations, and those without others take no time for arithmetic."""
    yield with_records(
        plan, "jobs", lambda j: replace(j, elements=0, compute=j.compute if j.macs else 0.0)
    )


def half_the_work(plan):
    changed = with_records(
        plan, "jobs", lambda j: replace(j, macs=j.macs // 2, compute=round(j.compute * 5e11) / 1e12)
    )
    done = sum(j.macs for j in changed.jobs)
    yield with_records(changed, "networks", lambda n: replace(n, macs=done // n.mini_batches))


def bytes_for_nothing(plan):
    """One byte of every operand that is read moves."""
    reads = {(j.name, x.tensor) for j in plan.jobs for x in j.reads}
    changed = with_records(
        plan,
        "jobs",
        lambda j: replace(j, reads=tuple(replace(x, bytes=min(1, x.bytes)) for x in j.reads)),
    )
    yield with_records(
        changed,
        "transfers",
        lambda t: replace(t, bytes=min(1, t.bytes)) if (t.job, t.tensor) in reads else t,
    )


def frugal_cores(plan):
    """Jobs take no more energy than their multiply-accumulates alone would."""
    yield with_records(
        plan, "jobs", lambda j: replace(j, energy=j.macs * {8: 0.3e-12, 32: 4.6e-12}[j.bits])
    )


def slower_cores(plan):
    """Arithmetic is said to take all the time that a job takes."""
    yield with_records(
        plan, "jobs", lambda j: replace(j, compute=round((j.end - j.start) * 1e12) / 1e12)
    )


def operators_gone(plan):
    """The last ones are left out: this is a plan of a shorter chain."""
    yield chain(strides=(1,))[1]


def operators_merged(plan):
    """All are done by one job, as if they worked element by element, so that what lies between
    never leaves the core."""
    merged = chain(lambda op: replace(op, op_class=OpClass.ELEMENTWISE))[1]
    yield from slower_cores(
        with_records(merged, "jobs", lambda j: replace(j, macs=2 * j.macs, energy=2 * j.energy))
    )


def bounds_raised(plan):
    """The makespan's bound grows by a hundredth, and all that follows from it; then the other
    bounds, one by one."""
    least = plan.metrics.makespan.lower_bound * 1.01
    yield figure("makespan", plan, lower_bound=least)
    for name in ("energy", "traffic", "latency"):
        old = getattr(plan.metrics, name)
        raised = (
            _raised(old)
            if isinstance(old, Cost)
            else {key: _raised(cost) for key, cost in old.items()}
        )
        yield replace(plan, metrics=replace(plan.metrics, **{name: raised}))


def _raised(cost):
    """A bound that is higher by a hundredth, but no higher than the value."""
    return replace(cost, lower_bound=min(cost.value, cost.lower_bound * 1.01))


def faster_machine(plan):
    yield replace(plan, target=plan.target.with_memory(0, capacity=2 * plan.target.main.capacity))


FORGERIES = {
    outputs_dropped: ("pieces", "batches", "chain"),
    tensors_smaller: ("batches", "copies", "chain"),
    precision_relabelled: ("chain",),
    scalars_for_nothing: ("pieces", "batches"),
    half_the_work: ("chain",),
    bytes_for_nothing: ("pieces", "batches", "chain"),
    frugal_cores: ("pieces", "chain"),
    slower_cores: ("batches",),
    operators_gone: ("chain",),
    operators_merged: ("chain",),
    bounds_raised: ("pieces",),
    faster_machine: ("copies", "chain"),
}
"""Forgeries, and the plans that offer them."""


@pytest.mark.parametrize(
    ("forge", "kind"), [(forge, kind) for forge, kinds in FORGERIES.items() for kind in kinds]
)
def test_every_consistent_forgery_is_found(forge, kind):
    own, plan = example(kind)
    # A bound that is reached cannot be raised.
    found = [changed for changed in map(mended, forge(plan)) if changed != mended(plan)]
    assert found, "a test that changes nothing proves nothing"
    for changed in found:
        assert verify(changed) == (), "what the file alone shows does not need the model"
        assert verify_against(changed, own, plan.target)


# Boxes that pieces read: the file shows that they fit one another, the model which they must be.


def reads_dropped(plan):
    """Each piece leaves out one thing that it reads, with its transfers and tiles."""
    for job, operand, _, _ in boxes_of_pieces(plan):
        reads = tuple(x for x in job.reads if x is not operand)
        changed = with_one(plan, "jobs", job, reads=reads)
        own, tile = (job.name, operand.tensor), (job.core, operand.tensor, job.start)
        transfers = tuple(t for t in plan.transfers if (t.job, t.tensor) != own)
        kept = tuple(a for a in plan.allocations if (a.memory, a.tensor, a.start) != tile)
        yield (
            f"{job.name} without {operand.tensor}",
            mended(replace(changed, transfers=transfers, allocations=kept)),
        )


def boxes_moved(plan, within=True):
    """Each box that a piece reads is an element shorter or longer, where the tensor has it; or
    where it ends."""
    for job, operand, box, held in boxes_of_pieces(plan):
        for axis, ((first, last), (low, high)) in enumerate(zip(box, held, strict=True)):
            for start, end in (
                (first - 1, last),
                (first + 1, last),
                (first, last - 1),
                (first, last + 1),
            ):
                if start < end and (low <= start and end <= high) == within:
                    yield with_span(plan, job, operand, box, axis, (start, end))


def sums_shortened(plan):
    """The last pieces of all chains of an operator leave out the last term."""
    for operators in {job.operators for job in plan.jobs if job.summed}:
        end = max(job.summed[1] for job in plan.jobs if job.operators == operators and job.summed)

        def less(job, own=operators, end=end):
            ends = job.operators == own and job.summed and job.summed[1] == end
            return replace(job, summed=(job.summed[0], end - 1)) if ends else job

        if any(job.summed[1:] == (end,) and job.summed[0] < end - 1 for job in plan.jobs):
            yield operators[0], with_records(plan, "jobs", less)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (reads_dropped, "pieces"),
        (reads_dropped, "sums"),
        (boxes_moved, "pieces"),
        (boxes_moved, "sums"),
        (sums_shortened, "sums"),
    ],
)
def test_pieces_that_read_other_boxes_than_they_need_are_found(change, kind):
    own, plan = example(kind)
    needs_the_model = 0
    for what, changed in islice(change(plan), 0, None, 3):
        if not verify(changed):
            needs_the_model += 1
            rules = {violation.rule for violation in verify_against(changed, own, plan.target)}
            assert rules in ({"box"}, {"cut"}), what
    assert needs_the_model, "a test that changes nothing proves nothing"


# The other way round: another model.


def models(graph):
    """The network with each field of its operators and tensors changed, the last operators
    first."""
    yield from (
        found
        for found in mutants(replace(graph, ops=(), tensors={}))
        if found[0].startswith("Graph.")
    )
    for place, op in reversed(list(enumerate(graph.ops))):
        for path, other in mutants(op):
            yield path, replace(graph, ops=exchanged(graph.ops, place, other))
    for tensor in graph.tensors.values():
        for path, other in mutants(tensor):
            yield path, replace(graph, tensors={**graph.tensors, tensor.name: other})


@pytest.mark.slow
def test_whatever_differs_in_the_network_is_found():
    """Of whole operators or of those in pieces; but for what no plan depends on, or no plan of
    networks without copies that are left out, and without views of another shape than their
    storage."""
    unused = {"Graph.notes", "Graph.inputs", "Tensor.dtype", "Op.copies", "Access.of_storage"}
    tried, found = set(), set()
    for (graph, *_), plan in map(example, ("pieces", "chain")):
        for path, other in few(models(graph), 10):
            if path in unused:
                continue
            if path.startswith("Graph."):
                other = replace(other, ops=graph.ops, tensors=graph.tensors)
            # Of other errors: no frontend makes such a graph.
            with suppress(KeyError, IndexError, ValueError, lm.LoadmasterError):
                (found if verify_against(plan, [other], plan.target) else tried).add(path)
    assert "Op.elements" in found, "a test that changes nothing proves nothing"
    assert tried <= found


def test_another_number_of_networks_or_another_order_is_found():
    own, plan = example("batches")
    for others in (own[:1], own[::-1], [*own, own[0]]):
        assert {violation.rule for violation in verify_against(plan, others)} == {"network"}


def test_the_order_of_unused_results_does_not_matter():
    """Of two results that nobody uses the later one is fused to the operator before, and so comes
    first."""
    build = GraphBuilder("unused")
    x = build.tensor("x", (8, 4, 4), TensorKind.INPUT)
    one, _, _ = build.conv("one", x, 8), build.conv("two", x, 8), build.conv("y", x, 8)
    build.elementwise("three", one)
    graph = build.graph("y")
    plan = lm.plan([graph], npu(), effort=SEPARATE)
    assert set(plan.networks[0].unused) == {"three", "two"}
    for unused in (("three", "two"), ("two", "three")):
        turned = with_one(plan, "networks", plan.networks[0], unused=unused)
        assert lm.verify_against(turned, [graph], npu()) == ()


def test_without_a_target_the_plans_own_is_believed():
    own, plan = example("pieces")
    changed = mended(next(faster_machine(plan)))
    assert verify_against(changed, own) == ()
    assert {v.rule for v in verify_against(changed, own, plan.target)} == {"machine"}


def test_a_copy_engine_of_other_rates_is_another_machine():
    own, plan = example("copies")
    copy = plan.target.copy
    slower = replace(copy, blocking=tuple(rate / 2 for rate in copy.blocking))
    (found,) = verify_against(plan, own, replace(plan.target, copy=slower))
    assert found.rule == "machine"
    assert "copy: blocking is" in found.message


def test_a_plan_that_does_not_hold_is_not_looked_at_further():
    own, plan = example("pieces")
    broken = replace(plan, jobs=plan.jobs[1:])
    assert verify_against(broken, own) == verify(broken) != ()


def test_what_is_no_plan_is_refused():
    with pytest.raises(lm.PlanError, match="plan"):
        verify_against("plan.json", example("pieces")[0])


def test_a_factor_that_is_transposed_twice_is_read_whole_by_every_tile_over_channels():
    """Its last dimension is as long as the result's, and does not go with the output channels."""
    nodes = """
        a = Transpose<perm=[0,2,1]>(x)
        b = Transpose<perm=[0,2,1]>(a)
        y = MatMul(b, w)
    """
    w = constant("w", np.ones((8, 8)), np.float32)
    graph = lm.load(model(nodes, "float[4,8,8] x", "y", [w]))
    plan = lm.plan([graph], lm.target("edge-npu", ["scratchpad.capacity=2KiB"]), cut="none")
    assert len(plan.jobs) > 1
    assert verify_against(plan, [graph]) == ()


# Changed as a careless or dishonest writer would: what the file alone can show must be found.


def with_records(plan, part, change):
    return replace(plan, **{part: tuple(change(record) for record in getattr(plan, part))})


def with_one(plan, part, record, **changes):
    """The plan with one record changed."""
    return edit(plan, part, lambda each: each is record, **changes)


def moved_ranges(ranges):
    """The same ranges with one of them an element shorter or longer at its end, where that leaves
    something."""
    for axis, (first, last) in enumerate(ranges):
        if last - first > 1:
            yield exchanged(ranges, axis, (first, last - 1))


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


def with_span(plan, job, operand, box, axis, span):
    """What changes, and the plan in which a box that a job reads has other ends along one axis."""
    return f"{job.name} {operand.tensor}", with_box(plan, job, operand, exchanged(box, axis, span))


def operands_with_holes(plan):
    """Each box that goes on where, along an axis, another of the same storage and job ends begins
    one element later."""
    found = list(boxes_of_pieces(plan))
    storage = {tensor.name: tensor.storage for tensor in plan.tensors}
    for job, operand, box, _ in found:
        for other, before, its, _ in found:
            if other is job and storage[before.tensor] == storage[operand.tensor]:
                for axis, ((first, last), (_, end)) in enumerate(zip(box, its, strict=True)):
                    if first == end and first + 1 < last:
                        yield with_span(plan, job, operand, box, axis, (first + 1, last))


HARMFUL = {
    "pieces that make another part": (pieces_moved, {"piece", "range"}),
    "parts that hold another part": (parts_moved, {"part", "range"}),
    "pieces without ranges": (pieces_without_ranges, {"range"}),
    "operands beyond their tensors": (partial(boxes_moved, within=False), {"range"}),
    "operands that leave a hole": (operands_with_holes, {"read"}),
}
"""Mutations, and the rules of which each of them must break one."""


@pytest.mark.slow
@pytest.mark.parametrize(("change", "rules"), HARMFUL.values(), ids=HARMFUL)
def test_every_harmful_mutation_is_found(change, rules):
    mutations = list(change(example("pieces")[1]))
    assert mutations, "a test that changes nothing proves nothing"
    missed = [
        what
        for what, plan in mutations
        if not rules & {violation.rule for violation in verify(plan)}
    ]
    assert not missed, f"{len(missed)} of {len(mutations)} are accepted: {missed[:5]}"

"""The verifier accepts good plans, whatever they look like, and survives all others."""

from dataclasses import fields, replace
from math import inf, isclose, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cut_networks import cut_plan
from tests.support.drawn_plan import empty
from tests.support.edits import (
    COPYING,
    SHARED,
    allocation,
    figure,
    job,
    main_memory,
    streamed,
    timed,
)
from tests.support.efforts import SEPARATE
from tests.support.fuzzing import fuzz
from tests.support.hand_plan import finished, long_plan, us
from tests.support.lowered import parts_of, planned
from tests.support.networks import GraphBuilder, npu
from tests.support.onnx_builder import constant, int8_graph

import loadmaster as lm
from loadmaster.planning.plan_records import PlannedAllocation, PlannedOperand
from loadmaster.planning.verify.facts import Facts
from loadmaster.planning.verify.memory import overlaps
from loadmaster.planning.verify.movement import _late
from loadmaster.planning.verify.plan import verify
from loadmaster.workloads.graph import OpClass, TensorKind
from loadmaster.workloads.job import OperatorInfo
from loadmaster.workloads.lowering.pieces import Cuts


@pytest.mark.parametrize(
    "plan",
    [SHARED, COPYING, long_plan(3), long_plan(301, 3)],
    ids=["shared", "copying", "short", "long"],
)
def test_good_plans_hold(plan):
    assert verify(plan) == ()


def test_a_mini_batch_may_start_at_its_release_and_end_at_its_deadline():
    plan = timed(20, 20)
    assert verify(plan) == ()
    assert (plan.missed, plan.lateness) == (0, 0.0)
    late = timed(20, 19, missed=True)
    assert verify(late) == ()
    assert (late.missed, late.lateness) == (2, pytest.approx(us(2)))


def test_order_through_others_is_order_enough():
    last = job("net/conv@1", after=("aux/pool#0@0",))
    assert {violation.rule for violation in verify(last)} == {"race"}
    through = job(
        "net/conv@1",
        plan=job("aux/pool#0@0", start=us(20), end=us(22), after=("net/fc@0",)),
        after=(),
        start=us(22),
    )
    through = streamed(allocation("net/h@1", "scratchpad", plan=through, start=us(22)))
    assert verify(through) == ()


def test_a_link_may_be_full_to_the_last_picosecond():
    full = 1024 / us(5)
    plan = main_memory(COPYING, read_bandwidth=full, write_bandwidth=full)
    assert verify(finished(plan)) == ()


def test_a_job_that_takes_no_time_may_not_overwrite_what_is_still_read():
    """On links so fast that curves and bandwidths allow it, a result that nobody reads lies where
    another waits for its reader."""
    build = GraphBuilder("n")
    build.tensor("x", (64,), TensorKind.INPUT)
    for source, result in ("xy", "xu", "yz"):
        build.tensor(result, (64,))
        build.op("Odd", OpClass.UNKNOWN, [source], result)
    good = lm.plan([build.graph("z")], npu(1, 0, bandwidth=1e15), effort=SEPARATE)
    unused = good.jobs[1]
    assert unused.name == "n/Odd_u"

    def hurried(record):
        mine = (record.start, record.end) == (unused.start, unused.end)
        return replace(record, end=record.start) if mine else record

    overwritten = next(a for a in good.allocations if (a.tensor, a.memory) == ("n/y", "dram"))
    parts = ("jobs", "transfers", "allocations")
    hurry = replace(good, **{part: tuple(map(hurried, getattr(good, part))) for part in parts})
    hurry = allocation("n/u", "dram", plan=hurry, offset=overwritten.offset)
    peak = replace(good.metrics.memory["dram"], peak=128, lower_bound=128)
    metrics = replace(good.metrics, memory=good.metrics.memory | {"dram": peak})
    assert [v.rule for v in verify(replace(hurry, metrics=metrics))] == ["time"]


def test_very_long_names_and_odd_ones_are_shown_in_part_and_on_one_line():
    broken = [
        job("net/fc@0", core="c" * 9999),
        job("net/fc@0", after=("a\nb\r\u2028",)),
        replace(SHARED, status="s" * 9999),
        replace(SHARED, target=SHARED.target.with_memory(1, name="m\n" * 9999)),
    ]
    messages = [violation.message for plan in broken for violation in verify(plan)]
    assert all(message.isprintable() and len(message) <= 1000 for message in messages)
    assert any("c" * 77 + "..." + "c" * 40 + "'" in message for message in messages)


def test_long_lists_of_violations_are_cut_short():
    plan = long_plan(60)
    found = [
        violation.message
        for violation in verify(replace(plan, transfers=()))
        if violation.rule == "stream"
    ]
    assert len(found) == 21
    assert found[-1] == "and 100 more"


def test_a_plan_without_anything_holds():
    nothing = replace(SHARED.objective, value=0.0, lower_bound=0.0)
    target = replace(SHARED.target, static_power=0.0)
    assert verify(replace(empty(SHARED), target=target, objective=nothing)) == ()


@pytest.mark.slow
def test_a_long_plan_holds():
    assert verify(long_plan(4000, 4)) == ()


# Checked against definitions that anyone can read, on instances small enough for them.


@given(
    st.lists(st.tuples(*[st.integers(0, 5)] * 2, *[st.integers(1, 5)] * 2), min_size=1, max_size=8)
)
def test_overlaps_are_found_when_there_are_any(boxes):
    allocations = tuple(
        PlannedAllocation("net/w", "dram", offset, size, us(at), us(at + life))
        for offset, at, size, life in boxes
    )
    pairs = [(one, two) for i, one in enumerate(allocations) for two in allocations[:i]]
    expected = any(
        one.offset < two.offset + two.bytes
        and two.offset < one.offset + one.bytes
        and one.start < two.end
        and two.start < one.end
        for one, two in pairs
    )
    assert bool(list(overlaps(Facts(replace(SHARED, allocations=allocations))))) == expected


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=8
    )
)
def test_a_link_is_late_when_some_stretch_of_time_is_asked_for_more_than_it_has(tasks):
    unit = 10**6
    needs = sorted(
        (at * unit, (at + life) * unit, float(work * unit), number)
        for number, (at, life, work) in enumerate(tasks)
    )
    stretches = [(begin, over) for begin, *_ in needs for _, over, *_ in needs if begin < over]
    expected = any(
        sum(need[2] for need in needs if begin <= need[0] and need[1] <= over) > over - begin
        for begin, over in stretches
    )
    assert bool(list(_late(needs, 0.0))) == expected


@given(st.data())
def test_reuse_is_a_race_when_a_user_is_no_ancestor_of_a_writer(data):
    """Drops ``after`` entries of a long plan: what is then unordered must be reported, and nothing
    else."""
    plan = long_plan(9)
    jobs = (
        replace(record, after=tuple(name for name in record.after if data.draw(st.booleans())))
        for record in plan.jobs
    )
    plan = replace(plan, jobs=tuple(jobs))
    before = []
    for i, record in enumerate(plan.jobs):
        direct = {j for j in range(i) if plan.jobs[j].name in record.after or j == i - 2}
        before.append(direct.union(*(before[j] for j in direct)))
    expected = {"dependency" for i in range(1, 9) if i - 1 not in before[i]}
    # Job i writes where job i - 2 wrote and job i - 1 read; the last one writes to main memory,
    # where nothing was.
    expected |= {"race" for i in range(2, 8) if i - 1 not in before[i]}
    assert {violation.rule for violation in verify(plan)} == expected


# Whatever is wrong with a plan, the verifier says so and does not stumble over it.

PARTS = ("networks", "tensors", "jobs", "allocations", "transfers")
NAMES = (
    "",
    "net/conv@0",
    "net/h@0",
    "a",
    "dram",
    "scratchpad",
    "hbm",
    "n/p@0",
    "load h",
    "n/h",
    "net",
    "?",
)
INTEGERS = st.integers(-1, 9000) | st.sampled_from([2**40, 2**63 - 1, 2**63, 10**400])
TIMES = st.integers(-1, 60).map(us) | st.floats()
NO_BANDWIDTH = st.floats(max_value=0.0) | st.sampled_from([inf, nan])


def tuples(elements, most=3):
    return st.lists(elements, max_size=most).map(tuple)


NAME = st.sampled_from(NAMES)
STORAGES = tuples(st.sampled_from(["x", "w", "h", "y", "z", "net/h@0", "?"]))
RANGES = tuples(tuples(INTEGERS))
VALUES = {
    "int": INTEGERS,
    "float": TIMES,
    "bool": st.booleans(),
    "str": NAME,
    "tuple[int, ...]": tuples(INTEGERS),
    "Ranges": RANGES,
    "tuple[str, ...]": tuples(NAME) | STORAGES,
    "tuple[OperatorInfo, ...]": tuples(st.builds(OperatorInfo, NAME, STORAGES, STORAGES)),
    "tuple[PlannedOperand, ...]": tuples(
        st.builds(PlannedOperand, NAME, NAME, INTEGERS, RANGES), 2
    ),
}


def _mutated(plan, data):
    part = data.draw(st.sampled_from(PARTS))
    records = list(getattr(plan, part))
    if not records:
        return plan
    at = data.draw(st.integers(0, len(records) - 1))
    change = data.draw(st.sampled_from(["delete", "repeat", "edit"]))
    if change == "delete":
        del records[at]
    elif change == "repeat":
        records.append(records[at])
    else:
        field = data.draw(st.sampled_from(fields(records[at])))
        records[at] = replace(records[at], **{field.name: data.draw(VALUES[str(field.type)])})
    return replace(plan, **{part: tuple(records)})


@fuzz(300)
@given(
    data=st.data(), plan=st.sampled_from([SHARED, COPYING, cut_plan()]), changes=st.integers(1, 4)
)
def test_no_mutation_makes_the_verifier_fail(data, plan, changes):
    for _ in range(changes):
        plan = _mutated(plan, data)
    assert all("\n" not in violation.message for violation in verify(plan))


@given(
    data=st.data(),
    plan=st.sampled_from([SHARED, COPYING]),
    part=st.sampled_from(["jobs", "tensors", "networks", "transfers"]),
)
def test_no_record_can_be_left_out(data, plan, part):
    records = list(getattr(plan, part))
    del records[data.draw(st.integers(0, len(records) - 1))]
    assert verify(replace(plan, **{part: tuple(records)}))


@pytest.mark.slow
@given(data=st.data(), plan=st.sampled_from([SHARED, COPYING]), seconds=TIMES)
def test_wrong_targets_and_figures_are_rejected_whatever_they_are(data, plan, seconds):
    makespan, rate = plan.metrics.makespan.value, plan.metrics.throughput.value
    whole = plan.target.main.capacity
    wrong = [
        replace(plan, target=replace(plan.target, memories=plan.target.memories[:1])),
        replace(plan, target=replace(plan.target, cores=())),
        replace(
            plan,
            links={
                name: tuple(replace(segment, end=seconds) for segment in curve)
                for name, curve in plan.links.items()
            },
        ),
        main_memory(plan, capacity=data.draw(INTEGERS.filter(lambda size: size != whole))),
        main_memory(plan, alignment=data.draw(st.integers(-9, 0))),
        main_memory(plan, read_bandwidth=data.draw(NO_BANDWIDTH)),
        main_memory(plan, write_bandwidth=data.draw(NO_BANDWIDTH)),
    ]
    for name, right in (("makespan", makespan), ("throughput", rate)):
        if not isclose(seconds, right, rel_tol=1e-3):
            wrong.append(figure(name, plan, value=seconds))
    if not 0 <= seconds <= makespan * 1.001:
        wrong.append(figure("makespan", plan, lower_bound=seconds))
    for broken in wrong:
        found = verify(broken)
        assert found
        assert all(violation.message.isprintable() for violation in found)
    assert verify(figure("makespan", plan, value=makespan)) == ()


@pytest.mark.parametrize("tiles", [1, 3])
def test_operators_of_a_job_run_in_the_order_in_which_they_need_one_another(tiles):
    weight = constant("w", np.ones((8, 8)), np.float32)
    nodes = "y = MatMul(x, w); r = Relu(y); z = Add(y, r)"
    graph = int8_graph(nodes, "float[12,8] x", "z", [weight])
    (form,) = parts_of(graph).forms
    cuts = [Cuts([form.grid({0: tiles})])]
    plan = planned(lm.lower([graph], npu(), cuts=cuts), npu())
    assert verify(plan) == ()
    first, *others = plan.jobs[0].operators
    assert len(others) == 2
    broken = replace(
        plan, jobs=tuple(replace(job, operators=(first, *others[::-1])) for job in plan.jobs)
    )
    (found,) = verify(broken)
    assert "makes 'r' after an operator that reads it" in found.message

"""The event engine, against a slow reference in exact fractions and against cases done by hand."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.naive_events import simulated
from tests.support.networks import npu, resident, residual_chain, workload

import loadmaster as lm
from loadmaster import _native
from loadmaster.core.task_graph import task_graph
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.base import job_times
from loadmaster.planning.bounds import makespan_bound
from loadmaster.planning.decisions import Schedule
from loadmaster.planning.problem import replay


def run(duration, demand, resource, order, edges, links=None):
    demand = np.array(demand, dtype=float)
    return task_graph(edges, len(duration)).replay(
        duration=np.array(duration, dtype=np.int64),
        demand=demand,
        links=demand.shape[1] if links is None else links,
        resource=np.array(resource, dtype=np.int32),
        resources=max(resource, default=0) + 1,
        order=np.array(order, dtype=np.int64),
    )


@st.composite
def problems(draw):
    tasks, links, cores = draw(st.integers(1, 9)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    quantity = st.sampled_from([0, 1, 2, 3, 5, 1000, 10**6, 10**12 + 1])
    share = st.sampled_from([0, 0.25, 0.5, 1, 1.5])
    duration = [draw(quantity) for _ in range(tasks)]
    demand = [[draw(share) for _ in range(links)] for _ in range(tasks)]
    resource = [draw(st.integers(0, cores - 1)) for _ in range(tasks)]
    edges = [(a, b) for b in range(tasks) for a in range(b) if draw(st.integers(0, 3)) == 0]
    return duration, demand, resource, list(range(tasks)), edges


@given(problems())
@fuzz(200)
def test_the_engine_agrees_with_exact_fractions(problem):
    found = run(*problem)
    start, end = found.start, found.end
    # Where an event falls on a whole picosecond, floating point may take it for the next.
    for times, expected in zip((start, end), simulated(*problem), strict=True):
        right = [int(expected[task]) for task in range(len(times))]
        assert times.tolist() == pytest.approx(right, abs=len(times))
    assert (end - start >= np.array(problem[0])).all()


@given(problems())
def test_no_link_carries_more_than_it_can_and_all_work_is_carried(problem):
    duration, demand, *_ = problem
    found = run(*problem)
    assert (found.used <= 1 + 1e-9).all()
    carried = (np.diff(found.time)[:, None] * found.used[:-1]).sum(axis=0)
    work = (np.array(duration)[:, None] * np.array(demand)).sum(axis=0)
    assert carried == pytest.approx(work, rel=1e-9, abs=1e-5)


def test_metered_columns_hold_nothing_back():
    found = run([1, 1], [[0.5, 1e9], [0.5, 1e9]], [0, 1], [0, 1], [], links=1)
    assert found.end.tolist() == [1, 1]
    assert found.used[0].tolist() == [1.0, 2e9]


def test_an_order_against_the_dependencies_is_refused_not_waited_for():
    jobs = workload([(), (0,)])
    machine = npu(cores=1)
    table = job_table(jobs, machine)
    placement = resident(jobs, table, np.zeros(2, dtype=bool))
    times = job_times(table, machine, placement.used)
    schedule = Schedule(np.zeros(2, dtype=np.int32), np.array([1, 0]))
    with pytest.raises(lm.PlanError, match="can never start"):
        replay(jobs, times, machine, schedule, placement)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"duration": [2**53]}, "duration"),
        ({"duration": [-1]}, "duration"),
        ({"demand": [[np.inf]]}, "demand"),
        ({"resource": [3], "resources": 1}, "resource"),
        ({"order": [1]}, "order"),
        ({"first": [0, 1], "next": [5]}, "next"),
        ({"first": [0, 7]}, "first"),
        ({"links": 2}, "links"),
        ({"duration": [1, 2]}, "lengths"),
    ],
)
def test_malformed_arrays_are_refused_before_the_kernel_runs(change, message):
    arrays = {
        "duration": [1.0],
        "demand": [[0.5]],
        "links": 1,
        "resource": [0],
        "resources": 1,
        "order": [0],
        "first": [0, 0],
        "next": [],
    } | change
    types = dict.fromkeys(("duration", "order", "first", "next"), np.int64)
    types |= {"demand": float, "resource": np.int32}
    arguments = {
        name: np.array(value, dtype=types[name]) if name in types else value
        for name, value in arrays.items()
    }
    with pytest.raises(ValueError, match=message):
        _native.TaskGraph(arguments.pop("first"), arguments.pop("next")).replay(**arguments)


# List scheduling, and bounds that nothing may beat.


@given(st.integers(1, 2), st.integers(1, 2), st.integers(0, 1), st.sampled_from([0, 3000, 10**6]))
@fuzz(25)
def test_no_assignment_order_or_placement_beats_the_bound(blocks, cores, extra, scratchpad):
    machine = npu(cores, scratchpad)
    jobs = lm.lower([residual_chain(blocks, channels=8 + 3 * extra, size=6)], machine)
    table, order = job_table(jobs, machine), np.arange(len(jobs.jobs))
    bound = makespan_bound(jobs.jobs, jobs.tensors, table, machine)
    for assignment in itertools.product(range(cores), repeat=len(jobs.jobs)):
        schedule = Schedule(np.array(assignment, dtype=np.int32), order)
        for everywhere in (False, True) if scratchpad else (False,):
            in_fast = np.array([everywhere and t.kind == "activation" for t in jobs.tensors])
            placement = resident(jobs, table, in_fast)
            times = job_times(table, machine, placement.used)
            timeline = replay(jobs, times, machine, schedule, placement)
            assert bound.picoseconds <= timeline.makespan


def test_weights_that_mini_batches_share_count_once_in_the_bound():
    machine = npu(2)
    one, four = (lm.lower([residual_chain(2)], machine, mini_batches=n) for n in (1, 4))
    bytes_of = [
        makespan_bound(jobs.jobs, jobs.tensors, job_table(jobs, machine), machine).main_bytes
        for jobs in (one, four)
    ]
    weights = sum(t.bytes for t in one.tensors if t.kind == "weight")
    assert bytes_of[1] == 4 * bytes_of[0] - 3 * weights


def test_a_job_waits_for_a_busy_core_that_would_finish_it_sooner():
    duration = np.array([[1, 100], [1, 100]])
    priority, release = np.array([2.0, 1.0]), np.zeros(2, dtype=np.int64)
    found = task_graph([], 2).dispatch(
        priority=priority, duration=duration, demand=np.zeros((2, 2, 1)), release=release
    )
    assert found.core.tolist() == [0, 0]
    assert found.makespan == 2

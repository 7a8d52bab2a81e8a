"""List scheduling, and bounds that nothing may beat."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.networks import npu, resident, residual_chain

from loadmaster.core.task_graph import task_graph
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.base import job_times
from loadmaster.planning.assessor import replay
from loadmaster.planning.bounds import makespan_bound
from loadmaster.planning.decisions import Schedule
from loadmaster.workloads.lowering.instantiate import lower


def times_of(jobs, machine, in_fast=None):
    chosen = np.zeros(len(jobs.tensors), dtype=bool) if in_fast is None else in_fast
    table = job_table(jobs, machine)
    placement = resident(jobs, table, chosen)
    return job_times(table, machine, placement.used)


@given(st.integers(1, 2), st.integers(1, 2), st.integers(0, 1), st.sampled_from([0, 3000, 10**6]))
@fuzz(25)
def test_no_assignment_order_or_placement_beats_the_bound(blocks, cores, extra, scratchpad):
    machine = npu(cores, scratchpad)
    jobs = lower([residual_chain(blocks, channels=8 + 3 * extra, size=6)], machine)
    bound = makespan_bound(jobs.jobs, jobs.tensors, job_table(jobs, machine), machine)
    order = np.arange(len(jobs.jobs))
    for assignment in itertools.product(range(cores), repeat=len(jobs.jobs)):
        schedule = Schedule(np.array(assignment, dtype=np.int32), order)
        for everywhere in (False, True) if scratchpad else (False,):
            in_fast = np.array([everywhere and t.kind == "activation" for t in jobs.tensors])
            placement = resident(jobs, job_table(jobs, machine), in_fast)
            timeline = replay(jobs, times_of(jobs, machine, in_fast), machine, schedule, placement)
            assert bound.picoseconds <= timeline.makespan


def test_weights_that_mini_batches_share_count_once_in_the_bound():
    machine = npu(2)
    one, four = (lower([residual_chain(2)], machine, mini_batches=n) for n in (1, 4))
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

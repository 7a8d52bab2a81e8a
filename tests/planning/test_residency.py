"""What stays on chip, and the copies of a machine that cannot use main memory in place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.efforts import TEST
from tests.support.fuzzing import fuzz
from tests.support.networks import GraphBuilder, staged_machine, workload

import loadmaster as lm
from loadmaster.core.errors import CapacityError
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.base import job_times
from loadmaster.planning.assessor import replay
from loadmaster.planning.residency import stage_copies
from loadmaster.planning.separate import map_jobs
from loadmaster.workloads.graph import OpClass, TensorKind


def slots(placement, order, jobs, tensors):
    """Bytes in fast memory at every position of the order, from the stays alone; a copy occupies
    from the job that it waits for."""
    position = {job: at for at, job in enumerate(order)}
    used = [0] * len(order)
    for stay in (r for r in placement.residences if r.memory == 1):
        if stay.writer < len(jobs):
            first = position[stay.writer]
        else:
            after = [
                position[task] + 1
                for task in placement.copies[stay.writer - len(jobs)].after
                if task < len(jobs)
            ]
            first = max(after, default=0)
        last = max([position[task] for task in stay.users if task < len(jobs)] + [first])
        for at in range(first, last + 1):
            used[at] += -(-tensors[stay.tensor].bytes // 64) * 64
    return used


@st.composite
def orders(draw):
    tasks = draw(st.integers(1, 10))
    return workload(
        [tuple(a for a in range(b) if draw(st.integers(0, 2)) == 0) for b in range(tasks)]
    )


@given(orders(), st.integers(1, 12))
@fuzz(150)
def test_staged_operands_are_there_when_needed_and_fit(jobs, lines):
    machine = staged_machine(64 * lines)
    order = list(range(len(jobs.jobs)))
    table = job_table(jobs, machine)
    needed = max(64 * (len(job.reads) + 1) for job in jobs.jobs)
    if needed > 64 * lines:
        with pytest.raises(CapacityError, match=r"required.*available.*in excess"):
            stage_copies(jobs, table, order, machine.fast)
        return
    placement = stage_copies(jobs, table, order, machine.fast)
    assert max(slots(placement, order, jobs.jobs, jobs.tensors)) <= 64 * lines
    for index, job in enumerate(jobs.jobs):
        for operand in job.reads:
            tensor = jobs.tensor_index[operand.tensor]
            assert any(
                r.tensor == tensor and r.memory == 1 and index in r.users
                for r in placement.residences
            )
    times = job_times(job_table(jobs, machine), machine, placement.used)
    schedule = map_jobs(jobs.jobs, times, samples=1, seed=0)
    replay(jobs, times, machine, type(schedule)(schedule.core, np.array(order), 0.0, 1), placement)


def test_outputs_on_their_way_out_are_waited_for_where_there_is_no_other_room():
    """Two jobs read one input and write an output each; with room for one output at a time, the
    second waits for the first's copy."""
    build = GraphBuilder()
    build.tensor("x", (100,), TensorKind.INPUT)
    for name in ("a", "b"):
        build.tensor(name, (1920,))
        build.op("Widen", OpClass.MOVEMENT, ["x"], name)
    plan = lm.plan([build.graph("a", "b")], staged_machine(2048), effort=TEST)
    assert lm.verify(plan) == ()
    with pytest.raises(CapacityError):
        lm.plan([build.graph("a", "b")], staged_machine(1984), effort=TEST)

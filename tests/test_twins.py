"""Rules that are written in Python and again in C++, for speed: each pair names the other, and here
the two agree."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz, seeds
from tests.support.lowered import joint_problem
from tests.support.networks import npu, residual_chain
from tests.support.sequences import random_sequence

import loadmaster as lm
from loadmaster import _native
from loadmaster.core.effort import Effort
from loadmaster.core.task_graph import task_graph
from loadmaster.cost.base import job_times
from loadmaster.mapping.group import Group, core_and_position
from loadmaster.placement.autotm.bound import free_prices, use_costs
from loadmaster.placement.autotm.engine import PathSearch, least_paths
from loadmaster.placement.autotm.sequence_arrays import sequence_arrays
from loadmaster.placement.decisions import fast_bytes
from loadmaster.planning.joint.problem import JointOptions
from loadmaster.planning.problem import replay


def search(machine, batches=1, blocks=2):
    work = lm.lower([residual_chain(blocks)], machine, mini_batches=batches)
    problem = joint_problem(work, machine)
    return work, problem.table, problem


@pytest.mark.parametrize("room", [256, 4096, 2**14, 2**20])
@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("copies", [False, True])
def test_jobs_take_as_much_time_and_energy_in_the_joint_search_as_anywhere_else(
    room, batches, copies
):
    """Bytes over a link in seconds, whole picoseconds, and which results go to main memory:
    job_times.py, joint/problem.py and admission.cpp."""
    machine = npu(1, room, copies=copies)
    work, table, problem = search(machine, batches)
    found = problem.evaluate(np.arange(len(work.jobs)), JointOptions())
    schedule, placement, _ = problem.decisions(found)
    times = job_times(table, machine, placement.used)
    spans = (found.run.end - found.run.start)[: len(work.jobs)]
    assert copies or spans.tolist() == times.duration[:, 0].tolist()
    assert copies or bool((found.run.row_stay >= 0).any()) == (room > 256)
    copied = sum(work.tensors[copy.tensor].bytes for copy in placement.copies)
    assert problem.energy_of(found.run) == problem.energy.of_plan(
        schedule.core, placement.used, copied, found.run.makespan
    )


@pytest.mark.parametrize("engine", [1e8, 7e8, 9e12])
def test_a_prefetch_takes_as_long_in_the_joint_search_as_in_a_replay(engine):
    """Bytes over the slowest of engine and links: replay.py and admission.cpp."""
    machine = npu(1, 2**20)
    machine = dataclasses.replace(
        machine, copy=dataclasses.replace(machine.copy, overlapping=(8e9, engine))
    )
    work, table, problem = search(machine)
    found = problem.evaluate(np.arange(len(work.jobs)), JointOptions())
    schedule, placement, _ = problem.decisions(found)
    assert placement.copies
    times = job_times(table, machine, placement.used)
    timeline = replay(work, times, machine, schedule, placement)
    first = len(work.jobs)
    # The first job waits for the first prefetch, which has the links to itself.
    assert found.run.start[first] == timeline.start[first] == 0
    assert found.run.end[first] == timeline.end[first]


@given(st.randoms(use_true_random=False), st.integers(1, 3), st.integers(1, 3))
@fuzz(30)
def test_without_a_fast_memory_the_joint_search_is_list_scheduling(random, cores, batches):
    """Whenever a core is idle, the first ready job in order goes where it ends first: dispatch.cpp
    and admission.cpp."""
    machine = npu(cores, 64)
    work, table, problem = search(machine, batches)
    keys = [random.random() for _ in work.jobs]
    for job, record in enumerate(work.jobs):
        keys[job] = max([keys[job], *(keys[before] for before in record.after)])
    order = np.argsort(np.array(keys), kind="stable").astype(np.int64)
    found = problem.evaluate(order, JointOptions(filled_fraction=(1.0, 0.0)))
    assert not len(found.run.stay_tensor)
    priority = np.empty(len(order))
    priority[order] = -np.arange(len(order))
    in_main = np.stack([np.full(len(table.operand_job), in_main) for in_main in (True, False)])
    times = job_times(table, machine, in_main)
    graph = task_graph(
        [(before, job) for job, record in enumerate(work.jobs) for before in record.after],
        len(work.jobs),
    )
    release = np.zeros(len(order), dtype=np.int64)
    listed = graph.dispatch(
        priority=priority, duration=times.duration, demand=times.demand, release=release
    )
    assert found.run.makespan == listed.makespan
    assert found.run.core.tolist() == listed.core.tolist()
    assert found.run.end.tolist() == listed.end.tolist()


@given(
    seeds,
    st.integers(1, 6),
    st.integers(1, 3),
    st.sampled_from([(0.0, 1.0), (1.0, 1.0), (2.0, 0.5)]),
)
@fuzz(60)
def test_a_mapping_scores_what_its_makespan_and_energy_make(seed, jobs, cores, weights):
    """Energy and score of a mapping: group.py and genome.cpp."""
    generator = np.random.default_rng(seed)
    group = Group(*(generator.lognormal(0, 1, (jobs, cores)) for _ in range(3)), weights)
    core = generator.integers(0, cores, (4, jobs), dtype=np.int32)
    priority = generator.integers(0, 2**32, (4, jobs), dtype=np.uint32)
    queues = group.decode(core, priority)
    owner = [core_and_position(row[None, :], cores)[0] for row in queues]
    expected = [
        group.score(float(m), group.energy_of(c))
        for m, c in zip(group.makespans(queues), owner, strict=True)
    ]
    assert group.native.scores(core, priority) == pytest.approx(expected, rel=1e-12)


@given(seeds, st.booleans(), st.integers(8, 60))
@fuzz(150)
def test_paths_take_as_long_in_the_search_as_their_placement(seed, moves, room):
    """Stays, copies, algorithms and seconds of paths: schedule.cpp and search.cpp."""
    sequence = random_sequence(seed)
    arrays = sequence_arrays(sequence, np.full(len(sequence.kernels), room, dtype=np.int64))
    try:
        least = least_paths(sequence, arrays, moves)
    except lm.CapacityError:
        return
    prices = free_prices(arrays)
    fast, slow = use_costs(arrays, prices)
    effort = Effort.NORMAL
    task = PathSearch(sequence, arrays, moves, None, prices, None, seed, effort)
    found = arrays.problem.search(
        _native.UsePrices(memory=prices.memory, fast=fast, slow=slow),
        guess=least,
        base=least,
        moves=moves,
        engines=task.engines,
        goal=0.0,
        seed=seed,
        nodes=600,
        seconds=math.inf,
    )
    placement, seconds = task.timed(found.paths)
    assert found.seconds == pytest.approx(seconds, rel=1e-9)
    assert (fast_bytes(sequence, placement) <= room).all()

"""Where the time of cores goes, against instants that are looked at one by one."""

from collections import Counter
from functools import cache

import numpy as np
import pytest
from tests.support.efforts import verified
from tests.support.hand_plan import copying_plan, long_plan, shared_plan
from tests.support.networks import residual_chain

import loadmaster as lm
from loadmaster.planning.what_if import changes
from loadmaster.report.core_time import core_time, peak_seconds

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("plan", [shared_plan(), copying_plan(), long_plan(20)])
def test_shares_of_the_time_of_all_cores_add_up(plan):
    found = core_time(plan)
    shares = [found.at_peak, found.partly_filled, *found.links.values(), found.start_up, found.idle]
    assert sum(shares) == pytest.approx(1)
    assert min(shares) >= -1e-9
    assert [share for _, share in found.rows()] == sorted(
        (share for share in shares if share >= 5e-4), reverse=True
    )


def test_start_up_of_jobs_is_not_taken_for_arrays_filled_in_part():
    machine = lm.target("edge-npu", "cores.ws.job_overhead=1us")
    plan = verified([residual_chain(3)], machine)
    jobs = Counter(job.core for job in plan.jobs)
    spent = sum(jobs[core.name] * core.start_up for core in machine.cores)
    whole = plan.metrics.makespan.value * len(machine.cores)
    assert core_time(plan).start_up == pytest.approx(spent / whole, rel=0.01)


@cache
def waiting_plan():
    machine = lm.target("edge-npu", ["dram.bandwidth=2 GB/s", "scratchpad.capacity=256KiB"])
    return verified([lm.load("onnx:squeezenet", precision="int8")], machine)


def test_waits_are_of_the_links_that_are_full_meanwhile():
    plan = waiting_plan()
    found = core_time(plan)
    expected = dict.fromkeys(found.links, 0.0)
    for job in plan.jobs:
        instants = np.linspace(job.start, job.end, 4001)[:-1]
        full = {
            name: sum(
                ((instants >= s.start) & (instants < s.end)).sum() for s in links if s.load >= 0.99
            )
            for name, links in plan.links.items()
        }
        for name, count in full.items():
            if count:
                waits = job.end - job.start - job.compute
                expected[name] += waits * count / sum(full.values())
    whole = plan.metrics.makespan.value * len(plan.target.cores)
    for name, seconds in expected.items():
        assert found.links[name] == pytest.approx(seconds / whole, abs=2e-3)
    assert found.links["dram"] > 0.1


def test_arithmetic_at_the_peak_takes_no_longer_than_all_of_it():
    plan = waiting_plan()
    cores = {core.name: core for core in plan.target.cores}
    for job in plan.jobs:
        core = cores[job.core]
        assert 0 <= peak_seconds(job, core) <= job.compute
        assert peak_seconds(job, core) * core.clock * core.rows * core.columns * max(
            core.macs_per_cycle.values()
        ) >= min(job.macs, 1)


def test_changes_are_planned_beside_the_machine_as_it_is():
    network, machine = residual_chain(3), lm.target("m3e-s1")
    found = lm.what_if(iter([network]), machine)
    assert [change.name for change in found] == [
        "as it is",
        *(name for name, _ in changes(machine)),
    ]
    assert all(
        change.makespan <= found[0].makespan
        for change in found
        if not change.name.startswith("all cores")
    )


def test_a_change_says_how_many_deadlines_its_plan_misses():
    network, machine = residual_chain(3), lm.target("m3e-s1")
    spans = [change.makespan for change in lm.what_if([network], machine)]
    due = min(spans)
    found = lm.what_if([network], machine, deadlines={network.name: due})
    assert {change.missed for change in found} == {0, 1}
    assert all(change.missed == (change.makespan > due) for change in found)

"""Plans whose objectives are as near as estimates can tell are told apart by energy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cut_networks import convolutions
from tests.support.networks import npu

import loadmaster as lm
from loadmaster.planning.goal import as_good_as
from loadmaster.planning.joint.frugal import Frugal
from loadmaster.planning.workload_planner import WorkloadPlanner


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(900, 1100), st.integers(0, 20)),
        min_size=1,
        max_size=30,
    )
)
def test_the_least_energy_of_what_is_as_good_as_the_best_is_kept(
    offered: list[tuple[int, int, int]],
) -> None:
    frugal: Frugal[tuple[int, int, int]] = Frugal()
    for late, objective, energy in offered:
        frugal.offer((late, objective, 0), partial(int, energy), (late, objective, energy))
    late = min(late for late, _, _ in offered)
    least = min(objective for own, objective, _ in offered if own == late)
    near = [one for one in offered if one[0] == late and one[1] <= as_good_as(least)]
    assert frugal.least()[2] == min(energy for _, _, energy in near)
    assert frugal.least() in near


@pytest.mark.parametrize(("scratchpad", "bandwidth"), [(26_000, 6e9), (20_000, 3e9)])
def test_of_plans_as_good_as_one_another_the_search_takes_one_of_less_energy(
    scratchpad: int, bandwidth: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where arithmetic takes the time, what goes to main memory need not; the plan is hardly slower
    than the fastest."""
    machine = npu(2, scratchpad)
    machine = replace(
        machine, main=replace(machine.main, read_bandwidth=bandwidth, write_bandwidth=bandwidth)
    )
    graph = convolutions(rows=32, channels=16, strides=(1, 1, 1), skip=True)
    frugal = lm.plan([graph], machine, effort="normal")
    assert lm.verify(frugal) == ()
    monkeypatch.setattr(
        WorkloadPlanner, "_economised", lambda self, problem, search, best, separate: best
    )
    fast = lm.plan([graph], machine, effort="normal")
    assert frugal.metrics.energy.value < fast.metrics.energy.value
    assert frugal.metrics.makespan.value <= 1.01 * fast.metrics.makespan.value

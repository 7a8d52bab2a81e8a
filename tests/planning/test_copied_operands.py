"""Machines whose cores cannot use main memory: several cores, and jobs that only fit into the fast memory in pieces."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cut_networks import convolutions
from tests.support.networks import npu, residual_chain

import loadmaster as lm
from loadmaster.core.errors import CapacityError
from loadmaster.planning.cutting.fitting import fitted
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.divisible_network import DivisibleNetwork
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.instantiate import Cuts, lower


def copying(cores: int = 2, scratchpad: int = 64 * 1024) -> Target:
    """Cores that need all operands in a scratchpad."""
    machine = npu(cores, scratchpad)
    return replace(machine, main=replace(machine.main, in_place=False))


@settings(max_examples=6, deadline=None)
@given(
    cores=st.integers(1, 4),
    room=st.sampled_from([2048, 3000, 4096, 2**14]),
    batches=st.integers(1, 2),
    cut=st.sampled_from(["auto", "none"]),
    objective=st.sampled_from(["throughput", "latency", "energy", "edp"]),
)
def test_plans_hold_whatever_the_cores_and_the_room(cores: int, room: int, batches: int, cut: str, objective: str) -> None:
    machine = copying(cores, room)
    plan = lm.plan([convolutions()], machine, mini_batches=batches, rounds=1, samples=4, cut=cut, objective=objective)
    assert lm.verify(plan) == ()
    assert plan.objective.lower_bound <= plan.objective.value * (1 + 1e-9)
    assert all(operand.memory == "scratchpad" for job in plan.jobs for operand in (*job.reads, *job.writes))
    whole = sum(tensor.bytes for tensor in plan.tensors if tensor.kind != "activation" or tensor.is_output)
    assert sum(copy.bytes for copy in plan.transfers if not copy.job) >= whole


def test_two_cores_are_faster_than_one_and_inputs_that_come_later_are_awaited() -> None:
    chains = [residual_chain(2, "one", 64), residual_chain(2, "two", 64)]
    spans = [lm.plan(chains, copying(cores, 2**20), rounds=1, cut="none").metrics.makespan.value for cores in (1, 3)]
    assert spans[1] < 0.7 * spans[0]
    plan = lm.plan([residual_chain(1)], copying(2), mini_batches=2, rounds=1, periods={"chain": 1e-3})
    assert lm.verify(plan) == ()
    assert plan.mini_batches[1].release == pytest.approx(1e-3)


def test_without_a_joint_search_jobs_run_in_turn_on_the_core_that_is_soonest_done() -> None:
    plan = lm.plan([residual_chain(2)], copying(3), rounds=0, cut="none")
    assert lm.verify(plan) == ()
    assert len({job.core for job in plan.jobs}) == 1


@pytest.mark.parametrize("room", [1900, 2048, 2500])
def test_pieces_are_as_small_as_the_room_demands_and_no_smaller(room: int) -> None:
    machine = copying(1, room)
    network = DivisibleNetwork.of(convolutions(), machine)
    cuts = fitted(network.graph, network.fused, network.forms, machine, room)
    work = lower([network.source], machine, cuts=[Cuts(cuts)])
    size = {tensor.name: machine.fast.padded(tensor.bytes) for tensor in work.tensors}
    assert max(sum(size[name] for name in {o.tensor for o in (*job.reads, *job.writes)}) for job in work.jobs) <= room
    assert all(cut.tiles == 1 for cut in fitted(network.graph, network.fused, network.forms, machine, 2**20))
    assert any(isinstance(cut, Grid) for cut in cuts)


def test_a_machine_on_which_no_piece_fits_is_refused() -> None:
    with pytest.raises(CapacityError, match=r"needs all its operands in scratchpad: .* required, 256 B available"):
        lm.plan([residual_chain(1)], copying(2, 256), rounds=1)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_grid_says_which_of_its_pieces_meet_a_box(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3)))
    ends = tuple(tuple(sorted(data.draw(st.sets(st.integers(1, extent))) | {extent})) for extent in shape)
    box = tuple(tuple(sorted(data.draw(st.tuples(st.integers(0, extent), st.integers(0, extent))))) for extent in shape)
    grid = Grid(shape, ends)
    cells = np.zeros(shape, dtype=bool)
    cells[tuple(slice(*own) for own in box)] = True
    meeting = [number for number, piece in enumerate(grid.boxes) if cells[tuple(slice(*own) for own in piece)].any()]
    assert list(grid.meeting(box)) == meeting

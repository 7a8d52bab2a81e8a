"""Large pieces that stream weights, for networks whose weights and activations both exceed the fast
memory."""

import pytest
from benchmarks.networks.llama import llama
from tests.support.efforts import verified

import loadmaster as lm
from loadmaster.planning import cut_selection
from loadmaster.workloads.lowering.pieces import DivisibleNetwork


@pytest.fixture(scope="module")
def machine():
    return lm.target("edge-npu")


@pytest.fixture(scope="module")
def decoder(machine):
    """A layer of Llama 7B, of which every weight takes at least 16 MiB, twice the fast memory, as
    do the activations of four sequences."""
    return DivisibleNetwork.of(llama(4, 512, layers=1, vocabulary=500), machine)


@pytest.mark.slow
def test_a_plan_in_blocks_is_near_its_bound(machine, decoder, monkeypatch):
    """Blocks are tried whatever the number of pieces that others leave, of which none is left
    here."""
    monkeypatch.setattr(cut_selection, "fills_selection", lambda jobs: True)
    plan = verified([decoder.source], machine)
    whole = verified([decoder.source], machine, cut="none")
    assert not lm.verify(plan)
    assert "into blocks that stream weights" in str(plan.notes)
    assert plan.metrics.makespan.value < 0.5 * whole.metrics.makespan.value
    assert plan.metrics.makespan.lower_bound > 0.8 * plan.metrics.makespan.value

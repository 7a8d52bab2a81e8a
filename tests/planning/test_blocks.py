"""Large pieces that stream weights, for networks whose weights and activations both exceed the fast
memory."""

import pytest
from benchmarks.networks.llama import llama
from tests.support.efforts import verified

import loadmaster as lm
from loadmaster.planning import cut_selection


@pytest.mark.slow
def test_a_plan_in_blocks_is_near_its_bound(monkeypatch):
    """A layer of Llama 7B, of which every weight takes at least 16 MiB, twice the fast memory, as
    do the activations of four sequences. Blocks are tried whatever the number of pieces that others
    leave, of which none is left here."""
    monkeypatch.setattr(cut_selection, "fills_selection", lambda jobs: True)
    decoder, machine = llama(4, 512, layers=1, vocabulary=500), lm.target("edge-npu")
    plan, whole = (verified([decoder], machine, cut=cut) for cut in ("auto", "none"))
    assert "into blocks that stream weights" in str(plan.notes)
    assert plan.metrics.makespan.value < 0.5 * whole.metrics.makespan.value
    assert plan.metrics.makespan.lower_bound > 0.8 * plan.metrics.makespan.value

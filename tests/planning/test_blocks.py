"""Large pieces that stream weights, for networks whose weights and activations both exceed the fast
memory."""

from __future__ import annotations

import pytest
from benchmarks.networks.llama import llama
from tests.support.efforts import TEST

import loadmaster as lm
from loadmaster.planning import contest
from loadmaster.planning.cutting.blocks import in_blocks, streams_weights
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.divisible_network import DivisibleNetwork
from loadmaster.workloads.lowering.grid import Grid


@pytest.fixture(scope="module")
def machine() -> Target:
    return lm.target("edge-npu")


@pytest.fixture(scope="module")
def decoder(machine: Target) -> DivisibleNetwork:
    """A layer of Llama 7B, of which every weight takes at least 16 MiB, twice the fast memory, as
    do the activations of four sequences."""
    return DivisibleNetwork.of(llama(4, 512, layers=1, vocabulary=500), machine)


@pytest.mark.parametrize(
    ("tokens", "fast", "expected"),
    [(512, "8 MiB", True), (32, "8 MiB", False), (512, "64 MiB", False)],
)
def test_weights_are_streamed_where_each_is_used_often(
    tokens: int, fast: str, expected: bool
) -> None:
    """Cores do 241 multiply-accumulates while the main link brings a byte."""
    small = lm.target("edge-npu", [f"scratchpad.capacity={fast}"])
    graph = llama(4, tokens, layers=1, vocabulary=500)
    assert streams_weights(DivisibleNetwork.of(graph, small), small) is expected


def test_blocks_read_weights_as_seldom_as_the_private_buffer_allows(
    machine: Target, decoder: DivisibleNetwork
) -> None:
    """Blocks of 256 tokens keep the main link as busy as the cores: with twice as many, a buffer
    has no room for so many sums at once."""
    cuts = dict(
        zip(
            (group.main.name for group in decoder.fused),
            in_blocks(decoder, machine).cuts,
            strict=True,
        )
    )
    for name in ("q", "k", "v", "o", "gate", "up", "down"):
        grid = cuts[f"layer0.{name}.MatMul"]
        assert isinstance(grid, Grid)
        batch, rows, channels = (len(ends) for ends in grid.ends)
        assert batch * rows == 8
        assert channels in (1, 2, 4)


def test_pieces_of_many_layers_are_no_smaller(machine: Target, decoder: DivisibleNetwork) -> None:
    """They take as much time to plan, and save a smaller share."""
    more = DivisibleNetwork.of(llama(4, 512, layers=3, vocabulary=500), machine)
    one, three = (in_blocks(network, machine) for network in (decoder, more))
    assert len(three.steps) <= 3 * len(one.steps)
    tiles = {group.main.name: cut.tiles for group, cut in zip(more.fused, three.cuts, strict=True)}
    assert tiles["layer1.q.MatMul"] == tiles["layer2.q.MatMul"]


def test_a_plan_in_blocks_is_near_its_bound(
    machine: Target, decoder: DivisibleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks are tried whatever the number of pieces that others leave, of which none is left
    here."""
    monkeypatch.setattr(contest, "MOST_JUDGED", 1)
    monkeypatch.setattr(contest, "MOST_BESIDE", 1)
    plan = lm.plan([decoder.source], machine, effort=TEST)
    whole = lm.plan([decoder.source], machine, effort=TEST, cut="none")
    assert not lm.verify(plan)
    assert any("into blocks that stream weights" in note for note in plan.notes)
    assert plan.metrics.makespan.value < 0.5 * whole.metrics.makespan.value
    assert plan.metrics.makespan.lower_bound > 0.8 * plan.metrics.makespan.value

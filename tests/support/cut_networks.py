"""Small convolutional networks as an ONNX file would hold them: with windows, so that they can be
cut."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from tests.support.efforts import TEST
from tests.support.networks import npu
from tests.support.onnx_builder import int8_graph
from tests.support.plan_of_jobs import planned
from tests.support.recomputed import Bands, recomputing

import loadmaster as lm
from loadmaster.planning.cutting.banding import Network
from loadmaster.planning.plan import Plan
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork


def convolutions(
    name: str = "cut",
    *,
    rows: int = 12,
    channels: int = 8,
    strides: tuple[int, ...] = (1, 2),
    skip: bool = True,
    pad: int = 1,
) -> Graph:
    """A chain of 3 x 3 convolutions of the given strides with rectifiers; ``skip`` adds the last
    result to that of one more."""
    nodes: list[str] = []
    weights: dict[str, tuple[int, ...]] = {}

    def conv(source: str, target: str, stride: int) -> None:
        weights[f"w_{target}"] = channels, channels, 3, 3
        options = f"strides={[stride] * 2}, pads={[pad] * 4}"
        nodes.append(f"[{target}] c_{target} = Conv<{options}>({source}, w_{target})")
        nodes.append(f"[relu_{target}] {target} = Relu(c_{target})")

    last = "x"
    for number, stride in enumerate(strides):
        conv(last, f"t{number}", stride)
        last = f"t{number}"
    if skip:
        conv(last, "again", 1)
        nodes.append(f"[add] sum = Add({last}, again)")
        last = "sum"
    return int8_graph(nodes, {"x": (1, channels, rows, rows)}, [last], weights, name=name)


def cut_network() -> Graph:
    """The network of :func:`cut_plan`."""
    return convolutions(rows=16, channels=32, strides=(1, 1, 2))


@cache
def cut_plan(mini_batches: int = 1) -> Plan:
    """A plan on two cores in which operators run in pieces."""
    machine = npu(2, 40_000)
    machine = machine.with_memory(0, read_bandwidth=2e10, write_bandwidth=2e10)
    plan = lm.plan([cut_network()], machine, mini_batches=mini_batches, effort=TEST)
    assert any(job.ranges for job in plan.jobs), "else tests of pieces prove nothing"
    return plan


@cache
def recomputing_plan(more: int = 0) -> Plan:
    """A plan of three convolutions in three bands that do not wait for one another: two bands make
    the rows that both need, or ``more``."""
    graph, machine = convolutions(rows=24, strides=(1, 1, 1), skip=False), npu(2, 40_000)
    network = DivisibleNetwork.of(graph, machine)
    seen = Network(network.graph, network.fused, network.forms)
    cuts = recomputing(seen, [Bands(0, 3, 3, abreast=2)], network.plain)
    first = cuts.cuts[0]
    assert isinstance(first, Grid)
    rows = (0, first.starts[2][1] - more, first.starts[2][2])
    changed = replace(first, starts=(*first.starts[:2], rows, first.starts[3]))
    return planned(
        lower([graph], machine, cuts=[Cuts([changed, *cuts.cuts[1:]], cuts.order)]), machine
    )

"""``python -m benchmarks.defines_case``: DeFiNES' first case study, FSRCNN on its
Meta-prototype-like machine, planned by Loadmaster.

DeFiNES (Mei et al., HPCA 2023) tries tile sizes from 1 x 1 to whole images in three ways of keeping
what tiles share. The scale of its heat maps (``plot_artifact.py`` of its artifact) goes from the
best to the worst of these: ``PUBLISHED``.

Its array unrolls 32 output channels, 2 input channels and 4 x 4 output positions; Loadmaster's has
32 output channels and 32 output positions, of the same 1,024 multiply-accumulates a cycle, so that
a layer of one input channel fills it where DeFiNES' is half idle (0.8 million cycles of the first
layer). Two memories of 1 MiB, for weights and for activations, are one of 2 MiB here, of the two
bandwidths together; the local ones of 32 KiB and 64 KiB are a buffer of 96 KiB. Energies are those
of its files, the mean of reading and writing and of the two memories, in picojoules a byte. Its
registers take 0.02 pJ a multiply-accumulate (a sum is read and written for every two), of which
Loadmaster counts 10 bytes for each: 0.002 pJ a byte.
"""

from __future__ import annotations

import loadmaster as lm
from benchmarks.networks.shape_network import ShapeNetwork
from benchmarks.targets import target_of
from loadmaster.workloads.graph import Graph

PUBLISHED = {"best": (18, 1.8), "worst": (1026, 47.3)}
"""Millions of cycles and millijoules, each over all of DeFiNES' schedules by itself: two schedules
may be meant."""

_LAYERS = (
    (1, 56, 5),
    (56, 12, 1),
    (12, 12, 3),
    (12, 12, 3),
    (12, 12, 3),
    (12, 12, 3),
    (12, 56, 1),
    (56, 16, 3),
)
"""Input channels, output channels and kernel of the convolutions, none of them padded."""

_TARGET = """
name = "meta-prototype"
[dram]
role = "main"
capacity = "1.25 GB"
bandwidth = "8 GB/s"
energy = "90.6 pJ/B"
burst = "8 B"
[scratchpad]
role = "fast"
capacity = "2 MiB"
read_bandwidth = "256 GB/s"
write_bandwidth = "256 GB/s"
energy = "1.55 pJ/B"
[copy]
to_fast = "8 GB/s"
to_main = "8 GB/s"
[[cores]]
name = "array"
count = 1
style = "output-stationary"
rows = 32
columns = 32
clock = "1 GHz"
buffer = "96 KiB"
lanes = 1024
accumulator = "2 B"
macs_per_cycle = { int8 = 1, fp16 = 0.5, fp32 = 0.25 }
energy = { mac_int8 = "0.04 pJ", local = "0.002 pJ/B", network = "0 pJ/B", buffer = "0.4 pJ/B" }
"""
"""A cycle is a nanosecond."""


def fsrcnn() -> Graph:
    """FSRCNN as DeFiNES has it: 960 x 540 positions at its end, and 554 x 974 at its start."""
    net = ShapeNetwork()
    last = "image"
    for inputs, outputs, kernel in _LAYERS:
        last = net.op("Conv", last, net.weight(outputs, inputs, kernel, kernel))
    return net.graph("fsrcnn", (1, 1, 554, 974), last)


def row(name: str, cycles: float, millijoules: float) -> None:
    """Print a row: millions of cycles, millijoules, and their product."""
    print(f"{name:44} {cycles:10.2f} {millijoules:10.2f} {cycles * millijoules:10.1f}", flush=True)


def ours(objective: str, cut: str) -> None:
    """Print a plan, which holds, and its lower bounds."""
    plan = lm.plan([fsrcnn()], target_of(_TARGET), objective=objective, cut=cut)
    if lm.verify(plan):
        raise SystemExit(f"{objective}, cut {cut}: the plan does not hold")
    made = plan.metrics
    row(f"Loadmaster, {objective}, cut {cut}", made.makespan.value * 1e3, made.energy.value * 1e3)
    if cut != "none":
        row(
            "  no plan has less than",
            made.makespan.lower_bound * 1e3,
            made.energy.lower_bound * 1e3,
        )


def main() -> None:
    """Print the table."""
    print(f"{'':44} {'Mcycles':>10} {'mJ':>10} {'product':>10}")
    for objective, cut in (("throughput", "none"), ("throughput", "auto"), ("edp", "auto")):
        ours(objective, cut)
    for which, figures in PUBLISHED.items():
        row(f"DeFiNES, {which} of each (published)", *figures)


if __name__ == "__main__":
    main()

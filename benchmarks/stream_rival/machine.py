"""Stream's example ``TPU_like_quad_core`` and its ResNet-18, as far as Loadmaster can describe
them.

Each of Stream's four cores has a 32 x 32 array, 64 KiB beside it, 1 MiB for weights and 1 MiB for
activations; links of 8 bytes a cycle join neighbours and the main memory. Loadmaster has one fast
memory for all cores instead: 8 MiB here. What a core can read from it decides which machine is the
better one, so that there are two of them: one with a link of 8 bytes a cycle for each core, through
which its own weights come as well (worse than Stream's), and one with 128 bytes a cycle for each,
which is what Stream's cores read from memories of their own (better).

Energies are those of Stream's files, the mean of reading and writing, in picojoules a byte. Its
array reads a weight for each multiply-accumulate, and reads and writes a sum of two bytes for each
32, which it adds up on the way: 0.09 pJ. Loadmaster counts 10 bytes of local memory for each, so
that a byte is a tenth of that. Pooling and additions run on cores of their own in Stream, and here
on 64 lanes of every core.
"""

from __future__ import annotations

from benchmarks.networks.shape_network import ShapeNetwork
from benchmarks.targets import target_of
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph

LINKS = {"worse": "32 GB/s", "better": "512 GB/s"}
"""Bandwidth of the fast memory, of all cores together; a cycle is a nanosecond."""

_TARGET = """
name = "quad-core"
[dram]
role = "main"
capacity = "1.25 GB"
bandwidth = "8 GB/s"
energy = "125 pJ/B"
[scratchpad]
role = "fast"
capacity = "8 MiB"
bandwidth = "{bandwidth}"
energy = "1.55 pJ/B"
[copy]
to_fast = "8 GB/s"
to_main = "8 GB/s"
[[cores]]
name = "tpu"
count = 4
style = "weight-stationary"
rows = 32
columns = 32
clock = "1 GHz"
buffer = "64 KiB"
lanes = 64
macs_per_cycle = {{ int8 = 1, fp16 = 0.5, fp32 = 0.25 }}
energy = {{ mac_int8 = "0.04 pJ", local = "0.009 pJ/B", network = "0 pJ/B", buffer = "0.26 pJ/B" }}
"""


def machine(link: str) -> Target:
    """The quad-core with the fast memory that ``link`` names."""
    return target_of(_TARGET.format(bandwidth=LINKS[link]))


def resnet18() -> Graph:
    """ResNet-18 as Stream's example has it: shortcuts of 3 x 3, and the last layer as a 1 x 1
    convolution."""
    net = ShapeNetwork()
    last = net.op(
        "MaxPool",
        net.convolution("image", (3, 64), 7, 2),
        kernel_shape=[3, 3],
        strides=[2, 2],
        pads=[1] * 4,
    )
    inputs = 64
    for own in (64, 128, 256, 512):
        for _ in range(2):
            stride = 2 if own > inputs else 1
            main = net.convolution(net.convolution(last, (inputs, own), 3, stride), (own, own), 3)
            shortcut = net.convolution(last, (inputs, own), 3, stride) if stride > 1 else last
            last, inputs = net.op("Add", main, shortcut), own
    pooled = net.op("GlobalAveragePool", last)
    return net.graph(
        "resnet18", (1, 3, 224, 224), net.op("Conv", pooled, net.weight(1000, 512, 1, 1))
    )

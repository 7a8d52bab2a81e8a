"""Ways to compute a kernel, and the workspace that each takes."""

from __future__ import annotations

import math
from collections.abc import Iterator

from loadmaster.cost.analytical.nests import WIDTHS
from loadmaster.cost.kernels.work import KernelWork
from loadmaster.placement.sequence import Algorithm
from loadmaster.targets.hardware import Core, Memory
from loadmaster.workloads.graph import LoopNest

_TILE = 4
"""Outputs of a tile each way, for F(4x4, 3x3)."""
_TRANSFORMED = (_TILE + 2) ** 2
"""Elements that a tile has after its transformation: as many multiplications, instead of 9 for each of its 16 outputs."""


def algorithms(kernel: KernelWork, seconds: float, core: Core, fast: Memory) -> tuple[Algorithm, ...]:
    """The direct way in ``seconds`` without workspace, and a faster one for 3x3 convolutions of stride 1 if the core has ``winograd``.

    That is F(4x4, 3x3) of Lavin and Gray (CVPR 2016), not fused: transformed inputs and outputs of all tiles, and transformed filters, lie
    in the workspace, and are written and read once at the fast memory's bandwidth, before and after a quarter of the multiplications
    at the core's full rate. Both are assumptions: libraries come near them for many channels, and are worse for few.
    """
    direct = Algorithm("direct", seconds)
    if not core.winograd:
        return (direct,)
    faster = [winograd for nest in kernel.nests[:1] for winograd in _winograd(kernel, nest, core, fast) if winograd.seconds < seconds]
    return (direct, *faster)


def _winograd(kernel: KernelWork, nest: LoopNest, core: Core, fast: Memory) -> Iterator[Algorithm]:
    positions = nest.groups * nest.batch * nest.y * nest.x
    plain = (nest.r, nest.s, nest.stride, nest.dilation, nest.repeats) == (3, 3, (1, 1), (1, 1), 1)
    # The loops of a strided convolution's gradient run over fewer positions than its result has.
    if not plain or kernel.outputs != positions * nest.k:
        return
    width = next((width for width in WIDTHS if kernel.bits <= width), WIDTHS[-1])
    tiles = nest.groups * nest.batch * math.ceil(nest.y / _TILE) * math.ceil(nest.x / _TILE)
    elements = _TRANSFORMED * (tiles * (nest.c + nest.k) + nest.groups * nest.c * nest.k)
    workspace = elements * width // 8
    products = kernel.macs - nest.macs + _TRANSFORMED * tiles * nest.c * nest.k
    rate = core.clock * core.rows * core.columns * core.macs_per_cycle[width]
    arithmetic = max(products / rate, kernel.elements / (core.lanes * core.clock))
    yield Algorithm("winograd", arithmetic + workspace / fast.write_bandwidth + workspace / fast.read_bandwidth, workspace)

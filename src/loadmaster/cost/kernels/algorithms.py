"""Algorithms for a kernel (direct, Winograd), and the workspace that each takes."""

from __future__ import annotations

import math

from loadmaster.cost.analytical.nests import kind_of, width_of
from loadmaster.cost.kernels.work import KernelWork
from loadmaster.placement.sequence import Algorithm
from loadmaster.targets.hardware import Core, Memory

_TILE = 4
"""Rows and columns of outputs in a Winograd tile, for F(4x4, 3x3)."""
_TRANSFORMED = (_TILE + 2) ** 2
"""Elements of a transformed tile, and multiplications for it, instead of 9 for each of its 16
outputs."""


def algorithms(
    kernel: KernelWork, seconds: float, core: Core, fast: Memory
) -> tuple[Algorithm, ...]:
    """Return the direct algorithm in ``seconds``, and Winograd's for 3x3 convolutions of stride 1
    if the core has ``winograd``.

    Winograd's is F(4x4, 3x3), Lavin and Gray (CVPR 2016), not fused: transformed inputs, outputs
    and filters of all tiles lie in the workspace, and are written and read once at the fast
    memory's bandwidth, before and after a quarter of the multiplications at the rate that direct
    ones have. Both are assumptions: libraries come near them for many channels, and are worse for
    few.
    """
    direct = Algorithm("direct", seconds)
    found = _winograd(kernel, seconds, core, fast) if core.winograd and kernel.nests else None
    return (direct,) if found is None or found.seconds >= seconds else (direct, found)


def _winograd(kernel: KernelWork, seconds: float, core: Core, fast: Memory) -> Algorithm | None:
    """Return Winograd's F(4x4, 3x3) algorithm for a kernel that takes ``seconds`` directly, with
    its time and workspace; None unless it is a 3 x 3 convolution with stride 1 and dilation 1."""
    nest = kernel.nests[0]
    positions = nest.groups * nest.batch * nest.y * nest.x
    plain = (nest.r, nest.s, nest.stride, nest.dilation, nest.repeats) == (3, 3, (1, 1), (1, 1), 1)
    # The loops of a strided convolution's gradient run over fewer positions than its result has.
    if not plain or kernel.outputs != positions * nest.k:
        return None
    width = width_of(kernel.bits)
    tiles = nest.groups * nest.batch * math.ceil(nest.y / _TILE) * math.ceil(nest.x / _TILE)
    elements = _TRANSFORMED * (tiles * (nest.c + nest.k) + nest.groups * nest.c * nest.k)
    workspace = elements * width // 8
    products = kernel.macs - nest.macs + _TRANSFORMED * tiles * nest.c * nest.k
    rate = core.lanes * core.clock * core.efficiency.get(kind_of(kernel.kind, kernel.nests), 1.0)
    array = (seconds - core.start_up) * products / kernel.macs
    busy = core.start_up + max(array, kernel.elements / rate)
    return Algorithm("winograd", busy + fast.link_seconds(workspace, workspace), workspace)

"""Networks cut into stacks of which the bands do not wait for one another: rows that two bands need
are made by both."""

from __future__ import annotations

import numpy as np

from loadmaster.planning.cutting.banding import Network, Stack, independent_bands
from loadmaster.planning.cutting.stacking import stacked
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.grid import divisible
from loadmaster.workloads.lowering.pieces import Cuts
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE


def in_independent_bands(graph: Graph, generator: np.random.Generator) -> Cuts:
    """Stacks of random lengths, as far as operators have rows or columns, in a few bands each; the
    others stay whole."""
    single = without_updates(graph)
    fused = fuse(single)
    network = Network(single, fused, [divisible(single, group) for group in fused])
    stacks, first = [], 0
    while first < len(fused):
        seen = network.along(bool(generator.integers(2)))
        last = first
        while (
            last < min(len(fused), first + int(generator.integers(2, 6)))
            and seen.rows(last) is not None
        ):
            last += 1
        found = [
            Stack(first, last, bands, seen.columns, abreast=int(generator.integers(1, 4)))
            for bands in (4, 3, 2)
            if last > first
        ]
        able = [
            stack
            for stack in found
            if stack.bands <= seen.extent(last - 1) and independent_bands(seen, stack)
        ]
        stacks.append(able[0] if able else Stack(first, first + 1, 1))
        first = stacks[-1].last
    return stacked(network, stacks, [WHOLE] * len(fused))

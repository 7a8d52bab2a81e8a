"""Networks cut into bands that do not wait for one another: rows that two bands need are made by
both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from tests.support.lowered import parts_of

from loadmaster.core.arrays import Ints
from loadmaster.planning.cutting.banding import Network
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.pieces import Cut, Cuts
from loadmaster.workloads.lowering.split import WHOLE


class Bands(NamedTuple):
    """Operators ``first`` up to ``last`` in bands, of which so many run ``abreast``."""

    first: int
    last: int
    count: int
    abreast: int = 1
    columns: bool = False


def recomputing(network: Network, groups: Sequence[Bands], plain: Sequence[Cut]) -> Cuts:
    """The cuts and the order of pieces of groups that cover a network; those of one band stay as in
    ``plain``."""
    cuts, order = list(plain), []
    for group in groups:
        numbers = range(group.first, group.last)
        ranges = _ranges(network.along(group.columns), group) if group.count > 1 else {}
        for number, own in ranges.items():
            cuts[number] = _overlapping(network.along(group.columns), number, *own)
        for turn in range(0, group.count, group.abreast):
            bands = range(turn, min(turn + group.abreast, group.count))
            order += [
                (number, tile)
                for number in numbers
                for tile in (bands if ranges else range(cuts[number].tiles))
            ]
    return Cuts(cuts, order)


def in_independent_bands(graph: Graph, generator: np.random.Generator) -> Cuts:
    """Groups of random lengths, as far as operators have rows or columns, in a few bands each; the
    others stay whole."""
    fused = (parts := parts_of(graph)).fused
    network = Network(*parts)
    groups, first = [], 0
    while first < len(fused):
        seen = network.along(bool(generator.integers(2)))
        last = first
        while (
            last < min(len(fused), first + int(generator.integers(2, 6)))
            and seen.rows(last) is not None
        ):
            last += 1
        found = [
            Bands(first, last, count, int(generator.integers(1, 4)), seen.columns)
            for count in (4, 3, 2)
            if last > first
        ]
        able = [
            group
            for group in found
            if group.count <= seen.extent(last - 1) and _ranges(seen, group)
        ]
        groups.append(able[0] if able else Bands(first, first + 1, 1))
        first = groups[-1].last
    return recomputing(network, groups, [WHOLE] * len(fused))


def _ranges(network: Network, group: Bands) -> dict[int, tuple[Ints, Ints]]:
    """Where the bands of every operator begin and end: each makes what the same band of its readers
    needs, and owns what lies behind the end of the one before; none if a band has nothing to
    own."""
    ranges: dict[int, tuple[Ints, Ints]] = {}
    for number in range(group.last - 1, group.first - 1, -1):
        extent, step = network.extent(number), network.step(number)
        stops, starts = np.zeros(group.count, np.int64), np.full(group.count, extent, np.int64)
        for access in network.fused[number].writes:
            for reader in range(number + 1, group.last):
                if any(read.tensor == access.tensor for read in network.fused[reader].reads):
                    low, high = network.edge(reader, access.tensor)
                    starts = np.minimum(starts, low[ranges[reader][0]])
                    stops = np.maximum(stops, high[ranges[reader][1]])
        if not stops[-1]:
            stops = extent * np.arange(1, group.count + 1) // group.count
        stops = np.minimum(-(-stops // step) * step, extent)
        stops[-1] = extent
        before = np.concatenate([[0], stops[:-1]])
        if not (stops > before).all():
            return {}
        again = _has_equal_rows(network, number)
        ranges[number] = (np.minimum(starts, before) if again else before), stops
    return ranges


def _has_equal_rows(network: Network, number: int) -> bool:
    """Whether rows take an equal share of an operator's work and bytes each, so that any of them
    can be made again."""
    form, axis, group = network.forms[number], network.rows(number), network.fused[number]
    assert axis is not None
    return (
        form.step[axis] == 1
        and all(network.bytes_of(a.tensor) % math.prod(form.shape) == 0 for a in group.writes)
        and all(getattr(nest, nest.loops[axis], 0) == form.shape[axis] for nest in group.nests)
    )


def _overlapping(network: Network, number: int, starts: Ints, stops: Ints) -> Grid:
    form, rows = network.forms[number], network.rows(number)
    assert rows is not None
    ends, begins = [(extent,) for extent in form.shape], [(0,) for _ in form.shape]
    ends[rows], begins[rows] = tuple(stops.tolist()), tuple(starts.tolist())
    again = (starts[1:] < stops[:-1]).any()
    return Grid(form.shape, tuple(ends), tuple(begins) if again else ())

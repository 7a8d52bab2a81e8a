"""Stacks of operators that run band by band, depth first, so that what lies between them never leaves the fast memory.

The rows of a stack's results are cut into bands. A band of an operator is as long as the next operator's band needs, so that rows which two
bands share (the halo) are kept, not computed again. Which operators form a stack, and how many bands it has, is found by dynamic programming
over the bytes that cross the main link (the axes of DeFiNES, HPCA 2023: fuse depth and tile size, with a cache along one axis).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from loadmaster.workloads.graph import Graph, TensorKind
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible, Grid
from loadmaster.workloads.lowering.instantiate import Cut, Cuts
from loadmaster.workloads.window import Box, whole

_LONGEST = 24
"""Operators in a stack at most: longer ones have so much halo that they do not pay."""
_BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class Stack:
    """Operators ``first`` up to ``last`` (not included) in ``bands`` bands, and the bytes that the model counts for it."""

    first: int
    last: int
    bands: int
    bytes: float


@dataclass
class Network:
    """A network's fused operators, how each divides, and who reads what each writes."""

    graph: Graph
    fused: Sequence[FusedOp]
    forms: Sequence[Divisible | None]
    home: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, group in enumerate(self.fused):
            for access in group.reads:
                self.readers.setdefault(access.tensor, []).append(number)
            for access in group.writes:
                self.home[access.tensor] = number
        self.outputs = {self.graph.tensors[name].storage for name in self.graph.outputs}

    def bytes_of(self, storage: str) -> int:
        """Bytes of a storage."""
        return self.graph.tensors[storage].bytes

    def rows(self, number: int) -> int | None:
        """The dimension of an operator's result that holds its rows, if it can be cut along it."""
        form = self.forms[number]
        if form is None:
            return None
        rank = len(form.shape)
        axis = 2 if rank >= 4 else rank - 2
        return axis if axis in form.axes else None


def best_stacks(network: Network, capacity: int) -> list[Stack]:
    """Stacks that cover a network in order, with the fewest bytes over the main link by the model. O(operators x 24 x bands x pieces)."""
    count = len(network.fused)
    cost: list[float] = [0.0] + [float("inf")] * count
    choice: list[Stack | None] = [None] * (count + 1)
    for first in range(count):
        for last in range(first + 1, min(count, first + _LONGEST) + 1):
            stack = _best_bands(network, first, last, capacity)
            if stack is None:
                break
            if cost[first] + stack.bytes < cost[last]:
                cost[last], choice[last] = cost[first] + stack.bytes, stack
    stacks: list[Stack] = []
    end = count
    while end:
        stack = choice[end]
        assert stack is not None
        stacks.append(stack)
        end = stack.first
    return stacks[::-1]


def _best_bands(network: Network, first: int, last: int, capacity: int) -> Stack | None:
    """The number of bands with which a stack needs the fewest bytes; None where its operators cannot be cut together."""
    best: Stack | None = None
    rows = [network.rows(number) for number in range(first, last)]
    if last - first > 1 and None in rows:
        return None
    for bands in _BANDS if None not in rows else (1,):
        if bands > 1 and any(_extent(network, number) < bands for number in range(first, last)):
            break
        value = _traffic(network, first, last, bands, capacity)
        if best is None or value < best.bytes * (1 - 1e-3):
            best = Stack(first, last, bands, value)
    return best


def _extent(network: Network, number: int) -> int:
    form, axis = network.forms[number], network.rows(number)
    assert form is not None
    assert axis is not None
    return form.shape[axis]


def _traffic(network: Network, first: int, last: int, bands: int, capacity: int) -> float:
    """Bytes over the main link of a stack in bands: its ends where there is no room for them, weights once or for every band."""
    weights, given = _given(network, first, last)
    peak = _peak(network, first, last, bands)
    ends = given + sum(network.bytes_of(s) for s in _left(network, first, last))
    largest = max((_weight_bytes(network, number) for number in range(first, last)), default=0)
    if peak + weights <= capacity:
        once = weights
        room = capacity - peak - weights
    elif peak + min(weights, 2 * largest) <= capacity:
        once = weights * bands
        room = capacity - peak - min(weights, 2 * largest)
    else:
        # Nothing holds it: what lies between crosses the link both ways as well.
        return float(weights * bands + ends + 2 * max(0, peak + min(weights, 2 * largest) - capacity) * bands)
    # What stays for the neighbours costs nothing; each of two neighbours counts its half.
    return float(once + (ends if ends > room else 0.05 * ends))


def _weight_bytes(network: Network, number: int) -> int:
    tensors = network.graph.tensors
    return sum(access.bytes for access in network.fused[number].reads if tensors[access.tensor].kind is TensorKind.WEIGHT)


def _given(network: Network, first: int, last: int) -> tuple[int, int]:
    """Bytes of weights that a stack reads, and of what it reads that earlier operators or the caller make."""
    weights: dict[str, int] = {}
    given: dict[str, int] = {}
    for number in range(first, last):
        for access in network.fused[number].reads:
            if network.graph.tensors[access.tensor].kind is TensorKind.WEIGHT:
                weights[access.tensor] = max(weights.get(access.tensor, 0), access.bytes)
            elif network.home.get(access.tensor, -1) < first:
                given[access.tensor] = network.bytes_of(access.tensor)
    return sum(weights.values()), sum(given.values())


def _left(network: Network, first: int, last: int) -> list[str]:
    """Storages that a stack leaves to later operators or the caller."""
    return [
        access.tensor
        for number in range(first, last)
        for access in network.fused[number].writes
        if access.tensor in network.outputs or any(reader >= last for reader in network.readers.get(access.tensor, ()))
    ]


def _peak(network: Network, first: int, last: int, bands: int) -> int:
    """Most bytes of what lies inside a stack that are alive at once."""
    inside = {
        access.tensor: number
        for number in range(first, last)
        for access in network.fused[number].writes
        if access.tensor not in network.outputs and all(reader < last for reader in network.readers.get(access.tensor, ()))
    }
    if not inside:
        return 0
    if bands == 1:
        live = [0] * (last - first + 1)
        for tensor, number in inside.items():
            end = max(network.readers.get(tensor, [number]))
            for step in range(number - first, end - first + 1):
                live[step] += network.bytes_of(tensor)
        return max(live)
    ends = band_ends(network, first, last, bands)
    events: list[tuple[int, int]] = []
    length = last - first
    for tensor, number in inside.items():
        extent, size = _extent(network, number), network.bytes_of(tensor)
        last_use = [band * length + number - first for band in range(bands)]
        for reader in network.readers.get(tensor, ()):
            axis = network.rows(reader)
            form = network.forms[reader]
            assert form is not None
            assert axis is not None
            begin = 0
            for band, end in enumerate(ends[reader]):
                low, high = _needed(network, form, tensor, axis, (begin, end))
                start = 0
                for part, stop in enumerate(ends[number]):
                    if start < high and stop > low:
                        last_use[part] = max(last_use[part], band * length + reader - first)
                    start = stop
                begin = end
        start = 0
        for part, stop in enumerate(ends[number]):
            share = size * (stop - start) // extent
            events += [(2 * (part * length + number - first), share), (2 * last_use[part] + 1, -share)]
            start = stop
    live_now = peak = 0
    for _, change in sorted(events):
        live_now += change
        peak = max(peak, live_now)
    return peak


def _needed(network: Network, form: Divisible, storage: str, axis: int, rows: tuple[int, int]) -> tuple[int, int]:
    """Rows of a storage that some rows of an operator's result need."""
    box: Box = tuple(rows if d == axis else full for d, full in enumerate(whole(form.shape)))
    needed = form.needed(network.graph, storage, box)
    shape = network.graph.tensors[storage].shape
    own = 2 if len(shape) >= 4 else max(0, len(shape) - 2)
    return needed[own]


def band_ends(network: Network, first: int, last: int, bands: int) -> dict[int, tuple[int, ...]]:
    """Where the bands of every operator of a stack end: as far as the bands of its readers need, evenly where the stack ends.

    A band may be empty, where the one before has made all that is needed.
    """
    ends: dict[int, tuple[int, ...]] = {}
    for number in range(last - 1, first - 1, -1):
        extent = _extent(network, number)
        wanted = [0] * bands
        for access in network.fused[number].writes:
            for reader in network.readers.get(access.tensor, ()):
                if not number < reader < last:
                    continue
                form, axis = network.forms[reader], network.rows(reader)
                assert form is not None
                assert axis is not None
                for band, end in enumerate(ends[reader]):
                    wanted[band] = max(wanted[band], _needed(network, form, access.tensor, axis, (0, end))[1])
        if not wanted[-1]:
            wanted = [extent * (band + 1) // bands for band in range(bands)]
        wanted[-1] = extent
        ends[number] = tuple(itertools.accumulate(wanted, max))
    return ends


def stacked(network: Network, stacks: Sequence[Stack], plain: Sequence[Cut]) -> Cuts:
    """The cuts and the order of jobs that stacks stand for; an operator that is a stack of its own in one band stays as in ``plain``."""
    cuts = list(plain)
    order: list[tuple[int, int]] = []
    tiles: dict[int, list[int | None]] = {}
    for stack in stacks:
        numbers = range(stack.first, stack.last)
        if stack.bands == 1:
            order += [(number, tile) for number in numbers for tile in range(cuts[number].tiles)]
            continue
        for number, ends in band_ends(network, stack.first, stack.last, stack.bands).items():
            form, axis = network.forms[number], network.rows(number)
            assert form is not None
            filled = tuple(dict.fromkeys(end for end in ends if end))
            cuts[number] = Grid(form.shape, tuple(filled if d == axis else (extent,) for d, extent in enumerate(form.shape)))
            tiles[number] = [filled.index(end) if end > before else None for before, end in itertools.pairwise((0, *ends))]
        for band in range(stack.bands):
            order += [(number, tile) for number in numbers if (tile := tiles[number][band]) is not None]
    return Cuts(cuts, order)

"""Parts of the tensors of a network, and the reads and writes of its pieces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmaster.targets.hardware import Style, Target
from loadmaster.workloads.graph import Access, Graph, LoopNest, TensorKind
from loadmaster.workloads.job import Ranges, Role
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import CHANNELS, WHOLE, Divisible, Grid, divisible, piece_of
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.window import Box, common_box, volume, whole


@dataclass(frozen=True)
class Cuts:
    """The cuts of the fused operators of one network, and the order in which pieces become jobs (by
    default operator by operator).

    ``order`` lists (operator, piece) in a topological order.
    """

    cuts: Sequence[Grid]
    order: Sequence[tuple[int, int]] | None = None

    @property
    def steps(self) -> Sequence[tuple[int, int]]:
        """Pieces in the order of jobs."""
        if self.order is not None:
            return self.order
        return [(group, tile) for group, cut in enumerate(self.cuts) for tile in range(cut.tiles)]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a storage that becomes a tensor of its own: label, box and bytes."""

    label: str
    box: Box
    bytes: int


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes that a piece reads of a part of a storage, in the box ``ranges``."""

    storage: str
    part: Part
    bytes: int
    role: Role
    nest: int
    ranges: Ranges


class Pieces:
    """The reads, writes and loop nests of all pieces of a network, equal in every mini-batch;
    ``reads`` and ``nests`` have those of each operator by piece. O(pieces x parts that each
    reads)."""

    def __init__(self, graph: Graph, fused: Sequence[FusedOp], chosen: Cuts) -> None:
        self.graph = graph
        self.fused = fused
        self.cuts = chosen.cuts
        self.steps = chosen.steps
        self.outputs = {graph.tensors[name].storage for name in graph.outputs}
        self._divisible = [
            divisible(graph, group, sums=bool(cut.sums))
            for group, cut in zip(fused, self.cuts, strict=True)
        ]
        self._grids: dict[str, Grid] = {}
        self.parts: dict[str, list[Part]] = {}
        self._cut_results()
        self._cut_weights()
        self.reads = [self._reads_of_pieces(number) for number in range(len(fused))]
        self.nests = [self._nests_of_pieces(number) for number in range(len(fused))]

    def _cut_results(self) -> None:
        """Divide the result of every fused operator into one part for each of its pieces."""
        for group, cut in zip(self.fused, self.cuts, strict=True):
            for storage in (access.tensor for access in group.writes):
                if len(cut.boxes) == 1:
                    self.parts_of(storage)
                else:
                    self._divide(storage, cut.under(self.graph.tensors[storage].shape))

    def _divide(self, storage: str, grid: Grid) -> None:
        """Divide a storage into the parts of a grid, with their shares of its bytes."""
        size = self.graph.tensors[storage].bytes
        self._grids[storage] = grid
        self.parts[storage] = [
            Part(label_of(tile, grid.tiles), box, grid.amount_of_tile(size, tile))
            for tile, box in enumerate(grid.boxes)
        ]

    def _cut_weights(self) -> None:
        """Divide weights and inputs into parts, by the first operator whose pieces need disjoint
        parts."""
        for number, (group, cut) in enumerate(zip(self.fused, self.cuts, strict=True)):
            for access in group.reads if cut.tiles > 1 else ():
                tensor = self.graph.tensors[access.tensor]
                if (
                    access.tensor not in self.parts
                    and access.tensor not in self.outputs
                    and (access.bytes == tensor.bytes or tensor.kind is TensorKind.INPUT)
                ):
                    self._cut_given(number, access.tensor)

    def _cut_given(self, number: int, storage: str) -> None:
        """Divide a weight or input where the boxes that the pieces of operator ``number`` need end:
        a weight if these boxes are its parts, an input if each part is needed, and both into whole
        bytes; else leave it whole. O(pieces)."""
        tensor = self.graph.tensors[storage]
        boxes = dict.fromkeys(box for box in self._needed(number, storage) if volume(box))
        if len(boxes) < 2:
            return
        grid = _where_first_needed([*boxes], tensor.shape)
        if tensor.kind is TensorKind.INPUT:
            # Through a reshape there may be gaps between the boxes, which nobody reads.
            needed = {part for box in boxes for part in grid.parts_overlapping(box)}
            is_divided = len(needed) == grid.tiles
        else:
            is_divided = grid.tiles == len(boxes) and boxes.keys() == {*grid.boxes}
        # Parts have whole bytes, also of elements that are smaller.
        if is_divided and not any(tensor.bytes * volume(b) % tensor.count for b in grid.boxes):
            self._divide(storage, grid)

    def _needed(self, number: int, storage: str) -> list[Box]:
        """The box of a storage that each piece of an operator needs."""
        form, cut = self._divisible[number], self.cuts[number]
        assert form is not None
        links = [
            form.uses[storage].needed(cut.boxes, cut.summed(link)) for link in range(cut.links)
        ]
        return list(itertools.chain.from_iterable(zip(*links, strict=True)))

    def parts_of(self, storage: str) -> list[Part]:
        """Parts of a storage; a storage that is not cut is one part."""
        if storage not in self.parts:
            tensor = self.graph.tensors[storage]
            self.parts[storage] = [Part("", whole(tensor.shape), tensor.bytes)]
        return self.parts[storage]

    def _reads_of_pieces(self, number: int) -> list[list[Read]]:
        """Return the reads of every piece of fused operator ``number``."""
        group, tiles = self.fused[number], self.cuts[number].tiles
        result: list[list[Read]] = [[] for _ in range(tiles)]
        for access in group.reads:
            # A whole operator reads all bytes that it touches.
            shares = (
                [self._parts_touched(access)]
                if tiles == 1
                else [
                    self._parts_in_box(access, box) for box in self._needed(number, access.tensor)
                ]
            )
            for role, nest in operand_roles(group.nests, access):
                for own, found in zip(result, shares, strict=True):
                    own += [
                        Read(access.tensor, part, size, role, nest, ranges)
                        for part, size, ranges in found
                        if size
                    ]
        return result

    def _parts_touched(self, access: Access) -> list[tuple[Part, int, Ranges]]:
        """All parts of an operand, with the share of each in the touched bytes."""
        parts = self.parts_of(access.tensor)
        total = max(1, sum(part.bytes for part in parts))
        return [(part, -(-access.bytes * part.bytes // total), ()) for part in parts]

    def _parts_in_box(self, access: Access, needed: Box) -> list[tuple[Part, int, Ranges]]:
        """The parts of an operand that overlap a needed box, with the overlapping bytes and box."""
        found = list[tuple[Part, int, Ranges]]()
        parts = self.parts_of(access.tensor)
        grid = self._grids.get(access.tensor)
        for index in grid.parts_overlapping(needed) if grid else range(len(parts)):
            part = parts[index]
            own = common_box(part.box, needed)
            if common := volume(own):
                size = -(-part.bytes * common // volume(part.box))
                found.append((part, size, () if own == part.box else own))
        return found

    def _nests_of_pieces(self, number: int) -> list[tuple[LoopNest, ...]]:
        """Return the loop nests of every piece of fused operator ``number``."""
        cut, nests = self.cuts[number], self.fused[number].nests
        if cut.tiles == 1:
            return [nests]
        return [
            tuple(piece_of(nest, cut.shape, cut.box(tile), cut.summed(tile)) for nest in nests)
            for tile in range(cut.tiles)
        ]


def label_of(tile: int, tiles: int) -> str:
    """The suffix ``[tile/tiles]`` of the name of a piece or part; empty for a whole."""
    return "" if tiles == 1 else f"[{tile}/{tiles}]"


def _where_first_needed(boxes: Sequence[Box], shape: Sequence[int]) -> Grid:
    """The grid of a tensor whose parts end, along every dimension, where some box ends.

    Rows that two pieces need belong to the part of the first piece, and the second reads from both
    parts: so every row is fetched once.
    """
    ends = [
        sorted({last for first, last in ranges if last > first})
        for ranges in zip(*boxes, strict=True)
    ]
    return Grid(
        tuple(shape), tuple((*own[:-1], extent) for own, extent in zip(ends, shape, strict=True))
    )


def operand_roles(
    nests: Sequence[LoopNest], access: Access, among: Sequence[Role] = (Role.INPUT, Role.WEIGHT)
) -> list[tuple[Role, int]]:
    """Return (role, nest) of an operand; a tensor that is both factors of a product has both
    roles."""
    names = (access.tensor, *access.part_of)
    roles = [
        (role, index)
        for role in among
        for index, nest in enumerate(nests)
        if getattr(nest, role) in names
    ]
    return roles or [(Role.ONCE, -1)]


def divides_sums(target: Target) -> bool:
    """Whether reductions may be split: only on machines where all operands of a piece must be in
    the fast memory together.

    Elsewhere operands may stay in main memory, from which the private buffer that holds the sums is
    refilled.
    """
    return not target.main.in_place


@dataclass(frozen=True, eq=False)
class DivisibleNetwork:
    """A network on a machine: ``source`` as it was read, ``graph`` in single assignment, and its
    fused operators.

    ``forms`` says how each fused operator can be cut (None: not at all); ``plain`` are the default
    cuts, only as far as operands exceed the fast memory.
    """

    source: Graph
    graph: Graph
    fused: Sequence[FusedOp]
    forms: Sequence[Divisible | None]
    plain: list[Grid]

    @staticmethod
    def of(source: Graph, target: Target, *, sums: bool = False) -> DivisibleNetwork:
        """Fuse a network's operators and find how each can be cut, with ``sums`` also along its
        reduction; O(operators + operands)."""
        graph = without_updates(source)
        fused = fuse(graph)
        forms = [divisible(graph, group, sums=sums) for group in fused]
        return DivisibleNetwork(source, graph, fused, forms, plain_cuts(graph, fused, target))

    @cached_property
    def home(self) -> dict[str, int]:
        """The operator that writes each storage."""
        return {
            access.tensor: number
            for number, group in enumerate(self.fused)
            for access in group.writes
        }


_MOST_TILES = 256
"""Most tiles of one operator."""
_MOST_READ = 8
"""Most bytes of shared operands that all tiles may read together, in multiples of the fast memory,
if more than two tiles are to fit at once."""
_SIDE_BY_SIDE = (16, 4, 3, 2, 1)
"""Numbers of tiles that should fit at once, tried in this order: one is fetched while others are
computed."""


@dataclass(frozen=True)
class TileSizes:
    """Numbers of output channels of tiles that suit a machine: multiples of ``step``, at least
    ``least`` if several tiles run at once.

    ``balance`` is the number of multiply-accumulates that all cores do per byte of the main link.
    """

    step: int = 1
    least: int = 1
    balance: float = 0.0


def sizes_for(target: Target) -> TileSizes:
    """Sizes of tiles that fill the arrays of all cores, and whose arithmetic takes as long as
    reading the shared operand again.

    A tile of ``k`` channels does ``k`` multiply-accumulates per element of the shared operand; the
    least ``k`` is the rate of all cores over the bandwidth of the memory that it is read from.
    """
    extents = {Style.WEIGHT_STATIONARY: "rows", Style.OUTPUT_STATIONARY: "columns"}
    step = max(
        (
            getattr(core, extents[core.style])
            for core in target.cores
            if core.style in extents and not core.flexible
        ),
        default=1,
    )
    rate = sum(
        core.rows * core.columns * core.macs_per_cycle[8] * core.clock for core in target.cores
    )
    bandwidth = target.near.read_bandwidth
    return TileSizes(
        step, max(1, math.ceil(rate / bandwidth / step)) * step, rate / target.main.read_bandwidth
    )


def plain_cuts(graph: Graph, groups: Sequence[FusedOp], target: Target) -> list[Grid]:
    """The default cuts of operators: only as far as their operands exceed the fast memory."""
    sizes = sizes_for(target)
    return [
        _in_channels(graph, group, target.room, sizes) if target.room else WHOLE for group in groups
    ]


def _in_channels(graph: Graph, group: FusedOp, capacity: int, sizes: TileSizes) -> Grid:
    """Cut an operator into the fewest pieces along its output channels of which several fit into
    ``capacity`` bytes; whole if that is not needed or does not help.

    A piece reads its share of operands that divide by channel, and all of the others. Only
    operators with a single ungrouped, non-recurrent loop nest are cut. Pieces have ``sizes``,
    unless none of them would fit.
    """
    total = sum(access.bytes for access in (*group.reads, *group.writes))
    if total <= capacity or len(group.nests) != 1 or group.nests[0].groups != 1:
        return WHOLE
    (nest,), form = group.nests, divisible(graph, group)
    axis = nest.loops.index(CHANNELS) if CHANNELS in nest.loops else -1
    if form is None or axis not in form.axes:
        return WHOLE
    extent, unit = form.shape[axis], form.step[axis]
    shared_bytes = sum(
        access.bytes for access in group.reads if not form.divides(access.tensor, axis)
    )
    own_bytes = total - shared_bytes
    if shared_bytes >= capacity:
        return WHOLE
    # If the main link limits the operator, pieces should not read anything twice.
    computes = nest.macs >= own_bytes * sizes.balance > 0
    for at_once in _SIDE_BY_SIDE if computes else _SIDE_BY_SIDE[1:]:
        room = (capacity - shared_bytes) // at_once
        for step in dict.fromkeys((-(-sizes.step // unit) * unit, unit)):
            steps = -(-extent // step)
            most = min(steps, _MOST_TILES)
            if at_once > 1:
                most = min(most, max(1, extent // sizes.least))
            if at_once > 2 and not computes:
                most = min(most, _MOST_READ * capacity // max(1, shared_bytes))
            for tiles in range(-(-own_bytes // max(1, room)), most + 1):
                if own_bytes * min(extent, -(-steps // tiles) * step) // extent <= room:
                    ends = tuple(
                        min(extent, steps * tile // tiles * step) for tile in range(1, tiles + 1)
                    )
                    return form.along(axis, ends)
    return WHOLE

"""Parts of the tensors of a network, and what its pieces read and write of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadmaster.targets.hardware import Style, Target
from loadmaster.workloads.graph import Access, Graph, LoopNest, TensorKind
from loadmaster.workloads.job import Ranges, Role
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import (
    CHANNELS,
    WHOLE,
    Divisible,
    Grid,
    divisible,
    piece_of,
)
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.window import Box, shared, volume, whole


@dataclass(frozen=True)
class Cuts:
    """How the fused operators of one network are cut, and in which order their pieces become jobs;
    by default one operator after another.

    ``order`` lists (operator, piece); a piece comes after all that it reads.
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
    """A part of a storage that is a tensor of its own: the box that it holds, and its bytes."""

    label: str
    box: Box
    bytes: int

    def taken(self, needed: Box) -> Ranges:
        """What is read of a part of which a box is needed; empty for all."""
        own = tuple(
            [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(self.box, needed, strict=True)]
        )
        return () if own == self.box else own


@dataclass(frozen=True, slots=True)
class Read:
    """Bytes that a piece reads of a part of a storage, in the box ``ranges``."""

    storage: str
    part: int
    bytes: int
    role: Role
    nest: int
    ranges: Ranges


class Pieces:
    """What the pieces of a network read and write; the same in every mini-batch. O(pieces x parts
    that each reads)."""

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
        self._reads: dict[int, list[list[Read]]] = {}

    def _cut_results(self) -> None:
        for group, cut in zip(self.fused, self.cuts, strict=True):
            for storage in (access.tensor for access in group.writes):
                size = self.graph.tensors[storage].bytes
                if len(cut.boxes) == 1:
                    self.parts_of(storage)
                else:
                    own = self._grids[storage] = cut.under(self.graph.tensors[storage].shape)
                    self.parts[storage] = [
                        Part(label_of(tile, own.tiles), box, own.amount_of_tile(size, tile))
                        for tile, box in enumerate(own.boxes)
                    ]

    def _cut_weights(self) -> None:
        """Cut what is there from the start like the first operator whose pieces each need a part of
        their own."""
        for number, (group, cut) in enumerate(zip(self.fused, self.cuts, strict=True)):
            for access in group.reads if cut.tiles > 1 else ():
                if (
                    access.tensor not in self.parts
                    and access.tensor not in self.outputs
                    and access.bytes == self.graph.tensors[access.tensor].bytes
                ):
                    self._cut_given(number, access.tensor)

    def _cut_given(self, number: int, storage: str) -> None:
        tensor = self.graph.tensors[storage]
        needed = self._needed(number, storage)
        if self.cuts[number].sums:
            needed = [box for box in needed if volume(box)]
        boxes = list(dict.fromkeys(needed))
        if tensor.kind is TensorKind.INPUT:
            grid = self._grids[storage] = _where_first_needed(boxes, tensor.shape)
            boxes = list(grid.boxes)
        volumes = [volume(box) for box in boxes]
        total = math.prod(tensor.shape)
        # Boxes that overlap, or leave something out, add up to another volume.
        if (
            len(boxes) < 2
            or sum(volumes) != total
            or 0 in volumes
            or (storage not in self._grids and not _disjoint(boxes))
        ):
            return
        until = [0, *itertools.accumulate(volumes)]
        sizes = [
            tensor.bytes * last // total - tensor.bytes * first // total
            for first, last in itertools.pairwise(until)
        ]
        self.parts[storage] = [
            Part(label_of(i, len(boxes)), box, size)
            for i, (box, size) in enumerate(zip(boxes, sizes, strict=True))
        ]

    def _needed(self, number: int, storage: str) -> list[Box]:
        """The part of a storage that each piece of an operator needs."""
        form, cut = self._divisible[number], self.cuts[number]
        assert form is not None
        links = [
            form.uses[storage].needed(cut.boxes, cut.summed(link)) for link in range(cut.links)
        ]
        return list(itertools.chain.from_iterable(zip(*links, strict=True)))

    def made(self, group: int, tile: int) -> int | None:
        """The part of its operators' results that a piece makes; None if it only adds to sums."""
        cut = self.cuts[group]
        return cut.part(tile) if cut.is_last(tile) else None

    def parts_of(self, storage: str) -> list[Part]:
        """Parts of a storage; one that nothing cuts is one part."""
        if storage not in self.parts:
            tensor = self.graph.tensors[storage]
            self.parts[storage] = [Part("", whole(tensor.shape), tensor.bytes)]
        return self.parts[storage]

    def reads(self, group: int, tile: int) -> list[Read]:
        """What a piece reads."""
        if group not in self._reads:
            self._reads[group] = self._read(group)
        return self._reads[group][tile]

    def _read(self, number: int) -> list[list[Read]]:
        group, tiles = self.fused[number], self.cuts[number].tiles
        result: list[list[Read]] = [[] for _ in range(tiles)]
        for access in group.reads:
            # What is whole reads all that it touches, whatever dimensions it might be cut along.
            shares = (
                [self._touched(access)]
                if tiles == 1
                else [self._boxed(access, box) for box in self._needed(number, access.tensor)]
            )
            for role, nest in operand_roles(group.nests, access):
                for own, found in zip(result, shares, strict=True):
                    own += [
                        Read(access.tensor, part, size, role, nest, ranges)
                        for part, size, ranges in found
                        if size
                    ]
        return result

    def _touched(self, access: Access) -> list[tuple[int, int, Ranges]]:
        """All parts of an operand, and the share of each in the bytes that are touched."""
        parts = self.parts_of(access.tensor)
        total = max(1, sum(part.bytes for part in parts))
        return [(i, -(-access.bytes * part.bytes // total), ()) for i, part in enumerate(parts)]

    def _boxed(self, access: Access, needed: Box) -> list[tuple[int, int, Ranges]]:
        """Parts of an operand that hold something of the box that a piece needs, the bytes of it,
        and the box."""
        if not volume(needed):
            return []
        found = list[tuple[int, int, Ranges]]()
        parts = self.parts_of(access.tensor)
        grid = self._grids.get(access.tensor)
        for index in range(len(parts)) if grid is None or len(parts) == 1 else grid.meeting(needed):
            part = parts[index]
            if common := shared(part.box, needed):
                size = -(-part.bytes * common // volume(part.box))
                found.append((index, size, part.taken(needed)))
        return found

    def nests(self, group: int, tile: int) -> tuple[LoopNest, ...]:
        """Loop nests of a piece."""
        cut, nests = self.cuts[group], self.fused[group].nests
        if cut.tiles == 1:
            return nests
        own = tuple(piece_of(nest, cut.shape, cut.box(tile)) for nest in nests)
        if not cut.sums:
            return own
        first, last = cut.summed(tile)
        return tuple(replace(nest, c=last - first) for nest in own)


def label_of(tile: int, tiles: int) -> str:
    """What is put behind the name of what is cut: which piece it is, of how many."""
    return "" if tiles == 1 else f"[{tile}/{tiles}]"


def _where_first_needed(boxes: Sequence[Box], shape: Sequence[int]) -> Grid:
    """The grid of a tensor of which the parts along every dimension begin where the one before
    ends, and end where a box does.

    Of rows that two pieces need, the first to come gets the band, and the next reads from both: so
    they are fetched once.
    """
    ends = [
        sorted({last for first, last in ranges if last > first})
        for ranges in zip(*boxes, strict=True)
    ]
    return Grid(
        tuple(shape), tuple((*own[:-1], extent) for own, extent in zip(ends, shape, strict=True))
    )


def _disjoint(boxes: Sequence[Box]) -> bool:
    """Whether no two boxes share an element. O(n^2) comparisons for n boxes, which differ along one
    or two dimensions."""
    return all(not shared(one, other) for one, other in itertools.combinations(boxes, 2))


def operand_roles(nests: Sequence[LoopNest], access: Access) -> list[tuple[Role, int]]:
    """Return an operand's roles in the loop nests; a tensor that is both factors of a product is
    fetched as each."""
    names = (access.tensor, *access.part_of)
    roles = [(Role.INPUT, i) for i, nest in enumerate(nests) if nest.input in names]
    roles += [(Role.WEIGHT, i) for i, nest in enumerate(nests) if nest.weight in names]
    return roles or [(Role.ONCE, -1)]


def divides_sums(target: Target) -> bool:
    """Whether operators may be cut along what they sum over: where all that a piece touches must
    lie in the fast memory together.

    Elsewhere what a core needs may stay in main memory, from where its private buffer is refilled,
    which holds the sums.
    """
    return not target.main.in_place


@dataclass(frozen=True, eq=False)
class DivisibleNetwork:
    """A network on a machine: ``source`` as it was read, ``graph`` with every tensor written once,
    and its fused operators.

    ``forms`` says how each fused operator divides, or None; ``plain`` how it is cut where it is not
    divided: only as far as it exceeds the fast memory.
    """

    source: Graph
    graph: Graph
    fused: Sequence[FusedOp]
    forms: Sequence[Divisible | None]
    plain: list[Grid]

    @staticmethod
    def of(source: Graph, target: Target, *, sums: bool = False) -> DivisibleNetwork:
        """Fuse a network's operators and look at each, with ``sums`` at what they sum over, too;
        O(operators + operands)."""
        graph = without_updates(source)
        fused = fuse(graph)
        forms = [divisible(graph, group, sums=sums) for group in fused]
        return DivisibleNetwork(source, graph, fused, forms, plain_cuts(graph, fused, target))


_MOST_TILES = 256
"""Tiles of one operator, at most."""
_MOST_READ = 8
"""Times the fast memory's bytes that all tiles may read of what they share, at most, for more than
two to fit at once."""
_SIDE_BY_SIDE = (16, 4, 3, 2, 1)
"""Numbers of tiles that should fit at once, tried in this order, so that one is fetched while
others are computed."""


@dataclass(frozen=True)
class Sizes:
    """Output channels of tiles that suit a machine: multiples of ``step``, and if more than one is
    at work ``least``.

    ``balance`` is the number of multiply-accumulates that all cores do while the main link brings a
    byte.
    """

    step: int = 1
    least: int = 1
    balance: float = 0.0


def sizes_for(target: Target) -> Sizes:
    """Tiles that fill the arrays of all cores, and that are not sooner done than all cores can read
    the other operand once more.

    A tile of ``k`` channels takes ``k`` multiply-accumulates for each element of what it reads as a
    whole; the least ``k`` is the rate of all cores over the bandwidth of the memory that they read
    it from.
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
    return Sizes(
        step, max(1, math.ceil(rate / bandwidth / step)) * step, rate / target.main.read_bandwidth
    )


def plain_cuts(graph: Graph, groups: Sequence[FusedOp], target: Target) -> list[Grid]:
    """How operators are cut that nothing else cuts: only as far as they exceed the fast memory."""
    sizes = sizes_for(target)
    return [
        _in_channels(graph, group, target.room, sizes) if target.room else WHOLE for group in groups
    ]


def _in_channels(graph: Graph, group: FusedOp, capacity: int, sizes: Sizes) -> Grid:
    """The fewest pieces along an operator's output channels of which several fit into ``capacity``
    bytes at once; whole if that is not needed or does not help.

    A piece reads its share of what divides by channel and all of everything else. Only an operator
    with a single ungrouped, non-recurrent loop nest is cut. Pieces have ``sizes``, unless none of
    them would fit.
    """
    total = sum(access.bytes for access in (*group.reads, *group.writes))
    form = None
    if total > capacity and len(group.nests) == 1 and group.nests[0].groups == 1:
        form = divisible(graph, group)
    loops = group.nests[0].loops if form is not None else ()
    if form is None or CHANNELS not in loops or loops.index(CHANNELS) not in form.axes:
        return WHOLE
    axis, nest = loops.index(CHANNELS), group.nests[0]
    extent, unit = form.shape[axis], form.step[axis]
    shared_bytes = sum(
        access.bytes for access in group.reads if not form.divides(access.tensor, axis)
    )
    own_bytes = total - shared_bytes
    if shared_bytes >= capacity:
        return WHOLE
    # Where the main link is what takes time, cores wait for bytes whatever the pieces are, and it
    # should not carry anything twice.
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

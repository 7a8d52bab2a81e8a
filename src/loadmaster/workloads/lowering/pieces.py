"""Parts of the tensors of a network, and what its pieces read and write of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Access, Graph, LoopNest, TensorKind
from loadmaster.workloads.job import Ranges, Role
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import Chains, Divisible, Grid, divisible, piece_of
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import (
    WHOLE,
    Split,
    operand_channels,
    plain_splits,
    result_channels,
)
from loadmaster.workloads.window import Box, Range, shared, volume, whole

Cut = Grid | Chains | Split


@dataclass(frozen=True)
class Cuts:
    """How the fused operators of one network are cut, and in which order their pieces become jobs;
    by default one operator after another.

    ``order`` lists (operator, piece); a piece comes after all that it reads.
    """

    cuts: Sequence[Cut]
    order: Sequence[tuple[int, int]] | None = None

    @property
    def steps(self) -> Sequence[tuple[int, int]]:
        """Pieces in the order of jobs."""
        if self.order is not None:
            return self.order
        return [(group, tile) for group, cut in enumerate(self.cuts) for tile in range(cut.tiles)]


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a storage that is a tensor of its own: the box that it holds of an array of
    ``shape``, and its bytes. That is the storage's shape but for parts over channels.
    """

    label: str
    shape: tuple[int, ...]
    box: Box
    bytes: int

    @property
    def place(self) -> tuple[tuple[int, ...], Ranges]:
        """Shape and ranges as tensors state them."""
        return self.shape, self.box if self.label else ()

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
        self.graph, self.fused, self.cuts, self.steps = graph, fused, chosen.cuts, chosen.steps
        self.outputs = {graph.tensors[name].storage for name in graph.outputs}
        self._divisible = [
            None if isinstance(cut, Split) else divisible(graph, f, sums=isinstance(cut, Chains))
            for f, cut in zip(fused, self.cuts, strict=True)
        ]
        self._splits: dict[str, Split] = {}
        self._grids: dict[str, Grid] = {}
        self.parts: dict[str, list[Part]] = {}
        self._cut_results()
        self._cut_weights()
        self._reads: dict[int, list[list[Read]]] = {}

    def _cut_results(self) -> None:
        for group, whole_cut in zip(self.fused, self.cuts, strict=True):
            cut = result_cut(whole_cut)
            for storage in (access.tensor for access in group.writes):
                size = self.graph.tensors[storage].bytes
                if cut.tiles == 1:
                    self.parts_of(storage)
                elif isinstance(cut, Split):
                    self._cut_channels(storage, cut, size, result_channels(self.graph, group))
                else:
                    self._grids[storage] = cut
                    self.parts[storage] = [
                        Part(
                            label_of(tile, cut.tiles),
                            cut.shape,
                            box,
                            cut.amount_of_tile(size, tile),
                        )
                        for tile, box in enumerate(cut.boxes)
                    ]

    def _cut_weights(self) -> None:
        """Cut what is there from the start like the first operator whose pieces each need a part of
        their own."""
        for number, (group, cut) in enumerate(zip(self.fused, self.cuts, strict=True)):
            for access in group.reads if cut.tiles > 1 else ():
                tensor = self.graph.tensors[access.tensor]
                if (
                    access.tensor in self.parts
                    or access.tensor in self.outputs
                    or access.bytes != tensor.bytes
                ):
                    continue
                if not isinstance(cut, Split):
                    self._cut_given(number, access.tensor)
                elif (
                    tensor.kind is TensorKind.WEIGHT
                    and access.tensor in group.by_channel
                    and access.bytes % cut.channels == 0
                ):
                    self._cut_channels(
                        access.tensor,
                        cut,
                        tensor.bytes,
                        operand_channels(self.graph, group, access.tensor),
                    )

    def _cut_channels(self, storage: str, cut: Split, size: int, channels: tuple[int, ...]) -> None:
        """Cut a storage over channels; ``channels`` says as which array it holds them, if that is
        known."""
        self._splits[storage] = cut
        shape = channels or (cut.channels,)
        self.parts[storage] = [
            Part(
                label_of(tile, cut.tiles),
                shape,
                in_channels(shape, cut.range(tile)),
                cut.amount_of_tile(size, tile),
            )
            for tile in range(cut.tiles)
        ]

    def _cut_given(self, number: int, storage: str) -> None:
        tensor = self.graph.tensors[storage]
        needed = (self._needed(number, storage, tile) for tile in range(self.cuts[number].tiles))
        boxes = list(
            dict.fromkeys(
                box for box in needed if volume(box) or not isinstance(self.cuts[number], Chains)
            )
        )
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
            Part(label_of(i, len(boxes)), tensor.shape, box, size)
            for i, (box, size) in enumerate(zip(boxes, sizes, strict=True))
        ]

    def _needed(self, number: int, storage: str, tile: int) -> Box:
        """The part of a storage that a piece needs."""
        form, cut = self._divisible[number], self.cuts[number]
        assert form is not None
        assert not isinstance(cut, Split)
        if isinstance(cut, Grid):
            return form.needed(self.graph, storage, cut.boxes[tile])
        return form.needed(self.graph, storage, cut.grid.boxes[cut.part(tile)], cut.summed(tile))

    def made(self, group: int, tile: int) -> int | None:
        """The part of its operators' results that a piece makes; None if it only adds to sums."""
        cut = self.cuts[group]
        if not isinstance(cut, Chains):
            return tile
        return cut.part(tile) if cut.is_last(tile) else None

    def parts_of(self, storage: str) -> list[Part]:
        """Parts of a storage; one that nothing cuts is one part."""
        if storage not in self.parts:
            tensor = self.graph.tensors[storage]
            self.parts[storage] = [Part("", tensor.shape, whole(tensor.shape), tensor.bytes)]
        return self.parts[storage]

    def reads(self, group: int, tile: int) -> list[Read]:
        """What a piece reads."""
        if group not in self._reads:
            self._reads[group] = [
                self._read(group, number) for number in range(self.cuts[group].tiles)
            ]
        return self._reads[group][tile]

    def _read(self, number: int, tile: int) -> list[Read]:
        group, cut = self.fused[number], self.cuts[number]
        # What is whole reads all that it touches, whatever dimensions it might be cut along.
        cut = cut if cut.tiles > 1 else WHOLE
        result: list[Read] = []
        for access in group.reads:
            shares = (
                self._channelled(group, cut, access, tile)
                if isinstance(cut, Split)
                else self._boxed(number, access, tile)
            )
            for role, nest in operand_roles(group.nests, access):
                result += [
                    Read(access.tensor, part, size, role, nest, ranges)
                    for part, size, ranges in shares
                    if size
                ]
        return result

    def _boxed(self, number: int, access: Access, tile: int) -> list[tuple[int, int, Ranges]]:
        """Parts of an operand that hold something of the box that a piece needs, the bytes of it,
        and the box."""
        needed = self._needed(number, access.tensor, tile)
        if not volume(needed):
            return []
        found = list[tuple[int, int, Ranges]]()
        parts, grid = self.parts_of(access.tensor), self._grids.get(access.tensor)
        shape = self.graph.tensors[access.tensor].shape
        for index in range(len(parts)) if grid is None or len(parts) == 1 else grid.meeting(needed):
            part = parts[index]
            if part.shape != shape:
                found.append((index, part.bytes, ()))
            elif common := shared(part.box, needed):
                size = -(-part.bytes * common // volume(part.box))
                found.append((index, size, part.taken(needed)))
        return found

    def _channelled(
        self, group: FusedOp, cut: Split, access: Access, tile: int
    ) -> list[tuple[int, int, Ranges]]:
        """Parts of an operand that a tile over channels reads, and the bytes and box of each."""
        parts = self.parts_of(access.tensor)
        source = self._splits.get(access.tensor)
        divides = cut.tiles > 1 and access.tensor in group.by_channel
        if divides and source is not None and source.channels == cut.channels:
            # Cut along the same channels: only the parts that hold the tile's own.
            each, own = access.bytes // cut.channels, cut.range(tile)
            return [
                (
                    i,
                    each * cut.overlap(tile, source, i),
                    parts[i].taken(in_channels(parts[i].shape, own)),
                )
                for i in cut.parts_met(tile, source)
            ]
        touched = (
            cut.amount_of_tile(access.bytes, tile) if divides and len(parts) == 1 else access.bytes
        )
        total = max(1, sum(part.bytes for part in parts))
        return [(i, -(-touched * part.bytes // total), ()) for i, part in enumerate(parts)]

    def nests(self, group: int, tile: int) -> tuple[LoopNest, ...]:
        """Loop nests of a piece."""
        cut, nests = self.cuts[group], self.fused[group].nests
        if cut.tiles == 1:
            return nests
        if isinstance(cut, Chains):
            first, last = cut.summed(tile)
            own = (piece_of(nest, cut.grid.shape, cut.grid.boxes[cut.part(tile)]) for nest in nests)
            return tuple(replace(nest, c=last - first) for nest in own)
        if isinstance(cut, Grid):
            return tuple(piece_of(nest, cut.shape, cut.boxes[tile]) for nest in nests)
        return tuple(replace(nest, k=cut.part(tile)) for nest in nests)


def result_cut(cut: Cut) -> Grid | Split:
    """How the result of an operator is cut: the sums of a chain are those of a part of it."""
    return cut.grid if isinstance(cut, Chains) else cut


def in_channels(shape: Sequence[int], channels: Range) -> Box:
    """The box of some channels of an array of outer x channels x inner elements, or of channels
    alone."""
    return tuple(
        channels if axis == len(shape) // 2 else (0, extent) for axis, extent in enumerate(shape)
    )


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
    plain: list[Cut]

    @staticmethod
    def of(source: Graph, target: Target, *, sums: bool = False) -> DivisibleNetwork:
        """Fuse a network's operators and look at each, with ``sums`` at what they sum over, too;
        O(operators + operands)."""
        graph = without_updates(source)
        fused = fuse(graph)
        forms = [divisible(graph, group, sums=sums) for group in fused]
        return DivisibleNetwork(source, graph, fused, forms, [*plain_splits(fused, target)])

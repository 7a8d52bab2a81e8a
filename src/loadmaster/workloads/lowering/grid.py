"""Grids that cut a fused operator along the dimensions of its result, and the boxes that each piece
needs."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.workloads.graph import Access, Graph, LoopNest, width_of
from loadmaster.workloads.lowering.fuse import FusedOp, remembered_by
from loadmaster.workloads.window import (
    ALL,
    SUMMED,
    Box,
    Shape,
    Window,
    Windows,
    hulls,
    matching_axes,
    operand_boxes,
    reshaped_boxes,
    volume,
    volumes,
    whole,
)

CHANNELS = "channels"
_MOST_KNOWN = 4096
"""Most cached boxes per :class:`Uses`."""


@dataclass(frozen=True)
class Grid:
    """The pieces of a result of some shape: ``ends[d]`` are the ends of the ranges along dimension
    ``d``, the last being its extent.

    If the reduction is split, each part of the result has a chain of pieces: a piece adds a range
    of the reduction to the sums of the previous piece, and the last one makes the part. ``sums``
    are the ends of these ranges, the last being the extent. Pieces are numbered chain by chain,
    parts with the last dimension fastest.
    """

    shape: Shape
    ends: tuple[tuple[int, ...], ...]
    sums: tuple[int, ...] = ()

    @cached_property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes of the parts of the result, which partition it."""
        return tuple(
            itertools.product(*(zip((0, *ends), ends, strict=False) for ends in self.ends))
        )

    @cached_property
    def tiles(self) -> int:
        """Number of pieces."""
        return math.prod(len(ends) for ends in self.ends) * self.links

    @cached_property
    def links(self) -> int:
        """Number of pieces in a chain."""
        return max(1, len(self.sums))

    def part(self, tile: int) -> int:
        """The part of the result that a piece works on."""
        return tile // self.links

    def box(self, tile: int) -> Box:
        """The box of that part."""
        return self.boxes[self.part(tile)]

    def summed(self, tile: int) -> tuple[int, ...]:
        """The range of the sum that a piece takes; empty for all."""
        link = tile % self.links
        return ((0, *self.sums)[link], self.sums[link]) if self.sums else ()

    def is_last(self, tile: int) -> bool:
        """Whether a piece makes the part of the result that it works on."""
        return (tile + 1) % self.links == 0

    def tile(self, at: Mapping[int, int]) -> int:
        """The number of the part with index ``at[axis]`` along some dimensions and 0 along the
        others."""
        number = 0
        for axis, ends in enumerate(self.ends):
            number = number * len(ends) + at.get(axis, 0)
        return number

    def under(self, shape: Shape) -> Grid:
        """The same parts under another shape of the same elements, which must have the cut
        dimensions."""
        at = matching_axes(shape, self.shape)
        ends = (self.ends[at[a]] if a in at else (extent,) for a, extent in enumerate(shape))
        return Grid(shape, tuple(ends))

    def parts_overlapping(self, box: Box) -> list[int]:
        """Numbers of the parts that overlap a box. O(parts found)"""
        numbers = [0]
        for ends, (first, last) in zip(self.ends, box, strict=True):
            own = (
                range(bisect_right(ends, first), bisect_left(ends, last) + 1)
                if last > first
                else ()
            )
            numbers = [number * len(ends) + at for number in numbers for at in own]
        return numbers

    @cached_property
    def _until(self) -> tuple[int, ...]:
        """Elements of all pieces before each, and of all."""
        return (0, *itertools.accumulate(volume(box) for box in self.boxes))

    def amount_of_tile(self, amount: int, tile: int) -> int:
        """The share of a piece in an amount, in proportion to the result that it makes (0 for all
        but the last of a chain); shares add up to the amount."""
        if not self.is_last(tile):
            return 0
        total, part = max(1, self._until[-1]), self.part(tile)
        return amount * self._until[part + 1] // total - amount * self._until[part] // total


WHOLE = Grid((), ())
"""The only piece of an operator that cannot be cut."""


@dataclass(frozen=True, eq=False)
class Uses:
    """How a group of operators reads an external storage: ``views`` are the shapes under which they
    read it, each with its windows.

    ``summed`` is the extent of the group's reduction, if that can be split, else 0.
    """

    shape: Shape
    views: tuple[tuple[Shape, Windows], ...]
    summed: int
    _known: dict[tuple[Box, tuple[int, ...]], Box] = field(default_factory=dict, init=False)
    """Cached boxes: successive candidate cuts share most of their pieces."""

    def needed(self, boxes: Sequence[Box], summed: tuple[int, ...] = ()) -> list[Box]:
        """The boxes of the storage that boxes of the result need, or that the pieces of their
        chains with the range ``summed`` need.

        A piece that is not the last of its chain only needs the factors of the reduction.
        """
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        known = self._known
        new = [box for box in boxes if (box, summed) not in known]
        if new:
            several = np.array(new, dtype=np.int64).reshape(len(new), -1, 2)
            found = self.needed_boxes(several, summed).tolist()
            for box, own in zip(new, found, strict=True):
                known[box, summed] = tuple([(first, last) for first, last in own])
        return [known[box, summed] for box in boxes]

    def needed_boxes(self, boxes: Ints, summed: tuple[int, ...] = ()) -> Ints:
        """As :meth:`needed`, for arrays of boxes, shape (boxes, dimensions, 2)."""
        found = []
        for own, windows in self.views:
            parts = operand_boxes(windows or (ALL,) * len(own), boxes, own)
            if summed and SUMMED in windows:
                parts[:, [window == SUMMED for window in windows]] = summed
            elif summed and summed[1] < self.summed:
                continue
            if own == self.shape:
                parts[volumes(parts) == 0] = 0
            else:
                parts = reshaped_boxes(parts, own, self.shape)
            found.append(parts)
        return (
            reduce(hulls, found) if found else np.zeros((len(boxes), len(self.shape), 2), np.int64)
        )


@dataclass(frozen=True)
class Divisible:
    """How a fused operator can be cut: the shape of its result, the dimensions that can be cut
    (``axes``), and the ``step`` of which pieces are multiples, by dimension.

    ``uses`` says, by storage, how the group reads it; storages with equal reads share one object.
    ``summed`` is the extent of the reduction, if that can be split, else 0.
    """

    shape: Shape
    axes: tuple[int, ...]
    step: tuple[int, ...]
    uses: dict[str, Uses] = field(default_factory=dict)
    summed: int = 0

    def grid(self, parts: dict[int, int]) -> Grid:
        """The grid with numbers of ``parts`` along some dimensions, as equal as whole steps
        allow."""
        ends = []
        for axis, (extent, step) in enumerate(zip(self.shape, self.step, strict=True)):
            steps = extent // step
            count = max(1, min(parts.get(axis, 1), steps)) if axis in self.axes else 1
            ends.append(
                tuple(
                    extent if part == count else steps * part // count * step
                    for part in range(1, count + 1)
                )
            )
        return Grid(self.shape, tuple(ends))

    def divides(self, storage: str, axis: int) -> bool:
        """Whether parts of the result along a dimension need different parts of an operand."""
        return all(
            any(window.axis == axis for window in windows)
            for _, windows in self.uses[storage].views
        )

    def along(self, axis: int, ends: tuple[int, ...]) -> Grid:
        """The grid of parts along one dimension with the given ends."""
        extents = (ends if d == axis else (extent,) for d, extent in enumerate(self.shape))
        return Grid(self.shape, tuple(extents))

    def chains(self, parts: dict[int, int], links: int) -> Grid:
        """The grid with numbers of ``parts`` along some dimensions, each made by a chain of
        ``links`` equal pieces."""
        ends = tuple(self.summed * link // links for link in range(1, links + 1))
        return replace(self.grid(parts), sums=ends if links > 1 else ())


def divisible(graph: Graph, group: FusedOp, *, sums: bool = False) -> Divisible | None:
    """How a group can be cut, cached on the group; None if it cannot.

    All operators of a group must have results of equal size. Along a dimension that is cut they
    must be element-wise in one another, so that a piece of the last operator needs just that piece
    of the others. If the first operator has several results, only the first may be needed. With
    ``sums`` the reduction may be split too.
    """
    return remembered_by(
        group, f"_{__name__}.divisible[{sums}]", lambda: _divisible(graph, group, sums)
    )


def _divisible(graph: Graph, group: FusedOp, sums: bool) -> Divisible | None:
    """Return how a group can be cut, as `divisible` describes, without the cache."""
    main = group.main
    if (
        not main.axes
        or not _only_first(group)
        or any(nest.repeats != 1 or not nest.loops for nest in main.nests)
    ):
        return None
    shape = graph.tensors[main.writes[0].tensor].shape
    axes = {
        axis
        for axis in main.axes
        if shape[axis] > 1 and all(nest.loops[axis] for nest in main.nests)
    }
    made: set[str] = set()
    uses: dict[str, list[tuple[str, Windows]]] = {}
    for op in group.ops:
        own = graph.tensors[op.writes[0].tensor].shape
        at = matching_axes(own, shape)
        axes &= {*at.values()}
        for read in op.reads:
            storage = graph.tensors[read.tensor].storage
            if storage in made:
                axes &= _element_by_element(graph, read, own, at)
            elif read.bytes:
                name = graph.seen(read).name
                windows: Windows | None = read.windows
                if own != shape:
                    windows = _by_axes(read.windows, own, at, graph.tensors[name].shape)
                if windows is None:
                    return None
                uses.setdefault(storage, []).append((name, windows))
        for write in op.writes[:1] if op is main else op.writes:
            tensor = graph.tensors[write.tensor]
            if (
                tensor.shape != own
                or math.prod(own) != math.prod(shape)
                or tensor.alias_of is not None
                or tensor.storage in uses
            ):
                return None
            made.add(write.tensor)
    if any(
        graph.tensors[name].count != graph.tensors[s].count
        for s, names in uses.items()
        for name, _ in names
    ):
        return None
    summed = _summed(graph, group, uses) if sums else 0
    if not axes and not summed:
        return None
    shared: dict[object, Uses] = {}
    own_uses = {}
    for storage, names in uses.items():
        views = tuple((graph.tensors[name].shape, windows) for name, windows in names)
        of = (graph.tensors[storage].shape, views)
        own_uses[storage] = shared.setdefault(of, Uses(*of, summed))
    return Divisible(shape, tuple(sorted(axes)), _steps(graph, group, len(shape)), own_uses, summed)


def _by_axes(
    windows: Sequence[Window], own: Sequence[int], at: Mapping[int, int], shape: Sequence[int]
) -> Windows | None:
    """Convert the windows of an operand to the dimensions of a reshaped result, ``at`` mapping old
    to new dimensions; None if a dimension without a counterpart needs a part of the operand."""
    found = []
    for window, extent in zip(windows, shape, strict=bool(windows)):
        if window.axis in at:
            window = replace(window, axis=at[window.axis])
        elif window.axis >= 0:
            if window.of(whole(own), extent) != (0, extent):
                return None
            window = ALL
        found.append(window)
    return tuple(found)


def _summed(graph: Graph, group: FusedOp, uses: Mapping[str, Sequence[tuple[str, Windows]]]) -> int:
    """The extent of an operator's reduction, if both factors of its only loop nest have a dimension
    for it; else 0."""
    nest = group.nests[0] if len(group.nests) == 1 else None
    if nest is None or nest.groups != 1 or not {nest.input, nest.weight} <= uses.keys():
        return 0
    found = {
        tuple(
            graph.tensors[name].shape[axis]
            for axis, window in enumerate(windows)
            if window == SUMMED
        )
        for storage in (nest.input, nest.weight)
        for name, windows in uses[storage]
    }
    return nest.c if found == {(nest.c,)} and nest.c > 1 else 0


def _only_first(group: FusedOp) -> bool:
    """Whether only the first result of the first operator is needed."""
    needed = {access.tensor for access in group.writes} | {
        read.tensor for op in group.ops for read in op.reads
    }
    return bool(group.main.writes) and not any(
        write.tensor in needed for write in group.main.writes[1:]
    )


def _element_by_element(
    graph: Graph, read: Access, shape: Shape, at: Mapping[int, int]
) -> set[int]:
    """Dimensions of a group's result along which an operator reads an operand element by element;
    ``at`` maps the operator's dimensions to the group's."""
    seen = graph.seen(read).shape
    if len(read.windows) != len(seen) or math.prod(seen) != math.prod(shape):
        return set()
    own = matching_axes(seen, shape)
    same = {axis for d, axis in own.items() if read.windows[d] == Window(axis)}
    others = {window.axis for d, window in enumerate(read.windows) if window.axis != own.get(d)}
    return {at[axis] for axis in (same - others) & at.keys()}


def _steps(graph: Graph, group: FusedOp, rank: int) -> tuple[int, ...]:
    """Numbers of elements, by dimension, of which pieces are multiples: whole groups of a grouped
    product, whole heads, whole bytes."""
    steps = list(group.main.steps) or [1] * rank
    for nest in group.main.nests:
        if nest.groups > 1 and CHANNELS in nest.loops and "groups" not in nest.loops:
            steps[nest.loops.index(CHANNELS)] = nest.k
    byte = max(
        8 // math.gcd(8, width_of(graph.tensors[access.tensor].dtype)) for access in group.writes
    )
    return tuple(math.lcm(step, byte) for step in steps)


def least_shares(graph: Graph, group: FusedOp) -> dict[str, float]:
    """Share of every storage that some piece of a fused operator reads, however small pieces are:
    strides may step over the rest, or never reach it. That of the operator that reads most."""
    shares: dict[str, float] = {}
    for op in group.ops:
        for access in op.reads:
            storage, share = graph.tensors[access.tensor].storage, 1.0
            if op.writes:
                shape = graph.tensors[op.writes[0].tensor].shape
                seen = graph.seen(access).shape
                for window, extent in zip(access.windows, seen, strict=bool(access.windows)):
                    share *= window.elements_read(shape, extent) / max(1, extent)
            shares[storage] = max(shares.get(storage, 0.0), share)
    return shares


def piece_of(
    nest: LoopNest, shape: Sequence[int], box: Box, summed: tuple[int, ...] = ()
) -> LoopNest:
    """The loop nest of a piece of the result; ``summed`` is the range of the sum that it takes,
    empty for all."""
    bounds: dict[str, Any] = {"c": summed[1] - summed[0]} if summed else {}
    for axis, (first, last) in enumerate(box):
        if last - first == shape[axis]:
            continue
        loop = nest.loops[axis]
        if loop == CHANNELS:
            loop = "groups" if nest.groups > 1 and "groups" not in nest.loops else "k"
        # The rounds of all pieces add up, also where a loop has fewer than the dimension: a
        # transposed convolution's, over what it reads.
        rounds = bounds.get(loop, getattr(nest, loop))
        bounds[loop] = rounds * last // shape[axis] - rounds * first // shape[axis]
    return replace(nest, **bounds)

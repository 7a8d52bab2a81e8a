"""Who waits for whom, however operators are cut, and which elements of results are paired."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Mask
from loadmaster.workloads.graph import Access, Graph
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible
from loadmaster.workloads.window import SUMMED, Window

NOWHERE = -1
"""The dimension along which all elements of a result are in pairs."""


@dataclass(frozen=True)
class Pairing:
    """Pairs of an element of a reader's result and one of a writer's, each of which is in as many
    as all others that are in any.

    The piece that makes the first waits for one that makes the second. All elements of the writer
    are in pairs, and of the reader a ``share``: those of a range along its dimension ``axis``.
    Elements of the writer may be paired as well in a part of it alone that is a range along one of
    its dimensions, if that is among the ``free`` ones, of all of which any element of the reader
    needs everything.
    """

    share: float
    axis: int
    free: frozenset[int]


def pairings(
    graph: Graph, fused: Sequence[FusedOp], forms: Sequence[Divisible | None]
) -> list[dict[int, Pairing]]:
    """For every operator those that it reads from, and how elements are paired, if they can be.
    O(operators x edges + extents of edges).

    Not paired are operators whose sums may be in parts: their pieces need next to nothing.
    """
    home = {access.tensor: number for number, group in enumerate(fused) for access in group.writes}
    found: list[dict[int, Pairing]] = [{} for _ in fused]
    for number, (group, form) in enumerate(zip(fused, forms, strict=True)):
        for access in group.reads:
            writer = home.get(access.tensor)
            if writer is None or writer >= number or access.tensor in group.by_channel:
                continue
            every = [*found[number].values()] if writer in found[number] else []
            every += [
                each for each in _of_access(graph, form, forms[writer], access) if each is not None
            ]
            if every:
                found[number][writer] = max(
                    every, key=lambda pairing: (pairing.share, len(pairing.free))
                )
    return found


def _of_access(
    graph: Graph, form: Divisible | None, made: Divisible | None, access: Access
) -> list[Pairing | None]:
    """How what is read of a storage is paired; only of an operator that can be cut it is known what
    elements need."""
    tensor = graph.tensors[access.tensor]
    # What has parts of no bytes may be read without waiting for them.
    if access.bytes <= 0 or tensor.bytes < math.prod(tensor.shape):
        return []
    if form is None:
        return (
            [Pairing(1.0, NOWHERE, frozenset(range(len(tensor.shape))))]
            if access.bytes == tensor.bytes
            else []
        )
    found = []
    for name, windows in form.uses.get(access.tensor, ()):
        shape = graph.tensors[name].shape
        # The same elements under another shape are paired as well.
        if form.summed == 0 and math.prod(shape) == math.prod(
            tensor.shape if made is None else made.shape
        ):
            pairing = _paired(form, windows or (Window(),) * len(shape), shape)
            keeps = (
                pairing is None
                or made is None
                or shape == made.shape
                or len(pairing.free) == len(shape)
            )
            found.append(
                pairing
                if keeps or pairing is None
                else Pairing(pairing.share, pairing.axis, frozenset())
            )
    return found


def _paired(form: Divisible, windows: Sequence[Window], shape: Sequence[int]) -> Pairing | None:
    """Pairs along each dimension by itself, as each follows another dimension of the reader's
    result, or none."""
    axes = [window.axis for window in windows if window.axis >= 0]
    ranges = [_range(form, window, extent) for window, extent in zip(windows, shape, strict=True)]
    if len(set(axes)) < len(axes) or None in ranges:
        return None
    partial = [
        (window.axis, own)
        for window, own in zip(windows, ranges, strict=True)
        if own is not None and own < 1.0
    ]
    if len(partial) > 1:
        return None
    free = frozenset(
        d for d, window in enumerate(windows) if window.axis < 0 or window.axis not in form.axes
    )
    axis, share = partial[0] if partial else (NOWHERE, 1.0)
    return Pairing(share, axis, free)


def _range(form: Divisible, window: Window, extent: int) -> float | None:
    """The share of a dimension of the reader, one range, that is paired with all of the one that a
    window leads to; None if none is.

    Range and dimension are stretched to the same length, so that each of both lies over those with
    which it is paired.
    """
    if window.axis < 0:
        return 1.0
    length = form.shape[window.axis]
    if window.axis not in form.axes:
        return (
            1.0
            if window.of(tuple((0, size) for size in form.shape), extent) == (0, extent)
            else None
        )
    begins, ends = window.of_each(length, extent)
    able = np.flatnonzero(begins < ends)
    if not len(able) or able[-1] - able[0] + 1 != len(able):
        return None
    count = np.arange(len(able), dtype=np.int64)
    over = (begins[able] <= count * extent // len(able)) & (
        -(-(count + 1) * extent // len(able)) <= ends[able]
    )
    return len(able) / length if bool(over.all()) else None


@dataclass(frozen=True)
class Need:
    """What the pieces of one operator need of what another writes, whatever the pieces of both are.

    ``some``: every piece needs something. ``all_parts``: every element is needed by some piece.
    ``whole``: every piece needs everything.
    """

    some: bool = False
    all_parts: bool = False
    whole: bool = False

    def __or__(self, other: Need) -> Need:
        return Need(
            self.some or other.some, self.all_parts or other.all_parts, self.whole or other.whole
        )


_EVERYTHING = Need(True, True, True)


@dataclass(frozen=True)
class Precedence:
    """What holds between the fused operators of a network under every cut.

    ``needs[v]`` lists the operators that ``v`` reads from, with what its pieces need of them.
    ``after[u, v]``: every piece of ``v`` is one of ``u`` or starts after some piece of ``u`` has
    ended. ``before[u, v]``: when all of ``v`` has ended, so has all of ``u``. Both have the shape
    (operators, operators). Where sums may be in parts, some pieces need nothing but a part of each
    factor.
    """

    needs: list[dict[int, Need]]
    after: Mask
    before: Mask

    @staticmethod
    def of(graph: Graph, fused: Sequence[FusedOp], forms: Sequence[Divisible | None]) -> Precedence:
        """Find it from what parts of results need of operands. O(operators x edges + extents of
        edges)."""
        home = {
            access.tensor: number for number, group in enumerate(fused) for access in group.writes
        }
        needs: list[dict[int, Need]] = [{} for _ in fused]
        for number, (group, form) in enumerate(zip(fused, forms, strict=True)):
            for access in group.reads:
                writer = home.get(access.tensor)
                tensor = graph.tensors[access.tensor]
                # What has parts of no bytes may be read without waiting for them.
                if (
                    writer is None
                    or writer >= number
                    or access.bytes <= 0
                    or tensor.bytes < math.prod(tensor.shape)
                ):
                    continue
                need = _need(graph, group, form, access.tensor, access.bytes == tensor.bytes)
                needs[number][writer] = needs[number].get(writer, Need()) | need
        after, before = np.eye(len(fused), dtype=np.bool_), np.eye(len(fused), dtype=np.bool_)
        for number, own in enumerate(needs):
            for writer, need in own.items():
                if need.some:
                    after[:, number] |= after[:, writer]
                if need.all_parts:
                    before[:, number] |= before[:, writer]
        return Precedence(needs, after, before)


def _need(
    graph: Graph, group: FusedOp, form: Divisible | None, storage: str, complete: bool
) -> Need:
    """What pieces of a group need of a storage; only of one that can be cut the pieces are not
    known."""
    by_channel = storage in group.by_channel
    if form is None:
        return Need(True, complete, False) if by_channel else _EVERYTHING
    found = Need()
    for name, windows in form.uses.get(storage, ()):
        use = _use(form, windows, graph.tensors[name].shape)
        if form.summed and SUMMED not in windows:
            # Only the last piece of a chain needs what follows the sum.
            use = Need(False, use.all_parts, False)
        found |= use
    return Need(found.some, found.all_parts, found.whole and not by_channel)


def _use(form: Divisible, windows: Sequence[Window], shape: Sequence[int]) -> Need:
    """What pieces need through windows: of each dimension by itself, as each follows another
    dimension of the result, or none."""
    if not windows:
        return _EVERYTHING
    every = [_along(form, window, extent) for window, extent in zip(windows, shape, strict=True)]
    axes = [window.axis for window in windows if window.axis >= 0]
    apart = len(set(axes)) == len(axes)
    return Need(
        all(n.some for n in every),
        apart and all(n.all_parts for n in every),
        all(n.whole for n in every),
    )


def _along(form: Divisible, window: Window, extent: int) -> Need:
    """The same of one dimension, for pieces as short as one element where the result can be cut
    along it."""
    if window.axis < 0:
        return Need(True, True, False) if form.summed and window == SUMMED else _EVERYTHING
    length = form.shape[window.axis]
    if window.axis not in form.axes:
        begin, end = window.of(tuple((0, size) for size in form.shape), extent)
        whole = (begin, end) == (0, extent)
        return Need(begin < end, whole, whole)
    begins, ends = window.of_each(length, extent)
    reached = np.concatenate([[0], np.maximum.accumulate(ends)])
    covered = bool((begins <= reached[:-1]).all()) and int(reached[-1]) == extent
    return Need(
        bool((begins < ends).all()), covered, bool((begins == 0).all() and (ends == extent).all())
    )

"""Who waits for whom, however operators are cut."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible
from loadmaster.workloads.window import SUMMED, Window


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
                need = _need(form, access.tensor)
                needs[number][writer] = needs[number].get(writer, Need()) | need
        after = np.eye(len(fused), dtype=np.bool_)
        before = np.eye(len(fused), dtype=np.bool_)
        for number, own in enumerate(needs):
            for writer, need in own.items():
                if need.some:
                    after[:, number] |= after[:, writer]
                if need.all_parts:
                    before[:, number] |= before[:, writer]
        return Precedence(needs, after, before)


def _need(form: Divisible | None, storage: str) -> Need:
    """What pieces of a group need of a storage; only of one that can be cut the pieces are not
    known."""
    if form is None:
        return _EVERYTHING
    found = Need()
    for shape, windows in form.uses[storage].views if storage in form.uses else ():
        use = _use(form, windows, shape)
        if form.summed and SUMMED not in windows:
            # Only the last piece of a chain needs what follows the sum.
            use = Need(False, use.all_parts, False)
        found |= use
    return found


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


MOST_OPERATORS = 1000
"""Of one network: beyond, chains are not looked at, whose sets of operators take the square of that
in memory."""


@dataclass(frozen=True)
class Demands:
    """What the operators of one mini-batch of a network need, in picoseconds, shape (operators,)
    but for ``busy``.

    ``busy[i, v]``: of a mean of resources, the i-th of several, which work on ``v`` takes at least.
    ``inbound`` and ``outbound`` are time of the main link: for weights and inputs, each counted for
    one operator that reads it, and for outputs. ``main[i]`` is the main link's weight in the i-th
    mean, and ``given[i]`` what a second of ``inbound`` adds to it: what comes in may be read over
    the main link meanwhile, so that only what exceeds the price of reading it over the cheaper link
    counts. ``least`` is what the shortest piece of an operator takes. ``held`` is the time of the
    main link that fills the fast memory.
    """

    busy: Floats
    main: Floats
    given: Floats
    inbound: Floats
    outbound: Floats
    least: Floats
    held: float


def chain_bound(precedence: Precedence, demands: Demands) -> int:
    """Picoseconds that one mini-batch takes at least, whatever the cuts, the order, the cores and
    the memories.

    Let ``head[u]`` be a time before which no piece of ``u`` starts, and ``end[v]`` one before which
    not all of ``v`` has ended. Operators that are after ``u`` and before ``v``
    (:class:`~loadmaster.planning.cutting.precedence.Precedence`) run between these two, all of
    them, so that ``end[v] >= head[u] + W``, where ``W`` is what they need of any mean of the
    machine's resources, each of which has only that time. Of what they read from main memory, no
    more than fills the fast memory can be there when ``u`` begins; if ``u`` is everything, nothing
    can. Further

    - ``head[v] >= end[u]`` where every piece of ``v`` needs all of ``u``;
    - ``head[v] >= head[u] + least[u]`` where every piece of ``v`` needs some of ``u``;
    - ``end[v] >= end[u] + least[v]`` where every element of ``u`` is needed by some piece of ``v``:
      one that needs what was made last.

    O(operators^2) memory, and O(operators^3) time in a matrix product.
    """
    count = len(demands.least)
    # The first row is a start that all come after, the last column an end that all come before.
    after = np.vstack([np.ones(count, dtype=np.bool_), precedence.after])
    before = np.hstack([precedence.before, np.ones((count, 1), dtype=np.bool_)])
    linked = (after.astype(np.float64) @ before) > 0
    between = _between(after, before, demands)
    head, end = np.zeros(count + 1), np.zeros(count + 1)
    for v in range(count):
        for u, need in precedence.needs[v].items():
            if need.some:
                head[v + 1] = max(head[v + 1], head[u + 1] + demands.least[u])
            if need.whole:
                head[v + 1] = max(head[v + 1], end[u])
        first = np.flatnonzero(linked[:, v])
        end[v] = max(head[v + 1] + demands.least[v], float((head[first] + between[first, v]).max()))
        for u, need in precedence.needs[v].items():
            if need.all_parts:
                end[v] = max(end[v], end[u] + demands.least[v])
    longest = max(float(end[:count].max(initial=0.0)), float((head + between[:, count]).max()))
    return int(longest * (1 - _SLACK))


def _between(after: Mask, before: Mask, demands: Demands) -> Floats:
    """Time that what is after one operator and before another needs, shape (operators + 1,
    operators + 1)."""
    sets = after.astype(np.float64)
    inbound = (sets * demands.inbound) @ before
    inbound[1:] = np.maximum(0.0, inbound[1:] - demands.held)
    # An output that is not awaited by the end of its operator may leave later.
    outbound = np.zeros_like(inbound)
    outbound[:, -1] = sets @ demands.outbound
    prices = zip(demands.busy, demands.main, demands.given, strict=True)
    means = [
        (sets * busy) @ before + main * outbound + given * inbound for busy, main, given in prices
    ]
    return np.asarray(np.maximum.reduce(means), dtype=np.float64)


def sums_by_operator(values: Floats, operator: Sequence[int] | Ints, count: int) -> Floats:
    """Sums of what each job needs over the jobs of every operator."""
    return np.bincount(
        np.asarray(operator, dtype=np.int64), weights=values, minlength=count
    ).astype(np.float64)


_SLACK = 1e-11
"""Relatively more than sums of so many numbers may be off in floating point."""

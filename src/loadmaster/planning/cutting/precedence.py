"""Precedence between operators that holds for every cut, and the chain bound that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Mask
from loadmaster.planning.cutting.banding import MOST_ROWS
from loadmaster.workloads.lowering.grid import Divisible
from loadmaster.workloads.lowering.pieces import DivisibleNetwork
from loadmaster.workloads.window import SUMMED, Window


@dataclass(frozen=True)
class Need:
    """How the pieces of one operator depend on another operator, for every cut of both.

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
    """Precedence between the fused operators of a network under every cut.

    ``needs[v]``: the operators that ``v`` reads from, with the dependency on each. ``after[u, v]``:
    ``u`` is ``v``, or every piece of ``v`` starts after some piece of ``u`` has ended. ``before[u,
    v]``: when all of ``v`` has ended, so has all of ``u``. Both have the shape (operators,
    operators). If reductions may be split, some pieces depend only on parts of both factors.
    """

    needs: list[dict[int, Need]]
    after: Mask
    before: Mask

    @staticmethod
    def of(network: DivisibleNetwork) -> Precedence:
        """Derive the precedence from the windows of operands. O(operators x edges + extents of
        edges)."""
        fused = network.fused
        needs: list[dict[int, Need]] = [{} for _ in fused]
        for number, (group, form) in enumerate(zip(fused, network.forms, strict=True)):
            for access in group.reads:
                writer = network.home.get(access.tensor)
                tensor = network.graph.tensors[access.tensor]
                # Parts without bytes are not waited for.
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
    """The dependency of a group's pieces on a storage; of a group that cannot be cut: on all of
    it."""
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
    """The dependency through windows, from that of each dimension alone: different dimensions of an
    operand follow different dimensions of the result, or none."""
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
    """The dependency along one dimension, for pieces of one element where the result can be cut
    along it."""
    if window.axis < 0:
        return Need(True, True, False) if form.summed and window == SUMMED else _EVERYTHING
    length = form.shape[window.axis]
    if window.axis not in form.axes:
        begin, end = window.of(tuple((0, size) for size in form.shape), extent)
        whole = (begin, end) == (0, extent)
        return Need(begin < end, whole, whole)
    if length > MOST_ROWS:
        return Need()
    begins, ends = window.of_each(length, extent)
    reached = np.concatenate([[0], np.maximum.accumulate(ends)])
    covered = bool((begins <= reached[:-1]).all()) and int(reached[-1]) == extent
    return Need(
        bool((begins < ends).all()), covered, bool((begins == 0).all() and (ends == extent).all())
    )


MOST_OPERATORS = 1000
"""Most operators of a network for which the chain bound is computed, as it takes the square of that
in memory."""


@dataclass(frozen=True)
class Demands:
    """Needs of the operators of one mini-batch of a network, in picoseconds, shape (operators,) but
    for ``busy``.

    ``busy[i, v]``: least time of operator ``v`` on the i-th weighted mean of the resources.
    ``inbound`` and ``outbound``: time of the main link for weights and inputs, each counted at one
    operator that reads it, and for outputs. ``main[i]``: weight of the main link in the i-th mean.
    ``given[i]``: what a second of ``inbound`` adds to the i-th mean; bytes that come in may at once
    be read over the main link, so only the excess over reading them on the cheaper link counts.
    ``least``: time of the shortest piece of an operator. ``held``: time of the main link that fills
    the fast memory.
    """

    busy: Floats
    main: Floats
    given: Floats
    inbound: Floats
    outbound: Floats
    least: Floats
    held: float


def chain_bound(precedence: Precedence, demands: Demands) -> int:
    """Lower bound of the time of one mini-batch in picoseconds, for all cuts, orders, cores and
    placements.

    Let ``head[u]`` be a lower bound of the first start of a piece of ``u``, and ``end[v]`` one of
    the end of all of ``v``. All operators that are after ``u`` and before ``v``
    (:class:`~loadmaster.planning.cutting.precedence.Precedence`) run between the two. So ``end[v]
    >= head[u] + W``, where ``W`` is their need of any weighted mean of the machine's resources. Of
    the weights and inputs that they read, at most as much as fills the fast memory can be there
    when ``u`` begins; at the start of the plan, nothing. Further

    - ``head[v] >= end[u]`` where every piece of ``v`` needs all of ``u``;
    - ``head[v] >= head[u] + least[u]`` where every piece of ``v`` needs some of ``u``;
    - ``end[v] >= end[u] + least[v]`` where every element of ``u`` is needed by some piece of ``v``,
      so that one piece of ``v`` follows the last of ``u``.

    O(operators^2) memory, and O(operators^3) time in a matrix product.
    """
    count = len(demands.least)
    # The first row is a virtual start before all operators, the last column a virtual end.
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
    """Time that the operators after one and before another need, shape (operators + 1, operators +
    1)."""
    sets = after.astype(np.float64)
    inbound = (sets * demands.inbound) @ before
    inbound[1:] = np.maximum(0.0, inbound[1:] - demands.held)
    # Outputs must have left at the end of the plan only.
    outbound = np.zeros_like(inbound)
    outbound[:, -1] = sets @ demands.outbound
    prices = zip(demands.busy, demands.main, demands.given, strict=True)
    means = [
        (sets * busy) @ before + main * outbound + given * inbound for busy, main, given in prices
    ]
    return np.asarray(np.maximum.reduce(means), dtype=np.float64)


_SLACK = 1e-11
"""Relative margin for the rounding of floating-point sums."""

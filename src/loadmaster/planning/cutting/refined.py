"""Ways to cut that differ a little from those chosen: pieces joined, halved or moved, and pieces
that follow those that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from loadmaster.planning.cutting.choice import Choosable, Chosen, CutChoice
from loadmaster.planning.cutting.options import (
    Option,
    costed_grids,
    first_boxes,
    piece_axes,
    sizes_of,
)
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.grid import Divisible, Grid, needed_boxes
from loadmaster.workloads.lowering.pieces import Cut

_MOST_PIECES = 32
"""Of an operator that differs from what was chosen: more pay for starting."""
_MOST_SIZES = 128
"""Of a dimension that is followed to what it reads; longer ones in larger steps."""


def refined(choice: CutChoice, chosen: Chosen, target: Target) -> CutChoice:
    """The same choice with what was chosen as the first option of every operator, and then also
    what differs from it a little.

    What is offered anyhow is as balanced as can be for operators by themselves. Together, a network
    begins earlier if its first pieces are shorter, ends earlier if its last ones are, and a piece
    begins earlier if it needs nothing of the piece after the one that it waits for. O(operators x
    pieces).
    """
    networks = []
    for network, first in zip(choice.networks, choice.options_of(chosen), strict=True):
        own = [option.cut for option in first]
        offered = list(
            dict.fromkeys(
                (number, grid)
                for number in range(len(own))
                for grid in _alike(network, own, number)
            )
        )
        options = [[now] for now in first]
        for (number, _), option in zip(
            offered,
            costed_grids(network.graph, network.fused, network.forms, offered, target),
            strict=True,
        ):
            # As elsewhere: what is streamed cannot be fetched ahead of its use.
            if options[number][0].costs.stream.any() or not option.costs.stream.any():
                options[number].append(option)
        known = [
            _distinct([*some, *before])
            for some, before in zip(options, network.options, strict=True)
        ]
        networks.append(Choosable(network.graph, network.fused, network.forms, known))
    return CutChoice(networks, target, choice.mini_batches, choice.effort)


def _distinct(options: Sequence[Option]) -> list[Option]:
    """Options of which no two cut alike: the first of those that do."""
    found: dict[Cut, Option] = {}
    for option in options:
        found.setdefault(option.cut, option)
    return list(found.values())


def _alike(network: Choosable, cuts: Sequence[Cut], number: int) -> Iterator[Grid]:
    """Grids of an operator that differ a little from the one it has, or from those of what it
    reads."""
    form = network.forms[number]
    if form is None:
        return
    own = _axis(cuts[number])
    ways = [(own[0], ends) for ends in _moved(own[1], form.step[own[0]])] if own is not None else []
    ways += _following(network, cuts, number, form)
    for axis, inner in ways:
        step, extent = form.step[axis], form.shape[axis]
        ends = tuple(
            sorted(
                {end // step * step for end in inner if step <= end < extent // step * step}
                | {extent}
            )
        )
        if 1 < len(ends) <= _MOST_PIECES:
            yield Grid(
                form.shape,
                tuple(ends if d == axis else (size,) for d, size in enumerate(form.shape)),
            )


def _axis(cut: Cut) -> tuple[int, tuple[int, ...]] | None:
    """The dimension along which a grid is cut, and where its pieces end; None if it is not cut
    along one."""
    axes = (
        [axis for axis, ends in enumerate(cut.ends) if len(ends) > 1]
        if isinstance(cut, Grid)
        else []
    )
    return (axes[0], cut.ends[axes[0]]) if isinstance(cut, Grid) and len(axes) == 1 else None


def _halves(ends: Sequence[int]) -> list[int]:
    return [(begin + end) // 2 for begin, end in zip((0, *ends[:-1]), ends, strict=True)]


def _moved(ends: Sequence[int], step: int) -> Iterator[list[int]]:
    """Where pieces end, but for the last, if the first, the last, or all are joined, halved,
    shorter or a step further."""
    inner, halves = list(ends[:-1]), _halves(ends)
    yield from (inner[1:], inner[:-1], inner[1::2])
    yield from ([halves[0], *inner], [*inner, halves[-1]], [*inner, *halves])
    yield from ([halves[0], *inner[1:]], [*inner[:-1], halves[-1]])
    yield from ([end - step for end in inner], [end + step for end in inner])


def _following(
    network: Choosable, cuts: Sequence[Cut], number: int, form: Divisible
) -> Iterator[tuple[int, list[int]]]:
    """Dimensions, and ends of pieces that each need no more than the pieces up to one, or every
    few, of what is made last for them."""
    group, graph, home = network.fused[number], network.graph, network.home
    storage = max(
        (access.tensor for access in group.reads if access.tensor in home),
        key=home.__getitem__,
        default=None,
    )
    if storage is None:
        return
    made, source = network.forms[home[storage]], _axis(cuts[home[storage]])
    if made is None or source is None or made.shape != graph.tensors[storage].shape:
        return
    for axis in piece_axes(form, group):
        sizes = sizes_of(form.shape[axis], form.step[axis], _MOST_SIZES)
        needed = needed_boxes(form, graph, storage, first_boxes(form, axis, sizes))[:, source[0], 1]
        if needed[0] < needed[-1]:
            able = np.searchsorted(np.maximum.accumulate(needed), source[1], side="right")
            ends = [int(sizes[count - 1]) for count in able.tolist() if count]
            for some in (ends, ends[1::2], ends[::2], ends[2::3], [*ends, *_halves(ends)]):
                yield axis, some

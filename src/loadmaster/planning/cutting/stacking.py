"""The cuts and the order of pieces that stacks of operators stand for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadmaster.planning.cutting.banding import Network, Stack
from loadmaster.workloads.lowering.grid import CHANNELS, Grid
from loadmaster.workloads.lowering.pieces import Cut, Cuts
from loadmaster.workloads.lowering.split import Split


def stacked(network: Network, stacks: Sequence[Stack], plain: Sequence[Cut]) -> Cuts:
    """The cuts and the order of jobs that stacks stand for; an operator that is a stack of its own
    in one band stays as in ``plain``."""
    cuts = [_boxed(network, number, cut) for number, cut in enumerate(plain)]
    order: list[tuple[int, int]] = []
    for stack in stacks:
        numbers = range(stack.first, stack.last)
        if stack.is_whole:
            order += [(number, tile) for number in numbers for tile in range(cuts[number].tiles)]
            continue
        grids = _grids(network, stack)
        cuts[stack.first : stack.last] = [grids[number].grid for number in numbers]
        order += _steps_through(stack, grids)
    return Cuts(cuts, order)


def _steps_through(stack: Stack, grids: Mapping[int, _BandGrid]) -> Iterator[tuple[int, int]]:
    """Operators and pieces of a stack in their order: stripe by stripe, or part by part of the
    channels, all bands of each."""
    numbers, steps = range(stack.first, stack.last), len(grids[stack.first].bands)
    for part, stripe, turn in itertools.product(
        range(stack.channels), range(stack.stripes), range(steps + stack.pipelined * len(grids))
    ):
        for behind, number in enumerate(numbers):
            step = turn - stack.pipelined * behind
            if 0 <= step < steps:
                yield from ((number, tile) for tile in grids[number].tiles(part, stripe, step))


@dataclass(frozen=True)
class _BandGrid:
    """The grid of an operator's bands; ``bands[step]`` is the one of a step, None if the step is
    empty.

    Across them ``stripes`` name the pieces of each stripe along the dimension ``across``.
    """

    grid: Grid
    rows: int | None
    channels: int | None
    bands: Sequence[int | None]
    across: int | None
    stripes: Sequence[Sequence[int]]

    def tiles(self, part: int, stripe: int, step: int) -> Iterator[int]:
        """The pieces of a part of the channels, a stripe and a step."""
        band = self.bands[step]
        for place in () if band is None else self.stripes[stripe]:
            at = ((self.channels, part), (self.rows, band), (self.across, place))
            yield self.grid.tile(
                {axis: index for axis, index in at if axis is not None and index is not None}
            )


def _grids(network: Network, stack: Stack) -> dict[int, _BandGrid]:
    """The grids of a stack's operators."""
    seen = network.along(stack.columns)
    first, last = stack.first, stack.last
    if seen.rows(first) is None:
        return {first: _grid(seen, first, (1,), stack.channels)}
    ends = network.problem.ends(first, last, stack.bands, stack.columns)
    if stack.stripes == 1:
        return {
            first + k: _grid(seen, first + k, own, stack.channels) for k, own in enumerate(ends)
        }
    found = {}
    stripes = network.problem.stripes(first, last, stack.stripes, not stack.columns)
    for number, own, reached, kept in zip(range(first, last), ends, *stripes, strict=True):
        # A stripe is a piece that no later one needs, then its halo.
        pieces = [
            tuple(dict.fromkeys(at for at in (halo, end) if at > begin))
            for begin, halo, end in zip([0, *reached[:-1]], kept, reached, strict=True)
        ]
        found[number] = _grid(seen, number, own, 1, seen.across.rows(number), pieces)
    return found


def _grid(
    network: Network,
    number: int,
    ends: Sequence[int],
    channels: int,
    across: int | None = None,
    stripes: Sequence[Sequence[int]] = (),
) -> _BandGrid:
    """The grid of an operator's bands, and of pieces across them that end where ``stripes`` say."""
    form, rows, outputs = network.forms[number], network.rows(number), network.channels(number)
    assert form is not None
    filled = tuple(dict.fromkeys(end for end in ends if end))
    parts = dict(enumerate(form.grid({} if outputs is None else {outputs: channels}).ends))
    if rows is not None:
        parts[rows] = filled
    if across is not None:
        parts[across] = tuple(itertools.chain.from_iterable(stripes))
    bands = [
        filled.index(end) if end > before else None
        for before, end in itertools.pairwise((0, *ends))
    ]
    until = list(itertools.accumulate(map(len, stripes), initial=0))
    places = [range(first, last) for first, last in itertools.pairwise(until)] or [range(1)]
    return _BandGrid(
        Grid(form.shape, tuple(parts.values())),
        rows,
        outputs if channels > 1 else None,
        bands,
        across,
        places,
    )


def _boxed(network: Network, number: int, cut: Cut) -> Cut:
    """The same cut as a grid where there is one, so that a band that reads the result reads only
    the rows that it needs."""
    form, nests = network.forms[number], network.fused[number].nests
    if (
        not isinstance(cut, Split)
        or cut.tiles == 1
        or form is None
        or not nests
        or CHANNELS not in nests[0].loops
    ):
        return cut
    axis = nests[0].loops.index(CHANNELS)
    return form.grid({axis: cut.tiles}) if axis in form.axes else cut

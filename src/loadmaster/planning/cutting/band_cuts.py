"""Ways to cut networks into bands for a small fast memory.

Which operators run as stacks of bands, so that what lies between them never leaves the fast
memory.

Over all ways to cover the operators in order by stacks s, each in so many bands, and the results k
that are kept in the fast memory between two stacks::

    minimise    sum over s of  bytes(s, k) + price x seconds(s)
    subject to  inside(s, step) + kept + weights that stay <= room    at every step of every s

Bytes cross the main link, seconds are of all cores together. Fuse depth and tile size are axes of
DeFiNES (HPCA 2023), with a cache along one axis. Native code finds the optimum by dynamic
programming (``src/native/cutting/stacks.cpp``); here operators become arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.core.units import format_bytes
from loadmaster.planning.cutting.banding import Network, Stack
from loadmaster.planning.cutting.choice import alive_between
from loadmaster.planning.cutting.way_costs import way_costs
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork
from loadmaster.workloads.window import volume, whole


@dataclass(frozen=True)
class Choice:
    """Stacks that cover a network in order, and by the model the bytes that cross the main link,
    the seconds that all cores work, and the ``cost`` of both."""

    stacks: tuple[Stack, ...]
    cost: float
    bytes: float
    seconds: float


class StackModel:
    """What stacks of a network take on a machine; ``plain`` is how operators are cut that are in no
    stack. Work of the cores counts ``price`` bytes a second."""

    def __init__(
        self, network: Network, target: Target, plain: Sequence[Grid], price: float = 0.0
    ) -> None:
        self.network = network
        ways = [way_costs(axis, target) for axis in (network.along(False), network.along(True))]

        def columns(name: str) -> list[np.ndarray]:
            """A field of all operators, for rows and for columns."""
            return [np.concatenate([getattr(own, name).ravel() for own in along]) for along in ways]

        # Pieces start meanwhile: else many small ones would cost nothing.
        start_up = sum(core.start_up for core in target.cores) / len(target.cores) ** 2
        reads = [(n, a.tensor) for n, group in enumerate(network.fused) for a in group.reads]
        self._costs: dict[str, Any] = {
            "way_first": [
                np.cumsum([0, *(len(own.bands) for own in along)], dtype=np.int64) for along in ways
            ],
            **{name: columns(name) for name in ("bands", "channels", "beside", "alone", "refill")},
            "by_channel": np.array(
                [network.divides_by_channel(*read) for read in reads], dtype=np.int64
            ),
            "plain_pieces": np.array([cut.tiles for cut in plain], dtype=np.int64),
            "plain_times": np.array(
                [_times_read(network, plain[n], n, name) for n, name in reads], dtype=np.float64
            ),
            "cores": len(target.cores),
            "alignment": target.near.alignment,
            "bytes_of_piece": start_up * target.main.read_bandwidth,
            "price": price,
        }

    def best(
        self, rooms: Sequence[int], *, pipelined: bool = False, column_tiles: Sequence[int] = ()
    ) -> list[Choice]:
        """The stacks of least cost for each room in bytes; those of several operators are tried in
        each number of ``column_tiles`` too.

        O(operators x 8 x bands x pairs of sets of 3 results).
        """
        found = self.network.problem.best(
            **self._costs,
            pipelined=pipelined,
            rooms=np.array(rooms, dtype=np.int64),
            column_tiles=np.array(column_tiles, dtype=np.int64),
        )
        return [
            Choice(
                tuple(
                    Stack(begin, end, bands, bool(columns), pipelined, channels, across)
                    for begin, end, bands, columns, channels, across in stacks
                ),
                *figures,
            )
            for stacks, *figures in found
        ]


def _times_read(network: Network, cut: Grid, number: int, storage: str) -> float:
    """How often an operator's pieces together read an operand where it is in no stack."""
    form = network.forms[number]
    if not isinstance(cut, Grid) or form is None or cut.tiles == 1:
        return float(cut.tiles)
    boxes = form.uses[storage].needed(cut.boxes)
    return sum(map(volume, boxes)) / max(1, volume(whole(network.graph.tensors[storage].shape)))


def stacked(network: Network, stacks: Sequence[Stack], plain: Sequence[Grid]) -> Cuts:
    """The cuts and the order of jobs that stacks stand for; an operator that is a stack of its own
    in one band stays as in ``plain``."""
    cuts = list(plain)
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
    """Operators and pieces of a stack in their order: tile by tile, or part by part of the
    channels, all bands of each."""
    numbers = range(stack.first, stack.last)
    steps = len(grids[stack.first].bands)
    for part, column_tile, turn in itertools.product(
        range(stack.channels),
        range(stack.column_tiles),
        range(steps + stack.pipelined * len(grids)),
    ):
        for behind, number in enumerate(numbers):
            step = turn - stack.pipelined * behind
            if 0 <= step < steps:
                yield from ((number, tile) for tile in grids[number].tiles(part, column_tile, step))


@dataclass(frozen=True)
class _BandGrid:
    """The grid of an operator's bands; ``bands[step]`` is the one of a step, None if the step is
    empty.

    Across them ``column_tiles`` name the pieces of each column tile along the dimension ``across``.
    """

    grid: Grid
    rows: int | None
    channels: int | None
    bands: Sequence[int | None]
    across: int | None
    column_tiles: Sequence[Sequence[int]]

    def tiles(self, part: int, column_tile: int, step: int) -> Iterator[int]:
        """The pieces of a part of the channels, a column tile and a step."""
        band = self.bands[step]
        for place in () if band is None else self.column_tiles[column_tile]:
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
    if stack.column_tiles == 1:
        return {
            first + k: _grid(seen, first + k, own, stack.channels) for k, own in enumerate(ends)
        }
    found = {}
    column_tiles = network.problem.column_tiles(first, last, stack.column_tiles, not stack.columns)
    for number, own, reached, kept in zip(range(first, last), ends, *column_tiles, strict=True):
        # A column tile is a piece that no later one needs, then its halo.
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
    column_tiles: Sequence[Sequence[int]] = (),
) -> _BandGrid:
    """The grid of an operator's bands, and of pieces across them that end at ``column_tiles``."""
    form = network.forms[number]
    rows = network.rows(number)
    outputs = network.channels(number)
    assert form is not None
    filled = tuple(dict.fromkeys(end for end in ends if end))
    parts = dict(enumerate(form.grid({} if outputs is None else {outputs: channels}).ends))
    if rows is not None:
        parts[rows] = filled
    if across is not None:
        parts[across] = tuple(itertools.chain.from_iterable(column_tiles))
    bands = [
        filled.index(end) if end > before else None
        for before, end in itertools.pairwise((0, *ends))
    ]
    until = list(itertools.accumulate(map(len, column_tiles), initial=0))
    places = [range(first, last) for first, last in itertools.pairwise(until)] or [range(1)]
    return _BandGrid(
        Grid(form.shape, tuple(parts.values())),
        rows,
        outputs if channels > 1 else None,
        bands,
        across,
        places,
    )


_SHARES = (1.0, 0.5, 0.25)
"""Of the room for which stacks are chosen: what is left lets pieces of several bands run at once,
and addresses be found."""
_PRICE_OF_WORK = 0.3
"""What a second of all cores' work counts beside a second of the main link, where stacks are
chosen."""
_AMPLE = 0.5
"""Share of a room up to which what is in use at once needs no bands."""
COLUMN_TILES = (2, 4, 8)
"""Numbers of column tiles across bands that are tried, where bands are wide for the memory."""
_WIDE = 1 / 6
"""Share of the fast memory that an operator's thinnest band takes, beyond which they are wide."""


def stacks_of_bands(
    networks: Sequence[DivisibleNetwork],
    others: Sequence[Sequence[Grid]],
    target: Target,
    late: Callable[[], bool],
) -> Iterator[tuple[str, list[Cuts]]]:
    """Names of cuts into bands, and the cuts of each network.

    Rooms are the fast memory and parts of it; of more memory than is ample for all networks they
    are parts of what is not, so that what suits a smaller machine is offered to a larger one.

    First pipelined stacks, in which an operator is a band behind the one before it, then, where
    memory is not ample, those in which a band passes through all operators first; then the same in
    column tiles across the bands.
    Operators in no stack, and networks for which the memory is ample, are cut as in ``others``,
    where there are any.
    """
    if not target.room:
        return
    used = [_most_in_use(network) for network in networks]
    most = target.room
    while most > 1 and max(used) <= most * _AMPLE:
        most //= 2
    rooms = [int(most * share) for share in _SHARES]
    tight = [own > most * _AMPLE for own in used]
    stackable = [Network(network.graph, network.fused, network.forms) for network in networks]
    plain = [network.plain for network in networks]
    worth = _PRICE_OF_WORK * target.main.read_bandwidth
    models = [
        StackModel(own, target, cuts, worth) if is_tight and not late() else None
        for own, cuts, is_tight in zip(stackable, others or plain, tight, strict=True)
    ]
    wide = [model is not None and has_wide_bands(model.network, rooms[0]) for model in models]
    for tiled, pipelined in itertools.product((False, True), (True, False)):
        if late() or (tiled and not any(wide)):
            return
        if most < target.room and not pipelined:
            return  # what bands that wait for one another save is room, of which there is enough
        found = [
            None
            if model is None
            else model.best(
                rooms, pipelined=pipelined, column_tiles=COLUMN_TILES if tiled and own else ()
            )
            for model, own in zip(models, wide, strict=True)
        ]
        for number, room in enumerate(rooms):
            stacks = [choices[number].stacks if choices else () for choices in found]
            every = [stack for own in stacks for stack in own]
            if all(stack.is_whole for stack in every) or (
                tiled and not any(stack.column_tiles > 1 for stack in every)
            ):
                continue

            name = (
                f"into {'tiles' if tiled else 'bands'} for {format_bytes(room)} of"
                f" {target.near.name}{', operators side by side' if pipelined else ''}"
            )
            cuts = [
                stacked(own, mine, beside) if mine else Cuts(beside)
                for own, mine, beside in zip(stackable, stacks, others or plain, strict=True)
            ]
            yield f"{name}{', others over the cores' if others else ''}", cuts


def has_wide_bands(network: Network, capacity: int) -> bool:
    """Whether what some operator reads and makes in a band of one row, and in one of one column, is
    much of the fast memory."""
    axes = network, network.across
    return any(
        min(_thinnest(axis, number) for axis in axes) > capacity * _WIDE
        for number in range(len(network.fused))
        if all(axis.rows(number) is not None for axis in axes)
    )


def _thinnest(network: Network, number: int) -> float:
    """Bytes that an operator's band of one row reads and makes, weights left out."""
    taken = sum(
        network.bytes_of(access.tensor) for access in network.fused[number].writes
    ) / network.extent(number)
    for access in network.fused[number].reads:
        if not network.is_weight(access.tensor):
            low, high = network.edge(number, access.tensor)
            taken += (
                access.bytes * float((high[1:] - low[:-1]).max()) / network.rows_of(access.tensor)
            )
    return taken


def _most_in_use(network: DivisibleNetwork) -> int:
    """Most bytes that a whole operator reads and writes, and that lie there meanwhile for later
    ones. O(operators + operands)."""
    between = alive_between(network.graph, network.fused)
    made = {access.tensor for group in network.fused for access in group.writes}
    given = [
        sum(access.bytes for access in group.reads if access.tensor not in made)
        for group in network.fused
    ]
    return int((between + np.array(given)).max(initial=0))

"""Cuts of networks into stacks of bands for a small fast memory.

A stack is a run of operators that are executed band by band, so that the activations between them
never leave the fast memory. Over all covers of the operators, in order, by stacks s in some number
of bands, and all sets k of results kept in the fast memory between two stacks::

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
from loadmaster.planning.cutting.banding import AxisView, Stack, way_costs
from loadmaster.planning.cutting.choice import alive_between
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork
from loadmaster.workloads.window import volume, whole


@dataclass(frozen=True)
class StackChoice:
    """Stacks that cover a network in order, with modelled bytes over the main link, seconds of work
    of all cores, and the ``cost`` of both."""

    stacks: tuple[Stack, ...]
    cost: float
    bytes: float
    seconds: float


class StackModel:
    """Costs of stacks of a network on a machine. ``plain`` are the cuts of operators in no stack;
    ``price`` converts seconds of core work to bytes."""

    def __init__(
        self, view: AxisView, target: Target, plain: Sequence[Grid], price: float = 0.0
    ) -> None:
        self.view, network = view, view.network
        ways = [way_costs(axis, target) for axis in (view.along(False), view.along(True))]

        def columns(name: str) -> list[np.ndarray]:
            """A field of all operators, for rows and for columns."""
            return [np.concatenate([getattr(own, name).ravel() for own in along]) for along in ways]

        # Start-up times, so that many small pieces have a cost.
        start_up = sum(core.start_up for core in target.cores) / len(target.cores) ** 2
        reads = [(n, a.tensor) for n, group in enumerate(network.fused) for a in group.reads]
        self._costs: dict[str, Any] = {
            "way_first": [
                np.cumsum([0, *(len(own.bands) for own in along)], dtype=np.int64) for along in ways
            ],
            **{name: columns(name) for name in ("bands", "channels", "beside", "alone", "refill")},
            "by_channel": np.array(
                [view.divides_by_channel(*read) for read in reads], dtype=np.int64
            ),
            "plain_pieces": np.array([cut.tiles for cut in plain], dtype=np.int64),
            "plain_times": np.array(
                [_times_read(view.network, plain[n], n, name) for n, name in reads],
                dtype=np.float64,
            ),
            "cores": len(target.cores),
            "alignment": target.near.alignment,
            "bytes_of_piece": start_up * target.main.read_bandwidth,
            "price": price,
        }

    def best(
        self, rooms: Sequence[int], *, pipelined: bool = False, column_tiles: Sequence[int] = ()
    ) -> list[StackChoice]:
        """Stacks of least cost for each room in bytes; stacks of several operators are also tried
        with each number of ``column_tiles``.

        O(operators x 8 x bands x pairs of sets of 3 results).
        """
        found = self.view.problem.best(
            **self._costs,
            pipelined=pipelined,
            rooms=np.array(rooms, dtype=np.int64),
            column_tiles=np.array(column_tiles, dtype=np.int64),
        )
        return [
            StackChoice(
                tuple(
                    Stack(begin, end, bands, bool(columns), pipelined, channels, across)
                    for begin, end, bands, columns, channels, across in stacks
                ),
                *figures,
            )
            for stacks, *figures in found
        ]


def _times_read(network: DivisibleNetwork, cut: Grid, number: int, storage: str) -> float:
    """How often an operator's pieces together read an operand if the operator is in no stack."""
    form = network.forms[number]
    if not isinstance(cut, Grid) or form is None or cut.tiles == 1:
        return float(cut.tiles)
    boxes = form.uses[storage].needed(cut.boxes)
    return sum(map(volume, boxes)) / max(1, volume(whole(network.graph.tensors[storage].shape)))


def stacked(view: AxisView, stacks: Sequence[Stack], plain: Sequence[Grid]) -> Cuts:
    """Convert stacks to cuts and an order of pieces; an operator alone in one band is cut as in
    ``plain``."""
    cuts = list(plain)
    order: list[tuple[int, int]] = []
    for stack in stacks:
        numbers = range(stack.first, stack.last)
        if stack.is_whole:
            order += [(number, tile) for number in numbers for tile in range(cuts[number].tiles)]
            continue
        grids = _grids(view, stack)
        cuts[stack.first : stack.last] = [grids[number].grid for number in numbers]
        order += _steps_through(stack, grids)
    return Cuts(cuts, order)


def _steps_through(stack: Stack, grids: Mapping[int, _BandGrid]) -> Iterator[tuple[int, int]]:
    """Yield (operator, piece) of a stack in order: for every channel part and column tile, all
    bands."""
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
    """The grid of an operator in a stack: ``bands[step]`` is the index of the band that a step
    makes, None for none.

    ``column_tiles`` lists, for each column tile, its pieces along the dimension ``across``.
    """

    grid: Grid
    rows: int | None
    channels: int | None
    bands: Sequence[int | None]
    across: int | None
    column_tiles: Sequence[Sequence[int]]

    def tiles(self, part: int, column_tile: int, step: int) -> Iterator[int]:
        """Yield the pieces of a channel part, a column tile and a step."""
        band = self.bands[step]
        for place in () if band is None else self.column_tiles[column_tile]:
            at = ((self.channels, part), (self.rows, band), (self.across, place))
            yield self.grid.tile(
                {axis: index for axis, index in at if axis is not None and index is not None}
            )


def _grids(view: AxisView, stack: Stack) -> dict[int, _BandGrid]:
    """The grids of a stack's operators."""
    seen = view.along(stack.columns)
    first, last = stack.first, stack.last
    if seen.rows(first) is None:
        return {first: _grid(seen, first, (1,), stack.channels)}
    ends = view.problem.ends(first, last, stack.bands, stack.columns)
    if stack.column_tiles == 1:
        return {
            first + k: _grid(seen, first + k, own, stack.channels) for k, own in enumerate(ends)
        }
    found = {}
    column_tiles = view.problem.column_tiles(first, last, stack.column_tiles, not stack.columns)
    for number, own, reached, kept in zip(range(first, last), ends, *column_tiles, strict=True):
        # A column tile consists of a piece that only it needs, then the halo for the next.
        pieces = [
            tuple(dict.fromkeys(at for at in (halo, end) if at > begin))
            for begin, halo, end in zip([0, *reached[:-1]], kept, reached, strict=True)
        ]
        found[number] = _grid(seen, number, own, 1, seen.across.rows(number), pieces)
    return found


def _grid(
    view: AxisView,
    number: int,
    ends: Sequence[int],
    channels: int,
    across: int | None = None,
    column_tiles: Sequence[Sequence[int]] = (),
) -> _BandGrid:
    """The grid of an operator with bands up to ``ends``, and pieces across them up to the ends in
    ``column_tiles``."""
    form = view.network.forms[number]
    rows = view.rows(number)
    outputs = view.channels(number)
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
"""Shares of the room for which stacks are chosen: the rest lets several bands run at once, and
leaves space for fragmentation."""
_PRICE_OF_WORK = 0.3
"""Weight of a second of core work beside a second of the main link when stacks are chosen."""
_AMPLE = 0.5
"""Networks whose peak of bytes in use is at most this share of the room need no bands."""
COLUMN_TILES = (2, 4, 8)
"""Numbers of column tiles that are tried where bands are wide for the memory."""
_WIDE = 1 / 6
"""Bands are wide if the thinnest band of an operator takes more than this share of the fast
memory."""


def stacks_of_bands(
    networks: Sequence[DivisibleNetwork],
    others: Sequence[Cuts],
    target: Target,
    late: Callable[[], bool],
) -> Iterator[tuple[str, list[Cuts]]]:
    """Yield names of cuts into bands, with the cuts of each network.

    Rooms are shares of the fast memory. A memory that is ample for all networks is halved until it
    is not, so that bands for smaller machines are offered to larger ones as well.

    Pipelined stacks, in which an operator is one band behind its predecessor, come first. If memory
    is not ample, stacks follow in which each band passes through all operators; then both kinds
    with column tiles. Operators in no stack, and networks with ample memory, are cut as in
    ``others``.
    """
    if not target.room:
        return
    used = [_most_in_use(network) for network in networks]
    most = target.room
    while most > 1 and max(used) <= most * _AMPLE:
        most //= 2
    rooms = [int(most * share) for share in _SHARES]
    views = [AxisView(network) for network in networks]
    worth = _PRICE_OF_WORK * target.main.read_bandwidth
    models = [
        StackModel(own, target, cuts.cuts, worth) if peak > most * _AMPLE and not late() else None
        for own, cuts, peak in zip(views, others, used, strict=True)
    ]
    wide = [model is not None and has_wide_bands(model.view, rooms[0]) for model in models]
    for tiled, pipelined in itertools.product((False, True), (True, False)):
        if late() or (tiled and not any(wide)):
            return
        if most < target.room and not pipelined:
            return  # depth-first bands only save room, and there is enough
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
                f"into {'pipelined ' if pipelined else ''}bands"
                f"{' with column tiles' if tiled else ''} for {format_bytes(room)} of"
                f" {target.near.name}"
            )
            cuts = [
                stacked(own, mine, beside.cuts) if mine else beside
                for own, mine, beside in zip(views, stacks, others, strict=True)
            ]
            yield f"{name}{' or across cores' if len(target.cores) > 1 else ''}", cuts


def has_wide_bands(view: AxisView, capacity: int) -> bool:
    """Whether the operands of some operator in a band of one row, and in one of one column, take
    much of the fast memory."""
    axes = view, view.across
    return any(
        min(_thinnest(axis, number) for axis in axes) > capacity * _WIDE
        for number in range(len(view.network.fused))
        if all(axis.rows(number) is not None for axis in axes)
    )


def _thinnest(view: AxisView, number: int) -> float:
    """Bytes of the operands of an operator's band of one row, without weights."""
    taken = sum(
        view.bytes_of(access.tensor) for access in view.network.fused[number].writes
    ) / view.extent(number)
    for access in view.network.fused[number].reads:
        if not view.is_weight(access.tensor):
            low, high = view.edge(number, access.tensor)
            taken += access.bytes * float((high[1:] - low[:-1]).max()) / view.rows_of(access.tensor)
    return taken


def _most_in_use(network: DivisibleNetwork) -> int:
    """Peak of the bytes in use with whole operators: operands, and activations alive for later
    operators. O(operators + operands)."""
    given = [
        sum(access.bytes for access in group.reads if access.tensor not in network.home)
        for group in network.fused
    ]
    return int((alive_between(network) + np.array(given)).max(initial=0))

"""Which operators run as stacks of bands, so that what lies between them never leaves the fast
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

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.job_costs import beside_nests
from loadmaster.cost.analytical.nests import WIDTHS, NestTable
from loadmaster.cost.analytical.tiling import best_tilings
from loadmaster.planning.cutting.banding import BandWork, Network, Stack
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Role
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Grid, piece_of
from loadmaster.workloads.lowering.pieces import Cut, operand_roles
from loadmaster.workloads.window import volume, whole


class Refills:
    """Times that the input and the weights of each operator's loop nest cross the port, by
    operator, bands and parts of channels: in each of :meth:`Network.ways`."""

    def __init__(self, network: Network, target: Target) -> None:
        core = min(
            (core for core in target.cores if core.buffer),
            key=lambda core: core.buffer,
            default=None,
        )
        self._roles = [
            {access.tensor: _role(group, access.tensor) for access in group.reads}
            for group in network.fused
        ]
        keys, columns, rooms = [], [], []
        for number, group in enumerate(network.fused):
            if core is None or len(group.nests) != 1:
                continue
            outside = Role.ONCE in self._roles[number].values()
            for way in network.ways(number):
                keys.append((number, way))
                columns.append(_piece(network, number, *way))
                rooms.append(core.buffer - (beside_nests(core.buffer) if outside else 0))
        self._times: dict[tuple[int, tuple[int, int]], tuple[float, float]] = {}
        if core is not None and keys:
            names = [field.name for field in fields(NestTable) if field.name != "row_of"]
            table = dict(zip(names, np.array(columns, dtype=np.float64).T, strict=True))
            tiling = best_tilings(
                NestTable(**table, row_of=np.arange(len(keys))[:, None]),
                np.array(rooms, dtype=np.float64),
                core,
                target,
            )
            times: list[Floats] = [
                np.maximum(1.0, tiling.input_times),
                np.maximum(1.0, tiling.weight_times),
            ]
            self._times = dict(
                zip(keys, zip(*(column.tolist() for column in times), strict=True), strict=True)
            )

    def of(self, number: int, bands: int, storage: str, channels: int = 1) -> float:
        """Times that an operand of an operator in so many bands and parts of its channels
        crosses."""
        if (number, (bands, channels)) not in self._times:
            return 1.0
        of_input, of_weight = self._times[number, (bands, channels)]
        role = self._roles[number][storage]
        return of_input if role is Role.INPUT else of_weight if role is Role.WEIGHT else 1.0


def _role(group: FusedOp, storage: str) -> Role:
    """As what an operator's loop nest takes a storage, or a part of an operand that lies in
    several."""
    access = next(access for access in group.reads if access.tensor == storage)
    return operand_roles(group.nests, access)[0][0]


def _piece(network: Network, number: int, bands: int, channels: int) -> list[float]:
    """The loop nest of a piece in the middle, as a row of a :class:`NestTable`."""
    group, form, axis = network.fused[number], network.forms[number], network.rows(number)
    nest, box = (
        group.nests[0],
        network.middle(number, bands, channels) if bands * channels > 1 else (),
    )
    sizes = {Role.INPUT: 0.0, Role.WEIGHT: 0.0, Role.ONCE: 0.0}
    made = float(network.bytes_of(nest.output)) if nest.output in network.graph.tensors else 0.0
    if form is not None and box:
        nest, made = piece_of(nest, form.shape, box), made * volume(box) / volume(whole(form.shape))
    for access in group.reads:
        role, share = _role(group, access.tensor), 1.0
        if role is Role.INPUT and box and axis is not None:
            begin, end = box[axis]
            low, high = network.edge(number, access.tensor)
            share = (high[end] - low[begin]) / network.rows_of(access.tensor)
        if role is Role.WEIGHT and access.tensor in group.by_channel:
            share = 1.0 / channels
        sizes[role] += access.bytes * share
    width = next((width for width in WIDTHS if group.main.bits <= width), WIDTHS[-1])
    return [
        *map(float, (*nest.extents, *nest.stride, *nest.dilation, width)),
        sizes[Role.INPUT],
        sizes[Role.WEIGHT],
        made,
    ]


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
        self, network: Network, target: Target, plain: Sequence[Cut], price: float = 0.0
    ) -> None:
        self.network = network
        axes = (network.along(False), network.along(True))
        first, bands, channels, beside, alone, refill = zip(
            *(_way_costs(axis, target) for axis in axes), strict=True
        )
        # Pieces start meanwhile: else many small ones would cost nothing.
        start_up = sum(core.start_up for core in target.cores) / len(target.cores) ** 2
        reads = [(n, a.tensor) for n, group in enumerate(network.fused) for a in group.reads]
        self._costs = {
            "way_first": first,
            "bands": bands,
            "channels": channels,
            "beside": beside,
            "alone": alone,
            "refill": refill,
            "by_channel": np.array(
                [name in network.fused[n].by_channel for n, name in reads], dtype=np.int64
            ),
            "plain_pieces": np.array([cut.tiles for cut in plain], dtype=np.int64),
            "plain_times": np.array(
                [_times_read(network, plain[n], n, name) for n, name in reads], dtype=np.float64
            ),
            "cores": len(target.cores),
            "alignment": target.fast.alignment if target.fast is not None else 1,
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


def _way_costs(network: Network, target: Target) -> tuple[np.ndarray, ...]:
    """What the pieces of each operator take for each of its cuts along one axis."""
    work, refills = BandWork(network, target), Refills(network, target)
    each = [network.ways(number) for number in range(len(network.fused))]
    ways = [(number, *way) for number, own in enumerate(each) for way in own]
    bands, channels = (np.array([way[k] for way in ways], dtype=np.int64) for k in (1, 2))
    return (
        np.concatenate([[0], np.cumsum([len(own) for own in each])]).astype(np.int64),
        bands,
        channels,
        np.array([work.beside(number, count) for number, count, _ in ways], dtype=np.float64),
        np.array([work.alone(*way) for way in ways], dtype=np.float64),
        np.array(
            [
                refills.of(number, count, access.tensor, parts)
                for number, count, parts in ways
                for access in network.fused[number].reads
            ],
            dtype=np.float64,
        ),
    )


def _times_read(network: Network, cut: Cut, number: int, storage: str) -> float:
    """How often an operator's pieces together read an operand where it is in no stack."""
    form = network.forms[number]
    if not isinstance(cut, Grid) or form is None:
        return 1.0 if storage in network.fused[number].by_channel else float(cut.tiles)
    boxes = [form.needed(network.graph, storage, box) for box in cut.boxes]
    return sum(map(volume, boxes)) / max(1, volume(whole(network.graph.tensors[storage].shape)))

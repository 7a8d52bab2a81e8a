"""How often an operator's bands cross a core's port: what exceeds the private buffer is fetched
several times from where it lies."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.job_costs import beside_nests
from loadmaster.cost.analytical.nests import WIDTHS, NestTable
from loadmaster.cost.analytical.tiling import best_tilings
from loadmaster.planning.cutting.banding import Network
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Role
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import piece_of
from loadmaster.workloads.lowering.pieces import operand_roles
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

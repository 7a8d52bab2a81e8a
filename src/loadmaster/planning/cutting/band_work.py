"""How long cores work on an operator's bands: few rows, or few columns, may leave most of an array idle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.planning.cutting.banding import Network
from loadmaster.planning.cutting.piece_costs import Piece, piece_table
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.grid import Divisible
from loadmaster.workloads.window import Box, whole


class BandWork:
    """Seconds that all cores together take for an operator in so many bands, what starting its pieces takes left out.

    Cores share the pieces in proportion to how fast each is at them, and the pieces share the link of the fast memory. Operators that do
    not divide take no time here: no choice of bands changes it.
    """

    def __init__(self, network: Network, target: Target, bands: Sequence[int]) -> None:
        keys, pieces, counts = [], [], []
        for number, form in enumerate(network.forms):
            if form is None:
                continue
            numbers = (1, *bands, network.extent(number)) if network.rows(number) is not None else (1,)
            for count in sorted({count for count in numbers if count == 1 or count <= network.extent(number)}):
                keys.append((number, count))
                pieces.append(Piece(network.fused[number], form, _middle(network, number, form, count)))
                counts.append(count)
        self._work: dict[int, list[tuple[int, float]]] = {}
        if not pieces:
            return
        table = piece_table(network.graph, pieces, target)
        start_up = np.array([core.start_up for core in target.cores])
        rates = 1.0 / np.maximum(table.compute - start_up, 1e-12)
        moved = np.bincount(table.operand_job, weights=table.moved.min(axis=1), minlength=len(pieces))
        near = target.fast or target.main
        seconds = np.maximum(1.0 / rates.sum(axis=1), moved / near.read_bandwidth) * np.array(counts)
        for (number, count), each in zip(keys, seconds.tolist(), strict=True):
            self._work.setdefault(number, []).append((count, each))

    def of(self, number: int, bands: int) -> float:
        """Seconds for an operator in so many bands, or in as many as it has rows."""
        best = 0.0
        for count, seconds in self._work.get(number, ()):
            if count <= bands:
                best = seconds
        return best


def _middle(network: Network, number: int, form: Divisible, bands: int) -> Box:
    """The band in the middle of an operator's result."""
    box, axis = list(whole(form.shape)), network.rows(number)
    if axis is not None and bands > 1:
        extent = form.shape[axis]
        rows = -(-extent // bands)
        begin = (extent - rows) // 2
        box[axis] = (begin, begin + rows)
    return tuple(box)

"""How long cores work on an operator's bands: few rows, or few columns, may leave most of an array
idle."""

from __future__ import annotations

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.planning.cutting.alike import first_alike
from loadmaster.planning.cutting.banding import Network
from loadmaster.planning.cutting.piece_costs import Pieces, piece_table
from loadmaster.targets.hardware import Target


class BandWork:
    """Seconds that all cores together take for an operator in each of :meth:`Network.ways`, what
    starting pieces takes left out.

    Operators that do not divide take no time here: no choice of bands changes it.
    """

    def __init__(self, network: Network, target: Target) -> None:
        keys, pieces = [], []
        self._like = first_alike(network.graph, network.fused, network.forms)
        for number, form in enumerate(network.forms):
            if form is None or self._like[number] != number:
                continue
            ways = network.ways(number)
            keys += [(number, way) for way in ways]
            middles = np.array([network.middle(number, *way) for way in ways], dtype=np.int64)
            pieces.append(Pieces(network.fused[number], form, middles))
        self._beside: dict[tuple[int, int], float] = {}
        self._alone: dict[tuple[int, tuple[int, int]], float] = {}
        if not pieces:
            return
        table = piece_table(network.graph, pieces, target)
        start_up = np.array([core.start_up for core in target.cores])
        each = np.maximum(table.compute - start_up, 1e-12)
        moved = np.bincount(table.operand_job, weights=table.moved.min(axis=1), minlength=len(keys))
        near = target.fast or target.main
        counts = np.array([count * parts for _, (count, parts) in keys])
        links = counts * moved / near.read_bandwidth
        shared = np.maximum(counts / (1.0 / each).sum(axis=1), links).tolist()
        for (number, way), beside, link, count, own in zip(
            keys, shared, links.tolist(), counts.tolist(), each, strict=True
        ):
            if way[1] == 1:
                self._beside[number, way[0]] = beside
            self._alone[number, way] = max(link, until_all_end(own, count))

    def beside(self, number: int, bands: int) -> float:
        """Seconds for an operator in so many bands if cores have other pieces to work on
        meanwhile."""
        return self._beside.get((self._like[number], bands), 0.0)

    def alone(self, number: int, bands: int, channels: int = 1) -> float:
        """Seconds until an operator's pieces have ended if there is nothing beside them: of few,
        some cores have none."""
        return self._alone.get((self._like[number], (bands, channels)), 0.0)


def until_all_end(each: Floats, count: int) -> float:
    """When the last of so many equal pieces ends at the earliest, if a piece takes ``each[c]``
    seconds on core ``c``."""
    if count > 64:
        return float(count / (1.0 / each).sum() + each.min() / 2)
    ends = np.sort((np.arange(1, count + 1)[:, None] * each).ravel())
    return float(ends[count - 1])

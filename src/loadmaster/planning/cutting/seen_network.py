"""A network seen along its rows or its columns, and what its operators take in bands of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.planning.cutting.alike import Runs
from loadmaster.planning.cutting.band_work import BandWork
from loadmaster.planning.cutting.banding import Network, ends_of
from loadmaster.planning.cutting.refills import Refills
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import TensorKind

BANDS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Numbers of bands that are tried, beside one band for every row."""
CHANNELS = (2, 4, 8, 16)
"""Numbers of parts of the output channels that are tried for a single operator, beside its
bands."""


@dataclass(frozen=True)
class SeenNetwork:
    """A network seen along its rows or its columns, and what its operators take in bands of them.

    ``across`` is the same network seen across these bands.
    """

    network: Network
    across: Network
    refills: Refills
    work: BandWork

    @cached_property
    def runs(self) -> Runs:
        """The runs of the network's operators that are alike, whatever stacks are chosen from
        them."""
        return Runs(self.network)

    def overlap(self, number: int, storage: str, bands: int) -> float:
        """Times that an operator's bands together read a storage: rows that two of them need count
        twice."""
        if bands == 1:
            return 1.0
        ends = ends_of(self.network, number, number + 1, bands, {})
        starts = np.concatenate([[0], ends[:-1]])
        busy = ends > starts
        low, high = self.network.edge(number, storage)
        needed, rows = (
            int((high[ends[busy]] - low[starts[busy]]).sum()),
            self.network.rows_of(storage),
        )
        # An input comes in bands of its own, of which the next band of the reader takes its halo.
        return (
            min(needed, rows)
            if self.network.graph.tensors[storage].kind is TensorKind.INPUT
            else needed
        ) / rows

    @staticmethod
    def both(network: Network, target: Target) -> list[SeenNetwork]:
        """A network seen along its rows, and along its columns."""
        seen = [network.along(columns) for columns in (False, True)]
        pairs = zip(seen, seen[::-1], strict=True)
        return [
            SeenNetwork(
                own,
                other,
                Refills(own, target, BANDS, CHANNELS),
                BandWork(own, target, BANDS, CHANNELS),
            )
            for own, other in pairs
        ]

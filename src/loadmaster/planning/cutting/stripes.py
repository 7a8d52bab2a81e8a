"""Stacks whose bands are too wide for the fast memory, cut across these into stripes: tiles of rows
and columns.

A stripe of an operator is as wide as the next operator's stripe needs, as a band is as long as the
next one's needs. What two stripes share (the halo) is a piece of its own at the end of the first,
so that only it has to wait for the second, in the fast memory or outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.planning.cutting.banding import Network, ends_of

STRIPES = (2, 4, 8)
"""Numbers of stripes that are tried."""
_WIDE = 1 / 6
"""Share of the fast memory that an operator's thinnest band takes, beyond which stripes are
tried."""


def has_wide_bands(networks: Sequence[Network], capacity: int) -> bool:
    """Whether what some operator reads and makes in a band of one row, and in one of one column, is
    much of the fast memory.

    ``networks`` is one seen along its rows, and along its columns.
    """
    numbers = [
        n
        for n in range(len(networks[0].fused))
        if all(network.rows(n) is not None for network in networks)
    ]
    return any(
        min(_thinnest(network, number) for network in networks) > capacity * _WIDE
        for number in numbers
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


@dataclass(frozen=True)
class Stripes:
    """Where the pieces of each stripe of an operator end: one that no later stripe needs, then its
    halo, if there are such.

    ``widths`` are of the stripes, and ``halos`` of what later ones need of each.
    """

    pieces: Sequence[Sequence[int]]
    widths: Sequence[int]
    halos: Sequence[int]

    @property
    def count(self) -> int:
        """Pieces of all stripes."""
        return sum(map(len, self.pieces))


def stripes_of(across: Network, first: int, last: int, stripes: int) -> dict[int, Stripes]:
    """The stripes of the operators of a stack; ``across`` is the network seen across its bands."""
    ends: dict[int, Ints] = {}
    for number in range(last - 1, first - 1, -1):
        ends[number] = stripe_ends(across, number, last, stripes, ends)
    return {number: stripes_between(across, number, last, ends) for number in ends}


def stripe_ends(
    across: Network, number: int, last: int, stripes: int, ends: Mapping[int, Ints]
) -> Ints:
    """Where the stripes of an operator end, shape (stripes,), given those of the later ones of its
    stack."""
    return ends_of(across, number, last, stripes, ends, stripes)


def stripes_between(across: Network, number: int, last: int, ends: Mapping[int, Ints]) -> Stripes:
    """The stripes of an operator, given where its own and those of the later ones of its stack
    end."""
    own, step = ends[number], across.step(number)
    begins = np.concatenate([[0], own[:-1]])
    kept = own.copy()
    for access in across.fused[number].writes:
        for reader in across.readers.get(access.tensor, ()):
            if number < reader < last:
                low, _ = across.edge(reader, access.tensor)
                kept = np.minimum(kept, low[ends[reader]])
    kept = np.maximum(begins, kept // step * step)
    # The last is no halo of any, however little the readers need at all.
    kept[-1] = own[-1]
    each = zip(begins.tolist(), kept.tolist(), own.tolist(), strict=True)
    pieces = [
        tuple(dict.fromkeys(at for at in (halo, end) if at > begin)) for begin, halo, end in each
    ]
    return Stripes(pieces, (own - begins).tolist(), (own - kept).tolist())

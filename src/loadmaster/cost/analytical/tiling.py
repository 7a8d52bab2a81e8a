"""One tiling of every loop nest on a core, from which its cycles, its traffic, its buffers and its
deliveries follow alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from loadmaster._native import choose_tilings
from loadmaster.core.arrays import Floats
from loadmaster.cost.analytical.nests import FIELDS, NestTable, shapes_of
from loadmaster.targets.hardware import Core, Style, Target

_NEST = tuple("element_bytes" if name == "bits" else name for name in FIELDS)
"""Columns of nests as native code takes them."""

STREAMED = "all streamed"
"""All operands cross the main memory's link: what a job's tiling is chosen for where nothing is
known of it."""
WEIGHTS_STREAMED = "weights streamed"
"""Weights alone cross it."""
EXPECTED = {
    STREAMED: (True, True, 1.0),
    "all near": (False, False, 1.0),
    WEIGHTS_STREAMED: (False, True, 1.0),
    "activations streamed": (True, False, 1.0),
    "crowded link": (True, True, 4.0),
}
"""Where a tiling expects operands, from what suits a job most in cycles to what suits it most in
bytes of one operand or another: whether activations, and weights, cross the main memory's link
rather than the fast one's, and how many times as long a byte takes there as on the core's share of
the link."""


@dataclass(frozen=True)
class Tilings:
    """What every nest takes in its tiling, arrays of shape (nests,), over all repeats.

    ``input_times`` and ``weight_times`` are bytes that cross the core's port for a byte of the
    operand (less than one where strides step over some); ``input_tile``, ``weight_tile`` and
    ``output_tile`` bytes of the private buffer; ``cycles`` those of the array, filling, draining
    and loading it included; ``delivered`` bytes over the on-chip network; ``lead`` the seconds that
    the first tile takes to arrive and the last to leave, and that the array waits for results to
    leave where the buffer has no room for them.
    """

    input_times: Floats
    weight_times: Floats
    input_tile: Floats
    weight_tile: Floats
    output_tile: Floats
    cycles: Floats
    delivered: Floats
    lead: Floats

    @property
    def buffer(self) -> Floats:
        """Bytes of the private buffer that all tiles take together."""
        return self.input_tile + self.weight_tile + self.output_tile


def best_tilings(nests: NestTable, capacity: Floats, core: Core, target: Target) -> Tilings:
    """Choose the tiling of every nest that takes the least time where all operands are streamed, as
    :func:`tilings_for`."""
    return tilings_for(nests, capacity, core, target, (STREAMED,))[0]


def tilings_for(
    nests: NestTable, capacity: Floats, core: Core, target: Target, expected: Sequence[str]
) -> list[Tilings]:
    """Choose for each place where operands are expected the tilings that take the least time on a
    core of a target.

    That is a tiling, a loop order and, of a flexible array, a shape for every nest. A tile is a
    part of the groups, output channels, input channels and positions (whole images, rows of one, or
    columns of a row). Loop orders: a tile of the input stays while filters stream by; a tile of
    filters stays while the input streams by; either with all input channels or with a chunk of
    them, then sums stay. Extents that stand in the array at once are tried in multiples of it, and
    in halves, which leave elements idle. Everything that has a next tile is double-buffered. Rows
    that neighbouring tiles share are fetched once where all channels of a tile stay, else with each
    of them.

    The cost is the time of the slower of core and links, half of the links', and an eighth of those
    of the core and of its deliveries, so that a tiling that moves less is taken where it is hardly
    slower. What a byte costs follows from where operands are ``expected``, of
    :data:`EXPECTED`; of each link a core counts on its share of the bandwidth; the first tile comes
    over the fastest link at full bandwidth. Where nothing fits into ``capacity`` bytes, shape
    (nests,), the smallest tiling is returned, and its ``buffer`` exceeds the capacity. A core
    without a private buffer takes each nest as a single tile. O(nests x tiles), a few hundred tiles
    a nest.
    """
    rows, columns = shapes_of(core)
    figures = choose_tilings(
        nests=np.ascontiguousarray(np.stack([getattr(nests, name) for name in _NEST], axis=1)),
        rate=np.array([core.macs_per_cycle[int(bits)] for bits in nests.bits], dtype=np.float64),
        capacity=np.asarray(capacity, dtype=np.float64),
        style=list(Style).index(core.style),
        shapes=np.stack([rows, columns], axis=1),
        clock=core.clock,
        local_buffer=float(core.local_buffer),
        network=np.inf if core.noc_bandwidth is None else core.noc_bandwidth,
        loading=np.inf if core.weight_loading is None else core.weight_loading,
        prices=np.array([_prices(target, each) for each in expected]),
        read=max(memory.read_bandwidth for memory in target.memories),
        write=max(memory.write_bandwidth for memory in target.memories),
        burst=float(target.main.burst),
        accumulator=float(core.accumulator),
        whole=core.buffer == 0,
    )
    names = [field.name for field in fields(Tilings)]
    return [
        Tilings(**dict(zip(names, figures[:, place].T, strict=True)))
        for place in range(len(expected))
    ]


def _prices(target: Target, expected: str) -> tuple[float, float, float]:
    """Seconds a byte of input, weights and output, on a core's share of the links where they are
    expected."""
    activations, weights, crowd = EXPECTED[expected]
    near = target.fast or target.main
    main, fast = (
        crowd * len(target.cores) / memory.read_bandwidth for memory in (target.main, near)
    )
    of_activations = main if activations else fast
    return of_activations, main if weights else fast, of_activations

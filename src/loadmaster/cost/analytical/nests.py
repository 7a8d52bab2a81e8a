"""Loop nests of many jobs as arrays, one row per distinct nest, and their tilings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import isqrt

import numpy as np

from loadmaster._native import choose_tilings
from loadmaster.core.arrays import Floats, Ints
from loadmaster.targets.hardware import Core, Style, Target
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Job, Role


def kind_of(kind: str, nests: Sequence[LoopNest]) -> str:
    """Return the kind under which a target states the efficiency of an operator.

    That is the operator's own (``Conv``, ``MatMul``, ``convolution``), and for convolutions with
    one input channel in each group ``DepthwiseConv`` or, where names begin with a small letter,
    ``depthwise_convolution``. Pieces of an operator are of its kind: they have all of its input
    channels and taps, but for pieces of sums, of which none is depthwise.
    """
    depthwise = bool(nests) and nests[0].c == 1 and nests[0].r * nests[0].s > 1
    if not depthwise or kind.lower().startswith("depthwise"):
        return kind
    return f"Depthwise{kind}" if kind[:1].isupper() else f"depthwise_{kind}"


def efficiencies(jobs: Sequence[Job], core: Core) -> Floats:
    """Return the efficiency of every job on a core, shape (jobs,), more than 0 and at most 1.
    O(jobs)."""
    return np.array(
        [
            core.efficiency.get(kind_of(job.kind, () if job.summed else job.nests), 1.0)
            for job in jobs
        ],
        dtype=np.float64,
    )


def shapes_of(core: Core) -> tuple[Floats, Floats]:
    """Return rows and columns of each shape, arrays of shape (shapes,), fewest rows first."""
    if not core.flexible:
        return np.array([float(core.rows)]), np.array([float(core.columns)])
    return _factors(core.rows * core.columns)


@lru_cache(maxsize=32)
def _factors(elements: int) -> tuple[Floats, Floats]:
    """Return all pairs of factors of a number of elements: rows and columns."""
    small = np.arange(1, isqrt(elements) + 1)
    small = small[elements % small == 0]
    rows = np.unique(np.concatenate([small, elements // small]))
    return rows.astype(np.float64), (elements // rows).astype(np.float64)


WIDTHS = (8, 16, 32)
"""Widths of arithmetic that the model knows, in bits."""


@dataclass(frozen=True)
class NestTable:
    """Distinct loop nests, one row each, as float arrays of shape (rows,) (exact: every extent is
    far below 2^53).

    ``bits`` is the width of their arithmetic.
    ``row_of[j, i]`` is the row of nest ``i`` of job ``j``, -1 beyond its last. Nests share a row
    only if their jobs have operands of equal sizes outside the nests, because those take a part of
    the private buffer.
    """

    row_of: Ints
    groups: Floats
    batch: Floats
    k: Floats
    c: Floats
    y: Floats
    x: Floats
    r: Floats
    s: Floats
    repeats: Floats
    stride_y: Floats
    stride_x: Floats
    dilation_y: Floats
    dilation_x: Floats
    bits: Floats
    input_bytes: Floats
    weight_bytes: Floats
    output_bytes: Floats

    @property
    def positions(self) -> Floats:
        """Output positions of one group, over the whole batch, shape (rows,)."""
        return self.batch * self.y * self.x

    @property
    def taps(self) -> Floats:
        """Positions of the filter, shape (rows,)."""
        return self.r * self.s

    @property
    def macs(self) -> Floats:
        """Multiply-accumulates of all repeats, shape (rows,)."""
        return self.groups * self.positions * self.k * self.c * self.taps * self.repeats

    @property
    def element_bytes(self) -> Floats:
        """Bytes of one element of an operand, shape (rows,)."""
        return self.bits / 8

    @property
    def weights(self) -> Floats:
        """Elements of the weight operand, shape (rows,)."""
        return self.groups * self.k * self.c * self.taps

    @property
    def inputs(self) -> Floats:
        """Elements of the input that one repeat needs, padding included; positions that strides
        step over are left out."""
        rows = _extent(self.y, self.r, self.stride_y, self.dilation_y)
        columns = _extent(self.x, self.s, self.stride_x, self.dilation_x)
        return self.groups * self.batch * self.c * rows * columns

    @property
    def outputs(self) -> Floats:
        """Elements of the result of one repeat."""
        return self.groups * self.positions * self.k

    def per_job(self, per_nest: Floats) -> Floats:
        """Sum a figure of shape (rows,) or (rows, n) over the loop nests of each job: shape (jobs,)
        or (jobs, n)."""
        none = np.zeros((1, *per_nest.shape[1:]))
        return np.asarray(
            np.concatenate([per_nest, none])[self.row_of].sum(axis=1)
        )  # row -1: no nest


def _extent(out: Floats, taps: Floats, stride: Floats, dilation: Floats) -> Floats:
    """Input positions that ``out`` outputs need along one axis: all from first to last, or only the
    windows where these do not meet."""
    window = dilation * (taps - 1) + 1
    return np.minimum((out - 1) * stride + window, out * taps)


FIELDS = tuple(field.name for field in fields(NestTable) if field.name != "row_of")
"""Figures of a nest, in the order of its row."""


def nest_table(jobs: Sequence[Job]) -> NestTable:
    """Collect the nests of all jobs; equal ones share a row. Linear in the number of operands."""
    width = max((len(job.nests) for job in jobs), default=0)
    row_of = np.full((len(jobs), width), -1, dtype=np.int64)
    rows: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for index, job in enumerate(jobs):
        sizes = _operand_bytes(job)
        outside = tuple(operand.bytes for operand in (*job.reads, *job.writes) if operand.nest < 0)
        for position, nest in enumerate(job.nests):
            shape = (*nest.extents, *nest.stride, *nest.dilation)
            numbers = (*shape, width_of(job.bits), *sizes[position])
            row_of[index, position] = rows.setdefault(
                (numbers, (len(job.reads), *outside)), len(rows)
            )
    figures = np.array([numbers for numbers, _ in rows], dtype=np.float64)
    columns = figures.reshape(len(rows), len(FIELDS)).T
    return NestTable(row_of, *columns)


def width_of(bits: int) -> int:
    """Return the least width of :data:`WIDTHS`, in bits, that numbers fit into; wider numbers get
    the widest."""
    return next((width for width in WIDTHS if bits <= width), WIDTHS[-1])


def _operand_bytes(job: Job) -> list[list[int]]:
    """Input, weight and output bytes of each nest."""
    sizes = [[0, 0, 0] for _ in job.nests]
    slots = (Role.INPUT, Role.WEIGHT, Role.OUTPUT)
    for operand in (*job.reads, *job.writes):
        if operand.nest >= 0:
            sizes[operand.nest][slots.index(operand.role)] += operand.bytes
    return sizes


_NEST = tuple("element_bytes" if name == "bits" else name for name in FIELDS)
"""Columns of nests as native code takes them."""

STREAMED = "all streamed"
"""The tiling for operands that all cross the main memory's link: the default."""
WEIGHTS_STREAMED = "weights streamed"
"""The tiling for weights that cross the main memory's link, and activations in the fast memory."""
EXPECTED = {
    STREAMED: (True, True, 1.0),
    "all near": (False, False, 1.0),
    WEIGHTS_STREAMED: (False, True, 1.0),
    "activations streamed": (True, False, 1.0),
    "crowded link": (True, True, 4.0),
}
"""Expected places of operands, for which tilings are chosen: whether activations, and weights,
cross the main memory's link instead of the fast one's, and by which factor a byte takes longer than
on the core's share of the link."""


@dataclass(frozen=True)
class Tilings:
    """Costs of every nest in its tiling, arrays of shape (nests,), over all repeats.

    ``input_times`` and ``weight_times``: bytes over the core's port per byte of the operand (below
    1 if strides skip some). ``input_tile``, ``weight_tile`` and ``output_tile``: bytes of the
    private buffer. ``cycles``: cycles of the array, with filling, draining and loading.
    ``delivered``: bytes over the on-chip network. ``lead``: seconds until the first tile has
    arrived and after which the last leaves, and of waits for results to leave a full buffer.
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
    return [Tilings(*figures[:, place].T) for place in range(len(expected))]


def _prices(target: Target, expected: str) -> tuple[float, float, float]:
    """Seconds per byte of input, weights and output on a core's share of the links, for expected
    places."""
    activations, weights, crowd = EXPECTED[expected]
    main, fast = (
        crowd * len(target.cores) / memory.read_bandwidth for memory in (target.main, target.near)
    )
    of_activations = main if activations else fast
    return of_activations, main if weights else fast, of_activations

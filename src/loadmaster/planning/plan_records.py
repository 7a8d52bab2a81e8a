"""A finished plan as plain frozen records: everything that a code generator needs.

Times are seconds and multiples of one picosecond, energies joules and multiples of one femtojoule,
so that comparisons are exact; sizes are bytes; bandwidths bytes/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmaster.core.provenance import Provenance
from loadmaster.core.shown import DisplayMixin
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import MiniBatch, NetworkInfo, NetworkTiming, Ranges

SCHEMA_VERSION = 9
"""Version of plan files."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A figure that should be small, and what it cannot be less than."""

    value: float
    lower_bound: float


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure that should be large, and what it cannot exceed."""

    value: float
    upper_bound: float


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Highest address used, the most bytes alive at once (no packing of these lifetimes can do with
    less), and the size."""

    peak: int
    lower_bound: int
    capacity: int


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of one mini-batch, or a tile of it; a weight is shared by all mini-batches and says
    0.

    ``storage`` is its name in the network, and a plan lists the tiles of one storage in their
    order; ``producer`` is the name of the job that writes it, empty if it exists from the start. A
    tile holds the box ``ranges`` of the storage as an array of ``shape``: for every dimension the
    first element and the one after the last. ``ranges`` are empty for what is whole. Tiles over
    output channels see the storage as an array of outer x channels x inner elements, or of channels
    alone where it is not known how these lie.

    What has ``summed`` is no tile of the storage: it holds partial sums for the elements
    ``ranges``, over the range [first, last) of what its operator sums over, each as wide as an
    accumulator.
    """

    name: str
    network: str
    storage: str
    mini_batch: int
    bytes: int
    kind: str
    is_output: bool
    producer: str
    shape: tuple[int, ...] = ()
    ranges: Ranges = ()
    summed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedOperand:
    """A job's access to a tensor: the memory where it finds or leaves it, the bytes that cross the
    core's port, and the box ``ranges`` of the tensor's storage that it takes from there; empty for
    all that the tensor holds."""

    tensor: str
    memory: str
    bytes: int
    ranges: Ranges = ()


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job on a core. It occupies the core over [start, end), of which ``compute`` seconds are
    arithmetic.

    ``macs`` multiply-accumulates of ``bits`` wide factors go through the core's array, ``elements``
    scalar operations over its lanes.

    ``energy`` joules are taken inside the core: arithmetic, local buffers, on-chip network. What
    its operands take on their way is in ``Metrics.energy_by``.

    ``after`` names every job and copy that must have ended before it starts, whatever the times
    turn out to be: producers of its operands and, where it writes to an address that others used
    before, their last users. Order on one core is the order of start times.

    ``ranges`` is the part of its operators' result that a tile makes, for every dimension the first
    element and the one after the last; empty where that is all, or not known. ``summed`` is the
    range of what its first operator sums over that it adds to the sums of the tile before it in its
    chain; the last of a chain makes the result. It is empty where a job sums over all.

    ``tiling`` says where its operands were expected when its loops were tiled for the private
    buffer and the array: of several good tilings the cost model names each by that.
    """

    name: str
    network: str
    mini_batch: int
    tile: int
    tiles: int
    kind: str
    operators: tuple[str, ...]
    macs: int
    elements: int
    bits: int
    core: str
    start: float
    end: float
    compute: float
    energy: float
    after: tuple[str, ...]
    reads: tuple[PlannedOperand, ...]
    writes: tuple[PlannedOperand, ...]
    ranges: Ranges = ()
    summed: tuple[int, ...] = ()
    tiling: str = "all streamed"


@dataclass(frozen=True, slots=True)
class PlannedAllocation:
    """Bytes [offset, offset + bytes) of a memory hold a tensor (in a core's private buffer: a tile
    of it) over [start, end)."""

    tensor: str
    memory: str
    offset: int
    bytes: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """Bytes that move over [start, end) between a memory and a core on behalf of ``job``, or, if
    ``job`` is empty, a copy between memories.

    A core stands for its private buffer. A copy has a ``name`` that ``after`` lists can mention,
    and an ``after`` of its own.
    """

    tensor: str
    source: str = field(metadata={"key": "from"})
    destination: str = field(metadata={"key": "to"})
    bytes: int
    start: float
    end: float
    job: str = ""
    name: str = ""
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkSegment:
    """Use of a memory's link over [start, end): ``load`` is the share of the link's time, at most
    1."""

    start: float
    end: float
    bytes_per_second: float
    load: float


@dataclass(frozen=True)
class Metrics:
    """The figures of a plan. Utilisation is arithmetic time over makespan; its bound is what the
    same assignment reaches at the makespan's bound. Traffic is bytes over each memory's link.
    ``energy`` is that of all jobs and transfers, and the target's static power over the makespan;
    ``energy_by`` says how much of it each memory and each core takes. ``latency`` is, for every
    network, the longest of a mini-batch."""

    makespan: Cost
    throughput: Rate
    inferences_per_second: Rate
    utilisation: Mapping[str, Rate]
    traffic: Mapping[str, Cost]
    memory: Mapping[str, MemoryUse]
    energy: Cost
    energy_by: Mapping[str, float]
    latency: Mapping[str, Cost]


@dataclass(frozen=True, slots=True)
class Objective:
    """What the plan was made for, and what it reached: seconds, joules, or (``edp``) joules times
    seconds.

    ``name`` is ``throughput`` (the makespan), ``latency`` (of ``network``), ``energy`` or ``edp``,
    energy times makespan.
    """

    name: str
    network: str
    value: float
    lower_bound: float

    @property
    def gap(self) -> float | None:
        """How far the value is above its bound, as a share of the bound; None if that is
        nothing."""
        return self.value / self.lower_bound - 1 if self.lower_bound > 0 else None


@dataclass(frozen=True, slots=True)
class Improvement:
    """The objective's value and the lateness of all mini-batches together that the search came
    upon, after so many evaluations."""

    evaluations: int
    value: float
    lateness: float


@dataclass(frozen=True, repr=False)
class PlanRecord(DisplayMixin):
    """Which core runs each job and when, where every tensor lives, and when it moves.

    Times are the simulator's, from costs that ``costs`` labels. ``status`` is ``optimal`` when no
    mini-batch is late and the objective meets its bound in integer picoseconds or femtojoules, else
    ``feasible``. ``byte_energy`` is joules for each byte into or out of a memory, or a core's
    private buffer. ``search`` tells how the joint search made the estimate fall, from the separate
    plan's on; before addresses were chosen, so that the plan's own figures may differ by a little.
    """

    version: int
    producer: str
    status: str
    seed: int
    target: Target
    objective: Objective
    timings: tuple[NetworkTiming, ...]
    byte_energy: Mapping[str, float]
    networks: tuple[NetworkInfo, ...]
    mini_batches: tuple[MiniBatch, ...]
    tensors: tuple[PlannedTensor, ...]
    jobs: tuple[PlannedJob, ...]
    allocations: tuple[PlannedAllocation, ...]
    transfers: tuple[PlannedTransfer, ...]
    links: Mapping[str, tuple[LinkSegment, ...]]
    metrics: Metrics
    notes: tuple[str, ...] = field(default=())
    search: tuple[Improvement, ...] = field(default=())

    @property
    def costs(self) -> tuple[Provenance, ...]:
        """What the costs of jobs come from: the cost model, with the target's figures."""
        return (self.target.costs_by("cost model", len(self.jobs)),)

    @property
    def missed(self) -> int:
        """Mini-batches that end after their deadline."""
        return sum(batch.missed for batch in self.mini_batches)

    @property
    def lateness(self) -> float:
        """Seconds by which mini-batches end after their deadlines, all together."""
        deadlines = {timing.network: timing.deadline for timing in self.timings}
        return sum(
            batch.latency - (deadlines.get(batch.network) or 0.0)
            for batch in self.mini_batches
            if batch.missed
        )

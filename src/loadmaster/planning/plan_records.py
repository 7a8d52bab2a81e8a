"""A finished plan as plain frozen records: everything that a code generator needs.

Times are seconds and multiples of one picosecond, energies joules and multiples of one femtojoule,
so that comparisons are exact; sizes are bytes; bandwidths bytes/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadmaster.core.provenance import Provenance
from loadmaster.core.registry import DisplayMixin
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import MiniBatch, NetworkInfo, NetworkTiming, Ranges

SCHEMA_VERSION = 9
"""Version of plan files."""


@dataclass(frozen=True, slots=True)
class Cost:
    """A figure that should be small, and what it cannot be less than."""

    value: float
    """What the plan reaches, in the unit of the figure."""
    lower_bound: float
    """What no plan can be below, in the same unit."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A figure that should be large, and what it cannot exceed."""

    value: float
    """What the plan reaches, in the unit of the figure."""
    upper_bound: float
    """What no plan can exceed, in the same unit."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Highest address used, the most bytes alive at once (no packing of these lifetimes can do with
    less), and the size."""

    peak: int
    """Highest address in use, in bytes."""
    lower_bound: int
    """Most bytes that are alive at once: no packing of these lifetimes can do with less."""
    capacity: int
    """Size in bytes."""


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
    """Its name in the plan."""
    network: str
    """Its network."""
    storage: str
    """Its name in the network."""
    mini_batch: int
    """Its mini-batch; 0 for weights, which all share."""
    bytes: int
    """Its size."""
    kind: str
    """`weight`, `input` or `activation`."""
    is_output: bool
    """Whether the network returns it."""
    producer: str
    """The job that writes it; empty if it is there from the start."""
    shape: tuple[int, ...] = ()
    """The array that `ranges` are of: the whole tensor's shape, or outer x channels x inner of
    parts over output channels, or channels alone."""
    ranges: Ranges = ()
    """The box that it holds, first and last + 1 along each dimension; empty: all of it."""
    summed: tuple[int, ...] = ()
    """Of partial sums, the range that they sum over, first and last + 1; else empty."""


@dataclass(frozen=True, slots=True)
class PlannedOperand:
    """A job's access to a tensor: the memory where it finds or leaves it, the bytes that cross the
    core's port, and the box ``ranges`` of the tensor's storage that it takes from there; empty for
    all that the tensor holds."""

    tensor: str
    """The tensor."""
    memory: str
    """Where it is found or left."""
    bytes: int
    """Bytes that cross the core's port."""
    ranges: Ranges = ()
    """The box of the tensor's `shape` that it takes from there, first and last + 1 along each
    dimension; empty: all that the tensor holds."""


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
    """Its name."""
    network: str
    """Its network."""
    mini_batch: int
    """Its mini-batch."""
    tile: int
    """Which piece of its operators it is, from 0."""
    tiles: int
    """Pieces of its operators."""
    kind: str
    """Kind of its first operator."""
    operators: tuple[str, ...]
    """Operators that it does, fused into one."""
    macs: int
    """Multiply-accumulates."""
    elements: int
    """Scalar operations."""
    bits: int
    """Width of the factors."""
    core: str
    """Where it runs."""
    start: float
    """Seconds; estimated."""
    end: float
    """Seconds; estimated."""
    compute: float
    """Seconds of arithmetic."""
    energy: float
    """Joules inside the core."""
    after: tuple[str, ...]
    """Jobs and copies that must have ended before it starts."""
    reads: tuple[PlannedOperand, ...]
    """Operands that it reads."""
    writes: tuple[PlannedOperand, ...]
    """Operands that it writes."""
    ranges: Ranges = ()
    """The part of the result that a piece makes, first and last + 1 along each dimension; else
    empty."""
    summed: tuple[int, ...] = ()
    """Of what its operator sums over, the range that a piece of a chain adds, first and last + 1;
    else empty."""
    tiling: str = "all streamed"
    """Where its operands were expected when its loops were tiled, which names one of several good
    tilings."""


@dataclass(frozen=True, slots=True)
class PlannedAllocation:
    """Bytes [offset, offset + bytes) of a memory hold a tensor (in a core's private buffer: a tile
    of it) over [start, end)."""

    tensor: str
    """The tensor."""
    memory: str
    """The memory, or the core."""
    offset: int
    """First byte."""
    bytes: int
    """How many."""
    start: float
    """Seconds."""
    end: float
    """Seconds."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """Bytes that move over [start, end) between a memory and a core on behalf of ``job``, or, if
    ``job`` is empty, a copy between memories.

    A core stands for its private buffer. A copy has a ``name`` that ``after`` lists can mention,
    and an ``after`` of its own.
    """

    tensor: str
    """The tensor."""
    source: str = field(metadata={"key": "from"})
    """A memory, or a core for its private buffer."""
    destination: str = field(metadata={"key": "to"})
    """A memory, or a core for its private buffer."""
    bytes: int
    """How many."""
    start: float
    """Seconds."""
    end: float
    """Seconds."""
    job: str = ""
    """The job that moves them; empty for a copy."""
    name: str = ""
    """Name of a copy, else empty."""
    after: tuple[str, ...] = ()
    """Jobs and copies that must have ended before a copy starts."""


@dataclass(frozen=True, slots=True)
class LinkSegment:
    """Use of a memory's link over [start, end): ``load`` is the share of the link's time, at most
    1."""

    start: float
    """Seconds."""
    end: float
    """Seconds."""
    bytes_per_second: float
    """Bytes per second."""
    load: float
    """Share of the link's time, at most 1."""


@dataclass(frozen=True)
class Metrics:
    """The figures of a plan. Utilisation is arithmetic time over makespan; its bound is what the
    same assignment reaches at the makespan's bound. Traffic is bytes over each memory's link.
    ``energy`` is that of all jobs and transfers, and the target's static power over the makespan;
    ``energy_by`` says how much of it each memory and each core takes. ``latency`` is, for every
    network, the longest of a mini-batch."""

    makespan: Cost
    """Seconds until everything has ended."""
    throughput: Rate
    """Operations per second; a multiply-accumulate is two."""
    inferences_per_second: Rate
    """Samples of all networks per second."""
    utilisation: Mapping[str, Rate]
    """By core, arithmetic time over makespan."""
    traffic: Mapping[str, Cost]
    """By memory, bytes over its link."""
    memory: Mapping[str, MemoryUse]
    """By memory, how full it gets."""
    energy: Cost
    """Joules of everything."""
    energy_by: Mapping[str, float]
    """By memory and core, joules of jobs and transfers."""
    latency: Mapping[str, Cost]
    """By network, seconds of its longest mini-batch."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What the plan was made for, and what it reached: seconds, joules, or (``edp``) joules times
    seconds.

    ``name`` is ``throughput`` (the makespan), ``latency`` (of ``network``), ``energy`` or ``edp``,
    energy times makespan.
    """

    name: str
    """`throughput` (the makespan), `latency`, `energy` or `edp`."""
    network: str
    """Whose latency counts; empty for other objectives."""
    value: float
    """What the plan reaches, in seconds, joules, or joules times seconds."""
    lower_bound: float
    """What no plan can be below."""

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
    """Evaluations up to it."""
    value: float
    """The objective, before addresses were chosen."""
    lateness: float
    """Seconds by which mini-batches are late, all together."""


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
    """Version of this format."""
    producer: str
    """Who made the plan."""
    status: str
    """How good the plan is: `optimal` is proven, `feasible` holds."""
    seed: int
    """Seed of the search: the same input and seed give the same plan."""
    target: Target
    """The machine, in full."""
    objective: Objective
    """What the plan was made for."""
    timings: tuple[NetworkTiming, ...]
    """Networks that have a period or a deadline."""
    byte_energy: Mapping[str, float]
    """By memory, or core for its private buffer, joules for each byte into or out of it."""
    networks: tuple[NetworkInfo, ...]
    """What was planned."""
    mini_batches: tuple[MiniBatch, ...]
    """What becomes of each mini-batch."""
    tensors: tuple[PlannedTensor, ...]
    """Every tensor of every mini-batch, or part of one; parts of one tensor in their order."""
    jobs: tuple[PlannedJob, ...]
    """What runs on cores."""
    allocations: tuple[PlannedAllocation, ...]
    """Where tensors lie."""
    transfers: tuple[PlannedTransfer, ...]
    """What moves."""
    links: Mapping[str, tuple[LinkSegment, ...]]
    """Use of every memory's link over time, by memory."""
    metrics: Metrics
    """The plan's figures with their bounds."""
    notes: tuple[str, ...] = field(default=())
    """Remarks for the reader; their wording is not stable."""
    search: tuple[Improvement, ...] = field(default=())
    """How the joint search made the objective fall, from the separate plan's on."""

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

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
    """A minimised metric and its proven lower bound."""

    value: float
    """The plan's value, in the unit of the metric."""
    lower_bound: float
    """Lower bound for all plans, in the same unit."""


@dataclass(frozen=True, slots=True)
class Rate:
    """A maximised metric and its proven upper bound."""

    value: float
    """The plan's value, in the unit of the metric."""
    upper_bound: float
    """Upper bound for all plans, in the same unit."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Peak, lower bound of the peak for these lifetimes, and capacity of a memory."""

    peak: int
    """Highest address in use, in bytes."""
    lower_bound: int
    """Most bytes alive at once: the least peak of any packing of these lifetimes."""
    capacity: int
    """Size of the memory in bytes."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of one mini-batch, or a part of it.

    ``storage`` is the tensor's name in the network; a plan lists the parts of a storage in order.
    ``producer`` is the job that writes the tensor, empty for weights and inputs. Weights are shared
    by all mini-batches and have ``mini_batch`` 0. A part holds the box ``ranges`` of the storage,
    seen as an array of ``shape``: for every dimension the first element and the one after the last.
    ``ranges`` is empty for a whole tensor. The shape of parts over output channels is outer x
    channels x inner elements, or channels alone where the layout is not known.

    A tensor with ``summed`` holds partial sums for the elements ``ranges``, over the range [first,
    last) of its operator's reduction; each sum is as wide as an accumulator.
    """

    name: str
    """Name in the plan."""
    network: str
    """Network of the tensor."""
    storage: str
    """Name in the network."""
    mini_batch: int
    """Number of the mini-batch; 0 for weights, which all mini-batches share."""
    bytes: int
    """Size in bytes."""
    kind: str
    """`weight`, `input` or `activation`."""
    is_output: bool
    """Whether the network returns the tensor."""
    producer: str
    """The job that writes the tensor; empty for weights and inputs."""
    shape: tuple[int, ...] = ()
    """Shape of the array that `ranges` refers to: the whole tensor's shape, or outer x channels x
    inner for parts over output channels, or channels alone."""
    ranges: Ranges = ()
    """Box of the part, first and last + 1 along each dimension; empty for a whole tensor."""
    summed: tuple[int, ...] = ()
    """For partial sums, the range of the reduction, first and last + 1; else empty."""


@dataclass(frozen=True, slots=True)
class PlannedOperand:
    """A job's access to a tensor: the memory that it reads from or writes to, the bytes that cross
    the core's port, and the accessed box ``ranges`` of the tensor's storage (empty: all of the
    tensor)."""

    tensor: str
    """Name of the tensor."""
    memory: str
    """Memory that the job reads from or writes to."""
    bytes: int
    """Bytes that cross the core's port."""
    ranges: Ranges = ()
    """Accessed box of the tensor's `shape`, first and last + 1 along each dimension; empty: all of
    the tensor."""


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job on a core. It occupies the core over [start, end), of which ``compute`` seconds are
    arithmetic.

    ``macs`` multiply-accumulates of ``bits`` wide factors go through the core's array, ``elements``
    scalar operations over its lanes.

    ``energy`` is in joules, inside the core: arithmetic, local buffers, on-chip network. The energy
    of moving operands is in ``Metrics.energy_by``.

    ``after`` names every job and copy that must have ended before the job starts, whatever the
    actual times are: producers of its operands and, where the job reuses addresses, the last users
    of these. Jobs on one core run in the order of start times.

    ``ranges`` is the box of the result that a piece makes, for every dimension the first element
    and the one after the last; empty for a whole result, or if the box is not known. ``summed`` is
    the range of the first operator's reduction that the piece adds to the partial sums of the
    previous piece in its chain; the last piece of a chain makes the result. It is empty if the job
    does the whole reduction.

    ``tiling`` names the tiling of the job's loops for the private buffer and the array, by the
    memories where operands were expected when it was chosen.
    """

    name: str
    """Name of the job."""
    network: str
    """Network of the job."""
    mini_batch: int
    """Number of the mini-batch."""
    tile: int
    """Number of the piece among the pieces of its operators, from 0."""
    tiles: int
    """Number of pieces of its operators."""
    kind: str
    """Kind of the first operator."""
    operators: tuple[str, ...]
    """Operators of the job, fused into one."""
    macs: int
    """Multiply-accumulates."""
    elements: int
    """Scalar operations."""
    bits: int
    """Width of the factors in bits."""
    core: str
    """Core that runs the job."""
    start: float
    """Start in seconds; estimated."""
    end: float
    """End in seconds; estimated."""
    compute: float
    """Seconds of arithmetic."""
    energy: float
    """Joules inside the core."""
    after: tuple[str, ...]
    """Jobs and copies that must have ended before the job starts."""
    reads: tuple[PlannedOperand, ...]
    """Operands that the job reads."""
    writes: tuple[PlannedOperand, ...]
    """Operands that the job writes."""
    ranges: Ranges = ()
    """Box of the result that a piece makes, first and last + 1 along each dimension; empty for a
    whole result."""
    summed: tuple[int, ...] = ()
    """Range of the reduction that a piece of a chain adds, first and last + 1; empty for all."""
    tiling: str = "all streamed"
    """Tiling of the job's loops, named by the memories where operands were expected."""


@dataclass(frozen=True, slots=True)
class PlannedAllocation:
    """Bytes [offset, offset + bytes) of a memory hold a tensor (in a core's private buffer: a tile
    of it) over [start, end)."""

    tensor: str
    """The tensor."""
    memory: str
    """The memory, or the core for its private buffer."""
    offset: int
    """First byte."""
    bytes: int
    """Size in bytes."""
    start: float
    """Begin of the lifetime in seconds."""
    end: float
    """End of the lifetime in seconds."""


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """A transfer over [start, end): between a memory and a core for ``job``, or a copy between
    memories if ``job`` is empty.

    A core stands for its private buffer. A copy has a ``name``, to which ``after`` lists refer, and
    its own ``after`` list.
    """

    tensor: str
    """The tensor."""
    source: str = field(metadata={"key": "from"})
    """A memory, or a core for its private buffer."""
    destination: str = field(metadata={"key": "to"})
    """A memory, or a core for its private buffer."""
    bytes: int
    """Size in bytes."""
    start: float
    """Start in seconds."""
    end: float
    """End in seconds."""
    job: str = ""
    """The job that the transfer belongs to; empty for a copy."""
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
    """The metrics of a plan with their bounds.

    Utilisation is arithmetic time over makespan; its bound is the value at the makespan's lower
    bound for the same assignment. ``energy`` includes all jobs and transfers, and the target's
    static power over the makespan; ``energy_by`` divides it by memory and core, without static
    power."""

    makespan: Cost
    """Seconds until the last job or copy has ended."""
    throughput: Rate
    """Operations per second; a multiply-accumulate is two."""
    inferences_per_second: Rate
    """Samples of all networks per second."""
    utilisation: Mapping[str, Rate]
    """By core, arithmetic time over makespan; the bound is for these jobs on these cores."""
    traffic: Mapping[str, Cost]
    """By memory, bytes over its link."""
    memory: Mapping[str, MemoryUse]
    """By memory, its peak and capacity."""
    energy: Cost
    """Joules of all jobs and transfers, and of static power."""
    energy_by: Mapping[str, float]
    """By memory and core, joules of jobs and transfers."""
    latency: Mapping[str, Cost]
    """By network, seconds of its longest mini-batch latency."""


@dataclass(frozen=True, slots=True)
class Objective:
    """The objective of a plan and its value: seconds, joules, or (``edp``) joules times seconds.

    ``name`` is ``throughput`` (the makespan), ``latency`` (of ``network``), ``energy`` or ``edp``,
    energy times makespan.
    """

    name: str
    """`throughput` (the makespan), `latency`, `energy` or `edp`."""
    network: str
    """Network of the objective `latency`; empty for other objectives."""
    value: float
    """The plan's value, in seconds, joules, or joules times seconds."""
    lower_bound: float
    """Lower bound for all plans, in the same unit."""

    @property
    def gap(self) -> float | None:
        """Relative distance of the value from its bound; None if the bound is 0."""
        return self.value / self.lower_bound - 1 if self.lower_bound > 0 else None


@dataclass(frozen=True, slots=True)
class Improvement:
    """An improvement of the joint search: evaluations so far, the objective and the total
    lateness."""

    evaluations: int
    """Number of evaluations so far."""
    value: float
    """The objective, before addresses were chosen."""
    lateness: float
    """Lateness in seconds, summed over mini-batches."""


@dataclass(frozen=True, repr=False)
class PlanRecord(DisplayMixin):
    """Which core runs each job and when, where every tensor lives, and when it moves.

    Times are the simulator's, from costs that ``costs`` labels. ``status`` is ``optimal`` when no
    mini-batch is late and the objective meets its bound in integer picoseconds or femtojoules, else
    ``feasible``. ``search`` has the improvements of the joint search, from the separate plan on.
    They were scored before addresses were chosen, so the plan's own metrics may differ a little.
    """

    version: int
    """Version of this format."""
    producer: str
    """Program and version that made the plan."""
    status: str
    """`optimal` if proven by the lower bound, else `feasible`."""
    seed: int
    """Seed of the search: the same input and seed give the same plan."""
    target: Target
    """The complete description of the machine."""
    objective: Objective
    """Objective of the plan, its value and its bound."""
    timings: tuple[NetworkTiming, ...]
    """Networks that have a period or a deadline."""
    byte_energy: Mapping[str, float]
    """By memory, or core for its private buffer, joules for each byte read or written."""
    networks: tuple[NetworkInfo, ...]
    """The planned networks and their operators."""
    mini_batches: tuple[MiniBatch, ...]
    """Release, end and latency of every mini-batch."""
    tensors: tuple[PlannedTensor, ...]
    """Every tensor of every mini-batch, or its parts in order."""
    jobs: tuple[PlannedJob, ...]
    """Jobs on cores."""
    allocations: tuple[PlannedAllocation, ...]
    """Addresses of tensors in memories."""
    transfers: tuple[PlannedTransfer, ...]
    """Transfers between memories and cores, and copies between memories."""
    links: Mapping[str, tuple[LinkSegment, ...]]
    """Use of every memory's link over time, by memory."""
    metrics: Metrics
    """The plan's figures with their bounds."""
    notes: tuple[str, ...] = field(default=())
    """Remarks for the reader; their wording is not stable."""
    search: tuple[Improvement, ...] = field(default=())
    """Improvements of the joint search, from the separate plan on."""

    @property
    def costs(self) -> tuple[Provenance, ...]:
        """Origin of the costs: the cost model, with the target's figures."""
        return (self.target.costs_by("cost model", len(self.jobs)),)

    @property
    def missed(self) -> int:
        """Number of mini-batches that end after their deadline."""
        return sum(batch.missed for batch in self.mini_batches)

    @property
    def lateness(self) -> float:
        """Lateness in seconds, summed over mini-batches."""
        deadlines = {timing.network: timing.deadline for timing in self.timings}
        return sum(
            batch.latency - (deadlines.get(batch.network) or 0.0)
            for batch in self.mini_batches
            if batch.missed
        )

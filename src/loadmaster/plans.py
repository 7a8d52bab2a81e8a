"""A finished plan: everything that a code generator needs, as plain frozen records with versioned JSON in and out.

Times are seconds and multiples of one picosecond, so that comparisons are exact; sizes are bytes; bandwidths bytes/s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from loadmaster.hardware import Target
from loadmaster.job import NetworkInfo

SCHEMA_VERSION = 1
ROUNDS = 4
"""Rounds of the joint search, unless told otherwise."""


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
    """Highest address used, the most bytes alive at once (no packing of these lifetimes can do with less), and the size."""

    peak: int
    lower_bound: int
    capacity: int


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of one mini-batch, or a tile of it; a weight is shared by all mini-batches and says 0.

    ``storage`` is its name in the network; ``producer`` is the name of the job that writes it, empty if it exists from the start.
    """

    name: str
    network: str
    storage: str
    mini_batch: int
    bytes: int
    kind: str
    is_output: bool
    producer: str


@dataclass(frozen=True, slots=True)
class PlannedOperand:
    """A job's access to a tensor: the memory where it finds or leaves it, and the bytes that cross the core's port."""

    tensor: str
    memory: str
    bytes: int


@dataclass(frozen=True, slots=True)
class PlannedJob:
    """A job on a core. It occupies the core over [start, end), of which ``compute`` seconds are arithmetic.

    ``after`` names every job and copy that must have ended before it starts, whatever the times turn out to be: producers of its operands
    and, where it writes to an address that others used before, their last users. Order on one core is the order of start times.
    """

    name: str
    network: str
    mini_batch: int
    tile: int
    tiles: int
    kind: str
    operators: tuple[str, ...]
    macs: int
    core: str
    start: float
    end: float
    compute: float
    after: tuple[str, ...]
    reads: tuple[PlannedOperand, ...]
    writes: tuple[PlannedOperand, ...]


@dataclass(frozen=True, slots=True)
class PlannedAllocation:
    """Bytes [offset, offset + bytes) of a memory hold a tensor (in a core's private buffer: a tile of it) over [start, end)."""

    tensor: str
    memory: str
    offset: int
    bytes: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """Bytes that move over [start, end) between a memory and a core on behalf of ``job``, or, if ``job`` is empty, a copy between memories.

    A core stands for its private buffer. A copy has a ``name`` that ``after`` lists can mention, and an ``after`` of its own.
    """

    tensor: str
    source: Annotated[str, "written as 'from'"]
    destination: Annotated[str, "written as 'to'"]
    bytes: int
    start: float
    end: float
    job: str = ""
    name: str = ""
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkSegment:
    """Use of a memory's link over [start, end): ``load`` is the share of the link's time, at most 1."""

    start: float
    end: float
    bytes_per_second: float
    load: float


@dataclass(frozen=True)
class Metrics:
    """The figures of a plan. Utilisation is arithmetic time over makespan; its bound is what the same assignment reaches at the
    makespan's bound. Traffic is bytes over each memory's link."""

    makespan: Cost
    throughput: Rate
    inferences_per_second: Rate
    utilisation: Mapping[str, Rate]
    traffic: Mapping[str, Cost]
    memory: Mapping[str, MemoryUse]


@dataclass(frozen=True, slots=True)
class Improvement:
    """A makespan in seconds that the search came upon, after so many orders had been evaluated."""

    evaluations: int
    makespan: float


@dataclass(frozen=True)
class Plan:
    """Which core runs each job and when, where every tensor lives, and when it moves.

    Times are the simulator's estimates. ``status`` is ``optimal`` when the makespan meets the bound in integer
    picoseconds, else ``feasible``. ``search`` tells how the joint search made the estimate fall, from the separate plan's on; before
    addresses were chosen, so that the plan's own makespan may differ by a little.
    """

    version: int
    producer: str
    status: str
    seed: int
    target: Target
    networks: tuple[NetworkInfo, ...]
    tensors: tuple[PlannedTensor, ...]
    jobs: tuple[PlannedJob, ...]
    allocations: tuple[PlannedAllocation, ...]
    transfers: tuple[PlannedTransfer, ...]
    links: Mapping[str, tuple[LinkSegment, ...]]
    metrics: Metrics
    notes: tuple[str, ...] = field(default=())
    search: tuple[Improvement, ...] = field(default=())

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, atomically; the same plan gives the same bytes."""
        from loadmaster.plan_json import write_plan

        return write_plan(self, Path(path))

    @staticmethod
    def load(path: str | Path) -> Plan:
        """Read a plan file; raises :class:`~loadmaster.errors.PlanError` naming the field at fault."""
        from loadmaster.plan_json import read_plan

        return read_plan(Path(path))

    def report(self, directory: str | Path) -> list[Path]:
        """Write ``report.html`` and ``trace.pftrace`` into a directory and return their paths."""
        from loadmaster.report import write_report

        return write_report(self, Path(directory))

"""Records of the hardware that a plan is for: cores, shared memories, and their bandwidths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from loadmaster.core.provenance import Label, Provenance

ESTIMATED = Provenance(Label.ESTIMATED, "figures of the target")
"""The provenance of targets that are not calibrated."""


class Style(StrEnum):
    """The dataflow of a core: how it maps loops onto its array (see
    :mod:`loadmaster.cost.analytical.nests`)."""

    WEIGHT_STATIONARY = "weight-stationary"
    OUTPUT_STATIONARY = "output-stationary"
    ROW_STATIONARY = "row-stationary"
    ROOFLINE = "roofline"


@dataclass(frozen=True)
class Memory:
    """A memory that all cores share, reached over one link.

    ``capacity`` in bytes, bandwidths in bytes/s. Reads and writes take turns on the link: reading
    ``a`` and writing ``b`` bytes takes ``a / read_bandwidth + b / write_bandwidth`` seconds of it.
    ``in_place`` says whether a core can use operands in this memory; if not, they must be copied to
    the fast memory first. Offsets are multiples of ``alignment`` bytes. ``energy`` is joules per
    byte over the link; None: estimated by the cost model. ``burst`` is the least number of bytes of
    a read. If ``page`` of the main memory is not 0, an operand may be divided between main and fast
    memory in pages of this size.
    """

    name: str
    """Name."""
    capacity: int
    """Size in bytes."""
    read_bandwidth: float
    """Bytes per second."""
    write_bandwidth: float
    """Bytes per second."""
    in_place: bool = True
    """Whether cores use operands in this memory; if not, they are copied to the fast memory
    first."""
    alignment: int = 64
    """Alignment of offsets in bytes."""
    energy: float | None = None
    """Joules per byte; null: estimated by the cost model."""
    burst: int = 64
    """Least bytes of a read."""
    page: int = 0
    """Page size in bytes if operands may be divided between memories; 0: operands lie in one."""

    def padded(self, size: int) -> int:
        """Return the bytes that a buffer of ``size`` takes if the next one must be aligned too."""
        return -(-size // self.alignment) * self.alignment

    def link_seconds(self, read: float, written: float) -> float:
        """Seconds of the link that reading and writing so many bytes takes."""
        return read / self.read_bandwidth + written / self.write_bandwidth


@dataclass(frozen=True)
class Core:
    """One processing core.

    ``rows`` x ``columns`` multiply-accumulate elements at ``clock`` hertz, each doing
    ``macs_per_cycle[bits]`` multiply-accumulates a cycle; ``lanes`` scalar operations a cycle for
    everything else; ``buffer`` bytes of private memory (0: none that a plan manages).

    A ``flexible`` array takes, for every loop nest, any shape of as many elements. Each element has
    ``local_buffer`` bytes of its own. The network between the private memory and the array carries
    ``noc_bandwidth`` bytes/s (None: all that is asked for) and takes ``noc_latency`` seconds from
    end to end. Weights that stay in the array are loaded at ``weight_loading`` bytes/s while it
    waits (None: while it works). ``winograd`` says that kernels may trade workspace for fewer
    multiplications (:mod:`loadmaster.cost.kernels.kernel_costs`). ``job_overhead`` seconds pass
    before each job: fetching its description, synchronising. ``efficiency`` is the share of the
    array's and the lanes' rate that jobs reach, by kind of operator
    (:func:`loadmaster.cost.analytical.nests.kind_of`); 1 for kinds that are not listed. A
    partial sum has ``accumulator`` bytes. ``energy`` holds what is known of joules: of a
    multiply-accumulate (``mac_int8``, ``mac_fp16``, ``mac_fp32``) and a scalar operation
    (``scalar_int8``, ...), and of a byte read or written in an element's memory (``local``), moved
    over the network (``network``), and read or written in the private memory (``buffer``); the cost
    model estimates the others.
    """

    name: str
    """Name."""
    style: Style
    """How it maps loops onto its array."""
    rows: int
    """Rows of the array."""
    columns: int
    """Columns of the array."""
    clock: float
    """Cycles per second."""
    macs_per_cycle: Mapping[int, float]
    """Multiply-accumulates of each element per cycle, by the bits of the factors."""
    lanes: int
    """Scalar operations per cycle."""
    buffer: int = 0
    """Bytes of private memory; 0: none that a plan manages."""
    flexible: bool = False
    """Whether the array takes any shape of as many elements."""
    local_buffer: int = 512
    """Bytes of each element's own memory."""
    noc_bandwidth: float | None = None
    """Bytes per second between private memory and array; null: all that is asked for."""
    noc_latency: float = 0.0
    """Seconds of the on-chip network from end to end."""
    winograd: bool = False
    """Whether kernels may trade workspace for fewer multiplications."""
    job_overhead: float = 0.0
    """Seconds before each job."""
    efficiency: Mapping[str, float] = field(default_factory=dict)
    """Share of the array's rate that jobs reach, by kind of operator."""
    accumulator: int = 4
    """Bytes of a partial sum."""
    energy: Mapping[str, float] = field(default_factory=dict)
    """Joules of each access by its name, where the target states them; the cost model's published
    figures for the rest."""
    weight_loading: float | None = None
    """Bytes per second at which weights that stay in the array are loaded while it waits; null:
    they are loaded while it works."""

    @property
    def start_up(self) -> float:
        """Seconds of every job, however little it does."""
        return self.noc_latency + self.job_overhead


COPY_FIELDS = ("to_fast", "to_main", "asynchronous_to_fast", "asynchronous_to_main")
"""Names of the bandwidths of a copy engine in hardware files."""


@dataclass(frozen=True)
class CopyEngine:
    """Bandwidths of copies into each memory, by index, in bytes/s: of copies that block
    computation, and of copies that overlap it.

    If ``shared``, copies in all directions take turns on one link.
    """

    blocking: tuple[float, ...]
    """Bytes per second of copies into each memory that block, in the order of `memories`."""
    overlapping: tuple[float, ...]
    """Bytes per second of copies into each memory that overlap computation."""
    shared: bool = False
    """Whether both directions take turns."""

    @property
    def fields(self) -> dict[str, float]:
        """Return the bandwidths by their names in hardware files."""
        rates = (*self.blocking[::-1], *self.overlapping[::-1])
        return dict(zip(COPY_FIELDS, rates, strict=True))


@dataclass(frozen=True)
class Target:
    """A machine: its cores and the memories that they share, by index.

    Networks start and end in memory 0, the main one. Planners support at most one more, the fast
    memory; ``copy`` is the copy engine between the two.

    ``static_power`` is in watts, for the whole machine while a plan runs. ``provenance`` is that of
    costs computed from these figures.
    """

    name: str
    """Name of the target."""
    description: str
    """Description of the machine."""
    cores: tuple[Core, ...]
    """The cores."""
    memories: tuple[Memory, ...]
    """The memories that cores share: the main memory, in which networks start and end, then the
    fast memory, if any."""
    copy: CopyEngine | None = None
    """The copy engine between memories; null: none."""
    static_power: float = 0.0
    """Static power of the machine in watts."""
    provenance: Provenance = ESTIMATED
    """Provenance of costs computed from these figures."""

    def costs_by(self, model: str, count: int) -> Provenance:
        """Return the provenance of ``count`` costs that a model computes from the target's
        figures."""
        return Provenance(
            self.provenance.label, f"{model} of {self.name}, {self.provenance.source}", count
        )

    @property
    def main(self) -> Memory:
        """The memory in which networks start and end."""
        return self.memories[0]

    @property
    def fast(self) -> Memory | None:
        """The fast memory, into which operands are fetched; None if there is none."""
        return self.memories[1] if len(self.memories) > 1 else None

    @property
    def near(self) -> Memory:
        """The memory nearest to the cores: the fast memory, or else the main one."""
        return self.memories[-1]

    @property
    def room(self) -> int:
        """Capacity of the fast memory in bytes; 0 without one."""
        return self.fast.capacity if self.fast else 0

    def with_memory(self, number: int, **changes: Any) -> Target:
        """Return the machine with fields of one memory changed."""
        memories = list(self.memories)
        memories[number] = replace(memories[number], **changes)
        return replace(self, memories=tuple(memories))


def core_places(smaller: Target, target: Target) -> list[int] | None:
    """Match each core of a smaller machine, in order, to the first unused core of the target that
    is at least as good; None if some core has no match."""
    free = iter(enumerate(target.cores))
    places = [
        next((number for number, other in free if not any(_core_excess(core, other))), -1)
        for core in smaller.cores
    ]
    return None if -1 in places else places


def is_within(smaller: Target, target: Target) -> bool:
    """Whether a machine has at least as much of everything as a smaller one."""
    return not any(excess_of(smaller, target))


def excess_of(smaller: Target, target: Target) -> Iterator[str]:
    """Yield the figures in which a supposedly smaller machine exceeds the target."""
    if len(smaller.cores) > len(target.cores):
        yield "the number of cores"
    elif core_places(smaller, target) is None:
        for one, other in zip(smaller.cores, target.cores, strict=False):
            yield from (f"{one.name}.{name}" for name in _core_excess(one, other))
    if len(smaller.memories) > len(target.memories):
        yield "the number of memories"
    for memory, larger in zip(smaller.memories, target.memories, strict=False):
        excess = _excess(
            memory,
            larger,
            ("alignment", "in_place"),
            ("capacity", "read_bandwidth", "write_bandwidth"),
        )
        yield from (f"{memory.name}.{name}" for name in excess)
    if smaller.copy is not None:
        more = {} if target.copy is None else target.copy.fields
        if any(rate > more.get(name, 0.0) for name, rate in smaller.copy.fields.items()):
            yield "copy"


def _excess(
    one: Core | Memory, other: Core | Memory, alike: Sequence[str], less: Sequence[str]
) -> Iterator[str]:
    """Yield the fields that should be ``alike`` and are not, and those that should be no more
    (``less``) and are."""
    yield from (name for name in alike if getattr(one, name) != getattr(other, name))
    yield from (name for name in less if getattr(one, name) > getattr(other, name))


def _core_excess(one: Core, other: Core) -> Iterator[str]:
    """Yield the fields in which a core is better than another, or differs where neither value is
    better."""
    yield from _excess(
        one,
        other,
        (
            "style",
            "rows",
            "columns",
            "flexible",
            "local_buffer",
            "winograd",
            "accumulator",
            "efficiency",
        ),
        ("clock", "lanes", "buffer"),
    )
    if any(rate > other.macs_per_cycle[bits] for bits, rate in one.macs_per_cycle.items()):
        yield "macs_per_cycle"
    for name in ("noc_bandwidth", "weight_loading"):
        if (getattr(one, name) or float("inf")) > (getattr(other, name) or float("inf")):
            yield name
    if one.start_up < other.start_up:
        yield "job_overhead"

"""Jobs and tensor instances, which lowering makes of networks for a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from numbers import Real

import numpy as np

from loadmaster.core.arguments import instead, require_type
from loadmaster.core.arrays import Ints, edges_of
from loadmaster.core.errors import LoadmasterError
from loadmaster.workloads.graph import LoopNest


@dataclass(frozen=True, slots=True)
class NetworkTiming:
    """Timing of a network: mini-batch ``k`` is released at ``k`` times the period, and due
    ``deadline`` seconds later (None: never)."""

    network: str
    """Name of the network."""
    period: float
    """Seconds between the releases of its mini-batches."""
    deadline: float | None
    """Seconds after its release in which a mini-batch is due; null: never."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """Result of a mini-batch: no job starts before its release; ``latency`` seconds later all jobs
    have ended and outputs are in main memory."""

    network: str
    """Name of the network."""
    number: int
    """Number of the mini-batch, from 0."""
    release: float
    """Release time in seconds."""
    end: float
    """End in seconds."""
    latency: float
    """Seconds from release to end."""
    missed: bool
    """Whether the mini-batch ends after its deadline."""


def network_timings(
    networks: Iterable[str],
    periods: Mapping[str, float],
    deadlines: Mapping[str, float],
    error: type[LoadmasterError],
) -> dict[str, NetworkTiming]:
    """Return the timing of every network by name; without a period mini-batches are released at the
    start, without a deadline they are never late.

    Raises ``error`` if a period or deadline (seconds, by network) is of an unknown network, or not
    positive and finite.
    """
    names = tuple(dict.fromkeys(networks))
    for what, given in (("deadline", deadlines), ("period", periods)):
        for name, seconds in given.items():
            require_network(what, name, names, error)
            require_type(seconds, Real, f"{what} of {name!r}", error)
            if not 0 < seconds < float("inf"):
                raise error(f"{what} of {name!r}: {seconds} s must be more than zero, and finite")
    return {
        name: NetworkTiming(name, periods.get(name, 0.0), deadlines.get(name)) for name in names
    }


def require_network(
    what: str, name: str, networks: Iterable[str], error: type[LoadmasterError]
) -> None:
    """Raise ``error`` unless there is a network of that name; ``what`` names the setting."""
    names = tuple(networks)
    if name not in names:
        raise error(f"{what} of {name!r}: there is no such network: {instead(name, names)}")


class Role(StrEnum):
    """The role of an operand in its job's loop nest, which determines its refills."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"
    ONCE = "once"
    """Outside the loop nests: each byte moves exactly once."""


Ranges = tuple[tuple[int, ...], ...]
"""A box: first element and the one after the last, for every dimension."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A job's use of the box ``ranges`` (empty: all) of one tensor instance: ``bytes`` is the least
    number of bytes that it moves, ``nest`` the index of its loop nest."""

    tensor: str
    bytes: int
    role: Role = Role.ONCE
    nest: int = -1
    ranges: Ranges = ()


@dataclass(frozen=True, slots=True)
class TensorInstance:
    """A tensor of one mini-batch, or a part of it; weights are shared by all mini-batches and have
    mini-batch 0.

    ``storage`` is the tensor's name in the network, and ``producer`` the index of the job that
    writes it, -1 for none. A part holds the box ``ranges`` of the storage as an array of ``shape``
    (empty: all of it). A tensor with ``summed`` is not a part of the storage: it holds partial sums
    over the range [first, last) of the operator's reduction.
    """

    name: str
    network: str
    storage: str
    mini_batch: int
    bytes: int
    kind: str
    is_output: bool = False
    producer: int = -1
    shape: tuple[int, ...] = ()
    ranges: Ranges = ()
    summed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """One operator with the elementwise work fused into it, or one tile of it, on one mini-batch.

    ``after`` has the indices of the jobs whose results the job reads, all smaller than its own.
    ``ranges`` is the box of the operators' result that it makes; empty for all, or if not known.
    ``summed`` is the range of the reduction that it adds to the sums of the previous piece of its
    chain, the last of which makes the result; empty for the whole reduction.
    """

    name: str
    network: str
    mini_batch: int
    kind: str
    operators: tuple[str, ...]
    nests: tuple[LoopNest, ...]
    elements: int
    bits: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    after: tuple[int, ...]
    tile: int = 0
    tiles: int = 1
    ranges: Ranges = ()
    summed: tuple[int, ...] = ()

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the job."""
        return sum(nest.macs for nest in self.nests)

    @property
    def size(self) -> object:
        """A key of everything that determines a job's costs: its loop nests (by identity), whether
        it sums a part, work and sizes of operands."""
        reads, writes = (
            [(o.bytes, o.role, o.nest) for o in side] for side in (self.reads, self.writes)
        )
        own = id(self.nests), self.kind, bool(self.summed), self.elements, self.bits
        return *own, len(reads), *reads, *writes


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """An operator that some job must cover, with the tensors that it reads and writes, by name in
    the network; for an operator in pieces also the ``shape`` of its result."""

    name: str
    """Name of the operator."""
    reads: tuple[str, ...]
    """Tensors, by their names in the network."""
    writes: tuple[str, ...]
    """Tensors, by their names in the network."""
    shape: tuple[int, ...] = ()
    """Shape of the result of an operator in pieces; else empty."""


@dataclass(frozen=True)
class NetworkInfo:
    """The part of a network that a plan keeps: source, data flow, and remarks.

    ``operators`` are those with a cost, with views resolved. ``inputs`` and ``outputs`` are tensors
    by name in the network; ``unused`` are tensors that are written, but neither read nor returned.
    ``batch`` is the leading dimension of the first input.
    """

    name: str
    """Name in the plan."""
    source: str
    """File or name that the network was read from."""
    precision: str
    """Precision of most of the arithmetic."""
    mini_batches: int
    """Number of mini-batches."""
    batch: int
    """Leading dimension of the first input."""
    macs: int
    """Multiply-accumulates of one mini-batch."""
    operators: tuple[OperatorInfo, ...]
    """Operators that some job covers."""
    outputs: tuple[str, ...]
    """Tensors that the network returns."""
    unknown: tuple[str, ...] = ()
    """Kinds of operators that were not understood."""
    notes: tuple[str, ...] = ()
    """Remarks; their wording is not stable."""
    inputs: tuple[str, ...] = ()
    """Tensors that the caller gives."""
    unused: tuple[str, ...] = ()
    """Tensors that are written, but neither read nor returned."""


def operand_bytes(jobs: Sequence[Job]) -> Ints:
    """Bytes of the operands of jobs in the order of job table rows: reads before writes."""
    return np.array([o.bytes for job in jobs for o in (*job.reads, *job.writes)], dtype=np.int64)


@dataclass(frozen=True)
class Workload:
    """All jobs of all networks in a topological order, with the tensor instances that they use."""

    networks: tuple[NetworkInfo, ...]
    jobs: tuple[Job, ...]
    tensors: tuple[TensorInstance, ...]

    @cached_property
    def tensor_index(self) -> dict[str, int]:
        """Index of every tensor instance by name."""
        return {tensor.name: i for i, tensor in enumerate(self.tensors)}

    @cached_property
    def alike(self) -> tuple[list[int], Ints]:
        """Indices of the distinct jobs by :attr:`Job.size`, and for every job the position of its
        equal among them, shape (jobs,).
        """
        known: dict[object, int] = {}
        sizes = (known.setdefault(job.size, len(known)) for job in self.jobs)
        like = np.fromiter(sizes, dtype=np.int64)
        _, firsts = np.unique(like, return_index=True)
        return firsts.tolist(), like

    @cached_property
    def edges(self) -> Ints:
        """Dependencies (producer, reader) between jobs, shape (dependencies, 2)."""
        return edges_of([job.after for job in self.jobs])

    @cached_property
    def readers(self) -> list[tuple[int, ...]]:
        """For every tensor, the jobs that read it, in workload order."""
        lists: list[list[int]] = [[] for _ in self.tensors]
        for number, job in enumerate(self.jobs):
            for name in dict.fromkeys(operand.tensor for operand in job.reads):
                lists[self.tensor_index[name]].append(number)
        return [tuple(users) for users in lists]

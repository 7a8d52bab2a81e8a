"""Jobs and tensor instances, which lowering makes of networks for a target."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np

from loadmaster.core.arguments import instead
from loadmaster.core.arrays import Ints, edges_of
from loadmaster.core.errors import LoadmasterError
from loadmaster.workloads.graph import LoopNest


@dataclass(frozen=True, slots=True)
class NetworkTiming:
    """Mini-batch ``k`` of a network is released at ``k`` times its period, and due ``deadline``
    later (seconds); None: never."""

    network: str
    """Its name."""
    period: float
    """Seconds between the releases of its mini-batches."""
    deadline: float | None
    """Seconds after its release in which a mini-batch is due; null: never."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """What becomes of a mini-batch: none of its jobs starts before its release; ``latency`` later
    all have ended and outputs are there."""

    network: str
    """Name of the network."""
    number: int
    """Number of the mini-batch, from 0."""
    release: float
    """When it may begin, in seconds."""
    end: float
    """When it ends, in seconds."""
    latency: float
    """Seconds from its release to its end."""
    missed: bool
    """Whether it ends after its deadline."""


def network_timings(
    networks: Iterable[str],
    periods: Mapping[str, float],
    deadlines: Mapping[str, float],
    error: type[LoadmasterError],
) -> dict[str, NetworkTiming]:
    """The timing of every network, by its name; without a period it is there from the start,
    without a deadline never late.

    Raises ``error`` if a period or a deadline (seconds, by network) is of a network that there is
    not, or not more than zero and finite.
    """
    names = tuple(dict.fromkeys(networks))
    for what, given in (("deadline", deadlines), ("period", periods)):
        for name, seconds in given.items():
            require_network(what, name, names, error)
            if not 0 < seconds < float("inf"):
                raise error(f"{what} of {name!r}: {seconds} s must be more than zero, and finite")
    return {
        name: NetworkTiming(name, periods.get(name, 0.0), deadlines.get(name)) for name in names
    }


def require_network(
    what: str, name: str, networks: Iterable[str], error: type[LoadmasterError]
) -> None:
    """Raise ``error`` unless there is a network of that name; ``what`` is said of it."""
    names = tuple(networks)
    if name not in names:
        raise error(f"{what} of {name!r}: there is no such network: {instead(name, names)}")


class Role(StrEnum):
    """The role of an operand in its job's loop nest, which decides how often its bytes are fetched
    again."""

    INPUT = "input"
    WEIGHT = "weight"
    OUTPUT = "output"
    ONCE = "once"
    """Outside the loop nests: each byte moves exactly once."""


Ranges = tuple[tuple[int, ...], ...]
"""First element and the one after the last, for every dimension of something."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A job's use of the box ``ranges`` of one tensor instance, empty for all that it holds:
    ``bytes`` is the least that it moves, ``nest`` the loop nest it belongs to."""

    tensor: str
    bytes: int
    role: Role = Role.ONCE
    nest: int = -1
    ranges: Ranges = ()


@dataclass(frozen=True, slots=True)
class TensorInstance:
    """A tensor of one mini-batch, or a tile of it; a weight is shared by all mini-batches, and its
    mini-batch is 0.

    ``storage`` is its name in the network, and ``producer`` the index of the job that writes it, -1
    for none. It holds the box ``ranges`` of the storage as an array of ``shape``; all of it where
    that is empty. Of what is summed up in parts, ``summed`` says that a tensor is no part of the
    storage, but holds its sums over the range [first, last) of what is summed.
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

    ``after`` holds indices of the jobs whose results it reads; they are all smaller than its own
    index. ``ranges`` is the part of the operators' result that it makes; empty if that is all of
    it, or not known. ``summed`` is the range of what is summed that it adds to the sums of the
    piece before it in its chain, of which the last makes the result; empty if it sums over all.
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
        """What the costs of a job follow from, equal for jobs that share their loop nests and whose
        operands are of the same sizes."""
        reads, writes = (
            [(o.bytes, o.role, o.nest) for o in side] for side in (self.reads, self.writes)
        )
        return id(self.nests), self.kind, self.elements, self.bits, len(reads), *reads, *writes


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """An operator that some job must cover, and the tensors, by their names in the network, that it
    reads and writes; of an operator in pieces also the ``shape`` of its result."""

    name: str
    """Its name."""
    reads: tuple[str, ...]
    """Tensors, by their names in the network."""
    writes: tuple[str, ...]
    """Tensors, by their names in the network."""
    shape: tuple[int, ...] = ()
    """Shape of the result of an operator in pieces; else empty."""


@dataclass(frozen=True)
class NetworkInfo:
    """The part of a network that a plan keeps: its source, its data flow, and remarks on unknown
    operators.

    ``operators`` are those that cost something, views resolved; ``inputs`` and ``outputs`` are
    tensors, by their names in the network, and ``unused`` those that an operator writes, nobody
    reads, and the network does not return. ``batch`` is the leading dimension of the first input.
    """

    name: str
    """Its name in the plan."""
    source: str
    """Where it was read from."""
    precision: str
    """Precision of most of its arithmetic."""
    mini_batches: int
    """Instances of it."""
    batch: int
    """Leading dimension of its first input."""
    macs: int
    """Multiply-accumulates of one mini-batch."""
    operators: tuple[OperatorInfo, ...]
    """Operators that some job covers."""
    outputs: tuple[str, ...]
    """Tensors that it returns."""
    unknown: tuple[str, ...] = ()
    """Kinds of operators that were not understood."""
    notes: tuple[str, ...] = ()
    """Remarks; their wording is not stable."""
    inputs: tuple[str, ...] = ()
    """Tensors that the caller gives."""
    unused: tuple[str, ...] = ()
    """Tensors that are written and that nobody uses."""


def operand_bytes(jobs: Sequence[Job]) -> Ints:
    """Bytes of the operands of jobs, reads before writes, as rows of a job table come."""
    return np.array([o.bytes for job in jobs for o in (*job.reads, *job.writes)], dtype=np.int64)


@dataclass(frozen=True)
class Workload:
    """All jobs of all networks, in an order in which one core could run them, with the tensor
    instances that they use."""

    networks: tuple[NetworkInfo, ...]
    jobs: tuple[Job, ...]
    tensors: tuple[TensorInstance, ...]

    @cached_property
    def tensor_index(self) -> dict[str, int]:
        """Index of every tensor instance by name."""
        return {tensor.name: i for i, tensor in enumerate(self.tensors)}

    @cached_property
    def alike(self) -> tuple[list[int], Ints]:
        """One job of each kind, and for every job which of these it is like, shape (jobs,).

        Jobs are alike if they have the very same loop nests, as those of all mini-batches have, and
        work and operands of the same sizes.
        """
        known: dict[object, int] = {}
        like = [known.setdefault(job.size, len(known)) for job in self.jobs]
        firsts = dict(zip(reversed(like), range(len(like) - 1, -1, -1), strict=True))
        return [firsts[kind] for kind in range(len(known))], np.array(like, dtype=np.int64)

    @cached_property
    def edges(self) -> Ints:
        """What waits for what: a job and one that needs its results, by their numbers, shape
        (dependencies, 2)."""
        return edges_of([job.after for job in self.jobs])

    @cached_property
    def readers(self) -> list[tuple[int, ...]]:
        """For every tensor, the jobs that read it, in workload order."""
        lists: list[list[int]] = [[] for _ in self.tensors]
        for number, job in enumerate(self.jobs):
            for operand in job.reads:
                own = lists[self.tensor_index[operand.tensor]]
                if not own or own[-1] != number:
                    own.append(number)
        return [tuple(users) for users in lists]

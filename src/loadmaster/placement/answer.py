"""Records of placements: residence of tensors over time, addresses, lower bound, and baselines."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from loadmaster.core.arrays import Floats
from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.core.provenance import CostBasis, costs_of
from loadmaster.core.registry import DisplayMixin, Status
from loadmaster.placement.decisions import DividedSequence, Mode, TensorPlacement
from loadmaster.placement.explain import Stretch
from loadmaster.placement.sequence import ROUNDING, KernelSequence
from loadmaster.placement.timing import MovementTimeline, moved_bytes


@dataclass(frozen=True)
class SimplerStrategyJson:
    """The result of a simpler strategy with the same kernels, costs and limit, before packing.

    It may move tensors, and copy beside kernels, whatever the mode."""

    name: str
    """Name of the strategy."""
    makespan: float | None
    """Seconds that the sequence of kernels takes; null where it cannot run."""
    moved_bytes: int
    """Bytes copied between the memories, in both directions."""
    reason: str = ""
    """Why it cannot run; empty if it can."""


@dataclass(frozen=True)
class Rival(SimplerStrategyJson):
    """The result of a rival with its placement; None if it cannot run or if hardware decides."""

    placement: TensorPlacement | None = None


@dataclass(frozen=True)
class KernelJson:
    """A kernel."""

    name: str
    """Name of the kernel."""
    algorithm: str
    """Name of the algorithm that was chosen."""


@dataclass(frozen=True)
class FastStay:
    """A stay of a tensor in the fast memory."""

    start: int
    """Number of the first kernel."""
    end: int
    """Number of the kernel before which it ends."""
    offset: int
    """Address in the fast memory, in bytes."""


@dataclass(frozen=True)
class Copy:
    """A copy of a tensor."""

    to: Literal["fast", "slow"]
    """The memory that it goes to."""
    start: int
    """Number of the kernel with which it begins."""
    end: int
    """Number of the kernel before which it ends."""


@dataclass(frozen=True)
class TensorJson:
    """A tensor: when it is in the fast memory, at which address, and when it is copied; kernels by
    number."""

    name: str
    """Name of the tensor."""
    kind: str
    """What the tensor is, such as weight or activation."""
    bytes: int
    """Size in bytes."""
    of: str
    """Name of the tensor that it is a piece of, or its own if it is whole."""
    begin: int
    """First byte of the piece there."""
    lifetime: Sequence[int]
    """Numbers of kernels: the first at which the tensor is there, and one more than the last."""
    fast: Sequence[FastStay]
    """Its stays in the fast memory."""
    copies: Sequence[Copy]
    """Its copies."""


def ratio(seconds: float, base: float) -> float:
    """Return a time relative to another: infinite if only the other is 0, 1 if both are."""
    return 1.0 if seconds == base else seconds / base if base else math.inf


@dataclass(frozen=True)
class CurvePoint:
    """A size of the fast memory."""

    capacity: int
    """Bytes of fast memory that may be used."""
    makespan: float | None = None
    """Seconds that the sequence of kernels takes; null if it does not fit."""
    lower_bound: float | None = None
    """Lower bound for all placements, in seconds; null if the sequence does not fit."""
    slowdown: float | None = None
    """The time relative to that with everything in the fast memory; null if it does not fit, or if
    only that takes no time."""
    reason: str = ABSENT
    """Why it does not fit."""


@dataclass(frozen=True)
class PlaceJson:
    """A placement of a network's tensors in a fast and a slow memory."""

    VERSION = 2
    network: str
    """Name of the network."""
    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best."""
    mode: Mode
    """How tensors may move: not at all, between kernels, or beside them."""
    strategy: str
    """Name of the strategy that found the answer."""
    seed: int
    """Seed of the search: the same input and seed give the same answer."""
    makespan: float
    """Seconds that the sequence of kernels takes."""
    lower_bound: float
    """Lower bound for all placements of this mode, in seconds."""
    gap: float | None
    """How far the value is above its lower bound, as a share of the bound; null where the bound is
    0 and the value is not."""
    all_fast_time: float
    """Seconds with everything in the fast memory, however small that is."""
    all_slow_time: float | None
    """Seconds with everything in the slow memory; null if kernels cannot use it."""
    slowdown: float | None
    """The time relative to that with everything in the fast memory; null if only that takes no
    time."""
    capacity: int
    """Bytes of fast memory that may be used."""
    peak: int
    """Highest address in use in the fast memory, in bytes."""
    peak_all_fast: int
    """Bytes of fast memory that the sequence takes without any copies."""
    moved_bytes: int
    """Bytes copied between the memories, in both directions."""
    moves: int
    """Number of copies."""
    seconds_per_gib: float
    """Seconds that another GiB of fast memory would save at most, by the price of its first byte.
    Everything fast may save less, as kernels read both memories at once."""
    rounds: int
    """Number of placements tried until one could be packed."""
    seconds: float
    """Seconds of wall-clock time that the command's work took."""
    cpu_seconds: float
    """Seconds of processor time that the command's work took, of all threads."""
    interrupted: bool
    """Whether a time limit or Ctrl-C ended the work early."""
    costs: CostBasis
    """What the costs rest on."""
    counters: Mapping[str, int]
    """What the strategy counted, by name; the names are not stable."""
    rivals: Sequence[SimplerStrategyJson]
    """Results of simpler strategies."""
    kernels: Sequence[KernelJson]
    """Every kernel, in order."""
    tensors: Sequence[TensorJson]
    """Every tensor."""
    max_slowdown: float = ABSENT
    """With --max-slowdown: the slowdown that was allowed, as a ratio to everything fast."""
    too_small: int | None = ABSENT
    """With --max-slowdown: the largest size in bytes that is known not to be enough; null if there
    is none."""
    curve: Sequence[CurvePoint] = ABSENT
    """With --curve: the time for sizes of the fast memory."""
    explained: Mapping[str, Sequence[Stretch]] = ABSENT
    """With --explain: by tensor, its lifetime in stretches."""


@dataclass(frozen=True, eq=False, repr=False)
class MemoryPlan(DisplayMixin):
    """A placement of every tensor of a kernel sequence, with addresses, estimated times and a lower
    bound.

    Attributes
    ----------
    sequence
        The kernel sequence. If tensors may have pages in both memories, its tensors are pieces of
        the given tensors.
    division
        The tensor of every piece; None if all tensors are whole.
    placement, offsets
        Decisions; the address of every stay, then of every kernel's workspace.
    timeline
        When each kernel and copy runs, estimated.
    lower_bound
        Seconds that any placement of this mode within ``limit`` takes at least, by the same
        estimates.
    larger_bound
        The same bound with one more GiB of fast memory.
    all_fast_seconds, all_slow_seconds
        Time with everything in the fast memory, however small that is, and with everything in the
        slow one (infinite if kernels cannot use it).
    limit, peak_fast
        Bytes of fast memory that may be used, and the highest address in use.
    prices
        Seconds that one more byte of fast memory would save while each kernel runs, shape
        (kernels,).
    rivals
        Results of simpler strategies.
    rounds
        Number of placements tried until one could be packed.
    """

    sequence: KernelSequence
    mode: Mode
    strategy: str
    placement: TensorPlacement
    offsets: tuple[int, ...]
    timeline: MovementTimeline
    lower_bound: float
    larger_bound: float
    all_fast_seconds: float
    all_slow_seconds: float
    limit: int
    peak_fast: int
    prices: Floats
    rivals: tuple[Rival, ...]
    rounds: int
    seed: int
    search_seconds: float
    cpu_seconds: float
    interrupted: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    division: DividedSequence | None = None

    @property
    def seconds(self) -> float:
        """Estimated seconds of the sequence."""
        return self.timeline.total

    @property
    def status(self) -> Status:
        """``optimal``: no placement of this mode takes less time, proven to within the rounding of
        sums of seconds, for which the bound is lowered. ``feasible``: a valid placement."""
        return "optimal" if self.gap <= 4 * ROUNDING else "feasible"

    @property
    def gap(self) -> float:
        """Distance of the time to the lower bound, relative to the bound; 0 where both are 0."""
        return max(0.0, ratio(self.seconds, self.lower_bound) - 1)

    @property
    def slowdown(self) -> float:
        """Time relative to that with everything in the fast memory."""
        return ratio(self.seconds, self.all_fast_seconds)

    def piece(self, tensor: int) -> tuple[str, int]:
        """Return the name of the whole tensor that a tensor of ``sequence`` belongs to, and the
        piece's first byte in it."""
        division = self.division
        if not division:
            return self.sequence.tensors[tensor].name, 0
        return division.whole.tensors[division.of[tensor]].name, division.begin[tensor]

    @property
    def moved_bytes(self) -> int:
        """Bytes copied in both directions."""
        return moved_bytes(self.sequence, self.placement)

    @property
    def price_per_gib(self) -> float:
        """Upper limit of the seconds that one more GiB of fast memory would save.

        The time may fall to the bound with that much memory, but not below the least time of all
        kernels. Placing everything in fast memory may save less, because kernels read both memories
        at once.
        """
        saved = self.seconds - max(self.larger_bound, self.sequence.least_seconds)
        return saved if saved > ROUNDING * self.seconds else 0.0

    def within(self, limit: int, other: object) -> MemoryPlan:
        """Return the same placement for a larger limit, with the bounds of another plan for it."""
        low, larger = (
            (other.lower_bound, other.larger_bound) if isinstance(other, MemoryPlan) else (0.0, 0.0)
        )
        return replace(self, limit=limit, lower_bound=low, larger_bound=larger)

    def as_json(self, **more: object) -> dict[str, Any]:
        """Return the JSON object that ``loadmaster place --json`` prints; ``more`` are the fields
        that only the command knows."""
        return json_of(
            self,
            PlaceJson,
            network=self.sequence.name,
            makespan=self.seconds,
            all_fast_time=self.all_fast_seconds,
            all_slow_time=self.all_slow_seconds,
            capacity=self.limit,
            peak=self.peak_fast,
            peak_all_fast=self.sequence.peak_bytes,
            moves=len(self.placement.moves),
            seconds_per_gib=self.price_per_gib,
            seconds=self.search_seconds,
            costs=costs_of(self.sequence.costs),
            kernels=[
                KernelJson(kernel.name, kernel.algorithms[at].name)
                for kernel, at in zip(self.sequence.kernels, self.placement.algorithms, strict=True)
            ],
            tensors=self._tensors(),
            **more,
        )

    def _tensors(self) -> Iterator[TensorJson]:
        """Yield each tensor with its lifetime, its stays in the fast memory and its copies."""
        stays, copies = defaultdict[int, list[FastStay]](list), defaultdict[int, list[Copy]](list)
        for stay, offset in zip(self.placement.stays, self.offsets, strict=False):
            stays[stay.tensor].append(FastStay(stay.start, stay.end, offset))
        for move in self.placement.moves:
            to: Literal["fast", "slow"] = "fast" if move.to_fast else "slow"
            copies[move.tensor].append(Copy(to, move.start, move.end))
        for t, tensor in enumerate(self.sequence.tensors):
            yield TensorJson(
                tensor.name,
                tensor.kind,
                tensor.bytes,
                *self.piece(t),
                self.sequence.lifetimes[t].tolist(),
                stays[t],
                copies[t],
            )

"""The answer to a packing problem: offsets, how good they are, and what proves it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from loadmaster.core.arrays import Ints
from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.core.shown import DisplayMixin

if TYPE_CHECKING:
    from loadmaster.allocation.problem import Problem

Status = Literal["optimal", "feasible", "infeasible", "unknown"]

LOAD = "load"
FRAGMENTATION = "fragmentation"
UNDECIDED = "undecided"

EXHAUSTED = "exhausted search"


@dataclass(frozen=True)
class Load:
    """What bounds every packing from below: ``bytes`` that the ``buffers`` (by id) need together at
    ``instant``.

    Without an instant, each two of them are alive together at one, though all of them never are; so
    no two may share an address.
    """

    bytes: int
    """Bytes."""
    instant: int | None
    """Instant at which they are needed, in the time of the file; null if each two of them are
    needed together somewhere, but not all at once."""
    buffers: tuple[str, ...]
    """Ids of the buffers that are there."""


@dataclass(frozen=True)
class Infeasibility:
    """Why buffers do not fit.

    Attributes
    ----------
    required, available, excess
        Bytes: the least that a packing of the buffers named needs as far as is proven, the
        capacity, and the difference. `Allocation.lower_bound` is what a packing of all needs.
    instant
        Where the buffers named are present together, or None if they never all are.
    kind
        ``load``: too many bytes at one instant, whatever is demanded. ``alignment``, ``pins``,
        ``reserved ranges``, or some of these with "and" between: the fewest demands without which
        they would fit. ``fragmentation``: none of these; at every instant there is room, but no
        packing uses it. ``undecided``: it is not known whether they would fit without demands.
    buffers
        Ids of buffers that cannot fit together; an alias group is its members' ids with ``+``
        between, a reserved range, or several that touch, ``(reserved LOW-HIGH)``.
    irreducible
        Whether leaving out any one of ``buffers`` makes the rest fit, each checked by an exhausted
        search.
    """

    required: int
    """Bytes that a packing needs, as far as is proven."""
    available: int
    """Bytes that there are."""
    excess: int
    """Bytes by which they exceed the room."""
    instant: int | None
    """Instant at which the buffers are present together, in the time of the file; null if they
    never all are."""
    kind: str
    """What stands in the way: load, alignment, pins, reserved ranges, some of these, or
    fragmentation."""
    buffers: tuple[str, ...]
    """Ids of buffers that cannot fit together."""
    irreducible: bool
    """Whether leaving out any one of them makes the rest fit."""

    def __str__(self) -> str:
        at = "" if self.instant is None else f" at instant {self.instant}"
        shown = ", ".join(self.buffers[:8]) + (
            f" and {len(self.buffers) - 8} more" if len(self.buffers) > 8 else ""
        )
        return (
            f"{self.kind}: {self.required} bytes required{at}, {self.available} available,"
            f" {self.excess} in excess: {shown}"
        )


Certificate = Load | Infeasibility | str


@dataclass(frozen=True)
class AllocationJson:
    """A packing of buffers in one memory."""

    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best, `infeasible` is proven to have no answer, `unknown` found none within the limits."""
    peak: int | None
    """Highest address in use, in bytes; null without a packing."""
    lower_bound: int
    """Bytes that any packing needs."""
    capacity: int | None
    """Bytes that may be used; null if the lowest peak was sought."""
    seconds: float
    """Seconds of wall-clock time that the command's work took."""
    cpu_seconds: float
    """Seconds of processor time that the command's work took, of all threads."""
    strategy: str
    """Name of the strategy that found the answer."""
    seed: int
    """Seed of the search: the same input and seed give the same answer."""
    interrupted: bool
    """Whether a time limit or Ctrl-C ended the work early."""
    counters: Mapping[str, int]
    """What the strategy counted, by name; the names are not stable."""
    buffers: int
    """Number of buffers."""
    certificate: Load | str | None = ABSENT
    """What proves the bound, a load or a search in words; null without a proof. Absent if the
    status is `infeasible`."""
    reason: Infeasibility | str | None = ABSENT
    """Why nothing fits. Only if the status is `infeasible`."""


@dataclass(frozen=True, eq=False, repr=False)
class Allocation(DisplayMixin):
    """Where each buffer goes.

    Attributes
    ----------
    status
        ``optimal``: proven, see ``certificate``. ``feasible``: a valid packing, not proven to be
        the lowest. ``infeasible``: proven that there is none. ``unknown``: none was found within
        the limits.
    offsets
        Bytes, one per buffer in the order given; None if there is no packing.
    peak
        Highest address in use, in bytes; None without a packing.
    lower_bound
        Bytes that any packing needs, proven.
    proof
        The certificate, or what computes it when it is asked for.
    interrupted
        A time limit or an interrupt ended the search; without one the answer is the same on every
        machine.
    seconds, cpu_seconds
        From the parsed problem to the answer.
    counters
        What the strategy counted: steps, nodes, backtracks, samples.
    asked
        The buffers, or what makes them when they are asked for; None if they are not kept.
    """

    status: Status
    offsets: Ints | None
    peak: int | None
    lower_bound: int
    capacity: int | None
    strategy: str
    seed: int
    seconds: float
    cpu_seconds: float
    proof: Certificate | Callable[[], Load] | None = None
    interrupted: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    asked: Problem | Callable[[], Problem] | None = None

    @property
    def problem(self) -> Problem | None:
        """The buffers that offsets are for, if they were kept."""
        return self.asked() if callable(self.asked) else self.asked

    @property
    def certificate(self) -> Certificate | None:
        """What proves ``optimal`` or ``infeasible``: the load at an instant, ``"exhausted
        search"``, or why nothing fits."""
        return self.proof() if callable(self.proof) else self.proof

    def as_json(self, buffers: int) -> dict[str, Any]:
        """Return the answer for so many buffers as `AllocationJson`."""
        key = "reason" if self.status == "infeasible" else "certificate"
        proof = {"certificate": ABSENT, key: self.certificate}
        return json_of(self, AllocationJson, buffers=buffers, **proof)

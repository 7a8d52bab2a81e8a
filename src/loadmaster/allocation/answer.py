"""The answer to a packing problem: offsets, how good they are, and what proves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from loadmaster.core.arrays import Ints
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
    instant: int | None
    buffers: tuple[str, ...]


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
    available: int
    excess: int
    instant: int | None
    kind: str
    buffers: tuple[str, ...]
    irreducible: bool

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

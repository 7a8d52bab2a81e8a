"""Records of packing problems and packings: buffers, offsets, bounds and certificates."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from loadmaster.core.arrays import Array, Ints, Mask
from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.core.registry import DisplayMixin

FREE = -1
"""Value of "no pin" and "no hint" in arrays."""

_NONE = np.empty(0, dtype=np.int64)
NO_IN_PLACE: Ints = np.empty((0, 3), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Gap:
    """Instants [lower, upper) at which a buffer is absent, or occupies only the bytes [window[0],
    window[1]) of itself."""

    lower: int
    upper: int
    window: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer: alive over [lower, upper) but for its gaps, ``size`` bytes at a multiple of
    ``alignment``.

    ``offset`` pins the buffer to an address; ``hint`` suggests one. With several memories,
    ``memory`` pins the buffer to a memory, and ``prefers`` lists the allowed memories, the best
    first, each with an optional cost. The default cost is size x accesses x rank in the list.
    """

    id: str
    lower: int
    upper: int
    size: int
    alignment: int = 1
    offset: int | None = None
    hint: int | None = None
    gaps: tuple[Gap, ...] = ()
    memory: str | None = None
    prefers: tuple[str | tuple[str, int], ...] = ()
    accesses: int = 1

    @classmethod
    def during(
        cls, id: str, lifetimes: Iterable[tuple[int, int]], size: int, **more: Any
    ) -> Buffer:
        """Make a buffer that is alive in several lifetimes, which may overlap, at one address in
        all of them."""
        spans = joined(lifetimes) or [(0, 0)]
        gaps = tuple(Gap(first[1], second[0]) for first, second in itertools.pairwise(spans))
        return cls(id, spans[0][0], spans[-1][1], size, gaps=gaps, **more)


AliasGroup: TypeAlias = tuple[tuple[int, int], ...]
"""Members of an alias group: buffers, and their bytes above the address of the group, which is that
of its lowest member."""
Preferences: TypeAlias = tuple[tuple[str, int | None], ...]
"""Names of memories in order of preference, each with its cost; None: by rank."""


class AllowedMemories(NamedTuple):
    """Allowed memories of each buffer: the memory it is pinned to, the allowed ones with their
    costs (None: by rank), and its accesses."""

    memory: tuple[str | None, ...]
    prefers: tuple[Preferences, ...]
    accesses: tuple[int, ...]

    @classmethod
    def anywhere(cls, count: int) -> AllowedMemories:
        """Return the defaults for ``count`` buffers: any memory, one access."""
        return cls((None,) * count, ((),) * count, (1,) * count)


class Parts(NamedTuple):
    """Rectangles that buffers occupy: over [lower, upper), buffer ``owner`` takes the bytes [low,
    high) relative to its offset.

    The gaps of a problem are given as what its buffers take meanwhile: nothing if [low, high) is
    empty. Several gaps of one buffer over the same instants are disjoint windows.
    """

    owner: Ints
    lower: Ints
    upper: Ints
    low: Ints
    high: Ints


NO_GAPS = Parts(_NONE, _NONE, _NONE, _NONE, _NONE)
COLUMNS = ("lower", "upper", "size", "alignment", "pin", "hint")
"""Fields of `Problem` with a whole number for every buffer."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Buffers as arrays, in the order in which they were given.

    Attributes
    ----------
    lower, upper, size, alignment
        One whole number per buffer.
    pin, hint
        Addresses, or -1.
    ids
        Names, or None: then the position is the name.
    gaps
        The gaps of all buffers.
    reserved
        Address ranges [low, high) that no buffer may occupy. Bytes that a buffer never occupies may
        lie in them.
    aliases
        Groups of (buffer, shift): each buffer of a group lies ``shift`` bytes above the group's
        address. Buffers of a group may overlap while both are alive.
    in_place
        Rows (one, other, shift): the two buffers may overlap if ``other`` lies ``shift`` bytes
        above ``one``.
    conflicts
        Pairs of buffers that must not overlap, one per row, for buffers without a common clock:
        they replace lifetimes, also empty ones, and gaps are ignored.
    allowed
        Allowed memories of buffers, if there are several memories.
    """

    lower: Ints
    upper: Ints
    size: Ints
    alignment: Ints
    pin: Ints
    hint: Ints
    ids: tuple[str, ...] | None = None
    gaps: Parts = NO_GAPS
    reserved: tuple[tuple[int, int], ...] = ()
    aliases: tuple[AliasGroup, ...] = ()
    in_place: Ints = field(default_factory=lambda: NO_IN_PLACE)
    conflicts: Ints | None = None
    allowed: AllowedMemories | None = None

    def __len__(self) -> int:
        return len(self.size)

    def name(self, buffer: int) -> str:
        """Id of a buffer."""
        return self.ids[buffer] if self.ids is not None else str(buffer)

    @cached_property
    def solid(self) -> Mask:
        """Mask of the buffers that occupy any bytes at any time; without a clock, all that have
        bytes."""
        if self.conflicts is not None:
            return self.size > 0
        alive = self.upper - self.lower
        if len(self.gaps.owner):
            owner, lower, upper, low, high = self.gaps
            np.subtract.at(alive, owner, np.where(low < high, 0, upper - lower))
        return (self.size > 0) & (alive > 0)

    @cached_property
    def features(self) -> frozenset[str]:
        """Names of the demands beyond lifetimes and sizes."""
        present = {
            "alignment": bool((self.alignment != 1).any()),
            "pins": bool((self.pin >= 0).any()),
            "gaps": bool(len(self.gaps.owner)),
            "windows": bool((self.gaps.high > self.gaps.low).any()),
            "reserved ranges": bool(self.reserved),
            "aliases": bool(self.aliases),
            "in-place pairs": bool(len(self.in_place)),
            "conflict pairs": self.conflicts is not None,
        }
        return frozenset(name for name, there in present.items() if there)

    @cached_property
    def parts(self) -> Parts:
        """The rectangles that buffers occupy, sorted by owner and instant; without a clock, whole
        buffers. O(n + gaps log gaps)."""
        gaps = self.gaps if self.conflicts is None else NO_GAPS
        index = np.flatnonzero(self.solid)
        if not len(gaps.owner):
            zeros = np.zeros(len(index), dtype=np.int64)
            upper = np.maximum(self.upper, self.lower + 1)[index]
            return Parts(index, self.lower[index], upper, zeros, self.size[index])
        order = np.lexsort((gaps.lower, gaps.owner))
        gaps = Parts(*(column[order] for column in gaps))
        # Buffers are whole between gaps.
        every = np.arange(len(self))
        owners = np.concatenate([every, gaps.owner]), np.concatenate([gaps.owner, every])
        begun, ended = (np.argsort(owner, kind="stable") for owner in owners)
        owner = owners[0][begun]
        whole = (
            owner,
            np.concatenate([self.lower, gaps.upper])[begun],
            np.concatenate([gaps.lower, self.upper])[ended],
            np.zeros_like(owner),
            self.size[owner],
        )
        rows = Parts(*map(np.concatenate, zip(whole, gaps, strict=True)))
        order = np.lexsort((rows.lower, rows.owner))
        kept = self.solid[rows.owner] & (rows.lower < rows.upper) & (rows.low < rows.high)
        return Parts(*(column[order[kept[order]]] for column in rows))

    @cached_property
    def alias_rows(self) -> Ints:
        """The members of all alias groups, as rows (number of the group, buffer, shift)."""
        rows = [(number, *member) for number, group in enumerate(self.aliases) for member in group]
        return np.array(rows, dtype=np.int64).reshape(-1, 3)

    @cached_property
    def sections(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """The parts as (first, lower, upper, low, high), where ``first`` indexes each owner's first
        part."""
        owner, lower, upper, low, high = map(np.ascontiguousarray, self.parts)
        return np.searchsorted(owner, np.arange(len(self) + 1)), lower, upper, low, high

    def only(self, keep: Ints) -> Problem:
        """The subproblem of some buffers, by index, with the same demands except allowed
        memories."""
        place = np.full(len(self), -1, dtype=np.int64)
        place[keep] = np.arange(len(keep))
        gapped = place[self.gaps.owner] >= 0
        gaps = Parts(place[self.gaps.owner[gapped]], *(column[gapped] for column in self.gaps[1:]))
        aliases = tuple(
            tuple((int(place[i]), shift) for i, shift in group if place[i] >= 0)
            for group in self.aliases
        )
        return replace(
            self,
            **{name: getattr(self, name)[keep] for name in COLUMNS},
            ids=tuple(self.name(int(i)) for i in keep),
            gaps=gaps,
            aliases=tuple(group for group in aliases if len(group) > 1),
            in_place=_pairs_among(place, self.in_place),
            conflicts=None if self.conflicts is None else _pairs_among(place, self.conflicts),
            allowed=None,
        )


BuffersLike: TypeAlias = Problem | Sequence[Any] | Mapping[str, Any] | Array
"""Buffers as a problem, as `Buffer` records, as arrays (lower, upper, size), or as a mapping of
arrays."""


def _pairs_among(place: Ints, rows: Ints) -> Ints:
    """Keep rows whose two buffers are both kept, and renumber them by ``place``."""
    renamed = rows.copy()
    renamed[:, :2] = place[rows[:, :2]]
    return renamed[(renamed[:, :2] >= 0).all(axis=1)]


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges, merge those that touch, and drop empty ones."""
    found: list[tuple[int, int]] = []
    for low, high in sorted(span for span in ranges if span[0] < span[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


Status = Literal["optimal", "feasible", "infeasible", "unknown"]

EXHAUSTED = "exhausted search"


@dataclass(frozen=True)
class Load:
    """A lower bound of the peak: ``bytes`` that the ``buffers`` (by id) need together at
    ``instant``.

    Without an instant, the buffers are pairwise alive together, though never all at once; so no two
    may share an address.
    """

    bytes: int
    """Bytes of the buffers together."""
    instant: int | None
    """Instant at which all are alive, in the time of the file; null if they are only pairwise alive
    together."""
    buffers: tuple[str, ...]
    """Ids of the buffers."""


@dataclass(frozen=True)
class Infeasibility:
    """Why buffers do not fit.

    Attributes
    ----------
    required, available, excess
        Bytes: the proven minimum for the named buffers, the capacity, and the difference.
        `Allocation.lower_bound` is the bound for all buffers.
    instant
        An instant at which all named buffers are alive, or None.
    kind
        ``load``: too many bytes at one instant, even without demands. ``alignment``, ``pins``,
        ``reserved ranges``, or some of these with "and" between: the fewest demands without which
        the buffers would fit. ``fragmentation``: the bytes fit at every instant, but there is no
        packing. ``undecided``: it is not known whether they would fit without demands.
    buffers
        Ids of buffers that cannot fit together; an alias group is its members' ids with ``+``
        between, a reserved range, or several that touch, ``(reserved LOW-HIGH)``.
    irreducible
        Whether leaving out any one of ``buffers`` makes the rest fit, each checked by an exhausted
        search.
    """

    required: int
    """Proven minimum of bytes for the buffers."""
    available: int
    """Capacity in bytes."""
    excess: int
    """Difference of the two."""
    instant: int | None
    """Instant at which all the buffers are alive, in the time of the file; null if there is
    none."""
    kind: str
    """The cause: load, alignment, pins, reserved ranges, some of these, fragmentation, or
    undecided."""
    buffers: tuple[str, ...]
    """Ids of buffers that cannot fit together."""
    irreducible: bool
    """Whether the buffers fit if any one of them is left out."""

    def __str__(self) -> str:
        """Return one line with the bytes required and the first eight buffers."""
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
    """Why the buffers do not fit. Only if the status is `infeasible`."""


@dataclass(frozen=True, eq=False, repr=False)
class Allocation(DisplayMixin):
    """A packing of buffers in one memory.

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
        The certificate, or a function that computes it.
    interrupted
        A time limit or an interrupt ended the search; without one the answer is the same on every
        machine.
    seconds, cpu_seconds
        From the parsed problem to the answer.
    counters
        What the strategy counted: steps, nodes, backtracks, samples.
    asked
        The problem, or a function that makes it; None if it was not kept.
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
        """The packing problem, if it was kept."""
        return self.asked() if callable(self.asked) else self.asked

    @property
    def certificate(self) -> Certificate | None:
        """The proof of ``optimal`` or ``infeasible``: a load, ``"exhausted search"``, or the reason
        of infeasibility."""
        return self.proof() if callable(self.proof) else self.proof

    def as_json(self, buffers: int) -> dict[str, Any]:
        """Return the packing of ``buffers`` buffers as `AllocationJson`."""
        key = "reason" if self.status == "infeasible" else "certificate"
        proof = {"certificate": ABSENT, key: self.certificate}
        return json_of(self, AllocationJson, buffers=buffers, **proof)

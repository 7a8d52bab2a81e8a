"""Records of problems with several memories: memories, costs of buffers in them, and packings.

A buffer is allowed in some memories, in order of preference, with a cost in each. By default the
cost is size x accesses x rank, 0 in the preferred memory: spilled bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import index
from typing import Any

import numpy as np

from loadmaster.allocation.problem import Allocation, Infeasibility, Problem, Status
from loadmaster.allocation.rules import is_whole, ranges_of
from loadmaster.core.arguments import as_whole, require_type
from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.errors import AllocationError
from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.core.registry import DisplayMixin

FORBIDDEN = -1
"""Cost of a memory where a buffer is not allowed."""


@dataclass(frozen=True, slots=True)
class Bank:
    """One memory: ``capacity`` bytes (None: unlimited), the alignment of offsets, and ``reserved``
    address ranges."""

    name: str
    capacity: int | None = None
    alignment: int = 1
    reserved: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class BankJson:
    """Use of a memory."""

    capacity: int | None
    """Size in bytes; null if unlimited."""
    alignment: int
    """Alignment of addresses in bytes."""
    peak: int = ABSENT
    """Highest address in use, in bytes. Absent without a packing."""
    buffers: int = ABSENT
    """Number of buffers in it. Absent without a packing."""


@dataclass(frozen=True)
class BankAllocationJson:
    """A packing of buffers in several memories. Offsets are in the file that `--out` writes."""

    VERSION = 1
    status: Status
    """How good the answer is: `optimal` is proven, `feasible` holds but is not proven to be the
    best, `infeasible` is proven to have no answer, `unknown` found none within the limits."""
    cost: int | None
    """Cost of the packing, in the unit of the file's costs (bytes if it has none); null without a
    packing."""
    lower_bound: int
    """Lower bound of the cost of every packing, in the unit of `cost`."""
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
    memories: Mapping[str, BankJson]
    """By memory, its use."""
    reason: Infeasibility | str | None
    """Why the buffers do not fit; null if not known."""


@dataclass(frozen=True, eq=False, repr=False)
class BankAllocation(DisplayMixin):
    """A packing of buffers in several memories.

    Attributes
    ----------
    status
        ``optimal``: no packing costs less, proven. ``feasible``: a valid packing. ``infeasible``:
        proven that there is none. ``unknown``: none was found within the limits.
    memory, offsets
        Name of a memory and address in it, one per buffer in the order given; None without a
        packing.
    cost, lower_bound
        Cost of the packing, and the lower bound of every packing's cost, proven in integers.
    packings
        For each memory by name the allocation of the buffers in it, in their order.
    reason
        Why the buffers do not fit, if known.
    """

    status: Status
    memory: tuple[str, ...] | None
    offsets: Ints | None
    cost: int | None
    lower_bound: int
    banks: tuple[Bank, ...]
    packings: dict[str, Allocation]
    strategy: str
    seed: int
    seconds: float
    cpu_seconds: float
    reason: Infeasibility | str | None = None
    interrupted: bool = False
    counters: dict[str, int] = field(default_factory=dict)

    def as_json(self, buffers: int) -> dict[str, Any]:
        """Return the packing of ``buffers`` buffers as `BankAllocationJson`."""
        memories = {bank.name: json_of(bank, BankJson) for bank in self.banks}
        for name, packing in self.packings.items():
            if packing.offsets is not None:
                memories[name] |= {"peak": packing.peak, "buffers": len(packing.offsets)}
        return json_of(self, BankAllocationJson, buffers=buffers, memories=memories)


def check_banks(banks: Sequence[Bank]) -> tuple[Bank, ...]:
    """Raise `AllocationError` for malformed memories."""
    if not banks:
        raise AllocationError("memories: give at least one")
    checked = []
    for bank in banks:
        require_type(bank, Bank, "a memory", AllocationError)
        spot = f"memory {bank.name!r}"
        if not isinstance(bank.name, str) or not bank.name or set(bank.name) & set(" ,:=\t\n"):
            raise AllocationError(
                f"{spot}: a name has at least one letter, and no blanks, commas, colons or equals"
                " signs"
            )
        if bank.capacity is not None and not is_whole(bank.capacity):
            raise AllocationError(
                f"{spot}: capacity is {bank.capacity!r}: give a whole number of bytes from 0 to"
                " 2^62 - 1, or none"
            )
        if not is_whole(bank.alignment, 1, 2**40):
            raise AllocationError(
                f"{spot}: alignment is {bank.alignment!r}: give a whole number of at least 1 and"
                " less than 2^40"
            )
        ranges = ranges_of(bank.reserved, f"{spot}: reserved")
        for low, high in ranges:
            if not 0 <= low <= high:
                raise AllocationError(
                    f"{spot}: reserved range {low}-{high}: it must not be reversed and must lie"
                    " between 0 and 2^62"
                )
        checked.append(Bank(bank.name, as_whole(bank.capacity), index(bank.alignment), ranges))
    names = [bank.name for bank in banks]
    if twice := [name for name in names if names.count(name) > 1]:
        raise AllocationError(f"memory {twice[0]!r} is there twice: give each its own name")
    return tuple(checked)


def costs_of(problem: Problem, banks: Sequence[Bank], given: Any = None) -> Ints:
    """Cost of every buffer in every memory, shape (buffers, memories); `FORBIDDEN` where it is not
    allowed.

    Raises
    ------
    AllocationError
        If a buffer names a memory that does not exist or has none left, or the costs add up to 2^62
        or more.
    """
    if given is None:
        cost = _preference_costs(problem, {bank.name: at for at, bank in enumerate(banks)})
    else:
        table = np.array(given, dtype=object)
        if table.shape != (len(problem), len(banks)) or not all(
            is_whole(value, FORBIDDEN) for value in table.ravel()
        ):
            raise AllocationError(
                "cost: give whole numbers of at least 0, or -1, of shape"
                f" {(len(problem), len(banks))}"
            )
        cost = table.astype(np.int64)
    unplaced = np.flatnonzero((cost == FORBIDDEN).all(axis=1))
    if len(unplaced):
        raise AllocationError(
            f"buffer {problem.name(int(unplaced[0]))!r}: may live in no memory: allow it one"
        )
    if sum(cost.max(axis=1).tolist()) >= WHOLE_LIMIT:
        raise AllocationError("costs add up to 2^62 or more: scale them down")
    return cost


def _preference_costs(problem: Problem, index: dict[str, int]) -> Ints:
    """Return the costs of memories in order of preference."""
    allowed = problem.allowed
    assert allowed is not None
    rows = []
    sizes = problem.size.tolist()
    for buffer, (memory, prefers, accesses) in enumerate(zip(*allowed, strict=True)):
        row = [FORBIDDEN] * len(index)
        for rank, (name, cost) in enumerate(
            prefers or [(name, None) for name in ([memory] if memory else index)]
        ):
            if name not in index:
                raise AllocationError(
                    f"buffer {problem.name(buffer)!r}: memory {name!r} does not exist: there are"
                    f" {', '.join(index)}"
                )
            row[index[name]] = sizes[buffer] * accesses * rank if cost is None else cost
        if memory is not None:
            if memory not in index or row[index[memory]] == FORBIDDEN:
                raise AllocationError(
                    f"buffer {problem.name(buffer)!r}: memory {memory!r} is not among those it"
                    " prefers: add it"
                )
            row = [cost if at == index[memory] else FORBIDDEN for at, cost in enumerate(row)]
        if max(row) >= WHOLE_LIMIT:
            raise AllocationError(
                f"buffer {problem.name(buffer)!r}: costs {max(row)}, 2^62 or more: scale the costs"
                " down"
            )
        rows.append(row)
    return np.array(rows, dtype=np.int64).reshape(-1, len(index))


def cheapest_first(costs: Ints) -> Ints:
    """Numbers of the memories in the order of each buffer's costs, forbidden ones last."""
    last = np.iinfo(np.int64).max
    return np.argsort(np.where(costs == FORBIDDEN, last, costs), axis=1, kind="stable")


def in_bank(problem: Problem, members: Ints, bank: Bank) -> Problem:
    """The subproblem of the buffers in one memory."""
    part = problem.only(members)
    return replace(part, alignment=np.lcm(part.alignment, bank.alignment), reserved=bank.reserved)

"""Allocation in several memories: assign each buffer to a memory, pack each memory, and bound the
cost of every assignment.

An integer program over the instants finds the assignment. If a memory cannot be packed although its
load fits, the program is solved again: for less capacity, and with a cut if it is proven that
buffers cannot be in it together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from loadmaster.allocation.allocate import aligned, check_limits, solve
from loadmaster.allocation.fit_or_tighten import fit_or_tighten
from loadmaster.allocation.memories.integer_program import AssignmentProgram, prove
from loadmaster.allocation.memories.problem import (
    FORBIDDEN,
    Bank,
    BankAllocation,
    cheapest_first,
    check_banks,
    costs_of,
    in_bank,
)
from loadmaster.allocation.memories.relaxation import CoverCut, Relaxation, relax
from loadmaster.allocation.memories.spilling import spill
from loadmaster.allocation.memories.verify import broken_bank_rules
from loadmaster.allocation.native import merged
from loadmaster.allocation.problem import (
    FREE,
    Allocation,
    BuffersLike,
    Infeasibility,
    Problem,
    Status,
)
from loadmaster.allocation.rules import check_pins, problem_of_banks
from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import AllocationError, CapacityError, LoadmasterError
from loadmaster.core.progress import Deadline, Stopwatch

_MOST = 5_000
"""Most buffers for which the integer program is solved."""
_CELLS, _MOST_ENTRIES = 2_000_000, 20_000_000
"""Most entries of the integer program, and of its linear relaxation."""
_ROUNDS = 40
"""Most solutions of the program with further cuts."""
_WORK = 5_000_000
"""Budget of each branch and bound, of HiGHS and of the proof of optimality, in entries x nodes."""
_PACKINGS = 10
"""Packings that share the usual budget of one."""
_STEP = 24
"""Part of a memory's room by which it is lowered at most where a packing fails: half of it, each
time. Larger steps leave more room empty, smaller ones take more solutions."""


@validate_arguments(AllocationError)
def allocate_banks(
    buffers: BuffersLike,
    memories: Iterable[Bank],
    *,
    cost: Any = None,
    strategy: str = "auto",
    alignment: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int = 1,
    effort: Effort | str = Effort.NORMAL,
    **demands: Any,
) -> BankAllocation:
    """Give each buffer a memory and an address in it, at the least cost.

    Parameters
    ----------
    buffers
        As for `allocate`. Records may name memories: ``memory`` pins a buffer to one, ``prefers``
        lists the allowed ones, the best first (by default all, in the order given here). A buffer
        with a pinned offset must be allowed in one memory only.
    memories
        The memories; one without a capacity takes all spilled buffers.
    cost
        Whole numbers of shape (buffers, memories) that replace the costs of the records; -1 where a
        buffer is not allowed.
    strategy
        Strategy that packs each memory, as for `allocate`.
    alignment
        Bytes; every offset is a multiple of it, in every memory.
    time_limit, seed, threads, effort
        As for `allocate`.
    **demands
        ``aliases`` (they share a memory, too), ``in_place``, ``conflicts``: see `Problem`. Reserved
        ranges belong to a memory.

    Returns
    -------
    BankAllocation
        Memories and offsets, the cost, and its lower bound. ``optimal`` only if the two are equal,
        in whole numbers. The assignment is greedy and the bound that of a linear program; for up to
        5,000 buffers an integer program improves both.

    Raises
    ------
    AllocationError
        If the problem or a memory is malformed, or a demand is not supported.
    """
    banks = check_banks(tuple(memories))
    problem = aligned(problem_of_banks(buffers, **demands), alignment)
    check_limits(None, time_limit, seed, threads)
    if problem.reserved:
        raise AllocationError("reserved ranges: give them to a memory, not to all")
    watch = Stopwatch()
    costs = costs_of(problem, banks, cost)
    problem = replace(problem, allowed=None)
    task = _task(
        problem,
        banks,
        costs,
        strategy,
        int(seed),
        threads,
        Deadline.within(time_limit),
        Effort.of(effort, AllocationError),
    )
    try:
        task.run()
    except KeyboardInterrupt:
        task.interrupted = True
        if task.cost is None:
            task.spill()
    return _answer(problem, costs, task, watch)


def _task(problem: Problem, banks: tuple[Bank, ...], costs: Ints, *options: Any) -> _Task:
    """Make the search problem: each alias group becomes one buffer, allowed where all its members
    are. ``options`` are those of the packings of single memories, as `_Task` has them."""
    blocks, place, lift = merged(problem)
    costs_of_blocks = np.zeros((len(blocks), len(banks)), dtype=np.int64)
    np.add.at(costs_of_blocks, place, np.maximum(costs, 0))
    forbidden = np.zeros(costs_of_blocks.shape, dtype=bool)
    np.logical_or.at(forbidden, place, costs == FORBIDDEN)
    costs_of_blocks[forbidden] = FORBIDDEN
    _check_residues(problem, lift, banks)
    _check_allowed_memories(blocks, banks, costs_of_blocks)
    kept = np.flatnonzero(blocks.solid)
    solid, block_costs = blocks.only(kept), costs_of_blocks[kept]
    return _Task(
        solid,
        banks,
        block_costs,
        relax(solid, banks, block_costs),
        _Blocks(place, lift, kept, np.maximum(blocks.pin, 0), _cheapest(costs_of_blocks)),
        *options,
    )


@dataclass(frozen=True)
class _Blocks:
    """The reduction of buffers to blocks: each buffer's block (``place``) and distance above it
    (``lift``); the blocks that take space (``kept``), and memory and offset of the others."""

    place: Ints
    lift: Ints
    kept: Ints
    offsets: Ints
    memory: Ints

    def of(self, chosen: Ints, offsets: Ints) -> tuple[Ints, Ints]:
        """Memory and offset of each buffer."""
        memory, at = self.memory.copy(), self.offsets.copy()
        memory[self.kept], at[self.kept] = chosen, offsets
        return memory[self.place], at[self.place] + self.lift


def _check_residues(problem: Problem, lift: Ints, banks: tuple[Bank, ...]) -> None:
    """Check that the alignment of each memory is compatible with the alignments within alias
    groups."""
    for group in problem.aliases if any(bank.alignment > 1 for bank in banks) else ():
        if min(int(lift[member]) for member, _ in group):
            names = ", ".join(repr(problem.name(member)) for member, _ in group)
            what = (
                "the alignments of all members must hold for a group that begins at an aligned"
                " address: relax one"
            )
            raise AllocationError(f"aliases: {names} with memories that have an alignment: {what}")


def _check_allowed_memories(problem: Problem, banks: tuple[Bank, ...], costs: Ints) -> None:
    """Check that every group has a common memory, that pins are for one memory, and that pins in
    one memory do not contradict one another."""
    count = (costs != FORBIDDEN).sum(axis=1)
    for buffer in np.flatnonzero(count == 0).tolist():
        raise AllocationError(
            f"aliases: {problem.name(buffer)!r} must share a memory, and there is none where all"
            " may live"
        )
    for buffer in np.flatnonzero((count > 1) & (problem.pin >= 0)).tolist():
        raise AllocationError(
            f"buffer {problem.name(buffer)!r}: offset is pinned, but not the memory: name the one"
            " it lives in"
        )
    for at, bank in enumerate(banks):
        check_pins(
            in_bank(problem, np.flatnonzero((problem.pin >= 0) & (costs[:, at] != FORBIDDEN)), bank)
        )


@dataclass
class _Task:
    """The search: blocks, costs, relaxation, and the best assignment so far."""

    problem: Problem
    banks: tuple[Bank, ...]
    costs: Ints
    relaxation: Relaxation
    blocks: _Blocks
    strategy: str
    seed: int
    threads: int
    deadline: Deadline
    effort: Effort
    chosen: Ints | None = None
    offsets: Ints | None = None
    cost: int | None = None
    lower: int = 0
    infeasible: bool = False
    reason: Infeasibility | str | None = None
    interrupted: bool = False
    counters: Counter[str] = field(default_factory=Counter)
    _packed: dict[tuple[int, bytes, int | None], Allocation] = field(default_factory=dict)

    @property
    def _ceiling(self) -> int:
        """The cost that an assignment has to beat: the best known, or more than any assignment
        costs."""
        return (
            sum(self.costs.max(axis=1, initial=0).tolist()) + 1 if self.cost is None else self.cost
        )

    @property
    def _done(self) -> bool:
        """Whether the answer is proven or the time is over."""
        if self.infeasible or (self.cost is not None and self.lower >= self.cost):
            return True
        if self.deadline.passed():
            self.interrupted = True
        return self.interrupted

    def run(self) -> None:
        """Start greedily, compute a bound, then solve, pack and add cuts in turn."""
        self.spill()
        self._raise(self.relaxation.total(_cheapest(self.costs)))
        allowed = self.costs != FORBIDDEN
        lengths = self.relaxation.last - self.relaxation.first
        entries = int(lengths @ allowed[self.relaxation.owner].sum(axis=1))
        if self.infeasible or self.lower == self._ceiling or entries > _MOST_ENTRIES:
            return
        # A bound is worth a second more.
        program = AssignmentProgram(self.relaxation, 1.0 if self._done else self.deadline.left())
        prices, _ = program.linear(allowed)
        self._raise(self.relaxation.bound(prices, allowed))
        if len(self.costs) > _MOST or entries > _CELLS:
            return
        nodes = max(20, self.effort.share(_WORK) // (entries + 100 * len(self.costs)))
        goes_on = True
        for _ in range(_ROUNDS):
            # In this order: a round that ends by the time limit is said to be interrupted.
            if self._done or not goes_on:
                return
            goes_on = self._round(nodes)
            self.counters["rounds"] += goes_on

    def spill(self, known: tuple[Ints, Ints] | None = None) -> None:
        """Search for a packing from the cheapest memory of every buffer, and from a ``known``
        packing of some of them, by default of those that have one memory only."""
        nodes = 0 if self._done else self.effort.nodes
        if known is None:
            single = (self.costs != FORBIDDEN).sum(axis=1) == 1
            known = self._packing(np.where(single, _cheapest(self.costs), FREE))[:2]
        if self.infeasible:
            return
        found = spill(self.problem, self.banks, self.relaxation, known, self._pack, nodes)
        if found is not None:
            self._keep(*found)

    def _round(self, nodes: int) -> bool:
        """Solve the program once and pack the assignment; return False if the search is over."""
        program = AssignmentProgram(self.relaxation, self.deadline.left())
        program.tighten()
        better = program.integer(nodes)
        if (
            better is None
            or not self.relaxation.holds(better)
            or self.relaxation.total(better) >= self._ceiling
        ):
            better = self._prove(program, self._ceiling, nodes)
        if better is None:
            return False
        cuts, room = len(self.relaxation.cuts), np.array([*self.relaxation.room.values()])
        rounds = 2 * self.effort.packings
        fit_or_tighten(better, self._assign_within, self._try, room, 0 * room, rounds=rounds)
        if self.relaxation.total(better) == self.cost:
            return True
        self.spill(self._packing(better)[:2])
        if len(self.relaxation.cuts) == cuts:
            self._prove(program, min(self._ceiling, self.relaxation.total(better)), nodes)
        return len(self.relaxation.cuts) > cuts

    def _prove(self, program: AssignmentProgram, ceiling: int, nodes: int) -> Ints | None:
        """Raise the lower bound by branch and bound; return a cheaper choice of memories if one was
        found."""
        proof = prove(program, self.relaxation, ceiling, nodes)
        self.counters["nodes"] += proof.nodes
        self._raise(proof.bound)
        return proof.better

    def _raise(self, bound: int) -> None:
        """Raise the lower bound; a bound above all costs proves infeasibility."""
        if self.cost is None and bound >= self._ceiling:
            self.infeasible = True
            self.reason = (
                self.reason
                or "the memories are too small at some instant, whichever buffers live in which"
            )
        self.lower = max(self.lower, min(bound, self._ceiling))

    def _assign_within(self, limits: Ints) -> Ints:
        """Return an assignment cheaper than the best within limits of the memories that have one.
        Raises `CapacityError`."""
        room = dict(zip(self.relaxation.room, limits.tolist(), strict=True))
        tightened = replace(self.relaxation, room=room)
        chosen = AssignmentProgram(tightened, self.deadline.left()).integer(nodes=1)
        if (
            chosen is None
            or self._done
            or not tightened.holds(chosen)
            or tightened.total(chosen) >= self._ceiling
        ):
            raise CapacityError("no assignment is cheaper")
        return chosen

    def _try(self, chosen: Ints, _: int) -> bool | Ints:
        """Pack an assignment, fill what it leaves empty, and return True; or return by how much it
        exceeds the memories."""
        memory, offsets, excess = self._packing(chosen)
        if (memory == FREE).any():
            return excess
        self._keep(memory, offsets)
        self.spill((memory, offsets))
        return True

    def _packing(self, chosen: Ints) -> tuple[Ints, Ints, Ints]:
        """Pack an assignment: return memory and offset of every buffer, `FREE` for those that do
        not fit, and bytes for each memory that has a limit. If a memory cannot be packed, what lies
        beyond its capacity in a packing of all does not fit, and the bytes are the excess of that
        packing, at most a share of the room; 0 for others."""
        memory, offsets = np.full((2, len(chosen)), FREE, dtype=np.int64)
        rooms = self.relaxation.room
        excess = dict.fromkeys(rooms, 0)
        for at, bank in enumerate(self.banks):
            members = np.flatnonzero(chosen == at)
            answer = self._pack(at, members, bank.capacity)
            if answer.offsets is None:
                answer = self._pack(at, members, None)
                if at in rooms:
                    excess[at] = min((answer.peak or 0) - rooms[at], rooms[at] // _STEP)
            if answer.offsets is not None:
                end = answer.offsets + self.problem.size[members]
                fits = end <= (np.inf if bank.capacity is None else bank.capacity)
                memory[members[fits]], offsets[members[fits]] = at, answer.offsets[fits]
        return memory, offsets, np.array([*excess.values()])

    def _keep(self, chosen: Ints, offsets: Ints) -> None:
        """Keep a packing if it is the cheapest so far."""
        cost = self.relaxation.total(chosen)
        if self.cost is None or cost < self.cost:
            self.chosen, self.offsets, self.cost = chosen, offsets, cost

    def _pack(self, bank: int, members: Ints, capacity: int | None) -> Allocation:
        """Pack the members of a memory within ``capacity``, once. Buffers proven not to fit
        together are added as a cut."""
        key = (bank, members.tobytes(), capacity)
        if key not in self._packed:
            self._packed[key] = self._allocate(bank, members, capacity)
            self._learn(bank, members, self._packed[key])
        return self._packed[key]

    def _allocate(self, bank: int, members: Ints, capacity: int | None) -> Allocation:
        """Allocate the buffers ``members`` in one memory, with a share of the effort."""
        part = in_bank(self.problem, members, self.banks[bank])
        answer = solve(
            part,
            capacity,
            self.strategy,
            self.seed,
            self.threads,
            # After Ctrl-C, as after the deadline: greedy packings only.
            Deadline.within(0.0) if self.interrupted else self.deadline,
            self.effort.divided(_PACKINGS),
        )
        self.interrupted |= answer.interrupted
        self.counters["packings"] += 1
        return answer

    def _learn(self, bank: int, members: Ints, answer: Allocation) -> None:
        """Turn a proof that buffers do not fit in one memory into a cut: not all of them may be in
        it. The whole problem is infeasible if none of them has another memory."""
        if not isinstance(answer.certificate, Infeasibility):
            return
        core = set(answer.certificate.buffers)
        names = self.problem.name
        together = np.array(
            [buffer for buffer in members.tolist() if names(buffer) in core], dtype=np.int64
        )
        self.relaxation.cuts.append(CoverCut(bank, together, len(together) - 1))
        if len(together) and ((self.costs[together] != FORBIDDEN).sum(axis=1) == 1).all():
            self.infeasible, self.reason = True, answer.certificate


def _cheapest(costs: Ints) -> Ints:
    """Return the memory that each buffer prefers."""
    return cheapest_first(costs)[:, 0]


def _answer(problem: Problem, costs: Ints, task: _Task, watch: Stopwatch) -> BankAllocation:
    """Make the answer for the caller's buffers, and verify it independently."""
    status: Status = "infeasible" if task.infeasible else "unknown"
    memory, offsets, cost, lower, reason = None, None, None, task.lower, task.reason
    packings: dict[str, Allocation] = {}
    if task.chosen is not None and task.offsets is not None and task.cost is not None:
        home, offsets = task.blocks.of(task.chosen, task.offsets)
        memory = tuple(task.banks[at].name for at in home.tolist())
        for rule, message in broken_bank_rules(problem, memory, offsets, task.banks):
            raise LoadmasterError(
                f"memories: a packing was made that does not hold ({rule}: {message}): please"
                " report it"
            )
        cost = sum(costs[np.arange(len(costs)), home].tolist())
        # Buffers that take no space still have the cost of their memory.
        lower = cost - task.cost + min(lower, task.cost)
        status, reason = "optimal" if lower == cost else "feasible", None
        packings = {
            bank.name: _pack_memory(problem, offsets, np.flatnonzero(home == at), task, at)
            for at, bank in enumerate(task.banks)
        }
    return BankAllocation(
        status,
        memory,
        offsets,
        cost,
        lower,
        task.banks,
        packings,
        task.strategy,
        task.seed,
        *watch.read(),
        reason,
        task.interrupted,
        dict(task.counters),
    )


def _pack_memory(
    problem: Problem, offsets: Ints, members: Ints, task: _Task, bank: int
) -> Allocation:
    """Return the packing of one memory."""
    assert task.chosen is not None
    mine = offsets[members]
    solid = problem.solid[members]
    peak = int((mine + problem.size[members])[solid].max(initial=0))
    known = task._packed.get(
        (bank, np.flatnonzero(task.chosen == bank).tobytes(), task.banks[bank].capacity)
    )
    lower = 0 if known is None else known.lower_bound
    status: Status = "optimal" if lower == peak else "feasible"
    return Allocation(
        status,
        mine,
        peak,
        min(lower, peak),
        task.banks[bank].capacity,
        task.strategy,
        task.seed,
        0.0,
        0.0,
    )

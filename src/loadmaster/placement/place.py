"""The driver of the placement engines: from a kernel sequence and a limit to a packed, checked
placement of every tensor.

A placement counts bytes; addresses are found by the allocator. If it cannot pack a placement, the
limits of the kernels at which it fails are lowered, and the placement is computed again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from loadmaster.allocation.allocate import aligned, allocate, solve
from loadmaster.allocation.fit_or_tighten import fit_or_tighten
from loadmaster.allocation.rules import problem_of
from loadmaster.core.arguments import require_known, validate_arguments
from loadmaster.core.arrays import WHOLE_LIMIT, Ints
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError, LoadmasterError, PackingError, PlacementError
from loadmaster.core.progress import (
    Deadline,
    Interrupts,
    Progress,
    Stopwatch,
    deferred_interrupts,
    ends_at_interrupt,
    no_progress,
)
from loadmaster.core.units import parse_bytes_of
from loadmaster.placement.answer import MemoryPlan, Rival
from loadmaster.placement.autotm.at_addresses import place_at_addresses
from loadmaster.placement.autotm.engine import PlacementSolution, place_by_program
from loadmaster.placement.decisions import Mode, TensorPlacement, blocks_of, fast_bytes
from loadmaster.placement.sequence import KernelSequence, least_bytes
from loadmaster.placement.strategies.registry import (
    AUTO,
    ENGINES,
    IN_HARDWARE,
    PLACING,
    PROGRAM,
    baseline,
    baseline_names,
)
from loadmaster.placement.timing import MovementTimeline, time_moves
from loadmaster.placement.verify import broken_division_rules, broken_placement_rules

GAPS = {Mode.STATIC: 0.01, Mode.SYNC: 0.01, Mode.ASYNC: 0.02}
"""Relative distance from the bound at which the search ends, by mode."""
_ROUNDS = 16
"""Most placements that are packed."""
_SHORT = 32
"""Divisor of the packing budget in the first round, halved every round: copies can move, or limits
0.2 % lower cost less time than the full budget would gain."""
_COUNTED = 0.5
"""Share of the gap for the search without addresses, which later add to the time."""


@validate_arguments(PlacementError)
def place(
    sequence: KernelSequence,
    fast: int | str,
    *,
    mode: Mode | str = Mode.SYNC,
    strategy: str = AUTO,
    gap: float | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    effort: Effort | str = Effort.NORMAL,
    progress: Progress | None = None,
) -> MemoryPlan:
    """Decide which memory every tensor is in and when it moves, within an exact limit on the fast
    memory.

    Parameters
    ----------
    sequence
        Kernels, tensors and costs.
    fast
        Bytes of fast memory, such as ``65536`` or ``"64 KiB"``, or a share of what everything
        takes, such as ``"50%"``; workspaces and gaps between buffers count.
    mode
        ``static``, ``sync`` or ``async``.
    strategy
        A name that ``loadmaster.strategies("place")`` lists: ``program``, the integer program; a
        baseline; ``auto``, the best of all that the mode allows. What hardware does by itself is
        compared with only.
    gap
        Distance to the lower bound, relative to it, at which the search may end; 1 %,
        asynchronously 2 %.
    time_limit
        Seconds after which the best placement so far is returned, marked as interrupted; Ctrl-C
        does the same.
    seed
        Same input and seed, same answer.
    effort
        How long to search: ``quick``, ``normal`` or ``thorough``, or budgets of your own.

    Raises
    ------
    CapacityError
        If some kernel's operands cannot fit into ``fast``, with the kernel, the bytes and the
        tensors.
    PackingError
        If no packing within ``fast`` was found: another strategy, or a longer search, may find one.
    PlacementError
        If the strategy cannot handle the mode or the sequence.
    """
    require_known("mode", mode, Mode, PlacementError)
    chosen = Mode(mode)
    if isinstance(fast, str):
        fast = parse_bytes_of(fast, sequence.peak_bytes)
    _check_arguments(fast, strategy, gap, time_limit)
    watch = Stopwatch()
    deadline = Deadline.within(time_limit)
    with deferred_interrupts() as interrupts:
        plan = _Placer(
            sequence,
            fast,
            chosen,
            GAPS[chosen] if gap is None else gap,
            deadline,
            seed,
            Effort.of(effort, PlacementError),
            progress or no_progress,
            interrupts,
        ).plan(strategy)
    wall, cpu = watch.read()
    return replace(plan, search_seconds=wall, cpu_seconds=cpu)


class _Located(NamedTuple):
    """A placement whose stays and workspaces have addresses within the limit."""

    found: PlacementSolution
    offsets: Ints
    timeline: MovementTimeline
    peak: int


def tops(sequence: KernelSequence, blocks: tuple[Ints, Ints, Ints]) -> Ints:
    """Highest address in use while each kernel runs, in a quickly found low packing."""
    lowest = allocate(blocks, alignment=sequence.alignment, strategy="best-fit")
    assert lowest.offsets is not None
    highest = np.zeros(len(sequence.kernels), dtype=np.int64)
    for start, end, top in zip(*blocks[:2], lowest.offsets + blocks[2], strict=True):
        np.maximum(highest[start:end], top, out=highest[start:end])
    return highest


@dataclass
class _Placer:
    """Solves, packs and checks the placement of one sequence within ``fast`` bytes of fast
    memory."""

    sequence: KernelSequence
    fast: int
    mode: Mode
    gap: float
    deadline: Deadline
    seed: int
    effort: Effort
    report: Progress
    interrupts: Interrupts
    rounds: int = 0
    interrupted: bool = False

    def plan(self, strategy: str) -> MemoryPlan:
        """Find the best packed placement of a strategy, with the bound of the integer program."""
        self.report("solving", 0.0)
        first = self._solve(
            self._limits(), self.gap * _COUNTED if self.mode is Mode.ASYNC else self.gap
        )
        rivals = self._rivals(strategy)
        best = None
        if strategy in (AUTO, PROGRAM):
            enough = first.lower_bound * (1 + self.gap)
            best = self._packed(first, lambda limits: self._solve(limits, self.gap), enough)
        used = PROGRAM
        for rival in sorted(
            rivals, key=lambda rival: math.inf if rival.makespan is None else rival.makespan
        ):
            if strategy not in (AUTO, rival.name) or not rival.placement or rival.makespan is None:
                continue
            if best and best.timeline.total <= rival.makespan:
                break
            packed = self._packed_baseline(rival.name, rival.placement)
            if packed and (not best or packed.timeline.total < best.timeline.total):
                best, used = packed, rival.name
        if not best:
            raise self._refusal(strategy, rivals)
        return self._answer(
            best, first, f"{AUTO} ({used})" if strategy == AUTO else strategy, rivals
        )

    def _allows(self, placement: TensorPlacement, limits: Ints) -> bool:
        """Whether a baseline keeps the limits and does only what the mode allows."""
        return not any(
            broken_placement_rules(self.sequence, placement, self.fast, self.mode)
        ) and bool((fast_bytes(self.sequence, placement) <= limits).all())

    def _packed_baseline(self, name: str, placement: TensorPlacement) -> _Located | None:
        """Pack a baseline's placement, with lower limits if necessary."""

        def place(limits: Ints) -> PlacementSolution:
            """Return the placement of the simpler strategy within limits; raise PlacementError if
            it has none."""
            other = baseline(name, self.sequence, limits).placement
            if other is None or not self._allows(other, limits):
                raise PlacementError(f"{name} cannot be packed")
            return replace(first, placement=other)

        if not self._allows(placement, self._limits()):
            return None
        first = PlacementSolution(placement, math.inf, 0.0, np.zeros(0))
        return self._packed(first, place, math.inf)

    def _sequence(self, found: PlacementSolution) -> KernelSequence:
        """The kernel sequence of a solution, whose tensors may be pieces."""
        return found.division.sequence if found.division else self.sequence

    def _limits(self) -> Ints:
        """Return the limit of the fast memory at each kernel, in bytes."""
        return np.full(len(self.sequence.kernels), self.fast, dtype=np.int64)

    def _solve(self, limits: Ints, gap: float) -> PlacementSolution:
        """Run the engine until the deadline; after a Ctrl-C that no solver catches, run it again
        without search."""

        def engine() -> PlacementSolution:
            """Return the placement of the integer program within the limits."""
            return place_by_program(
                self.sequence,
                limits,
                self.mode,
                gap=gap,
                deadline=self.deadline,
                progress=self.report,
                seed=self.seed,
                effort=self.effort,
            )

        try:
            found = engine()
        except KeyboardInterrupt:
            self._note_interruption(True)
            found = engine()
        self._note_interruption(found.interrupted)
        return found

    def _note_interruption(self, interrupted: bool) -> None:
        """Record an interrupt, after which no later stage searches."""
        if interrupted or self.interrupts.requested:
            self.interrupted, self.deadline = True, Deadline.within(0.0)

    def _packed(
        self, first: PlacementSolution, place: Callable[[Ints], PlacementSolution], enough: float
    ) -> _Located | None:
        """Pack a placement; where that fails, place again within lower limits. Copies that overlap
        kernels may run at other times, as addresses demand, until ``enough`` seconds are
        reached."""

        def pack(found: PlacementSolution, number: int) -> _Located | Ints:
            """Return the placement with addresses, or, by kernel, the bytes by which its packing
            exceeds the fast memory. ``number`` counts the attempts."""
            overlaps = bool(found.search and found.search.link)
            sequence = self._sequence(found)
            blocks = blocks_of(sequence, found.placement)
            self.report("packing", number / _ROUNDS)
            self.rounds += 1
            divisor = _SHORT if overlaps else max(1, _SHORT >> number)
            offsets = self._addresses(*blocks, divisor)
            if offsets is None and overlaps:
                at = place_at_addresses(found, self.fast, self._addresses, enough, self.deadline)
                if at:
                    found, offsets = at
                    self._note_interruption(found.interrupted)
                    blocks = blocks_of(sequence, found.placement)
            if offsets is None:
                return np.maximum(tops(sequence, blocks) - self.fast, 0)
            peak = int(np.where(blocks[2] > 0, offsets + blocks[2], 0).max(initial=0))
            return _Located(found, offsets, time_moves(sequence, found.placement), peak)

        return fit_or_tighten(
            first,
            place,
            pack,
            self._limits(),
            np.minimum(least_bytes(self.sequence), self.fast),
            rounds=_ROUNDS,
            alignment=self.sequence.alignment,
        )

    def _addresses(
        self, lower: Ints, upper: Ints, size: Ints, divisor: int = _SHORT
    ) -> Ints | None:
        """Pack blocks; None if no addresses are found."""
        problem = aligned(problem_of((lower, upper, size)), self.sequence.alignment)
        try:
            with ends_at_interrupt(self.deadline) as left:
                # A placement without addresses is useless.
                deadline = Deadline.within(max(0.25, left.left()))
                answer = solve(
                    problem, self.fast, AUTO, self.seed, 1, deadline, self.effort.divided(divisor)
                )
        except KeyboardInterrupt:
            if self.interrupted:
                raise
            self._note_interruption(True)
            return self._addresses(lower, upper, size, divisor)
        self._note_interruption(answer.interrupted and answer.offsets is None)
        return answer.offsets

    def _rivals(self, strategy: str) -> list[Rival]:
        """Results of simpler strategies, or the reasons why they fail."""
        names = [name for name in baseline_names() if strategy in (AUTO, PROGRAM, name)]
        rivals = []
        for number, name in enumerate(names):
            self.report(f"simulating {name}", number / len(names))
            try:
                result = baseline(name, self.sequence, self._limits())
            except (CapacityError, PlacementError) as error:
                rivals.append(Rival(name, None, 0, str(error)))
            else:
                rivals.append(Rival(name, result.seconds, result.moved_bytes, "", result.placement))
        return rivals

    def _refusal(self, strategy: str, rivals: list[Rival]) -> PackingError:
        """Return the error for a strategy without a packed placement, with its reason."""
        reasons = [f" ({r.name}: {r.reason})" for r in rivals if r.reason and r.name == strategy]
        return PackingError(
            f"{self.sequence.name}: strategy {strategy!r} finds no {self.mode} placement with"
            f" addresses within {self.fast} bytes: allow more fast memory, or choose another"
            f" strategy or mode{''.join(reasons)}"
        )

    def _answer(
        self, best: _Located, first: PlacementSolution, strategy: str, rivals: list[Rival]
    ) -> MemoryPlan:
        """Return the plan of the best placement; raise LoadmasterError if the verifier finds it
        invalid."""
        found, sequence = best.found, self._sequence(best.found)
        offsets = tuple(best.offsets.tolist())
        broken = broken_placement_rules(sequence, found.placement, self.fast, self.mode, offsets)
        for rule, message in itertools.chain(broken_division_rules(found.division), broken):
            raise LoadmasterError(
                f"strategy {strategy!r} made a placement that does not hold ({rule}: {message}):"
                " please report it"
            )
        return MemoryPlan(
            sequence=sequence,
            mode=self.mode,
            strategy=strategy,
            placement=found.placement,
            offsets=offsets,
            timeline=best.timeline,
            lower_bound=first.lower_bound,
            larger_bound=first.larger_bound,
            all_fast_seconds=self.sequence.seconds(in_slow=False),
            all_slow_seconds=self.sequence.seconds(in_slow=True),
            limit=self.fast,
            peak_fast=best.peak,
            prices=first.prices,
            rivals=tuple(rivals),
            rounds=self.rounds,
            seed=self.seed,
            search_seconds=0.0,
            cpu_seconds=0.0,
            interrupted=self.interrupted,
            counters=first.counters,
            division=found.division,
        )


def _check_arguments(fast: int, strategy: str, gap: float | None, time_limit: float | None) -> None:
    """Refuse what makes no sense."""
    if type(fast) is not int or not 0 <= fast < WHOLE_LIMIT:
        raise PlacementError(
            f"fast memory is {fast!r}: give a whole number of bytes from 0 to 2^62 - 1"
        )
    strategies = (*ENGINES, *PLACING.names)
    if strategy in IN_HARDWARE.names:
        raise PlacementError(
            f"strategy {strategy!r} is what hardware does by itself: others are compared with it,"
            f" and it places nothing: choose from {', '.join(strategies)}"
        )
    require_known("strategy", strategy, strategies, PlacementError)
    if gap is not None and not 0 <= gap < math.inf:
        raise PlacementError(f"gap is {gap}: give a number of at least 0, such as 0.01 for 1 %")
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise PlacementError(f"time limit is {time_limit}: give a number of seconds above 0")

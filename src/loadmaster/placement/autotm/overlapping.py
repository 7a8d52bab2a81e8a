"""Asynchronous placement (copies overlap computation): a linear program with queues, paths from its
prices, a search.

Native code schedules the copies out and in of given paths (``PlacementProblem.schedule_copies``,
list scheduling); `scheduled` turns its answer into stays and copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.effort import Effort
from loadmaster.core.errors import PlacementError
from loadmaster.core.progress import Progress, no_progress
from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.least_memory import least_paths
from loadmaster.placement.autotm.linear_model import Solved
from loadmaster.placement.autotm.overlap_bound import copy_costs, overlap_bound, weighted
from loadmaster.placement.autotm.overlap_program import EnginePrices, OverlapProgram
from loadmaster.placement.autotm.release_times import released
from loadmaster.placement.autotm.sequence_arrays import (
    LiveRange,
    SequenceArrays,
    TensorPaths,
    checked_limits,
    sequence_arrays,
    spans,
)
from loadmaster.placement.autotm.sparse_program import TOLD_APART, free_prices, use_costs
from loadmaster.placement.decisions import (
    Move,
    PlacementSolution,
    Stay,
    TensorPlacement,
    fast_bytes,
    operands_in_slow,
)
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.timing import time_moves

_SURE = 1e-6
"""Distance from 0 or 1 below which the linear program's value of a tensor is taken as decided."""
_ATTEMPTS = 100
"""Attempts of the search for every use of a tensor, unless they become too much work."""
_WORK = 3 * 10**8
"""The most uses and kernels that all attempts of the search schedule together."""
_ROUNDING = 1e-12
"""Share by which pieces' seconds, each rounded, may exceed those of the tensor in sum."""
_FROM_BEST = 2
"""Searches that go on from the best paths found, each with a seed of its own."""
_SHORT, _LAST = 10, 5
"""Parts of the work: that of each search, and of the last one."""
_THRIFT = 0.1
"""What the search charges for a copy at least, as a share of its time, so that it makes none that
is of no use."""
_MOST_USES = 20_000
"""Uses of tensors up to which the linear program is solved again until its solution is whole."""


def place_overlapping(
    sequence: KernelSequence,
    limits: Ints,
    *,
    start: TensorPlacement | None = None,
    gap: float = 0.02,
    worth: float = np.inf,
    deadline: Deadline = NO_DEADLINE,
    progress: Progress | None = None,
    seed: int = 0,
    effort: Effort = Effort.NORMAL,
) -> PlacementSolution:
    """Place tensors so that kernels, the copies that block them and those that they wait for take
    little time.

    Parameters
    ----------
    sequence
        Kernels, tensors and the copy link.
    limits
        Bytes of fast memory that tensors and workspace may take while each kernel runs, shape
        (kernels,).
    start
        A placement that keeps the limits, such as the best one with copies between kernels: the
        answer is no slower.
    gap
        The search ends once it is within this share of the proven bound.
    worth
        Seconds that an answer must stay below to be of use: where the bound does not, nothing is
        searched.
    deadline
        When to stop; without one the budget counts work, so that the answer is always the same.
    progress
        Called with a stage and the share of the work that is done.
    seed, effort
        Seed of the search, and how long it takes.

    Returns
    -------
    PlacementSolution
        With a bound that holds for these limits, whatever blocks or overlaps. A deadline or Ctrl-C
        returns the best so far.

    Raises
    ------
    CapacityError
        If a kernel cannot run within its limit.
    PlacementError
        For limits that make no sense, or a start that exceeds them.
    """
    limits = checked_limits(sequence, limits)
    if start is not None and (fast_bytes(sequence, start) > limits).any():
        raise PlacementError("the placement to start from exceeds the limits")
    arrays = sequence_arrays(sequence, np.minimum(limits, WHOLE_LIMIT))
    least = least_paths(sequence, arrays, True)
    best = _Best(sequence, arrays, start)
    if not arrays.kernel_count:
        best.offer(least)
        return PlacementSolution(best.placement, 0.0, 0.0, np.zeros(0))
    report = progress or no_progress
    report("solving the linear program", 0.1)
    # Where tensors may be divided, no combination of places is ruled out, and pieces take no more
    # room than their bytes.
    program = OverlapProgram(arrays, sequence.link, 0 if sequence.page else TOLD_APART)
    bytes_ = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.int64)
    roomy = replace(arrays, size=bytes_) if sequence.page else arrays
    certain = 1 - _ROUNDING if sequence.page else 1.0
    solved = program.solve(deadline, worth)
    best.offer(least)
    if not len(solved.values):
        free = np.zeros(len(arrays.kernel))
        bound = certain * lower_bound(roomy, free_prices(arrays), True, (free, free))
        return PlacementSolution(
            best.placement,
            best.seconds,
            min(bound, best.seconds),
            np.zeros(arrays.kernel_count),
            True,
            {},
        )
    prices = program.engine_prices(solved)
    bound = certain * overlap_bound(roomy, bytes_, sequence.link, prices)
    if bound >= worth:
        return PlacementSolution(
            best.placement,
            best.seconds,
            min(bound, best.seconds),
            prices.places.memory,
            solved.interrupted,
        )
    relaxed = _Relaxed(prices, copy_costs(arrays, bytes_, sequence.link, prices), least)
    report("placing tensors", 0.3)
    tried = [paths_of(sequence, arrays, start)] if start is not None else []
    rounds, stopped = _search(
        best, program, solved, relaxed, tried, bound * (1 + gap), report, seed, effort, deadline
    )
    return _solution(best, relaxed, bound, rounds, seed, effort, stopped)


def place_near(
    sequence: KernelSequence,
    arrays: SequenceArrays,
    whole: TensorPaths,
    fetched: Floats,
    prices: EnginePrices,
    bound: float,
    goal: float,
    seed: int,
    effort: Effort,
    deadline: Deadline,
) -> PlacementSolution:
    """Place tensors near a linear program's paths, which are ``whole``; ``fetched``: the bytes that
    it copies back before each position.

    The search ends at ``goal`` seconds.
    """
    bytes_ = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.int64)
    relaxed = _Relaxed(
        prices,
        copy_costs(arrays, bytes_, sequence.link, prices),
        least_paths(sequence, arrays, True),
    )
    best = _Best(sequence, arrays, None)
    best.offer(relaxed.least)
    rounds, stopped = _improve(best, relaxed, whole, fetched, [], goal, seed, effort, deadline)
    return _solution(best, relaxed, bound, rounds, seed, effort, stopped)


def _solution(
    best: _Best,
    relaxed: _Relaxed,
    bound: float,
    rounds: int,
    seed: int,
    effort: Effort,
    stopped: bool,
) -> PlacementSolution:
    def nearby(limits: Ints, goal: float, deadline: Deadline) -> PlacementSolution:
        return _nearby(best, relaxed, limits, bound, goal, seed, effort, deadline)

    prices, counters = relaxed.prices.places.memory, {"rounds": rounds}
    return PlacementSolution(
        best.placement,
        best.seconds,
        min(bound, best.seconds),
        prices,
        stopped,
        counters,
        nearby=nearby,
    )


def _nearby(
    known: _Best,
    relaxed: _Relaxed,
    limits: Ints,
    bound: float,
    goal: float,
    seed: int,
    effort: Effort,
    deadline: Deadline,
) -> PlacementSolution:
    """Take over what lower limits allow of the best paths known, put back the rest at the same
    prices, and search a little."""
    sequence, arrays = (
        known.sequence,
        replace(known.arrays, limit=np.minimum(known.arrays.limit, limits)),
    )
    relaxed = replace(relaxed, least=least_paths(sequence, arrays, True))
    best = _Best(sequence, arrays, None)
    best.offer(relaxed.least)
    paths, stopped = _candidate(
        arrays,
        relaxed,
        (paths_of(sequence, arrays, known.placement), np.zeros(arrays.tensor_count)),
        seed,
        effort,
        deadline,
    )
    best.offer(paths)
    if not np.isfinite(best.seconds):
        raise PlacementError("no placement nearby keeps these limits")
    rounds = 0
    if not stopped and best.seconds > goal:
        rounds, stopped = best.improve(
            [paths], relaxed.copies, relaxed.prices, goal, seed, effort, deadline
        )
    return _solution(best, relaxed, bound, rounds, seed, effort, stopped)


@dataclass(frozen=True, eq=False)
class _Relaxed:
    """The linear program's prices, seconds of a copy in and out at each use at those, and the least
    possible paths."""

    prices: EnginePrices
    copies: tuple[Floats, Floats]
    least: TensorPaths


def _search(
    best: _Best,
    program: OverlapProgram,
    solved: Solved,
    relaxed: _Relaxed,
    tried: list[TensorPaths],
    goal: float,
    report: Progress,
    seed: int,
    effort: Effort,
    deadline: Deadline,
) -> tuple[int, bool]:
    """Schedule paths that are near the linear program's, then search around them; attempts made,
    and whether it was stopped."""
    arrays = best.arrays
    advice = program.paths(solved)
    stopped = solved.interrupted
    if not stopped:
        # What copies under way take in the linear program is left free.
        under_way = program.under_way(solved).astype(np.int64)
        tighter = replace(
            arrays, limit=np.maximum(arrays.limit - under_way, _needed(arrays, relaxed.least))
        )
        paths, stopped = _candidate(tighter, relaxed, advice, seed, effort, deadline)
        tried = [*tried, paths]
    scores = [best.offer(paths) for paths in tried]
    if not tried or stopped or best.seconds <= goal:
        return 0, stopped
    report("scheduling copies", 0.5)
    if len(arrays.kernel) <= _MOST_USES:
        solved = program.dive(solved, deadline)
        advice = program.paths(solved)
    nearest = tried[int(np.argmin(scores))]
    return _improve(
        best,
        relaxed,
        advice[0],
        program.fetched_before(solved),
        [nearest],
        goal,
        seed,
        effort,
        deadline,
    )


def _improve(
    best: _Best,
    relaxed: _Relaxed,
    whole: TensorPaths,
    fetched: Floats,
    others: list[TensorPaths],
    goal: float,
    seed: int,
    effort: Effort,
    deadline: Deadline,
) -> tuple[int, bool]:
    """Search around ``whole`` paths, with copies back from when the linear program makes them or
    from any time, and around others."""
    arrays = best.arrays
    if not np.isfinite(best.offer(whole)):
        # Rounded, the program's solution may exceed a limit; the candidate is the nearest that does
        # not.
        whole, _ = _candidate(
            arrays, relaxed, (whole, np.zeros(arrays.tensor_count)), seed, effort, deadline
        )
    timed = released(arrays, best.engines, whole, fetched)
    return best.improve(
        [timed, whole, *others], relaxed.copies, relaxed.prices, goal, seed, effort, deadline
    )


def paths_of(
    sequence: KernelSequence, arrays: SequenceArrays, placement: TensorPlacement
) -> TensorPaths:
    """Return the paths of a placement: where each use finds its tensor, and in which gaps the
    tensor stays."""
    in_slow = operands_in_slow(sequence, placement)
    fast = 1 - np.array([slow for row in in_slow for slow in row], dtype=np.uint8)
    mine = np.empty(len(arrays.kernel), dtype=np.uint8)
    mine[arrays.use] = fast
    stays = np.zeros(len(arrays.kernel), dtype=np.uint8)
    tail = np.zeros(arrays.tensor_count, dtype=np.uint8)
    filled = {(move.tensor, move.start) for move in placement.moves if move.to_fast}
    earliest = np.zeros(len(arrays.kernel), dtype=np.int64)
    for move in placement.moves:
        if move.to_fast:
            own = slice(int(arrays.first[move.tensor]), int(arrays.first[move.tensor + 1]))
            earliest[own.start + int(np.searchsorted(arrays.kernel[own], move.end))] = move.start
    for stay in placement.stays:
        t = stay.tensor
        begin, end = int(arrays.first[t]), int(arrays.first[t + 1])
        kernel = arrays.kernel[begin:end]
        inside = np.flatnonzero((kernel >= stay.start) & (kernel < stay.end)) + begin
        for before, after in itertools.pairwise(inside.tolist()):
            stays[after] = mine[before] & mine[after]
        carried = (
            stay.start == 0
            and (t, 0) not in filled
            and arrays.live_range[t] in (LiveRange.CYCLIC, LiveRange.INPUT)
        )
        if len(inside) and carried and inside[0] == begin:
            stays[begin] = mine[begin]
        if (
            len(inside)
            and stay.end == arrays.kernel_count
            and inside[-1] == end - 1
            and arrays.live_range[t] in (LiveRange.CYCLIC, LiveRange.OUTPUT)
        ):
            tail[t] = mine[end - 1]
    cyclic = np.flatnonzero((arrays.live_range == LiveRange.CYCLIC) & (np.diff(arrays.first) > 0))
    both = stays[arrays.first[cyclic]] & tail[cyclic]
    stays[arrays.first[cyclic]], tail[cyclic] = both, both
    return TensorPaths(mine, stays, tail, earliest)


def copy_engines(sequence: KernelSequence) -> _native.CopyEngines:
    """Seconds of every tensor's copies."""
    link = sequence.link
    bytes_ = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.float64)
    return _native.CopyEngines(
        block_in=bytes_ / link.to_fast,
        block_out=bytes_ / link.to_slow,
        overlap_in=bytes_ / link.asynchronous_to_fast,
        overlap_out=bytes_ / link.asynchronous_to_slow,
        drain=link.asynchronous_to_slow,
        shared=link.shared,
    )


class _Best:
    """The best placement so far."""

    def __init__(
        self, sequence: KernelSequence, arrays: SequenceArrays, start: TensorPlacement | None
    ) -> None:
        self.sequence, self.arrays = sequence, arrays
        self.engines = copy_engines(sequence)
        self.seconds: float = np.inf
        self.placement = TensorPlacement((), (), ())
        if start is not None:
            self.placement, self.seconds = start, time_moves(sequence, start).total

    def offer(self, paths: TensorPaths) -> float:
        """Schedule the copies of ``paths``, and keep the result if it is better."""
        found = self.arrays.problem.schedule_copies(self.engines, paths)
        if not np.isfinite(found.seconds):
            return np.inf
        placement = scheduled(self.arrays, paths, found)
        seconds = time_moves(self.sequence, placement).total
        if (
            seconds < self.seconds
            and (fast_bytes(self.sequence, placement) <= self.arrays.limit).all()
        ):
            self.placement, self.seconds = placement, seconds
        return seconds

    def improve(
        self,
        starts: Sequence[TensorPaths],
        copies: tuple[Floats, Floats],
        prices: EnginePrices,
        goal: float,
        seed: int,
        effort: Effort,
        deadline: Deadline,
    ) -> tuple[int, bool]:
        """Search around each of ``starts`` for a while, then around the best that came of it;
        attempts made, and whether it was stopped.

        A search soon ends up where no small change helps, so that several short ones find more than
        a long one.
        """
        arrays = self.arrays
        seconds = _THRIFT * arrays.size[arrays.tensor] / self.sequence.link.asynchronous_to_fast
        problem, use_prices = (
            arrays.problem_with(*(cost + seconds for cost in copies)),
            _use_prices(arrays, prices),
        )
        uses = len(arrays.kernel)
        work = effort.share(min(_WORK, _ATTEMPTS * uses * (uses + arrays.kernel_count)))
        found: list[tuple[float, int, TensorPaths]] = []
        attempts = 0
        for number in range(len(starts) + _FROM_BEST + 1):
            last = number == len(starts) + _FROM_BEST
            searched = problem.search_overlapping(
                use_prices,
                self.engines,
                starts[number] if number < len(starts) else min(found)[2],
                goal=goal,
                seed=seed + number,
                nodes=work // (_LAST if last else _SHORT),
                seconds=deadline.left(),
            )
            attempts += searched.rounds
            found.append((self.offer(searched.paths), number, searched.paths))
            if searched.stopped or self.seconds <= goal:
                return attempts, searched.stopped
        return attempts, False


def _use_prices(arrays: SequenceArrays, prices: EnginePrices) -> _native.UsePrices:
    """Return prices of memory and of each use in either memory."""
    fast, slow = use_costs(weighted(arrays, prices), prices.places)
    return _native.UsePrices(memory=prices.places.memory, fast=fast, slow=slow)


def _needed(arrays: SequenceArrays, least: TensorPaths) -> Ints:
    """Return the bytes of fast memory that each kernel needs at least, shape (kernels,)."""
    workspace = np.minimum.reduceat(arrays.workspace, arrays.first_algorithm[:-1])
    change = np.zeros(arrays.kernel_count + 1, dtype=np.int64)
    np.add.at(change, arrays.kernel, least.fast * arrays.size[arrays.tensor])
    np.add.at(change, arrays.kernel + 1, -(least.fast * arrays.size[arrays.tensor]))
    needed: Ints = np.minimum(change.cumsum()[:-1] + workspace, arrays.limit)
    return needed


def _candidate(
    arrays: SequenceArrays,
    relaxed: _Relaxed,
    advice: tuple[TensorPaths, Floats],
    seed: int,
    effort: Effort,
    deadline: Deadline,
) -> tuple[TensorPaths, bool]:
    """Paths that are cheap at the prices of the linear program, as if copies took no time of their
    own."""
    guess, doubt = advice
    sure = doubt < _SURE
    found = (
        weighted(arrays, relaxed.prices)
        .problem_with(*relaxed.copies)
        .search(
            _use_prices(arrays, relaxed.prices),
            guess=guess,
            base=relaxed.least,
            sure=sure.astype(np.uint8),
            order=np.lexsort((np.arange(arrays.tensor_count), -arrays.size, ~sure)),
            moves=True,
            goal=0.0,
            seed=seed,
            nodes=0,
            seconds=deadline.left(),
        )
    )
    return found.paths, found.stopped


def scheduled(
    arrays: SequenceArrays, paths: TensorPaths, found: _native.ScheduledCopies
) -> TensorPlacement:
    """Make stays and copies of scheduled ``paths``: a stay begins when the copy back does, and
    lasts until the copy out is complete."""
    columns = (found.tensor, found.to_fast > 0, found.start, found.end, found.due)
    copies = list(zip(*(column.tolist() for column in columns), strict=True))
    begins = {(tensor, due): begin for tensor, to_fast, begin, _, due in copies if to_fast}
    ends = {(tensor, due): end for tensor, to_fast, _, end, due in copies if not to_fast}
    stays = [
        Stay(t, begins.get((t, start), start), max(end, ends.get((t, end), end)))
        for t in range(arrays.tensor_count)
        for start, end in spans(arrays, paths, t)
    ]
    moves = [Move(tensor, to_fast, begin, end) for tensor, to_fast, begin, end, _ in copies]
    # Each engine's order is kept; copies that block come first, those that make room before those
    # that need it.
    moves.sort(
        key=lambda move: (
            move.start,
            move.start < move.end,
            move.to_fast if move.start == move.end else 0,
        )
    )
    return TensorPlacement(tuple(stays), tuple(moves), tuple(found.algorithms.tolist()))

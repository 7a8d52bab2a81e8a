"""Placement where copies overlap computation: a linear program with queues, lives from its prices, and list scheduling of the copies."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import PlacementError
from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.needs import least_lives
from loadmaster.placement.autotm.overlap_program import EnginePrices, OverlapProgram, copy_costs, overlap_bound, weighted
from loadmaster.placement.autotm.sequence_arrays import Floats, Ints, Life, Lifetimes, Lives, checked_limits, lifetimes, spans
from loadmaster.placement.autotm.sparse_program import free_prices, use_costs
from loadmaster.placement.decisions import Move, PlacementSolution, Stay, TensorPlacement, fast_bytes, operands_in_slow
from loadmaster.placement.sequence import KernelSequence
from loadmaster.placement.timing import time_moves

_SURE = 1e-6
_ATTEMPTS = 100
"""Attempts of the search for every use of a tensor, unless they become too much work."""
_WORK = 3 * 10**8
"""Uses and kernels that the search may schedule, one attempt after another."""


def place_overlapping(
    sequence: KernelSequence,
    limits: NDArray[np.int64],
    *,
    start: TensorPlacement | None = None,
    gap: float = 0.02,
    deadline: float | None = None,
    progress: Callable[[str, float], None] | None = None,
    seed: int = 0,
) -> PlacementSolution:
    """Place tensors so that kernels, the copies that block them and those that they wait for take little time.

    Parameters
    ----------
    sequence
        Kernels, tensors and the copy link.
    limits
        Bytes of fast memory that tensors and workspace may take while each kernel runs, shape (kernels,).
    start
        A placement that keeps the limits, such as the best one with copies between kernels: the answer is no slower.
    gap
        The search ends once it is within this share of the proven bound.
    deadline
        When to stop, in seconds of `time.monotonic`; without one the budget counts work, so that the answer is always the same.
    progress
        Called with a stage and the share of the work that is done.
    seed
        Of the search.

    Returns
    -------
    PlacementSolution
        With a bound that holds for these limits, whatever blocks or overlaps. A deadline or Ctrl-C returns the best so far.

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
    times = lifetimes(sequence, np.minimum(limits, 2**62))
    least = least_lives(sequence, times, True)
    best = _Best(sequence, times, start)
    if not times.kernels:
        best.offer(least)
        return PlacementSolution(best.placement, 0.0, 0.0, np.zeros(0))
    report = progress or (lambda stage, share: None)
    report("solving the linear program", 0.1)
    program = OverlapProgram(times, sequence.link)
    solved = program.model.solve(deadline)
    best.offer(least)
    if not len(solved.values):
        free = np.zeros(len(times.kernel))
        bound = lower_bound(times, free_prices(times), True, (free, free))
        return PlacementSolution(best.placement, best.seconds, min(bound, best.seconds), np.zeros(times.kernels), True, {})
    prices = program.engine_prices(solved)
    bytes_ = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.int64)
    bound = overlap_bound(times, bytes_, sequence.link, prices)
    guess, doubt = program.lives(solved)
    copies = copy_costs(times, bytes_, sequence.link, prices)
    goal = bound * (1 + gap)
    stopped = solved.interrupted
    tried = [lives_of(sequence, times, start)] if start is not None else []
    if not stopped:
        report("placing tensors", 0.3)
        # What copies under way take in the linear program is left free.
        tighter = replace(times, limit=np.maximum(times.limit - program.under_way(solved).astype(np.int64), _needed(times, least)))
        lives, stopped = _candidate(tighter, copies, prices, (guess, doubt), least, seed, deadline)
        tried.append(lives)
    rounds = 0
    scored = [(best.offer(lives), n) for n, lives in enumerate(tried)]
    if scored and not stopped and best.seconds > goal:
        report("scheduling copies", 0.5)
        lives, rounds, stopped = best.improve(tried[min(scored)[1]], copies, prices, goal, seed, deadline)
        best.offer(lives)
    return PlacementSolution(best.placement, best.seconds, min(bound, best.seconds), prices.places.memory, stopped, {"rounds": rounds})


def lives_of(sequence: KernelSequence, times: Lifetimes, placement: TensorPlacement) -> Lives:
    """Where each use finds its tensor, and in which gaps it stays, whatever the times of the copies."""
    in_slow = operands_in_slow(sequence, placement)
    fast = 1 - np.array([slow for row in in_slow for slow in row], dtype=np.uint8)
    mine = np.empty(len(times.kernel), dtype=np.uint8)
    mine[times.use] = fast
    stays = np.zeros(len(times.kernel), dtype=np.uint8)
    tail = np.zeros(times.tensors, dtype=np.uint8)
    filled = {(move.tensor, move.start) for move in placement.moves if move.to_fast}
    for stay in placement.stays:
        t = stay.tensor
        begin, end = int(times.first[t]), int(times.first[t + 1])
        kernel = times.kernel[begin:end]
        inside = np.flatnonzero((kernel >= stay.start) & (kernel < stay.end)) + begin
        for before, after in itertools.pairwise(inside.tolist()):
            stays[after] = mine[before] & mine[after]
        carried = stay.start == 0 and (t, 0) not in filled and times.life[t] in (Life.CYCLIC, Life.INPUT)
        if len(inside) and carried and inside[0] == begin:
            stays[begin] = mine[begin]
        if len(inside) and stay.end == times.kernels and inside[-1] == end - 1 and times.life[t] in (Life.CYCLIC, Life.OUTPUT):
            tail[t] = mine[end - 1]
    cyclic = np.flatnonzero((times.life == Life.CYCLIC) & (np.diff(times.first) > 0))
    both = stays[times.first[cyclic]] & tail[cyclic]
    stays[times.first[cyclic]], tail[cyclic] = both, both
    return Lives(mine, stays, tail)


class _Best:
    """The best placement so far."""

    def __init__(self, sequence: KernelSequence, times: Lifetimes, start: TensorPlacement | None) -> None:
        self.sequence, self.times = sequence, times
        link = sequence.link
        bytes_ = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.float64)
        self.links = tuple(bytes_ / rate for rate in (link.to_fast, link.to_slow, link.asynchronous_to_fast, link.asynchronous_to_slow))
        self.drain, self.shared = link.asynchronous_to_slow, link.shared
        self.seconds: float = np.inf
        self.placement = TensorPlacement((), (), ())
        if start is not None:
            self.placement, self.seconds = start, time_moves(sequence, start).total

    def offer(self, lives: Lives) -> float:
        """Schedule the copies of ``lives``, and keep the result if it is better."""
        from loadmaster import _native

        found = _native.schedule_copies(*self.times.native, self.links, self.drain, self.shared, (lives.fast, lives.stays, lives.tail))
        if not np.isfinite(found[0]):
            return np.inf
        placement = _scheduled(self.times, lives, found[1], found[2])
        seconds = time_moves(self.sequence, placement).total
        if seconds < self.seconds and (fast_bytes(self.sequence, placement) <= self.times.limit).all():
            self.placement, self.seconds = placement, seconds
        return seconds

    def improve(
        self, lives: Lives, copies: tuple[Floats, Floats], prices: EnginePrices, goal: float, seed: int, deadline: float | None
    ) -> tuple[Lives, int, bool]:
        """Search around ``lives``, with the copies of each attempt scheduled."""
        from loadmaster import _native

        times = self.times
        found = _native.search_overlapping(
            *times.native_with(*copies),
            _advice(times, prices),
            self.links,
            self.drain,
            self.shared,
            (lives.fast, lives.stays, lives.tail),
            goal,
            seed,
            min(_WORK, _ATTEMPTS * len(times.kernel) * (len(times.kernel) + times.kernels)),
            np.inf if deadline is None else max(0.0, deadline - time.monotonic()),
        )
        return Lives(found[0], found[1], found[2]), found[4], found[5]


def _advice(times: Lifetimes, prices: EnginePrices) -> tuple[Floats, Floats, Floats]:
    """Prices of memory, and of each use in either memory."""
    return prices.places.memory, *use_costs(weighted(times, prices), prices.places)


def _needed(times: Lifetimes, least: Lives) -> Ints:
    """Bytes of fast memory that each kernel cannot do without."""
    workspace = np.minimum.reduceat(times.workspace, times.first_algorithm[:-1])
    change = np.zeros(times.kernels + 1, dtype=np.int64)
    np.add.at(change, times.kernel, least.fast * times.size[times.tensor])
    np.add.at(change, times.kernel + 1, -(least.fast * times.size[times.tensor]))
    needed: Ints = np.minimum(change.cumsum()[:-1] + workspace, times.limit)
    return needed


def _candidate(
    times: Lifetimes,
    copies: tuple[Floats, Floats],
    prices: EnginePrices,
    advice: tuple[Lives, Floats],
    least: Lives,
    seed: int,
    deadline: float | None,
) -> tuple[Lives, bool]:
    """Lives that are cheap at the prices of the linear program, as if copies took no time of their own."""
    from loadmaster import _native

    guess, doubt = advice
    sure = doubt < _SURE
    found = _native.search_lives(
        *weighted(times, prices).native_with(*copies),
        _advice(times, prices),
        (sure.astype(np.uint8), guess.fast, guess.stays, guess.tail, np.lexsort((np.arange(times.tensors), -times.size, ~sure))),
        (least.fast, least.stays, least.tail),
        True,
        0.0,
        seed,
        0,
        np.inf if deadline is None else max(0.0, deadline - time.monotonic()),
    )
    return Lives(*found[:3]), bool(found[5])


def _scheduled(times: Lifetimes, lives: Lives, copies: Ints, algorithms: Ints) -> TensorPlacement:
    """Stays and copies: a stay begins when the copy back does, and lasts until the copy out is complete."""
    of_tensor: dict[int, list[tuple[bool, int, int, int]]] = {}
    for tensor, to_fast, begin, end, due in copies.tolist():
        of_tensor.setdefault(tensor, []).append((bool(to_fast), begin, end, due))
    stays = []
    for t in range(times.tensors):
        mine = of_tensor.get(t, [])
        begins = {due: begin for to_fast, begin, _, due in mine if to_fast}
        ends = {due: end for to_fast, _, end, due in mine if not to_fast}
        stays += [Stay(t, begins.get(start, start), max(end, ends.get(end, end))) for start, end in spans(times, lives, t)]
    moves = [Move(tensor, bool(to_fast), begin, end) for tensor, to_fast, begin, end, _ in copies.tolist()]
    # Each engine's order is kept; copies that block come first, those that make room before those that need it.
    moves.sort(key=lambda move: (move.start, move.start < move.end, move.to_fast if move.start == move.end else 0))
    return TensorPlacement(tuple(stays), tuple(moves), tuple(algorithms.tolist()))

"""Placement where copies block computation, or tensors never move: a linear program, lives from it, a search (AutoTM, ASPLOS 2020)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import CapacityError, PlacementError
from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.needs import fits, least_lives
from loadmaster.placement.autotm.sequence_arrays import (
    Floats,
    Ints,
    Lifetimes,
    Lives,
    checked_limits,
    lifetimes,
    placement_of,
    total_seconds,
)
from loadmaster.placement.autotm.sparse_program import Prices, SparseProgram, free_prices, use_costs
from loadmaster.placement.decisions import Mode, PlacementSolution
from loadmaster.placement.sequence import KernelSequence

_SURE = 1e-6
_PEAKS = 256
"""Runs of kernels at whose peaks the linear program knows the limits to begin with."""
_TOLERATED = 2e-3
"""Share of a limit by which the linear program may exceed it without being told."""
_ROUNDS = 5
_FEW_USES = 2000
"""Uses up to which the integer program is tried where the search does not come close enough."""
_NODES = 200
"""Nodes that it may take."""
_LIVES_PER_USE = 100
"""Lives that the search may find for every use of a tensor."""


def place_between_kernels(
    sequence: KernelSequence,
    limits: NDArray[np.int64],
    mode: Mode,
    *,
    gap: float = 0.01,
    deadline: float | None = None,
    progress: Callable[[str, float], None] | None = None,
    seed: int = 0,
) -> PlacementSolution:
    """Place tensors so that kernels and the copies between them take little time.

    Parameters
    ----------
    sequence
        Kernels, tensors and the copy link.
    limits
        Bytes of fast memory that tensors and workspace may take while each kernel runs, shape (kernels,).
    mode
        `Mode.STATIC` or `Mode.SYNC`.
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
        With a bound that holds for these limits. A deadline or Ctrl-C returns the best so far.

    Raises
    ------
    CapacityError
        If a kernel cannot run within its limit.
    PlacementError
        For limits that make no sense, or another mode.
    """
    if mode is Mode.ASYNC:
        raise PlacementError("copies that overlap computation are placed by place_overlapping")
    limits = checked_limits(sequence, limits)
    report = progress or (lambda stage, share: None)
    times = lifetimes(sequence, np.minimum(limits, 2**62))
    moves = mode is Mode.SYNC
    least = _least(sequence, times, moves, deadline)
    if not times.kernels:
        placement = placement_of(sequence, times, least, moves)
        return PlacementSolution(placement, 0.0, 0.0, np.zeros(0))
    report("solving the linear program", 0.1)
    advice = _relax(times, sequence.live_bytes(), moves, deadline)
    bound = lower_bound(times, advice.prices, moves)
    report("placing tensors", 0.5)
    lives, spent, stopped = _search(times, advice, least, moves, bound * (1 + gap), seed, deadline)
    placement = placement_of(sequence, times, lives, moves)
    seconds = total_seconds(sequence, times, lives, placement)
    if seconds > bound * (1 + gap) and not stopped and len(times.kernel) <= _FEW_USES:
        report("solving the integer program", 0.8)
        whole = _solve(times, advice, moves, gap, deadline)
        others, more, stopped = _search(times, whole, least, moves, bound * (1 + gap), seed, deadline)
        other = placement_of(sequence, times, others, moves)
        faster = total_seconds(sequence, times, others, other)
        spent += more
        if faster < seconds:
            placement, seconds = other, faster
    return PlacementSolution(placement, seconds, min(bound, seconds), advice.prices.memory, stopped, {"lives": spent})


def _least(sequence: KernelSequence, times: Lifetimes, moves: bool, deadline: float | None) -> Lives:
    """Lives that fit. Where tensors stay, measured kernels may have to agree on which are fast: only the integer program knows then."""
    try:
        return least_lives(sequence, times, moves)
    except CapacityError:
        if moves or not len(times.table):
            raise
        program = SparseProgram(times, moves)
        solved = program.model.solve(deadline, program.integers, 0.0, _NODES)
        lives = program.lives(solved)[0] if len(solved.values) else None
        if lives is None or not fits(times, lives):
            raise
        return lives


@dataclass(frozen=True, eq=False)
class _Advice:
    """Prices, lives as the linear program has them, and for each tensor how far these are from whole."""

    prices: Prices
    lives: Lives | None
    doubt: Floats
    interrupted: bool


def _relax(times: Lifetimes, live: Ints, moves: bool, deadline: float | None) -> _Advice:
    """Solve the linear program; without an answer in time, prices of nothing.

    It begins with the limits at peaks of the live bytes, and learns of others where its solution exceeds them: few matter, and any prices
    give a valid bound.
    """
    window = -(-times.kernels // _PEAKS)
    limited = _peaks((live - times.limit).astype(np.float64), window)
    advice = _Advice(free_prices(times), None, np.ones(times.tensors), False)
    for _ in range(_ROUNDS):
        program = SparseProgram(times, moves, limited)
        solved = program.model.solve(deadline)
        if not solved.optimal:
            return replace(advice, interrupted=True)
        advice = _Advice(program.prices(solved), *program.lives(solved), False)
        excess = program.excess(solved)
        missed = excess > _TOLERATED * times.limit
        if not missed.any():
            break
        limited = np.union1d(limited, _peaks(np.where(missed, excess, 0.0), window))
    return advice


def _solve(times: Lifetimes, advice: _Advice, moves: bool, gap: float, deadline: float | None) -> _Advice:
    """Lives from the integer program instead, where it finds some within its budget."""
    program = SparseProgram(times, moves)
    solved = program.model.solve(deadline, program.integers, gap / 2, _NODES)
    if not len(solved.values):
        return replace(advice, interrupted=solved.interrupted)
    return _Advice(advice.prices, *program.lives(solved), solved.interrupted)


def _peaks(height: Floats, window: int) -> Ints:
    """The highest kernel of each run of ``window`` kernels that has one above zero."""
    padded = np.full(-(-len(height) // window) * window, -np.inf)
    padded[: len(height)] = height
    rows = padded.reshape(-1, window)
    above: Ints = (rows.argmax(axis=1) + np.arange(len(rows)) * window)[rows.max(axis=1) > 0]
    return above


def _search(
    times: Lifetimes, advice: _Advice, least: Lives, moves: bool, goal: float, seed: int, deadline: float | None
) -> tuple[Lives, int, bool]:
    """Place tensors as the linear program advises, then improve; also lives found, and whether a deadline or signal ended it."""
    from loadmaster import _native

    prices, guess = advice.prices, advice.lives or least
    fast, slow = use_costs(times, prices)
    sure = advice.doubt < _SURE
    order = np.lexsort((np.arange(times.tensors), -times.size, ~sure))
    found = _native.search_lives(
        *times.native,
        (prices.memory, fast, slow),
        (sure.astype(np.uint8), guess.fast, guess.stays, guess.tail, order),
        (least.fast, least.stays, least.tail),
        moves,
        goal,
        seed,
        _LIVES_PER_USE * len(times.kernel),
        _left(advice, deadline),
    )
    return Lives(*found[:3]), found[4], advice.interrupted or found[5]


def _left(advice: _Advice, deadline: float | None) -> float:
    if advice.interrupted:
        return 0.0
    return np.inf if deadline is None else max(0.0, deadline - time.monotonic())

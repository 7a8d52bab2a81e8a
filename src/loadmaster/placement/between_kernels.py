"""Placement where copies block computation, or tensors never move: a linear program, lives from it, a search (AutoTM, ASPLOS 2020)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import PlacementError
from loadmaster.kernel_sequence import KernelSequence
from loadmaster.placement.bound import lower_bound
from loadmaster.placement.lifetimes import Floats, Lifetimes, Lives, lifetimes, placement_of, total_seconds
from loadmaster.placement.needs import least_lives
from loadmaster.placement.sparse_program import Prices, SparseProgram
from loadmaster.tensor_placement import Mode, PlacementSolution

_SURE = 1e-6
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
    limits = np.asarray(limits)
    if limits.shape != (len(sequence.kernels),) or not np.issubdtype(limits.dtype, np.integer) or (limits < 0).any():
        raise PlacementError(f"limits: give {len(sequence.kernels)} whole numbers of bytes, one for each kernel, none below 0")
    report = progress or (lambda stage, share: None)
    times = lifetimes(sequence, np.minimum(limits, 2**62))
    moves = mode is Mode.SYNC
    least = least_lives(sequence, times, moves)
    if not times.kernels:
        placement = placement_of(sequence, times, least, moves)
        return PlacementSolution(placement, 0.0, 0.0, np.zeros(0))
    report("solving the linear program", 0.1)
    prices, guess, doubt, interrupted = _relax(times, moves, deadline)
    bound = lower_bound(times, prices, moves)
    report("placing tensors", 0.5)
    lives, spent, stopped = _search(times, prices, (guess, doubt), least, moves, bound * (1 + gap), seed, 0.0 if interrupted else deadline)
    placement = placement_of(sequence, times, lives, moves)
    seconds = total_seconds(sequence, times, lives, placement)
    return PlacementSolution(placement, seconds, min(bound, seconds), prices.memory, interrupted or stopped, {"lives": spent})


def _relax(times: Lifetimes, moves: bool, deadline: float | None) -> tuple[Prices, Lives | None, Floats, bool]:
    """Prices and lives from the linear program; without an answer in time, prices of nothing."""
    program = SparseProgram(times, moves)
    solved = program.model.solve(deadline)
    if not len(solved.values):
        free = Prices(
            np.zeros(times.kernels),
            np.tile([1.0, 0.0, 0.0], (times.kernels, 1)),
            np.zeros(len(times.kernel)),
            np.zeros(len(times.kernel), dtype=np.uint8),
        )
        return free, None, np.ones(times.tensors), solved.interrupted
    return program.prices(solved), *program.lives(solved), solved.interrupted


def _search(
    times: Lifetimes,
    prices: Prices,
    advice: tuple[Lives | None, Floats],
    least: Lives,
    moves: bool,
    goal: float,
    seed: int,
    deadline: float | None,
) -> tuple[Lives, int, bool]:
    from loadmaster import _native

    guess, doubt = advice
    guess = guess or least
    shares = prices.shares[times.kernel]
    fast = times.fast * shares[:, 1]
    slow = np.where(np.isfinite(times.slow), times.slow, 0.0) * shares[:, 2]
    combined = ((np.diff(times.first_entry) > 0) | (np.bincount(times.kernel, prices.noted, times.kernels) > 0))[times.kernel]
    fast[combined], slow[combined] = 0.0, prices.surcharge[combined]
    sure = doubt < _SURE
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
        np.inf if deadline is None else max(0.0, deadline - time.monotonic()),
    )
    return Lives(*found[:3]), found[4], found[5]

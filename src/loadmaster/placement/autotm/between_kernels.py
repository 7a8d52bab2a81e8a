"""Static and synchronous placement (copies block computation): a linear program, paths from it, a
search (AutoTM, ASPLOS 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError, PlacementError
from loadmaster.core.progress import Progress, no_progress
from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.least_memory import disagreement, fits, least_paths
from loadmaster.placement.autotm.linear_model import Solved
from loadmaster.placement.autotm.sequence_arrays import (
    SequenceArrays,
    TensorPaths,
    checked_limits,
    placement_of,
    sequence_arrays,
    total_seconds,
)
from loadmaster.placement.autotm.sparse_program import (
    TOLD_APART,
    Prices,
    SparseProgram,
    free_prices,
    use_costs,
)
from loadmaster.placement.decisions import Mode, PlacementSolution, TensorPlacement
from loadmaster.placement.sequence import KernelSequence

_SURE = 1e-6
"""Distance from 0 or 1 below which the linear program's value of a tensor is taken as decided."""
PEAKS = 256
"""Number of runs of kernels whose peaks have a memory row in the first linear program."""
TOLERATED = 2e-3
"""Share of a limit by which a solution may exceed it before the linear program gets a row for
it."""
_ROUNDS = 5
"""Times that the linear program is solved, at most, each with further limits that the solution
before exceeded."""
_FEW_USES = 2000
"""The most uses for which the integer program is tried if the search does not reach the gap."""
_NODES = 200
"""The most branch-and-bound nodes of the integer program."""
_PATHS_PER_USE = 100
"""Budget of the search: shortest paths for each use of a tensor."""


def place_between_kernels(
    sequence: KernelSequence,
    limits: Ints,
    mode: Mode,
    *,
    gap: float = 0.01,
    deadline: Deadline = NO_DEADLINE,
    progress: Progress | None = None,
    seed: int = 0,
    effort: Effort = Effort.NORMAL,
) -> PlacementSolution:
    """Place tensors so that kernels and the copies between them take little time.

    Parameters
    ----------
    sequence
        Kernels, tensors and the copy link.
    limits
        Bytes of fast memory that tensors and workspace may take while each kernel runs, shape
        (kernels,).
    mode
        `Mode.STATIC` or `Mode.SYNC`.
    gap
        The search ends once it is within this share of the proven bound.
    deadline
        When to stop; without one the budget counts work, so that the answer is always the same.
    progress
        Called with a stage and the share of the work that is done.
    seed, effort
        Seed of the search, and how long it takes.

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
    report = progress or no_progress
    arrays = sequence_arrays(sequence, np.minimum(limits, WHOLE_LIMIT))
    moves = mode is Mode.SYNC
    least = least_possible(sequence, arrays, moves, deadline)
    if not arrays.kernel_count:
        placement = placement_of(sequence, arrays, least, moves)
        return PlacementSolution(placement, 0.0, 0.0, np.zeros(0))
    report("solving the linear program", 0.1)
    advice = _advice(arrays, relax(arrays, sequence.live_bytes(), moves, deadline))
    bound = lower_bound(arrays, advice.prices, moves)
    report("placing tensors", 0.5)
    paths, spent, stopped = search(
        arrays, advice, least, moves, bound * (1 + gap), seed, effort, deadline
    )
    placement = placement_of(sequence, arrays, paths, moves)
    seconds = total_seconds(sequence, arrays, paths, placement)
    if seconds > bound * (1 + gap) and not stopped and len(arrays.kernel) <= _FEW_USES:
        report("solving the integer program", 0.8)
        whole = _solve(arrays, advice, moves, gap, deadline)
        others, more, stopped = search(
            arrays, whole, least, moves, bound * (1 + gap), seed, effort, deadline
        )
        other = placement_of(sequence, arrays, others, moves)
        faster = total_seconds(sequence, arrays, others, other)
        spent += more
        if faster < seconds:
            placement, seconds = other, faster
        if moves and len(arrays.table) and seconds > bound * (1 + gap) and not stopped:
            placement, seconds = min(
                (placement, seconds),
                _unmoved(sequence, limits, gap, deadline, seed, effort),
                key=itemgetter(1),
            )
    return PlacementSolution(
        placement, seconds, min(bound, seconds), advice.prices.memory, stopped, {"lives": spent}
    )


def _unmoved(
    sequence: KernelSequence,
    limits: Ints,
    gap: float,
    deadline: Deadline,
    seed: int,
    effort: Effort,
) -> tuple[TensorPlacement, float]:
    """What placement without copies finds: of measured kernels, several operands may have to change
    places at once for any gain."""
    try:
        found = place_between_kernels(
            sequence, limits, Mode.STATIC, gap=gap, deadline=deadline, seed=seed, effort=effort
        )
    except CapacityError:
        return TensorPlacement((), (), ()), math.inf
    return found.placement, found.seconds


def least_possible(
    sequence: KernelSequence, arrays: SequenceArrays, moves: bool, deadline: Deadline
) -> TensorPaths:
    """Paths that fit. Where tensors stay, measured kernels may have to agree on which are fast:
    only the integer program knows then."""
    if moves or not len(arrays.table):
        return least_paths(sequence, arrays, moves)
    try:
        paths = least_paths(sequence, arrays, moves)
        if fits(arrays, paths):
            return paths
        refusal = CapacityError(disagreement(sequence, arrays, paths))
    except CapacityError as error:
        refusal = error
    program = SparseProgram(arrays, moves)
    solved = program.model.solve(deadline, program.integers, 0.0, _NODES)
    agreed = program.paths(solved)[0] if len(solved.values) else None
    if agreed is None or not fits(arrays, agreed):
        raise refusal
    return agreed


@dataclass(frozen=True, eq=False)
class Relaxation:
    """The last linear program that was solved, with its solution; none if none was in time, and
    then or later ``interrupted``."""

    solution: tuple[SparseProgram, Solved] | None
    interrupted: bool

    def prices(self, arrays: SequenceArrays) -> Prices:
        """Those of the solution; without one, prices of nothing."""
        if self.solution is None:
            return free_prices(arrays)
        program, solved = self.solution
        return program.prices(solved)


@dataclass(frozen=True, eq=False)
class Advice:
    """Solution of the linear program: prices, rounded paths, and each tensor's distance from whole
    numbers."""

    prices: Prices
    paths: TensorPaths | None
    doubt: Floats
    interrupted: bool


def relax(
    arrays: SequenceArrays, live: Ints, moves: bool, deadline: Deadline, apart: int = TOLD_APART
) -> Relaxation:
    """Solve the linear program.

    It begins with the limits at peaks of the live bytes, and learns of others where its solution
    exceeds them: few matter, and any prices give a valid bound.
    """
    window = -(-arrays.kernel_count // PEAKS)
    limited = _peaks((live - arrays.limit).astype(np.float64), window)
    found = Relaxation(None, False)
    for _ in range(_ROUNDS):
        program = SparseProgram(arrays, moves, limited, apart)
        solved = program.model.solve(deadline)
        if not solved.optimal:
            return replace(found, interrupted=True)
        found = Relaxation((program, solved), False)
        excess = program.excess(solved)
        missed = excess > TOLERATED * arrays.limit
        if not missed.any():
            break
        limited = np.union1d(limited, _peaks(np.where(missed, excess, 0.0), window))
    return found


def _advice(arrays: SequenceArrays, relaxed: Relaxation) -> Advice:
    """What a solution advises; without one, nothing."""
    if relaxed.solution is None:
        return Advice(
            relaxed.prices(arrays), None, np.ones(arrays.tensor_count), relaxed.interrupted
        )
    program, solved = relaxed.solution
    return Advice(relaxed.prices(arrays), *program.paths(solved), relaxed.interrupted)


def _solve(
    arrays: SequenceArrays, advice: Advice, moves: bool, gap: float, deadline: Deadline
) -> Advice:
    """Paths from the integer program instead, where it finds some within its budget."""
    program = SparseProgram(arrays, moves)
    solved = program.model.solve(deadline, program.integers, gap / 2, _NODES)
    if not len(solved.values):
        return replace(advice, interrupted=solved.interrupted)
    return Advice(advice.prices, *program.paths(solved), solved.interrupted)


def _peaks(height: Floats, window: int) -> Ints:
    """Return the highest kernel of each run of ``window`` kernels that has one above zero."""
    padded = np.full(-(-len(height) // window) * window, -np.inf)
    padded[: len(height)] = height
    rows = padded.reshape(-1, window)
    above: Ints = (rows.argmax(axis=1) + np.arange(len(rows)) * window)[rows.max(axis=1) > 0]
    return above


def search(
    arrays: SequenceArrays,
    advice: Advice,
    least: TensorPaths,
    moves: bool,
    goal: float,
    seed: int,
    effort: Effort,
    deadline: Deadline,
) -> tuple[TensorPaths, int, bool]:
    """Place tensors as the linear program advises, then improve; also paths found, and whether a
    deadline or signal ended it."""
    prices, guess = advice.prices, advice.paths or least
    fast, slow = use_costs(arrays, prices)
    sure = advice.doubt < _SURE
    found = arrays.problem.search(
        _native.UsePrices(memory=prices.memory, fast=fast, slow=slow),
        guess=guess,
        base=least,
        sure=sure.astype(np.uint8),
        order=np.lexsort((np.arange(arrays.tensor_count), -arrays.size, ~sure)),
        moves=moves,
        goal=goal,
        seed=seed,
        nodes=effort.share(_PATHS_PER_USE * len(arrays.kernel)),
        seconds=_left(advice, deadline),
    )
    return found.paths, found.nodes, advice.interrupted or found.stopped


def _left(advice: Advice, deadline: Deadline) -> float:
    return 0.0 if advice.interrupted else deadline.left()

"""Placement where an operand may lie in both memories: tensors are divided as the linear program
divides them.

The linear program in which kernels take as long as the larger sum over either memory is exact for
tensors that may be divided anywhere: a tensor there is a mixture of paths, and so are its pieces.
Most shares of its solution are whole; tensors are cut where the others say so, rounded down to
pages, and the pieces are placed by the search for tensors that are whole. Bounds for the undivided
tensors, with their bytes and not what pages or alignment add, hold for every division: costs and
room of a piece are at least its share of its tensor's.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints, Mask
from loadmaster.core.deadline import NO_DEADLINE, Deadline
from loadmaster.core.effort import Effort
from loadmaster.core.progress import Progress, no_progress
from loadmaster.placement.autotm.between_kernels import (
    PEAKS,
    TOLERATED,
    Advice,
    Relaxation,
    least_possible,
    place_between_kernels,
    relax,
    search,
)
from loadmaster.placement.autotm.bound import lower_bound
from loadmaster.placement.autotm.overlap_bound import overlap_bound
from loadmaster.placement.autotm.overlap_program import OverlapProgram
from loadmaster.placement.autotm.overlapping import place_near, place_overlapping
from loadmaster.placement.autotm.sequence_arrays import (
    SequenceArrays,
    TensorPaths,
    checked_limits,
    placed_paths,
    placement_of,
    sequence_arrays,
    total_seconds,
)
from loadmaster.placement.autotm.sparse_program import Prices
from loadmaster.placement.decisions import Division, Mode, PlacementSolution
from loadmaster.placement.pieces import divide, divisible
from loadmaster.placement.sequence import KernelSequence

_SURE = 1e-6
"""Distance below which the linear program's share of a tensor is taken for all of it, and its pages
for whole ones."""

_ROUNDING = 1e-12
"""Share by which pieces' seconds, each rounded, may exceed those of the tensor in sum."""
_GRAINS = 128
"""Pieces of which at least so many fill the fast memory: copies of small ones are close to the
program's, which are not whole."""


def place_in_pieces(
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
    """Place pieces of tensors as `place_between_kernels` places tensors, with the same arguments,
    for a sequence that has pages.

    The answer is no slower than the one with whole tensors that this function finds where pieces
    end further than ``gap`` from the bound.
    """
    report = progress or no_progress
    limits = checked_limits(sequence, limits)
    arrays = sequence_arrays(sequence, np.minimum(limits, WHOLE_LIMIT))
    moves = mode is Mode.SYNC
    least_possible(sequence, arrays, moves, deadline)
    report("solving the linear program", 0.1)
    relaxed = relax(_tightened(arrays), sequence.live_bytes(), moves, deadline, apart=0)
    prices = relaxed.prices(arrays)
    bytes_ = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.int64)
    bound = lower_bound(replace(arrays, size=bytes_), prices, moves)
    best = None
    if relaxed.solution is not None:
        report("placing pieces", 0.3)
        best = _placed(
            sequence, arrays, relaxed, prices, moves, bound * (1 + gap), seed, effort, deadline
        )
    if best is None or (best.seconds > bound * (1 + gap) and not best.interrupted):
        whole = place_between_kernels(
            sequence,
            limits,
            mode,
            gap=gap,
            deadline=deadline,
            progress=progress,
            seed=seed,
            effort=effort,
        )
        if best is None or whole.seconds < best.seconds:
            best = whole
    return replace(best, lower_bound=min(bound, best.seconds), prices=prices.memory)


def place_pieces_overlapping(
    sequence: KernelSequence,
    limits: Ints,
    *,
    gap: float = 0.02,
    deadline: Deadline = NO_DEADLINE,
    progress: Progress | None = None,
    seed: int = 0,
    effort: Effort = Effort.NORMAL,
) -> PlacementSolution:
    """Place pieces of tensors as `place_overlapping` places tensors, divided as the linear program
    with queues divides them."""
    arrays = sequence_arrays(sequence, np.minimum(checked_limits(sequence, limits), WHOLE_LIMIT))
    report = progress or no_progress
    report("solving the linear program", 0.1)
    program = OverlapProgram(arrays, sequence.link, 0) if arrays.kernel_count else None
    solved = program.solve(deadline) if program else None
    if program is None or solved is None or not len(solved.values):
        return place_overlapping(
            sequence,
            limits,
            gap=gap,
            deadline=deadline,
            progress=progress,
            seed=seed,
            effort=effort,
        )
    prices = program.engine_prices(solved)
    bytes_ = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.int64)
    bound = (1 - _ROUNDING) * overlap_bound(
        replace(arrays, size=bytes_), bytes_, sequence.link, prices
    )
    report("placing pieces", 0.3)
    pieces = _pieces(
        sequence,
        arrays,
        _bytes_there(sequence, arrays, program.shares(solved)),
        int(arrays.limit.max()) // _GRAINS,
    )
    shares = replace(prices, places=_prices_of(pieces, prices.places))
    found = place_near(
        pieces.division.sequence,
        pieces.arrays,
        pieces.paths(),
        program.fetched_before(solved),
        shares,
        bound,
        bound * (1 + gap),
        seed,
        effort,
        deadline,
    )
    return _divided(replace(found, prices=prices.places.memory), pieces.division)


def _divided(found: PlacementSolution, division: Division) -> PlacementSolution:
    """Note what a placement, and those nearby, are of."""
    nearby = found.nearby
    if nearby is None:
        return replace(found, division=division)
    return replace(
        found, division=division, nearby=lambda *within: _divided(nearby(*within), division)
    )


def _tightened(arrays: SequenceArrays) -> SequenceArrays:
    """Limits less what a solution may exceed them by, where that leaves what must be there: pieces
    would not fit else."""
    if arrays.kernel_count <= PEAKS:
        return arrays
    must = np.bincount(
        arrays.kernel, arrays.size[arrays.tensor] * ~np.isfinite(arrays.slow), arrays.kernel_count
    )
    lower = np.floor(arrays.limit * (1 - TOLERATED)).astype(np.int64)
    return replace(
        arrays, limit=np.where(lower > must + arrays.workspace.max(initial=0), lower, arrays.limit)
    )


def _placed(
    sequence: KernelSequence,
    arrays: SequenceArrays,
    relaxed: Relaxation,
    prices: Prices,
    moves: bool,
    goal: float,
    seed: int,
    effort: Effort,
    deadline: Deadline,
) -> PlacementSolution:
    """Divide tensors as a solution does, and place the pieces."""
    assert relaxed.solution is not None
    program, solved = relaxed.solution
    pieces = _pieces(
        sequence, arrays, _bytes_there(sequence, arrays, program.shares(solved)), WHOLE_LIMIT
    )
    division, divided = pieces.division, pieces.arrays
    guess = pieces.paths() if moves else placed_paths(divided, pieces.there)
    shares = _prices_of(pieces, prices)
    advice = Advice(shares, guess, np.zeros(divided.tensor_count), relaxed.interrupted)
    least = least_possible(division.sequence, divided, moves, deadline)
    paths, spent, stopped = search(divided, advice, least, moves, goal, seed, effort, deadline)
    placement = placement_of(division.sequence, divided, paths, moves)
    seconds = total_seconds(division.sequence, divided, paths, placement)
    return PlacementSolution(
        placement, seconds, 0.0, prices.memory, stopped, {"lives": spent}, division
    )


class _Pieces(NamedTuple):
    """Pieces of tensors, the use of its tensor that each use of a piece is, and whether the piece
    is in the fast memory then.

    ``stays`` is for the gap before each use, ``tail`` for the end.
    """

    division: Division
    arrays: SequenceArrays
    use: Ints
    there: Mask
    stays: Mask
    tail: Mask

    def paths(self) -> TensorPaths:
        return TensorPaths(
            self.there.astype(np.uint8), self.stays.astype(np.uint8), self.tail.astype(np.uint8)
        )


def _pieces(
    sequence: KernelSequence, arrays: SequenceArrays, fast: _BytesThere, most: int
) -> _Pieces:
    """Divide tensors so that each piece is whole in either memory, and takes ``most`` bytes or a
    page."""
    division = divide(sequence, _finer(sequence, _cuts(sequence, arrays, fast), most))
    divided = sequence_arrays(division.sequence, arrays.limit)
    of, end = np.array(division.of, dtype=np.int64), np.array(division.begin, dtype=np.int64)
    end += [tensor.bytes for tensor in division.sequence.tensors]
    use = (
        arrays.first[of][divided.tensor]
        + np.arange(len(divided.kernel))
        - divided.first[:-1][divided.tensor]
    )
    top = end[divided.tensor]
    return _Pieces(
        division, divided, use, fast.uses[use] >= top, fast.gaps[use] >= top, fast.tail[of] >= end
    )


def _prices_of(pieces: _Pieces, prices: Prices) -> Prices:
    return replace(prices, surcharge=prices.surcharge[pieces.use], noted=prices.noted[pieces.use])


def _finer(sequence: KernelSequence, cuts: list[list[int]], most: int) -> list[list[int]]:
    """Divide pieces further where they take more than ``most`` bytes."""
    step = max(most // max(1, sequence.page), 1) * sequence.page
    return [
        [
            *itertools.chain.from_iterable(
                range(begin, end, step) if may else (begin,)
                for begin, end in itertools.pairwise((0, *own, tensor.bytes))
            )
        ][1:]
        for tensor, own, may in zip(sequence.tensors, cuts, divisible(sequence), strict=True)
    ]


class _BytesThere(NamedTuple):
    """Bytes of each tensor in the fast memory: at its uses, in the gaps before them, and at the
    end."""

    uses: Ints
    gaps: Ints
    tail: Ints


def _bytes_there(
    sequence: KernelSequence, arrays: SequenceArrays, shares: tuple[Floats, Floats, Floats]
) -> _BytesThere:
    """Bytes in the fast memory in a solution, in whole pages where a tensor may be divided, else
    all or none."""
    sizes = np.array([tensor.bytes for tensor in sequence.tensors], dtype=np.int64)
    grain = np.where(divisible(sequence), max(1, sequence.page), np.maximum(sizes, 1))

    def there(part: Floats, size: Ints, step: Ints) -> Ints:
        some: Ints = (np.clip(part, 0.0, 1.0) * size / step + _SURE).astype(np.int64) * step
        return np.where(part > 1 - _SURE, size, np.minimum(some, size))

    uses, gaps, tail = shares
    of_uses = there(uses, sizes[arrays.tensor], grain[arrays.tensor])
    of_gaps = np.minimum(there(gaps, sizes[arrays.tensor], grain[arrays.tensor]), of_uses)
    follows = arrays.following != np.arange(len(arrays.following))
    after = arrays.following[follows]
    of_gaps[after] = np.minimum(of_gaps[after], of_uses[follows])
    used = np.flatnonzero(np.diff(arrays.first) > 0)
    of_tail = there(tail, sizes, grain)
    of_tail[used] = np.minimum(of_tail[used], of_uses[arrays.first[used + 1] - 1])
    return _BytesThere(of_uses, of_gaps, of_tail)


def _cuts(sequence: KernelSequence, arrays: SequenceArrays, fast: _BytesThere) -> list[list[int]]:
    """Bytes at which to divide each tensor: those up to which it is in the fast memory at some
    time."""
    cuts = []
    for t, tensor in enumerate(sequence.tensors):
        mine = slice(int(arrays.first[t]), int(arrays.first[t + 1]))
        marks = {*fast.uses[mine].tolist(), *fast.gaps[mine].tolist(), int(fast.tail[t])}
        cuts.append(sorted(mark for mark in marks if 0 < mark < tensor.bytes))
    return cuts

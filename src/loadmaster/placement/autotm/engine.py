"""Placement by AutoTM's program (ASPLOS 2020): its linear relaxation, whole solutions, and
a search from there.

Minimise the time of the step, over the path of every tensor and each kernel's algorithm, such that
tensors and workspace keep the limit at every kernel: see `program` for the formula, and `bound` for
what no placement is faster than. The modes differ in what paths and copies there may be: none that
move, copies that block, and copies that overlap kernels.

If an operand may lie in both memories, tensors are divided by the shares of the linear program. A
divisible tensor is a mixture of paths, so the program without combinations of places is exact. Most
shares of its solution are 0 or 1; the other tensors are cut at their shares, rounded down to pages,
and the pieces are placed like tensors.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints, Mask
from loadmaster.core.effort import Effort
from loadmaster.core.errors import CapacityError, PackingError
from loadmaster.core.progress import NO_DEADLINE, Deadline, Progress, ends_at_interrupt, no_progress
from loadmaster.placement.autotm.bound import (
    Prices,
    copy_costs,
    free_prices,
    lower_bound,
    use_costs,
    weighted,
)
from loadmaster.placement.autotm.program import TOLD_APART, PlacementProgram, Shares
from loadmaster.placement.autotm.sequence_arrays import (
    SequenceArrays,
    TensorPaths,
    fast_in,
    least_workspace,
    placed_paths,
    sequence_arrays,
)
from loadmaster.placement.decisions import (
    DividedSequence,
    Mode,
    Move,
    Stay,
    TensorPlacement,
    fast_bytes,
)
from loadmaster.placement.sequence import CopyLink, KernelSequence, bytes_during
from loadmaster.placement.timing import time_moves

_SURE = 1e-6
"""Distance below which a share of the linear program, or a number of pages, counts as integral."""
_GRAINS = 128
"""Least number of pieces that fill the fast memory, if copies overlap kernels: copies of small
pieces are close to the fractional copies of the program."""
_NODES = 200
"""Most branch-and-bound nodes of the integer program where only it tells whether there is a
placement; a tenth of them where it is to improve one."""
_BETWEEN, _ATTEMPTS, _WORK = 300, 100, 3 * 10**8
"""Budget of the search: uses looked at for each use of a tensor; or, where every attempt schedules
all copies, attempts for each use, and the most uses and kernels that they schedule together."""

_THRIFT = 0.1
"""What the search charges for a copy that overlaps kernels at least, as a share of its time, so
that it makes none that is of no use."""
_NAMED = 5
"""Most tensors that an error names."""


@dataclass(frozen=True, eq=False)
class PlacementSolution:
    """The result of an engine: a placement that keeps the limits at every kernel, with its bound.

    Attributes
    ----------
    placement
        Decisions that keep the limits.
    seconds
        Time of the sequence with them.
    lower_bound
        Seconds that every placement of this mode takes at least, proven for exactly these limits.
    prices
        Seconds that one byte more of fast memory would save while each kernel runs, shape
        (kernels,): the multipliers of the bound.
    interrupted
        Whether a time limit or Ctrl-C ended the search early.
    division
        The division of tensors into pieces, if any; the bound then holds for all divisions.
    paths, search
        The memory of each use, and the search that found it.
    larger_bound
        The bound with one more GiB of fast memory.
    """

    placement: TensorPlacement
    seconds: float
    lower_bound: float
    prices: Floats
    interrupted: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    division: DividedSequence | None = None
    paths: TensorPaths | None = None
    search: PathSearch | None = None
    larger_bound: float = 0.0


def place_by_program(
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
    """Place tensors, or their pieces where the sequence has pages, so that kernels and copies take
    little time.

    Parameters
    ----------
    sequence
        Kernels, tensors and the copy link.
    limits
        Bytes of fast memory that tensors and workspace may take while each kernel runs, shape
        (kernels,).
    mode
        How tensors may move.
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
    """
    report = progress or no_progress
    limits = np.minimum(limits, WHOLE_LIMIT)
    arrays, moves = sequence_arrays(sequence, limits), mode is not Mode.STATIC
    link = sequence.link if mode is Mode.ASYNC else None
    search = PathSearch(sequence, arrays, moves, link, free_prices(arrays), None, seed, effort)
    guess = search.least(deadline)
    if not arrays.kernel_count:
        return PlacementSolution(TensorPlacement((), (), ()), 0.0, 0.0, np.zeros(0))
    report("solving the linear program", 0.1)
    program = PlacementProgram(arrays, moves, link, 0 if sequence.page else TOLD_APART)
    solved = program.solve(deadline)
    found = len(solved.values)
    prices = program.prices(solved) if found else search.prices
    relaxed = (prices, moves, link, sequence.page > 0)
    bound = lower_bound(arrays, *relaxed)
    larger = replace(arrays, limit=limits + sequence.useful_bytes(limits))
    stopped = solved.interrupted
    ended = stopped or not found
    report("placing tensors", 0.4)
    whole = divided = replace(search, prices=prices)
    if found:
        shares = program.shares(solved)
        if sequence.page:
            most = int(limits.max()) // _GRAINS if link else WHOLE_LIMIT
            division, arrays, prices, shares = _divided(sequence, arrays, prices, shares, most)
            divided = replace(
                whole,
                sequence=division.sequence,
                arrays=arrays,
                prices=prices,
                division=division,
            )
        guess = shares.rounded()
    goal, left = bound * (1 + gap), Deadline.within(0.0) if ended else deadline
    best = divided.run(guess, goal, left)
    ended |= best.interrupted
    # Larger programs take too long.
    few = len(arrays.kernel) * (4 if link else 1) <= effort.nodes
    if best.seconds > goal and few and not ended:
        half = deadline.part(0.5)
        solved = program.model.solve(
            half, program.integers, gap if link else gap / 10, _NODES // 10
        )
        stopped |= solved.interrupted or half.passed()
        others = [best]
        if len(solved.values):
            left = Deadline.within(0.0) if solved.interrupted else deadline
            others.append(whole.run(program.shares(solved).rounded(), goal, left))
        if link:
            # Copies that wait between kernels may be faster than those that overlap.
            between = place_by_program(
                sequence, limits, Mode.SYNC, gap=gap, deadline=half, seed=seed, effort=effort
            )
            others.append(between)
        best = min(others, key=lambda placed: placed.seconds)
    stopped |= best.interrupted
    return replace(
        best,
        lower_bound=min(bound, best.seconds),
        interrupted=stopped,
        larger_bound=lower_bound(larger, *relaxed),
    )


@dataclass(frozen=True, eq=False)
class PathSearch:
    """The local search over paths of the tensors (or pieces) of one sequence."""

    sequence: KernelSequence
    arrays: SequenceArrays
    moves: bool
    link: CopyLink | None
    prices: Prices
    division: DividedSequence | None
    seed: int
    effort: Effort

    def run(self, guess: TensorPaths, goal: float, deadline: Deadline) -> PlacementSolution:
        """Start from ``guess``, repaired to keep the limits, and improve it until ``goal``
        seconds."""
        arrays, prices = self.arrays, self.prices
        least = guess if not self.division and self._fit(guess) else self.least(deadline)
        uses = len(arrays.kernel)
        fast, slow = use_costs(weighted(arrays, prices), prices)
        work = min(_WORK, _ATTEMPTS * uses * (uses + arrays.kernel_count))
        costs = copy_costs(arrays, prices, self.link)
        if self.link:
            thrift = _THRIFT * arrays.bytes[arrays.tensor] / self.link.asynchronous_to_fast
            costs = costs[0] + thrift, costs[1] + thrift
        with ends_at_interrupt(deadline) as left:
            found = arrays.problem_with(*costs).search(
                _native.UsePrices(memory=prices.memory, fast=fast, slow=slow),
                guess=guess,
                base=least,
                moves=self.moves,
                engines=self.engines,
                goal=goal,
                seed=self.seed,
                nodes=self.effort.share(work if self.link else _BETWEEN * uses),
                seconds=left.left(),
            )
        # Copies under way may take more room than there is.
        paths, placement, seconds = min(
            ((paths, *self.timed(paths)) for paths in (found.paths, least)),
            key=lambda each: ((fast_bytes(self.sequence, each[1]) > arrays.limit).any(), each[2]),
        )
        return PlacementSolution(
            placement,
            seconds,
            0.0,
            prices.memory,
            found.stopped,
            {"nodes": found.nodes, "rounds": found.rounds},
            self.division,
            paths,
            self,
        )

    def least(self, deadline: Deadline) -> TensorPaths:
        """Return feasible paths with little fast memory. If tensors never move, measured kernels
        may conflict on which tensors are fast: then only the integer program decides."""
        arrays = self.arrays
        try:
            paths = least_paths(self.sequence, arrays, self.moves)
        except CapacityError as error:
            if self.moves or not len(arrays.table):
                raise
            refusal = error
        else:
            if self.moves or self._fit(paths):
                return paths
            refusal = CapacityError(_disagreement(self.sequence, arrays, paths))
        program = PlacementProgram(arrays, self.moves)
        solved = program.model.solve(deadline, program.integers, 0.0, _NODES)
        if len(solved.values):
            agreed = program.shares(solved).rounded()
            if self._fit(agreed):
                return agreed
        raise refusal if solved.infeasible else PackingError(f"ended early: {refusal}")

    def _fit(self, paths: TensorPaths) -> bool:
        """Whether every kernel can run with its operands in their memories, within its limit."""
        return math.isfinite(self.arrays.problem.schedule(self.engines, paths).seconds)

    @cached_property
    def engines(self) -> _native.CopyEngines:
        """Seconds of every tensor's copies."""
        link, bytes_ = self.sequence.link, self.arrays.bytes.astype(np.float64)
        return _native.CopyEngines(
            block_in=self.arrays.to_fast,
            block_out=self.arrays.to_slow,
            overlap_in=bytes_ / link.asynchronous_to_fast,
            overlap_out=bytes_ / link.asynchronous_to_slow,
            drain=link.asynchronous_to_slow,
            shared=link.shared,
            overlaps=self.link is not None,
        )

    def timed(
        self, paths: TensorPaths, offsets: Ints | None = None
    ) -> tuple[TensorPlacement, float]:
        """Schedule the copies of ``paths``, at addresses if they are given: a stay begins when the
        copy back does, and lasts until the copy out is complete; and its seconds."""
        found = self.arrays.problem.schedule(self.engines, paths, offsets)
        columns = (found.tensor, found.to_fast > 0, found.start, found.end, found.due)
        copies = list(zip(*(column.tolist() for column in columns), strict=True))
        begins = {(tensor, due): begin for tensor, to_fast, begin, _, due in copies if to_fast}
        ends = {(tensor, due): end for tensor, to_fast, _, end, due in copies if not to_fast}
        cores = (found.stay_tensor, found.stay_start, found.stay_end)
        stays = [
            Stay(t, begins.get((t, start), start), max(end, ends.get((t, end), end)))
            for t, start, end in zip(*(column.tolist() for column in cores), strict=True)
        ]
        moves = [Move(tensor, to_fast, begin, end) for tensor, to_fast, begin, end, _ in copies]
        # Each engine's order is kept; copies that block come first, those that make room before
        # those that need it.
        moves.sort(key=lambda m: (m.start, m.start < m.end, m.start == m.end and m.to_fast))
        placed = TensorPlacement(tuple(stays), tuple(moves), tuple(found.algorithms.tolist()))
        return placed, time_moves(self.sequence, placed).total


def _divided(
    sequence: KernelSequence, arrays: SequenceArrays, prices: Prices, shares: Shares, most: int
) -> tuple[DividedSequence, SequenceArrays, Prices, Shares]:
    """Divide tensors so that each piece is in one memory and has at most ``most`` bytes or one
    page; return the division with arrays, prices and shares of the pieces."""
    # Only operands that may lie in both memories come in pieces.
    from loadmaster.placement.pieces import divide, divisible

    may, size, tensor = np.array(divisible(sequence)), arrays.bytes, arrays.tensor
    page = sequence.page
    grain = np.where(may, page, np.maximum(size, 1))

    def there(part: Floats, size: Ints, step: Ints) -> Ints:
        """Bytes in the fast memory: whole pages where a tensor may be divided, else all or none."""
        some: Ints = (np.clip(part, 0.0, 1.0) * size / step + _SURE).astype(np.int64) * step
        return np.where(part > 1 - _SURE, size, np.minimum(some, size))

    uses = there(shares.uses, size[tensor], grain[tensor])
    gaps = np.minimum(there(shares.gaps, size[tensor], grain[tensor]), uses)
    follows = arrays.following != np.arange(len(uses))
    after, used = arrays.following[follows], np.flatnonzero(np.diff(arrays.first))
    gaps[after] = np.minimum(gaps[after], uses[follows])
    tail = there(shares.tail, size, grain)
    tail[used] = np.minimum(tail[used], uses[arrays.first[used + 1] - 1])
    marks = [{0, bytes_} for bytes_ in size.tolist()]
    for of, mark in zip([*tensor, *tensor, *range(len(size))], [*uses, *gaps, *tail], strict=True):
        marks[of].add(int(mark))
    step = max(most // page, 1) * page
    cuts = [
        [
            cut
            for begin, end in itertools.pairwise(sorted(own))
            for cut in range(begin, end, step if divides else max(end, 1))
        ][1:]
        for own, divides in zip(marks, may, strict=True)
    ]
    division = divide(sequence, cuts)
    pieces = sequence_arrays(division.sequence, arrays.limit)
    of = np.array(division.of, dtype=np.int64)
    end = np.array(division.begin, dtype=np.int64) + pieces.bytes
    use = arrays.first[of][pieces.tensor] + np.arange(len(pieces.kernel))
    use -= pieces.first[:-1][pieces.tensor]
    top = end[pieces.tensor]
    there_or_not = Shares(uses[use] >= top, gaps[use] >= top, tail[of] >= end)
    own = replace(prices, surcharge=prices.surcharge[use], noted=prices.noted[use])
    return division, pieces, own, there_or_not


def least_paths(sequence: KernelSequence, arrays: SequenceArrays, moves: bool) -> TensorPaths:
    """Return paths in which the fast memory only holds operands that a kernel cannot use elsewhere.

    If tensors may not move, such an operand is always fast. Raises `CapacityError` if even that
    exceeds a limit.
    """
    must = ~np.isfinite(arrays.slow)
    workspace = least_workspace(arrays)
    for k in arrays.measured_kernels:
        # Operands beyond the table may be anywhere.
        must[arrays.use[arrays.first_operand[k] : arrays.first_operand[k + 1]]] = False
        uses, must_be_fast, workspace[k] = _least_combination(arrays, k)
        must[uses] = must_be_fast
    if moves:
        tensor, start, end = arrays.tensor[must], arrays.kernel[must], arrays.kernel[must] + 1
        fast, nowhere = must.astype(np.uint8), np.zeros(len(must), dtype=np.uint8)
        paths = TensorPaths(fast, nowhere, np.zeros(arrays.tensor_count, dtype=np.uint8))
    else:
        tensor = np.unique(arrays.tensor[must])
        start, end = sequence.lifetimes[tensor].T
        paths = placed_paths(arrays, np.isin(arrays.tensor, tensor))
    taken = bytes_during(arrays.kernel_count, start, end, arrays.size[tensor])
    over = taken + workspace - arrays.limit
    if over.max(initial=0) > 0:
        k = int(over.argmax())
        there = tensor[(start <= k) & (k < end)]
        raise CapacityError(_kernel_too_large(sequence, arrays, there, int(workspace[k]), k))
    return paths


def _least_combination(arrays: SequenceArrays, kernel: int) -> tuple[Ints, Mask, int]:
    """Return the feasible combination of a measured kernel with the least memory: the uses that its
    table tells apart, which of them are fast, and the bytes of its workspace."""
    uses, table = arrays.measured(kernel)
    workspace = arrays.workspaces_of(kernel)[:, None]
    fast = fast_in(table.shape[1])
    taken = fast @ arrays.size[arrays.tensor[uses]] + workspace
    total = np.where(np.isfinite(table), taken, np.iinfo(np.int64).max)
    algorithm, best = np.unravel_index(int(total.argmin()), total.shape)
    return uses, fast[best], int(workspace[algorithm, 0])


def _disagreement(sequence: KernelSequence, arrays: SequenceArrays, paths: TensorPaths) -> str:
    """Say why static paths are infeasible although there is room: name a kernel that cannot use its
    operands in their memories."""
    there = np.unique(arrays.tensor[paths.fast > 0])
    start, end = sequence.lifetimes[there].T
    room = arrays.limit - bytes_during(arrays.kernel_count, start, end, arrays.size[there])

    def is_stuck(kernel: int) -> bool:
        """Whether no algorithm can run with the operands where they are, in what room is left."""
        uses, table = arrays.measured(kernel)
        at = int(((paths.fast[uses] == 0) << np.arange(len(uses))).sum())
        fits = arrays.workspaces_of(kernel) <= room[kernel]
        return not (np.isfinite(table[:, at]) & fits).any()

    kernel = next(filter(is_stuck, arrays.measured_kernels))
    places = ", ".join(
        f"{sequence.tensors[int(arrays.tensor[use])].name!r} in the"
        f" {'fast' if paths.fast[use] else 'slow'} one"
        for use in arrays.measured(kernel)[0]
    )
    return (
        f"kernel {sequence.kernels[kernel].name!r} cannot run with its tensors in the memories in"
        f" which other kernels need them ({places}) and may take {int(arrays.limit[kernel])} bytes:"
        " allow more fast memory, or let tensors move (mode sync)"
    )


def _kernel_too_large(
    sequence: KernelSequence, arrays: SequenceArrays, tensors: Ints, workspace: int, k: int
) -> str:
    """Return the error message for kernel ``k``, whose tensors and workspace exceed its limit, with
    the largest tensors."""
    there = sorted(tensors.tolist(), key=lambda t: (-int(arrays.size[t]), t))
    largest = ", ".join(
        f"{sequence.tensors[t].name!r} ({int(arrays.size[t])} bytes)" for t in there[:_NAMED]
    )
    more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    needed, limit = int(arrays.size[there].sum()) + workspace, int(arrays.limit[k])
    what = f"its tensors: {largest}{more}" if there else "no tensors"
    return (
        f"kernel {sequence.kernels[k].name!r} needs {needed} bytes of fast memory and may take"
        f" {limit}: a workspace of {workspace} bytes, and {what}: allow {needed - limit} bytes"
        " more, or split the kernel"
    )

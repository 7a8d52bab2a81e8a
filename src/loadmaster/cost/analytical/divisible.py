"""What jobs take at least when they may be cut into pieces, and the pieces shared by cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.cost.analytical.energy import JobWork, inside_energy
from loadmaster.cost.analytical.nests import NestTable, efficiencies, nest_table
from loadmaster.cost.base import kinds_of, per_core
from loadmaster.targets.hardware import Core, Style, Target
from loadmaster.workloads.job import Job


def least_delivered(n: NestTable, core: Core) -> Floats:
    """Bytes over the on-chip network for every nest, shape (nests,), that its pieces take in
    proportion to their work at least.

    What the table of deliveries in docs/costs.md counts for a tile, for the piece that suits the
    array best: pieces have all input channels and taps, and any part of the groups, the output
    channels and the positions. The deliveries of a tiling are computed in
    ``src/native/cost/tiling.cpp``; tests hold them to this.
    """
    # A flexible array may have all of its elements in one row or one column.
    elements = float(core.rows * core.columns)
    rows, columns = (elements, elements) if core.flexible else (core.rows, core.columns)
    weights, inputs, passes = n.weights, n.inputs, np.ones_like(n.k)
    # Inputs of every tap, as arrays take them that do not keep rows.
    unfolded = n.groups * n.positions * n.c * n.taps
    match core.style:
        case Style.WEIGHT_STATIONARY:
            inputs = unfolded * np.maximum(1.0, n.k / rows)
            passes = np.ceil(
                np.ceil(n.c / columns) * n.taps / _items_per_element(core, n.element_bytes)
            )
        case Style.OUTPUT_STATIONARY:
            sums = rows * _items_per_element(core, core.accumulator)
            weights = n.weights * np.maximum(1.0, n.positions / sums)
            inputs = unfolded * np.maximum(1.0, n.k / columns)
        case Style.ROW_STATIONARY:
            weights = n.weights * n.batch * np.maximum(1.0, n.y / columns)
            inputs = n.inputs * np.maximum(1.0, n.k / _stacked_filters(n, rows))
            passes = np.ceil(n.c / _items_per_element(core, 2 * n.s * n.element_bytes)) * np.ceil(
                n.r / rows
            )
    results = n.outputs * (n.element_bytes + 2 * core.accumulator * (passes - 1))
    return ((weights + inputs) * n.element_bytes + results) * n.repeats


def _items_per_element(core: Core, item: Floats | int) -> Floats:
    """Return how many items of so many bytes an element's local buffer holds."""
    return np.maximum(1.0, np.floor(core.local_buffer / np.asarray(item, dtype=np.float64)))


def _stacked_filters(n: NestTable, rows: float) -> Floats:
    """Return how many output channels have their filter rows one below another in the array."""
    return np.maximum(1.0, np.floor(rows / np.minimum(n.r, rows)))


def divisible_costs(
    jobs: Sequence[Job], target: Target, sums: Mask | None = None
) -> tuple[Floats, Floats]:
    """Seconds and joules of every job on every core, shape (jobs, cores), at the rate of the piece
    that suits the core best.

    A share ``f`` of a job takes at least ``f`` times as long, whatever piece it is: where an extent
    of the job fills a core's array, some piece of it does so exactly, and where it does not, no
    piece fills more (:func:`last_turns` says what is left over). What a piece does not cut (taps,
    and input channels but of jobs that are in ``sums``, shape (jobs,)) is as it is. A share pays
    all of what starting a job takes, and filling and draining the array, which count once. The time
    of the on-chip network is left out; flexible arrays take any shape, and no time to fill. Energy
    counts what goes over the network at least
    (:func:`~loadmaster.cost.analytical.divisible.least_delivered`). Pieces that divide input
    channels have as many passes of sums between them, but for those between two pieces, where the
    sums go out and come in as operands that are no narrower. O(jobs x kinds of core).
    """
    nests, free, amounts, cores, position = _tables(jobs, target, sums)
    seconds, joules = [], []
    for core in cores:
        fill = 0 if _is_shapeless(core) else core.rows + core.columns - 2
        cycles = (_cycles(nests, core, free) + fill) * nests.repeats
        rate = core.clock * efficiencies(jobs, core)
        seconds.append(
            np.maximum(nests.per_job(cycles), amounts.elements / core.lanes) / rate + core.start_up
        )
        joules.append(inside_energy(core, amounts, nests.per_job(least_delivered(nests, core))))
    return per_core(seconds, position), per_core(joules, position)


def _tables(
    jobs: Sequence[Job], target: Target, sums: Mask | None
) -> tuple[NestTable, Mask, JobWork, list[Core], Ints]:
    """Return the loop nests, which of them may be summed in parts, the work of jobs, and kinds of
    core with the positions of cores among them."""
    nests = nest_table(jobs)
    free = np.zeros(len(nests.k), dtype=np.bool_)
    rows = nests.row_of[:0] if sums is None else nests.row_of[sums]
    free[rows[rows >= 0]] = True
    return nests, free, JobWork(jobs), *kinds_of(target)


def last_turns(
    jobs: Sequence[Job], target: Target, seconds: Floats, sums: Mask | None = None
) -> tuple[Floats, Floats]:
    """What jobs take beyond ``seconds``, shape (jobs, cores), as the last turn of an array takes as
    long as a full one.

    Let ``E`` channels, rows or positions of a result be taken by an array ``r`` at a time, in turns
    of ``u`` seconds, and ``E = n r + e`` with ``n >= 1`` and ``0 < e < r``. Across any line along
    that extent lie pieces of a core's kind with ``x`` of ``E`` altogether, which take ``ceil(x /
    r)`` turns of it at least, as sums of roundings up are no less than the rounded sum; cores of
    other kinds take at least ``E - x`` at the rate of ``seconds``. At no prices of the cores is
    this cheaper than two parts by themselves: a share ``n r / E`` of the job at the rate of
    ``seconds`` on any core, and the rest so too, but on cores of this kind in one whole turn. For
    where ``x <= n r`` the part pays ``x / r`` turns and other cores the remainder, and beyond that
    ``n`` turns and one. All of this holds for each part of the input channels of jobs that are in
    ``sums`` (see :func:`divisible_costs`), and so for them together.

    Returns
    -------
    (Floats, Floats)
        The share of each job that fills its turns, shape (jobs,), and the seconds beyond its own
        that the rest takes where it runs on a core of the kind that is fastest for the job, shape
        (jobs, cores); 1 and 0 where all turns are full or the lanes take longer.
    """
    nests, free, amounts, cores, position = _tables(jobs, target, sums)
    alone = (nests.row_of >= 0).sum(axis=1) == 1
    row = nests.row_of[:, 0] if nests.row_of.size else np.full(len(jobs), -1, dtype=np.int64)
    share, extra = np.ones(len(jobs)), np.zeros_like(seconds)
    fastest = position[seconds.argmin(axis=1)]
    for kind, core in enumerate(cores):
        cycles, turns = (
            np.append(figures, 0.0)[row]
            for figures in (_cycles(nests, core, free) * nests.repeats, _turns(nests, core))
        )
        full = np.floor(turns)
        left = turns - full
        ends = (full >= 1) & (left > 1e-9) & (cycles > amounts.elements / core.lanes)
        chosen = np.flatnonzero(alone & (fastest == kind) & ends)
        turn = cycles[chosen] / turns[chosen] / (core.clock * efficiencies(jobs, core)[chosen])
        share[chosen] = full[chosen] / turns[chosen]
        more = turn * (1 - left[chosen]) * (1 - 1e-12)
        extra[np.ix_(chosen, np.flatnonzero(position == kind))] = more[:, None]
    return share, extra


def _is_shapeless(core: Core) -> bool:
    """Whether all elements are busy, as those of a flexible array are, which takes any shape."""
    return core.flexible or core.style is Style.ROOFLINE


def _cycles(n: NestTable, core: Core, free: Mask) -> Floats:
    """Return the cycles of every nest once, in pieces that suit the core best, without filling and
    draining its array."""
    rows, columns = core.rows, core.columns
    if _is_shapeless(core):
        steps = n.macs / (rows * columns * n.repeats)
    elif core.style is Style.WEIGHT_STATIONARY:
        # Pieces of as many input channels as there are columns leave a turn that is not full to one
        # piece: a share of it takes more.
        deep = np.where(free, np.maximum(1.0, n.c / columns), np.ceil(n.c / columns))
        side_by_side = columns // np.minimum(n.c, columns)
        filled = np.maximum(np.maximum(n.groups * n.k / rows, n.groups / side_by_side), 1.0)
        steps = n.positions * n.taps * deep * filled
    elif core.style is Style.OUTPUT_STATIONARY:
        filled = np.maximum(n.groups * n.k / columns, 1.0) * np.maximum(n.positions / rows, 1.0)
        steps = filled * n.c * n.taps
    else:
        channels = np.maximum(n.groups * n.k / _stacked_filters(n, rows), 1.0)
        filled = np.maximum(n.y / columns, 1.0) * channels
        steps = n.batch * n.x * n.s * n.c * filled * np.ceil(n.r / rows)
    return np.asarray(steps / np.array([core.macs_per_cycle[int(bits)] for bits in n.bits]))


def _turns(n: NestTable, core: Core) -> Floats:
    """Return how often an extent of every nest fills the array. Of several extents it is the one
    for which the last turn matters most; 0 for none."""
    # Channels of several groups stand side by side, so that the last of one does not wait for the
    # next.
    channels = np.where(n.groups == 1, n.k, 0.0)
    rows, columns = core.rows, core.columns
    if _is_shapeless(core):
        return np.zeros_like(n.k)
    turns = np.stack(
        {
            Style.WEIGHT_STATIONARY: [channels / rows],
            Style.OUTPUT_STATIONARY: [channels / columns, n.positions / rows],
            Style.ROW_STATIONARY: [n.y / columns, channels / _stacked_filters(n, rows)],
        }[core.style]
    )
    lost = np.where(turns > 1, np.ceil(turns) / np.maximum(turns, 1.0), 1.0)
    return np.asarray(turns[lost.argmax(axis=0), np.arange(len(n.k))])

"""Jobs of networks in finer and finer pieces, and what they take at least in whatever pieces: for
mapping jobs that may be divided."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.arrays import Floats, Mask
from loadmaster.core.errors import JobError
from loadmaster.cost.analyse import analyse
from loadmaster.cost.analytical.divisible import divisible_costs
from loadmaster.cost.analytical.energy import refill_energy
from loadmaster.cost.base import JobAnalysis
from loadmaster.cost.job_pool import JobPool, is_listed, joined, load_renamed, part_of, read_pool
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.grid import WHOLE, Grid, least_shares
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork

_LENGTHS = (2, 4, 8, 16)
"""Pieces are at most this fraction of the least time that all jobs take, one way to divide for
each."""
_PARTS = (2, 4, 8, 16, 32)
"""Parts into which operators are cut, up to four for each core."""
_AXES = 2
"""Dimensions of a result that are tried, the longest first."""


@dataclass(frozen=True, eq=False)
class LeastWork:
    """What jobs take at least in whatever pieces they are divided, however these are spread over
    the cores.

    ``latency`` seconds when a core does all of a job, shape (jobs, cores), infinite where it
    cannot; ``moved`` bytes and ``energy`` joules (or None) of a job, shape (jobs, cores). A share
    of a job takes that share of each, or more. ``divides`` says which jobs can be divided.
    """

    latency: Floats
    moved: Floats
    energy: Floats | None
    divides: Mask


@dataclass(frozen=True, eq=False)
class DividedJobs:
    """Ways to divide the jobs of a pool, whole first, then in finer and finer pieces."""

    ways: tuple[JobPool, ...]
    least: LeastWork


def _in_parts(network: DivisibleNetwork, parts: int, nth: int, long: Mask) -> list[Grid]:
    """Return cuts of every long operator into so many parts along its ``nth`` longest dimension, if
    it has one."""
    cuts = list(network.plain)
    for number, form in enumerate(network.forms):
        if form is not None and long[number] and nth < len(form.axes):
            axes = sorted((-form.shape[axis], axis) for axis in form.axes)
            cuts[number] = form.grid({axes[nth][1]: parts})
    return cuts


@validate_arguments(JobError)
def divide_jobs(
    sources: Iterable[str | Path],
    target: Target,
    bandwidth: float,
    *,
    mini_batches: int = 1,
    **options: Any,
) -> DividedJobs:
    """Read sources as :func:`~loadmaster.cost.job_pool.read_pool` does, and divide the operators of
    networks in several ways; ``options`` are those of :func:`loadmaster.load`.

    In each way pieces take at most a half, a quarter, ... of the least time that all jobs take on
    the machine, where that can be had. Of the cuts of an operator into pieces that are short
    enough, that is taken whose pieces take the least together. Jobs of lists and tables stay whole.
    O(ways to cut an operator x jobs).

    Raises
    ------
    LoadmasterError
        As :func:`~loadmaster.cost.job_pool.read_pool`.
    """
    read: list[DivisibleNetwork | JobPool] = []
    names: list[str] = []
    for source in map(str, sources):
        if is_listed(source):
            read.append(read_pool([source], target, mini_batches=mini_batches))
        else:
            graph = load_renamed(source, names, **options)
            read.append(DivisibleNetwork.of(graph, target))
    networks = [each for each in read if isinstance(each, DivisibleNetwork)]

    def pool(cuts: Sequence[Sequence[Grid]]) -> JobPool:
        """Return the jobs of all files with the given cuts, those of the networks in pieces."""
        parts, left = [], iter(cuts)
        for each in read:
            if isinstance(each, JobPool):
                parts.append(each)
                continue
            cut = [Cuts(next(left))]
            work = lower([each.source], target, mini_batches=mini_batches, cuts=cut)
            parts.append(part_of(work, analyse(work, target)))
        return joined(parts)

    least = _join_least(
        [
            _least_of_list(each.analysis)
            if isinstance(each, JobPool)
            else _least_of_network(each, target, mini_batches)
            for each in read
        ]
    )
    # A bound of the makespan: all cores are busy, or the bandwidth is in use.
    alone = np.maximum(least.latency, least.moved / bandwidth).min(axis=1)
    together = max(alone.sum() / len(target.cores), least.moved.min(axis=1).sum() / bandwidth)
    ways_of = [_options(each, target, bandwidth, together / _LENGTHS[-1]) for each in networks]
    ways = [[network.plain for network in networks]]
    for fraction in _LENGTHS:
        cuts = [_choose(each, together / fraction) for each in ways_of]
        if cuts not in ways:
            ways.append(cuts)
    return DividedJobs(tuple(map(pool, ways)), least)


@dataclass(frozen=True)
class _JobDivision:
    """A way to cut every operator: its longest piece, and all of its pieces together, in
    seconds."""

    cuts: list[Grid]
    longest: Floats
    together: Floats


def _options(
    network: DivisibleNetwork, target: Target, bandwidth: float, short: float
) -> list[_JobDivision]:
    """Ways to cut all operators that take longer than ``short`` seconds."""
    most = 4 * len(target.cores)
    plain = _option(network, network.plain, target, bandwidth)
    cuts = [
        _in_parts(network, parts, nth, plain.longest > short)
        for parts in _PARTS
        if parts <= most
        for nth in range(_AXES)
    ]
    return [
        plain,
        *(_option(network, tried, target, bandwidth) for tried in cuts if tried != network.plain),
    ]


def _option(
    network: DivisibleNetwork, cuts: list[Grid], target: Target, bandwidth: float
) -> _JobDivision:
    """Return the latencies of a network's operators under given cuts, on the best core and
    including the bandwidth limit: the longest piece and the sum of the pieces."""
    analysis = analyse(lower([network.source], target, cuts=[Cuts(cuts)]), target)
    moving = analysis.latency * analysis.bandwidth / bandwidth
    each = np.maximum(analysis.latency, moving).min(axis=1)
    until = np.concatenate([[0], np.cumsum([cut.tiles for cut in cuts])])
    pieces = list(itertools.pairwise(until.tolist()))
    return _JobDivision(
        cuts,
        np.array([each[a:b].max() for a, b in pieces]),
        np.array([each[a:b].sum() for a, b in pieces]),
    )


def _choose(options: Sequence[_JobDivision], length: float) -> list[Grid]:
    """Return for every operator the cut with the least sum of all cuts into short enough pieces;
    without such cuts, the one with the shortest pieces."""

    def rank(option: _JobDivision, number: int) -> tuple[float, float, int]:
        """Order ways to cut an operator: by its longest piece, then all of its pieces, then their
        number."""
        longest = max(length, option.longest[number])
        return longest, option.together[number], option.cuts[number].tiles

    return [
        min(options, key=lambda option: rank(option, number)).cuts[number]
        for number in range(len(options[0].cuts))
    ]


def _least_of_network(network: DivisibleNetwork, target: Target, mini_batches: int) -> LeastWork:
    """Return the least work of a network: for operators that divide, that of the pieces that suit
    each core best; for others, their own."""
    cuts = [
        plain if form is None else WHOLE
        for form, plain in zip(network.forms, network.plain, strict=True)
    ]
    work = lower([network.source], target, mini_batches=mini_batches, cuts=[Cuts(cuts)])
    groups = np.tile(np.repeat(np.arange(len(cuts)), [cut.tiles for cut in cuts]), mini_batches)
    divides = np.array([form is not None for form in network.forms], dtype=np.bool_)[groups]
    analysis = analyse(work, target)
    seconds, joules = divisible_costs(work.jobs, target)
    shares = [least_shares(network.graph, group) for group in network.fused]
    storages = {tensor.name: tensor.storage for tensor in work.tensors}
    once = np.array(
        [
            sum(int(x.bytes * shares[number].get(storages[x.tensor], 1.0)) for x in job.reads)
            + sum(x.bytes for x in job.writes)
            for job, number in zip(work.jobs, groups, strict=True)
        ],
        dtype=np.float64,
    )
    whole = analysis.latency * analysis.bandwidth
    refill = np.array([refill_energy(core, target.main) for core in target.cores])
    energy = analysis.energy
    assert energy is not None
    column = divides[:, None]
    return LeastWork(
        np.where(column, np.minimum(seconds, analysis.latency), analysis.latency),
        np.where(column, np.minimum(once[:, None], whole), whole),
        np.where(column, np.minimum(joules + once[:, None] * refill, energy), energy),
        divides,
    )


def _least_of_list(analysis: JobAnalysis) -> LeastWork:
    """Return the least work of a job list, which is not cut."""
    runs = np.isfinite(analysis.latency)
    moved = np.where(runs, analysis.latency, 0.0) * np.where(runs, analysis.bandwidth, 0.0)
    whole = np.zeros(len(analysis.jobs), dtype=np.bool_)
    return LeastWork(analysis.latency, moved, analysis.energy, whole)


def _join_least(parts: Sequence[LeastWork]) -> LeastWork:
    """Join the least work of several networks."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    joint: list[Any] = [
        None if any(each is None for each in column) else np.concatenate(column)
        for column in columns
    ]
    return LeastWork(*joint)

"""Networks, job lists and job analysis tables, read and pooled into one table of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from loadmaster.core.errors import MappingError
from loadmaster.core.names import unique_names
from loadmaster.cost.analyse import analyse_all, pooled, read_jobs
from loadmaster.cost.base import JobAnalysis
from loadmaster.cost.registry import DEFAULT
from loadmaster.targets.hardware import Target
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.instantiate import lower

MOST = 1_000_000
"""The most jobs in a pool."""


@dataclass(frozen=True, eq=False)
class JobPool:
    """Jobs of several sources: their costs, the jobs of its network that each waits for, its
    network and mini-batch.

    ``precisions`` are those of the networks; lists and tables of jobs have none.
    """

    analysis: JobAnalysis
    after: tuple[tuple[int, ...], ...]
    network: tuple[str, ...]
    mini_batch: tuple[int, ...]
    precisions: tuple[str, ...] = ()


def read_pool(
    sources: Sequence[str],
    target: Target | None,
    cost: str = DEFAULT,
    *,
    mini_batches: int = 1,
    **options: Any,
) -> JobPool:
    """Read networks, with ``options`` of :func:`loadmaster.load`, job lists and job analysis tables
    (`.csv`), and analyse their jobs on a target.

    Raises
    ------
    MappingError
        If anything but tables is given without a target.
    LoadmasterError
        If a source or the table of costs cannot be read, or the costs cannot be worked out.
    """
    names: list[str] = []
    read: list[tuple[str, Workload | JobAnalysis, Sequence[int | None]]] = []
    for source in sources:
        if is_listed(source):
            listed = read_jobs(source)
            count = len(listed.jobs)
            if count * mini_batches > MOST:
                raise MappingError(
                    f"{source}: {count} jobs for each of {mini_batches} mini-batches are more than"
                    f" {MOST:,} jobs: ask for fewer mini-batches"
                )
            read.append((source, _renamed(listed, names), range(mini_batches)))
        else:
            machine = _require_target(source, target)
            graph = load_renamed(source, names, **options)
            read.append((source, lower([graph], machine, mini_batches=mini_batches), [None]))
    works = [jobs for _, jobs, _ in read if isinstance(jobs, Workload)]
    analyses = iter(analyse_all(works, target, cost) if target else ())
    parts: list[JobPool] = []
    for source, jobs, numbers in read:
        if isinstance(jobs, Workload):
            _require_target(source, target)
            costs = next(analyses)
            parts += [part_of(jobs, costs, number) for number in numbers]
        else:
            count = len(jobs.jobs)
            parts += [
                JobPool(jobs, ((),) * count, (source,) * count, (number or 0,) * count)
                for number in numbers
            ]
    return joined(parts)


def load_renamed(source: str, taken: list[str], **options: Any) -> Graph:
    """Load a network; one whose name is taken gets a number."""
    graph = load(source, **options)
    taken.append(graph.name)
    return replace(graph, name=unique_names(taken)[-1])


def is_listed(source: str) -> bool:
    """Whether a source is a job list or a job analysis table, and no network."""
    return source.lower().endswith(".csv")


def _renamed(jobs: Workload | JobAnalysis, taken: list[str]) -> Workload | JobAnalysis:
    """Return a job list under a name that no network has."""
    if isinstance(jobs, JobAnalysis):
        return jobs
    taken.append(jobs.networks[0].name)
    name = unique_names(taken)[-1]
    if name == taken[-1]:
        return jobs
    return replace(jobs, jobs=tuple(replace(job, network=name) for job in jobs.jobs))


def _require_target(source: str, target: Target | None) -> Target:
    """Return the target; raise MappingError if there is none."""
    if target is None:
        raise MappingError(f"{source}: give the --target whose cores are to run it")
    return target


def part_of(work: Workload, analysis: JobAnalysis, mini_batch: int | None = None) -> JobPool:
    """Return the pool of one workload; the mini-batch of its jobs is ``mini_batch`` if given."""
    numbers = tuple(job.mini_batch if mini_batch is None else mini_batch for job in work.jobs)
    return JobPool(
        analysis,
        tuple(job.after for job in work.jobs),
        tuple(job.network for job in work.jobs),
        numbers,
        tuple(network.precision for network in work.networks),
    )


def joined(parts: Sequence[JobPool]) -> JobPool:
    """Return one pool of several, one after another."""
    analysis = pooled([part.analysis for part in parts])
    after: list[tuple[int, ...]] = []
    for part in parts:
        first = len(after)
        after += [tuple(first + before for before in befores) for befores in part.after]
    columns = zip(
        *((part.network, part.mini_batch, part.precisions) for part in parts), strict=True
    )
    return JobPool(analysis, tuple(after), *(tuple(chain(*column)) for column in columns))

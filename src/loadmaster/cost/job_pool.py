"""Networks, job lists and job analysis tables, read and pooled into one table of jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadmaster.core.errors import MappingError
from loadmaster.cost.analyse import analyse, pooled, read_jobs
from loadmaster.cost.job_analysis import JobAnalysis
from loadmaster.cost.registry import DEFAULT
from loadmaster.targets.hardware import Target
from loadmaster.workloads.frontends.load import load
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.instantiate import lower

MOST = 1_000_000
"""Jobs that are pooled at most."""


@dataclass(frozen=True, eq=False)
class JobPool:
    """Jobs of several sources: what they cost, what each waits for inside its network, and its network and mini-batch."""

    analysis: JobAnalysis
    after: tuple[tuple[int, ...], ...]
    network: tuple[str, ...]
    mini_batch: tuple[int, ...]


def read_pool(
    sources: Sequence[str],
    target: Target | None,
    cost: str = DEFAULT,
    *,
    mini_batches: int = 1,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    precision: str | None = None,
    training: bool = False,
) -> JobPool:
    """Read networks (`.onnx`, `onnx:NAME`), job lists and job analysis tables (`.csv`), and analyse their jobs on a target.

    Raises
    ------
    MappingError
        If anything but tables is given without a target.
    LoadmasterError
        If a source or the table of costs cannot be read, or the costs cannot be worked out.
    """
    parts: list[JobPool] = []
    for source in sources:
        jobs = read_jobs(source) if source.lower().endswith(".csv") else None
        if isinstance(jobs, JobAnalysis):
            count = len(jobs.jobs)
            _require_room(source, count, mini_batches)
            parts += [JobPool(jobs, ((),) * count, (source,) * count, (number,) * count) for number in range(mini_batches)]
            continue
        if target is None:
            raise MappingError(f"{source}: give the --target whose cores are to run it")
        if jobs is not None:
            _require_room(source, len(jobs.jobs), mini_batches)
            costs = analyse(jobs, target, cost)
            parts += [_part(jobs, costs, number) for number in range(mini_batches)]
        else:
            network = load(source, batch=batch, dims=dims or {}, precision=precision, training=training)
            work = lower([network], target, mini_batches=mini_batches)
            parts.append(_part(work, analyse(work, target, cost)))
    return _joined(parts)


def _require_room(source: str, jobs: int, mini_batches: int) -> None:
    if jobs * mini_batches > MOST:
        raise MappingError(
            f"{source}: {jobs} jobs for each of {mini_batches} mini-batches are more than {MOST:,} jobs: ask for fewer mini-batches"
        )


def _part(work: Workload, analysis: JobAnalysis, mini_batch: int | None = None) -> JobPool:
    numbers = tuple(job.mini_batch if mini_batch is None else mini_batch for job in work.jobs)
    return JobPool(analysis, tuple(job.after for job in work.jobs), tuple(job.network for job in work.jobs), numbers)


def _joined(parts: Sequence[JobPool]) -> JobPool:
    analysis = pooled([part.analysis for part in parts])
    first, after = 0, []
    for part in parts:
        after += [tuple(first + before for before in befores) for befores in part.after]
        first += len(part.after)
    return JobPool(
        analysis, tuple(after), tuple(name for part in parts for name in part.network), tuple(n for part in parts for n in part.mini_batch)
    )

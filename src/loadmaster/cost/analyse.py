"""M3E's job analyser: latency and bandwidth of every job on every core, from a cost model or from
the user's own table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.csv_cells import header_of, read_text
from loadmaster.core.errors import JobError
from loadmaster.core.names import unique_names
from loadmaster.core.provenance import Label, Provenance, merged
from loadmaster.cost.base import CostModel, JobAnalysis
from loadmaster.cost.cache import cached, text_key, work_key
from loadmaster.cost.models.measured import MeasuredTable, parse_job_analysis
from loadmaster.cost.registry import COST_MODELS, DEFAULT
from loadmaster.targets.hardware import Target
from loadmaster.targets.load import as_target
from loadmaster.workloads.frontends.job_list import read_job_list
from loadmaster.workloads.job import Workload

_LONG_TEXT = 2**18
"""Characters of a table from which on the cache is faster than parsing it (`python -m
benchmarks.costs`)."""


@validate_arguments(JobError)
def analyse(
    jobs: Workload,
    target: Target | str | Path,
    cost: str = DEFAULT,
    *,
    cache: str | Path | None = None,
) -> JobAnalysis:
    """Analyse jobs on a target's cores, as jobs that depend on nothing and load and store all their
    operands.

    Parameters
    ----------
    jobs : Workload
        Jobs of networks, as lowering makes them, or of a job list.
    target : Target, str or Path
        The machine whose cores run the jobs. Of its memories, the ``dataflow`` model takes
        bandwidths, bursts and energy, the others nothing.
    cost : str
        A name that ``loadmaster.strategies("cost")`` lists; ``"NAME:TABLE.csv"`` for a model that
        takes a table, such as MAESTRO's of energies
        (:func:`~loadmaster.cost.models.maestro.read_layer_energies`); or the path of a ``.csv``
        table of measured costs (:class:`~loadmaster.cost.models.measured.MeasuredTable`).
    cache : str or Path
        An sqlite file in which analyses are kept by content (:mod:`loadmaster.cost.cache`). Without
        one, large analyses only are kept, in the file that the environment variable
        ``LOADMASTER_CACHE`` names (nowhere if it is empty), else in the user's folder for caches.

    Returns
    -------
    JobAnalysis
        Jobs in the order of the workload, cores in that of the target. Latencies are more than
        zero, and infinite (with bandwidth 0 and energy infinite) only where a measured table has no
        row for a pair; every job has a core that can run it. Energy is None for models and tables
        without it.

    Raises
    ------
    JobError
        For an unknown model, a malformed table or one that does not match, and jobs or cores that
        the model cannot cost.
    TargetError
        If a core's private buffer cannot hold a job's smallest tile.
    """
    target = as_target(target)
    if (tabled := _tabled(cost)) is not None:
        name = cost.partition(":")[0]
        return _with_provenance(tabled.analyse(jobs, target), tabled, name, target)
    if cost.lower().endswith(".csv"):
        return _as_measured(
            MeasuredTable(read_job_analysis(cost, cache=cache), cost).analyse(jobs, target), cost
        )
    model = COST_MODELS.find(cost)
    large = model.kept_from is not None and len(jobs.jobs) >= model.kept_from
    found = cached(
        cache,
        large,
        lambda: work_key(cost, jobs.jobs, target),
        lambda: model.analyse(jobs, target),
    )
    # Equal work on equal cores may go by other names.
    names = tuple(job.name for job in jobs.jobs)
    found = replace(found, jobs=names, cores=tuple(core.name for core in target.cores))
    return _with_provenance(found, model, cost, target)


def analyse_all(jobs: Sequence[Workload], target: Target, cost: str) -> list[JobAnalysis]:
    """Analyse several workloads, with one table for all if it is the user's: its rows are by name.
    Raises the errors of :func:`analyse`, and JobError where two workloads have a job of one
    name."""
    if len(jobs) < 2 or not cost.lower().endswith(".csv") or _tabled(cost) is not None:
        return [analyse(each, target, cost) for each in jobs]
    names = [job.name for each in jobs for job in each.jobs]
    several = frozenset(names)
    if len(several) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise JobError(
            f"{cost}: two inputs have a job {twice!r}: rename the file or the network of one"
        )
    table = read_job_analysis(cost)
    model = MeasuredTable(table, cost, several)
    return [_as_measured(model.analyse(each, target), cost) for each in jobs]


def _tabled(cost: str) -> CostModel | None:
    """Return the model of ``NAME:TABLE.csv`` with its table; None for other costs."""
    name, _, table = cost.partition(":")
    return COST_MODELS.find(name).with_table(table) if table and name in COST_MODELS.names else None


def _with_provenance(
    analysis: JobAnalysis, model: CostModel, name: str, target: Target
) -> JobAnalysis:
    """Return the analysis with the source of its costs: a model that uses all of the target's
    figures takes over their label."""
    costs = target.costs_by(f"{name} model", len(analysis.jobs))
    return replace(
        analysis,
        provenance=(costs if model.heeds_calibration else replace(costs, label=Label.ESTIMATED),),
    )


def _as_measured(analysis: JobAnalysis, source: str) -> JobAnalysis:
    """Return an analysis whose costs are all measured."""
    return replace(analysis, provenance=(Provenance(Label.MEASURED, source, len(analysis.jobs)),))


def pooled(parts: Sequence[JobAnalysis]) -> JobAnalysis:
    """Join several tables to one of all their jobs, in their order.

    Energy and clock are known if every part has them, the clock the same. A job name that an
    earlier part has gets a number: ``name-2``.

    Raises
    ------
    JobError
        If there is no part, or they are for other cores, or for the same in another order.
    """
    if not parts:
        raise JobError(
            "there are no jobs: give at least one network, job list or job analysis table"
        )
    cores = parts[0].cores
    for part in parts:
        if part.cores != cores:
            raise JobError(
                f"job analyses are for different cores, {', '.join(cores)} and"
                f" {', '.join(part.cores)}: give the same to all"
            )
    energies = [part.energy for part in parts if part.energy is not None]
    clocks = {part.clock for part in parts}
    return JobAnalysis(
        jobs=unique_names(name for part in parts for name in part.jobs),
        cores=cores,
        latency=np.concatenate([part.latency for part in parts]),
        bandwidth=np.concatenate([part.bandwidth for part in parts]),
        flops=np.concatenate([part.flops for part in parts]),
        energy=np.concatenate(energies) if len(energies) == len(parts) else None,
        clock=clocks.pop() if len(clocks) == 1 else None,
        provenance=merged(costs for part in parts for costs in part.provenance),
    )


def read_jobs(path: str | Path) -> Workload | JobAnalysis:
    """Read a CSV file of jobs by its header: a job list has a column ``K``, a ready job analysis
    table one named ``latency_s``."""
    header = header_of(read_text(path))
    if "k" in header:
        return read_job_list(path)
    if "latency_s" in header:
        return read_job_analysis(path)
    raise JobError(
        f"{path}:1: neither K,C,Y,X,R,S,type (a job list) nor"
        " job,core,latency_s,bandwidth_bytes_per_s (a job analysis table)"
    )


@validate_arguments(JobError)
def read_job_analysis(path: str | Path, *, cache: str | Path | None = None) -> JobAnalysis:
    """Read a ready job analysis table, as
    :func:`~loadmaster.cost.models.measured.parse_job_analysis` has it.

    What was read of a long file is kept in ``cache``, as in :func:`analyse`. Raises
    :class:`~loadmaster.core.errors.JobError`, naming file, line and column.
    """
    text, source = read_text(path), str(path)
    large = len(text) >= _LONG_TEXT
    found = cached(cache, large, lambda: text_key(text), lambda: parse_job_analysis(text, source))
    return _as_measured(found, source)

"""M3E's job analyser: what every job costs on every core, from a cost model or from the user's own figures."""

from __future__ import annotations

from pathlib import Path

from loadmaster.cost.measured import Measured
from loadmaster.cost.model import CostModel, cost_model
from loadmaster.errors import JobError
from loadmaster.frontends.csv_cells import header_of, read_text
from loadmaster.frontends.job_analysis_csv import read_job_analysis
from loadmaster.frontends.job_list import read_job_list
from loadmaster.hardware import Target
from loadmaster.job import Workload
from loadmaster.job_analysis import JobAnalysis

__all__ = ["analyse", "read_job_analysis", "read_job_list", "read_jobs"]


def analyse(jobs: Workload, target: Target, cost: str = "dataflow") -> JobAnalysis:
    """Analyse jobs on a target's cores, as jobs that depend on nothing and load and store all their operands.

    Parameters
    ----------
    jobs : Workload
        Of networks, as lowering makes it, or of a job list.
    target : Target
        Its cores; the memories play no part.
    cost : str
        ``"dataflow"`` (:class:`~loadmaster.cost.dataflow.Dataflow`), ``"maestro"`` (:class:`~loadmaster.cost.maestro.Maestro`), or the
        path of a ``.csv`` table of measured costs (:class:`~loadmaster.cost.measured.Measured`).

    Returns
    -------
    JobAnalysis
        Jobs in the order of the workload, cores in that of the target. Latencies are more than zero, and infinite (with bandwidth 0 and
        energy infinite) only where a measured table has no row for a pair; every job has a core that can run it.

    Raises
    ------
    JobError
        For an unknown model, a malformed table or one that does not match, and jobs or cores that the model cannot cost.
    TargetError
        If a core's private buffer cannot hold a job's smallest tile.
    """
    return _model(cost).analyse(jobs, target)


def read_jobs(path: str | Path) -> Workload | JobAnalysis:
    """Read a CSV file of jobs by its header: a job list has a column ``K``, a ready job analysis table one named ``latency_s``."""
    header = header_of(read_text(path))
    if "k" in header:
        return read_job_list(path)
    if "latency_s" in header:
        return read_job_analysis(path)
    raise JobError(f"{path}:1: neither K,C,Y,X,R,S,type (a job list) nor job,core,latency_s,bandwidth_bytes_per_s (a job analysis table)")


def _model(cost: str) -> CostModel:
    if cost.lower().endswith(".csv"):
        return Measured(read_job_analysis(cost), cost)
    return cost_model(cost)

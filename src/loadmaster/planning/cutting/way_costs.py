"""Costs of an operator for each number of bands and of channel parts.

Of equal pieces the middle one is costed, as a job.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loadmaster.core.arrays import Floats, Ints
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.cutting.banding import AxisView
from loadmaster.planning.cutting.options import OperatorPieces, canonical_index, piece_workload
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import operand_bytes


@dataclass(frozen=True)
class WayCosts:
    """Costs of an operator for each of :meth:`AxisView.ways`, without start-up times.

    Attributes
    ----------
    bands, channels
        The ways, shape (ways,).
    beside
        Seconds of all cores together if other pieces keep idle cores busy, shape (ways,).
    alone
        Seconds until the last piece ends if nothing else runs, so that cores may be idle, shape
        (ways,).
    refill
        How often each storage read crosses the port of the smallest buffer, shape (ways, reads).
    """

    bands: Ints
    channels: Ints
    beside: Floats
    alone: Floats
    refill: Floats


def way_costs(network: AxisView, target: Target) -> list[WayCosts]:
    """Costs of every operator of a network; 0 for operators that cannot be cut, as no choice of
    bands changes them. Linear in the ways of distinct operators."""
    like = canonical_index(network.graph, network.fused, network.forms)
    ways = [np.array(network.ways(n), dtype=np.int64) for n in range(len(network.fused))]
    pieces = [
        OperatorPieces(network.fused[n], form, network.middles(n, ways[n]))
        for n, form in enumerate(network.forms)
        if form is not None and like[n] == n
    ]
    work = piece_workload(network.graph, pieces)
    table = job_table(work, target)
    start_up = np.array([core.start_up for core in target.cores])
    seconds = np.maximum(table.compute - start_up, 1e-12)
    moved = np.bincount(
        table.operand_job, weights=table.moved.min(axis=1), minlength=len(work.jobs)
    )
    smallest = min(range(len(target.cores)), key=lambda c: target.cores[c].buffer or np.inf)
    crossed = table.moved[:, smallest] / np.maximum(operand_bytes(work.jobs), 1)
    storage = [tensor.name for tensor in work.tensors]
    found: list[WayCosts] = []
    first = 0
    for number, own in enumerate(ways):
        if like[number] != number:
            found.append(found[like[number]])
            continue
        reads = {access.tensor: k for k, access in enumerate(network.fused[number].reads)}
        refill, beside, alone = np.ones((len(own), len(reads))), *np.zeros((2, len(own)))
        if network.forms[number] is not None:
            jobs, counts = slice(first, first + len(own)), own.prod(axis=1)
            links = counts * moved[jobs] / target.near.read_bandwidth
            beside = np.maximum(counts / (1.0 / seconds[jobs]).sum(axis=1), links)
            ends = map(until_all_end, seconds[jobs], counts.tolist())
            alone = np.maximum(links, list(ends))
            rows = np.arange(*np.searchsorted(table.operand_job, [first, first + len(own)]))
            for row in rows[~table.operand_write[rows]].tolist():
                cell = table.operand_job[row] - first, reads[storage[table.operand_tensor[row]]]
                refill[cell] = max(refill[cell], crossed[row])
            first += len(own)
        found.append(WayCosts(own[:, 0], own[:, 1], beside, alone, refill))
    return found


def until_all_end(each: Floats, count: int) -> float:
    """Earliest end of ``count`` equal pieces, each of which takes ``each[c]`` seconds on core
    ``c``; an estimate for more than 64."""
    if count > 64:
        return float(count / (1.0 / np.maximum(each, 1e-12)).sum() + each.min() / 2)
    ends = np.sort((np.arange(1, count + 1)[:, None] * each).ravel())
    return float(ends[count - 1])

"""Lower bounds for all plans of networks on a machine, over all cuts of their operators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask, grouped_sums, ranges
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.analytical.divisible import divisible_costs, last_turns
from loadmaster.cost.analytical.energy import EnergyRates
from loadmaster.cost.analytical.job_costs import least_table
from loadmaster.cost.base import JobTable
from loadmaster.planning.bounds import (
    Needs,
    divisible_bound,
    divisible_needs,
    goal_bounds,
    inbound_bytes,
    main_only,
    traffic_name,
)
from loadmaster.planning.cutting.precedence import (
    MOST_OPERATORS,
    Demands,
    Precedence,
    chain_bound,
)
from loadmaster.planning.decisions import Bounds, MakespanBound
from loadmaster.planning.goal import Goal
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.job import Job, TensorInstance, Workload, operand_bytes
from loadmaster.workloads.lowering.grid import WHOLE, Divisible, least_shares, piece_of
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork, divides_sums


@dataclass(frozen=True)
class _Firsts:
    """The jobs of the first mini-batch of every network: ``rows`` are their numbers in the
    workload, ``like`` is for every job of the workload the index of its equal among them.

    ``forms`` says how each can be cut (None: not at all), ``shares`` is the least share of each
    storage that its pieces read together."""

    jobs: Sequence[Job]
    forms: Sequence[Divisible | None]
    shares: Sequence[dict[str, float]]
    rows: Ints
    like: Ints

    @staticmethod
    def of(workload: Workload, networks: Sequence[DivisibleNetwork], mini_batches: int) -> _Firsts:
        """Select the first mini-batches; the jobs of a network are ordered by mini-batch."""
        sizes = np.array([len(network.fused) for network in networks])
        before = np.cumsum(sizes) - sizes
        rows = ranges(before * mini_batches, sizes)
        like = np.concatenate(
            [
                np.tile(begin + np.arange(size), mini_batches)
                for begin, size in zip(before, sizes, strict=True)
            ]
        )
        return _Firsts(
            [workload.jobs[row] for row in rows.tolist()],
            [form for network in networks for form in network.forms],
            [least_shares(network.graph, group) for network in networks for group in network.fused],
            rows,
            like,
        )

    @property
    def divides(self) -> Mask:
        """Mask of the jobs that can be cut."""
        return np.array([form is not None for form in self.forms], dtype=np.bool_)

    @property
    def divides_sums(self) -> Mask:
        """Mask of the jobs whose reduction can be split."""
        return np.array([bool(form and form.summed) for form in self.forms], dtype=np.bool_)


def network_bounds(
    graphs: Sequence[Graph],
    target: Target,
    mini_batches: int,
    goal_for: Callable[[Workload], Goal],
    rates: EnergyRates,
) -> Bounds | None:
    """Bounds of makespan, energy and latencies under every cut; None if nothing can be cut, so that
    the bounds of the jobs hold.

    The makespan is at least each of

    - the compulsory traffic: weights, inputs and outputs cross the main link once;
    - the arithmetic over all cores: each operator's work is divided among the cores in any shares,
      each core working at the rate of its best piece
      (:func:`~loadmaster.cost.analytical.divisible.divisible_costs`), plus the remainder where that
      piece does not divide the operator
      (:func:`~loadmaster.cost.analytical.divisible.last_turns`);
    - a linear program over both: activations are written once and read once by every operator, over
      the cheaper link; repeated reads of weights and inputs use either link;
    - the longest chain of operators of one mini-batch, each shared by all cores and overlapping the
      operators that it can overlap
      (:func:`~loadmaster.planning.cutting.precedence.chain_bound`).

    O(operators x cores), and the chain O(operators^3) in a matrix product of up to 1,000 operators;
    none of larger networks.
    """
    sums = divides_sums(target)
    networks = [DivisibleNetwork.of(graph, target, sums=sums) for graph in graphs]
    if not any(form for network in networks for form in network.forms):
        return None
    workload = lower(
        graphs,
        target,
        mini_batches=mini_batches,
        cuts=[Cuts([WHOLE] * len(network.fused)) for network in networks],
    )
    firsts = _Firsts.of(workload, networks, mini_batches)
    table = _least_table(workload, target, firsts)
    share, extra = _last_turns(target, firsts, table)
    number = {job.name: n for n, job in enumerate(workload.jobs)}
    ends = np.cumsum([len(network.fused) for network in networks])
    least = np.split(_least_pieces(target, firsts, table), ends[:-1])
    operators = {
        info.name: (Precedence.of(network), own)
        for info, network, own in zip(workload.networks, networks, least, strict=True)
        if len(network.fused) <= MOST_OPERATORS
    }

    def bound_of(
        jobs: Sequence[Job], tensors: Sequence[TensorInstance], table: JobTable, target: Target
    ) -> MakespanBound:
        """Return the greater of the resource bound and the longest chain of operators, whatever the
        cuts."""
        rows = [number[job.name] for job in jobs]
        needs, every = (
            divisible_needs(tensors, table, target, every_read=each).in_two(
                share[rows], extra[rows]
            )
            for each in (False, True)
        )
        bound = divisible_bound(needs, traffic_name(target))
        chains = _Chains(jobs, tensors, table, target, needs, every)
        chain = max((chains.longest(name, *own) for name, own in operators.items()), default=0)
        return bound.beside("longest chain of operators, each shared by all cores", chain)

    return goal_bounds(workload, table, target, rates, goal_for(workload), bound_of)


def _last_turns(target: Target, firsts: _Firsts, table: JobTable) -> tuple[Floats, Floats]:
    """Of every job the share that fills its turns of the array, and the additional seconds of the
    rest (:func:`~loadmaster.cost.analytical.divisible.last_turns`); 1 and 0 for jobs that cannot be
    cut."""
    seconds, divides = table.compute[firsts.rows], firsts.divides
    share, extra = last_turns(firsts.jobs, target, seconds, firsts.divides_sums)
    return (
        np.where(divides, share, 1.0)[firsts.like],
        np.where(divides[:, None], extra, 0.0)[firsts.like],
    )


@dataclass(frozen=True)
class _Chains:
    """Chain bounds of the networks of some jobs: all jobs, one network's, or one mini-batch's; the
    jobs of a mini-batch are its operators in order. ``needs`` and ``every`` have two rows per
    job."""

    jobs: Sequence[Job]
    tensors: Sequence[TensorInstance]
    table: JobTable
    target: Target
    needs: Needs
    every: Needs

    def longest(self, network: str, precedence: Precedence, least: Floats) -> int:
        """Picoseconds of the longest chain of the first mini-batch of a network, from the ``least``
        seconds of a piece of each operator; 0 if the network has no jobs."""
        first = next((n for n, job in enumerate(self.jobs) if job.network == network), None)
        if first is None:
            return 0
        rows = slice(first, first + len(least))
        target, needs = self.target, self.needs
        # Three means of the resources: the main link; all links, with equal weight per byte; cores.
        links = [0] * len(target.cores) + [
            round(memory.read_bandwidth) for memory in target.memories
        ]
        weights = (main_only(needs), links, needs.without_links.multipliers)
        busy = [self.every.means(each).reshape(2, -1).sum(axis=0)[rows] for each in weights]
        prices = [
            [price / max(1, sum(each)) for price in each[len(target.cores) :]] for each in weights
        ]
        main = np.array([own[0] for own in prices])
        rates = [memory.read_bandwidth / target.main.read_bandwidth for memory in target.memories]
        given = main - np.array(
            [min(price / rate for price, rate in zip(own, rates, strict=True)) for own in prices]
        )
        return chain_bound(
            precedence,
            Demands(
                np.stack(busy),
                main,
                given,
                *self._traffic(rows),
                least * PICOSECONDS,
                target.room / target.main.read_bandwidth * PICOSECONDS,
            ),
        )

    def _traffic(self, rows: slice) -> tuple[Floats, Floats]:
        """Picoseconds of the main link, by operator, for weights and inputs (each counted at the
        operator that reads most of it, with only the bytes which that reads) and for outputs."""
        table, main, t = self.table, self.target.main, self.table.operand_tensor
        count, operator = rows.stop - rows.start, table.operand_job - rows.start
        chosen = (operator >= 0) & (operator < count)
        inbound = inbound_bytes(self.tensors, table, chosen)
        size = np.minimum(operand_bytes(self.jobs), table.moved.min(axis=1))
        touched = np.minimum(inbound[t], size)
        reads = np.flatnonzero(chosen & ~table.operand_write)
        reads = reads[np.lexsort((-touched[reads], t[reads]))]
        most = reads[np.unique(t[reads], return_index=True)[1]]
        by_reader = grouped_sums(operator[most], touched[most], count)
        writes = chosen & table.operand_write
        left = [tensor.bytes if tensor.is_output else 0 for tensor in self.tensors]
        by_writer = grouped_sums(operator[writes], np.array(left)[t[writes]], count)
        return (
            by_reader / main.read_bandwidth * PICOSECONDS,
            by_writer / main.write_bandwidth * PICOSECONDS,
        )


def _least_pieces(target: Target, firsts: _Firsts, table: JobTable) -> Floats:
    """Least seconds of any piece of every first job: of those that can be cut, of a piece of one
    element."""
    smallest = list(map(_smallest, firsts.jobs, firsts.forms))
    seconds, _ = divisible_costs(smallest, target, firsts.divides_sums)
    cut = np.where(firsts.divides[:, None], seconds, np.inf)
    return np.asarray(np.minimum(cut, table.compute[firsts.rows]).min(axis=1))


def _smallest(job: Job, form: Divisible | None) -> Job:
    """A job no larger than any piece of a job: one element of its result and of its reduction."""
    if form is not None:
        box = tuple(
            (0, 1) if axis in form.axes else (0, extent) for axis, extent in enumerate(form.shape)
        )
        nests = tuple(piece_of(nest, form.shape, box) for nest in job.nests)
        if form.summed:
            # Element-wise work after a split reduction is done by the last piece only.
            return replace(job, nests=tuple(replace(nest, c=1) for nest in nests), elements=0)
        return replace(job, nests=nests, elements=job.elements // max(1, math.prod(form.shape)))
    return job


def _least_table(workload: Workload, target: Target, firsts: _Firsts) -> JobTable:
    """The table of least costs: whole for jobs that cannot be cut, else in the best pieces for each
    core."""
    table = least_table(workload, target)
    seconds, joules = (
        np.where(firsts.divides[:, None], each, np.inf)[firsts.like]
        for each in divisible_costs(firsts.jobs, target, firsts.divides_sums)
    )
    compute, energy = np.minimum(seconds, table.compute), np.minimum(joules, table.energy)
    storages = [workload.tensors[tensor].storage for tensor in table.operand_tensor.tolist()]
    owners = firsts.like[table.operand_job].tolist()
    shares = [
        firsts.shares[n].get(storage, 1.0) for n, storage in zip(owners, storages, strict=True)
    ]
    read = (operand_bytes(workload.jobs) * np.array(shares)).astype(np.int64)
    once = np.where(table.operand_write, operand_bytes(workload.jobs), read)
    of_divided = firsts.divides[firsts.like][table.operand_job]
    moved = np.where(of_divided[:, None], np.minimum(table.moved, once[:, None]), table.moved)
    return replace(table, compute=compute, energy=energy, moved=moved)

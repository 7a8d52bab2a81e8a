"""A workload as the native evaluation takes it, and its answers as decisions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.task_graph import task_graph
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.analytical.energy import EnergyModel
from loadmaster.cost.base import JobTable, job_times
from loadmaster.planning.decisions import Copy, Placement, Residence, Schedule, Score, Timeline
from loadmaster.planning.goal import Goal
from loadmaster.planning.packing import most_alive
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload

_LIMITING = 0.5
"""Share of the time that other resources take at least, from which on a link is taken to limit."""


@dataclass(frozen=True)
class JointOptions:
    """What an evaluation is free in, beside the order; native code takes the same names.

    Attributes
    ----------
    filled_fraction
        Share of each memory that may be filled.
    retained_fraction
        Share of that which tensors kept from one use to a later one may fill.
    prefetch_fraction
        Share of it that may be full while something is prefetched.
    release_delay_positions
        Positions of the order for which room is held after its last use, so that as many later jobs
        may run beside it.
    streamed_share
        Share of the main link's time, while jobs run, in which they may stream what is used once;
        what would take longer is prefetched. 0: everything is prefetched; infinity: nothing.
    link_prices
        What a second of the link of each memory counts when stays are chosen.
    occupancy_exponent
        Stays are chosen by what they save over their bytes times their time, to this power: below
        1, what is large and long comes sooner.
    link_load_limit
        A job waits where demands on a link that it mostly needs would sum to more, while others can
        start; 1 is all that the link can give.
    core_wait_ratio
        Seconds that a job waits for a core on which it is a second faster.
    core_prices
        What a second of each core counts when a core is chosen for a job, so that the busiest one
        is left to those that gain most by it; 1 for all if empty.
    energy_weight
        How much the energy of a job speaks for a core beside the time at which it ends there; 1: at
        the rate at which all jobs take both.
    fetch_lead
        Share of all jobs' time by which a fetch is early at least before jobs come first on a
        link that is full; infinity: none does.
    urgent_networks_first
        Whether everything else waits for the urgent networks.
    streamed_tensors
        Tensors, by their number, that jobs only stream: these are never kept or fetched. Where all
        operands must be copied it says nothing.
    """

    filled_fraction: tuple[float, ...] = (1.0, 1.0)
    retained_fraction: float = 1.0
    prefetch_fraction: float = 1.0
    release_delay_positions: int = 0
    streamed_share: float = 0.0
    link_prices: tuple[float, ...] = (1.0, 0.0)
    occupancy_exponent: float = 1.0
    link_load_limit: float = math.inf
    core_wait_ratio: float = 0.0
    energy_weight: float = 0.0
    fetch_lead: float = math.inf
    urgent_networks_first: bool = False
    core_prices: tuple[float, ...] = ()
    streamed_tensors: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What comes of an order, and its score: None if it never ends."""

    run: _native.JointEvaluation
    score: Score | None

    @property
    def final_score(self) -> Score:
        """The score of an order that comes to an end."""
        assert self.score is not None
        return self.score


def fingerprint(order: Ints) -> bytes:
    """What stands for an order where it is looked up."""
    return blake2b(order.tobytes(), digest_size=16).digest()


class JointProblem:
    """Jobs on a machine, checked and handed to native code once, to be evaluated for many orders
    towards a goal.

    Without a fast memory, or where none of it may be filled, an evaluation is list scheduling.
    """

    def __init__(
        self, workload: Workload, table: JobTable, target: Target, goal: Goal, energy: EnergyModel
    ) -> None:
        self.workload = workload
        self.table = table
        self.target = target
        self.goal = goal
        self.energy = energy
        # Of a machine without a fast memory, one that holds nothing stands for it.
        self.memories = (target.main, replace(target.near, capacity=target.room))
        self.capacity = target.room
        every = np.ones((len(target.memories), len(table.operand_job)), dtype=np.bool_)
        # Raises `PlanError` where times are too long to be counted.
        job_times(table, target, every)
        self._scores: dict[tuple[bytes, JointOptions], Score | None] = {}
        self.width = _widths(workload, table, target)
        self._bytes = np.array([tensor.bytes for tensor in workload.tensors], dtype=np.int64)
        self._output = np.array([tensor.is_output for tensor in workload.tensors], dtype=np.bool_)
        self._padded, padded_bytes = (
            np.array([memory.padded(tensor.bytes) for tensor in workload.tensors], dtype=np.int64)
            for memory in self.memories
        )
        self._producer = np.array([tensor.producer for tensor in workload.tensors], dtype=np.int64)
        self._stays = self._output | np.array(
            [tensor.kind == "weight" for tensor in workload.tensors], dtype=np.bool_
        )
        (main, fast), rates = self.memories, energy.rates.memories
        # Per second of its link a byte takes energy too: with these prices, stays are chosen by the
        # energy that they save.
        of_fast = (
            rates[-1] * fast.read_bandwidth / (rates[0] * main.read_bandwidth) if rates[0] else 0.0
        )
        self.energy_prices = (1.0, of_fast)
        self._native = self._to_native(padded_bytes)

    def _to_native(self, padded_bytes: Ints) -> _native.JointProblem:
        """The problem as native code takes it; ``padded_bytes`` are those in the fast memory."""
        workload, table, goal = self.workload, self.table, self.goal
        # An input that comes later could only be fetched then: it is streamed where that can be.
        available = goal.released_tensors(workload)
        late = (available > 0) & self.target.main.in_place
        copy = self.target.copy
        return _native.JointProblem(
            compute=table.compute,
            row_job=table.operand_job,
            row_tensor=table.operand_tensor,
            row_write=table.operand_write.astype(np.uint8),
            moved=np.ascontiguousarray(table.moved),
            bytes=self._bytes,
            padded_bytes=np.where(late, self.capacity + 1, padded_bytes),
            producer=self._producer,
            output=self._output.astype(np.uint8),
            graph=task_graph(workload.edges, len(workload.jobs)),
            release=goal.job_release,
            available=available,
            energy_penalty=_energy_penalty(table, self.energy),
            width=self.width,
            urgent=np.array([job.network in goal.urgent for job in workload.jobs], dtype=np.uint8),
            read=np.array([memory.read_bandwidth for memory in self.memories]),
            write=np.array([memory.write_bandwidth for memory in self.memories]),
            engine=np.array(copy.overlapping if copy else [0.0] * len(self.memories)),
            capacity=self.capacity,
            in_place=self.target.main.in_place,
        )

    @cached_property
    def near_limits(self) -> bool:
        """Whether the fast memory's link may be what limits: all operands over it take half as long
        as arithmetic, or what must come in."""
        near, arithmetic, inbound = self._least_seconds
        return bool(near > _LIMITING * max(arithmetic, inbound))

    @cached_property
    def fetches_may_wait(self) -> bool:
        """Whether fetches may wait: what must come in takes less time than arithmetic, or all
        operands over the fast link.

        Only in one mini-batch of one network: beside others, something always fills the links, and
        the search has better to do.
        """
        if (
            self.target.copy is None
            or sum(network.mini_batches for network in self.workload.networks) > 1
        ):
            return False
        near, arithmetic, inbound = self._least_seconds
        return bool(inbound < max(arithmetic, near))

    @cached_property
    def _least_seconds(self) -> tuple[float, float, float]:
        """Seconds of all operands over the fast link, of arithmetic on all cores, and of what must
        cross the main link."""
        (main, fast), table = self.memories, self.table
        moved, write = table.moved.min(axis=1), table.operand_write
        near = fast.link_seconds(int(moved[~write].sum()), int(moved[write].sum()))
        arithmetic = float(table.compute.min(axis=1).sum()) / table.compute.shape[1]
        inbound = main.link_seconds(
            int(self._bytes[self._producer < 0].sum()), int(self._bytes[self._output].sum())
        )
        return near, arithmetic, inbound

    def after_sources(self, keys: Floats) -> Floats:
        """Keys raised to those of the jobs that each depends on; of equal keys, jobs of smaller
        index come first."""
        return self._native.after_sources(keys)

    def score(
        self, order: Ints, name: bytes, options: JointOptions
    ) -> tuple[Score | None, Evaluation | None]:
        """The score of an order, of which ``name`` is the fingerprint, and its evaluation unless
        the score was known: searches that begin alike evaluate many orders again."""
        if (name, options) in self._scores:
            return self._scores[name, options], None
        made = self.evaluate(order, options)
        self._scores[name, options] = made.score
        return made.score, made

    def evaluate(self, order: Ints, options: JointOptions) -> Evaluation:
        """Choose stays along an order and run it. O(operands + stays x positions that they cover +
        tasks x cores)."""
        run = self._native.evaluate(order, options)
        if run.makespan < 0:
            return Evaluation(run, None)
        # Behind the highest buffer nothing needs to be aligned.
        main = self.target.main
        room = main.padded(int(main.capacity * options.filled_fraction[0]))
        lacking = self.main_load(run) - room if int(self._padded.sum()) > room else 0
        ends, energy = self._delivered(run), partial(self.energy_of, run)
        return Evaluation(run, self.goal.score(ends, run.makespan, energy, max(0, lacking)))

    def _delivered(self, run: _native.JointEvaluation) -> Ints:
        """When every job has ended or, where an output of it is copied to main memory, that copy
        has."""
        ends = run.end[: len(self.workload.jobs)]
        leaving = self._leaving(run)
        if not len(leaving):
            return ends
        delivered = ends.copy()
        tensor = run.stay_tensor[run.copies[leaving]]
        kept = self._output[tensor]
        np.maximum.at(delivered, self._producer[tensor[kept]], run.end[len(ends) + leaving[kept]])
        return delivered

    def _leaving(self, run: _native.JointEvaluation) -> Ints:
        """Numbers of the copies to main memory."""
        return np.flatnonzero(run.outward)

    def main_load(self, run: _native.JointEvaluation) -> int:
        """Most bytes that main memory holds at one instant of an evaluation; O(operands + tensors
        log tensors)."""
        tensor = self.table.operand_tensor
        write = self.table.operand_write
        in_fast = run.row_stay >= 0
        jobs = len(self.workload.jobs)
        made = self._producer >= 0
        writer = self._main_writers(run)
        start = np.where(made, run.start[writer], 0)
        end = np.where(made, run.end[writer], 0)
        streamed = ~in_fast & ~write
        np.maximum.at(end, tensor[streamed], run.end[self.table.operand_job[streamed]])
        np.maximum.at(end, run.stay_tensor[run.copies], run.end[jobs : jobs + len(run.copies)])
        end[self._stays] = run.makespan
        here = (run.in_main > 0) | ~made
        return most_alive(start[here], end[here], self._padded[here])

    def _main_writers(self, run: _native.JointEvaluation) -> Ints:
        """The task that puts every tensor into main memory: its producer, or a copy; -1 for what is
        there from the start."""
        writer, leaving = self._producer.copy(), self._leaving(run)
        writer[run.stay_tensor[run.copies[leaving]]] = len(self.workload.jobs) + leaving
        return writer

    def energy_of(self, run: _native.JointEvaluation) -> int:
        """Femtojoules of an evaluation."""
        copied = int(self._bytes[run.stay_tensor[run.copies]].sum())
        return self.energy.of_plan(run.core, self._used(run), copied, run.makespan)

    def _used(self, run: _native.JointEvaluation) -> Mask:
        """Whether each row of the job table moves bytes of each memory, shape (memories, rows)."""
        in_fast = run.row_stay >= 0
        written = (run.in_main > 0) & self.target.main.in_place
        main = np.where(self.table.operand_write, written[self.table.operand_tensor], ~in_fast)
        return np.stack([main, in_fast])[: len(self.target.memories)]

    def decisions(self, found: Evaluation) -> tuple[Schedule, Placement, Timeline]:
        """An evaluation as schedule, placement, and the timeline that it was simulated to have
        (without the use of links)."""
        jobs, run = len(self.workload.jobs), found.run
        order = np.lexsort((np.arange(jobs), run.core, run.start[:jobs]))
        schedule = Schedule(run.core, order.astype(np.int64))
        nothing = np.empty((0, 0))
        return (
            schedule,
            self._placement(run),
            Timeline(run.start, run.end, np.empty(0, dtype=np.int64), nothing, nothing),
        )

    def _placement(self, run: _native.JointEvaluation) -> Placement:
        tensors = self.workload.tensors
        writer = self._main_writers(run).tolist()
        users, streams = self._users(run)
        jobs, leaving = len(self.workload.jobs), run.outward.tolist()
        task = {
            stay: jobs + number
            for number, (stay, out) in enumerate(zip(run.copies.tolist(), leaving, strict=True))
            if not out
        }
        copies = tuple(
            self._copy(stay, out, run, users, writer)
            for stay, out in zip(run.copies.tolist(), leaving, strict=True)
        )
        residences = []
        fetched = defaultdict(list)
        for stay, t in enumerate(run.stay_tensor.tolist()):
            residences.append(
                Residence(t, 1, task.get(stay, tensors[t].producer), tuple(users[stay]))
            )
            if stay in task:
                fetched[t].append(task[stay])
        for t, record in enumerate(tensors):
            if run.in_main[t] or record.producer < 0:
                # Weights serve every later run too: they keep their place.
                stays = record.is_output or record.kind == "weight"
                residences.append(Residence(t, 0, writer[t], (*streams[t], *fetched[t]), stays))
        return Placement(self._used(run), copies, tuple(residences))

    def _users(
        self, run: _native.JointEvaluation
    ) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Tasks that read each stay, and jobs that read each tensor from main memory."""
        users: dict[int, dict[int, None]] = defaultdict(dict)
        streams: dict[int, dict[int, None]] = defaultdict(dict)
        columns = (
            self.table.operand_job,
            self.table.operand_tensor,
            self.table.operand_write,
            run.row_stay,
        )
        for job, tensor, write, stay in zip(*(column.tolist() for column in columns), strict=True):
            if not write:
                (users[stay] if stay >= 0 else streams[tensor])[job] = None
        for number in self._leaving(run).tolist():
            users[int(run.copies[number])][len(self.workload.jobs) + number] = None
        return (
            defaultdict(list, {s: list(own) for s, own in users.items()}),
            defaultdict(list, {t: list(own) for t, own in streams.items()}),
        )

    def _copy(
        self,
        stay: int,
        out: int,
        run: _native.JointEvaluation,
        users: dict[int, list[int]],
        writer: Sequence[int],
    ) -> Copy:
        """The fetch of a stay, or its way to main memory; a tensor has one place at a time, so that
        its earlier stay must be over."""
        tensor = int(run.stay_tensor[stay])
        if out:
            return Copy(tensor, 1, 0, (int(self._producer[tensor]),), ())
        again = stay > 0 and run.stay_tensor[stay - 1] == tensor
        there = (writer[tensor],) if writer[tensor] >= 0 else ()
        return Copy(
            tensor,
            0,
            1,
            tuple(dict.fromkeys((*there, *(users[stay - 1] if again else ())))),
            tuple(users[stay]),
        )


def _energy_penalty(table: JobTable, energy: EnergyModel) -> Floats:
    """Energy of each job on each core above its least, as picoseconds at the rate at which all jobs
    together take energy and time."""
    nearest = np.zeros((len(energy.rates.memories), len(table.operand_job)), dtype=np.bool_)
    nearest[-1] = True
    joules = energy.of_jobs(nearest)
    least = float(joules.min(axis=1).sum())
    seconds = float(table.compute.min(axis=1).sum())
    return np.ascontiguousarray(
        (joules - joules.min(axis=1, keepdims=True))
        * (seconds * PICOSECONDS / least if least else 0.0)
    )


def _widths(workload: Workload, table: JobTable, target: Target) -> Floats:
    """Seconds that each job stands for in an order: its share of all cores' time, and of the main
    link for what must cross it."""
    index = workload.tensor_index
    readers: dict[int, int] = defaultdict(int)
    for job in workload.jobs:
        for operand in job.reads:
            readers[index[operand.tensor]] += 1
    seconds = table.compute.min(axis=1) / table.compute.shape[1]
    for number, job in enumerate(workload.jobs):
        for operand in job.reads:
            tensor = index[operand.tensor]
            if workload.tensors[tensor].producer < 0:
                seconds[number] += target.main.link_seconds(
                    min(operand.bytes, workload.tensors[tensor].bytes) / readers[tensor], 0
                )
    return np.asarray(seconds + 1e-12)

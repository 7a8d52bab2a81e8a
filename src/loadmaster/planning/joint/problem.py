"""The problem of the joint search: a workload for the native evaluator, and its results as
decisions."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import blake2b

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints, Mask, column_of
from loadmaster.core.task_graph import task_graph
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.analytical.energy import EnergyModel
from loadmaster.cost.base import JobTable, job_times
from loadmaster.planning.decisions import (
    MemoryCopy,
    Placement,
    Residence,
    Schedule,
    Score,
    Timeline,
    most_alive,
)
from loadmaster.planning.problem import PlanProblem
from loadmaster.workloads.job import Workload, operand_bytes


@dataclass(frozen=True)
class JointOptions:
    """The policy of an evaluation, besides the order of jobs; native code uses the same names.

    Attributes
    ----------
    filled_fraction
        Share of each memory that may be filled.
    prefetch_fraction
        Share of the filled part up to which tensors may be prefetched; 0: none is fetched.
    release_delay_positions
        Number of positions in the order for which the room of a tensor is held after its last use,
        so that as many later jobs can run beside it.
    streamed_share
        Share of the main link's time, while jobs run, for streaming tensors that are used once; the
        rest of them is prefetched. 0: all are prefetched; infinity: none.
    link_prices
        Weight of a second of the link of each memory when stays are chosen.
    link_load_limit
        A job that mostly needs a link waits, while others can start, if the demands on the link
        would sum to more than this; 1 is the bandwidth of the link.
    core_wait_ratio
        Seconds that a job waits for a core on which it is a second faster.
    core_prices
        Weight of a second of each core when a core is chosen for a job: a high price leaves the
        core to the jobs that gain most by it. Empty: 1 for all.
    energy_weight
        Weight of a job's energy beside its end time when a core is chosen; 1: energy counts at the
        ratio of total energy to total time.
    fetch_lead
        A fetch that is this early, as a share of the time of all jobs, yields to jobs on a full
        link; infinity: no fetch yields.
    urgent_networks_first
        Whether all other networks wait for the urgent ones.
    wait_for_releases
        Whether idle cores wait for jobs that precede others in the order, if they are released
        before these would end.
    streamed_tensors
        Numbers of tensors that are only streamed, never kept or fetched. Ignored where all operands
        must be copied.
    """

    filled_fraction: tuple[float, ...] = (1.0, 1.0)
    prefetch_fraction: float = 1.0
    release_delay_positions: int = 0
    streamed_share: float = 0.0
    link_prices: tuple[float, ...] = (1.0, 0.0)
    link_load_limit: float = math.inf
    core_wait_ratio: float = 0.0
    energy_weight: float = 0.0
    fetch_lead: float = math.inf
    urgent_networks_first: bool = False
    wait_for_releases: bool = False
    core_prices: tuple[float, ...] = ()
    streamed_tensors: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The result of simulating an order, and its score: None if it deadlocks."""

    run: _native.JointEvaluation
    score: Score | None

    @property
    def final_score(self) -> Score:
        """The score of an order that does not deadlock."""
        assert self.score is not None
        return self.score


@dataclass(frozen=True)
class Chain:
    """A network's jobs as a grid, ``jobs[b, s]`` being step ``s`` of mini-batch ``b``, and the
    memory that the steps need.

    ``weights[s]`` bytes are shared by all mini-batches; ``live[s]`` bytes of one mini-batch's
    activations are alive during step ``s``; ``passed[s]`` bytes of them are alive between steps ``s
    - 1`` and ``s``.
    """

    jobs: Ints
    weights: Ints
    live: Ints
    passed: Ints

    @property
    def mini_batches(self) -> int:
        """Instances of the network."""
        return int(self.jobs.shape[0])

    @property
    def steps(self) -> int:
        """Jobs of one instance."""
        return int(self.jobs.shape[1])


class JointProblem:
    """Evaluates orders of the jobs of a workload on a machine; checked and handed to native code
    once.

    Without a fast memory, or with a filled fraction of 0, an evaluation is list scheduling.
    """

    def __init__(self, problem: PlanProblem) -> None:
        self.workload, self.table, self.target = problem.workload, problem.table, problem.target
        self.goal, self.energy = problem.goal, problem.energy
        workload, table, target = self.workload, self.table, self.target
        # A fast memory of no bytes stands for none.
        self.memories = (target.main, replace(target.near, capacity=target.room))
        self.capacity = target.room
        every = np.ones((len(target.memories), len(table.operand_job)), dtype=np.bool_)
        # Raises `PlanError` where times are too long to be counted.
        job_times(table, target, every)
        self._scores: dict[tuple[bytes, JointOptions], Score | None] = {}
        self._bytes = column_of(workload.tensors, "bytes", np.int64)
        self._output = column_of(workload.tensors, "is_output", np.bool_)
        self._padded = problem.padded
        self._producer: Ints = column_of(workload.tensors, "producer", np.int64)
        self._stays = self._output | (column_of(workload.tensors, "kind", np.str_) == "weight")
        (main, fast), rates = self.memories, self.energy.rates.memories
        # The ratio of the memories' powers at full bandwidth: with these prices, stays are chosen
        # by the energy that they save.
        of_fast = (
            rates[-1] * fast.read_bandwidth / (rates[0] * main.read_bandwidth) if rates[0] else 0.0
        )
        self.energy_prices = (1.0, of_fast)
        self.width = self._widths()
        self._native = self._to_native()

    def _widths(self) -> Floats:
        """Width of each job in an order, in seconds: its arithmetic over all cores, and its share
        of the compulsory traffic over the main link."""
        table, tensor, reads = self.table, self.table.operand_tensor, ~self.table.operand_write
        seconds = table.compute.min(axis=1) / table.compute.shape[1]
        sizes = np.minimum(operand_bytes(self.workload.jobs), self._bytes[tensor])
        shares = sizes / np.maximum(
            1, np.bincount(tensor[reads], minlength=len(self._bytes))[tensor]
        )
        given = reads & (self._producer[tensor] < 0)
        traffic = shares[given] / self.target.main.read_bandwidth
        np.add.at(seconds, table.operand_job[given], traffic)
        return np.asarray(seconds + 1e-12)

    def _to_native(self) -> _native.JointProblem:
        """Convert the problem for native code."""
        workload, table, goal = self.workload, self.table, self.goal
        # An input that is released later is streamed where possible: it cannot be fetched before.
        available = goal.released_tensors(workload)
        late = (available > 0) & self.target.main.in_place
        copy, fast = self.target.copy, self.memories[1]
        in_fast = np.array([fast.padded(t.bytes) for t in workload.tensors], dtype=np.int64)
        return _native.JointProblem(
            compute=table.compute,
            row_job=table.operand_job,
            row_tensor=table.operand_tensor,
            row_write=table.operand_write.astype(np.uint8),
            moved=np.ascontiguousarray(table.moved),
            bytes=self._bytes,
            padded_bytes=np.where(late, self.capacity + 1, in_fast),
            producer=self._producer,
            output=self._output.astype(np.uint8),
            graph=task_graph(workload.edges, len(workload.jobs)),
            release=goal.job_release,
            available=available,
            energy_penalty=_energy_penalty(table, self.energy),
            width=self.width,
            urgent=np.array([job.network in goal.urgent for job in workload.jobs], dtype=np.uint8),
            read=column_of(self.memories, "read_bandwidth"),
            write=column_of(self.memories, "write_bandwidth"),
            engine=np.array(copy.overlapping if copy else [0.0] * len(self.memories)),
            capacity=self.capacity,
            in_place=self.target.main.in_place,
        )

    @property
    def copies_are_slow(self) -> bool:
        """Whether jobs can read main memory faster than the copy engine does."""
        copy, main = self.target.copy, self.target.main
        return bool(copy and main.in_place and copy.overlapping[1] < main.read_bandwidth)

    @cached_property
    def fetches_may_wait(self) -> bool:
        """Whether low-priority fetches can help: the compulsory traffic takes less time than
        arithmetic or than all operands over the fast link.

        Only for one mini-batch of one network: with several, the links are always in use.
        """
        if (
            self.target.copy is None
            or sum(network.mini_batches for network in self.workload.networks) > 1
        ):
            return False
        (main, fast), table = self.memories, self.table
        moved, write = table.moved.min(axis=1), table.operand_write
        near = fast.link_seconds(int(moved[~write].sum()), int(moved[write].sum()))
        arithmetic = float(table.compute.min(axis=1).sum()) / table.compute.shape[1]
        inbound = main.link_seconds(
            int(self._bytes[self._producer < 0].sum()), int(self._bytes[self._output].sum())
        )
        return bool(inbound < max(arithmetic, near))

    @cached_property
    def chains(self) -> list[Chain]:
        """The grids of all networks, in the workload's order."""
        jobs, networks = self.workload.jobs, self.workload.networks
        counts = Counter(job.network for job in jobs)
        until = np.cumsum([counts[info.name] for info in networks])
        return [
            _chain(self.workload, own.reshape(info.mini_batches, -1))
            for info, own in zip(networks, np.split(np.arange(len(jobs)), until[:-1]), strict=True)
        ]

    def after_sources(self, keys: Floats) -> Floats:
        """Raise the key of every job to those of its predecessors, so that sorting by key is a
        topological order; ties are broken by job number."""
        return self._native.after_sources(keys)

    def score(self, order: Ints, options: JointOptions) -> tuple[Score | None, Evaluation | None]:
        """Return the score of an order, from the cache if possible, and its evaluation if it was
        made.

        Searches of one workload that start alike repeat many evaluations.
        """
        key = blake2b(order.tobytes(), digest_size=16).digest(), options
        if key in self._scores:
            return self._scores[key], None
        made = self.evaluate(order, options)
        self._scores[key] = made.score
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
        """End of every job or, where its output is copied to main memory, of that copy."""
        ends = run.end[: len(self.workload.jobs)].copy()
        made = self._output & (self._producer >= 0)
        np.maximum.at(ends, self._producer[made], run.end[self._main_writers(run)[made]])
        return ends

    def main_load(self, run: _native.JointEvaluation) -> int:
        """Peak of the bytes in main memory during an evaluation; O(operands + tensors log
        tensors)."""
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
        """The task that writes every tensor to main memory: its producer, or a copy; -1 for weights
        and inputs."""
        writer, leaving = self._producer.copy(), np.flatnonzero(run.outward)
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
        """Convert an evaluation to schedule, placement and simulated timeline (without the use of
        links)."""
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
        """Return the placement of an evaluation: copies, and the time of every tensor in each
        memory."""
        tensors = self.workload.tensors
        writer = self._main_writers(run).tolist()
        users, streams = self._users(run)
        task, copies, residences = {}, [], []
        columns = zip(run.copies.tolist(), run.outward.tolist(), strict=True)
        for number, (stay, out) in enumerate(columns, len(self.workload.jobs)):
            copies.append(self._copy(stay, out, run, users, writer))
            if not out:
                task[stay] = number
        fetched = defaultdict(list)
        for stay, t in enumerate(run.stay_tensor.tolist()):
            residences.append(
                Residence(t, 1, task.get(stay, tensors[t].producer), tuple(users[stay]))
            )
            if stay in task:
                fetched[t].append(task[stay])
        for t, record in enumerate(tensors):
            if run.in_main[t] or record.producer < 0:
                # Weights keep their place for the next run.
                stays = record.is_output or record.kind == "weight"
                residences.append(Residence(t, 0, writer[t], (*streams[t], *fetched[t]), stays))
        return Placement(self._used(run), tuple(copies), tuple(residences))

    def _users(
        self, run: _native.JointEvaluation
    ) -> tuple[dict[int, dict[int, None]], dict[int, dict[int, None]]]:
        """Tasks that read each stay, and jobs that read each tensor from main memory."""
        users, streams = (defaultdict[int, dict[int, None]](dict) for _ in range(2))
        columns = (
            self.table.operand_job,
            self.table.operand_tensor,
            self.table.operand_write,
            run.row_stay,
        )
        for job, tensor, write, stay in zip(*(column.tolist() for column in columns), strict=True):
            if not write:
                (users[stay] if stay >= 0 else streams[tensor])[job] = None
        for number in np.flatnonzero(run.outward).tolist():
            users[int(run.copies[number])][len(self.workload.jobs) + number] = None
        return users, streams

    def _copy(
        self,
        stay: int,
        out: int,
        run: _native.JointEvaluation,
        users: dict[int, dict[int, None]],
        writer: Sequence[int],
    ) -> MemoryCopy:
        """Return the copy that fetches a stay, or the one (``out``) that writes it to main memory.

        A tensor has one place in a memory at a time, so a fetch waits for the end of the tensor's
        earlier stay."""
        tensor = int(run.stay_tensor[stay])
        if out:
            return MemoryCopy(tensor, 1, 0, (int(self._producer[tensor]),), ())
        again = stay > 0 and run.stay_tensor[stay - 1] == tensor
        there = (writer[tensor],) if writer[tensor] >= 0 else ()
        return MemoryCopy(
            tensor,
            0,
            1,
            tuple(dict.fromkeys((*there, *(users[stay - 1] if again else ())))),
            tuple(users[stay]),
        )


def _chain(workload: Workload, jobs: Ints) -> Chain:
    """Return the chain of a network's jobs, with the bytes of each step: weights last used there,
    live activations, and activations that pass it."""
    index, steps = workload.tensor_index, jobs.shape[1]
    weights, live, passed = (np.zeros(steps + 1, dtype=np.int64) for _ in range(3))
    last_use: dict[int, int] = {}
    for step in range(steps):
        for operand in workload.jobs[jobs[0, step]].reads:
            last_use[index[operand.tensor]] = step
    for step in range(steps):
        job = workload.jobs[jobs[0, step]]
        for operand in job.reads:
            tensor = workload.tensors[index[operand.tensor]]
            if tensor.kind == "weight" and last_use[index[operand.tensor]] == step:
                weights[step] += tensor.bytes
        for operand in job.writes:
            end = last_use.get(index[operand.tensor], step)
            size = workload.tensors[index[operand.tensor]].bytes
            live[step : end + 1] += size
            passed[step + 1 : end + 1] += size
    return Chain(jobs, weights[:steps], live[:steps], passed[:steps])


def _energy_penalty(table: JobTable, energy: EnergyModel) -> Floats:
    """Energy of each job on each core above its least, converted to picoseconds at the ratio of
    total time to total energy."""
    nearest = np.zeros((len(energy.rates.memories), len(table.operand_job)), dtype=np.bool_)
    nearest[-1] = True
    joules = energy.of_jobs(nearest)
    least = float(joules.min(axis=1).sum())
    seconds = float(table.compute.min(axis=1).sum())
    return np.ascontiguousarray(
        (joules - joules.min(axis=1, keepdims=True))
        * (seconds * PICOSECONDS / least if least else 0.0)
    )

"""A workload as the native evaluation takes it, and its answers as decisions."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from loadmaster import _native
from loadmaster.core.task_graph import successors
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.cost.job_table import JobTable
from loadmaster.planning.decisions import Copy, Placement, Residence, Schedule, Score, Timeline
from loadmaster.planning.goal import Goal, overflowing
from loadmaster.targets.hardware import Target
from loadmaster.workloads.job import Workload

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Choices:
    """What an evaluation is free in, beside the order.

    Stays between uses fill at most ``keep`` of what may be filled, and what is fetched ahead at most ``lead``, both from 0 to 1. Room is
    held for ``slack`` positions of the order after the last use, so that as many jobs may run side by side. ``once`` says whether what is
    used once is fetched ahead too; ``fast_price`` is what a second of the fast link costs, one of the main link being 1. A job waits where
    demands on a link that it mostly needs would sum to more than ``crowd`` (1 is all that the link can give), while others can start; it
    waits up to ``regret`` seconds for a core on which it is a second faster. ``fill`` is the share of the fast memory that may be filled,
    ``main_fill`` that of main memory. ``thrift`` is how much the energy of a job speaks for a core beside the time at which it ends there
    (1: at the rate at which all jobs take both), and ``alone`` has everything else wait for the networks that are pressing.
    """

    keep: float = 1.0
    lead: float = 1.0
    slack: int = 0
    once: bool = True
    fast_price: float = 0.0
    crowd: float = math.inf
    regret: float = 0.0
    fill: float = 1.0
    main_fill: float = 1.0
    thrift: float = 0.0
    alone: bool = False


@dataclass(frozen=True)
class Evaluation:
    """What comes of an order: picoseconds, seconds of the main link, cores and times; the stays, for whoever wants them; and the score."""

    makespan: int
    main_seconds: float
    core: NDArray[np.int32]
    start: Ints
    end: Ints
    copies: Ints
    stay_tensor: Ints
    row_stay: Ints
    score: Score | None = None

    @property
    def judged(self) -> Score:
        """The score of what comes to an end."""
        assert self.score is not None
        return self.score


class JointProblem:
    """Jobs on a machine with a fast memory, checked and handed to native code once, to be evaluated for many orders towards a goal."""

    def __init__(self, workload: Workload, table: JobTable, target: Target, goal: Goal, energy: EnergyModel) -> None:
        assert target.fast is not None
        self.workload, self.table, self.target, self.goal, self.energy = workload, table, target, goal, energy
        self._native = _native_problem(workload, table, target, goal, energy)
        self.width = _widths(workload, table, target)
        self._bytes = np.array([tensor.bytes for tensor in workload.tensors], dtype=np.int64)
        self._output = np.array([tensor.is_output for tensor in workload.tensors], dtype=np.bool_)
        self._pressing = np.array([job.network in goal.pressing for job in workload.jobs], dtype=np.bool_)
        self._padded = np.array([target.main.padded(tensor.bytes) for tensor in workload.tensors], dtype=np.int64)
        self._producer = np.array([tensor.producer for tensor in workload.tensors], dtype=np.int64)
        self._stays = self._output | np.array([tensor.kind == "weight" for tensor in workload.tensors], dtype=np.bool_)
        main, fast, rates = target.main, target.fast, energy.rates
        # Per second of its link a byte takes energy too: with this price, stays are chosen by the energy that they save.
        self.energy_price = rates.fast * fast.read_bandwidth / (rates.main * main.read_bandwidth) if rates.main else 0.0

    def evaluate(self, order: Ints, choices: Choices) -> Evaluation:
        """Choose stays along an order and run it. O(operands + stays x positions that they cover + tasks x cores)."""
        assert self.target.fast is not None
        priority = np.empty(len(order))
        priority[order] = -np.arange(len(order), dtype=np.float64)
        room = int(self.target.fast.capacity * choices.fill)
        found = Evaluation(
            *self._native.evaluate(
                order,
                priority,
                self.width,
                room,
                int(room * choices.keep),
                int(room * choices.lead),
                choices.slack,
                choices.once,
                choices.fast_price,
                choices.crowd,
                choices.regret,
                choices.thrift,
                int(np.flatnonzero(self._pressing[order]).max(initial=-1)) + 1 if choices.alone else 0,
            )
        )
        if found.makespan < 0:
            return found
        end = found.end[: len(self.workload.jobs)]
        score = self.goal.score(end, found.makespan, lambda: self._energy_of(found))
        # Behind the highest buffer nothing needs to be aligned.
        room = self.target.main.padded(int(self.target.main.capacity * choices.main_fill))
        if int(self._padded.sum()) > room:
            score = overflowing(score, self.main_load(found) - room)
        return replace(found, score=score)

    def main_load(self, found: Evaluation) -> int:
        """Most bytes that main memory holds at one instant of an evaluation; O(operands + tensors log tensors)."""
        tensor, write, in_fast = self.table.operand_tensor, self.table.operand_write, found.row_stay >= 0
        jobs, made = len(self.workload.jobs), self._producer >= 0
        start = np.where(made, found.start[self._producer], 0)
        end = np.where(made, found.end[self._producer], 0)
        streamed = ~in_fast & ~write
        np.maximum.at(end, tensor[streamed], found.end[self.table.operand_job[streamed]])
        np.maximum.at(end, found.stay_tensor[found.copies], found.end[jobs : jobs + len(found.copies)])
        end[self._stays] = found.makespan
        here = self._in_main(found) | ~made
        return _most_alive(start[here], end[here], self._padded[here])

    def _in_main(self, found: Evaluation) -> NDArray[np.bool_]:
        """Tensors that main memory holds because they are outputs, read there, or used nowhere else."""
        tensor, write, in_fast = self.table.operand_tensor, self.table.operand_write, found.row_stay >= 0
        used, in_main = np.zeros((2, len(self._output)), dtype=np.bool_)
        used[tensor[in_fast]] = True
        in_main[tensor[~in_fast & ~write]] = True
        return np.asarray(in_main | self._output | ~used)

    def _energy_of(self, found: Evaluation) -> int:
        """Femtojoules of an evaluation."""
        tensor, write, in_fast = self.table.operand_tensor, self.table.operand_write, found.row_stay >= 0
        to_main, kept = self._output.copy(), np.zeros(len(self._output), dtype=np.bool_)
        to_main[tensor[~in_fast]] = True
        kept[tensor[in_fast]] = True
        uses_main = np.where(write, (to_main | ~kept)[tensor], ~in_fast)
        copied = int(self._bytes[found.stay_tensor[found.copies]].sum())
        return self.energy.of_plan(found.core, uses_main, in_fast, copied, found.makespan)

    def decisions(self, found: Evaluation) -> tuple[Schedule, Placement, Timeline]:
        """An evaluation as schedule, placement, and the timeline that it was simulated to have (without the use of links)."""
        jobs = len(self.workload.jobs)
        order = np.lexsort((np.arange(jobs), found.core, found.start[:jobs]))
        schedule = Schedule(found.core, order.astype(np.int64), found.makespan, 1)
        nothing = np.empty((0, 0))
        return schedule, self._placement(found), Timeline(found.start, found.end, np.empty(0, dtype=np.int64), nothing, nothing)

    def _placement(self, found: Evaluation) -> Placement:
        table, tensors = self.table, self.workload.tensors
        tensor, write, in_fast = table.operand_tensor, table.operand_write, found.row_stay >= 0
        read_fast, write_fast = (np.zeros(len(tensors), dtype=np.bool_) for _ in range(2))
        read_fast[tensor[in_fast & ~write]] = True
        write_fast[tensor[in_fast & write]] = True
        in_main = self._in_main(found)
        streamed = np.flatnonzero(~in_fast & ~write & read_fast[tensor])
        users, streams = self._users(found)
        task = {stay: len(self.workload.jobs) + number for number, stay in enumerate(found.copies.tolist())}
        copies = tuple(self._copy(stay, found, users) for stay in found.copies.tolist())
        residences = []
        fetched = defaultdict(list)
        for stay, t in enumerate(found.stay_tensor.tolist()):
            residences.append(Residence(t, 1, task.get(stay, tensors[t].producer), tuple(users[stay])))
            if stay in task:
                fetched[t].append(task[stay])
        for t, record in enumerate(tensors):
            if in_main[t] or record.producer < 0:
                # Weights serve every later run too: they keep their place.
                stays = record.is_output or record.kind == "weight"
                residences.append(Residence(t, 0, record.producer, (*streams[t], *fetched[t]), stays))
        return Placement(read_fast, write_fast, in_main, copies, tuple(residences), streamed)

    def _users(self, found: Evaluation) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
        """Jobs that read each stay, and those that read each tensor from main memory."""
        users: dict[int, dict[int, None]] = defaultdict(dict)
        streams: dict[int, dict[int, None]] = defaultdict(dict)
        columns = (self.table.operand_job, self.table.operand_tensor, self.table.operand_write, found.row_stay)
        for job, tensor, write, stay in zip(*(column.tolist() for column in columns), strict=True):
            if not write:
                (users[stay] if stay >= 0 else streams[tensor])[job] = None
        return (
            defaultdict(list, {s: list(own) for s, own in users.items()}),
            defaultdict(list, {t: list(own) for t, own in streams.items()}),
        )

    def _copy(self, stay: int, found: Evaluation, users: dict[int, list[int]]) -> Copy:
        """The fetch of a stay; a tensor has one place at a time, so that its earlier stay must be over."""
        tensor = int(found.stay_tensor[stay])
        again = stay > 0 and found.stay_tensor[stay - 1] == tensor
        return Copy(tensor, True, tuple(users[stay - 1]) if again else (), tuple(users[stay]))


def _most_alive(start: Ints, end: Ints, size: Ints) -> int:
    """Most bytes alive at one time; at one instant, ends come before starts, but an empty lifetime counts as an instant."""
    times = np.concatenate([np.maximum(end, start + 1), start])
    order = np.argsort(times, kind="stable")
    return int(np.cumsum(np.concatenate([-size, size])[order]).max(initial=0))


def _native_problem(workload: Workload, table: JobTable, target: Target, goal: Goal, energy: EnergyModel) -> _native.JointProblem:
    assert target.fast is not None
    main, fast, tensors = target.main, target.fast, workload.tensors
    # An input that comes later could only be fetched then, and all fetches after it would wait: it is streamed.
    late = goal.released_tensors(workload) > 0
    first, following = successors(
        [(before, job) for job, record in enumerate(workload.jobs) for before in record.after], len(workload.jobs)
    )
    return _native.JointProblem(
        table.compute,
        table.operand_job,
        table.operand_tensor,
        table.operand_write.astype(np.uint8),
        np.ascontiguousarray(table.moved),
        np.array([tensor.bytes for tensor in tensors], dtype=np.int64),
        np.where(late, fast.capacity + 1, np.array([fast.padded(tensor.bytes) for tensor in tensors], dtype=np.int64)),
        np.array([tensor.producer for tensor in tensors], dtype=np.int64),
        np.array([tensor.is_output for tensor in tensors], dtype=np.uint8),
        first,
        following,
        goal.job_release,
        _reluctance(table, energy),
        np.array(
            [
                main.read_bandwidth,
                main.write_bandwidth,
                fast.read_bandwidth,
                fast.write_bandwidth,
                target.copy.asynchronous_to_fast if target.copy else 0.0,
            ]
        ),
        fast.capacity,
    )


def _reluctance(table: JobTable, energy: EnergyModel) -> Floats:
    """Energy of each job on each core above its least, as picoseconds at the rate at which all jobs together take energy and time."""
    every = np.ones(len(table.operand_job), dtype=np.bool_)
    joules = energy.of_jobs(~every, every)
    least, seconds = float(joules.min(axis=1).sum()), float(table.compute.min(axis=1).sum())
    return np.ascontiguousarray((joules - joules.min(axis=1, keepdims=True)) * (seconds * PICOSECONDS / least if least else 0.0))


def _widths(workload: Workload, table: JobTable, target: Target) -> Floats:
    """Seconds that each job stands for in an order: its share of all cores' time, and of the main link for what must cross it."""
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
                seconds[number] += min(operand.bytes, workload.tensors[tensor].bytes) / readers[tensor] / target.main.read_bandwidth
    return np.asarray(seconds + 1e-12)

"""The goal of a plan: an objective, release times and deadlines, and the score that follows from
them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from loadmaster.core.arguments import require_known
from loadmaster.core.arrays import WHOLE_LIMIT, Floats, Ints
from loadmaster.core.errors import CapacityError, PackingError, PlanError
from loadmaster.core.units import PICOSECONDS, format_bytes
from loadmaster.planning.decisions import MemoryCopy, Score
from loadmaster.targets.hardware import Memory, Target
from loadmaster.workloads.job import Job, Workload, network_timings, require_network


def require_main_room(workload: Workload, target: Target) -> None:
    """Raise `CapacityError` if no plan can fit into main memory, whatever the cuts."""
    main, least = target.main, _least(workload)
    if least > main.capacity:
        raise CapacityError(
            f"{main.name} cannot hold the networks: weights with inputs or outputs take"
            f" {format_bytes(least)}, {format_bytes(main.capacity)} available,"
            f" {format_bytes(least - main.capacity)} in excess: {_advice(main)}"
        )


def require_room(workload: Workload, target: Target) -> None:
    """Raise `CapacityError` if no plan can fit into main memory or, on a machine that must copy
    operands, if the operands of some job exceed the fast memory."""
    require_main_room(workload, target)
    if target.main.in_place or not workload.jobs:
        return
    fast = target.memories[1]
    size = {tensor.name: fast.padded(tensor.bytes) for tensor in workload.tensors}

    def operands(job: Job) -> int:
        """Return the bytes of a job's operands, each tensor once."""
        return sum(size[name] for name in {operand.tensor for operand in (*job.reads, *job.writes)})

    job = max(workload.jobs, key=operands)
    if (required := operands(job)) > fast.capacity:
        raise lack_of_room(job.name, required, fast)


def lack_of_room(name: str, required: int, fast: Memory) -> CapacityError:
    """Return the error for a job, or an operator, whose operands exceed the fast memory."""
    return CapacityError(
        f"job {name} needs all its operands in {fast.name}: {format_bytes(required)} required,"
        f" {format_bytes(fast.capacity)} available,"
        f" {format_bytes(required - fast.capacity)} in excess, and no smaller pieces of it were"
        f" found: use a smaller batch, a lower precision, or a larger {fast.name}.capacity"
    )


def refusal(workload: Workload, target: Target, excess: int, *, stopped: bool) -> CapacityError:
    """Return the error that says why no plan was found; ``excess`` is by how many bytes the
    smallest plan found exceeds main memory."""
    main = target.main
    early = ", and the search was stopped early" if stopped else ""
    if not excess and not main.in_place:
        name = target.memories[1].name
        return PackingError(
            f"{name}: operands fit by size, but no packing without gaps was found{early}: enlarge"
            " its capacity"
        )
    room = format_bytes(main.capacity)
    least = format_bytes(_least(workload))
    need = format_bytes(main.padded(main.capacity) + excess)
    lack = (
        f"the least takes {need} at one instant, {room} available"
        if excess
        else f"none has addresses without gaps in {room}"
    )
    return CapacityError(
        f"{main.name} cannot hold any plan that was found: {lack}{early}; every plan takes at least"
        f" {least}: {_advice(main)}"
    )


def _least(workload: Workload) -> int:
    """Bytes of main memory that every plan takes: weights and inputs at the start, weights and
    outputs at the end."""
    given = sum(tensor.bytes for tensor in workload.tensors if tensor.producer < 0)
    stay = (each for each in workload.tensors if each.is_output or each.kind == "weight")
    return max(given, sum(tensor.bytes for tensor in stay))


def _advice(main: Memory) -> str:
    """Return what to change if main memory is too small."""
    return f"plan fewer networks or mini-batches, or enlarge {main.name}.capacity"


OBJECTIVES = ("throughput", "latency", "energy", "edp")

_NEVER = WHOLE_LIMIT
"""Due time in picoseconds of a mini-batch without a deadline: no schedule lasts that long."""
_LATEST = 3600
"""Seconds within which all mini-batches must be released, so that times stay exact integers."""


@dataclass(frozen=True, eq=False)
class Goal:
    """An objective, and the release and due time of every mini-batch.

    Objectives: ``throughput`` is the makespan in picoseconds. ``latency`` is the longest time, over
    the mini-batches of ``latency_network`` (None for other objectives), from the release until the
    last job has ended and the outputs are in main memory. ``energy`` is in femtojoules, ``edp``
    energy times makespan.

    Jobs ``first[b]`` up to ``first[b + 1]`` are mini-batch ``number[b]`` of the network
    ``network[b]``. None of them starts before ``release[b]`` picoseconds; all should have ended by
    ``due[b]``.
    """

    objective: str
    latency_network: str | None
    first: Ints
    network: tuple[str, ...]
    number: tuple[int, ...]
    release: Ints
    due: Ints

    @property
    def needs_energy(self) -> bool:
        """Whether the objective depends on energy."""
        return self.objective in ("energy", "edp")

    @property
    def is_timed(self) -> bool:
        """Whether some mini-batch has a release time after 0 or a deadline."""
        return bool(self.release.any() or (self.due < _NEVER).any())

    @property
    def job_release(self) -> Ints:
        """Picosecond before which each job may not start."""
        return np.repeat(self.release, np.diff(self.first))

    @property
    def urgency(self) -> Floats:
        """Priority of every job, highest first: jobs of the latency network, then by due time, then
        by release."""
        mine = np.array([network == self.latency_network for network in self.network])
        rank = np.argsort(np.lexsort((self.release, self.due, ~mine)))
        return np.repeat((len(rank) - rank).astype(np.float64), np.diff(self.first))

    def released_tensors(self, workload: Workload) -> Ints:
        """Release time of every tensor in picoseconds: that of its mini-batch for an input, else
        0."""
        by_mini_batch = dict(
            zip(zip(self.network, self.number, strict=True), self.release.tolist(), strict=True)
        )
        return np.array(
            [
                by_mini_batch[tensor.network, tensor.mini_batch] if tensor.kind == "input" else 0
                for tensor in workload.tensors
            ],
            dtype=np.int64,
        )

    @cached_property
    def urgent(self) -> frozenset[str]:
        """Networks that may run before all others: the latency network, or else the networks with a
        deadline and no period."""
        due = {
            name for name, period, deadline in self.timings() if deadline is not None and not period
        }
        return frozenset({self.latency_network} if self.latency_network else due)

    def ends(self, end: Ints) -> Ints:
        """End of the last job of every mini-batch, from the ends of all jobs."""
        return np.maximum.reduceat(end, self.first[:-1])

    def timings(self) -> Iterator[tuple[str, int, int | None]]:
        """Yield name, period and deadline, in picoseconds, of the networks with either."""
        for name in dict.fromkeys(self.network):
            mine = self.mini_batches_of(name)
            period = int(self.release[mine[1]]) if len(mine) > 1 else 0
            deadline = int(self.due[mine[0]]) if self.is_due(mine[0]) else None
            if period or deadline is not None:
                yield name, period, deadline

    def mini_batches_of(self, name: str) -> Ints:
        """Indices of the mini-batches of a network."""
        return np.flatnonzero([network == name for network in self.network])

    def is_due(self, mini_batch: int) -> bool:
        """Whether a mini-batch has a deadline."""
        return bool(self.due[mini_batch] < _NEVER)

    def score(
        self, end: Ints, makespan: int, energy: Callable[[], int], overflow: int = 0
    ) -> Score:
        """Return the score of a plan: from the ends of its jobs (:func:`delivered`), its makespan,
        its energy in femtojoules where the objective needs it, and the overflow of main memory in
        bytes."""
        ends = self.ends(end)
        late = int(np.maximum(0, ends - self.due).sum())
        if self.needs_energy:
            value = energy() * (makespan if self.objective == "edp" else 1)
            return Score(overflow, late, value, makespan)
        reached = makespan
        if self.objective == "latency":
            mine = self.mini_batches_of(self.latency_network or "")
            reached = int((ends - self.release)[mine].max())
        return Score(overflow, late, reached, makespan)


def delivered(workload: Workload, copies: Sequence[MemoryCopy], end: Ints) -> Ints:
    """End of every job or, where its output is copied to main memory, of that copy; ``end`` has
    the ends of all jobs, then of all copies."""
    jobs = len(workload.jobs)
    result = end[:jobs].copy()
    for number, copy in enumerate(copies):
        tensor = workload.tensors[copy.tensor]
        if tensor.is_output and copy.memory == 0 and tensor.producer >= 0:
            result[tensor.producer] = max(result[tensor.producer], end[jobs + number])
    return result


def goal_of(
    workload: Workload,
    objective: str,
    network: str | None,
    deadlines: Mapping[str, float],
    periods: Mapping[str, float],
) -> Goal:
    """Return the goal of a workload's plan: mini-batch ``k`` of a network is released at ``k`` x
    period and due one deadline later (seconds).

    Mini-batches of a network without a period are released at the start; those of a network without
    a deadline are never late.

    Raises
    ------
    PlanError
        If the objective or a network is unknown, or a time is out of range.
    """
    names = [info.name for info in workload.networks]
    require_known("objective", objective, OBJECTIVES, PlanError)
    if network is not None and objective != "latency":
        raise PlanError(
            f"network {network!r} is for the objective latency, and the objective is {objective}"
        )
    timings = network_timings(names, periods, deadlines, PlanError)
    if network is not None:
        require_network("latency", network, names, PlanError)
    for info in workload.networks:
        if timings[info.name].period * (info.mini_batches - 1) > _LATEST:
            raise PlanError(
                f"period of {info.name!r}: its last mini-batch would come after more than an hour:"
                " plan fewer, or a part of them"
            )
    labels = Counter((job.network, job.mini_batch) for job in workload.jobs)
    release = [number * _whole(timings[name].period) for name, number in labels]
    due = [
        _NEVER if (wait := timings[name].deadline) is None else min(_NEVER, come + _whole(wait))
        for come, (name, _) in zip(release, labels, strict=True)
    ]
    return Goal(
        objective,
        (network or names[0]) if objective == "latency" else None,
        np.cumsum([0, *labels.values()], dtype=np.int64),
        tuple(name for name, _ in labels),
        tuple(number for _, number in labels),
        np.array(release, dtype=np.int64),
        np.array(due, dtype=np.int64),
    )


def _whole(seconds: float) -> int:
    """Round seconds to picoseconds, at most :data:`_NEVER`."""
    return round(min(seconds, _NEVER / PICOSECONDS) * PICOSECONDS)

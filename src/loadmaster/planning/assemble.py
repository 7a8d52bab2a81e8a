"""Converts decisions to a plan: names instead of indices, seconds instead of picoseconds, and the
metrics with their bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import compress, islice, repeat
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np

import loadmaster
from loadmaster.core.arrays import column_of, records_of
from loadmaster.core.units import FEMTOJOULES, PICOSECONDS, format_seconds, seconds_of
from loadmaster.cost.analytical.nests import EXPECTED
from loadmaster.planning.decisions import Bounds, Solution
from loadmaster.planning.goal import delivered
from loadmaster.planning.plan import Plan
from loadmaster.planning.plan_records import (
    SCHEMA_VERSION,
    Cost,
    Improvement,
    LinkSegment,
    MemoryUse,
    Metrics,
    Objective,
    PlannedAllocation,
    PlannedJob,
    PlannedOperand,
    PlannedTensor,
    PlannedTransfer,
    Rate,
)
from loadmaster.planning.problem import PlanProblem
from loadmaster.workloads.job import MiniBatch, NetworkTiming, Ranges


class _Outcome:
    """The metrics of a simulated solution, computed from the plan's records."""

    def __init__(
        self,
        problem: PlanProblem,
        solution: Solution,
        bounds: Bounds,
        jobs: Sequence[PlannedJob],
        transfers: Sequence[PlannedTransfer],
        allocations: Sequence[PlannedAllocation],
    ) -> None:
        self._workload, self._target = problem.workload, problem.target
        self._goal = goal = problem.goal
        rates = problem.energy.rates
        self._bounds = bounds
        self._jobs = jobs
        self._allocations = allocations
        self._packed = solution.packed
        self._makespan = solution.timeline.makespan
        end = delivered(problem.workload, solution.placement.copies, solution.timeline.end)
        self._ends = goal.ends(end).tolist()
        places = [memory.name for memory in self._target.memories]
        places += [core.name for core in self._target.cores]
        joules = (*rates.memories, *rates.buffers)
        self.byte_energy = dict(zip(places, joules, strict=True))
        self._moved = dict.fromkeys(self.byte_energy, 0)
        for transfer in transfers:
            for place in (transfer.source, transfer.destination):
                self._moved[place] += transfer.bytes
        self._energy_by = {
            place: size * self.byte_energy[place] for place, size in self._moved.items()
        }
        for job in jobs:
            self._energy_by[job.core] += round(job.energy * FEMTOJOULES)
        self._energy = sum(self._energy_by.values()) + rates.static(self._makespan)
        self._score = goal.score(end, self._makespan, lambda: self._energy)
        self._least = bounds.objective(goal.objective, goal.latency_network)
        self.unit = {"energy": FEMTOJOULES, "edp": FEMTOJOULES * PICOSECONDS}.get(
            goal.objective, PICOSECONDS
        )

    def objective(self) -> Objective:
        """The objective with its value and bound."""
        return Objective(
            self._goal.objective,
            self._goal.latency_network or "",
            self._score.objective / self.unit,
            self._least / self.unit,
        )

    def status(self) -> str:
        """``optimal`` if no mini-batch is late and the objective meets its bound."""
        best = self._score.objective <= self._least and not self._score.lateness
        return "optimal" if best else "feasible"

    def timings(self) -> tuple[NetworkTiming, ...]:
        """Periods and deadlines of the networks that have any."""
        return tuple(
            NetworkTiming(
                name, seconds_of(period), None if deadline is None else seconds_of(deadline)
            )
            for name, period, deadline in self._goal.timings()
        )

    @cached_property
    def mini_batches(self) -> tuple[MiniBatch, ...]:
        """Release, end and latency of each mini-batch."""
        goal = self._goal
        columns = (goal.network, goal.number, goal.release.tolist(), self._ends, goal.due.tolist())
        return tuple(
            MiniBatch(
                network,
                number,
                seconds_of(release),
                seconds_of(end),
                seconds_of(end - release),
                end > due,
            )
            for network, number, release, end, due in zip(*columns, strict=True)
        )

    def metrics(self) -> Metrics:
        """The plan's metrics, with their bounds."""
        least = seconds_of(self._bounds.makespan.picoseconds)
        makespan = seconds_of(self._makespan)
        networks = self._workload.networks
        flops = 2 * sum(network.macs * network.mini_batches for network in networks)
        inferences = sum(network.batch * network.mini_batches for network in networks)
        busy = {core.name: 0.0 for core in self._target.cores}
        for job in self._jobs:
            busy[job.core] += job.compute
        longest = dict.fromkeys(self._bounds.latency, 0.0)
        for batch in self.mini_batches:
            longest[batch.network] = max(longest[batch.network], batch.latency)
        main = self._target.main
        return Metrics(
            makespan=Cost(makespan, least),
            throughput=Rate(flops / makespan, flops / least),
            inferences_per_second=Rate(inferences / makespan, inferences / least),
            utilisation={
                name: Rate(min(1.0, b / makespan), min(1.0, max(b / makespan, b / least)))
                for name, b in busy.items()
            },
            traffic={
                memory.name: Cost(
                    self._moved[memory.name],
                    self._bounds.makespan.main_bytes if memory is main else 0,
                )
                for memory in self._target.memories
            },
            memory=self._memory_use(),
            energy=Cost(self._energy / FEMTOJOULES, self._bounds.energy / FEMTOJOULES),
            energy_by={place: joules / FEMTOJOULES for place, joules in self._energy_by.items()},
            latency={
                name: Cost(value, seconds_of(self._bounds.latency[name]))
                for name, value in longest.items()
            },
        )

    def _memory_use(self) -> dict[str, MemoryUse]:
        """Return peak, load and capacity in bytes of every memory and private buffer."""
        peak = dict.fromkeys(self.byte_energy, 0)
        for each in self._allocations:
            peak[each.memory] = max(peak[each.memory], each.offset + each.bytes)
        # A private buffer only holds the tiles of one job, stacked: its peak is its load.
        return {
            memory.name: MemoryUse(peak[memory.name], part.load, memory.capacity)
            for memory, part in zip(self._target.memories, self._packed, strict=True)
        } | {
            core.name: MemoryUse(peak[core.name], peak[core.name], core.buffer)
            for core in self._target.cores
            if core.buffer
        }

    def notes(self) -> Iterator[str]:
        """Yield notes on the origin of bounds, impossible deadlines, and the origin of energies."""
        bound = self._bounds.makespan
        terms = ", ".join(
            f"{name} {format_seconds(seconds_of(value))}" for name, value in bound.terms
        )
        yield (
            f"the makespan's lower bound comes from: {bound.limit}; it is the largest of: {terms}"
        )
        for name, _, deadline in self._goal.timings():
            least = self._bounds.latency[name]
            if deadline is not None and deadline < least:
                due, needed = (format_seconds(seconds_of(each)) for each in (deadline, least))
                yield (
                    f"{name}: its deadline of {due} is impossible: whatever the plan, some"
                    f" mini-batch takes at least {needed}"
                )
        unstated = [memory.name for memory in self._target.memories if memory.energy is None]
        cores = "arithmetic and buffers" + (
            f", and bytes of {' and '.join(unstated)}" if unstated else ""
        )
        power = (
            ""
            if self._target.static_power
            else "; no static power is counted, because the target states none"
        )
        yield f"energy is estimated from published figures of 45 nm silicon for {cores}{power}"


_TILINGS = tuple(EXPECTED)


def assemble(
    problem: PlanProblem, solution: Solution, bounds: Bounds, seed: int, notes: Sequence[str]
) -> Plan:
    """Build the plan of a simulated solution. Linear in operands, but for sorting."""
    writer = _PlanWriter(problem, solution)
    jobs = tuple(writer.jobs())
    transfers = (*writer.streams(), *writer.copies())
    allocations = (*writer.shared_allocations(), *writer.private_allocations())
    outcome = _Outcome(problem, solution, bounds, jobs, transfers, allocations)
    networks = problem.workload.networks
    remarks = (f"{own.name}: {note}" for own in networks for note in own.notes)
    return Plan(
        version=SCHEMA_VERSION,
        producer=f"loadmaster {loadmaster.__version__}",
        status=outcome.status(),
        seed=seed,
        target=problem.target,
        objective=outcome.objective(),
        timings=outcome.timings(),
        byte_energy={
            place: femtojoules / FEMTOJOULES for place, femtojoules in outcome.byte_energy.items()
        },
        networks=networks,
        mini_batches=outcome.mini_batches,
        tensors=tuple(writer.tensors()),
        jobs=jobs,
        allocations=allocations,
        transfers=transfers,
        links=writer.links(),
        metrics=outcome.metrics(),
        notes=(*remarks, *notes, *outcome.notes()),
        search=tuple(
            Improvement(n, score.objective / outcome.unit, seconds_of(score.lateness))
            for n, score in solution.search
        ),
    )


Planned = TypeVar("Planned")


def _records_like(given: Sequence[Any], kind: type[Planned], **decided: Any) -> list[Planned]:
    """Make records with the same fields as those given, but for what is decided."""
    columns = (
        decided[field.name] if field.name in decided else map(attrgetter(field.name), given)
        for field in fields(kind)  # type: ignore[arg-type]
    )
    return records_of(kind, len(given), *columns)


@dataclass(frozen=True, slots=True)
class _JobAccess:
    """A job's access to one tensor in one direction: bytes over the core's port (``moved``), bytes
    of the private buffer (``tile``), the memories accessed, and the box.
    """

    job: int
    tensor: str
    write: bool
    moved: int
    tile: int
    memories: tuple[str, ...]
    ranges: Ranges


class _PlanWriter:
    """Converts a solution to the records of a plan."""

    def __init__(self, problem: PlanProblem, solution: Solution) -> None:
        self._workload, self._table, self._target = problem.workload, problem.table, problem.target
        self._tilings = problem.tilings.tolist()
        self._schedule = solution.schedule
        self._placement = solution.placement
        self._timeline, self._packed = solution.timeline, solution.packed
        self._copies = [
            f"copy {n}: {self._workload.tensors[copy.tensor].name}"
            for n, copy in enumerate(self._placement.copies)
        ]
        tasks = [job.name for job in self._workload.jobs] + self._copies
        self._after = [tuple([tasks[task] for task in before]) for before in solution.after]
        # Records are ordered by time, for readers of the file.
        start = self._timeline.start
        end = self._timeline.end
        core = self._schedule.core
        self._by_time = np.lexsort((core, end[: len(core)], start[: len(core)])).tolist()
        self._start, self._end = (list(map(seconds_of, times.tolist())) for times in (start, end))
        self._core = [self._target.cores[number] for number in core.tolist()]
        self._accesses = self._collect_accesses()
        self._uses = [(access, memory) for access in self._accesses for memory in access.memories]

    def _collect_accesses(self) -> list[_JobAccess]:
        """Return the accesses of all jobs by time, one for each tensor and direction of a job, with
        their bytes on the chosen core."""
        table, tensors = self._table, self._workload.tensors
        job = table.operand_job
        tensor = table.operand_tensor
        write = table.operand_write
        # Rows of one job, tensor and direction are one access, at the position of the first.
        pair = job * len(tensors) + tensor
        _, first, access = np.unique(2 * pair + write, return_index=True, return_inverse=True)
        kept = np.lexsort((first, np.argsort(self._by_time)[job[first]]))
        rows, core = np.arange(len(job)), self._schedule.core[job]
        moved, tile = np.zeros((2, len(first)), dtype=np.int64)
        np.add.at(moved, access, table.moved[rows, core])
        np.add.at(tile, access, table.tile[rows, core])
        rows = first[kept]
        known = [memory.name for memory in self._target.memories]
        memories = [tuple(compress(known, row)) for row in self._placement.used[:, rows].T.tolist()]
        ranges = [use.ranges for job in self._workload.jobs for use in (*job.reads, *job.writes)]
        return records_of(
            _JobAccess,
            len(rows),
            job[rows].tolist(),
            [tensors[number].name for number in tensor[rows].tolist()],
            write[rows].tolist(),
            moved[kept].tolist(),
            tile[kept].tolist(),
            memories,
            [ranges[row] for row in rows.tolist()],
        )

    def tensors(self) -> list[PlannedTensor]:
        """Return all tensors of the plan, with the names of their producers."""
        tensors, jobs = self._workload.tensors, self._workload.jobs
        producer = [
            jobs[tensor.producer].name if tensor.producer >= 0 else "" for tensor in tensors
        ]
        return _records_like(tensors, PlannedTensor, producer=producer)

    def jobs(self) -> list[PlannedJob]:
        """Return all jobs of the plan in order of their start, with cores, times and energies."""
        each = np.arange(len(self._schedule.core))
        core = self._schedule.core
        computing = (self._table.compute[each, core] * PICOSECONDS).astype(np.int64)
        # Start and end are rounded to picoseconds: arithmetic must not exceed their difference.
        computing = np.minimum(computing, (self._timeline.end - self._timeline.start)[: len(core)])
        energy = self._table.energy[each, core].tolist()

        def by_time(column: Sequence[Any]) -> list[Any]:
            """Return a column in the order of the jobs' starts."""
            return [column[index] for index in self._by_time]

        jobs = by_time(self._workload.jobs)
        # Mini-batches share their loop nests.
        macs = {id(job.nests): job.macs for job in {id(job.nests): job for job in jobs}.values()}
        reads, writes = zip(*self._operands(), strict=True)
        return _records_like(
            jobs,
            PlannedJob,
            macs=[macs[id(job.nests)] for job in jobs],
            core=[own.name for own in by_time(self._core)],
            start=by_time(self._start),
            end=by_time(self._end),
            compute=by_time(list(map(seconds_of, computing.tolist()))),
            energy=by_time(energy),
            after=by_time(self._after),
            reads=reads,
            writes=writes,
            tiling=[_TILINGS[number] for number in by_time(self._tilings)],
        )

    def _operands(self) -> Iterator[tuple[tuple[PlannedOperand, ...], tuple[PlannedOperand, ...]]]:
        """Yield the reads and the writes of each job, by time."""
        uses = self._uses
        made = iter(
            records_of(
                PlannedOperand,
                len(uses),
                [access.tensor for access, _ in uses],
                [memory for _, memory in uses],
                [access.moved for access, _ in uses],
                [access.ranges for access, _ in uses],
            )
        )
        counts = Counter((access.job, access.write) for access, _ in uses)
        for job in self._by_time:
            # The reads of a job precede its writes.
            reads = tuple(islice(made, counts[job, False]))
            yield reads, tuple(islice(made, counts[job, True]))

    def streams(self) -> list[PlannedTransfer]:
        """Transfers between memories and cores while jobs run."""
        uses = self._uses
        jobs = [access.job for access, _ in uses]
        cores = [self._core[job].name for job in jobs]
        ends = [
            (core, memory) if access.write else (memory, core)
            for core, (access, memory) in zip(cores, uses, strict=True)
        ]
        return records_of(
            PlannedTransfer,
            len(uses),
            [access.tensor for access, _ in uses],
            [source for source, _ in ends],
            [destination for _, destination in ends],
            [access.moved for access, _ in uses],
            [self._start[job] for job in jobs],
            [self._end[job] for job in jobs],
            [self._workload.jobs[job].name for job in jobs],
            repeat(""),
            repeat(()),
        )

    def copies(self) -> list[PlannedTransfer]:
        """Transfers of the copy engine."""
        memories, copies = self._target.memories, self._placement.copies
        tasks = slice(len(self._workload.jobs), None)
        tensors = [self._workload.tensors[copy.tensor] for copy in copies]
        return records_of(
            PlannedTransfer,
            len(copies),
            [tensor.name for tensor in tensors],
            [memories[copy.source].name for copy in copies],
            [memories[copy.memory].name for copy in copies],
            [tensor.bytes for tensor in tensors],
            self._start[tasks],
            self._end[tasks],
            repeat(""),
            self._copies,
            self._after[tasks],
        )

    def shared_allocations(self) -> Iterator[PlannedAllocation]:
        """Yield the allocations in the machine's memories, memory by memory, by start and
        address."""
        for memory, part in zip(self._target.memories, self._packed, strict=True):
            tensors = column_of(part.residences, "tensor", np.int64)
            order = np.lexsort((tensors, part.offsets, part.start))
            yield from records_of(
                PlannedAllocation,
                len(order),
                [self._workload.tensors[number].name for number in tensors[order].tolist()],
                repeat(memory.name),
                *(column[order].tolist() for column in (part.offsets, part.sizes)),
                *(map(seconds_of, column[order].tolist()) for column in (part.start, part.end)),
            )

    def private_allocations(self) -> list[PlannedAllocation]:
        """Tiles in private buffers, stacked: a core runs one job at a time."""
        tiles = [access for access in self._accesses if self._core[access.job].buffer]
        taken = Counter[int]()
        offsets = []
        for access in tiles:
            offsets.append(taken[access.job])
            taken[access.job] += access.tile
        return records_of(
            PlannedAllocation,
            len(tiles),
            [access.tensor for access in tiles],
            [self._core[access.job].name for access in tiles],
            offsets,
            [access.tile for access in tiles],
            [self._start[access.job] for access in tiles],
            [self._end[access.job] for access in tiles],
        )

    def links(self) -> dict[str, tuple[LinkSegment, ...]]:
        """Use of every link over time; adjacent segments of equal use are merged."""
        curves = {}
        time = self._timeline.time.tolist()
        for link, memory in enumerate(self._target.memories):
            segments: list[tuple[float, ...]] = []
            loads = self._timeline.load[:, link]
            rates = self._timeline.rate[:, link]
            columns = (time, time[1:], loads.tolist(), rates.tolist())
            for start, end, load, rate in zip(*columns, strict=False):
                if start == end or rate == 0:
                    continue
                begin, use = seconds_of(start), (rate, min(1.0, load))
                if segments and segments[-1][1:] == (begin, *use):
                    begin = segments.pop()[0]
                segments.append((begin, seconds_of(end), *use))
            fields_of = zip(*segments, strict=True) if segments else repeat((), 4)
            curves[memory.name] = tuple(records_of(LinkSegment, len(segments), *fields_of))
        return curves

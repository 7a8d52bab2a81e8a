"""A small synthetic planner: plausible plans of any size for the report to draw, without any of the
engines."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from loadmaster.planning.plan import Plan
from loadmaster.planning.plan_records import (
    SCHEMA_VERSION,
    Cost,
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
from loadmaster.targets.hardware import CopyEngine, Core, Memory, Style, Target
from loadmaster.workloads.job import NetworkInfo, OperatorInfo
from loadmaster.workloads.network_timing import MiniBatch

KINDS = ("Conv", "Conv", "Conv", "DepthwiseConv", "MatMul", "Softmax", "MaxPool", "Add")
SHAPES = {"resnet50": 15, "mobilenet_v2": 15}


def edge_target() -> Target:
    """Three weight-stationary cores and a row-stationary one, DRAM and a scratchpad."""
    names = ("ws0", "ws1", "ws2", "rs0")
    styles = (Style.WEIGHT_STATIONARY,) * 3 + (Style.ROW_STATIONARY,)
    cores = tuple(
        Core(n, s, 32, 32, 1e9, {8: 1.0}, 32, 256 * 2**10)
        for n, s in zip(names, styles, strict=True)
    )
    dram = Memory("dram", 4 * 2**30, 34e9, 34e9)
    scratchpad = Memory("scratchpad", 4 * 2**20, 256e9, 256e9)
    copy = CopyEngine(34e9, 34e9, 20e9, 20e9)
    return Target(
        "edge-npu",
        "Four-core edge accelerator with a 4 MiB scratchpad",
        cores,
        dram,
        scratchpad,
        copy,
    )


@dataclass
class Builder:
    """Schedules chains of layers greedily and keeps what the plan is made of."""

    target: Target
    dice: random.Random
    free: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    jobs: list[PlannedJob] = field(default_factory=list)
    tensors: dict[str, PlannedTensor] = field(default_factory=dict)
    born: dict[str, float] = field(default_factory=dict)
    dies: dict[str, float] = field(default_factory=dict)
    home: dict[str, str] = field(default_factory=dict)
    transfers: list[PlannedTransfer] = field(default_factory=list)

    def tensor(
        self, name: str, network: str, size: int, kind: str, producer: str, at: float
    ) -> str:
        storage, _, batch = name.removeprefix(f"{network}/").partition("#")
        mini_batch = int(batch.removesuffix(".out") or 0)
        self.tensors.setdefault(
            name, PlannedTensor(name, network, storage, mini_batch, size, kind, False, producer)
        )
        self.born.setdefault(name, at)
        self.home.setdefault(name, "dram" if kind == "weight" or size > 600_000 else "scratchpad")
        return name

    def layer(self, network: str, batch: int, index: int, before: PlannedJob | None) -> PlannedJob:
        """One job, on the core that can start it first."""
        dice = self.dice
        core = min(self.target.cores, key=lambda c: (self.free[c.name], c.name)).name
        start = max(self.free[core], before.end if before else 0.0) + dice.randrange(0, 400) * 1e-9
        compute = dice.randrange(2_000, 60_000) * 1e-9
        end = round(start + compute * dice.choice((1.0, 1.05, 1.3, 2.2)), 12)
        name = f"{network}/stage{index // 5}.{index % 5}#{batch}"
        weight = self.tensor(
            f"{network}.stage{index}.weight",
            network,
            dice.randrange(4_000, 400_000),
            "weight",
            "",
            0.0,
        )
        source = (
            before.writes[0].tensor
            if before
            else self.tensor(f"{network}.input#{batch}", network, 150_528, "input", "", 0.0)
        )
        result = self.tensor(
            f"{name}.out", network, dice.randrange(20_000, 700_000), "activation", name, start
        )
        reads = tuple(
            PlannedOperand(t, self.home[t], self.tensors[t].bytes) for t in (source, weight)
        )
        writes = (PlannedOperand(result, self.home[result], self.tensors[result].bytes),)
        kind = dice.choice(KINDS)
        operators = tuple(
            f"{name}.{part}" for part in (kind.lower(), "bias", "relu")[: dice.randrange(1, 4)]
        )
        after = (before.name,) if before else ()
        macs = int(compute * 8e11)
        job = PlannedJob(
            name,
            network,
            batch,
            0,
            1,
            kind,
            operators,
            macs,
            macs // 100,
            8,
            core,
            start,
            end,
            compute,
            1e-9,
            after,
            reads,
            writes,
        )
        self.add(job)
        return job

    def add(self, job: PlannedJob) -> None:
        """Book the job's core, lifetimes and transfers."""
        self.free[job.core] = job.end
        self.jobs.append(job)
        for operand in (*job.reads, *job.writes):
            self.dies[operand.tensor] = max(job.end, self.dies.get(operand.tensor, 0.0))
        for read in job.reads:
            self.transfers.append(
                PlannedTransfer(
                    read.tensor, read.memory, job.core, read.bytes, job.start, job.end, job.name
                )
            )
        for write in job.writes:
            self.transfers.append(
                PlannedTransfer(
                    write.tensor, job.core, write.memory, write.bytes, job.start, job.end, job.name
                )
            )

    def copies(self) -> None:
        """Every ninth job's input is copied to the scratchpad before the job needs it."""
        for number, job in enumerate(self.jobs[::9]):
            source, size = job.reads[-1].tensor, job.reads[-1].bytes
            start = max(0.0, job.start - size / 20e9)
            move = PlannedTransfer(
                source, "dram", "scratchpad", size, start, start + size / 20e9, name=f"copy{number}"
            )
            self.transfers.append(move)

    def allocations(self) -> Iterator[PlannedAllocation]:
        """Weights side by side in DRAM, first fit for the rest, and a pair of tiles in the private
        buffer of each job's core."""
        placed: dict[str, list[PlannedAllocation]] = defaultdict(list)
        base = 0
        for tensor in self.tensors.values():
            if tensor.kind == "weight":
                yield PlannedAllocation(
                    tensor.name, "dram", base, tensor.bytes, 0.0, self.dies[tensor.name]
                )
                base += -(-tensor.bytes // 64) * 64
        for name in sorted(
            (t for t in self.tensors if self.tensors[t].kind != "weight"),
            key=lambda t: (self.born[t], t),
        ):
            tensor, memory = self.tensors[name], self.home[name]
            live = [a for a in placed[memory] if a.end > self.born[name]]
            offset = first_fit(live, tensor.bytes, base if memory == "dram" else 0)
            allocation = PlannedAllocation(
                name, memory, offset, tensor.bytes, self.born[name], self.dies[name]
            )
            placed[memory] = [*live, allocation]
            yield allocation
        for job in self.jobs:
            yield PlannedAllocation(job.reads[0].tensor, job.core, 0, 64_000, job.start, job.end)
            yield PlannedAllocation(
                job.writes[0].tensor,
                job.core,
                64_000,
                32_000 + job.macs % 90_000,
                job.start,
                job.end,
            )


def first_fit(live: list[PlannedAllocation], size: int, base: int) -> int:
    """Lowest multiple of 64, from ``base`` on, at which ``size`` bytes are free of the live
    allocations."""
    offset = base
    for other in sorted(live, key=lambda a: a.offset):
        if other.offset >= offset + size:
            break
        offset = max(offset, -(-(other.offset + other.bytes) // 64) * 64)
    return offset


def link_segments(transfers: list[PlannedTransfer], memory: Memory) -> tuple[LinkSegment, ...]:
    """Sum of the mean rates of the transfers that touch a memory, clipped to its link."""
    change: dict[float, float] = defaultdict(float)
    for move in transfers:
        if memory.name in (move.source, move.destination) and move.end > move.start:
            rate = move.bytes / (move.end - move.start)
            change[move.start] += rate
            change[move.end] -= rate
    segments, rate = [], 0.0
    for start, end in pairwise(sorted(change)):
        rate += change[start]
        if (used := min(rate, memory.read_bandwidth)) > 1.0:
            segments.append(LinkSegment(start, end, used, used / memory.read_bandwidth))
    return tuple(segments)


def memory_use(allocations: tuple[PlannedAllocation, ...], memory: str, capacity: int) -> MemoryUse:
    """Peak address, most bytes alive, capacity."""
    mine = [a for a in allocations if a.memory == memory]
    change: dict[float, int] = defaultdict(int)
    for a in mine:
        change[a.start] += a.bytes
        change[a.end] -= a.bytes
    alive = most = 0
    for instant in sorted(change):
        alive += change[instant]
        most = max(most, alive)
    return MemoryUse(max((a.offset + a.bytes for a in mine), default=0), most, capacity)


def metrics(builder: Builder, allocations: tuple[PlannedAllocation, ...]) -> Metrics:
    """Figures of the plan with bounds a little better than the values."""
    target, jobs = builder.target, builder.jobs
    makespan = max((job.end for job in jobs), default=0.0)
    rate = sum(2 * job.macs for job in jobs) / makespan if makespan else 0.0
    busy = {
        c.name: sum(j.compute for j in jobs if j.core == c.name) / makespan if makespan else 0.0
        for c in target.cores
    }
    names = [m.name for m in target.memories]
    capacities = {m.name: m.capacity for m in target.memories} | {
        c.name: c.buffer for c in target.cores
    }
    traffic = {
        n: sum(t.bytes for t in builder.transfers if n in (t.source, t.destination)) for n in names
    }
    return Metrics(
        makespan=Cost(makespan, makespan * 0.91),
        throughput=Rate(rate, rate / 0.91),
        inferences_per_second=Rate(
            4 / makespan if makespan else 0.0, 4 / makespan / 0.91 if makespan else 0.0
        ),
        utilisation={n: Rate(value, min(1.0, value / 0.91)) for n, value in busy.items()},
        traffic={n: Cost(value, value * 0.62) for n, value in traffic.items()},
        memory={
            name: memory_use(allocations, name, capacity) for name, capacity in capacities.items()
        },
        energy=Cost(1e-6 * len(jobs), 0.93e-6 * len(jobs)),
        energy_by={name: 1e-7 * len(jobs) for name in (*names, *busy)},
        latency={job.network: Cost(makespan, makespan / 2) for job in jobs},
    )


def build_plan(
    layers: dict[str, int] | None = None,
    mini_batches: int = 2,
    notes: tuple[str, ...] = (),
    seed: int = 7,
) -> Plan:
    """A plan of ``layers`` jobs per network and mini-batch on the edge target."""
    shapes = SHAPES if layers is None else layers
    builder = Builder(edge_target(), random.Random(seed))
    chains: dict[tuple[str, int], PlannedJob | None] = {
        (n, b): None for n in shapes for b in range(mini_batches)
    }
    for index in range(max(shapes.values(), default=0)):
        for (network, batch), before in chains.items():
            if index < shapes[network]:
                chains[network, batch] = builder.layer(network, batch, index, before)
    builder.copies()
    allocations = tuple(builder.allocations())
    networks = tuple(network_info(builder, name, mini_batches) for name in shapes)
    links = {m.name: link_segments(builder.transfers, m) for m in builder.target.memories}
    figures = metrics(builder, allocations)
    return Plan(
        version=SCHEMA_VERSION,
        producer="loadmaster 0.1.0",
        status="feasible",
        seed=seed,
        target=builder.target,
        objective=Objective("throughput", "", figures.makespan.value, figures.makespan.lower_bound),
        timings=(),
        byte_energy=dict.fromkeys(figures.energy_by, 1e-12),
        networks=networks,
        mini_batches=tuple(
            MiniBatch(n, b, 0.0, figures.makespan.value, figures.makespan.value, False)
            for n, b in chains
        ),
        tensors=tuple(builder.tensors.values()),
        jobs=tuple(builder.jobs),
        allocations=allocations,
        transfers=tuple(builder.transfers),
        links=links,
        metrics=figures,
        notes=notes,
    )


def network_info(builder: Builder, name: str, mini_batches: int) -> NetworkInfo:
    """What the plan keeps of one of the networks."""
    jobs = [job for job in builder.jobs if job.network == name and job.mini_batch == 0]
    operators = tuple(operator_info(builder, job, op) for job in jobs for op in job.operators)
    outputs = (builder.tensors[jobs[-1].writes[0].tensor].storage,) if jobs else ()
    unknown = ("GridSample",) if name == "mobilenet_v2" else ()
    return NetworkInfo(
        name,
        f"{name}.onnx",
        "int8",
        mini_batches,
        1,
        sum(j.macs for j in jobs),
        operators,
        outputs,
        unknown,
    )


def operator_info(builder: Builder, job: PlannedJob, name: str) -> OperatorInfo:
    """What one of a job's operators reads and writes: the first has all operands."""
    first = name == job.operators[0]
    reads, writes = (
        tuple(builder.tensors[x.tensor].storage for x in part if first)
        for part in (job.reads, job.writes)
    )
    return OperatorInfo(name, reads, writes)


def rename(plan: Plan, network: str, tensor: str) -> Plan:
    """The same plan with other names for its first network and first tensor, everywhere."""
    old_network, old_tensor = plan.networks[0].name, plan.tensors[0].name

    def named(item: Any) -> Any:
        changes: dict[str, Any] = {}
        if getattr(item, "network", None) == old_network:
            changes["network"] = network
        if getattr(item, "name", None) in (old_network, old_tensor):
            changes["name"] = network if item.name == old_network else tensor
        if getattr(item, "tensor", None) == old_tensor:
            changes["tensor"] = tensor
        if isinstance(item, PlannedJob):
            changes |= {
                "reads": tuple(map(named, item.reads)),
                "writes": tuple(map(named, item.writes)),
            }
        return replace(item, **changes)

    parts: dict[str, Any] = {
        f: tuple(map(named, getattr(plan, f)))
        for f in ("networks", "mini_batches", "tensors", "jobs", "allocations", "transfers")
    }
    return replace(plan, **parts)

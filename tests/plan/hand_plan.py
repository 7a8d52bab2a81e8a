"""Good plans made by hand, for the tests to read and to break. Times are given in microseconds.

``shared_plan`` runs two networks on two cores that hand tensors over in a scratchpad; ``copying_plan`` runs one on a core that can use
operands only in its own memory, so that they are copied there and back; ``long_plan`` is as long as one likes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from loadmaster.hardware import CopyEngine, Core, Memory, Style, Target
from loadmaster.job import NetworkInfo
from loadmaster.plans import (
    Cost,
    LinkSegment,
    MemoryUse,
    Metrics,
    Plan,
    PlannedAllocation,
    PlannedJob,
    PlannedOperand,
    PlannedTensor,
    PlannedTransfer,
    Rate,
)

Reads = Iterable[tuple[str, str, int]]


def us(microseconds: float) -> float:
    """Seconds, as the nearest float to whole picoseconds."""
    return round(microseconds * 10**6) / 10**12


def tensor(name: str, size: int, producer: str = "", kind: str = "activation", is_output: bool = False) -> PlannedTensor:
    return PlannedTensor(name, name.split("/")[0], size, kind, is_output, producer)


def job(
    name: str, core: str, start: float, end: float, reads: Reads, writes: Reads, after: tuple[str, ...] = (), **more: Any
) -> PlannedJob:
    """A job called ``network/operator@mini-batch``, with a thousand multiply-accumulates and two microseconds of arithmetic."""
    network, rest = name.split("/")
    fields: dict[str, Any] = {
        "mini_batch": int(rest.split("@")[1]),
        "tile": 0,
        "tiles": 1,
        "operators": (rest.split("@")[0],),
        "macs": 1000,
    }
    fields |= more
    return PlannedJob(
        name=name,
        network=network,
        kind="Conv",
        core=core,
        start=us(start),
        end=us(end),
        compute=us(2),
        after=after,
        reads=tuple(PlannedOperand(*read) for read in reads),
        writes=tuple(PlannedOperand(*write) for write in writes),
        **fields,
    )


def place(name: str, memory: str, offset: int, size: int, start: float, end: float) -> PlannedAllocation:
    return PlannedAllocation(name, memory, offset, size, us(start), us(end))


def copy(
    name: str, tensor: str, source: str, destination: str, size: int, start: float, end: float, after: tuple[str, ...]
) -> PlannedTransfer:
    return PlannedTransfer(tensor, source, destination, size, us(start), us(end), name=name, after=after)


def streams(jobs: Iterable[PlannedJob]) -> tuple[PlannedTransfer, ...]:
    """The transfers of all operands, each as long as its job."""
    reads = [PlannedTransfer(x.tensor, x.memory, j.core, x.bytes, j.start, j.end, j.name) for j in jobs for x in j.reads]
    return (*reads, *(PlannedTransfer(x.tensor, j.core, x.memory, x.bytes, j.start, j.end, j.name) for j in jobs for x in j.writes))


def finished(plan: Plan) -> Plan:
    """The plan with the curves and figures that follow from its records."""
    links = {memory.name: curve(memory, plan.transfers) for memory in plan.target.memories}
    makespan = max(record.end for record in (*plan.jobs, *plan.transfers))
    throughput = 2 * sum(j.macs for j in plan.jobs) / makespan
    inferences = sum(n.batch * n.mini_batches for n in plan.networks)
    busy = {core.name: sum(j.compute for j in plan.jobs if j.core == core.name) / makespan for core in plan.target.cores}
    moved = {name: sum(t.bytes for t in plan.transfers if name in (t.source, t.destination)) for name in links}
    metrics = Metrics(
        makespan=Cost(makespan, makespan / 2),
        throughput=Rate(throughput, 2 * throughput),
        inferences_per_second=Rate(inferences / makespan, 2 * inferences / makespan),
        utilisation={core: Rate(value, 1.0) for core, value in busy.items()},
        traffic={name: Cost(float(value), value / 2) for name, value in moved.items()},
        memory={memory.name: memory_use(memory, plan.allocations) for memory in plan.target.memories},
    )
    return replace(plan, links=links, metrics=metrics)


def memory_use(memory: Memory, allocations: Iterable[PlannedAllocation]) -> MemoryUse:
    here = [a for a in allocations if a.memory == memory.name]
    alive = [sum(a.bytes for a in here if a.start <= moment < a.end) for moment in {a.start for a in here}]
    return MemoryUse(max(a.offset + a.bytes for a in here), max(alive), memory.capacity)


def curve(memory: Memory, transfers: Iterable[PlannedTransfer]) -> tuple[LinkSegment, ...]:
    """Use of a link if every transfer moves evenly from its start to its end."""
    here = [t for t in transfers if memory.name in (t.source, t.destination)]
    moments = sorted({t.start for t in here} | {t.end for t in here})
    segments = []
    for start, end in pairwise(moments):
        active = [t for t in here if t.start <= start and t.end >= end]
        rates = [
            (t.bytes / (t.end - t.start), memory.read_bandwidth if t.source == memory.name else memory.write_bandwidth) for t in active
        ]
        if rates:
            segments.append(LinkSegment(start, end, sum(rate for rate, _ in rates), sum(rate / limit for rate, limit in rates)))
    return tuple(segments)


def network(name: str, mini_batches: int, macs: int, operators: tuple[str, ...]) -> NetworkInfo:
    return NetworkInfo(name, f"{name}.onnx", "int8", mini_batches, 1, macs, operators, notes=("a remark",))


def unfinished(target: Target, **records: Any) -> Plan:
    nothing = Metrics(Cost(0, 0), Rate(0, 0), Rate(0, 0), {}, {}, {})
    return Plan(version=1, producer="by hand", status="feasible", seed=7, target=target, links={}, metrics=nothing, **records)


def core(name: str, buffer: int) -> Core:
    return Core(name, Style.WEIGHT_STATIONARY, 16, 16, 1e9, {8: 2.0, 16: 1.0}, 32, buffer)


def shared_plan() -> Plan:
    """Network ``net`` (two mini-batches of ``conv``, ``fc``) and ``aux`` (``pool`` in two tiles), on cores ``a`` and ``b``.

    ``conv`` leaves its result ``h`` in the scratchpad for ``fc``; that of the second mini-batch takes the place of the first.
    """
    target = Target(
        "hand-npu",
        "two cores that share a scratchpad",
        (core("a", 4096), core("b", 4096)),
        main=Memory("dram", 1 << 20, 2e9, 1e9),
        fast=Memory("scratchpad", 8192, 8e9, 8e9),
    )
    jobs = (
        job("net/conv@0", "a", 0, 10, [("net/x@0", "dram", 2048), ("net/w", "dram", 1024)], [("net/h@0", "scratchpad", 4096)]),
        job("net/fc@0", "b", 10, 20, [("net/h@0", "scratchpad", 4096)], [("net/y@0", "dram", 512)], ("net/conv@0",)),
        job("aux/pool#0@0", "a", 10, 20, [("aux/x", "dram", 1000)], [("aux/y#0", "dram", 500)], operators=("pool",), tiles=2),
        job(
            "net/conv@1",
            "a",
            20,
            30,
            [("net/x@1", "dram", 2048), ("net/w", "dram", 1024)],
            [("net/h@1", "scratchpad", 4096)],
            ("net/fc@0",),
        ),
        job("aux/pool#1@0", "b", 20, 30, [("aux/x", "dram", 1000)], [("aux/y#1", "dram", 500)], operators=("pool",), tile=1, tiles=2),
        job("net/fc@1", "b", 30, 40, [("net/h@1", "scratchpad", 4096)], [("net/y@1", "dram", 512)], ("net/conv@1",)),
    )
    tensors = (
        tensor("net/x@0", 2048, kind="input"),
        tensor("net/x@1", 2048, kind="input"),
        tensor("net/w", 1024, kind="weight"),
        tensor("net/h@0", 4096, "net/conv@0"),
        tensor("net/h@1", 4096, "net/conv@1"),
        tensor("net/y@0", 512, "net/fc@0", is_output=True),
        tensor("net/y@1", 512, "net/fc@1", is_output=True),
        tensor("aux/x", 2000, kind="input"),
        tensor("aux/y#0", 500, "aux/pool#0@0", is_output=True),
        tensor("aux/y#1", 500, "aux/pool#1@0", is_output=True),
    )
    allocations = (
        place("net/x@0", "dram", 0, 2048, 0, 10),
        place("net/x@1", "dram", 2048, 2048, 0, 30),
        place("net/w", "dram", 4096, 1024, 0, 30),
        place("net/y@0", "dram", 5120, 512, 10, 40),
        place("net/y@1", "dram", 5632, 512, 30, 40),
        place("aux/x", "dram", 6144, 2000, 0, 30),
        place("aux/y#0", "dram", 8192, 500, 10, 40),
        place("aux/y#1", "dram", 8704, 500, 20, 40),
        place("net/h@0", "scratchpad", 0, 4096, 0, 20),
        place("net/h@1", "scratchpad", 0, 4096, 20, 40),
        place("net/w", "a", 0, 1024, 0, 10),
        place("net/x@0", "a", 1024, 300, 0, 5),
        place("net/x@0", "a", 1324, 300, 2, 10),
        place("net/h@1", "b", 0, 4096, 30, 40),
    )
    networks = (network("net", 2, 2000, ("conv", "fc")), network("aux", 1, 2000, ("pool",)))
    return finished(
        unfinished(target, networks=networks, tensors=tensors, jobs=jobs, allocations=allocations, transfers=streams(jobs), notes=("fine",))
    )


def copying_plan() -> Plan:
    """One core that reads and writes only ``hbm``: inputs are copied in, the output out, and ``h`` out and in again.

    ``y`` takes the place of ``x``, and ``h`` comes back to where ``w`` was.
    """
    target = Target(
        "hand-gpu",
        "operands must be copied before use",
        (core("gpu", 0),),
        main=Memory("host", 1 << 20, 1e9, 1e9, in_place=False),
        fast=Memory("hbm", 4096, 1e11, 1e11),
        copy=CopyEngine(1e9, 1e9, 0.5e9, 0.5e9),
    )
    jobs = (
        job("n/p@0", "gpu", 10, 20, [("n/x", "hbm", 1024), ("n/w", "hbm", 1024)], [("n/h", "hbm", 1024)], ("load x", "load w")),
        job("n/q@0", "gpu", 20, 30, [("n/w", "hbm", 1024)], [("n/y", "hbm", 1024)], ("load w",)),
        job("n/s@0", "gpu", 35, 45, [("n/h", "hbm", 1024), ("n/y", "hbm", 1024)], [("n/z", "hbm", 1024)], ("load h", "n/q@0")),
    )
    copies = (
        copy("load x", "n/x", "host", "hbm", 1024, 0, 5, ()),
        copy("load w", "n/w", "host", "hbm", 1024, 5, 10, ("load x",)),
        copy("store h", "n/h", "hbm", "host", 1024, 20, 25, ("n/p@0",)),
        copy("load h", "n/h", "host", "hbm", 1024, 30, 35, ("store h", "n/q@0")),
        copy("store z", "n/z", "hbm", "host", 1024, 45, 50, ("n/s@0",)),
    )
    tensors = (
        tensor("n/x", 1024, kind="input"),
        tensor("n/w", 1024, kind="weight"),
        tensor("n/h", 1024, "n/p@0"),
        tensor("n/y", 1024, "n/q@0"),
        tensor("n/z", 1024, "n/s@0", is_output=True),
    )
    allocations = (
        place("n/x", "host", 0, 1024, 0, 5),
        place("n/w", "host", 1024, 1024, 0, 10),
        place("n/h", "host", 2048, 1024, 20, 35),
        place("n/z", "host", 3072, 1024, 45, 50),
        place("n/x", "hbm", 0, 1024, 0, 20),
        place("n/w", "hbm", 1024, 1024, 5, 30),
        place("n/h", "hbm", 2048, 1024, 10, 25),
        place("n/y", "hbm", 0, 1024, 20, 45),
        place("n/h", "hbm", 1024, 1024, 30, 45),
        place("n/z", "hbm", 3072, 1024, 35, 50),
    )
    networks = (network("n", 1, 3000, ("p", "q", "s")),)
    return finished(
        unfinished(target, networks=networks, tensors=tensors, jobs=jobs, allocations=allocations, transfers=(*streams(jobs), *copies))
    )


def long_plan(length: int, extra_reads: int = 0) -> Plan:
    """A chain of jobs on two cores in turn, each reading what the one before it wrote, in two halves of the scratchpad.

    ``extra_reads`` splits the read of each job's operand into that many more transfers.
    """
    plan = shared_plan()
    names = [f"net/op@{i}" for i in range(length)]
    halves = [("scratchpad", i % 2 * 4096) for i in range(length)]
    jobs, tensors, allocations = [], [tensor("net/in", 64, kind="input")], [place("net/in", "dram", 0, 64, 0, 1 * 10)]
    for i, name in enumerate(names):
        read = (f"net/t{i - 1}", "scratchpad", 4096) if i else ("net/in", "dram", 64)
        last = i == length - 1
        write = (f"net/t{i}", "dram" if last else "scratchpad", 4096)
        after = tuple(names[max(0, i - 2) : i])
        jobs.append(job(name, "ab"[i % 2], 10 * i, 10 * i + 10, [read], [write], after))
        tensors.append(tensor(f"net/t{i}", 4096, name, is_output=last))
        memory, offset = ("dram", 64) if last else halves[i]
        allocations.append(place(f"net/t{i}", memory, offset, 4096, 10 * i, 10 * i + (10 if last else 20)))
    transfers = [
        replace(t, bytes=share)
        for t in streams(jobs)
        for share in ((t.bytes - extra_reads, *[1] * extra_reads) if t.source == "scratchpad" else (t.bytes,))
    ]
    makespan = us(10 * length)
    rate = Rate(2000 * length / makespan, 1e18)
    traffic = {m.name: sum(t.bytes for t in transfers if m.name in (t.source, t.destination)) for m in plan.target.memories}
    metrics = Metrics(
        makespan=Cost(makespan, makespan),
        throughput=rate,
        inferences_per_second=Rate(length / makespan, 1e18),
        utilisation={c: Rate(sum(j.compute for j in jobs if j.core == c) / makespan, 1.0) for c in "ab"},
        traffic={name: Cost(float(value), 0.0) for name, value in traffic.items()},
        memory={"dram": MemoryUse(4160, 4096, 1 << 20), "scratchpad": MemoryUse(8192, 8192, 8192)},
    )
    links = {name: (LinkSegment(0.0, makespan, value / makespan, 0.5),) for name, value in traffic.items()}
    return replace(
        plan,
        status="optimal",
        networks=(network("net", length, 1000, ("op",)),),
        tensors=tuple(tensors),
        jobs=tuple(jobs),
        allocations=tuple(allocations),
        transfers=tuple(transfers),
        links=links,
        metrics=metrics,
    )

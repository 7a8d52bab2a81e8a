"""Good plans made by hand, for the tests to read and to break. Times are given in microseconds.

``shared_plan`` runs two networks on two cores that hand tensors over in a scratchpad;
``copying_plan`` runs one on a core that can use operands only in its own memory, so that they are
copied there and back; ``long_plan`` is as long as one likes.
"""

from dataclasses import replace
from itertools import accumulate, pairwise

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
from loadmaster.workloads.job import MiniBatch, NetworkInfo, OperatorInfo


def us(microseconds):
    """Seconds, as the nearest float to whole picoseconds."""
    return round(microseconds * 10**6) / 10**12


def tensor(name, size, producer="", kind="activation", is_output=False):
    """A tensor called ``network/storage@mini-batch``, or ``network/storage#tile``: one of two
    halves in the first mini-batch."""
    network, _, rest = name.partition("/")
    storage, _, batch = rest.split("#")[0].partition("@")
    tile = rest.partition("#")[2]
    place = ((2,), ((int(tile), int(tile) + 1),)) if tile else ((), ())
    own = (name, network, storage, int(batch or 0), size, kind, is_output, producer)
    return PlannedTensor(*own, *place)


def rows_of(table):
    """The words of every line."""
    return map(str.split, table.strip().splitlines())


def tensors_of(table):
    """A line for each: tensor, bytes, its kind or the job that makes it, and whether it is an
    output."""
    return tuple(
        tensor(name, int(size), "", origin)
        if origin in ("input", "weight")
        else tensor(name, int(size), origin, is_output=bool(output))
        for name, size, origin, *output in rows_of(table)
    )


def job(name, core, start, end, reads, writes, after=()):
    """A job called ``network/operator@mini-batch``, or ``network/operator#tile@mini-batch``, one
    of two: a thousand multiply-accumulates, two microseconds of arithmetic, one nanojoule."""
    network, rest = name.split("/")
    work, batch = rest.split("@")
    operator, _, tile = work.partition("#")
    return PlannedJob(
        name=name,
        network=network,
        mini_batch=int(batch),
        tile=int(tile or 0),
        tiles=2 if tile else 1,
        ranges=((int(tile), int(tile) + 1),) if tile else (),
        operators=(operator,),
        macs=1000,
        elements=2000,
        bits=8,
        kind="Conv",
        core=core,
        start=us(start),
        end=us(end),
        compute=us(2),
        energy=1e-9,
        after=after,
        reads=operands(reads),
        writes=operands(writes),
    )


def jobs_of(table):
    """A line for each, with bars between: the job, its core, start and end; what it reads; what it
    writes; and what it comes after, with commas between."""
    found = []
    for line in table.strip().splitlines():
        head, reads, writes, *after = (part.strip() for part in line.split("|"))
        name, core, *times = head.split()
        names = tuple(after[0].split(", ")) if after else ()
        found.append(job(name, core, *map(int, times), reads, writes, names))
    return tuple(found)


def place(name, memory, offset, size, start, end):
    return PlannedAllocation(name, memory, offset, size, us(start), us(end))


def places(table):
    """A line for each: tensor, memory, offset, bytes, start and end."""
    return tuple(
        place(name, memory, *map(int, numbers)) for name, memory, *numbers in rows_of(table)
    )


def operands(text):
    """``tensor:memory:bytes`` of each, or tuples of these."""
    rows = [row.split(":") for row in text.split()] if isinstance(text, str) else text
    return tuple(PlannedOperand(name, memory, int(size)) for name, memory, size in rows)


def copy(name, tensor, source, destination, size, start, end, after):
    return PlannedTransfer(
        tensor, source, destination, size, us(start), us(end), name=name, after=after
    )


def streams(jobs):
    """The transfers of all operands, each as long as its job."""
    reads = [
        PlannedTransfer(x.tensor, x.memory, j.core, x.bytes, j.start, j.end, j.name)
        for j in jobs
        for x in j.reads
    ]
    return (
        *reads,
        *(
            PlannedTransfer(x.tensor, j.core, x.memory, x.bytes, j.start, j.end, j.name)
            for j in jobs
            for x in j.writes
        ),
    )


def tiles(target, jobs):
    """A tile of up to 300 bytes for every operand, one above the other, in the buffers of cores
    that have one."""
    managed = {core.name for core in target.cores if core.buffer}
    return tuple(
        PlannedAllocation(x.tensor, j.core, 300 * i, max(1, min(300, x.bytes)), j.start, j.end)
        for j in jobs
        if j.core in managed
        for i, x in enumerate({x.tensor: x for x in (*j.reads, *j.writes)}.values())
    )


def finished(plan):
    """The plan with the curves and figures that follow from its records."""
    links = {memory.name: curve(memory, plan.transfers) for memory in plan.target.memories}
    makespan = max(record.end for record in (*plan.jobs, *plan.transfers))
    throughput = 2 * sum(j.macs for j in plan.jobs) / makespan
    inferences = sum(n.batch * n.mini_batches for n in plan.networks)
    busy = {
        core.name: sum(j.compute for j in plan.jobs if j.core == core.name) / makespan
        for core in plan.target.cores
    }
    moved = {
        name: sum(t.bytes for t in plan.transfers if name in (t.source, t.destination))
        for name in links
    }
    energy, energy_by = energies(plan, makespan)
    mini_batches = batches(plan)
    longest = {
        n.name: max((b.latency for b in mini_batches if b.network == n.name), default=0.0)
        for n in plan.networks
    }
    metrics = Metrics(
        makespan=Cost(makespan, makespan / 2),
        throughput=Rate(throughput, 2 * throughput),
        inferences_per_second=Rate(inferences / makespan, 2 * inferences / makespan),
        utilisation={core: Rate(value, min(1.0, 2 * value)) for core, value in busy.items()},
        traffic={name: Cost(float(value), value / 2) for name, value in moved.items()},
        memory={
            name: memory_use(name, capacity, plan.allocations)
            for name, capacity in capacities(plan.target).items()
        },
        energy=Cost(energy, energy / 2),
        energy_by=energy_by,
        latency={name: Cost(value, value / 2) for name, value in longest.items()},
    )
    objective = Objective("throughput", "", makespan, makespan / 2)
    return replace(
        plan, links=links, metrics=metrics, objective=objective, mini_batches=mini_batches
    )


def energies(plan, makespan):
    """Joules of the whole plan, and of every memory and core, added up in femtojoules."""
    by = dict.fromkeys(plan.byte_energy, 0)
    for j in plan.jobs:
        by[j.core] += round(j.energy * 10**15)
    for t in plan.transfers:
        for end in {t.source, t.destination} & set(by):
            by[end] += t.bytes * round(plan.byte_energy[end] * 10**15)
    static = round(plan.target.static_power * makespan * 10**15)
    return (sum(by.values()) + static) / 10**15, {
        name: femtojoules / 10**15 for name, femtojoules in by.items()
    }


def batches(plan):
    """What becomes of the mini-batches that have jobs, in the order of the jobs."""
    ends = {}
    for j in plan.jobs:
        ends[j.network, j.mini_batch] = max(j.end, ends.get((j.network, j.mini_batch), 0.0))
    tensors = {x.name: x for x in plan.tensors}
    for t in plan.transfers:
        made = tensors[t.tensor]
        key = made.network, made.mini_batch
        if not t.job and t.destination == plan.target.main.name and made.is_output and key in ends:
            ends[key] = max(ends[key], t.end)
    old = {(b.network, b.number): b for b in plan.mini_batches}
    found = []
    for key, end in ends.items():
        release, missed = (old[key].release, old[key].missed) if key in old else (0.0, False)
        latency = round((end - release) * 10**12) / 10**12
        found.append(MiniBatch(*key, release, end, latency, missed))
    return tuple(found)


def capacities(target):
    """Bytes of the shared memories and of the buffers that are managed."""
    return {m.name: m.capacity for m in target.memories} | {
        c.name: c.buffer for c in target.cores if c.buffer
    }


def memory_use(name, capacity, allocations):
    here = [a for a in allocations if a.memory == name]
    # What ends at an instant makes room for what starts there.
    events = sorted([(a.end, -a.bytes) for a in here] + [(a.start, a.bytes) for a in here])
    alive = accumulate(size for _, size in events)
    return MemoryUse(
        max((a.offset + a.bytes for a in here), default=0), max(alive, default=0), capacity
    )


def curve(memory, transfers):
    """Use of a link if every transfer moves evenly from its start to its end."""
    here = [t for t in transfers if memory.name in (t.source, t.destination)]
    moments = sorted({t.start for t in here} | {t.end for t in here})
    number = {moment: i for i, moment in enumerate(moments)}
    active = [[] for _ in moments]
    for t in here:
        for i in range(number[t.start], number[t.end]):
            active[i].append(t)
    segments = []
    for (start, end), own in zip(pairwise(moments), active, strict=False):
        rates = [t.bytes / (t.end - t.start) for t in own]
        limits = (
            memory.read_bandwidth if t.source == memory.name else memory.write_bandwidth
            for t in own
        )
        if rates:
            load = sum(rate / limit for rate, limit in zip(rates, limits, strict=True))
            segments.append(LinkSegment(start, end, sum(rates), load))
    return tuple(segments)


def network(name, mini_batches, macs, operators, outputs, inputs=("x",)):
    infos = tuple(OperatorInfo(operator, *flow) for operator, flow in operators.items())
    own = name, f"{name}.onnx", "int8", mini_batches, 1, macs, infos, outputs
    return NetworkInfo(*own, notes=("a remark",), inputs=inputs)


def plan_of(target, networks, tensors, jobs, allocations, copies=(), notes=()):
    """A plan whose operands stream or are copied, with the figures that follow from its records."""
    nothing = Metrics(Cost(0, 0), Rate(0, 0), Rate(0, 0), {}, {}, {}, Cost(0, 0), {}, {})
    # Private buffers of 4 KiB take half the square root of two of what 8 KiB do, 1.25 pJ a byte;
    # memories what they state.
    by = {m.name: m.energy or 0.0 for m in target.memories} | {
        c.name: 884e-15 if c.buffer else 0.0 for c in target.cores
    }
    plan = Plan(
        version=SCHEMA_VERSION,
        producer="by hand",
        status="feasible",
        seed=7,
        target=target,
        links={},
        metrics=nothing,
        objective=Objective("throughput", "", 0.0, 0.0),
        timings=(),
        byte_energy=by,
        mini_batches=(),
        networks=networks,
        tensors=tensors,
        jobs=jobs,
        allocations=allocations,
        transfers=(*streams(jobs), *copies),
        notes=notes,
    )
    return finished(plan)


def core(name, buffer):
    return Core(name, Style.WEIGHT_STATIONARY, 16, 16, 1e9, {8: 2.0, 16: 1.0}, 32, buffer)


def shared_plan():
    """Network ``net`` (two mini-batches of ``conv``, ``fc``) and ``aux`` (``pool`` in two tiles),
    on cores ``a`` and ``b``.

    ``conv`` leaves its result ``h`` in the scratchpad for ``fc``; that of the second mini-batch
    takes the place of the first.
    """
    target = Target(
        "hand-npu",
        "two cores that share a scratchpad",
        (core("a", 4096), core("b", 4096)),
        (
            Memory("dram", 1 << 20, 2e9, 1e9, energy=100e-12),
            Memory("scratchpad", 8192, 8e9, 8e9, energy=10e-12),
        ),
        static_power=1e-3,
    )
    jobs = jobs_of("""
        net/conv@0 a 0 10 | net/x@0:dram:2048 net/w:dram:1024 | net/h@0:scratchpad:4096
        net/fc@0 b 10 20 | net/h@0:scratchpad:4096 | net/y@0:dram:512 | net/conv@0
        aux/pool#0@0 a 10 20 | aux/x:dram:1000 | aux/y#0:dram:500
        net/conv@1 a 20 30 | net/x@1:dram:2048 net/w:dram:1024 | net/h@1:scratchpad:4096 | net/fc@0
        aux/pool#1@0 b 20 30 | aux/x:dram:1000 | aux/y#1:dram:500
        net/fc@1 b 30 40 | net/h@1:scratchpad:4096 | net/y@1:dram:512 | net/conv@1
    """)
    tensors = tensors_of("""
        net/x@0 2048 input
        net/x@1 2048 input
        net/w 1024 weight
        net/h@0 4096 net/conv@0
        net/h@1 4096 net/conv@1
        net/y@0 512 net/fc@0 output
        net/y@1 512 net/fc@1 output
        aux/x 2000 input
        aux/y#0 500 aux/pool#0@0 output
        aux/y#1 500 aux/pool#1@0 output
    """)
    allocations = (
        *places("""
        net/x@0 dram 0 2048 0 10
        net/x@1 dram 2048 2048 0 30
        net/w dram 4096 1024 0 40
        net/y@0 dram 5120 512 10 40
        net/y@1 dram 5632 512 30 40
        aux/x dram 6144 2000 0 30
        aux/y#0 dram 8192 500 10 40
        aux/y#1 dram 8704 500 20 40
        net/h@0 scratchpad 0 4096 0 20
        net/h@1 scratchpad 0 4096 20 40
    """),
        *tiles(target, jobs),
        place("net/x@0", "a", 900, 300, 2, 9),
    )
    networks = (
        network("net", 2, 2000, {"conv": (("x", "w"), ("h",)), "fc": (("h",), ("y",))}, ("y",)),
        network("aux", 1, 2000, {"pool": (("x",), ("y",), (2,))}, ("y",)),
    )
    return plan_of(target, networks, tensors, jobs, allocations, notes=("fine",))


def copying_plan():
    """One core that reads and writes only ``hbm``: inputs are copied in, the output out, and ``h``
    out and in again.

    ``y`` takes the place of ``x``, and ``h`` comes back to where ``w`` was.
    """
    target = Target(
        "hand-gpu",
        "operands must be copied before use",
        (core("gpu", 0),),
        (
            Memory("host", 1 << 20, 1e9, 1e9, in_place=False, energy=150e-12),
            Memory("hbm", 4096, 1e11, 1e11, energy=50e-12),
        ),
        copy=CopyEngine((1e9, 1e9), (0.5e9, 0.5e9)),
    )
    jobs = jobs_of("""
        n/p@0 gpu 10 20 | n/x:hbm:1024 n/w:hbm:1024 | n/h:hbm:1024 | load x, load w
        n/q@0 gpu 20 30 | n/w:hbm:1024 | n/y:hbm:1024 | load w
        n/s@0 gpu 35 45 | n/h:hbm:1024 n/y:hbm:1024 | n/z:hbm:1024 | load h, n/q@0
    """)
    copies = (
        copy("load x", "n/x", "host", "hbm", 1024, 0, 5, ()),
        copy("load w", "n/w", "host", "hbm", 1024, 5, 10, ("load x",)),
        copy("store h", "n/h", "hbm", "host", 1024, 20, 25, ("n/p@0",)),
        copy("load h", "n/h", "host", "hbm", 1024, 30, 35, ("store h", "n/q@0")),
        copy("store z", "n/z", "hbm", "host", 1024, 45, 50, ("n/s@0",)),
    )
    tensors = tensors_of("""
        n/x 1024 input
        n/w 1024 weight
        n/h 1024 n/p@0
        n/y 1024 n/q@0
        n/z 1024 n/s@0 output
    """)
    allocations = places("""
        n/x host 0 1024 0 5
        n/w host 1024 1024 0 50
        n/h host 2048 1024 20 35
        n/z host 3072 1024 45 50
        n/x hbm 0 1024 0 20
        n/w hbm 1024 1024 5 30
        n/h hbm 2048 1024 10 25
        n/y hbm 0 1024 20 45
        n/h hbm 1024 1024 30 45
        n/z hbm 3072 1024 35 50
    """)
    operators = {"p": (("x", "w"), ("h",)), "q": (("w",), ("y",)), "s": (("h", "y"), ("z",))}
    networks = (network("n", 1, 3000, operators, ("z",)),)
    return plan_of(target, networks, tensors, jobs, allocations, copies)


def long_plan(length, extra_reads=0):
    """A chain of jobs on two cores in turn, each reading what the one before it wrote, in two
    halves of the scratchpad.

    ``extra_reads`` splits the read of each job's operand into that many more transfers.
    """
    plan = shared_plan()
    names = [f"net/op{i}@0" for i in range(length)]
    jobs, tensors = [], [tensor("net/in", 64, kind="input")]
    allocations = [place("net/in", "dram", 0, 64, 0, 10)]
    for i, name in enumerate(names):
        read = (f"net/t{i - 1}", "scratchpad", 4096) if i else ("net/in", "dram", 64)
        last = i == length - 1
        write = (f"net/t{i}", "dram" if last else "scratchpad", 4096)
        after = tuple(names[max(0, i - 2) : i])
        jobs.append(job(name, "ab"[i % 2], 10 * i, 10 * i + 10, [read], [write], after))
        tensors.append(tensor(f"net/t{i}", 4096, name, is_output=last))
        memory, offset, life = ("dram", 64, 10) if last else ("scratchpad", i % 2 * 4096, 20)
        allocations.append(place(f"net/t{i}", memory, offset, 4096, 10 * i, 10 * i + life))
    transfers = [
        replace(t, bytes=share)
        for t in streams(jobs)
        for share in (
            (t.bytes - extra_reads, *[1] * extra_reads) if t.source == "scratchpad" else (t.bytes,)
        )
    ]
    operators = {f"op{i}": ((f"t{i - 1}" if i else "in",), (f"t{i}",)) for i in range(length)}
    return finished(
        replace(
            plan,
            networks=(network("net", 1, 1000 * length, operators, (f"t{length - 1}",), ("in",)),),
            tensors=tuple(tensors),
            jobs=tuple(jobs),
            allocations=(*allocations, *tiles(plan.target, jobs)),
            transfers=tuple(transfers),
        )
    )

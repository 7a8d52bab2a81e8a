"""Every plan of a tiny network, timed naively: cuts x cores x orders x residence. Shares no code
with what it checks but the cost table."""

import itertools
from dataclasses import dataclass, replace

import numpy as np
from tests.support.lowered import parts_of
from tests.support.naive_events import simulated
from tests.support.networks import npu
from tests.support.onnx_builder import absent, constants, int8_graph, node

from loadmaster.core.units import FEMTOJOULES
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.workloads.lowering.grid import WHOLE
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts

NEVER = float("inf")


def tiny_network(generator, operators):
    """Convolutions, pools, rectifiers and sums of a few elements, some of them results of the
    network; in the end, now and then, matrix products that need everything."""
    nodes = []
    weights = {}
    channels, rows = int(generator.choice([2, 4, 9])), int(generator.choice([2, 3, 4]))
    last, made, shape, flat = "x", ["x"], (channels, rows), 0
    kinds = ["Conv", "Conv", "Conv", "MaxPool", "Add", "GlobalAveragePool", "Gemm"]
    for number in range(operators):
        name, kind, weight = f"t{number}", str(generator.choice(kinds)), f"w{number}"
        if flat or kind == "Gemm":
            width = flat or shape[0] * shape[1] ** 2
            if not flat:
                nodes.append(node("Flatten", [last], f"flat{number}", f"flatten{number}"))
                last = f"flat{number}"
            flat = int(generator.choice([2, 16, 40]))
            weights[weight] = width, flat
            nodes.append(node("Gemm", [last, weight], name, name))
        elif kind == "Conv":
            stride = int(generator.choice([1, 1, 2])) if shape[1] > 1 else 1
            taps = int(generator.choice([1, 3]))
            weights[weight] = channels, shape[0], taps, taps
            more = {"strides": [stride] * 2, "pads": [taps // 2] * 4}
            nodes.append(node("Conv", [last, weight], name, name, **more))
            shape = (channels, (shape[1] - 1) // stride + 1)
        elif kind == "GlobalAveragePool":
            nodes.append(node(kind, [last], name, name))
            shape = (shape[0], 1)
        elif kind == "MaxPool" or shape != (channels, rows):
            nodes.append(node("MaxPool", [last], name, name, kernel_shape=[3, 3], pads=[1] * 4))
        else:
            nodes.append(node("Add", [last, str(generator.choice(made))], name, name))
        if not flat and shape == (channels, rows):
            made.append(name)
        last = name
    kept = [name for name in made[1:] if name != last and generator.integers(3) == 0]
    return int8_graph(nodes, {"x": (1, channels, rows, rows)}, [last, *kept], weights)


def tiny_recurrent(generator):
    """A recurrence, which cannot be cut and may read its weights at every step, then a matrix
    product, which can be cut."""
    kind, gates = [("LSTM", 4), ("GRU", 3), ("RNN", 1)][int(generator.integers(3))]
    ways = int(generator.integers(1, 3))
    steps, size, hidden = (int(generator.choice(each)) for each in ([1, 2, 7], [1, 4, 64], [3, 16]))
    weights = [
        absent("w", (ways, gates * hidden, size)),
        absent("r", (ways, gates * hidden, hidden)),
        absent("m", (ways * hidden, 2)),
        *constants(shape=[steps, ways * hidden]),
    ]
    direction = "bidirectional" if ways == 2 else "forward"
    nodes = [
        node(kind, ["x", "w", "r"], "y", "layer", hidden_size=hidden, direction=direction),
        "[reshape] flat = Reshape(y, shape)",
        "[product] out = MatMul(flat, m)",
    ]
    return int8_graph(nodes, {"x": (steps, 1, size)}, ["out"], weights)


def least_energy(graph, target, cuts, rates):
    """Femtojoules of the plan with some cuts that takes least, of those whose residents fit the
    fast memory together: given what is resident, every job goes to its most frugal core."""
    workload = lower([graph], target, cuts=[cuts])
    table = job_table(workload, target)
    room = target.fast.capacity if target.fast else 0
    tensor, write = table.operand_tensor, table.operand_write
    output = np.array([t.is_output for t in workload.tensors])[tensor]
    best = NEVER
    for residence in _residences(workload, target):
        inside = {*residence.kept, *residence.fetched}
        if sum(workload.tensors[t].bytes for t in inside) > room:
            continue
        near = np.isin(tensor, list(inside))
        far = ~near | (write & output)
        per_byte = np.array(rates.buffers)[None, :] * (near.astype(int) + far)[:, None]
        per_byte = per_byte + (near * sum(rates.memories[1:]) + far * rates.memories[0])[:, None]
        joules = table.energy * FEMTOJOULES
        np.add.at(joules, table.operand_job, table.moved * per_byte)
        copied = sum(workload.tensors[t].bytes for t in residence.fetched)
        total = joules.min(axis=1).sum() + copied * sum(rates.memories)
        best = min(best, total)
    return round(best)


def tiny_machine(generator, cores=None):
    """One or two cores; a fast memory of any size, or none; links of which any may be what
    limits."""
    scratchpad = int(generator.choice([0, 64, 200, 1_000, 20_000]))
    target = npu(cores or int(generator.integers(1, 3)), scratchpad, buffer=16 * 1024)
    main = float(generator.choice([1e7, 1e8, 1e9, 1e10]))
    slow = float(generator.choice([0.0, 0.0, 1e-7]))
    target = replace(target, cores=tuple(replace(core, job_overhead=slow) for core in target.cores))
    target = target.with_memory(0, read_bandwidth=main, write_bandwidth=main)
    if target.fast is not None:
        near = main * float(generator.choice([1.0, 4.0, 16.0]))
        # Aligned to single bytes: what fits together has addresses, or nearly always.
        target = target.with_memory(1, read_bandwidth=near, write_bandwidth=near, alignment=1)
    return target


def every_cut(graph, most, *, sums=False):
    """Operators whole or in two parts along any one of their dimensions, or of what they sum over,
    up to so many pieces in all."""
    options = []
    for form in parts_of(graph, sums=sums).forms:
        options.append([WHOLE])
        if form is not None:
            options[-1] += [form.grid({axis: 2}) for axis in form.axes]
            options[-1] += [form.chains({}, 2)] * (form.summed > 0)
    for cuts in itertools.product(*options):
        if sum(cut.tiles for cut in cuts) <= most:
            yield Cuts(cuts)


@dataclass(frozen=True)
class _Residence:
    """What is read from the fast memory: activations that are kept there, and weights and inputs
    that are fetched."""

    kept: frozenset[int]
    fetched: tuple[int, ...]


def best_makespan(graph, target, cuts=None, *, below=NEVER, mini_batches=1):
    """Picoseconds of the fastest plan with some cuts, if it is below a limit."""
    workload = lower([graph], target, mini_batches=mini_batches, cuts=[cuts])
    table = job_table(workload, target)
    best = below
    orders = list(_orders([job.after for job in workload.jobs]))
    for residence in _residences(workload, target):
        uses = _Uses(workload, table, target, residence)
        if max(uses.least) >= best:
            continue
        for order, core in _schedules(workload, uses.duration, target, orders, best):
            best = min(best, _makespan(workload, uses, order, core, best))
    return best


def _residences(workload, target):
    given = [t for t, tensor in enumerate(workload.tensors) if tensor.producer < 0]
    if target.fast is None:
        yield _Residence(frozenset(), ())
        return
    read = {operand.tensor for job in workload.jobs for operand in job.reads}
    fits = [
        t
        for t, tensor in enumerate(workload.tensors)
        if tensor.producer >= 0 and tensor.name in read and tensor.bytes <= target.fast.capacity
    ]
    # In the order of first use, and none, one or all: other orders of fetching seldom matter in
    # what is so small.
    sets = [(), tuple(given), *((t,) for t in given)] if target.copy else [()]
    for size in range(len(fits), -1, -1):
        for kept in itertools.combinations(fits, size):
            for fetched in dict.fromkeys(sets):
                yield _Residence(frozenset(kept), fetched)


class _Uses:
    """Duration and link demands of every job on every core, and of every fetch, for one
    residence."""

    def __init__(self, workload, table, target, residence):
        self.target, self.residence = target, residence
        jobs, cores = table.compute.shape
        main, fast = np.zeros((jobs, cores)), np.zeros((jobs, cores))
        inside = residence.kept | set(residence.fetched)
        rows = zip(
            table.operand_job.tolist(),
            table.operand_tensor.tolist(),
            table.operand_write.tolist(),
            table.moved,
            strict=True,
        )
        for job, tensor, write, moved in rows:
            near = tensor in inside
            if not write:
                link, memory = (fast, target.fast) if near else (main, target.main)
                link[job] += moved / memory.read_bandwidth
                continue
            if near:
                fast[job] += moved / target.fast.write_bandwidth
            if not near or workload.tensors[tensor].is_output:
                main[job] += moved / target.main.write_bandwidth
        self.duration = np.maximum(
            np.ceil(np.maximum(table.compute, np.maximum(main, fast)) * 1e12 - 1e-6), 1.0
        ).tolist()
        self.main, self.fast = (main * 1e12).tolist(), (fast * 1e12).tolist()
        self.copies = []
        for tensor in residence.fetched:
            size = workload.tensors[tensor].bytes * 1e12
            links = target.main.read_bandwidth, target.fast.write_bandwidth
            whole = np.ceil(size / min(target.copy.overlapping[1], *links) - 1e-6)
            self.copies.append((max(1.0, whole), *(size / link for link in links)))
        self.least = [
            sum(map(min, times)) + sum(copy[link] for copy in self.copies)
            for link, times in ((1, self.main), (2, self.fast))
        ]
        index = workload.tensor_index
        self.reads = [
            sorted({index[o.tensor] for o in job.reads} & inside) for job in workload.jobs
        ]
        self.bytes = [tensor.bytes for tensor in workload.tensors]


def _schedules(workload, duration, target, orders, best):
    """Orders that keep dependencies, and cores; of cores that are alike, the first come first."""
    count, cores = len(workload.jobs), len(target.cores)
    alike = cores > 1 and target.cores[0] == replace(target.cores[1], name=target.cores[0].name)
    seen = set()
    for core in itertools.product(range(cores), repeat=count):
        if alike and core[0]:
            continue
        if (
            max(sum(duration[j][c] for j in range(count) if core[j] == c) for c in range(cores))
            >= best
        ):
            continue
        for order in orders:
            key = (core, tuple(tuple(j for j in order if core[j] == c) for c in range(cores)))
            if key not in seen:
                seen.add(key)
                yield order, core


def _orders(after):
    def extend(order):
        if len(order) == len(after):
            yield order
        for job, befores in enumerate(after):
            if job not in order and all(before in order for before in befores):
                yield from extend([*order, job])

    return extend([])


def _makespan(workload, uses, order, core, below):
    """Picoseconds of one plan; never, if it overfills the fast memory. Fetches come one after
    another, from the beginning."""
    count = len(workload.jobs)
    fetch_of = {tensor: count + number for number, tensor in enumerate(uses.residence.fetched)}
    edges = [(before, j) for j, job in enumerate(workload.jobs) for before in job.after]
    edges += [(fetch_of[t], j) for j in order for t in uses.reads[j] if t in fetch_of]
    tasks = [(uses.duration[j][c], uses.main[j][c], uses.fast[j][c]) for j, c in enumerate(core)]
    tasks += uses.copies
    start, end = simulated(
        [seconds for seconds, *_ in tasks],
        [[link / seconds for link in links] for seconds, *links in tasks],
        [*core, *[len(uses.target.cores)] * len(uses.copies)],
        [*order, *range(count, len(tasks))],
        edges,
        below=below,
        number=float,
    )
    if len(end) < len(tasks) or not _fits(workload, uses, start, end, fetch_of):
        return NEVER
    return max(end.values())


def _fits(workload, uses, start, end, fetch_of):
    if uses.target.fast is None:
        return True
    lives = []
    for t in (*uses.residence.kept, *fetch_of):
        begin = start[fetch_of.get(t, workload.tensors[t].producer)]
        users = [end[j] for j in range(len(workload.jobs)) if t in uses.reads[j]]
        lives.append((begin, max(users), uses.bytes[t]))
    return all(
        sum(size for a, b, size in lives if a <= begin < b) <= uses.target.fast.capacity
        for begin, _, _ in lives
    )

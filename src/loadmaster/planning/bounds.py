"""Lower bounds for all plans of given jobs: makespan, latencies and energy."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from loadmaster.core.arrays import Floats, Ints, Mask, column_of, distinct_rows, grouped_sums
from loadmaster.core.linear_program import LinearProgram
from loadmaster.core.task_graph import upward_rank
from loadmaster.core.units import FEMTOJOULES, PICOSECONDS
from loadmaster.cost.analytical.energy import EnergyRates
from loadmaster.cost.base import JobTable, link_seconds, whole_picoseconds
from loadmaster.planning.decisions import Bounds, MakespanBound
from loadmaster.planning.goal import Goal
from loadmaster.targets.hardware import Memory, Target
from loadmaster.workloads.job import Job, TensorInstance, Workload, operand_bytes

_WEIGHT_BITS = 30
"""Bits of the integers to which multipliers are rounded."""
_FINE = 64
"""Needs are counted in 1/64 of a picosecond, so that rounding each down loses little in the sum."""
_CUTS = 60
"""Most cutting planes of the linear program."""
_MOST_ENUMERATED = 8
"""Most items of which all subsets are enumerated."""


def makespan_bound(
    jobs: Sequence[Job], tensors: Sequence[TensorInstance], table: JobTable, target: Target
) -> MakespanBound:
    """The largest of: the critical path, a linear program over work and traffic, and the traffic of
    jobs whose activations exceed the fast memory.

    The program divides jobs freely among cores and lets every access choose its memory; every core
    and link is available for the makespan. Weights and inputs cross the main link once (only the
    bytes that jobs read), repeated reads use either link, and outputs cross the main link once. An
    activation larger than the fast memory crosses the main link at every use. The dual is solved,
    with one multiplier per resource. Any multipliers give a valid bound, so the solver is not
    trusted: the bound is evaluated with its multipliers in integers. O(jobs x cores) time and
    memory.
    """
    needs = _needs(jobs, tensors, table, target)
    path = max(
        upward_rank(
            [job.after for job in jobs], [int(least) // _FINE for least in needs.core.min(axis=1)]
        ),
        default=0,
    )
    crowded, crowded_bytes = _excess_traffic(tensors, table, target)
    least = needs.fixed + int(needs.forced.min(axis=1).sum()) + crowded
    of_crowded = "as the fast memory has room for only so much of a job"
    terms = (
        ("critical path", path),
        (traffic_name(target), evaluate(needs, main_only(needs))),
        ("work and traffic", evaluate(needs, needs.multipliers)),
        (f"traffic of {target.main.name}, {of_crowded}", -(-least // _FINE)),
    )
    return MakespanBound(needs.main_bytes + crowded_bytes, terms)


def divisible_bound(needs: Needs, traffic: str) -> MakespanBound:
    """The linear program for jobs that may be cut, from the needs of :func:`divisible_needs`.

    There is no critical path, and no tensor is too large for the fast memory: see
    :mod:`loadmaster.planning.cutting.network_bounds`. O(jobs x cores) time and memory.
    """
    # Of equal bounds the first, simplest argument is named.
    terms = (
        (traffic, evaluate(needs, main_only(needs))),
        ("arithmetic over all cores", evaluate(needs, needs.without_links.multipliers)),
        ("work and traffic, for all cuts", evaluate(needs, needs.multipliers)),
    )
    return MakespanBound(needs.main_bytes, terms)


def _facts(tensors: Sequence[TensorInstance]) -> tuple[Mask, Mask, Ints]:
    """Which tensors are activations, which are outputs, and their bytes."""
    return (
        column_of(tensors, "kind", np.str_) == "activation",
        column_of(tensors, "is_output", np.bool_),
        column_of(tensors, "bytes", np.int64),
    )


def divisible_needs(
    tensors: Sequence[TensorInstance], table: JobTable, target: Target, *, every_read: bool = False
) -> Needs:
    """Needs of jobs that may be cut; the table holds the least costs of all pieces of a job
    together.

    With ``every_read``, all reads of weights and inputs count for the links, not only the repeated
    ones.
    """
    t, write = table.operand_tensor, table.operand_write
    activation, output, sizes = _facts(tensors)
    inbound = inbound_bytes(tensors, table)
    again = np.where(activation, 0.0, 1.0 if every_read else _read_again(table, inbound))
    share = np.where(activation[t], ~(write & output[t]), again[t] * ~write)
    link = np.stack([_link_time(table, memory, share) for memory in target.memories], axis=1)
    outbound = int(sizes[activation & output].sum())
    return Needs(
        _fine(table.compute),
        link,
        np.zeros_like(link[:, 0, :, 0]),
        _compulsory_time(target, int(inbound.sum()), outbound),
        int(inbound.sum()) + outbound,
    )


def _compulsory_time(target: Target, inbound: int, outbound: int) -> int:
    """Time of the main link for the bytes that must come in and go out. Where operands must be
    copied, it is used by copies alone, which run one at a time and at most as fast as the copy
    engine while jobs run."""
    into, out = target.main.read_bandwidth, target.main.write_bandwidth
    if not target.main.in_place and target.copy is not None:
        to_main, to_fast = target.copy.overlapping
        into = min(into, to_fast, target.near.write_bandwidth)
        out = min(out, to_main, target.near.read_bandwidth)
    return int(_fine(np.array(inbound / into + outbound / out)))


def traffic_name(target: Target) -> str:
    """Name the bound of the main link's time."""
    what = "traffic of" if target.main.in_place else "copies from and to"
    return f"{what} {target.main.name}"


def _read_again(table: JobTable, inbound: Ints) -> Floats:
    """Share of the reads of every weight and input, shape (tensors,), that may use either link.

    Of the ``R`` bytes that jobs read of a tensor, ``I`` must come in over the main link. If ``S``
    bytes are streamed over the main link, the others are read over the fast link after at least ``I
    - S`` were copied over the main one. So ``I`` bytes cross the main link, and ``R - I`` more
    cross either link.
    """
    read = _read(table, table.moved.min(axis=1), len(inbound))
    again = np.maximum(0.0, 1.0 - inbound / np.maximum(read, 1)) * (1 - 1e-12)
    return np.where(read > 0, again, 0.0)


def inbound_bytes(
    tensors: Sequence[TensorInstance], table: JobTable, rows: Mask | None = None
) -> Ints:
    """Bytes of every weight and input that the operands in ``rows`` (by default all) must bring in
    over the main link, shape (tensors,); 0 for activations."""
    least = table.moved.min(axis=1) if rows is None else table.moved.min(axis=1) * rows
    activation, _, sizes = _facts(tensors)
    return np.minimum(np.where(activation, 0, sizes), _read(table, least, len(tensors)))


def _read(table: JobTable, bytes: Ints, tensors: int) -> Ints:
    """Sum of the ``bytes`` of operands that are read, by tensor."""
    reads, read = ~table.operand_write, np.zeros(tensors, dtype=np.int64)
    np.add.at(read, table.operand_tensor[reads], bytes[reads])
    return read


@dataclass(frozen=True)
class Needs:
    """Least needs of jobs for each resource, in 1/64 of a picosecond.

    ``core[j, c]``: time of job ``j`` on core ``c``. ``link[j, l, c, d]``: time of link ``l`` for
    the accesses of job ``j`` that may use any link, if all use this one, by direction ``d`` (read,
    write). ``forced[j, c]``: time of the main link for accesses that no other link can serve.
    ``fixed``: time of the main link in every plan. All bytes of one direction have the same ratio
    of link times, so the cheapest link of a job and direction is the cheapest for every access.
    """

    core: Ints
    link: Ints
    forced: Ints
    fixed: int
    main_bytes: int

    @cached_property
    def distinct(self) -> tuple[Needs, Ints]:
        """The distinct rows and how often each occurs, as mini-batches repeat them. O(rows log rows
        x columns)."""
        cores, links = self.core.shape[1], self.link.reshape(len(self.link), -1)
        rows, _, count = distinct_rows(np.concatenate([self.core, self.forced, links], axis=1))
        core, forced, links = np.split(rows, [cores, 2 * cores], axis=1)
        link = links.reshape(-1, *self.link.shape[1:])
        return replace(self, core=core, forced=forced, link=link), count

    @cached_property
    def multipliers(self) -> list[int]:
        """The multipliers of the best bound found."""
        return best_multipliers(self)

    @cached_property
    def without_links(self) -> Needs:
        """The needs on a machine with infinitely fast links."""
        link, forced = np.zeros_like(self.link), np.zeros_like(self.forced)
        return replace(self, link=link, forced=forced, fixed=0)

    def in_two(self, share: Floats, extra: Floats) -> Needs:
        """Split every job into two rows: a ``share``, shape (jobs,), and the rest, which takes
        ``extra`` more seconds on each core; all first rows come before all second rows."""
        shares = np.concatenate([share, 1 - share])
        core = _part(np.concatenate([self.core, self.core]), shares[:, None])
        core[len(share) :] += _fine(extra)
        link = _part(np.concatenate([self.link, self.link]), shares[:, None, None, None])
        forced = np.concatenate([self.forced, np.zeros_like(self.forced)])
        return replace(self, core=core, link=link, forced=forced)

    def means(self, weights: Sequence[int]) -> Floats:
        """Least need of each job for the weighted mean of all resources, in picoseconds, without
        ``fixed``."""
        cores = self.core.shape[1]
        share = np.array(weights, dtype=np.float64) / max(1, sum(weights))
        traffic = (self.link * share[cores:, None, None]).min(axis=1)
        cost = self.core * share[:cores] + self.forced * share[cores] + traffic.sum(axis=2)
        return np.asarray(cost.min(axis=1) / _FINE)


def _needs(
    jobs: Sequence[Job], tensors: Sequence[TensorInstance], table: JobTable, target: Target
) -> Needs:
    """Return what any plan needs of cores and links at least, in integers, for the bound of the
    makespan."""
    t, write = table.operand_tensor, table.operand_write
    activation, output, sizes = _facts(tensors)
    # The write of an output always goes to main memory: it is part of the fixed traffic.
    accesses = activation[t] & ~(write & output[t])
    free = accesses & ((sizes <= target.room) | (not target.main.in_place))[t]
    # A job with strides may move fewer bytes than its operands hold. On a machine that copies
    # operands the whole tensor comes in, else only the bytes that jobs read.
    least = np.minimum(operand_bytes(jobs), table.moved.min(axis=1))
    given, read = np.where(activation, 0, sizes), _read(table, least, len(tensors))
    compulsory = np.minimum(given, read) if target.main.in_place else given * (read > 0)
    share = free.astype(np.float64)
    if target.main.in_place:
        share += np.where(activation, 0.0, _read_again(table, compulsory))[t] * ~write
    link = np.stack([_link_time(table, memory, share) for memory in target.memories], axis=1)
    forced = _link_time(table, target.main, (accesses & ~free).astype(np.float64)).sum(axis=2)
    inbound = int(compulsory.sum())
    outbound = int(sizes[activation & output].sum())
    fixed = _compulsory_time(target, inbound, outbound)
    # A job lasts a whole number of picoseconds, so rounding up is sound here.
    core = (
        whole_picoseconds(np.maximum(table.compute, _moving_time(table, target) * (1 - 1e-12)))
        * _FINE
    )
    inside = int(table.moved[accesses & ~free].min(axis=1).sum())
    return Needs(core, link, forced, fixed, inbound + outbound + inside)


def _moving_time(table: JobTable, target: Target) -> Floats:
    """Least seconds of every job on every core to move its operands, as if each could be divided
    between the memories. O(operands x cores)."""
    moved = grouped_sums(table.operand_job, table.moved, len(table.compute))
    return moved / sum(max(m.read_bandwidth, m.write_bandwidth) for m in target.memories)


def _excess_traffic(
    tensors: Sequence[TensorInstance], table: JobTable, target: Target
) -> tuple[int, int]:
    """Time of the main link, and bytes, for activations of jobs that do not all fit into the fast
    memory at once.

    An activation that a job uses in the fast memory is there as a whole, so some activations have
    to use the main link: the cheapest set that leaves enough room for the others. Accesses counted
    as fixed or forced in :class:`Needs` are excluded.
    """
    if not target.room or not target.main.in_place:
        return 0, 0
    # By job and tensor, seconds and bytes over the main link.
    costs: dict[int, dict[int, Floats]] = defaultdict(lambda: defaultdict(partial(np.zeros, 2)))
    columns = (table.operand_job, table.operand_tensor, table.operand_write)
    least = table.moved.min(axis=1).tolist()
    for job, t, write, moved in zip(*(each.tolist() for each in columns), least, strict=True):
        tensor = tensors[t]
        if (
            tensor.kind == "activation"
            and tensor.bytes <= target.room
            and not (write and tensor.is_output)
        ):
            seconds = target.main.link_seconds(0 if write else moved, moved if write else 0)
            costs[job][t] += seconds, moved
    time = size_moved = 0
    for own in costs.values():
        sizes = [tensors[t].bytes for t in own]
        excess = sum(sizes) - target.room
        if excess > 0:
            ways = zip(*own.values(), strict=True)
            seconds, moved = (_cheapest_cover(excess, sizes, way) for way in ways)
            time += int(_fine(np.array(seconds)))
            size_moved += int(moved)
    return time, size_moved


def _cheapest_cover(excess: int, sizes: Sequence[int], costs: Iterable[float]) -> float:
    """Least cost of a subset of items with a total size of at least ``excess``; for many items the
    fractional relaxation."""
    items = list(zip(sizes, costs, strict=True))
    if len(items) <= _MOST_ENUMERATED:
        chosen = itertools.chain.from_iterable(
            itertools.combinations(items, n) for n in range(1, len(items) + 1)
        )
        return min(
            sum(cost for _, cost in part)
            for part in chosen
            if sum(size for size, _ in part) >= excess
        )
    total = 0.0
    for size, cost in sorted(items, key=lambda item: item[1] / max(1, item[0])):
        share = min(1.0, excess / max(1, size))
        total += cost * share
        excess -= size
        if excess <= 0:
            break
    return total * (1 - 1e-12)


def _link_time(table: JobTable, memory: Memory, share: Floats) -> Ints:
    """Time of a memory's link for a share of every operand, by job, core and direction."""
    seconds = np.zeros((*table.compute.shape, 2))
    each = link_seconds(table, memory) * share[:, None]
    for direction in (0, 1):
        chosen = table.operand_write == bool(direction)
        np.add.at(seconds[:, :, direction], table.operand_job[chosen], each[chosen])
    return _fine(seconds)


def _part(needs: Ints, share: Floats) -> Ints:
    """Shares of needs, rounded down with a margin for floating point; exact for a share of 1."""
    return np.where(share == 1, needs, np.floor(needs * share * (1 - 1e-14)).astype(np.int64))


def _fine(seconds: Floats) -> Ints:
    """Convert seconds to the unit of needs, rounded down with a margin for floating point."""
    return np.floor(seconds * (PICOSECONDS * _FINE) * (1 - 1e-14)).astype(np.int64)


def main_only(needs: Needs) -> list[int]:
    """Multipliers that are 0 but for the main link."""
    _, links, cores, _ = needs.link.shape
    return [0] * cores + [1] + [0] * (links - 1)


def evaluate(needs: Needs, weights: list[int]) -> int:
    """Evaluate the bound for integer multipliers w: every resource has the makespan T, so sum(w) T
    >= sum over jobs of the least weighted use."""
    needs, count = needs.distinct
    cores, prices = needs.core.shape[1], np.array(weights, dtype=object)
    cost = needs.core.astype(object) * prices[:cores]
    cheapest = (needs.link.astype(object) * prices[cores:, None, None]).min(axis=1)
    forced = needs.forced.astype(object) * weights[cores]
    least = (cost + forced + cheapest.sum(axis=2)).min(axis=1)
    total = int((least * count).sum()) + weights[cores] * needs.fixed
    # A makespan is a whole number of picoseconds: round up.
    return -(-total // max(1, sum(weights) * _FINE))


def best_multipliers(needs: Needs) -> list[int]:
    """Maximise the bound over multipliers by cutting planes (Kelley, 1960): each assignment of jobs
    to resources is a cut.

    Cores with equal columns share a multiplier, so that the program has a handful of variables
    however many jobs there are.
    """
    needs, count = needs.distinct
    cores = needs.core.shape[1]
    kinds = [
        int(np.flatnonzero((needs.core == needs.core[:, [c]]).all(axis=0))[0]) for c in range(cores)
    ]
    columns = sorted(set(kinds))
    multiplicity = np.array(
        [kinds.count(column) for column in columns] + [1] * needs.link.shape[1], dtype=np.float64
    )
    variables = len(multiplicity)
    program = LinearProgram("the bound of a plan")
    shares = program.columns(np.zeros(variables))
    level = program.columns(-1.0, -np.inf, np.inf)
    program.entries(program.rows(1.0, 1.0), shares, multiplicity)
    weights = np.full(variables, 1.0 / multiplicity.sum())
    best, best_value = weights, -1.0
    scale = max(1.0, float((needs.core * count[:, None]).sum(dtype=np.float64)), float(needs.fixed))
    for _ in range(_CUTS):
        use = _least_use(needs, count, columns, weights)
        value = float(weights @ use)
        if value > best_value:
            best, best_value = weights, value
        program.entries(program.rows(-np.inf, 0.0, (level, 1.0)), shares, -use / scale)
        solution = program.solve().values
        weights = np.clip(solution[:variables], 0.0, 1.0)
        if solution[variables] * scale <= best_value * (1 + 1e-6):
            break
    integers = np.rint(best * 2**_WEIGHT_BITS).astype(np.int64)
    per_core = [int(integers[columns.index(kind)]) for kind in kinds]
    return [*per_core, *(int(w) for w in integers[len(columns) :])]


def _least_use(needs: Needs, count: Ints, columns: list[int], weights: Floats) -> Floats:
    """Use of every resource if each job takes its cheapest core and each access its cheapest
    link."""
    core = needs.core[:, columns].astype(np.float64)
    links = needs.link[:, :, columns].astype(np.float64)
    prices = weights[len(columns) :, None]
    cheapest = (links * prices[..., None]).argmin(axis=1, keepdims=True)
    used = cheapest == np.arange(len(prices))[:, None, None]
    traffic = np.where(used, links, 0.0).sum(axis=3)
    traffic[:, 0] += needs.forced[:, columns]
    cost = core * weights[: len(columns)] + (traffic * prices).sum(axis=1)
    choice = cost.argmin(axis=1)
    jobs = np.arange(len(core))
    use = np.zeros(len(weights))
    np.add.at(use, choice, count * core[jobs, choice])
    use[len(columns) :] = [(count * link).sum() for link in traffic[jobs, :, choice].T]
    use[len(columns)] += needs.fixed
    return use


BoundOf = Callable[[Sequence[Job], Sequence[TensorInstance], JobTable, Target], MakespanBound]
"""A function that bounds the makespan of jobs."""


def goal_bounds(
    workload: Workload,
    table: JobTable,
    target: Target,
    rates: EnergyRates,
    goal: Goal,
    bound_of: BoundOf = makespan_bound,
) -> Bounds:
    """Bounds of makespan, energy and latencies.

    The bound of one network's jobs alone holds beside other networks too. A network's longest
    latency is at least the bound of its first mini-batch, and the bound of all its mini-batches
    less the last release. The makespan is at least the last release plus the bound of the last
    mini-batch, whose weights may already be in the fast memory.
    """
    part = partial(_part_of_goal, workload, table, target, bound_of=bound_of)
    whole = bound_of(workload.jobs, workload.tensors, table, target)
    latency = {}
    for info in workload.networks:
        mine = goal.mini_batches_of(info.name)
        first = int(goal.first[mine[0]])
        last = int(goal.first[mine[-1] + 1])
        alone = (whole if len(workload.networks) == 1 else part(first, last)).picoseconds
        if released := int(goal.release[mine[-1]]):
            alone = max(alone - released, part(first, int(goal.first[mine[1]])).picoseconds)
            rest = part(int(goal.first[mine[-1]]), last, weights_are_there=True)
            limit = f"release of the last mini-batch of {info.name}"
            whole = whole.beside(limit, released + rest.picoseconds)
        latency[info.name] = alone
    in_parts = bound_of is not makespan_bound
    return Bounds(
        whole,
        energy_bound(workload.jobs, workload.tensors, table, target, rates, in_parts=in_parts)
        + rates.static(whole.picoseconds),
        latency,
    )


def energy_bound(
    jobs: Sequence[Job],
    tensors: Sequence[TensorInstance],
    table: JobTable,
    target: Target,
    rates: EnergyRates,
    *,
    in_parts: bool = False,
) -> int:
    """Lower bound of the energy of all jobs in femtojoules, in integers: each job on its core of
    least energy, every operand in the memory of least energy.

    Weights and inputs start in main memory: they are streamed from there at every read, or copied
    once. Outputs, and tensors larger than the fast memory, use main memory. With ``in_parts``, jobs
    and tensors may be cut: each part is streamed or copied by itself, however large the tensor is.
    """
    room = target.room
    _, output, size = _facts(tensors)
    given = column_of(tensors, "producer", np.int64) < 0
    least = min(rates.memories) if room else rates.memories[0]
    extra = rates.memories[0] - least
    t, write = table.operand_tensor, table.operand_write
    once = operand_bytes(jobs)
    to_main = (write & output[t]) | (~given & (size > room) & (not in_parts))[t]
    if not target.main.in_place:
        # Operands are copied in and results out: nothing is streamed.
        to_main, least, extra = np.zeros_like(to_main), rates.memories[1], 0
    per_byte = (
        np.array(rates.buffers, dtype=object)[None, :]
        + least
        + to_main.astype(object)[:, None] * extra
    )
    joules_of = np.array(
        [[round(joules * FEMTOJOULES) for joules in row] for row in table.energy.tolist()],
        dtype=object,
    )
    np.add.at(joules_of, table.operand_job, table.moved.astype(object) * per_byte)
    total = int(joules_of.min(axis=1).sum()) if len(jobs) else 0
    moved = table.moved.min(axis=1) if len(jobs) else np.zeros(0, dtype=np.int64)
    reads = np.flatnonzero(~write & (moved > 0))
    of, readers = t[reads], np.bincount(t[reads], minlength=len(tensors))
    streamed = moved[reads].astype(object) * extra
    copied = sum(rates.memories)
    if in_parts:
        # A byte is streamed to each reader, or copied once for all readers, who share its cost.
        fetched = np.minimum(once, moved)[reads].astype(object) * copied // readers[of]
        fits, counts = np.array(room > 0), given[of]
    else:
        by_read, streamed = streamed, np.zeros(len(tensors), dtype=object)
        np.add.at(streamed, of, by_read)
        fetched = size.astype(object) * copied
        fits, counts = size <= room, given & (readers > 0)
    if target.main.in_place:
        fetched = np.where(fits, np.minimum(streamed, fetched), streamed)
    total += int(fetched[counts].sum())
    if not target.main.in_place:
        total += int(size[output & ~given].sum()) * copied
    return total


def _part_of_goal(
    workload: Workload,
    table: JobTable,
    target: Target,
    first: int,
    last: int,
    bound_of: BoundOf,
    weights_are_there: bool = False,
) -> MakespanBound:
    """The bound of jobs ``first`` up to ``last`` alone, which depend on no earlier job."""
    rows = slice(*np.searchsorted(table.operand_job, [first, last]).tolist())
    touched, tensor = np.unique(table.operand_tensor[rows], return_inverse=True)
    part = JobTable(
        table.compute[first:last],
        table.operand_job[rows] - first,
        tensor.astype(np.int64),
        table.operand_write[rows],
        table.moved[rows],
        table.tile[rows],
        table.energy[first:last],
    )
    jobs = [
        replace(job, after=tuple(before - first for before in job.after))
        for job in workload.jobs[first:last]
    ]
    tensors = [workload.tensors[number] for number in touched.tolist()]
    if weights_are_there:
        tensors = [
            replace(tensor, bytes=0) if tensor.kind == "weight" else tensor for tensor in tensors
        ]
    return bound_of(jobs, tensors, part, target)

"""Checks of the data flow: jobs read and write what their operators do, so that no wait can vanish
together with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, chain

from loadmaster.planning.plan_records import PlannedJob, PlannedOperand
from loadmaster.planning.verify.facts import Facts, quoted

Key = tuple[str, str, int]
"""Network, storage, mini-batch."""


def dataflow(facts: Facts) -> Iterator[str]:
    """Every job reads all that its operators need, writes all that others need of them, and touches
    nothing else.

    Inputs and outputs are there, and nothing is written in vain. What a job needs are the storages
    that its operators read and do not write. O(accesses of operators x jobs that cover them).
    """
    flows = _flows(facts)
    instances = _Instances(facts)
    yield from _origins(facts, flows)
    yield from _ends(facts, flows, instances)
    yield from _vain(facts, flows)
    for job in facts.plan.jobs:
        part = flows[job.network].part(job.operators)
        # Almost always a job that does all of its operators has just the operands that they have.
        if not _is_plain(facts, job, part, instances):
            yield from _job(facts, job, part, instances)
    yield from instances.shares(facts)


@dataclass(frozen=True)
class _Part:
    """Storages that operators which run as one job read from outside, write, and have to write
    because others use them."""

    needed: Set[str]
    made: Set[str]
    wanted: Set[str]


@dataclass(frozen=True)
class _Flow:
    """A network's operators by the storages that they read and write."""

    reads: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    writes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    readers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    inputs: set[str] = field(default_factory=set)
    outputs: set[str] = field(default_factory=set)
    parts: dict[tuple[str, ...], _Part] = field(default_factory=dict)

    @cached_property
    def written(self) -> frozenset[str]:
        """Storages that some operator writes."""
        return frozenset().union(*self.writes.values())

    def part(self, operators: tuple[str, ...]) -> _Part:
        """What a job of these operators has to do; the same for all mini-batches and tiles."""
        if operators not in self.parts:
            made = set().union(*(self.writes.get(name, ()) for name in operators))
            read = set().union(*(self.reads.get(name, ()) for name in operators))
            wanted = {
                name
                for name in made
                if name in self.outputs or not self.readers.get(name, set()) <= set(operators)
            }
            self.parts[operators] = _Part(read - made, made, wanted)
        return self.parts[operators]


class _Instances:
    """Tensors by storage, in the plan's order, and what the tiles of operators read of storages
    that lie in parts."""

    def __init__(self, facts: Facts) -> None:
        self._own: dict[Key, list[str]] = defaultdict(list)
        self._shared: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._read: dict[tuple[tuple[str, ...], Key], list[tuple[PlannedJob, set[str]]]] = (
            defaultdict(list)
        )
        for tensor in (each for each in facts.plan.tensors if not each.summed):
            if tensor.kind == "weight":
                self._shared[tensor.network, tensor.storage].append(tensor.name)
            else:
                self._own[tensor.network, tensor.storage, tensor.mini_batch].append(tensor.name)

    def of(self, key: Key) -> list[str]:
        """Names of all that a storage consists of for a mini-batch."""
        return self._own.get(key, []) + self._shared.get(key[:2], [])

    def read(self, job: PlannedJob, key: Key, names: set[str]) -> None:
        """Record what a tile has read."""
        self._read[job.operators, key].append((job, names))

    def shares(self, facts: Facts) -> Iterator[str]:
        """Tiles that read less than they need of a storage in parts: each reads all of it, or each
        the parts that lie where it writes.

        Tiles cut what they write, and a storage along the same channels, in the order of their
        numbers. O(tiles x parts).
        """
        for (_, key), readers in self._read.items():
            parts = self.of(key)
            if len(parts) < 2 or all(len(names) == len(parts) for _, names in readers):
                continue
            bounds = _bounds([facts.tensors[name].bytes for name in parts])
            readers.sort(key=lambda reader: reader[0].tile)
            tiles = _bounds(
                [
                    sum(facts.tensors[name].bytes for name in {x.tensor for x in job.writes})
                    for job, _ in readers
                ]
            )
            own = [
                {
                    name
                    for name, part in zip(parts, bounds, strict=True)
                    if _meet(tile, tiles, part, bounds)
                }
                for tile in tiles
            ]
            if all(names == share for (_, names), share in zip(readers, own, strict=True)):
                continue
            for job, names in readers:
                for name in sorted(set(parts) - names):
                    yield (
                        f"job {quoted(job.name)} does not read {quoted(name)}, a part of what its"
                        " operators need"
                    )


Range = tuple[int, int]


def _bounds(sizes: list[int]) -> list[Range]:
    """First byte of each of several ranges that follow one another, and the byte after its last."""
    ends = list(accumulate(sizes))
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _meet(tile: Range, tiles: list[Range], part: Range, parts: list[Range]) -> bool:
    """Whether two ranges have anything in common when what they are ranges of is scaled to one
    length."""
    whole, total = tiles[-1][1], parts[-1][1]
    return tile[0] * total < part[1] * whole and part[0] * whole < tile[1] * total


def _flows(facts: Facts) -> dict[str, _Flow]:
    flows = {}
    for network in facts.plan.networks:
        flow = flows[network.name] = _Flow(inputs=set(network.inputs), outputs=set(network.outputs))
        for operator in network.operators:
            flow.reads[operator.name].update(operator.reads)
            flow.writes[operator.name].update(operator.writes)
            for storage in operator.reads:
                flow.readers[storage].add(operator.name)
    return flows


def _origins(facts: Facts, flows: dict[str, _Flow]) -> Iterator[str]:
    """Only weights and inputs exist from the start, and no operator writes them; outputs are called
    so."""
    for tensor in facts.plan.tensors:
        flow = flows[tensor.network]
        given = tensor.kind in ("weight", "input")
        if given and tensor.producer:
            yield (
                f"tensor {quoted(tensor.name)} is said to be of kind {tensor.kind}, but job"
                f" {quoted(tensor.producer)} produces it"
            )
        elif not given and not tensor.producer:
            yield (
                f"tensor {quoted(tensor.name)} is neither a weight nor an input, and no job"
                " produces it"
            )
        elif given and tensor.storage in flow.written:
            yield (
                f"tensor {quoted(tensor.name)} is said to be there from the start, but an operator"
                " writes it"
            )
        if given and (tensor.kind == "input") != (tensor.storage in flow.inputs):
            yield (
                f"tensor {quoted(tensor.name)} is said to be"
                f" {'an' if tensor.kind == 'input' else 'no'} input, its network says otherwise"
            )
        if tensor.is_output != (tensor.storage in flow.outputs and not tensor.summed):
            yield (
                f"tensor {quoted(tensor.name)} is said to be {'an' if tensor.is_output else 'no'}"
                " output, its network says otherwise"
            )


def _ends(facts: Facts, flows: dict[str, _Flow], instances: _Instances) -> Iterator[str]:
    """Every input and output exists in every mini-batch; one line for the first that lacks it."""
    for network in facts.plan.networks:
        # There cannot be more complete mini-batches than tensors, so that one of so many is missing
        # if any is.
        batches = range(min(network.mini_batches, len(facts.plan.tensors) + 1))
        for what, storages in (
            ("input", flows[network.name].inputs),
            ("output", flows[network.name].outputs),
        ):
            for storage in sorted(storages):
                missing = next(
                    (
                        batch
                        for batch in batches
                        if not instances.of((network.name, storage, batch))
                    ),
                    None,
                )
                if missing is not None:
                    yield (
                        f"network {quoted(network.name)}, mini-batch {missing}: no tensor is the"
                        f" {what} {quoted(storage)}"
                    )


def _vain(facts: Facts, flows: dict[str, _Flow]) -> Iterator[str]:
    """What operators write is read by one, or an output, or among what is said to be unused."""
    for network in facts.plan.networks:
        flow = flows[network.name]
        for storage in sorted(
            flow.written - set(flow.readers) - flow.outputs - set(network.unused)
        ):
            yield (
                f"network {quoted(network.name)}: {quoted(storage)} is written, but is no output"
                " and nothing reads it"
            )


def _job(facts: Facts, job: PlannedJob, part: _Part, instances: _Instances) -> Iterator[str]:
    """One job's operands against what its operators read and write."""
    label = f"job {quoted(job.name)}"
    read, strays = _by_storage(facts, job, job.reads, part.needed)
    yield from (
        f"{label} reads {quoted(name)}, which none of its operators reads" for name in strays
    )
    # What a piece needs is told by its ranges.
    for storage in sorted(part.needed) if not job.ranges else ():
        key = (job.network, storage, job.mini_batch)
        whole, names = set(instances.of(key)), read.get(storage, set())
        if not names:
            yield f"{label} does not read {quoted(storage)}, which its operators need"
        elif job.tiles == 1 or any(facts.tensors[name].ranges for name in whole):
            yield from (
                f"{label} does not read {quoted(name)}, a part of what its operators need"
                for name in sorted(whole - names)
            )
        else:
            instances.read(job, key, names)
    written, strays = _by_storage(facts, job, job.writes, part.made)
    yield from (
        f"{label} writes {quoted(name)}, which none of its operators writes" for name in strays
    )
    # A piece that leaves partial sums to the next of its chain makes no result.
    leaves = any(facts.tensors[operand.tensor].summed for operand in job.writes)
    for storage in sorted(part.wanted - set(written)) if not leaves else ():
        yield f"{label} does not write {quoted(storage)}, which others need"
    for storage, names in written.items():
        if len(names) > 1:
            yield (
                f"{label} writes {len(names)} tensors for {quoted(storage)}, where one job"
                " writes one"
            )


def _is_plain(facts: Facts, job: PlannedJob, part: _Part, instances: _Instances) -> bool:
    """Whether a job is no tile, reads just what its operators need, and writes one tensor of each
    storage that they make for others."""
    if job.tiles > 1 or job.ranges or job.summed:
        return False
    needed = [instances.of((job.network, storage, job.mini_batch)) for storage in part.needed]
    if not all(needed) or {operand.tensor for operand in job.reads} != set(
        chain.from_iterable(needed)
    ):
        return False
    made = [facts.tensors[name] for name in {operand.tensor for operand in job.writes}]
    storages = {tensor.storage for tensor in made}
    own = all(
        tensor.network == job.network and tensor.mini_batch == job.mini_batch and not tensor.summed
        for tensor in made
    )
    return own and len(storages) == len(made) and part.wanted <= storages <= part.made


def _by_storage(
    facts: Facts, job: PlannedJob, operands: Iterable[PlannedOperand], allowed: Set[str]
) -> tuple[dict[str, set[str]], list[str]]:
    """A job's operands by storage, and those of them that its operators do not touch; what is empty
    may be anywhere."""
    found: dict[str, set[str]] = defaultdict(set)
    strays = []
    for name in dict.fromkeys(operand.tensor for operand in operands):
        tensor = facts.tensors[name]
        if (
            tensor.summed
            and tensor.network == job.network
            and tensor.mini_batch == job.mini_batch
            and job.summed
        ):
            # Whose sums these may be is told by the chain.
            continue
        own = tensor.network == job.network and (
            tensor.kind == "weight" or tensor.mini_batch == job.mini_batch
        )
        if own and tensor.storage in allowed:
            found[tensor.storage].add(name)
        elif tensor.bytes:
            strays.append(name)
    return found, strays

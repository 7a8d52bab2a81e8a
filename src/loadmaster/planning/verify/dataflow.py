"""Checks of the data flow: jobs read and write what their operators do, so that no wait can vanish together with its reason."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from functools import cached_property

from loadmaster.planning.plan import PlannedJob, PlannedOperand
from loadmaster.planning.verify.facts import Facts, quoted

Key = tuple[str, str, int]
"""Network, storage, mini-batch."""


def dataflow(facts: Facts) -> Iterator[str]:
    """Every job reads all that its operators need, writes all that others need of them, and touches nothing else; the outputs are there.

    What a job needs are the storages that its operators read and do not write. O(accesses of operators x jobs that cover them).
    """
    flows = _flows(facts)
    instances = _Instances(facts)
    yield from _origins(facts, flows)
    yield from _outputs(facts, flows, instances)
    for job in facts.plan.jobs:
        yield from _job(facts, job, flows[job.network].part(job.operators), instances)
    yield from instances.halves()


@dataclass(frozen=True)
class _Part:
    """Storages that operators which run as one job read from outside, write, and have to write because others use them."""

    needed: Set[str]
    made: Set[str]
    wanted: Set[str]


@dataclass(frozen=True)
class _Flow:
    """A network's operators by the storages that they read and write."""

    reads: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    writes: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    readers: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
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
            wanted = {name for name in made if name in self.outputs or not self.readers.get(name, set()) <= set(operators)}
            self.parts[operators] = _Part(read - made, made, wanted)
        return self.parts[operators]


class _Instances:
    """Tensors by storage, and which of them the tiles of an operator have read so far."""

    def __init__(self, facts: Facts) -> None:
        self._own: dict[Key, set[str]] = defaultdict(set)
        self._shared: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._read: dict[tuple[tuple[str, ...], Key], set[str]] = defaultdict(set)
        for tensor in facts.plan.tensors:
            if tensor.kind == "weight":
                self._shared[tensor.network, tensor.storage].add(tensor.name)
            else:
                self._own[tensor.network, tensor.storage, tensor.mini_batch].add(tensor.name)

    def of(self, key: Key) -> set[str]:
        """Names of all that a storage consists of for a mini-batch."""
        return self._own.get(key, set()) | self._shared.get(key[:2], set())

    def read(self, job: PlannedJob, key: Key, names: set[str]) -> None:
        """Remember what a tile has read."""
        self._read[job.operators, key] |= names

    def halves(self) -> Iterator[str]:
        """What no tile has read of storages that some have read."""
        for (operators, key), names in self._read.items():
            for name in sorted(self.of(key) - names):
                yield f"network {quoted(key[0])}, mini-batch {key[2]}: no tile of operator {quoted(operators[0])} reads {quoted(name)}"


def _flows(facts: Facts) -> dict[str, _Flow]:
    flows = {}
    for network in facts.plan.networks:
        flow = flows[network.name] = _Flow(outputs=set(network.outputs))
        for operator in network.operators:
            flow.reads[operator.name].update(operator.reads)
            flow.writes[operator.name].update(operator.writes)
            for storage in operator.reads:
                flow.readers[storage].add(operator.name)
    return flows


def _origins(facts: Facts, flows: dict[str, _Flow]) -> Iterator[str]:
    """Only weights and inputs exist from the start, and no operator writes them; outputs are called so."""
    for tensor in facts.plan.tensors:
        flow = flows[tensor.network]
        given = tensor.kind in ("weight", "input")
        if given and tensor.producer:
            yield f"tensor {quoted(tensor.name)} is said to be of kind {tensor.kind}, but job {quoted(tensor.producer)} produces it"
        elif not given and not tensor.producer:
            yield f"tensor {quoted(tensor.name)} is neither a weight nor an input, and no job produces it"
        elif given and tensor.storage in flow.written:
            yield f"tensor {quoted(tensor.name)} is said to be there from the start, but an operator writes it"
        if tensor.is_output != (tensor.storage in flow.outputs):
            yield f"tensor {quoted(tensor.name)} is said to be {'an' if tensor.is_output else 'no'} output, its network says otherwise"


def _outputs(facts: Facts, flows: dict[str, _Flow], instances: _Instances) -> Iterator[str]:
    """Every output exists in every mini-batch; one line for the first that lacks it."""
    for network in facts.plan.networks:
        # There cannot be more complete mini-batches than tensors, so that one of so many is missing if any is.
        batches = range(min(network.mini_batches, len(facts.plan.tensors) + 1))
        for storage in sorted(flows[network.name].outputs):
            missing = next((batch for batch in batches if not instances.of((network.name, storage, batch))), None)
            if missing is not None:
                yield f"network {quoted(network.name)}, mini-batch {missing}: no tensor is the output {quoted(storage)}"


def _job(facts: Facts, job: PlannedJob, part: _Part, instances: _Instances) -> Iterator[str]:
    """One job's operands against what its operators read and write."""
    label = f"job {quoted(job.name)}"
    read, strays = _by_storage(facts, job, job.reads, part.needed)
    yield from (f"{label} reads {quoted(name)}, which none of its operators reads" for name in strays)
    for storage in sorted(part.needed):
        key = (job.network, storage, job.mini_batch)
        whole, names = instances.of(key), read.get(storage, set())
        if not names:
            yield f"{label} does not read {quoted(storage)}, which its operators need"
        elif job.tiles == 1:
            yield from (f"{label} does not read {quoted(name)}, a part of what its operators need" for name in sorted(whole - names))
        else:
            instances.read(job, key, names)
    written, strays = _by_storage(facts, job, job.writes, part.made)
    yield from (f"{label} writes {quoted(name)}, which none of its operators writes" for name in strays)
    for storage in sorted(part.wanted - set(written)):
        yield f"{label} does not write {quoted(storage)}, which others need"
    for storage, names in written.items():
        if len(names) > 1:
            yield f"{label} writes {len(names)} tensors for {quoted(storage)}, where one job writes one"


def _by_storage(
    facts: Facts, job: PlannedJob, operands: Iterable[PlannedOperand], allowed: Set[str]
) -> tuple[dict[str, set[str]], list[str]]:
    """A job's operands by storage, and those of them that its operators do not touch; what is empty may be anywhere."""
    found: dict[str, set[str]] = defaultdict(set)
    strays = []
    for name in dict.fromkeys(operand.tensor for operand in operands):
        tensor = facts.tensors[name]
        own = tensor.network == job.network and (tensor.kind == "weight" or tensor.mini_batch == job.mini_batch)
        if own and tensor.storage in allowed:
            found[tensor.storage].add(name)
        elif tensor.bytes:
            strays.append(name)
    return found, strays

"""Checks of the data flow: jobs read and write the storages of their operators, so that no
dependency can be omitted together with the operand that causes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set

from loadmaster.planning.plan_records import PlannedJob, PlannedOperand
from loadmaster.planning.verify.boxes import hull, taken, text, whole
from loadmaster.planning.verify.facts import Facts, quoted
from loadmaster.workloads.job import NetworkInfo


def dataflow(facts: Facts) -> Iterator[str]:
    """Every job reads all storages that its operators read and do not write (pieces: parts of
    them), writes all results that other operators need, and accesses nothing else.

    Inputs and outputs exist, and every written storage is used. O(accesses of operators x jobs that
    cover them).
    """
    flows = {network.name: _Flow(network) for network in facts.plan.networks}
    yield from _origins(facts, flows)
    yield from _inputs_and_outputs(facts, flows)
    yield from _unread(facts, flows)
    for (network, _, operators), jobs in facts.pieces.items():
        flow = flows[network]
        made, needed = set[str](), set[str]()
        for operator in operators:
            made |= flow.writes[operator]
            needed |= flow.reads[operator] - made
        yield from (
            f"job {quoted(jobs[0].name)} makes {quoted(name)} after an operator that reads it"
            for name in sorted(needed & made)
        )
        needed -= made
        for job in jobs:
            read, strays = _by_storage(facts, job, job.reads, needed)
            yield from (
                f"job {quoted(job.name)} reads {quoted(name)}, which none of its operators reads"
                for name in strays
            )
            # The needs of a piece follow from the model's windows, and may be empty.
            if not job.ranges:
                yield from _incomplete(facts, job, needed, read)
            yield from _results(facts, job, made, flow.wanted(operators, made))


class _Flow:
    """A network's operators by the storages that they read and write."""

    def __init__(self, network: NetworkInfo) -> None:
        self.inputs = set(network.inputs)
        self.outputs = set(network.outputs)
        self.reads, self.writes, self.readers = (defaultdict[str, set[str]](set) for _ in "rwu")
        for operator in network.operators:
            self.reads[operator.name].update(operator.reads)
            self.writes[operator.name].update(operator.writes)
            for storage in operator.reads:
                self.readers[storage].add(operator.name)
        self.written = frozenset[str]().union(*self.writes.values())

    def wanted(self, operators: Iterable[str], made: Set[str]) -> Set[str]:
        """The results that operators of one job must write, because others use them."""
        mine = set(operators)
        return {
            name
            for name in made
            if name in self.outputs or not self.readers.get(name, set()) <= mine
        }


def _origins(facts: Facts, flows: dict[str, _Flow]) -> Iterator[str]:
    """Only weights and inputs have no producer, and no operator writes them; outputs are marked as
    such."""
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


def _inputs_and_outputs(facts: Facts, flows: dict[str, _Flow]) -> Iterator[str]:
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
                    (batch for batch in batches if not facts.parts(network.name, storage, batch)),
                    None,
                )
                if missing is not None:
                    yield (
                        f"network {quoted(network.name)}, mini-batch {missing}: no tensor is the"
                        f" {what} {quoted(storage)}"
                    )


def _unread(facts: Facts, flows: dict[str, _Flow]) -> Iterator[str]:
    """Every written storage is read by an operator, an output, or listed as unused."""
    for network in facts.plan.networks:
        flow = flows[network.name]
        for storage in sorted(
            flow.written - flow.readers.keys() - flow.outputs - set(network.unused)
        ):
            yield (
                f"network {quoted(network.name)}: {quoted(storage)} is written, but is no output"
                " and nothing reads it"
            )


Operands = dict[str, list[PlannedOperand]]
"""A job's operands by storage."""


def _incomplete(facts: Facts, job: PlannedJob, needed: Set[str], read: Operands) -> Iterator[str]:
    """Whole jobs read all of a storage."""
    label = f"job {quoted(job.name)}"
    for storage in sorted(needed):
        if storage not in read:
            yield f"{label} does not read {quoted(storage)}, which its operators need"
            continue
        parts = facts.parts(job.network, storage, job.mini_batch)
        lacking = {part.name for part in parts} - {operand.tensor for operand in read[storage]}
        yield from (
            f"{label} does not read {quoted(name)}, a part of what its operators need"
            for name in sorted(lacking)
        )
        # Parts of different shapes are found by the check of parts.
        if not lacking and len({part.shape for part in parts}) == 1:
            boxes = [taken(operand, facts.tensors[operand.tensor]) for operand in read[storage]]
            full = whole(parts[0].shape)
            if full not in boxes and hull(boxes) != full:
                yield (
                    f"{label} reads {text(hull(boxes))} of {quoted(storage)}, of which its"
                    " operators need all"
                )


def _results(facts: Facts, job: PlannedJob, made: Set[str], wanted: Set[str]) -> Iterator[str]:
    """A job writes the results of its operators that are needed, each as one tensor."""
    label = f"job {quoted(job.name)}"
    written, strays = _by_storage(facts, job, job.writes, made)
    yield from (
        f"{label} writes {quoted(name)}, which none of its operators writes" for name in strays
    )
    # A piece that writes partial sums for the next of its chain makes no result.
    due = set() if facts.sums(job.writes) else wanted - written.keys()
    for storage in sorted(due):
        yield f"{label} does not write {quoted(storage)}, which others need"
    for storage, operands in written.items():
        names = {operand.tensor for operand in operands}
        if len(names) > 1:
            yield (
                f"{label} writes {len(names)} tensors for {quoted(storage)}, where one job writes"
                " one"
            )


def _by_storage(
    facts: Facts, job: PlannedJob, operands: Iterable[PlannedOperand], allowed: Set[str]
) -> tuple[Operands, list[str]]:
    """A job's operands by storage, and the tensors that its operators do not access; tensors of 0
    bytes are allowed anywhere."""
    found: Operands = defaultdict(list)
    strays = []
    for operand in operands:
        tensor = facts.tensors[operand.tensor]
        own = tensor.network == job.network and (
            tensor.kind == "weight" or tensor.mini_batch == job.mini_batch
        )
        if own and tensor.summed and job.summed:
            # Partial sums are checked with their chain.
            continue
        if own and tensor.storage in allowed:
            found[tensor.storage].append(operand)
        elif tensor.bytes and operand.tensor not in strays:
            strays.append(operand.tensor)
    return found, strays

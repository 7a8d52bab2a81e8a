"""Jobs of a plan, built again from the model: their loop nests, scalar operations, and the least
bytes of every operand.

Which operators run as one job, and which part of their result each piece makes, is the plan's
choice: whether it is a sound one is checked here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadmaster.planning.against.group import OperatorGroup
from loadmaster.planning.against.model import ReferenceNetwork
from loadmaster.planning.plan_records import PlannedJob, PlanRecord
from loadmaster.planning.verify.boxes import (
    Box,
    held,
    hull,
    is_within,
    reshaped,
    taken,
    text,
    volume,
)
from loadmaster.planning.verify.facts import Facts, quoted
from loadmaster.planning.verify.pieces import boxes_read
from loadmaster.workloads.graph import LoopNest, Op, OpClass
from loadmaster.workloads.job import Job, Operand, Ranges, Role, TensorInstance, Workload

_CHANNELS, _GROUPS = "channels", "groups"
_HOSTS = (OpClass.PRODUCT, OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.MOVEMENT)
"""Operators into which others may be fused: each result is there as soon as its place has been
computed."""


class WorkCheck:
    """A plan's jobs beside the model. All of it is linear in operands and in pieces x parts that
    each could read."""

    def __init__(self, plan: PlanRecord, models: Sequence[ReferenceNetwork]) -> None:
        self.plan, self._facts = plan, Facts(plan)
        self._models = {model.name: model for model in models}
        self._rank = {model.name: number for number, model in enumerate(models)}
        self._groups: dict[tuple[str, tuple[str, ...]], OperatorGroup] = {}
        self._tensors = self._facts.tensors

    def group(self, job: PlannedJob) -> OperatorGroup:
        """The operators of a job."""
        key = job.network, job.operators
        if key not in self._groups:
            self._groups[key] = OperatorGroup(self._models[job.network], job.operators)
        return self._groups[key]

    def fusions(self) -> Iterator[str]:
        """Yield jobs whose operators cannot run as one: only element-wise operators on results of
        the same size may follow."""
        for (network, names), job in {
            (job.network, job.operators): job for job in self.plan.jobs
        }.items():
            group = self.group(job)
            if len(names) > 1 and group.main.op_class not in _HOSTS:
                yield f"network {quoted(network)}: nothing can be fused into {quoted(names[0])}"
            made: set[str] = set()
            for op in group.ops:
                if op is not group.main and not self._is_fusable(group, op, made):
                    yield (
                        f"network {quoted(network)}: {quoted(op.name)} cannot run as one job with"
                        f" {quoted(names[0])}"
                    )
                made |= {group.model.storage(access.tensor) for access in op.writes}

    def _is_fusable(self, group: OperatorGroup, op: Op, made: set[str]) -> bool:
        """Whether an operator may be fused into a group: it is element-wise, reads results of the
        group (``made``), and these have as many elements as its own result."""
        inside = [
            access.tensor for access in op.reads if group.model.storage(access.tensor) in made
        ]
        if op.op_class is not OpClass.ELEMENTWISE or not inside or not op.writes:
            return False
        return all(
            group.model.elements(name) == group.model.elements(op.writes[0].tensor)
            for name in inside
        )

    def cuts(self) -> Iterator[str]:
        """Yield operators that are cut along dimensions that cannot be cut, or inside a group of a
        grouped operator."""
        for job in self.plan.jobs:
            if job.tiles == 1:
                continue
            group, label = self.group(job), f"job {quoted(job.name)}"
            nests = group.main.nests
            can_be_cut = group.makes_one and group.sees_all
            if any(nest.repeats != 1 for nest in nests) or not can_be_cut:
                yield f"{label} is a piece of {quoted(job.operators[0])}, which cannot be cut"
            else:
                if job.summed and (
                    self.plan.target.main.in_place
                    or not group.summed
                    or job.summed[1] > group.summed
                    or bool(self._facts.sums(job.writes)) != (job.summed[1] < group.summed)
                ):
                    yield (
                        f"{label} takes a part of the sum of {quoted(job.operators[0])}, which"
                        " cannot be cut so on this machine"
                    )
                for axis, (first, last) in enumerate(job.ranges):
                    if last - first < group.shape[axis] and not _whole_steps(
                        group, axis, first, last
                    ):
                        yield (
                            f"{label} is cut along dimension {axis} of {quoted(job.operators[0])},"
                            " where that cannot be cut so"
                        )

    def boxes(self) -> Iterator[str]:
        """Yield pieces that do not read just what their part of the result needs. O(reads +
        operands of operators x pieces)."""
        for tensor in self.plan.tensors:
            if (
                tensor.ranges
                and tensor.shape != self._models[tensor.network].tensor(tensor.storage).shape
            ):
                yield (
                    f"tensor {quoted(tensor.name)} is said to be a part of another shape than"
                    f" {quoted(tensor.storage)} has"
                )
        for job in self.plan.jobs:
            group, read = self.group(job), boxes_read(self._facts, job)
            for storage in group.uses if job.ranges else ():
                found = hull(read[storage]) if storage in read else None
                yield from self._needs(job, group, storage, found)

    def _needs(
        self, job: PlannedJob, group: OperatorGroup, storage: str, found: Box | None
    ) -> Iterator[str]:
        """What a piece reads of a storage against what its part of the result needs."""
        needed = group.needed(storage, job.ranges, job.summed)
        if storage in group.made:
            seen = group.model.tensor(storage).shape
            as_many = math.prod(seen) == math.prod(group.shape)
            if needed and not (
                as_many and is_within(needed, reshaped(job.ranges, group.shape, seen))
            ):
                yield (
                    f"job {quoted(job.name)} needs more of {quoted(storage)} than the part of it"
                    " that it makes"
                )
            return
        if found != needed:
            says = "nothing" if found is None else text(found)
            due = "nothing" if needed is None else text(needed)
            yield (
                f"job {quoted(job.name)} reads {says} of {quoted(storage)}, where its part of the"
                f" result needs {due}"
            )

    def amounts(self) -> Iterator[str]:
        """Yield jobs whose work differs from the model's, or whose pieces do not do their share."""
        for job in self.plan.jobs:
            group, label = self.group(job), f"job {quoted(job.name)}"
            if (job.kind, job.bits) != (group.main.kind, group.main.bits):
                yield (
                    f"{label} is said to be {quoted(job.kind)} of {job.bits} bits, the network has"
                    f" {group.main.kind} of {group.main.bits}"
                )
            macs = sum(nest.macs for nest in self._nests(job))
            if job.macs != macs:
                yield (
                    f"{label} is said to do {job.macs} multiply-accumulates, its operators have"
                    f" {macs}"
                )
        for (network, batch, names), jobs in self._facts.pieces.items():
            group = self.group(jobs[0])
            planned = sum(job.elements for job in jobs)
            if planned != group.elements:
                found = f"{planned} scalar operations are planned for {quoted(names[0])}"
                yield (
                    f"network {quoted(network)}, mini-batch {batch}: {found}, it has"
                    f" {group.elements}"
                )
            for job in jobs:
                part, whole = self._share(job)
                if abs(job.elements * whole - group.elements * part) >= max(1, whole):
                    yield (
                        f"job {quoted(job.name)} is said to do {job.elements} scalar operations,"
                        f" not its share of {group.elements}"
                    )

    def rebuilt(self) -> tuple[Workload, list[PlannedJob]]:
        """All jobs as the model makes them, in an order in which one core could run them, and the
        plan's own in that order."""
        order = sorted(self.plan.jobs, key=self._place)
        index = {job.name: number for number, job in enumerate(order)}
        producer = {
            tensor.name: index[tensor.producer] if tensor.producer else -1
            for tensor in self.plan.tensors
        }
        jobs = []
        for job in order:
            group, nests = self.group(job), self._nests(job)
            reads = tuple(self._reads(job, group, nests))
            writes = tuple(self._writes(job, group, nests))
            after = tuple(sorted({producer[operand.tensor] for operand in reads} - {-1}))
            jobs.append(
                Job(
                    job.name,
                    job.network,
                    job.mini_batch,
                    group.main.kind,
                    job.operators,
                    nests,
                    job.elements,
                    group.main.bits,
                    reads,
                    writes,
                    after,
                )
            )
        tensors = tuple(
            TensorInstance(
                t.name,
                t.network,
                t.storage,
                t.mini_batch,
                t.bytes,
                t.kind,
                t.is_output,
                producer[t.name],
            )
            for t in self.plan.tensors
        )
        return Workload(self.plan.networks, tuple(jobs), tensors), order

    def _place(self, job: PlannedJob) -> tuple[int, int, int, int]:
        """Return the place of a job in the workload's order."""
        return (
            self._rank[job.network],
            job.mini_batch,
            self._models[job.network].place[job.operators[0]],
            job.tile,
        )

    def _share(self, job: PlannedJob) -> tuple[int, int]:
        """A job's part of its operators' result, and all of it, in elements."""
        group = self.group(job)
        # What a piece leaves to the next of its chain are sums, and no result yet.
        if self._facts.sums(job.writes):
            return 0, math.prod(group.shape)
        return (volume(job.ranges), math.prod(group.shape)) if job.ranges else (1, 1)

    def _nests(self, job: PlannedJob) -> tuple[LoopNest, ...]:
        """Return the loop nests of a job, cut to its piece of the result and its part of the
        reduction."""
        group = self.group(job)
        nests = tuple(self._placed(job, group, nest) for nest in group.main.nests)
        if not job.ranges:
            return nests
        pieces = tuple(_piece(nest, group.shape, job.ranges) for nest in nests)
        if not job.summed:
            return pieces
        return tuple(replace(nest, c=job.summed[1] - job.summed[0]) for nest in pieces)

    def _placed(self, job: PlannedJob, group: OperatorGroup, nest: LoopNest) -> LoopNest:
        """The nest with storages for operands; what only fused operators read leaves the core as
        the last result of as many elements."""
        storage = group.model.storage
        output = storage(nest.output)
        written = [self._tensors[operand.tensor].storage for operand in job.writes]
        if output in group.made and output not in written:
            elements = group.model.elements(nest.output)
            last = [name for name in group.made if name in written and group.made[name] == elements]
            output = last[-1] if last else ""
        return replace(nest, input=storage(nest.input), weight=storage(nest.weight), output=output)

    def _writes(
        self, job: PlannedJob, group: OperatorGroup, nests: Sequence[LoopNest]
    ) -> Iterator[Operand]:
        """Yield the job's results as operands, with the nest that writes each; results that no nest
        writes and partial sums cross once."""
        for name in dict.fromkeys(operand.tensor for operand in job.writes):
            tensor = self._tensors[name]
            own = (
                i
                for i, nest in enumerate(nests)
                if nest.output == tensor.storage and not tensor.summed
            )
            nest = next(own, -1)
            yield Operand(name, tensor.bytes, Role.OUTPUT if nest >= 0 else Role.ONCE, nest)

    def _reads(
        self, job: PlannedJob, group: OperatorGroup, nests: Sequence[LoopNest]
    ) -> Iterator[Operand]:
        """Yield the job's reads as operands, once for each nest and role in which it uses them, and
        the partial sums that it adds to."""
        for storage, touched in group.reads.items():
            shares = self._shares(job, group, storage, touched)
            names = {storage, *group.operands_with(storage)}
            roles = [(Role.INPUT, i) for i, nest in enumerate(nests) if nest.input in names]
            roles += [(Role.WEIGHT, i) for i, nest in enumerate(nests) if nest.weight in names]
            for role, nest in roles or [(Role.ONCE, -1)]:
                yield from (
                    Operand(name, size, role, nest) for name, size in shares.items() if size
                )
        for name, tensor in self._facts.sums(job.reads).items():
            yield Operand(name, tensor.bytes)

    def _shares(
        self, job: PlannedJob, group: OperatorGroup, storage: str, touched: int
    ) -> dict[str, int]:
        """Bytes of each tensor of a storage that a job reads: those of its boxes, or for whole jobs
        the share of each in what operators touch."""
        found: dict[str, int] = {}
        for operand in job.reads:
            tensor = self._tensors[operand.tensor]
            if tensor.storage == storage and not tensor.summed:
                size = tensor.bytes * volume(taken(operand, tensor))
                every = max(1, volume(held(tensor)))
                found[tensor.name] = -(-size // every) if job.ranges else size // every
        if job.ranges:
            return found
        total = max(1, sum(found.values()))
        return {name: -(-touched * size // total) for name, size in found.items()}


def _whole_steps(group: OperatorGroup, axis: int, first: int, last: int) -> bool:
    """Whether an operator can be cut along a dimension of its result, and in these places."""
    main = group.main
    if axis not in main.axes or not all(nest.loops and nest.loops[axis] for nest in main.nests):
        return False
    grouped = [
        n.k
        for n in main.nests
        if n.groups > 1 and n.loops[axis] == _CHANNELS and _GROUPS not in n.loops
    ]
    step = grouped[-1] if grouped else main.steps[axis] if main.steps else 1
    return first % step == 0 and (last % step == 0 or last == group.shape[axis])


def _piece(nest: LoopNest, shape: Sequence[int], ranges: Ranges) -> LoopNest:
    """The nest of a part of its result."""
    bounds = {name: getattr(nest, name) for name in ("batch", _GROUPS, "y", "x", "k")}
    for loop, extent, (first, last) in zip(nest.loops, shape, ranges, strict=True):
        if last - first < extent:
            name = (
                loop
                if loop != _CHANNELS
                else _GROUPS
                if nest.groups > 1 and _GROUPS not in nest.loops
                else "k"
            )
            bounds[name] = bounds[name] * last // extent - bounds[name] * first // extent
    return replace(nest, **bounds)

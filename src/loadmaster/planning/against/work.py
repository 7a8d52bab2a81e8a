"""Jobs of a plan, built again from the model: their loop nests, scalar operations, and the least
bytes of every operand.

Which operators run as one job, and which part of their result each piece makes, is the plan's
choice: whether it is a sound one is checked here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from loadmaster.planning.against.group import Group
from loadmaster.planning.against.model import Model
from loadmaster.planning.plan_records import PlannedJob, PlannedTensor, PlanRecord
from loadmaster.planning.verify.facts import quoted
from loadmaster.planning.verify.pieces import (
    adds_only,
    common_elements,
    needed_part,
    owned_bytes,
    owned_parts,
    renamed,
    sum_extent,
    volume,
)
from loadmaster.workloads.graph import LoopNest, Op, OpClass
from loadmaster.workloads.job import Job, Operand, Ranges, Role, TensorInstance, Workload

_CHANNELS, _GROUPS = "channels", "groups"
Span = tuple[int, int]
"""First channel of something, and the first of the next."""
_HOSTS = (OpClass.PRODUCT, OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.MOVEMENT)
"""Operators into which others may be fused: each result is there as soon as its place has been
computed."""


@dataclass(frozen=True)
class Rebuilt:
    """A plan's jobs as the model makes them, in an order in which one core could run them;
    ``planned`` are the plan's own in that order."""

    workload: Workload
    planned: tuple[PlannedJob, ...]


class Work:
    """A plan's jobs beside the model. All of it is linear in operands and in pieces x parts that
    each could read."""

    def __init__(self, plan: PlanRecord, models: Sequence[Model]) -> None:
        self.plan = plan
        self._models = {model.name: model for model in models}
        self._rank = {model.name: number for number, model in enumerate(models)}
        self._groups: dict[tuple[str, tuple[str, ...]], Group] = {}
        self._known_spans: dict[tuple[tuple[str, str, int], int], dict[str, Span | None]] = {}
        self._tensors = {tensor.name: tensor for tensor in plan.tensors}
        self._owns = owned_parts(plan)
        self._operators = {
            (network.name, operator.name): operator
            for network in plan.networks
            for operator in network.operators
        }
        self._stored: dict[tuple[str, str, int], list[PlannedTensor]] = defaultdict(list)
        for tensor in (each for each in plan.tensors if not each.summed):
            self._stored[
                tensor.network, tensor.storage, 0 if tensor.kind == "weight" else tensor.mini_batch
            ].append(tensor)

    def group(self, job: PlannedJob) -> Group:
        """The operators of a job."""
        key = job.network, job.operators
        if key not in self._groups:
            self._groups[key] = Group(self._models[job.network], job.operators)
        return self._groups[key]

    def fusions(self) -> Iterator[str]:
        """Operators that run as one job are one, and elementwise ones that follow it place by
        place."""
        for (network, names), job in {
            (job.network, job.operators): job for job in self.plan.jobs
        }.items():
            group = self.group(job)
            if len(names) > 1 and group.main.op_class not in _HOSTS:
                yield f"network {quoted(network)}: nothing can be fused into {quoted(names[0])}"
            made: set[str] = set()
            for op in group.ops:
                if op is not group.main and not self._follows(group, op, made):
                    yield (
                        f"network {quoted(network)}: {quoted(op.name)} cannot run as one job with"
                        f" {quoted(names[0])}"
                    )
                made |= {group.model.storage(access.tensor) for access in op.writes}

    def _follows(self, group: Group, op: Op, made: set[str]) -> bool:
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
        """Operators are cut along dimensions that can be cut, and whole groups of a grouped
        operator stay together."""
        for job in self.plan.jobs:
            if job.tiles == 1:
                continue
            group, label = self.group(job), f"job {quoted(job.name)}"
            nests = group.main.nests
            if any(nest.repeats != 1 for nest in nests) or not group.makes_one:
                yield f"{label} is a piece of {quoted(job.operators[0])}, which cannot be cut"
            elif not job.ranges:
                if len(nests) != 1 or nests[0].groups != 1 or self._channels(job, group) is None:
                    yield (
                        f"{label} is no number of whole output channels of"
                        f" {quoted(job.operators[0])}"
                    )
            else:
                if job.summed and (
                    self.plan.target.main.in_place
                    or group.summed != sum_extent(self._operators[job.network, job.operators[0]])
                ):
                    yield (
                        f"{label} takes a part of the sum of {quoted(job.operators[0])}, which"
                        " cannot be cut on this machine"
                    )
                for axis, (first, last) in enumerate(job.ranges):
                    if last - first < group.shape[axis] and not _whole_steps(
                        group, axis, first, last
                    ):
                        yield (
                            f"{label} is cut along dimension {axis} of {quoted(job.operators[0])},"
                            " where that cannot be cut so"
                        )
        yield from self._channels_of_tensors()

    def _channels_of_tensors(self) -> Iterator[str]:
        """Channels of tensors are those of the operator that writes them, or of one that reads them
        in tiles."""
        due: dict[str, set[tuple[int, ...]]] = defaultdict(set)
        for job in self.plan.jobs:
            if job.tiles > 1 and not job.ranges:
                group = self.group(job)
                for operand in job.writes:
                    due[operand.tensor].add(group.result_channels)
                for operand in job.reads:
                    if not self._tensors[operand.tensor].producer:
                        due[operand.tensor] |= group.operand_channels(
                            self._tensors[operand.tensor].storage
                        )
        for tensor in self.plan.tensors:
            if tensor.channels and tensor.channels[:3] not in due[tensor.name]:
                yield (
                    f"tensor {quoted(tensor.name)} is said to hold channels along which"
                    f" {quoted(tensor.storage)} is not cut"
                )

    def amounts(self) -> Iterator[str]:
        """Jobs do the model's multiply-accumulates and scalar operations at its width, and pieces
        their share of them."""
        shares: dict[tuple[str, int, tuple[str, ...]], list[PlannedJob]] = defaultdict(list)
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
            shares[job.network, job.mini_batch, job.operators].append(job)
        for (network, batch, names), jobs in shares.items():
            group = self.group(jobs[0])
            if (
                not any(job.owns for job in jobs)
                and sum(job.elements for job in jobs) != group.elements
            ):
                found = (
                    f"{sum(job.elements for job in jobs)} scalar operations are planned for"
                    f" {quoted(names[0])}"
                )
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

    def rebuilt(self) -> Rebuilt:
        """All jobs, with the operands that the model gives them."""
        order = sorted(self.plan.jobs, key=self._place)
        index = {job.name: number for number, job in enumerate(order)}
        producer = {
            tensor.name: index[tensor.producer] if tensor.producer else -1
            for tensor in self.plan.tensors
        }
        jobs = []
        for job in order:
            group, nests = self.group(job), self._nests(job)
            reads, writes = tuple(self._reads(job, group)), tuple(self._writes(job, group, nests))
            after = tuple(sorted({producer[operand.tensor] for operand in reads} - {-1}))
            own = (
                job.name,
                job.network,
                job.mini_batch,
                group.main.kind,
                job.operators,
                nests,
                job.elements,
                group.main.bits,
            )
            jobs.append(
                Job(
                    *own,
                    reads,
                    writes,
                    after,
                    job.tile,
                    job.tiles,
                    job.ranges,
                    job.owns,
                    job.summed,
                )
            )
        tensors = tuple(
            replace(
                TensorInstance(
                    t.name,
                    t.network,
                    t.storage,
                    t.mini_batch,
                    t.bytes,
                    t.kind,
                    t.is_output,
                    producer[t.name],
                ),
                shape=t.shape,
                ranges=t.ranges,
                summed=t.summed,
            )
            for t in self.plan.tensors
        )
        return Rebuilt(Workload(self.plan.networks, tuple(jobs), tensors), tuple(order))

    def _place(self, job: PlannedJob) -> tuple[int, int, int, int]:
        return (
            self._rank[job.network],
            job.mini_batch,
            self._models[job.network].place[job.operators[0]],
            job.tile,
        )

    def _share(self, job: PlannedJob) -> tuple[int, int]:
        """A job's part of its operators' result, and all of it, in elements or channels."""
        group = self.group(job)
        if self._adds_only(job):
            return 0, math.prod(group.shape)
        if job.ranges:
            return volume(job.ranges), math.prod(group.shape)
        if job.tiles == 1:
            return 1, 1
        first, last = self._channels(job, group) or (0, 0)
        return last - first, group.main.nests[0].k

    def _channels(self, job: PlannedJob, group: Group) -> Span | None:
        """First output channel of a tile without ranges, and the first of the next, from the bytes
        that tiles write; None if not whole."""
        written = sorted({operand.tensor for operand in job.writes})
        if not written or not group.main.nests:
            return None
        tensor = self._tensors[written[0]]
        return self._spans(
            (tensor.network, tensor.storage, tensor.mini_batch), group.main.nests[0].k
        )[tensor.name]

    def _spans(self, key: tuple[str, str, int], channels: int) -> dict[str, Span | None]:
        """Channels of the parts of a storage, which follow one another, by their bytes; None where
        they are not whole."""
        if (key, channels) not in self._known_spans:
            parts = self._stored[key]
            ends = [0, *accumulate(part.bytes for part in parts)]
            total = max(1, ends[-1])
            self._known_spans[key, channels] = {
                part.name: (
                    (first * channels // total, last * channels // total)
                    if not (first * channels % total or last * channels % total)
                    else None
                )
                for part, (first, last) in zip(parts, pairwise(ends), strict=True)
            }
        return self._known_spans[key, channels]

    def _nests(self, job: PlannedJob) -> tuple[LoopNest, ...]:
        group = self.group(job)
        nests = tuple(self._placed(job, group, nest) for nest in group.main.nests)
        if job.tiles == 1:
            return nests
        if job.ranges:
            pieces = tuple(_piece(nest, group.shape, job.ranges) for nest in nests)
            return (
                tuple(replace(nest, c=job.summed[1] - job.summed[0]) for nest in pieces)
                if job.summed
                else pieces
            )
        first, last = self._channels(job, group) or (0, 0)
        return tuple(replace(nest, k=last - first) for nest in nests)

    def _placed(self, job: PlannedJob, group: Group, nest: LoopNest) -> LoopNest:
        """The nest with storages for operands; what only fused operators read leaves the core as
        the last result of as many elements."""
        storage = group.model.storage
        output, written = (
            storage(nest.output),
            [self._tensors[operand.tensor].storage for operand in job.writes],
        )
        if output in group.made and output not in written:
            elements = group.model.elements(nest.output)
            last = [name for name in group.made if name in written and group.made[name] == elements]
            output = last[-1] if last else ""
        return replace(nest, input=storage(nest.input), weight=storage(nest.weight), output=output)

    def _writes(
        self, job: PlannedJob, group: Group, nests: Sequence[LoopNest]
    ) -> Iterator[Operand]:
        for name in dict.fromkeys(operand.tensor for operand in job.writes):
            tensor = self._tensors[name]
            own = (
                i
                for i, nest in enumerate(nests)
                if nest.output == tensor.storage and not tensor.summed
            )
            nest = next(own, -1)
            yield Operand(name, tensor.bytes, Role.OUTPUT if nest >= 0 else Role.ONCE, nest)

    def _reads(self, job: PlannedJob, group: Group) -> Iterator[Operand]:
        nests = self._nests(job)
        for storage, touched in group.reads.items():
            weight = group.model.tensor(storage).kind == "weight"
            parts = self._stored[job.network, storage, 0 if weight else job.mini_batch]
            shares = (
                self._boxed(job, group, storage, parts)
                if job.ranges
                else self._touched(job, group, storage, parts, touched)
            )
            names = {storage, *group.operands_with(storage)}
            roles = [(Role.INPUT, i) for i, nest in enumerate(nests) if nest.input in names]
            roles += [(Role.WEIGHT, i) for i, nest in enumerate(nests) if nest.weight in names]
            for role, nest in roles or [(Role.ONCE, -1)]:
                yield from (
                    Operand(part.name, size, role, nest)
                    for part, size in zip(parts, shares, strict=True)
                    if size
                )
        for name in dict.fromkeys(operand.tensor for operand in job.reads):
            if self._tensors[name].summed:
                yield Operand(name, self._tensors[name].bytes)

    def _adds_only(self, job: PlannedJob) -> bool:
        return adds_only(job, self._operators)

    def _boxed(
        self, job: PlannedJob, group: Group, storage: str, parts: Sequence[PlannedTensor]
    ) -> list[int]:
        """Bytes of every part of a storage that a piece needs."""
        shape = group.model.tensor(storage).shape
        box: list[tuple[int, int]] = []
        for needs in group.needs[storage]:
            if self._adds_only(job) and not any(window.summed for window in needs.windows):
                continue
            own = needed_part(needs, job.ranges, job.summed)
            if volume(own):
                own = own if needs.shape == shape else renamed(own, needs.shape, shape)
                box = (
                    [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(box, own, strict=True)]
                    if box
                    else own
                )
        if not box and shape:
            return [0] * len(parts)
        if len(parts) > 1 and not all(part.ranges for part in parts):
            return [part.bytes for part in parts]
        read = {operand.tensor for operand in job.reads}
        taken = [part.name for part in parts if part.name in read]
        # A part of which others own some is read alone; of several parts a piece reads what each
        # owns.
        alone = (
            taken[0] if len(taken) == 1 and any(part.name in self._owns for part in parts) else ""
        )
        return [
            self._shared(part, box, shape, alone) if alone in ("", part.name) else 0
            for part in parts
        ]

    def _shared(
        self, part: PlannedTensor, box: Sequence[Sequence[int]], shape: tuple[int, ...], alone: str
    ) -> int:
        """Bytes that a box has in common with a part, or with what the part owns, rounded up."""
        place = part.ranges or tuple((0, extent) for extent in shape)
        held = place if alone else self._owns.get(part.name, place)
        return -(-part.bytes * common_elements(held, box) // max(1, volume(place)))

    def _touched(
        self,
        job: PlannedJob,
        group: Group,
        storage: str,
        parts: Sequence[PlannedTensor],
        touched: int,
    ) -> list[int]:
        """Bytes of every part of a storage that a whole job reads, or a tile over output
        channels."""
        sizes = [owned_bytes(part, self._owns) for part in parts]
        if job.tiles > 1 and storage in group.divided:
            channels, own = group.main.nests[0].k, self._channels(job, group) or (0, 0)
            key = job.network, storage, parts[0].mini_batch
            spans = self._spans(key, channels).values()
            if len(parts) == 1:
                touched = touched * own[1] // channels - touched * own[0] // channels
            elif (
                all(spans)
                and not parts[0].ranges
                and group.model.channels.get(storage, channels) == channels
            ):
                each = touched // channels
                return [
                    each * max(0, min(own[1], span[1]) - max(own[0], span[0]))
                    for span in spans
                    if span
                ]
        total = max(1, sum(sizes))
        return [-(-touched * size // total) for size in sizes]


def _whole_steps(group: Group, axis: int, first: int, last: int) -> bool:
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
    bounds = {"batch": nest.batch, _GROUPS: nest.groups, "y": nest.y, "x": nest.x, "k": nest.k}
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
    return replace(
        nest,
        batch=bounds["batch"],
        groups=bounds[_GROUPS],
        y=bounds["y"],
        x=bounds["x"],
        k=bounds["k"],
    )

"""A plan as a program: jobs and copies with their addresses and waits, in the order of each core
and of the copies."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import PlanError
from loadmaster.integrations.c_program.addresses import Addresses, Part
from loadmaster.integrations.c_program.model import SourceModel, element_type
from loadmaster.integrations.c_program.operators import Operators, operators_of
from loadmaster.planning.plan_records import PlannedJob, PlannedOperand, PlannedTensor, PlanRecord
from loadmaster.workloads.frontends.onnx.types import Value
from loadmaster.workloads.job import NetworkInfo


@dataclass(frozen=True)
class Place:
    """A part of an array, at an address of a memory; ``array`` is its number among those of the
    operators."""

    memory: str
    address: int
    array: int
    part: Part


@dataclass(frozen=True)
class Terms:
    """The terms [first, last) of its sum that a job adds, or all if ``last`` is -1, and whether it
    leaves the sum to another job."""

    first: int = 0
    last: int = -1
    leaves: bool = False


@dataclass(frozen=True)
class ProgramJob:
    """A job: its operators by their number, the part of their result that it makes, its operands,
    and the tasks that it waits for."""

    name: str
    operators: int
    part: Part
    terms: Terms
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class ProgramCopy:
    """A copy of some bytes between addresses of two memories, and the tasks that it waits for."""

    name: str
    source: tuple[str, int]
    destination: tuple[str, int]
    bytes: int
    after: tuple[int, ...]


@dataclass(frozen=True)
class Port:
    """An input or output of a mini-batch: its name, its array, and where its parts lie in main
    memory."""

    name: str
    value: Value
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Program:
    """All that plan.c holds, and the weights. Tasks are numbered: jobs first, then copies.

    ``cores`` says which jobs each core runs, in their order; copies are in the order of their
    estimated starts.
    """

    memories: Mapping[str, int]
    cores: Mapping[str, Sequence[int]]
    operators: Sequence[Operators]
    jobs: Sequence[ProgramJob]
    copies: Sequence[ProgramCopy]
    weights: Sequence[tuple[str, int, NDArray[Any]]]
    inputs: Sequence[Port]
    outputs: Sequence[Port]


def program_of(plan: PlanRecord, models: Sequence[SourceModel]) -> Program:
    """Turn a plan into a program; ``models`` are those of its networks, in their order. O(operands
    log stays).

    Raises
    ------
    ModelError
        If an operator has no kernel, or a weight no elements.
    PlanError
        If the plan does not tell all that a program needs.
    """
    builder = _Builder(plan, models)
    jobs = builder.jobs()
    return Program(
        builder.addresses.memories,
        builder.cores(),
        builder.operators,
        jobs,
        builder.copies(),
        builder.weights(),
        *builder.ports(),
    )


class _Builder:
    def __init__(self, plan: PlanRecord, models: Sequence[SourceModel]) -> None:
        self._plan = plan
        self._models = {
            network.name: model for network, model in zip(plan.networks, models, strict=True)
        }
        self._networks = {network.name: network for network in plan.networks}
        self.addresses = Addresses(plan)
        self._copies = sorted(
            (each for each in plan.transfers if not each.job),
            key=lambda copy: (copy.start, copy.end, copy.name),
        )
        names = [*(job.name for job in plan.jobs), *(copy.name for copy in self._copies)]
        self._numbers = {name: number for number, name in enumerate(names)}
        self.operators: list[Operators] = []
        self._known: dict[tuple[str, tuple[str, ...]], int] = {}
        self._in_parts = {
            name: frozenset(
                s
                for (n, s, _), tensors in self.addresses.storages.items()
                if n == name and len(tensors) > 1
            )
            for name in self._networks
        }

    def cores(self) -> dict[str, list[int]]:
        """Jobs of every core, in the order of their starts."""
        found: dict[str, list[int]] = {core.name: [] for core in self._plan.target.cores}
        for job in sorted(self._plan.jobs, key=lambda job: (job.start, job.end)):
            found[job.core].append(self._numbers[job.name])
        return found

    def jobs(self) -> list[ProgramJob]:
        """Jobs in the plan's order."""
        return [self._job(job) for job in self._plan.jobs]

    def _job(self, job: PlannedJob) -> ProgramJob:
        number = self._operators(job.network, job.operators)
        own = self.operators[number]
        # What only tells a shape or a type is read by no kernel.
        # Sums lie in the array of the result that they become.
        reads = tuple(
            self._place(job, each, own.writes if self._is_sum(each) else own.reads)
            for each in job.reads
            if self._is_sum(each) or self._storage(each) in own.reads
        )
        writes = tuple(self._place(job, each, own.writes) for each in job.writes)
        terms = (
            Terms(job.summed[0], job.summed[1], any(map(self._is_sum, job.writes)))
            if job.summed
            else Terms()
        )
        return ProgramJob(
            job.name, number, self._made(job, own), terms, reads, writes, self._waits(job.after)
        )

    def _is_sum(self, operand: PlannedOperand) -> bool:
        return bool(self.addresses.tensors[operand.tensor].summed)

    def _operators(self, network: str, names: tuple[str, ...]) -> int:
        key = network, names
        if key not in self._known:
            self._known[key] = len(self.operators)
            self.operators.append(
                operators_of(
                    self._models[network], self._networks[network], names, self._in_parts[network]
                )
            )
        return self._known[key]

    def _storage(self, operand: PlannedOperand) -> str:
        return self.addresses.tensors[operand.tensor].storage

    def _place(self, job: PlannedJob, operand: PlannedOperand, arrays: Mapping[str, int]) -> Place:
        """Where an operand lies while a job runs."""
        tensor = self.addresses.tensors[operand.tensor]
        address = self.addresses.address(tensor.name, operand.memory, job.start, job.end)
        return Place(operand.memory, address, arrays[tensor.storage], self.addresses.part(tensor))

    def _made(self, job: PlannedJob, own: Operators) -> Part:
        """The part of its operators' result that a job makes: for a tile over channels, the part
        that it writes."""
        if job.ranges:
            return Part(own.shape, job.ranges)
        if job.tiles == 1:
            return Part()
        outer, channels, _, first, last = (
            self.addresses.tensors[job.writes[0].tensor].channels or (0,) * 5
        )
        for axis, extent in enumerate(own.shape):
            if extent == channels and math.prod(own.shape[:axis]) == outer:
                return Part(
                    own.shape,
                    tuple(
                        (first, last) if d == axis else (0, size)
                        for d, size in enumerate(own.shape)
                    ),
                )
        raise PlanError(
            f"job {job.name!r} is a tile, and the plan does not tell which part of the result it"
            " makes: plan again"
        )

    def _waits(self, after: Iterable[str]) -> tuple[int, ...]:
        return tuple(self._numbers[name] for name in after)

    def copies(self) -> list[ProgramCopy]:
        """Copies in the order of their estimated starts."""
        found = []
        for copy in self._copies:
            ends = [
                (memory, self.addresses.address(copy.tensor, memory, copy.start, copy.end))
                for memory in (copy.source, copy.destination)
            ]
            found.append(
                ProgramCopy(copy.name, ends[0], ends[1], copy.bytes, self._waits(copy.after))
            )
        return found

    def weights(self) -> list[tuple[str, int, NDArray[Any]]]:
        """Every weight, or part of one, where it lies in main memory."""
        wanted: dict[str, list[PlannedTensor]] = defaultdict(list)
        for tensor in self._plan.tensors:
            if tensor.kind == "weight":
                wanted[tensor.network].append(tensor)
        main, found = self._plan.target.main.name, []
        for network, tensors in wanted.items():
            elements = self._models[network].constants(
                list(dict.fromkeys(tensor.storage for tensor in tensors))
            )
            for tensor in tensors:
                part = self.addresses.part(tensor)
                array = elements[tensor.storage]
                if part.ranges:
                    array = array.reshape(part.shape)[tuple(slice(*each) for each in part.ranges)]
                self._check_bytes(tensor, array.nbytes)
                found.append(
                    (
                        main,
                        self.addresses.address(tensor.name, main, 0, 0),
                        np.ascontiguousarray(array),
                    )
                )
        return found

    def _check_bytes(self, tensor: PlannedTensor, due: int) -> None:
        if tensor.bytes != due:
            text = (
                f"tensor {tensor.name!r} has {tensor.bytes} bytes in the plan and {due} in the"
                " program"
            )
            raise PlanError(
                f"{text}: plan with --precision fp32, and export from the model that was planned"
            )

    def ports(self) -> tuple[list[Port], list[Port]]:
        """Inputs and outputs of every mini-batch of every network."""
        inputs, outputs = [], []
        for network in self._plan.networks:
            delivered = self._delivered(network)
            for batch in range(network.mini_batches):
                prefix = network.name if network.mini_batches == 1 else f"{network.name}#{batch}"
                inputs += [
                    self._port(network, prefix, batch, name, name, 0.0) for name in network.inputs
                ]
                end = self._plan.metrics.makespan.value
                outputs += [
                    self._port(network, prefix, batch, name, storage, end)
                    for name, storage in delivered.items()
                ]
        return inputs, outputs

    def _delivered(self, network: NetworkInfo) -> dict[str, str]:
        """Outputs that the plan makes, and the storages that hold them, which they may only
        rename."""
        model = self._models[network.name]
        found = {name: model.graph.tensors[name].storage for name in model.graph.outputs}
        for name, storage in found.items():
            if storage not in network.outputs:
                text = f"{model.source}: output {name!r} is made by no job of the plan"
                raise PlanError(
                    f"{text}: it is constant, an input, or a cache that grows in place; take it out"
                    " of the model"
                )
        return found

    def _port(
        self, network: NetworkInfo, prefix: str, batch: int, name: str, storage: str, time: float
    ) -> Port:
        main, model = self._plan.target.main.name, self._models[network.name]
        tensors = self.addresses.storages[network.name, storage, batch]
        value = model.values[name]
        places = tuple(
            Place(main, self.addresses.address(t.name, main, time, time), 0, self.addresses.part(t))
            for t in tensors
        )
        due = element_type(value, model.source).itemsize * value.count
        elements = sum(
            math.prod(last - first for first, last in place.part.ranges) for place in places
        )
        # What bands of a result recompute lies in two of them.
        if sum(tensor.bytes for tensor in tensors) * value.count != due * (
            elements if len(places) > 1 else value.count
        ):
            raise PlanError(
                f"{model.source}: {name!r} has {due} bytes, in the plan another number: export from"
                " the model that was planned"
            )
        return Port(f"{prefix}/{name}", value, places)

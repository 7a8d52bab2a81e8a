"""Makes the jobs and tensor instances of several networks and mini-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadmaster.core.errors import PlanError
from loadmaster.core.names import unique_names
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Access, Graph, LoopNest, Op, TensorKind
from loadmaster.workloads.job import Job, NetworkInfo, Operand, OperatorInfo, Role, TensorInstance, Workload
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE, Split, choose_split


def lower(graphs: Sequence[Graph], target: Target, *, mini_batches: int = 1) -> Workload:
    """Turn networks into jobs for a target.

    Parameters
    ----------
    graphs : sequence of Graph
        The networks; two of one name get a number each.
    target : Target
        Its fast memory decides what is split.
    mini_batches : int
        Instances of every network. Activations exist once per mini-batch; weights are shared.

    Returns
    -------
    Workload
        Jobs in an order in which one core could run them. Time and memory are linear in operators x mini-batches.
    """
    if not graphs:
        raise PlanError("there is no network to plan: give at least one")
    if mini_batches < 1:
        raise PlanError(f"mini-batches must be at least 1, not {mini_batches}")
    builder = _Builder(target)
    for graph, name in zip(graphs, unique_names(graph.name for graph in graphs), strict=True):
        builder.add_network(graph, name, mini_batches)
    return Workload(tuple(builder.networks), tuple(builder.jobs), tuple(builder.tensors.values()))


class _Builder:
    """Collects the jobs and tensors of one network after another."""

    def __init__(self, target: Target) -> None:
        self._capacity = target.fast.capacity if target.fast else None
        self.networks: list[NetworkInfo] = []
        self.jobs: list[Job] = []
        self.tensors: dict[str, TensorInstance] = {}

    def add_network(self, graph: Graph, name: str, mini_batches: int) -> None:
        graph = without_updates(graph)
        fused = fuse(graph)
        if not fused:
            raise PlanError(f"{graph.source}: nothing to plan: every operator is a view or a constant")
        splits = [choose_split(f, self._capacity) if self._capacity else WHOLE for f in fused]
        cuts = _weight_cuts(graph, fused, splits)
        for mini_batch in range(mini_batches):
            _MiniBatch(self, graph, name, mini_batch, mini_batches, cuts).add(fused, splits)
        operators = tuple(_operator_info(graph, op) for f in fused for op in f.ops)
        # An output that no job touches is known at planning time, or is an input or a constant passed through: there is nothing to plan.
        touched = {storage for operator in operators for storage in (*operator.reads, *operator.writes)}
        delivered = dict.fromkeys(graph.tensors[output].storage for output in graph.outputs)
        outputs = tuple(storage for storage in delivered if storage in touched)
        read = {storage for operator in operators for storage in operator.reads}
        written = dict.fromkeys(storage for operator in operators for storage in operator.writes)
        unused = tuple(storage for storage in written if storage not in read and storage not in delivered)
        inputs = tuple(name for name in graph.tensors if name in read and graph.tensors[name].kind is TensorKind.INPUT)
        unknown = tuple(f"{kind[:60]} x{count}" if count > 1 else kind[:60] for kind, count in sorted(graph.unknown_ops.items()))
        notes = list(graph.notes)
        if graph.subgraph_ops:
            counts = ", ".join(f"{kind} x{count}" for kind, count in sorted(graph.subgraph_ops.items()))
            notes.append(f"operators inside control flow are not planned: {counts}")
        info = NetworkInfo(
            name,
            graph.source,
            graph.precision,
            mini_batches,
            graph.batch,
            graph.macs,
            operators,
            outputs,
            unknown,
            tuple(notes),
            inputs,
            unused,
        )
        self.networks.append(info)


def _operator_info(graph: Graph, op: Op) -> OperatorInfo:
    def storages(accesses: tuple[Access, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(graph.tensors[access.tensor].storage for access in accesses if access.bytes))

    return OperatorInfo(op.name, storages(op.reads), storages(op.writes))


def _weight_cuts(graph: Graph, fused: Sequence[FusedOp], splits: Sequence[Split]) -> dict[str, Split]:
    """Weights that are cut like an operator of which each tile needs its own part only; who else reads one reads of all parts."""
    cuts: dict[str, Split] = {}
    outputs = {graph.tensors[name].storage for name in graph.outputs}
    for group, split in zip(fused, splits, strict=True):
        for access in group.reads if split.tiles > 1 else ():
            tensor = graph.tensors[access.tensor]
            whole = access.bytes == tensor.bytes and access.bytes % split.channels == 0 and access.tensor not in outputs
            if tensor.kind is TensorKind.WEIGHT and access.tensor in group.by_channel and whole:
                cuts.setdefault(access.tensor, split)
    return cuts


class _MiniBatch:
    """The jobs and tensors of one mini-batch of one network."""

    def __init__(
        self, builder: _Builder, graph: Graph, network: str, mini_batch: int, mini_batches: int, cuts: Mapping[str, Split]
    ) -> None:
        self._builder, self._cuts = builder, cuts
        self._graph = graph
        self._network = network
        self._mini_batch = mini_batch
        self._prefix = network if mini_batches == 1 else f"{network}#{mini_batch}"
        self._outputs = {graph.tensors[name].storage for name in graph.outputs}
        self._instances: dict[str, list[str]] = {}
        self._splits: dict[str, Split] = {}

    def add(self, fused: Sequence[FusedOp], splits: Sequence[Split]) -> None:
        for group, split in zip(fused, splits, strict=True):
            first = len(self._builder.jobs)
            reads = [self._reads(group, split, tile) for tile in range(split.tiles)]
            for tile in range(split.tiles):
                writes = self._writes(group, split, tile, first + tile)
                self._builder.jobs.append(self._job(group, split, tile, reads[tile], writes))
            for access in group.writes:
                self._instances[access.tensor] = [self._part(access.tensor, split, tile) for tile in range(split.tiles)]
                self._splits[access.tensor] = split

    def _part(self, storage: str, split: Split, tile: int) -> str:
        name = f"{self._prefix}/{storage}"
        return name if split.tiles == 1 else f"{name}[{tile}/{split.tiles}]"

    def _source(self, storage: str) -> list[str]:
        """Return the instances that make up a tensor; those of a weight or an input are made when it is first read."""
        if storage not in self._instances:
            tensor = self._graph.tensors[storage]
            weight = tensor.kind is TensorKind.WEIGHT
            name = f"{self._network}/{storage}" if weight else f"{self._prefix}/{storage}"
            is_output = storage in self._outputs
            mini_batch = 0 if weight else self._mini_batch
            split = self._splits[storage] = self._cuts.get(storage, WHOLE)
            self._instances[storage] = []
            for tile in range(split.tiles):
                part = name if split.tiles == 1 else f"{name}[{tile}/{split.tiles}]"
                size = split.bytes_of_tile(tensor.bytes, tile)
                instance = TensorInstance(part, self._network, storage, mini_batch, size, str(tensor.kind), is_output)
                self._builder.tensors.setdefault(part, instance)
                self._instances[storage].append(part)
        return self._instances[storage]

    def _reads(self, group: FusedOp, split: Split, tile: int) -> list[Operand]:
        operands: list[Operand] = []
        for access in group.reads:
            shares = self._shares(access, split, tile, divides=split.tiles > 1 and access.tensor in group.by_channel)
            for role, nest in _roles(group.nests, access):
                operands += [Operand(part, size, role, nest) for part, size in shares if size]
        return operands

    def _shares(self, access: Access, split: Split, tile: int, *, divides: bool) -> list[tuple[str, int]]:
        """Instances that a tile reads of a tensor, and the bytes of each."""
        parts = self._source(access.tensor)
        source = self._splits.get(access.tensor, WHOLE)
        if divides and source.channels == split.channels:
            # Cut along the same channels: only the parts that hold the tile's own.
            each = access.bytes // split.channels
            return [(part, each * split.overlap(tile, source, i)) for i, part in enumerate(parts)]
        touched = split.bytes_of_tile(access.bytes, tile) if divides and len(parts) == 1 else access.bytes
        total = sum(self._builder.tensors[part].bytes for part in parts)
        return [(part, -(-touched * self._builder.tensors[part].bytes // total)) for part in parts]

    def _writes(self, group: FusedOp, split: Split, tile: int, job: int) -> list[Operand]:
        operands = []
        for access in group.writes:
            size = split.bytes_of_tile(self._graph.tensors[access.tensor].bytes, tile)
            name = self._part(access.tensor, split, tile)
            is_output = access.tensor in self._outputs
            instance = TensorInstance(
                name, self._network, access.tensor, self._mini_batch, size, str(TensorKind.ACTIVATION), is_output, job
            )
            self._builder.tensors[name] = instance
            nest = next((i for i, nest in enumerate(group.nests) if nest.output == access.tensor), -1)
            operands.append(Operand(name, size, Role.OUTPUT if nest >= 0 else Role.ONCE, nest))
        return operands

    def _job(self, group: FusedOp, split: Split, tile: int, reads: list[Operand], writes: list[Operand]) -> Job:
        producers = {self._builder.tensors[operand.tensor].producer for operand in reads}
        suffix = "" if split.tiles == 1 else f"[{tile}/{split.tiles}]"
        return Job(
            name=f"{self._prefix}/{group.main.name}{suffix}",
            network=self._network,
            mini_batch=self._mini_batch,
            kind=group.main.kind,
            operators=tuple(op.name for op in group.ops),
            nests=tuple(replace(nest, k=split.part(tile)) if split.tiles > 1 else nest for nest in group.nests),
            elements=split.bytes_of_tile(group.elements, tile),
            bits=group.main.bits,
            reads=tuple(reads),
            writes=tuple(writes),
            after=tuple(sorted(producers - {-1})),
            tile=tile,
            tiles=split.tiles,
        )


def _roles(nests: Sequence[LoopNest], access: Access) -> list[tuple[Role, int]]:
    """Return an operand's roles in the loop nests; a tensor that is both factors of a product is fetched as each."""
    roles = [(Role.INPUT, i) for i, nest in enumerate(nests) if nest.input == access.tensor]
    roles += [(Role.WEIGHT, i) for i, nest in enumerate(nests) if nest.weight == access.tensor]
    return roles or [(Role.ONCE, -1)]

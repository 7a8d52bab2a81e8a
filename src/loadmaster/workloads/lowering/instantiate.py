"""Lowering: makes the jobs and tensor instances of networks and mini-batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from loadmaster.core.arguments import validate_arguments
from loadmaster.core.errors import PlanError
from loadmaster.core.names import unique_names
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Access, Graph, TensorKind
from loadmaster.workloads.job import (
    Job,
    NetworkInfo,
    Operand,
    OperatorInfo,
    Role,
    TensorInstance,
    Workload,
)
from loadmaster.workloads.lowering.fuse import fuse
from loadmaster.workloads.lowering.pieces import (
    Cuts,
    Part,
    Pieces,
    Read,
    label_of,
    operand_roles,
    plain_cuts,
)
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.window import volume

_MOST_OPERATORS = 1_000_000
"""Of all mini-batches, unless a single one has more."""


@validate_arguments(PlanError)
def lower(
    graphs: Iterable[Graph],
    target: Target,
    *,
    mini_batches: int = 1,
    cuts: Sequence[Cuts | None] = (),
) -> Workload:
    """Turn networks into jobs for a target.

    Parameters
    ----------
    graphs : sequence of Graph
        The networks; two of one name get a number each.
    target : Target
        Its fast memory decides what is split.
    mini_batches : int
        Instances of every network. Activations exist once per mini-batch; weights are shared.
    cuts : sequence of Cuts
        How each network is cut. Without, operators that exceed the fast memory are split over their
        output channels.

    Returns
    -------
    Workload
        Jobs in an order in which one core could run them. Time and memory are linear in operators x
        mini-batches.
    """
    graphs = tuple(graphs)
    if not graphs:
        raise PlanError("there is no network to plan: give at least one")
    most = max(1, _MOST_OPERATORS // max(1, sum(len(graph.ops) for graph in graphs)))
    if not 1 <= mini_batches <= most:
        raise PlanError(f"{mini_batches} mini-batches: give from 1 to {most} of these networks")
    networks, jobs, tensors = list[NetworkInfo](), list[Job](), dict[str, TensorInstance]()
    names = unique_names(graph.name for graph in graphs)
    for graph, name, chosen in zip(graphs, names, cuts or [None] * len(graphs), strict=True):
        network = _NetworkBuilder(jobs, tensors, graph, name, mini_batches, target, chosen)
        networks.append(network.info())
    return Workload(tuple(networks), tuple(jobs), tuple(tensors.values()))


def _storages(graph: Graph, accesses: Iterable[Access]) -> tuple[str, ...]:
    """Return the storages of accesses that move bytes, each once."""
    return tuple(
        dict.fromkeys(graph.tensors[access.tensor].storage for access in accesses if access.bytes)
    )


class _NetworkBuilder(Pieces):
    """The pieces of one network; adds its jobs and tensors to those of others. Raises PlanError if
    nothing in it takes work."""

    def __init__(
        self,
        jobs: list[Job],
        tensors: dict[str, TensorInstance],
        source: Graph,
        name: str,
        mini_batches: int,
        target: Target,
        chosen: Cuts | None,
    ) -> None:
        graph = without_updates(source)
        fused = fuse(graph)
        if not fused:
            raise PlanError(
                f"{graph.source}: nothing to plan: every operator is a view or a constant"
            )
        super().__init__(graph, fused, chosen or Cuts(plain_cuts(graph, fused, target)))
        self._jobs, self._tensors = jobs, tensors
        self._network, self._mini_batches = name, mini_batches
        self._accumulator = max((core.accumulator for core in target.cores), default=0)
        self._sums: dict[tuple[int, int], Operand] = {}
        for mini_batch in range(mini_batches):
            self._mini_batch = mini_batch
            self._prefix = name if mini_batches == 1 else f"{name}#{mini_batch}"
            for number, tile in self.steps:
                jobs.append(self._job(number, tile))

    def info(self) -> NetworkInfo:
        """Return what a plan keeps of the network."""
        graph = self.graph
        operators = tuple(
            OperatorInfo(
                op.name,
                _storages(graph, op.reads),
                _storages(graph, op.writes),
                graph.tensors[op.writes[0].tensor].shape if cut.tiles > 1 else (),
            )
            for group, cut in zip(self.fused, self.cuts, strict=True)
            for op in group.ops
        )
        # An output that no job touches is a constant or an input passed through: nothing to plan.
        read = {storage for operator in operators for storage in operator.reads}
        written = dict.fromkeys(storage for operator in operators for storage in operator.writes)
        delivered = dict.fromkeys(graph.tensors[output].storage for output in graph.outputs)
        notes = graph.notes
        if graph.subgraph_ops:
            notes += (f"operators inside control flow are not planned: {graph.subgraph_kinds}",)
        return NetworkInfo(
            self._network,
            graph.source,
            graph.precision,
            self._mini_batches,
            graph.batch,
            graph.macs,
            operators,
            outputs=tuple(name for name in delivered if name in read or name in written),
            unknown=graph.unknown_kinds,
            notes=notes,
            inputs=tuple(
                name
                for name, tensor in graph.tensors.items()
                if name in read and tensor.kind is TensorKind.INPUT
            ),
            unused=tuple(name for name in written if name not in read and name not in delivered),
        )

    def _job(self, number: int, tile: int) -> Job:
        """Return the job that runs piece ``tile`` of fused operator ``number`` in the current mini-
        batch; its tensors are added as they are first read or written."""
        group, cut = self.fused[number], self.cuts[number]
        reads = [self._operand(read) for read in self.reads[number][tile]]
        terms = cut.summed(tile)
        if terms and terms[0]:
            reads.append(self._sums[number, tile - 1])
        writes = (
            self._writes(number, cut.part(tile))
            if cut.is_last(tile)
            else [self._partial_sums(number, tile)]
        )
        producers = {self._tensors[operand.tensor].producer for operand in reads}
        return Job(
            name=f"{self._prefix}/{group.main.name}{label_of(tile, cut.tiles)}",
            network=self._network,
            mini_batch=self._mini_batch,
            kind=group.main.kind,
            operators=tuple(op.name for op in group.ops),
            nests=self.nests[number][tile],
            elements=cut.amount_of_tile(group.elements, tile),
            bits=group.main.bits,
            reads=tuple(reads),
            writes=tuple(writes),
            after=tuple(sorted(producers - {-1})),
            tile=tile,
            tiles=cut.tiles,
            ranges=cut.box(tile) if cut.tiles > 1 else (),
            summed=terms,
        )

    def _operand(self, read: Read) -> Operand:
        """Return the operand of a job for a read, and add its tensor to the workload if it is a
        weight or input that no job has read yet."""
        tensor = self.graph.tensors[read.storage]
        weight = tensor.kind is TensorKind.WEIGHT
        name = f"{self._network if weight else self._prefix}/{read.storage}{read.part.label}"
        if name not in self._tensors:
            # A weight or an input comes into being when it is first read.
            self._add_part(name, read.storage, read.part, tensor.kind)
        return Operand(name, read.bytes, read.role, read.nest, read.ranges)

    def _add_part(
        self, name: str, storage: str, part: Part, kind: TensorKind, producer: int = -1
    ) -> None:
        """Add a part of a storage to the workload as a tensor; weights are of all mini-batches."""
        mini_batch = 0 if kind is TensorKind.WEIGHT else self._mini_batch
        is_output = storage in self.outputs
        shape = self.graph.tensors[storage].shape
        own = (name, self._network, storage, mini_batch, part.bytes, str(kind), is_output, producer)
        self._tensors[name] = TensorInstance(*own, shape, part.box if part.label else ())

    def _partial_sums(self, number: int, tile: int) -> Operand:
        """The partial sums that a piece writes for the next of its chain."""
        main, cut = self.fused[number].main, self.cuts[number]
        storage, box = main.writes[0].tensor, cut.box(tile)
        name = f"{self._prefix}/{storage} sums{label_of(tile, cut.tiles)}"
        size = volume(box) * max(self._accumulator, -(-main.bits // 8))
        self._tensors[name] = TensorInstance(
            name,
            self._network,
            storage,
            self._mini_batch,
            size,
            str(TensorKind.ACTIVATION),
            producer=len(self._jobs),
            shape=cut.shape,
            ranges=box,
            summed=(0, cut.summed(tile)[1]),
        )
        made = self._sums[number, tile] = Operand(name, size)
        return made

    def _writes(self, number: int, tile: int) -> list[Operand]:
        """The operands that a piece writes, which makes part ``tile`` of its operators' results."""
        operands = []
        group = self.fused[number]
        for access in group.writes:
            part = self.parts_of(access.tensor)[tile]
            name = f"{self._prefix}/{access.tensor}{part.label}"
            self._add_part(
                name, access.tensor, part, TensorKind.ACTIVATION, producer=len(self._jobs)
            )
            role, nest = operand_roles(group.nests, access, [Role.OUTPUT])[0]
            operands.append(Operand(name, part.bytes, role, nest))
        return operands

"""Makes the jobs and tensor instances of several networks and mini-batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadmaster.core.errors import PlanError
from loadmaster.core.names import unique_names
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Access, Graph, LoopNest, Op, TensorKind
from loadmaster.workloads.job import (
    Job,
    NetworkInfo,
    Operand,
    OperandNeeds,
    OperandWindow,
    OperatorInfo,
    Ranges,
    Role,
    TensorInstance,
    Workload,
)
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import Grid, divisible, piece_of
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE, Split, choose_split, operand_channels, result_channels, sizes_for
from loadmaster.workloads.window import Box, Window, shared, volume, whole


def lower(graphs: Sequence[Graph], target: Target, *, mini_batches: int = 1, cuts: Sequence[Cuts | None] = ()) -> Workload:
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
        How each network is cut. Without, operators that exceed the fast memory are split over their output channels.

    Returns
    -------
    Workload
        Jobs in an order in which one core could run them. Time and memory are linear in operators x mini-batches.
    """
    if not graphs:
        raise PlanError("there is no network to plan: give at least one")
    if mini_batches < 1:
        raise PlanError(f"mini-batches must be at least 1, not {mini_batches}")
    builder = _Builder(target, cuts)
    for graph, name in zip(graphs, unique_names(graph.name for graph in graphs), strict=True):
        builder.add_network(graph, name, mini_batches)
    return Workload(tuple(builder.networks), tuple(builder.jobs), tuple(builder.tensors.values()))


Cut = Grid | Split


@dataclass(frozen=True)
class Cuts:
    """How the fused operators of one network are cut, and in which order their pieces become jobs; by default one operator after another.

    ``order`` lists (operator, piece); a piece comes after all that it reads.
    """

    cuts: Sequence[Cut]
    order: Sequence[tuple[int, int]] | None = None

    @property
    def steps(self) -> Sequence[tuple[int, int]]:
        """Pieces in the order of jobs."""
        if self.order is not None:
            return self.order
        return [(group, tile) for group, cut in enumerate(self.cuts) for tile in range(cut.tiles)]


class _Builder:
    """Collects the jobs and tensors of one network after another."""

    def __init__(self, target: Target, chosen: Sequence[Cuts | None]) -> None:
        self._capacity = target.fast.capacity if target.fast else None
        self._sizes = sizes_for(target)
        self._chosen = chosen
        self.networks: list[NetworkInfo] = []
        self.jobs: list[Job] = []
        self.tensors: dict[str, TensorInstance] = {}

    def add_network(self, graph: Graph, name: str, mini_batches: int) -> None:
        graph = without_updates(graph)
        fused = fuse(graph)
        if not fused:
            raise PlanError(f"{graph.source}: nothing to plan: every operator is a view or a constant")
        chosen = self._chosen[len(self.networks)] if self._chosen else None
        if chosen is None:
            chosen = Cuts([choose_split(f, self._capacity, self._sizes) if self._capacity else WHOLE for f in fused])
        pieces = _Pieces(graph, fused, chosen)
        for mini_batch in range(mini_batches):
            _MiniBatch(self, pieces, name, mini_batch, mini_batches).add()
        operators = tuple(
            _operator_info(graph, op, isinstance(cut, Grid) and cut.tiles > 1)
            for f, cut in zip(fused, chosen.cuts, strict=True)
            for op in f.ops
        )
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


def _operator_info(graph: Graph, op: Op, in_pieces: bool) -> OperatorInfo:
    def storages(accesses: tuple[Access, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(graph.tensors[access.tensor].storage for access in accesses if access.bytes))

    plain = OperatorInfo(op.name, storages(op.reads), storages(op.writes))
    if not in_pieces:
        return plain
    operands = tuple(_needs(graph, access) for access in op.reads if access.bytes)
    return replace(plain, shape=graph.tensors[op.writes[0].tensor].shape, operands=operands)


def _needs(graph: Graph, access: Access) -> OperandNeeds:
    tensor = graph.tensors[access.tensor]
    shape = graph.tensors[tensor.storage].shape if access.of_storage else tensor.shape
    return OperandNeeds(tensor.storage, shape, tuple(_operand_window(window) for window in access.windows))


def _operand_window(window: Window) -> OperandWindow:
    if window.axis < 0:
        return OperandWindow(None)
    low, reach = window.low, window.high - window.low
    return OperandWindow(window.axis, window.numerator, window.denominator, max(0, low), max(0, -low), reach, window.unit)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a storage that is a tensor of its own: its box, where it is known, and its bytes.

    Of what several parts hold, one has it as its ``owned``; without, a part owns all that it holds.
    """

    label: str
    box: Box | None
    bytes: int
    channels: tuple[int, ...] = ()
    owned: Box | None = None

    @property
    def own_bytes(self) -> int:
        """Bytes that no other part owns."""
        return self.bytes if self.owned is None or self.box is None else self.bytes * volume(self.owned) // volume(self.box)

    def place(self, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Ranges, tuple[int, ...]]:
        """Shape of the storage, and ranges or channels of the part, as tensors state them."""
        return (shape, self.box, ()) if self.label and self.box is not None else ((), (), self.channels)


@dataclass(frozen=True, slots=True)
class _Read:
    """Bytes that a piece reads of a part of a storage."""

    storage: str
    part: int
    bytes: int
    role: Role
    nest: int


class _Pieces:
    """What the pieces of a network read and write; the same in every mini-batch. O(pieces x parts that each reads)."""

    def __init__(self, graph: Graph, fused: Sequence[FusedOp], chosen: Cuts) -> None:
        self.graph, self.fused, self.cuts, self.steps = graph, fused, chosen.cuts, chosen.steps
        self.outputs = {graph.tensors[name].storage for name in graph.outputs}
        self._divisible = [divisible(graph, f) if isinstance(cut, Grid) else None for f, cut in zip(fused, self.cuts, strict=True)]
        self._splits: dict[str, Split] = {}
        self._grids: dict[str, Grid] = {}
        self.parts: dict[str, list[_Part]] = {}
        self._cut_results()
        self._cut_weights()
        self._reads: dict[int, list[list[_Read]]] = {}

    def _cut_results(self) -> None:
        for group, cut in zip(self.fused, self.cuts, strict=True):
            for access in group.writes:
                size, shape = self.graph.tensors[access.tensor].bytes, self.graph.tensors[access.tensor].shape
                boxes: Sequence[Box | None] = [None] * cut.tiles
                owned = boxes
                if cut.tiles == 1:
                    boxes = [whole(shape)]
                elif isinstance(cut, Grid):
                    boxes, owned = cut.boxes, cut.owned
                    self._grids[access.tensor] = cut
                if isinstance(cut, Split) and cut.tiles > 1:
                    self._cut_channels(access.tensor, cut, size, result_channels(self.graph, group))
                    continue
                self.parts[access.tensor] = [
                    _Part(_label(tile, cut.tiles), box, cut.amount_of_tile(size, tile), (), own)
                    for tile, (box, own) in enumerate(zip(boxes, owned, strict=True))
                ]
                if isinstance(cut, Split):
                    self._splits[access.tensor] = cut

    def _cut_weights(self) -> None:
        """Cut what is there from the start like the first operator whose pieces each need a part of their own."""
        for number, (group, cut) in enumerate(zip(self.fused, self.cuts, strict=True)):
            for access in group.reads if cut.tiles > 1 else ():
                tensor = self.graph.tensors[access.tensor]
                if access.tensor in self.parts or access.tensor in self.outputs or access.bytes != tensor.bytes:
                    continue
                if isinstance(cut, Grid):
                    self._cut_given(number, access.tensor)
                elif tensor.kind is TensorKind.WEIGHT and access.tensor in group.by_channel and access.bytes % cut.channels == 0:
                    self._cut_channels(access.tensor, cut, tensor.bytes, operand_channels(self.graph, group, access.tensor))

    def _cut_channels(self, storage: str, cut: Split, size: int, channels: tuple[int, ...]) -> None:
        """Cut a storage over channels; ``channels`` says as which array it holds them, if that is known."""
        self._splits[storage] = cut
        self.parts[storage] = [
            _Part(_label(tile, cut.tiles), None, cut.amount_of_tile(size, tile), (*channels, *cut.range(tile)) if channels else ())
            for tile in range(cut.tiles)
        ]

    def _cut_given(self, number: int, storage: str) -> None:
        form, cut = self._divisible[number], self.cuts[number]
        assert form is not None
        assert isinstance(cut, Grid)
        tensor = self.graph.tensors[storage]
        boxes = list(dict.fromkeys(form.needed(self.graph, storage, box) for box in cut.boxes))
        if tensor.kind is TensorKind.INPUT:
            grid = self._grids[storage] = _where_first_needed(boxes, tensor.shape)
            boxes = list(grid.boxes)
        volumes = [volume(box) for box in boxes]
        total = math.prod(tensor.shape)
        # Boxes that overlap, or leave something out, add up to another volume.
        if len(boxes) < 2 or sum(volumes) != total or 0 in volumes or (storage not in self._grids and not _disjoint(boxes)):
            return
        until = [0, *itertools.accumulate(volumes)]
        sizes = [tensor.bytes * last // total - tensor.bytes * first // total for first, last in itertools.pairwise(until)]
        self.parts[storage] = [_Part(_label(i, len(boxes)), box, size) for i, (box, size) in enumerate(zip(boxes, sizes, strict=True))]

    def parts_of(self, storage: str) -> list[_Part]:
        """Parts of a storage; one that nothing cuts is one part."""
        if storage not in self.parts:
            tensor = self.graph.tensors[storage]
            self.parts[storage] = [_Part("", whole(tensor.shape), tensor.bytes)]
        return self.parts[storage]

    def reads(self, group: int, tile: int) -> list[_Read]:
        """What a piece reads."""
        if group not in self._reads:
            self._reads[group] = [self._read(group, number) for number in range(self.cuts[group].tiles)]
        return self._reads[group][tile]

    def _read(self, number: int, tile: int) -> list[_Read]:
        group, cut = self.fused[number], self.cuts[number]
        result: list[_Read] = []
        for access in group.reads:
            shares = self._boxed(number, access, tile) if isinstance(cut, Grid) else self._channelled(group, cut, access, tile)
            for role, nest in operand_roles(group.nests, access):
                result += [_Read(access.tensor, part, size, role, nest) for part, size in shares if size]
        return result

    def _boxed(self, number: int, access: Access, tile: int) -> list[tuple[int, int]]:
        """Parts of an operand that hold something of the box that a piece needs, and the bytes of it."""
        form, cut = self._divisible[number], self.cuts[number]
        assert form is not None
        assert isinstance(cut, Grid)
        needed = form.needed(self.graph, access.tensor, cut.boxes[tile])
        found = []
        parts, grid = self.parts_of(access.tensor), self._grids.get(access.tensor)
        if grid is not None and (one := grid.holder(needed, tile)) is not None:
            return [(one, -(-parts[one].bytes * volume(needed) // volume(grid.boxes[one])))]
        for index in range(len(parts)) if grid is None or len(parts) == 1 else grid.meeting(needed):
            part = parts[index]
            if part.box is None:
                found.append((index, part.bytes))
                continue
            if common := shared(part.owned or part.box, needed):
                found.append((index, -(-part.bytes * common // volume(part.box))))
        return found

    def _channelled(self, group: FusedOp, cut: Split, access: Access, tile: int) -> list[tuple[int, int]]:
        """Parts of an operand that a tile over channels reads, and the bytes of each."""
        parts = self.parts_of(access.tensor)
        source = self._splits.get(access.tensor)
        divides = cut.tiles > 1 and access.tensor in group.by_channel
        if divides and source is not None and source.channels == cut.channels:
            # Cut along the same channels: only the parts that hold the tile's own.
            each = access.bytes // cut.channels
            return [(i, each * cut.overlap(tile, source, i)) for i in cut.parts_met(tile, source)]
        touched = cut.amount_of_tile(access.bytes, tile) if divides and len(parts) == 1 else access.bytes
        total = max(1, sum(part.own_bytes for part in parts))
        return [(i, -(-touched * part.own_bytes // total)) for i, part in enumerate(parts)]

    def nests(self, group: int, tile: int) -> tuple[LoopNest, ...]:
        """Loop nests of a piece."""
        cut, nests = self.cuts[group], self.fused[group].nests
        if cut.tiles == 1:
            return nests
        if isinstance(cut, Grid):
            return tuple(piece_of(nest, cut.shape, cut.boxes[tile]) for nest in nests)
        return tuple(replace(nest, k=cut.part(tile)) for nest in nests)


def _label(tile: int, tiles: int) -> str:
    return "" if tiles == 1 else f"[{tile}/{tiles}]"


def _where_first_needed(boxes: Sequence[Box], shape: Sequence[int]) -> Grid:
    """The grid of a tensor of which the parts along every dimension begin where the one before ends, and end where a box does.

    Of rows that two pieces need, the first to come gets the band, and the next reads from both: so they are fetched once.
    """
    ends = [sorted({last for first, last in ranges if last > first}) for ranges in zip(*boxes, strict=True)]
    return Grid(tuple(shape), tuple((*own[:-1], extent) for own, extent in zip(ends, shape, strict=True)))


def _disjoint(boxes: Sequence[Box]) -> bool:
    """Whether no two boxes share an element. O(n^2) comparisons for n boxes, which differ along one or two dimensions."""
    return all(not shared(one, other) for one, other in itertools.combinations(boxes, 2))


class _MiniBatch:
    """The jobs and tensors of one mini-batch of one network."""

    def __init__(self, builder: _Builder, pieces: _Pieces, network: str, mini_batch: int, mini_batches: int) -> None:
        self._builder, self._pieces = builder, pieces
        self._network = network
        self._mini_batch = mini_batch
        self._prefix = network if mini_batches == 1 else f"{network}#{mini_batch}"

    def add(self) -> None:
        """Make the jobs in their order, and the tensors as they are first read or written."""
        for group, tile in self._pieces.steps:
            number = len(self._builder.jobs)
            reads = [self._operand(read) for read in self._pieces.reads(group, tile)]
            writes = self._writes(group, tile, number)
            self._builder.jobs.append(self._job(group, tile, reads, writes))

    def _operand(self, read: _Read) -> Operand:
        pieces, tensor = self._pieces, self._pieces.graph.tensors[read.storage]
        part = pieces.parts_of(read.storage)[read.part]
        weight = tensor.kind is TensorKind.WEIGHT
        name = f"{self._network if weight else self._prefix}/{read.storage}{part.label}"
        if name not in self._builder.tensors:
            # A weight or an input comes into being when it is first read.
            mini_batch = 0 if weight else self._mini_batch
            is_output = read.storage in pieces.outputs
            own = (name, self._network, read.storage, mini_batch, part.bytes, str(tensor.kind), is_output, -1)
            self._builder.tensors[name] = TensorInstance(*own, *part.place(tensor.shape))
        return Operand(name, read.bytes, read.role, read.nest)

    def _writes(self, number: int, tile: int, job: int) -> list[Operand]:
        operands = []
        group = self._pieces.fused[number]
        for access in group.writes:
            part = self._pieces.parts_of(access.tensor)[tile]
            name = f"{self._prefix}/{access.tensor}{part.label}"
            is_output = access.tensor in self._pieces.outputs
            self._builder.tensors[name] = TensorInstance(
                name,
                self._network,
                access.tensor,
                self._mini_batch,
                part.bytes,
                str(TensorKind.ACTIVATION),
                is_output,
                job,
                *part.place(self._pieces.graph.tensors[access.tensor].shape),
            )
            nest = next((i for i, nest in enumerate(group.nests) if nest.output == access.tensor), -1)
            operands.append(Operand(name, part.bytes, Role.OUTPUT if nest >= 0 else Role.ONCE, nest))
        return operands

    def _job(self, number: int, tile: int, reads: list[Operand], writes: list[Operand]) -> Job:
        group, cut = self._pieces.fused[number], self._pieces.cuts[number]
        producers = {self._builder.tensors[operand.tensor].producer for operand in reads}
        made, owned = (cut.boxes[tile], cut.owned[tile]) if isinstance(cut, Grid) and cut.tiles > 1 else ((), ())
        return Job(
            name=f"{self._prefix}/{group.main.name}{_label(tile, cut.tiles)}",
            network=self._network,
            mini_batch=self._mini_batch,
            kind=group.main.kind,
            operators=tuple(op.name for op in group.ops),
            nests=self._pieces.nests(number, tile),
            elements=cut.amount_of_tile(group.elements, tile),
            bits=group.main.bits,
            reads=tuple(reads),
            writes=tuple(writes),
            after=tuple(sorted(producers - {-1})),
            tile=tile,
            tiles=cut.tiles,
            ranges=made,
            owns=owned if owned != made else (),
        )


def operand_roles(nests: Sequence[LoopNest], access: Access) -> list[tuple[Role, int]]:
    """Return an operand's roles in the loop nests; a tensor that is both factors of a product is fetched as each."""
    names = (access.tensor, *access.part_of)
    roles = [(Role.INPUT, i) for i, nest in enumerate(nests) if nest.input in names]
    roles += [(Role.WEIGHT, i) for i, nest in enumerate(nests) if nest.weight in names]
    return roles or [(Role.ONCE, -1)]

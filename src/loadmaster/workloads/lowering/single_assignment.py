"""Rewrites graphs to single assignment, and removes copies that need not run."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from loadmaster.workloads.graph import FREE, Access, Graph, Op, OpClass, Tensor, TensorKind
from loadmaster.workloads.lowering.fuse import once_per_graph
from loadmaster.workloads.window import (
    ALL,
    Box,
    Shape,
    Window,
    Windows,
    disjoint,
    through_reshape,
    volume,
)


def with_leading_dimensions(graph: Graph) -> Graph:
    """Undo the flattening around matrix products: ``x (b, s, k) -> (b s, k) @ w -> (b s, n) -> (b,
    s, n)`` becomes ``x (b, s, k) @ w -> (b, s, n)``, as exporters of torch would have written it.

    So what follows the product element by element is cut like it. A product is left as it is where
    its result is one of the network, is read in several shapes, or where no tensor is its flattened
    operand with the leading dimensions apart. O(operands + tensors).
    """
    shapes: dict[str, set[Shape | None]] = defaultdict(set)
    for output in graph.outputs:
        shapes[graph.tensors[output].storage].add(None)
    for op in graph.ops:
        for read in () if op.op_class in FREE else op.reads:
            tensor = graph.tensors[read.tensor]
            shapes[tensor.storage].add(None if read.of_storage else tensor.shape)
    views = {(each.storage, each.shape): each.name for each in graph.tensors.values()}
    tensors, ops = dict(graph.tensors), []
    for op in graph.ops:
        name = op.writes[0].tensor if op.writes else ""
        shape, *others = shapes.get(name, {None})
        if shape is not None and not others and (own := _unflattened(op, shape, tensors, views)):
            op, tensors[name] = own, replace(tensors[name], shape=shape)
        ops.append(op)
    return graph if tensors == graph.tensors else replace(graph, ops=tuple(ops), tensors=tensors)


def _unflattened(
    op: Op,
    shape: Shape,
    tensors: Mapping[str, Tensor],
    views: Mapping[tuple[str, Shape], str],
) -> Op | None:
    """The matrix product with a result of another shape, if that only splits its rows; else
    None."""
    *rows, columns = shape or (1,)
    flat = (math.prod(rows), columns)
    if (
        len(rows) < 2
        or flat != tensors[op.writes[0].tensor].shape
        or op.steps
        or [nest.loops for nest in op.nests] != [("y", "channels")]
    ):
        return None
    reads, renamed = list[Access](), dict[str, str]()
    for read in op.reads:
        name, windows = read.tensor, list[Window]()
        for at, window in enumerate(read.windows):
            if window.axis > 0:
                windows.append(replace(window, axis=len(rows)))
            elif window.axis < 0:
                windows.append(window)
            else:
                seen = tensors[name]
                apart = views.get((seen.storage, (*seen.shape[:at], *rows, *seen.shape[at + 1 :])))
                if window != Window(0) or read.of_storage or apart is None or name in renamed:
                    return None
                renamed[name] = apart
                windows += map(Window, range(len(rows)))
        reads.append(replace(read, tensor=renamed.get(name, name), windows=tuple(windows)))
    nest = op.nests[0]
    own = replace(
        nest,
        input=renamed.get(nest.input, nest.input),
        weight=renamed.get(nest.weight, nest.weight),
        loops=("y",) * len(rows) + ("channels",),
    )
    axes = [each for axis in op.axes for each in ([len(rows)] if axis else range(len(rows)))]
    return replace(op, reads=tuple(reads), nests=(own,), axes=tuple(axes))


def without_copies(graph: Graph) -> Graph:
    """Let operators read the parts of a concatenation, and the operand of a transposition,
    directly.

    A concatenation is removed if all its readers have windows, a transposition if all its readers
    are products. Readers may read it under another shape along which they can be cut: so channel
    shuffles before convolutions disappear. Results of the network are kept, except for a growing
    cache: if the first part is an input of the network, the new parts are written behind it and
    become results instead of the whole. O(operators + operands x parts).
    """
    rewriting = _Rewriting(graph)
    for op in reversed(graph.ops):
        if op.copies:
            rewriting.leave_out(op)
    return rewriting.graph()


class _Rewriting:
    """The state of the rewriting: current reads of operators, and removed operators."""

    def __init__(self, source: Graph) -> None:
        self.source, self.tensors = source, source.tensors
        self.reads = {op.name: list(op.reads) for op in source.ops}
        self.readers: dict[str, list[Op]] = defaultdict(list)
        self.gone: set[str] = set()
        self.grown: set[str] = set()
        self.outputs: dict[str, tuple[str, ...]] = {}
        for op in source.ops:
            for tensor in dict.fromkeys(self.tensors[read.tensor].storage for read in op.reads):
                self.readers[tensor].append(op)

    def leave_out(self, op: Op) -> None:
        """Remove an operator if all its readers can read its operands directly."""
        result = op.writes[0].tensor
        parts = self.reads[op.name]
        every = [reader for reader in self.readers[result] if reader.name not in self.gone]
        views = [reader.name for reader in every if reader.op_class is OpClass.VIEW]
        readers = [reader for reader in every if reader.op_class is not OpClass.VIEW]
        turned = any(
            window.axis != axis for part in parts for axis, window in enumerate(part.windows)
        )
        if not self._only_moves(op) or not self._may_go(result, parts):
            return
        if not all(self._can_read(reader, result, turned) for reader in readers) or not (
            readers or result in self.source.outputs
        ):
            return
        for reader in readers:
            rewritten = []
            for read in self.reads[reader.name]:
                rewritten += (
                    [self._through(read, part, result) for part in parts]
                    if self.tensors[read.tensor].storage == result
                    else [read]
                )
            self.reads[reader.name] = rewritten
            for part in parts:
                owner = self.tensors[part.tensor].storage
                if reader not in self.readers[owner]:
                    self.readers[owner].append(reader)
        if result in self.source.outputs:
            self.outputs[result] = tuple(part.tensor for part in parts[1:])
            self.grown.add(self.tensors[parts[0].tensor].storage)
        self.gone |= {op.name, *views}

    def graph(self) -> Graph:
        """The graph of the remaining operators."""
        if not self.gone:
            return self.source
        ops = tuple(
            replace(op, reads=tuple(self.reads[op.name]))
            for op in self.source.ops
            if op.name not in self.gone
        )
        outputs = dict.fromkeys(
            name for output in self.source.outputs for name in self.outputs.get(output, (output,))
        )
        notes = self.source.notes
        if self.outputs:
            first, *others = self.outputs
            many = f"{len(self.outputs)} results grow" if others else "a result grows"
            notes += (
                f"{many} in place: what is new is written behind the input that it continues"
                f" ({first}, ...)",
            )
        return replace(self.source, ops=ops, outputs=tuple(outputs), notes=notes)

    def _only_moves(self, op: Op) -> bool:
        """Whether an operator only moves elements: its operands' places partition the result."""
        result, parts = self.tensors[op.writes[0].tensor], self.reads[op.name]
        if (
            len(op.writes) != 1
            or op.elements
            or result.alias_of is not None
            or result.kind is not TensorKind.ACTIVATION
            or {self.tensors[part.tensor].dtype for part in parts} - {result.dtype}
        ):
            return False
        boxes: list[Box] = []
        axes = list(range(len(result.shape)))
        for part in parts:
            if sorted(window.axis for window in part.windows) != axes:
                return False
            place = {
                window.axis: (-window.low, extent - window.low)
                for window, extent in zip(part.windows, self.source.seen(part).shape, strict=True)
            }
            boxes.append(tuple(place[axis] for axis in axes))
        return bool(boxes) and disjoint(boxes) and sum(map(volume, boxes)) == result.count

    def _may_go(self, result: str, parts: Sequence[Access]) -> bool:
        """Whether a result, or an alias of it, is not a result of the network, or is a growing
        cache: an input, which grows by no other, followed by parts that operators make, without
        aliases."""
        outputs = [name for name in self.source.outputs if self.tensors[name].storage == result]
        kinds = [self.tensors[self.tensors[part.tensor].storage].kind for part in parts]
        if outputs and self.tensors[parts[0].tensor].storage in self.grown:
            return False
        grows = kinds[:1] == [TensorKind.INPUT] and {*kinds[1:]} == {TensorKind.ACTIVATION}
        return not outputs or (grows and outputs == [result])

    def _can_read(self, reader: Op, result: str, turned: bool) -> bool:
        """Whether a reader has windows, reads the whole result, and accepts its parts or order."""
        # A matrix product takes either operand transposed at no cost.
        if turned and reader.op_class is not OpClass.PRODUCT and not reader.copies:
            return False
        whole = self.tensors[result]
        return all(
            read.bytes == whole.bytes
            and len(read.windows) == len(tensor.shape)
            and tensor.count == whole.count
            and not read.of_storage
            and _axes(read.windows, tensor.shape) == _axes(self._seen(read, result), whole.shape)
            for read in self.reads[reader.name]
            for tensor in (self.tensors[read.tensor],)
            if tensor.storage == result
        )

    def _seen(self, read: Access, result: str) -> Windows:
        """The windows of a read of a result, converted to the result's shape."""
        shape = self.tensors[read.tensor].shape
        whole = self.tensors[result].shape
        return read.windows if shape == whole else through_reshape(read.windows, shape, whole)

    def _through(self, read: Access, part: Access, result: str) -> Access:
        """Convert a read of the whole to a read of one part; ``part`` maps elements of the part to
        the whole."""
        needed = self._seen(read, result)
        windows = tuple(_shifted(needed[window.axis], -window.low) for window in part.windows)
        return replace(part, windows=windows, part_of=read.part_of or (read.tensor,))


def _axes(windows: Sequence[Window], shape: Sequence[int]) -> set[int]:
    """Dimensions of a result that the windows of an operand follow."""
    return {
        window.axis
        for window, extent in zip(windows, shape, strict=True)
        if window.axis >= 0 and extent > 1
    }


def _shifted(window: Window, start: int) -> Window:
    """Shift a window to a part that begins at an element of the whole; the whole part if that has
    no window."""
    if window.axis < 0 or start % window.unit:
        return ALL
    shift = start // window.unit * window.denominator
    return replace(window, low=window.low - shift, high=window.high - shift)


@once_per_graph
def without_updates(graph: Graph) -> Graph:
    """Make every update of a storage write a new storage, named ``NAME@1``, ``NAME@2``, ...

    The new storage of a weight or an input is a result of the network. A partial update reads all
    of the old storage, because the rest must be copied. Unneeded copies are removed
    (:func:`without_copies`). Graphs without updates and copies are returned unchanged. O(operators
    + operands).
    """
    versions = _StorageVersions(graph)
    ops = tuple(versions.renamed(op) for op in graph.ops)
    if versions.count:
        kept = [
            name for name in versions.count if graph.tensors[name].kind is not TensorKind.ACTIVATION
        ]
        outputs = dict.fromkeys(versions.current(name) for name in (*graph.outputs, *kept))
        graph = replace(graph, ops=ops, tensors=versions.tensors, outputs=tuple(outputs))
    return with_leading_dimensions(without_copies(graph))


class _StorageVersions:
    """The number of updates of each storage so far, and the tensors of its versions."""

    def __init__(self, graph: Graph) -> None:
        self.tensors = dict(graph.tensors)
        self.count: Counter[str] = Counter()
        self._graph = graph
        self._there = {
            name
            for name, tensor in graph.tensors.items()
            if tensor.kind is not TensorKind.ACTIVATION
        }

    def current(self, name: str) -> str:
        """Return the name of the latest version of a tensor, made if it is new."""
        tensor = self._graph.tensors.get(name)
        if tensor is None or not (version := self.count.get(tensor.storage)):
            return name
        label = f"{name}@{version}"
        if label not in self.tensors:
            owner = None if tensor.alias_of is None else self.current(tensor.alias_of)
            self.tensors[label] = replace(
                tensor, name=label, kind=TensorKind.ACTIVATION, alias_of=owner
            )
        return label

    def renamed(self, op: Op) -> Op:
        """Return the operator with operands of the versions that it reads and writes."""
        sources = {access.tensor: self.current(access.tensor) for access in op.reads}
        reads = [replace(access, tensor=sources[access.tensor]) for access in op.reads]
        if op.op_class not in FREE:
            reads += self._update(op, {read.tensor for read in reads})
        if not self.count:
            return op
        writes = tuple(replace(access, tensor=self.current(access.tensor)) for access in op.writes)
        nests = tuple(
            replace(
                n,
                input=sources.get(n.input, n.input),
                weight=sources.get(n.weight, n.weight),
                output=self.current(n.output),
            )
            for n in op.nests
        )
        return replace(op, reads=tuple(reads), writes=writes, nests=nests)

    def _update(self, op: Op, read: set[str]) -> list[Access]:
        """Begin a new version of every storage that the operator updates; return the additional
        reads of partial updates."""
        touched: Counter[str] = Counter()
        for access in op.writes:
            storage = self._graph.tensors[access.tensor].storage
            touched[storage] += access.bytes
        more = []
        for storage, size in touched.items():
            if storage in self._there and size:
                old = self.current(storage)
                whole = self._graph.tensors[storage].bytes
                if size < whole and old not in read:
                    more.append(Access(old, whole))
                self.count[storage] += 1
                self.current(storage)
        self._there.update(storage for storage, size in touched.items() if size)
        return more

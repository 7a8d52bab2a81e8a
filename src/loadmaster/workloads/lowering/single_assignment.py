"""Turns in-place updates into new tensors, for engines that need every tensor to be written once,
and leaves out what need not run."""

from __future__ import annotations

from dataclasses import replace

from loadmaster.workloads.graph import Access, Graph, Op, OpClass, Tensor, TensorKind
from loadmaster.workloads.lowering.remembered import once_per_graph
from loadmaster.workloads.lowering.without_copies import without_copies

_FREE = frozenset({OpClass.VIEW, OpClass.SHAPE})


@once_per_graph
def without_updates(graph: Graph) -> Graph:
    """Make every update of a storage write a new one, named ``NAME@1``, ``NAME@2``, ...

    The new storage of a weight or an input is a result of the network. A partial update reads all
    of the old one, since the rest must be copied. Copies that nobody needs are left out
    (:mod:`loadmaster.workloads.lowering.without_copies`). Graphs without either are returned as
    they are. O(operators + operands).
    """
    versions = _Versions(graph)
    ops = tuple(versions.renamed(op) for op in graph.ops)
    if not versions.count:
        return without_copies(graph)
    kept = [
        name for name in versions.count if graph.tensors[name].kind is not TensorKind.ACTIVATION
    ]
    outputs = dict.fromkeys(versions.current(name) for name in (*graph.outputs, *kept))
    return without_copies(replace(graph, ops=ops, tensors=versions.tensors, outputs=tuple(outputs)))


class _Versions:
    """How often each storage has been updated so far, and the tensors that stand for its
    versions."""

    def __init__(self, graph: Graph) -> None:
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.count: dict[str, int] = {}
        self._graph = graph
        self._there = {
            name
            for name, tensor in graph.tensors.items()
            if tensor.kind is not TensorKind.ACTIVATION
        }

    def current(self, name: str) -> str:
        """Return the name of the latest version of a tensor, made if it is new."""
        tensor = self._graph.tensors.get(name)
        version = self.count.get(tensor.storage, 0) if tensor is not None else 0
        if tensor is None or not version:
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
        reads = [replace(access, tensor=self.current(access.tensor)) for access in op.reads]
        sources = {access.tensor: self.current(access.tensor) for access in op.reads}
        if op.op_class not in _FREE:
            reads += self._update(op, {read.tensor for read in reads})
        writes = tuple(replace(access, tensor=self.current(access.tensor)) for access in op.writes)
        if all(
            access.tensor == old.tensor
            for access, old in zip((*reads, *writes), (*op.reads, *op.writes), strict=False)
        ):
            return op if len(reads) == len(op.reads) else replace(op, reads=tuple(reads))
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
        """Begin a new version of every storage that the operator updates; what partial updates read
        besides."""
        touched: dict[str, int] = {}
        for access in op.writes:
            storage = self._graph.tensors[access.tensor].storage
            touched[storage] = touched.get(storage, 0) + access.bytes
        more = []
        for storage, size in touched.items():
            if storage in self._there and size:
                old, whole = self.current(storage), self._graph.tensors[storage].bytes
                if size < whole and old not in read:
                    more.append(Access(old, whole))
                self.count[storage] = self.count.get(storage, 0) + 1
                self.current(storage)
        self._there.update(storage for storage, size in touched.items() if size)
        return more

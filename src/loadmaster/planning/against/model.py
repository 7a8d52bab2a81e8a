"""What a plan may be checked against: networks as frontends read them, looked up by the names that
the plan uses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmaster.core.names import unique_names
from loadmaster.workloads.graph import FREE, Access, Graph, Op, Tensor, TensorKind
from loadmaster.workloads.lowering.single_assignment import without_updates


@dataclass(frozen=True)
class ReferenceNetwork:
    """A network, in which every tensor is written once, with its operators that cost something by
    name."""

    name: str
    graph: Graph

    @cached_property
    def operators(self) -> dict[str, Op]:
        """Operators in their order."""
        return {op.name: op for op in self.graph.ops if op.op_class not in FREE}

    @cached_property
    def place(self) -> dict[str, int]:
        """Place of every operator in the order."""
        return {name: number for number, name in enumerate(self.operators)}

    def tensor(self, name: str) -> Tensor:
        """A tensor, which may be a view."""
        return self.graph.tensors[name]

    def storage(self, name: str) -> str:
        """Name of the tensor that owns the bytes; none for what never leaves a core."""
        return self.graph.tensors[name].storage if name in self.graph.tensors else ""

    def elements(self, name: str) -> int:
        """Elements of a tensor."""
        return math.prod(self.graph.tensors[name].shape)

    def storages(self, accesses: Sequence[Access]) -> dict[str, int]:
        """Storages of accesses, none of them empty, and the most bytes that one of these
        touches."""
        found: dict[str, int] = {}
        for access in accesses:
            storage = self.storage(access.tensor)
            if access.bytes:
                found[storage] = max(access.bytes, found.get(storage, 0))
        return found

    @cached_property
    def needed(self) -> frozenset[str]:
        """Tensors that an operator reads, or that the network returns."""
        return frozenset(read.tensor for op in self.graph.ops for read in op.reads) | {
            *self.graph.outputs
        }

    @cached_property
    def read(self) -> dict[str, int]:
        """Storages that some operator reads."""
        return self.storages([access for op in self.operators.values() for access in op.reads])

    @cached_property
    def written(self) -> dict[str, int]:
        """Storages that some operator writes."""
        return self.storages([access for op in self.operators.values() for access in op.writes])

    @property
    def inputs(self) -> tuple[str, ...]:
        """Inputs that some operator reads."""
        return tuple(
            name
            for name, tensor in self.graph.tensors.items()
            if name in self.read and tensor.kind is TensorKind.INPUT
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that some operator reads or writes; the others are known before anything runs."""
        delivered = dict.fromkeys(map(self.storage, self.graph.outputs))
        return tuple(name for name in delivered if name in self.read or name in self.written)

    @property
    def unused(self) -> set[str]:
        """What is written though nobody reads or returns it."""
        return self.written.keys() - self.read.keys() - {*map(self.storage, self.graph.outputs)}

    @cached_property
    def unknown(self) -> tuple[str, ...]:
        """Kinds of operators that are not understood, with how many there are of each."""
        counts = sorted(self.graph.unknown_ops.items())
        return tuple(kind[:60] if count == 1 else f"{kind[:60]} x{count}" for kind, count in counts)


def models_of(graphs: Sequence[Graph]) -> tuple[ReferenceNetwork, ...]:
    """The networks under the names that a plan of them gives them. Linear in operators."""
    names = unique_names(graph.name for graph in graphs)
    return tuple(
        ReferenceNetwork(name, without_updates(graph))
        for name, graph in zip(names, graphs, strict=True)
    )

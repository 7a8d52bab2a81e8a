"""Fuses elementwise operators into their producers, as a compiler would, and drops views and shape
operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TypeVar

from loadmaster.workloads.graph import FREE, Access, Graph, LoopNest, Op, OpClass

Result = TypeVar("Result")


def remembered_by(owner: object, name: str, work: Callable[[], Result]) -> Result:
    """Return the result of ``work``, cached on the owner under ``name``; it must not be changed.
    Copies of the owner have no cache."""
    known = vars(owner)
    if name not in known:
        known[name] = work()
    found: Result = known[name]
    return found


def once_per_graph(function: Callable[[Graph], Result]) -> Callable[[Graph], Result]:
    """Cache a function's result on the graph; the function leaves its own results unchanged."""
    name = f"_{function.__module__}.{function.__name__}"

    @wraps(function)
    def remembered(graph: Graph) -> Result:
        """Return the result for a graph, kept on the graph; a resulting graph is its own result."""
        found = remembered_by(graph, name, lambda: function(graph))
        return remembered_by(found, name, lambda: found) if isinstance(found, Graph) else found

    return remembered


# An operator that is not understood, or that runs subgraphs, stays a job of its own.
_HOSTS = frozenset({OpClass.PRODUCT, OpClass.ELEMENTWISE, OpClass.REDUCTION, OpClass.MOVEMENT})


@dataclass
class FusedOp:
    """An operator and the elementwise ones fused into it; operands are storage names (views
    resolved).

    ``reads`` come from outside, ``writes`` are the results that something outside needs; results
    used only inside never leave the core.
    """

    main: Op
    ops: list[Op]
    nests: tuple[LoopNest, ...] = ()
    reads: list[Access] = field(default_factory=list)
    writes: list[Access] = field(default_factory=list)

    @property
    def elements(self) -> int:
        """Number of scalar operations outside the loop nests."""
        return sum(op.elements for op in self.ops)


@once_per_graph
def fuse(graph: Graph) -> Sequence[FusedOp]:
    """Group the operators of a graph into fused ones, in an order in which they can run.

    An elementwise operator joins the latest of its inputs' producers if its inputs from there have
    as many elements as its output: then it runs on each element right after the producer, and no
    cycle can arise. Results that are needed elsewhere are still written; fusing never adds traffic.
    Views and shape operators are dropped. Time and memory are linear in the graph.
    """
    groups: list[FusedOp] = []
    group_of: dict[str, int] = {}
    for op in graph.ops:
        if op.op_class in FREE:
            continue
        host = _host(graph, op, groups, group_of)
        if host is None:
            host = len(groups)
            groups.append(FusedOp(op, []))
        groups[host].ops.append(op)
        for write in op.writes:
            group_of[graph.tensors[write.tensor].storage] = host
    _find_operands(graph, groups)
    return groups


def _host(graph: Graph, op: Op, groups: list[FusedOp], group_of: dict[str, int]) -> int | None:
    """Index of the group that an operator can join."""
    if op.op_class is not OpClass.ELEMENTWISE or not op.writes:
        return None
    sources = [
        (group_of[storage], read.tensor)
        for read in op.reads
        if (storage := graph.tensors[read.tensor].storage) in group_of
    ]
    if not sources:
        return None
    latest = max(group for group, _ in sources)
    if groups[latest].main.op_class not in _HOSTS:
        return None
    size = graph.tensors[op.writes[0].tensor].count
    aligned = all(
        graph.tensors[tensor].count == size for group, tensor in sources if group == latest
    )
    return latest if aligned else None


def _find_operands(graph: Graph, groups: list[FusedOp]) -> None:
    """Set the external reads and the needed writes of each group."""
    readers = defaultdict[str, set[int]](set)
    for index, group in enumerate(groups):
        for op in group.ops:
            for read in op.reads:
                readers[graph.tensors[read.tensor].storage].add(index)
    outputs = {graph.tensors[name].storage for name in graph.outputs}
    for index, group in enumerate(groups):
        written = _merge(graph, (access for op in group.ops for access in op.writes))
        needed = [w for w in written if w.tensor in outputs or readers[w.tensor] - {index}]
        # Work whose result nobody uses is still work that the file asks for: keep its last result.
        group.writes = needed or written[-1:]
        inside = {access.tensor for access in written}
        group.reads = [
            r
            for r in _merge(graph, (a for op in group.ops for a in op.reads))
            if r.tensor not in inside and r.bytes
        ]
        group.nests = tuple(_on_storage(graph, nest, inside, group) for nest in group.main.nests)


def _merge(graph: Graph, accesses: Iterable[Access]) -> list[Access]:
    """Merge accesses to one per storage, as large as the largest, because fused operators fetch a
    storage once."""
    largest: dict[str, Access] = {}
    for access in accesses:
        storage = graph.tensors[access.tensor].storage
        before = largest.get(storage, Access(storage, 0))
        operands = (*before.part_of, *(graph.tensors[name].storage for name in access.part_of))
        largest[storage] = Access(
            storage, max(access.bytes, before.bytes), part_of=tuple(dict.fromkeys(operands))
        )
    return list(largest.values())


def _on_storage(graph: Graph, nest: LoopNest, inside: set[str], group: FusedOp) -> LoopNest:
    """Name the operands of a nest by storage; if only fused operators read its result, the nest's
    output is the group's result."""

    def storage(name: str) -> str:
        """Return the storage of a tensor; empty for unknown ones."""
        return graph.tensors[name].storage if name in graph.tensors else ""

    output = storage(nest.output)
    kept = {access.tensor for access in group.writes}
    if output in inside and output not in kept:
        size = graph.tensors[nest.output].count
        output = next(
            (w.tensor for w in reversed(group.writes) if graph.tensors[w.tensor].count == size), ""
        )
    return replace(nest, input=storage(nest.input), weight=storage(nest.weight), output=output)

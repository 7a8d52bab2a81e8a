"""ExecuTorch's tensors, and the memory of its subgraphs, as buffers with lifetimes.

A tensor is alive from its first node to its last, both included. A tensor may be in another
tensor's storage, at an offset. Subgraphs (branches, loop bodies) are planned before their graph,
from address 0 of every arena on, and then moved as a whole to free addresses in the graph's plan.
Their results are returned without a copy, so their memory stays in use from the node that runs them
until the last use of the node's results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from executorch.exir.memory_planning import get_node_tensor_specs

from loadmaster.core.errors import AllocationError


@dataclass(frozen=True)
class Request:
    """A tensor with its own storage, and all tensors in that storage, itself first: (tensor, offset
    in bytes)."""

    spec: Any
    tensors: tuple[tuple[Any, int], ...]

    @property
    def arena(self) -> int | None:
        """Arena that an earlier pass has chosen. Raises `AllocationError` if it has chosen two."""
        chosen = {tensor.mem_id for tensor, _ in self.tensors} - {None}
        if len(chosen) > 1:
            raise AllocationError(
                f"a tensor of shape {list(self.spec.shape)} and what lies in its storage are in"
                f" arenas {sorted(chosen)}"
            )
        return int(chosen.pop()) if chosen else None

    @property
    def lifetime(self) -> tuple[int, int]:
        """First node, and the node after the last."""
        lifetimes = [tensor.lifetime for tensor, _ in self.tensors]
        return min(first for first, _ in lifetimes), max(last for _, last in lifetimes) + 1

    @property
    def size(self) -> int:
        """Size of the storage in bytes, a multiple of the alignment."""
        return max(int(tensor.allocated_memory) + offset for tensor, offset in self.tensors)


@dataclass(frozen=True)
class Held:
    """Memory of the subgraphs of a node, which run one after another at the same addresses: bytes
    by arena (``size``), alive over [lower, upper)."""

    lower: int
    upper: int
    size: Counter[int]
    subgraphs: tuple[torch.fx.GraphModule, ...] = ()

    def is_apart(self, other: Held) -> bool:
        """Return whether two nodes share no subgraph, which would have the same addresses for
        both."""
        return {*self.subgraphs}.isdisjoint(other.subgraphs)

    def joined(self, other: Held) -> Held:
        """Return the union of both entries, from the first node to the last use."""
        lower = min(self.lower, other.lower)
        upper = max(self.upper, other.upper)
        graphs = dict.fromkeys((*self.subgraphs, *other.subgraphs))
        return Held(lower, upper, self.size | other.size, tuple(graphs))

    def move(self, arena: int, by: int) -> None:
        """Move all tensors of the subgraphs in an arena by ``by`` bytes."""
        tensors = {
            id(spec): spec
            for graph in _with_inner(self.subgraphs)
            for node in graph.graph.nodes
            for spec in get_node_tensor_specs(node)
            if spec.mem_id == arena and spec.mem_offset is not None
        }
        for spec in tensors.values():
            spec.mem_offset += by


def requests_of(specs: Sequence[Any], alignment: int) -> list[Request]:
    """Group tensors by storage, with sizes rounded up to multiples of ``alignment``. O(tensors).

    Raises
    ------
    AllocationError
        If a tensor is in the storage of a tensor that is not planned, or in its own.
    """
    stored = {id(spec): [(spec, 0)] for spec in specs if base_of(spec)[0] is None}
    for spec in specs:
        spec.realign(alignment)
        base, offset, steps = spec, 0, 0
        while (found := base_of(base))[0] is not None:
            base, offset, steps = found[0], offset + found[1], steps + 1
            if steps > len(specs):
                raise AllocationError(
                    f"a tensor of shape {list(spec.shape)} lies in its own storage, by way of"
                    " others"
                )
        if base is spec:
            continue
        if id(base) not in stored:
            raise AllocationError(
                f"a tensor of shape {list(spec.shape)} lies in the storage of one that is not"
                " planned with it"
            )
        stored[id(base)].append((spec, offset))
    return [Request(spec, tuple(stored[id(spec)])) for spec in specs if id(spec) in stored]


def base_of(spec: Any) -> tuple[Any, int]:
    """Return the tensor in whose storage a tensor is (None: its own), and the offset in bytes,
    which is always 0 in ExecuTorch 1.4."""
    if hasattr(spec, "storage_base"):
        return spec.storage_base, int(spec.storage_base_offset)
    return getattr(spec, "inplace_base", None), 0


def held_by_subgraphs(graph_module: torch.fx.GraphModule) -> list[Held]:
    """Return the memory of the subgraphs of a graph's nodes, with its lifetimes; empty for devices
    other than the CPU."""
    if not getattr(graph_module, "input_mem_buffer_sizes", None):
        return []
    held: list[Held] = []
    for index, node in enumerate(graph_module.graph.nodes):
        subgraphs = tuple(_subgraphs(graph_module, node))
        sizes: Counter[int] = Counter()
        for subgraph in subgraphs:  # the most of each arena
            sizes |= Counter(dict(enumerate(subgraph.meta.get("non_const_buffer_sizes", ()))))
        if sizes:
            ends = (spec.lifetime[1] for spec in get_node_tensor_specs(node))
            last = max([index, *(end for end in ends if end is not None)])
            own = Held(index, last + 1, sizes, subgraphs)
            shared = [each for each in held if not own.is_apart(each)]
            apart = (each for each in held if own.is_apart(each))
            held = [*apart, reduce(Held.joined, shared, own)]
    return held


def _subgraphs(
    graph_module: torch.fx.GraphModule, node: torch.fx.Node
) -> Iterator[torch.fx.GraphModule]:
    """Yield the subgraphs that a node runs."""
    for operand in node.args if node.op == "call_function" else ():
        if isinstance(operand, torch.fx.Node) and operand.op == "get_attr":
            found = getattr(graph_module, str(operand.target), None)
            if isinstance(found, torch.fx.GraphModule):
                yield found


def _with_inner(graphs: Iterable[torch.fx.GraphModule]) -> Iterator[torch.fx.GraphModule]:
    """Yield graphs and all their subgraphs."""
    for graph in graphs:
        yield graph
        for node in graph.graph.nodes:
            yield from _with_inner(_subgraphs(graph, node))

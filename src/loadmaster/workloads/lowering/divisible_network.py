"""A network as everybody sees it who divides its operators: how each divides, and how it is cut
where nothing else is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp, fuse
from loadmaster.workloads.lowering.grid import Divisible, divisible
from loadmaster.workloads.lowering.pieces import Cut
from loadmaster.workloads.lowering.single_assignment import without_updates
from loadmaster.workloads.lowering.split import WHOLE, choose_split, sizes_for


def divides_sums(target: Target) -> bool:
    """Whether operators may be cut along what they sum over: where all that a piece touches must
    lie in the fast memory together.

    Elsewhere what a core needs may stay in main memory, from where its private buffer is refilled,
    which holds the sums.
    """
    return not target.main.in_place


@dataclass(frozen=True, eq=False)
class DivisibleNetwork:
    """A network on a machine: ``source`` as it was read, ``graph`` with every tensor written once,
    and its fused operators.

    ``forms`` says how each fused operator divides, or None; ``plain`` how it is cut where it is not
    divided: only as far as it exceeds the fast memory.
    """

    source: Graph
    graph: Graph
    fused: Sequence[FusedOp]
    forms: Sequence[Divisible | None]
    plain: list[Cut]

    @staticmethod
    def of(source: Graph, target: Target, *, sums: bool = False) -> DivisibleNetwork:
        """Fuse a network's operators and look at each, with ``sums`` at what they sum over, too;
        O(operators + operands)."""
        graph = without_updates(source)
        fused = fuse(graph)
        room, sizes = target.fast.capacity if target.fast else None, sizes_for(target)
        plain: list[Cut] = [choose_split(group, room, sizes) if room else WHOLE for group in fused]
        return DivisibleNetwork(
            source, graph, fused, [divisible(graph, group, sums=sums) for group in fused], plain
        )

"""Operators that differ in nothing but names: what is worked out for one of them holds for all.

Networks repeat blocks, language models dozens of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible


def signature(graph: Graph, group: FusedOp, form: Divisible) -> object:
    """What the costs of an operator's pieces follow from, names left out."""
    names: dict[str, str] = {}

    def alias(name: str) -> str:
        return names.setdefault(name, str(len(names)))

    nests = tuple(
        replace(n, input=alias(n.input), weight=alias(n.weight), output=alias(n.output))
        for n in group.nests
    )
    reads = tuple(
        (
            alias(storage),
            graph.tensors[storage].bytes,
            tuple((graph.tensors[name].shape, windows) for name, windows in uses),
        )
        for storage, uses in form.uses.items()
    )
    writes = tuple(
        (alias(access.tensor), graph.tensors[access.tensor].bytes) for access in group.writes
    )
    return form.shape, form.step, group.elements, group.main.bits, nests, reads, writes


def first_alike(
    graph: Graph, fused: Sequence[FusedOp], forms: Sequence[Divisible | None]
) -> list[int]:
    """For every operator the first that is like it; one that does not divide is like no other.
    O(operators + operands)."""
    known: dict[object, int] = {}
    return [
        number if form is None else known.setdefault(signature(graph, group, form), number)
        for number, (group, form) in enumerate(zip(fused, forms, strict=True))
    ]

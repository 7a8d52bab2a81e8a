"""Operators, and runs of operators, that differ in nothing but names: what is worked out for one of
them holds for all.

Networks repeat blocks, language models dozens of times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadmaster.planning.cutting.banding import Network
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


class Runs:
    """Runs of operators that follow one another, known by a number that runs have in common which
    are alike.

    Runs are alike if their operators are, in order, and have the same results and operands in
    common; if what they read is of the same kinds, and the same of what they make is needed behind
    them. A run that is one operator longer takes O(operands of that operator).
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._first_alike = first_alike(network.graph, network.fused, network.forms)
        self._number: dict[object, int] = {}
        # Of all runs that end with one operator, their numbers, how many storages each has, and
        # these.
        self._ending: dict[int, tuple[list[tuple[int, int]], dict[str, int]]] = {}

    def of(self, first: int, last: int) -> tuple[int, tuple[str, ...]]:
        """The number of a run, and the storages that it reads and writes, in an order that is the
        same for runs that are alike."""
        found, names = self._ending.setdefault(last, ([], {}))
        while len(found) < last - first:
            longer = self._row(last - len(found) - 1, last, names), found[-1][0] if found else -1
            found.append((self._number.setdefault(longer, len(self._number)), len(names)))
        number, count = found[last - first - 1]
        return number, tuple(names)[:count]

    def _row(self, number: int, last: int, names: dict[str, int]) -> object:
        network = self._network
        group, tensors = network.fused[number], network.graph.tensors
        reads = tuple(
            (names.setdefault(a.tensor, len(names)), a.bytes, tensors[a.tensor].kind)
            for a in group.reads
        )
        writes = tuple(
            (names.setdefault(a.tensor, len(names)), network.leaves(a.tensor, last))
            for a in group.writes
        )
        return self._first_alike[number], reads, writes

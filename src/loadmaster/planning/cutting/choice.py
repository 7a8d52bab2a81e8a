"""Cuts of all operators of some networks, chosen together: pieces begin when what they read exists,
and cores and links are shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.effort import Effort
from loadmaster.planning.cutting.options import Option
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph, TensorKind
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible, Grid
from loadmaster.workloads.window import Box, reshaped_boxes, volumes, whole

_MOST_MINI_BATCHES = 4
"""Mini-batches that are run together, at most: more tell little else about how to cut."""
ROOM = 0.9
"""Share of the fast memory that what pieces touch, weights before their use and what lies between
operators fill together: the rest lets addresses be found."""
_LEAST_ROOM = 0.3
"""Share of the fast memory that weights may fill before their use where more lies between operators
than fits: it need not all stay."""
_EVERYTHING = (0, 2**31)

Chosen = tuple[int, ...]
"""The number of an option for every operator of all networks."""


@dataclass(frozen=True)
class Choosable:
    """A network's fused operators, what their pieces need where that is known, and the options to
    cut each; the first leaves it whole."""

    graph: Graph
    fused: Sequence[FusedOp]
    forms: Sequence[Divisible | None]
    options: Sequence[Sequence[Option]]

    @cached_property
    def home(self) -> dict[str, int]:
        """The operator that writes each storage."""
        return {
            access.tensor: number
            for number, group in enumerate(self.fused)
            for access in group.writes
        }


class CutChoice:
    """Chooses one option for every operator of some networks by a model of how their pieces run,
    all networks and mini-batches together."""

    def __init__(
        self,
        networks: Sequence[Choosable],
        target: Target,
        mini_batches: int = 1,
        effort: Effort = Effort.NORMAL,
    ) -> None:
        self.networks, self._pieces = networks, effort.pieces
        self._order = _side_by_side(networks)
        together = min(mini_batches, _MOST_MINI_BATCHES)
        self._native = _native.CutProblem(**_arguments(networks, self._order, target, together))

    def improved(self) -> Chosen:
        """Coordinate descent over the options of operators, from the first of each on, by the
        makespan of the model."""
        return tuple(self._native.improve(self._pieces).tolist())

    def cuts(self, chosen: Chosen) -> list[list[Grid]]:
        """How the operators of every network are cut with an option for each."""
        found: list[list[Grid]] = [[] for _ in self.networks]
        for (network, number), option in zip(self._order, chosen, strict=True):
            found[network].append(self.networks[network].options[number][option].cut)
        return found


def _side_by_side(networks: Sequence[Choosable]) -> list[tuple[int, int]]:
    """Network and number of all operators, in an order in which each network has the same share of
    its work done at any time."""
    found = []
    for number, network in enumerate(networks):
        work = np.array([own[0].costs.alone.min(axis=1).sum() for own in network.options])
        done = (np.cumsum(work) - work) / max(work.sum(), 1e-30)
        found += [(share, number, op) for op, share in enumerate(done.tolist())]
    return [(number, op) for _, number, op in sorted(found)]


class _Boxes:
    """What the pieces of all options make and need, and the operators that they need it of.

    Boxes are rows of ``2 * rank`` numbers, a piece of an option each; of a piece that is not known
    by its box all is made and needed.
    """

    def __init__(self, network: Choosable, rank: int) -> None:
        self.graph = network.graph
        self.fused = network.fused
        self.forms = network.forms
        self.options = network.options
        self.home = network.home
        self.rank = rank
        self._boxes = [
            _boxes(form, own) for form, own in zip(self.forms, self.options, strict=True)
        ]

    def sources(self, number: int) -> list[tuple[str, int]]:
        """Storages that an operator reads, and the operators that write them."""
        return [
            (access.tensor, self.home[access.tensor])
            for access in self.fused[number].reads
            if access.tensor in self.home
        ]

    def made(self, number: int) -> Ints:
        """Box of the result of every piece of every option of an operator."""
        known, boxes = self._boxes[number]
        return self._rows(known, boxes)

    def needed(self, number: int) -> Ints:
        """Box of each of an operator's sources that every piece of every option needs, the sources
        of a piece behind one another."""
        known, _ = self._boxes[number]
        parts = [
            self._rows(known, self._made_of(self._needed(number, storage), storage, home))
            for storage, home in self.sources(number)
        ]
        return (
            np.stack(parts, axis=1).reshape(-1, 2 * self.rank)
            if parts
            else np.empty((0, 2 * self.rank), dtype=np.int64)
        )

    def given(self, number: int) -> dict[str, int]:
        """Bytes of each storage that an operator reads and no operator makes."""
        tensors = self.graph.tensors
        reads = [access.tensor for access in self.fused[number].reads]
        return {
            storage: tensors[storage].bytes
            for storage in reads
            if tensors[storage].kind is not TensorKind.ACTIVATION
        }

    def fetched(self, number: int) -> Floats:
        """Bytes of what is given that every piece of an operator's options needs, and none before
        it; of what is streamed nothing."""
        options = self.options[number]
        known, _ = self._boxes[number]
        option = np.repeat(np.arange(len(options)), [own.cut.tiles for own in options])
        read = np.flatnonzero(np.concatenate([own.costs.stream for own in options]) == 0)
        bytes_of = np.zeros(len(option))
        for storage, size in self.given(number).items():
            shape = self.graph.tensors[storage].shape
            parts = np.tile(
                np.array(whole(shape), dtype=np.int64).reshape(-1, 2), (len(option), 1, 1)
            )
            parts[known] = self._needed(number, storage)
            rows = np.column_stack([option, parts.reshape(len(option), -1)])[read]
            first = read[np.unique(rows, axis=0, return_index=True)[1]]
            bytes_of[first] += size * (volumes(parts[first]) / max(1, math.prod(shape)))
        return bytes_of

    def _needed(self, number: int, storage: str) -> Ints:
        """Boxes of a storage that the pieces which are known by their boxes need."""
        form, (_, boxes) = self.forms[number], self._boxes[number]
        rank = len(self.graph.tensors[storage].shape)
        return (
            np.empty((0, rank, 2), dtype=np.int64)
            if form is None
            else form.uses[storage].needed_boxes(boxes)
        )

    def _made_of(self, boxes: Ints, storage: str, home: int) -> Ints:
        """Boxes of a storage as ones of the result of the operator that makes it."""
        form, shape = self.forms[home], self.graph.tensors[storage].shape
        if form is None or form.shape == shape:
            return boxes
        return reshaped_boxes(boxes, shape, form.shape)

    def _rows(self, known: Mask, boxes: Ints) -> Ints:
        """Boxes as native code takes them: all in dimensions that there are not, and of what is not
        known."""
        rows = np.tile(np.array(_EVERYTHING, dtype=np.int64), (len(known), self.rank, 1))
        rows[known, : boxes.shape[1]] = boxes
        return rows.reshape(len(known), 2 * self.rank)


def _boxes(form: Divisible | None, options: Sequence[Option]) -> tuple[Mask, Ints]:
    """Which pieces of all options are known by the part of the result that they make, and these
    parts, shape (known, dimensions, 2)."""
    known = list[bool]()
    boxes = list[Box]()
    rank = 0 if form is None else len(form.shape)
    for cut in (option.cut for option in options):
        own = cut.boxes if cut.shape and not cut.sums else ()
        known += [bool(own)] * cut.tiles
        boxes += own
    return np.array(known, dtype=np.bool_), np.array(boxes, dtype=np.int64).reshape(
        len(boxes), rank, 2
    )


def _arguments(
    networks: Sequence[Choosable],
    order: Sequence[tuple[int, int]],
    target: Target,
    mini_batches: int,
) -> dict[str, Any]:
    """What native code is told of the options."""
    shapes = [
        n.graph.tensors[access.tensor].shape
        for n in networks
        for group in n.fused
        for access in group.writes
    ]
    shapes += [form.shape for n in networks for form in n.forms if form is not None]
    rank = max(map(len, shapes), default=0)
    boxes = [_Boxes(network, rank) for network in networks]
    at = {pair: position for position, pair in enumerate(order)}
    options = [networks[n].options[number] for n, number in order]
    every = [option for own in options for option in own]
    sources = [[at[n, home] for _, home in boxes[n].sources(number)] for n, number in order]
    per_piece = [
        len(own)
        for own, mine in zip(sources, options, strict=True)
        for option in mine
        for _ in range(option.cut.tiles)
    ]
    return {
        "option_first": _until([len(own) for own in options]),
        "piece_first": _until([option.cut.tiles for option in every]),
        "need_first": _until(per_piece),
        "alone": np.concatenate([option.costs.alone for option in every]),
        "link": np.concatenate([option.costs.link for option in every]),
        "made": np.concatenate([boxes[n].made(number) for n, number in order]),
        "needed": np.concatenate([boxes[n].needed(number) for n, number in order]),
        "source_first": _until([len(own) for own in sources]),
        "source": np.array([home for own in sources for home in own], dtype=np.int64),
        "fetch": np.concatenate([boxes[n].fetched(number) for n, number in order])
        / target.main.read_bandwidth,
        "stream": np.concatenate([option.costs.stream for option in every]),
        "copied": target.main.read_bandwidth / target.near.write_bandwidth if target.room else 0.0,
        "given": np.array(
            [sum(boxes[n].given(number).values()) for n, number in order], dtype=np.int64
        ),
        "room": _room(networks, order, target.room, mini_batches)
        if target.room
        else np.full(len(order), 2**60),
        "mini_batches": mini_batches,
    }


def _room(
    networks: Sequence[Choosable],
    order: Sequence[tuple[int, int]],
    capacity: int,
    mini_batches: int,
) -> Ints:
    """Bytes of the fast memory that are free of what lies between operators while each runs; a
    share of all of it at least."""
    alive = [alive_between(network.graph, network.fused).tolist() for network in networks]
    now, free = [own[0] for own in alive], []
    for network, number in order:
        now[network] = alive[network][number]
        free.append(capacity * ROOM - mini_batches * sum(now))
    return np.asarray(np.maximum(capacity * _LEAST_ROOM, free), dtype=np.int64)


def alive_between(graph: Graph, fused: Sequence[FusedOp]) -> Ints:
    """Bytes of what operators make and others read, or have read, that lie there while each
    operator runs. O(operators + operands)."""
    change = np.zeros(len(fused) + 1, dtype=np.int64)
    made = {access.tensor: number for number, group in enumerate(fused) for access in group.writes}
    last = {
        access.tensor: number
        for number, group in enumerate(fused)
        for access in (*group.writes, *group.reads)
    }
    for storage in last.keys() & made.keys():
        change[made[storage]] += graph.tensors[storage].bytes
        change[last[storage] + 1] -= graph.tensors[storage].bytes
    return np.asarray(np.cumsum(change)[:-1], dtype=np.int64)


def _until(counts: Sequence[int]) -> Ints:
    return np.cumsum([0, *counts], dtype=np.int64)

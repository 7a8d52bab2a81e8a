"""Chooses cuts of all operators together, by local search on a simulation of the pieces: they wait
for their operands and share cores and links."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints, Mask
from loadmaster.core.effort import Effort
from loadmaster.planning.cutting.options import CutOption, operator_options
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import TensorKind
from loadmaster.workloads.lowering.grid import Divisible, Grid
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork
from loadmaster.workloads.window import Box, reshaped_boxes, volumes, whole_boxes

_MOST_MINI_BATCHES = 4
"""Most mini-batches that are simulated together: more hardly change the choice."""
ROOM = 0.9
"""Share of the fast memory that operands, prefetched weights and activations may fill; the rest is
for fragmentation."""
_LEAST_ROOM = 0.3
"""Share of the fast memory for prefetched weights even if activations exceed the memory: some of
these are evicted."""
_EVERYTHING = (0, 2**31)

Chosen = Sequence[int]
"""The index of an option for every operator of all networks."""


Options = Sequence[Sequence[CutOption]]
"""The options of every operator of a network; the first of each is the plain cut."""


class CutChoice:
    """Chooses one option for every operator, by a simulation of all networks and mini-batches
    together."""

    def __init__(
        self,
        networks: Sequence[DivisibleNetwork],
        target: Target,
        mini_batches: int = 1,
        effort: Effort = Effort.NORMAL,
    ) -> None:
        self.options = [operator_options(network, target) for network in networks]
        self._pieces = effort.pieces
        self._order = _side_by_side(self.options)
        together = min(mini_batches, _MOST_MINI_BATCHES)
        self._native = _native.CutProblem(
            **_arguments(networks, self.options, self._order, target, together)
        )

    def improved(self) -> Sequence[Chosen]:
        """Minimise the simulated makespan over the options of operators, from the first option of
        each: by coordinate descent, then twice by simulated annealing. The best is first.

        The model knows too little of the memories to tell which of these has the best plan.
        """
        return self._native.improve(self._pieces)

    def cuts(self, chosen: Chosen) -> list[Cuts]:
        """Cuts of the operators of every network, for the chosen options."""
        found: list[list[Grid]] = [[] for _ in self.options]
        for (network, number), option in zip(self._order, chosen, strict=True):
            found[network].append(self.options[network][number][option].cut)
        return [Cuts(own) for own in found]


def _side_by_side(options: Sequence[Options]) -> list[tuple[int, int]]:
    """All operators as (network, number), in an order in which networks progress at the same rate,
    by share of their work."""
    found = []
    for number, of_network in enumerate(options):
        work = np.array([own[0].costs.alone.min(axis=1).sum() for own in of_network])
        done = (np.cumsum(work) - work) / max(work.sum(), 1e-30)
        found += [(share, number, op) for op, share in enumerate(done.tolist())]
    return [(number, op) for _, number, op in sorted(found)]


class _Boxes:
    """Boxes that the pieces of all options make, and that they need of their sources.

    A box is a row of ``2 * rank`` numbers, one for every piece of every option. A piece without a
    known box makes and needs everything.
    """

    def __init__(self, network: DivisibleNetwork, options: Options, rank: int) -> None:
        self.network, self.options, self.rank = network, options, rank
        self._boxes = [_boxes(form, own) for form, own in zip(network.forms, options, strict=True)]

    def sources(self, number: int) -> list[tuple[str, int]]:
        """(Storage, operator that writes it) for every storage that an operator reads and an
        operator makes."""
        home = self.network.home
        return [
            (access.tensor, home[access.tensor])
            for access in self.network.fused[number].reads
            if access.tensor in home
        ]

    def made(self, number: int) -> Ints:
        """Box that every piece of every option of an operator makes."""
        known, boxes = self._boxes[number]
        return self._rows(known, boxes)

    def needed(self, number: int) -> Ints:
        """Boxes that every piece of every option needs, one for each source, grouped by piece."""
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
        """Bytes of each weight and input that an operator reads."""
        tensors = self.network.graph.tensors
        reads = [access.tensor for access in self.network.fused[number].reads]
        return {
            storage: tensors[storage].bytes
            for storage in reads
            if tensors[storage].kind is not TensorKind.ACTIVATION
        }

    def fetched(self, number: int) -> Floats:
        """Bytes of weights and inputs that every piece is the first of its option to need; 0 for
        pieces that stream."""
        options = self.options[number]
        known, _ = self._boxes[number]
        option = np.repeat(np.arange(len(options)), [own.cut.tiles for own in options])
        read = np.flatnonzero(np.concatenate([own.costs.stream for own in options]) == 0)
        bytes_of = np.zeros(len(option))
        for storage, size in self.given(number).items():
            shape = self.network.graph.tensors[storage].shape
            parts = whole_boxes(shape, len(option))
            parts[known] = self._needed(number, storage)
            rows = np.column_stack([option, parts.reshape(len(option), -1)])[read]
            first = read[np.unique(rows, axis=0, return_index=True)[1]]
            bytes_of[first] += size * (volumes(parts[first]) / max(1, math.prod(shape)))
        return bytes_of

    def _needed(self, number: int, storage: str) -> Ints:
        """Boxes of a storage that the pieces with known boxes need."""
        form, (_, boxes) = self.network.forms[number], self._boxes[number]
        rank = len(self.network.graph.tensors[storage].shape)
        return (
            np.empty((0, rank, 2), dtype=np.int64)
            if form is None
            else form.uses[storage].needed_boxes(boxes)
        )

    def _made_of(self, boxes: Ints, storage: str, home: int) -> Ints:
        """Convert boxes of a storage to the shape of the result of the operator that makes it."""
        form, shape = self.network.forms[home], self.network.graph.tensors[storage].shape
        if form is None or form.shape == shape:
            return boxes
        return reshaped_boxes(boxes, shape, form.shape)

    def _rows(self, known: Mask, boxes: Ints) -> Ints:
        """Boxes as rows for native code: everything in missing dimensions and for pieces without a
        known box."""
        rows = np.tile(np.array(_EVERYTHING, dtype=np.int64), (len(known), self.rank, 1))
        rows[known, : boxes.shape[1]] = boxes
        return rows.reshape(len(known), 2 * self.rank)


def _boxes(form: Divisible | None, options: Sequence[CutOption]) -> tuple[Mask, Ints]:
    """Mask of the pieces of all options that have a known box of the result, and these boxes, shape
    (known, dimensions, 2)."""
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
    networks: Sequence[DivisibleNetwork],
    options_of: Sequence[Options],
    order: Sequence[tuple[int, int]],
    target: Target,
    mini_batches: int,
) -> dict[str, Any]:
    """The options as arrays for native code."""
    shapes = [
        n.graph.tensors[access.tensor].shape
        for n in networks
        for group in n.fused
        for access in group.writes
    ]
    shapes += [form.shape for n in networks for form in n.forms if form]
    rank = max([1, *map(len, shapes)])
    boxes = [_Boxes(*each, rank) for each in zip(networks, options_of, strict=True)]
    at = {pair: position for position, pair in enumerate(order)}
    options = [options_of[n][number] for n, number in order]
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
        # Without a fast memory, and with one of any size, no more than what none can fill.
        "room": _room(networks, order, min(target.room or 2**60, 2**60), mini_batches),
        "mini_batches": mini_batches,
    }


def _room(
    networks: Sequence[DivisibleNetwork],
    order: Sequence[tuple[int, int]],
    capacity: int,
    mini_batches: int,
) -> Ints:
    """Bytes of the fast memory left by the activations that are alive while each operator runs; at
    least :data:`_LEAST_ROOM`."""
    alive = [alive_between(network).tolist() for network in networks]
    now, free = [own[0] for own in alive], []
    for network, number in order:
        now[network] = alive[network][number]
        free.append(capacity * ROOM - mini_batches * sum(now))
    return np.asarray(np.maximum(capacity * _LEAST_ROOM, free), dtype=np.int64)


def alive_between(network: DivisibleNetwork) -> Ints:
    """Bytes of activations that are alive while each operator runs. O(operators + operands)."""
    change = np.zeros(len(network.fused) + 1, dtype=np.int64)
    last = {
        access.tensor: number
        for number, group in enumerate(network.fused)
        for access in (*group.writes, *group.reads)
    }
    for storage, maker in network.home.items():
        size = network.graph.tensors[storage].bytes
        change[maker] += size
        change[last[storage] + 1] -= size
    return np.asarray(np.cumsum(change)[:-1], dtype=np.int64)


def _until(counts: Sequence[int]) -> Ints:
    """Return the sums of all counts before each, and of all."""
    return np.cumsum([0, *counts], dtype=np.int64)

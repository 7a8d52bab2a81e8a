"""Cuts of all operators of a network, chosen together: pieces begin when what they read exists, and cores and links are shared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Ints
from loadmaster.planning.cutting.options import Option
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph, TensorKind
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import Divisible, Grid
from loadmaster.workloads.lowering.instantiate import Cut
from loadmaster.workloads.window import Box, volume

_WIDTH = 32
"""Ways to cut all operators up to some operator that the search keeps in mind."""
_MOST_RUN = 500_000
"""Operators that are run to improve on it."""
_ROOM = 0.9
"""Share of the fast memory that weights before their use and what lies between operators fill together."""
_LEAST_ROOM = 0.3
"""Share of the fast memory that weights may fill before their use where more lies between operators than fits: it need not all stay."""
_EVERYTHING = (0, 2**31)

Chosen = tuple[int, ...]
"""The number of an option for every operator."""


class CutChoice:
    """Chooses one option for every operator of a network by a model of how their pieces run."""

    def __init__(
        self, graph: Graph, fused: Sequence[FusedOp], forms: Sequence[Divisible | None], options: Sequence[Sequence[Option]], target: Target
    ) -> None:
        self._options = options
        self._native = _native_problem(_Boxes(graph, fused, forms, options), options, target)

    def best(self, patience: float) -> Chosen:
        """The options with which all ends early (``patience`` 1), with which cores are soon free for other work (0), or in between."""
        chosen, _ = self._native.choose(_WIDTH, patience)
        return tuple(chosen.tolist())

    def improved(self, chosen: Chosen) -> Chosen:
        """Options that differ from those chosen where, one after the other, this makes all end earlier by the model."""
        better, _ = self._native.improve(np.array(chosen, dtype=np.int64), _MOST_RUN)
        return tuple(better.tolist())

    def cuts(self, chosen: Chosen) -> list[Cut]:
        """How operators are cut with an option for each."""
        return [own[option].cut for own, option in zip(self._options, chosen, strict=True)]

    def changes(self, chosen: Chosen) -> list[tuple[float, Chosen]]:
        """All that differs in one operator, with the time that the model gives it over that of what is chosen. O(options x operators)."""
        least = self.seconds(chosen)
        found = []
        for number, own in enumerate(self._options):
            for option in range(len(own)):
                if option != chosen[number]:
                    other = (*chosen[:number], option, *chosen[number + 1 :])
                    found.append((self.seconds(other) / least, other))
        return found

    def seconds(self, chosen: Chosen) -> float:
        """Seconds until all ends with an option for every operator, by the model."""
        return self._native.makespan(np.array(chosen, dtype=np.int64))


class _Boxes:
    """What the pieces of all options make and need, and the operators that they need it of."""

    def __init__(
        self, graph: Graph, fused: Sequence[FusedOp], forms: Sequence[Divisible | None], options: Sequence[Sequence[Option]]
    ) -> None:
        self.graph, self.fused, self.forms, self.options = graph, fused, forms, options
        self.home = {access.tensor: number for number, group in enumerate(fused) for access in group.writes}
        self.rank = max((len(graph.tensors[name].shape) for name in self.home), default=0)

    def sources(self, number: int) -> list[tuple[str, int]]:
        """Storages that an operator reads, and the operators that write them."""
        return [(access.tensor, self.home[access.tensor]) for access in self.fused[number].reads if access.tensor in self.home]

    def made(self) -> Iterator[list[int]]:
        """Box of the result of every piece of every option."""
        for own in self.options:
            yield from (self._row(box or ()) for option in own for box in _boxes(option.cut))

    def needed(self) -> Iterator[list[int]]:
        """Box of each of its operator's sources that every piece of every option needs."""
        for number, form in enumerate(self.forms):
            sources = [storage for storage, _ in self.sources(number)]
            known: dict[Box | None, list[list[int]]] = {None: [self._row(())] * len(sources)}
            for option in self.options[number]:
                for box in _boxes(option.cut):
                    if box is not None and box not in known:
                        assert form is not None
                        known[box] = [self._row(form.needed(self.graph, storage, box)) for storage in sources]
                    yield from known[box]

    def given(self, number: int) -> dict[str, int]:
        """Bytes of each storage that an operator reads and no operator makes."""
        tensors = self.graph.tensors
        reads = [access.tensor for access in self.fused[number].reads]
        return {storage: tensors[storage].bytes for storage in reads if tensors[storage].kind is not TensorKind.ACTIVATION}

    def fetched(self) -> Iterator[float]:
        """Bytes of what is given that every piece of every option needs and none before it does; of what is streamed nothing."""
        for number, own in enumerate(self.options):
            for option in own:
                met: set[tuple[str, Box | None]] = set()
                for box, streamed in zip(_boxes(option.cut), option.costs.stream.tolist(), strict=True):
                    yield 0.0 if streamed else sum(self._first_bytes(number, box, met))

    def _first_bytes(self, number: int, box: Box | None, met: set[tuple[str, Box | None]]) -> Iterator[float]:
        form = self.forms[number]
        for storage, size in self.given(number).items():
            part = None if form is None or box is None else form.needed(self.graph, storage, box)
            if (storage, part) not in met:
                met.add((storage, part))
                yield size if part is None else size * volume(part) / max(1, math.prod(self.graph.tensors[storage].shape))

    def _row(self, box: Box) -> list[int]:
        """A box as native code takes it; what is not known is all."""
        ranges = (*box, *(_EVERYTHING,) * (self.rank - len(box)))
        return list(itertools.chain.from_iterable(ranges))


def _boxes(cut: Cut) -> Sequence[Box | None]:
    """The part of the result that each piece makes, where that is known."""
    return cut.boxes if isinstance(cut, Grid) else [None] * cut.tiles


def _native_problem(boxes: _Boxes, options: Sequence[Sequence[Option]], target: Target) -> _native.CutProblem:
    every = [option for own in options for option in own]
    sources = [[home for _, home in boxes.sources(number)] for number in range(len(options))]
    per_piece = [len(own) for own, mine in zip(sources, options, strict=True) for option in mine for _ in range(option.cut.tiles)]
    fast = target.fast
    return _native.CutProblem(
        option_first=_until([len(own) for own in options]),
        piece_first=_until([option.cut.tiles for option in every]),
        need_first=_until(per_piece),
        alone=np.concatenate([option.costs.alone for option in every]),
        link=np.concatenate([option.costs.link for option in every]),
        made=_table(boxes.made(), boxes.rank),
        needed=_table(boxes.needed(), boxes.rank),
        source_first=_until([len(own) for own in sources]),
        source=np.array([home for own in sources for home in own], dtype=np.int64),
        fetch=np.array(list(boxes.fetched())) / target.main.read_bandwidth,
        stream=np.concatenate([option.costs.stream for option in every]),
        copied=target.main.read_bandwidth / fast.write_bandwidth if fast else 0.0,
        given=np.array([sum(boxes.given(number).values()) for number in range(len(options))], dtype=np.int64),
        room=_room(boxes, fast.capacity) if fast else np.full(len(options), 2**60),
    )


def _room(boxes: _Boxes, capacity: int) -> Ints:
    """Bytes of the fast memory that are free of what lies between operators while each runs; a share of all of it at least."""
    free = capacity * _ROOM - alive_between(boxes.graph, boxes.fused)
    return np.asarray(np.maximum(capacity * _LEAST_ROOM, free), dtype=np.int64)


def alive_between(graph: Graph, fused: Sequence[FusedOp], with_given: bool = False) -> Ints:
    """Bytes of what operators make and others read, or have read, that lie there while each operator runs. O(operators + operands).

    ``with_given`` counts weights and inputs too, at the last operator that reads them.
    """
    change = np.zeros(len(fused) + 1, dtype=np.int64)
    made = {access.tensor: number for number, group in enumerate(fused) for access in group.writes}
    last = {access.tensor: number for number, group in enumerate(fused) for access in (*group.writes, *group.reads)}
    for storage, until in last.items():
        if with_given or storage in made:
            change[made.get(storage, until)] += graph.tensors[storage].bytes
            change[until + 1] -= graph.tensors[storage].bytes
    return np.asarray(np.cumsum(change)[:-1], dtype=np.int64)


def _until(counts: Sequence[int]) -> Ints:
    return np.cumsum([0, *counts], dtype=np.int64)


def _table(rows: Iterator[list[int]], rank: int) -> Ints:
    return np.array(list(rows), dtype=np.int64).reshape(-1, 2 * rank)

"""Operators of a network cut into bands of rows or of columns: what each band needs, and where the
bands of a stack of operators end.

What is said of rows holds for columns where a network is seen along its columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.workloads.graph import Graph, LoopNest, TensorKind
from loadmaster.workloads.lowering.fuse import FusedOp
from loadmaster.workloads.lowering.grid import CHANNELS, Divisible
from loadmaster.workloads.window import Box, whole

_AHEAD = 16
"""Steps before the first band, at most."""


@dataclass(frozen=True)
class Stack:
    """Operators ``first`` up to ``last`` (not included) in ``bands`` bands; one operator in one
    band stays as it is.

    Bands are of rows, or of ``columns``. In a ``skewed`` stack an operator is a band behind the one
    before it, so that cores can work on all of them at once; else a band passes through all
    operators before the next one does. A single operator may be cut over its output ``channels``
    too: a part of these makes all bands before the next part does, so that its weights stay
    meanwhile. A stack of several may be cut across its bands into ``stripes``: all bands of one
    come before those of the next.
    """

    first: int
    last: int
    bands: int
    columns: bool = False
    skewed: bool = False
    channels: int = 1
    stripes: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether it is one operator that stays as it is."""
        return self.bands == self.channels == 1


@dataclass
class Network:
    """A network's fused operators, how each divides, and who reads what each writes; seen along its
    rows or its ``columns``."""

    graph: Graph
    fused: Sequence[FusedOp]
    forms: Sequence[Divisible | None]
    columns: bool = False
    home: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    _edges: dict[Any, tuple[Ints, Ints]] = field(default_factory=dict)
    _last_reader: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, group in enumerate(self.fused):
            for access in group.reads:
                self.readers.setdefault(access.tensor, []).append(number)
            for access in group.writes:
                self.home[access.tensor] = number
        self._last_reader = {storage: readers[-1] for storage, readers in self.readers.items()}
        self.outputs = {self.graph.tensors[name].storage for name in self.graph.outputs}

    def along(self, columns: bool) -> Network:
        """The same network seen along its columns, or its rows."""
        return (
            self
            if columns == self.columns
            else Network(self.graph, self.fused, self.forms, columns)
        )

    def bytes_of(self, storage: str) -> int:
        """Bytes of a storage."""
        return self.graph.tensors[storage].bytes

    def is_weight(self, storage: str) -> bool:
        """Whether a storage is the same for all bands."""
        return self.graph.tensors[storage].kind is TensorKind.WEIGHT

    def leaves(self, storage: str, last: int) -> bool:
        """Whether operators from ``last`` on, or the caller, need a storage."""
        return storage in self.outputs or self._last_reader.get(storage, -1) >= last

    def rows(self, number: int) -> int | None:
        """The dimension of an operator's result that holds its rows, if it can be cut along it."""
        form = self.forms[number]
        if form is None:
            return None
        axis = self._axis(form.shape)
        return axis if axis in form.axes else None

    def extent(self, number: int) -> int:
        """Rows of an operator's result; it must have some."""
        form, axis = self.forms[number], self.rows(number)
        assert form is not None
        assert axis is not None
        return form.shape[axis]

    def step(self, number: int) -> int:
        """Of how many rows the pieces of an operator's result are multiples."""
        form, axis = self.forms[number], self.rows(number)
        assert form is not None
        assert axis is not None
        return form.step[axis]

    def channels(self, number: int) -> int | None:
        """The dimension of an operator's result that holds its output channels, if it can be cut
        along it and not along its rows alone."""
        form, nests = self.forms[number], self.fused[number].nests
        if form is None or len(nests) != 1 or CHANNELS not in nests[0].loops:
            return None
        axis = nests[0].loops.index(CHANNELS)
        return axis if axis in form.axes and axis != self.rows(number) else None

    def ways(
        self, number: int, bands: Sequence[int], channels: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Numbers of bands and of parts of the channels into which an operator can be cut; the
        latter are 1 where it has no channels."""
        most = 1 if self.rows(number) is None else self.extent(number)
        able = [count for count in bands if count <= most]
        # Of both together, bands that are powers of two are enough.
        few = [count for count in able if count & (count - 1) == 0]
        return [
            *((count, 1) for count in able),
            *itertools.product(few, self.parts(number, channels)),
        ]

    def parts(self, number: int, channels: Sequence[int]) -> list[int]:
        """Numbers of parts into which an operator's output channels can be cut."""
        axis, form = self.channels(number), self.forms[number]
        return (
            []
            if axis is None or form is None
            else [count for count in channels if count <= form.shape[axis] // form.step[axis]]
        )

    def middle(self, number: int, bands: int, channels: int) -> Box:
        """The piece in the middle of the result of an operator that divides."""
        form = self.forms[number]
        assert form is not None
        box = list(whole(form.shape))
        for axis, count in ((self.rows(number), bands), (self.channels(number), channels)):
            if axis is not None and count > 1:
                extent = form.shape[axis]
                length = max(-(-extent // count), form.step[axis])
                box[axis] = ((extent - length) // 2, (extent - length) // 2 + length)
        return tuple(box)

    def edge(self, reader: int, storage: str) -> tuple[Ints, Ints]:
        """Rows of a storage that rows of an operator's result need: where those of row ``r`` begin,
        and where those up to ``r`` end.

        Operators that divide alike share what is worked out.
        """
        if (reader, storage) not in self._edges:
            self._edges[reader, storage] = self._alike_edge(reader, storage)
        return self._edges[reader, storage]

    def _alike_edge(self, reader: int, storage: str) -> tuple[Ints, Ints]:
        form, axis = self.forms[reader], self.rows(reader)
        assert form is not None
        assert axis is not None
        tensors = self.graph.tensors
        shape = tensors[storage].shape
        key = (
            form.shape,
            shape,
            tuple((tensors[name].shape, windows) for name, windows in form.uses[storage]),
        )
        if key not in self._edges:
            own, box = self._axis(shape), list(whole(form.shape))
            low, high = [], [0]
            for row in range(form.shape[axis]):
                box[axis] = (row, row + 1)
                begin, end = (
                    (0, 1) if own is None else form.needed(self.graph, storage, tuple(box))[own]
                )
                low.append(begin)
                high.append(max(high[-1], end))
            self._edges[key] = (
                np.array([*low, self.rows_of(storage)], dtype=np.int64),
                np.array(high, dtype=np.int64),
            )
        return self._edges[key]

    def least_read(self, number: int) -> dict[str, float]:
        """Bytes of each storage, weights left out, that an operator's bands read at least: strides
        may step over the rest."""
        tensors, group = self.graph.tensors, self.fused[number]
        shares: dict[str, float] = {}
        for access in (access for op in group.ops for access in op.reads):
            share = 1.0
            for window in access.windows:
                if window.axis >= 0:
                    share *= min(
                        1.0,
                        (window.high - window.low + window.denominator) / max(1, window.numerator),
                    )
            storage = tensors[access.tensor].storage
            shares[storage] = max(shares.get(storage, 0.0), share)
        return {
            access.tensor: access.bytes * shares[access.tensor]
            for access in group.reads
            if not self.is_weight(access.tensor)
        }

    def rows_of(self, storage: str) -> int:
        """Rows of a storage."""
        shape = self.graph.tensors[storage].shape
        axis = self._axis(shape)
        return 1 if axis is None else shape[axis]

    def _axis(self, shape: Sequence[int]) -> int | None:
        """The dimension of a tensor that holds its rows, or its columns if it is an image."""
        if len(shape) >= 4:
            return 3 if self.columns else 2
        return max(0, len(shape) - 2) if shape and not self.columns else None


def steps_of(bands: int) -> int:
    """Bands and what goes before them: steps in which operators at the beginning of a stack get
    ahead of those at its end.

    An operator needs a few rows more than what it makes; over a deep stack these add up. Without
    such steps the first band would make them all at once, and need more room than any other.
    """
    return bands + min(bands // 4, _AHEAD)


def ends_of(
    network: Network, number: int, last: int, bands: int, ends: Mapping[int, Ints], steps: int = 0
) -> Ints:
    """Where the steps of an operator end, shape (steps,): as far as those of its readers need,
    evenly where the stack ends.

    There are :func:`steps_of` bands, unless told.
    """
    extent, ahead = network.extent(number), (steps or steps_of(bands)) - bands
    wanted = np.zeros(ahead + bands, dtype=np.int64)
    for access in network.fused[number].writes:
        for reader in network.readers.get(access.tensor, ()):
            if number < reader < last:
                wanted = np.maximum(wanted, network.edge(reader, access.tensor)[1][ends[reader]])
    if not wanted[-1]:
        wanted[ahead:] = extent * np.arange(1, bands + 1) // bands
    elif ahead:
        pace = int(np.diff(wanted[ahead:-1]).max(initial=1))
        wanted[:ahead] = np.maximum(wanted[:ahead], wanted[ahead] - pace * np.arange(ahead, 0, -1))
    step = network.step(number)
    wanted = np.minimum(-(-np.maximum(wanted, 0) // step) * step, extent)
    wanted[-1] = extent
    return np.asarray(np.maximum.accumulate(wanted))


def band_ends(network: Network, stack: Stack) -> dict[int, tuple[int, ...]]:
    """Where the steps of every operator of a stack end. A step may be empty, where the one before
    has made all that is needed."""
    if stack.bands == 1:
        return {
            number: (1,) if network.rows(number) is None else (network.extent(number),)
            for number in range(stack.first, stack.last)
        }
    ends: dict[int, Ints] = {}
    for number in range(stack.last - 1, stack.first - 1, -1):
        ends[number] = ends_of(network, number, stack.last, stack.bands, ends)
    return {number: tuple(own.tolist()) for number, own in ends.items()}


def _rounds(nest: LoopNest, loop: str) -> int:
    """How often a loop of a nest runs."""
    return {"batch": nest.batch, "groups": nest.groups, "y": nest.y, "x": nest.x}.get(loop, 0)

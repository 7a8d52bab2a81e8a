"""Operators of a network in bands of rows or columns: the operands of each band, and the ends of
the bands of a stack.

In a view along columns, "rows" means columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from loadmaster import _native
from loadmaster.core.arrays import Floats, Ints, column_of, grouped_sums
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.cutting.options import (
    OperatorPieces,
    canonical_index,
    channels_of,
    piece_workload,
)
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import TensorKind
from loadmaster.workloads.job import operand_bytes
from loadmaster.workloads.lowering.pieces import DivisibleNetwork
from loadmaster.workloads.window import whole_boxes

MOST_ROWS = 2**20
"""Rows of a tensor up to which it is cut into bands: time and memory grow with them."""
BANDS = tuple(dict.fromkeys((4 + step << octave) // 4 for octave in range(10) for step in range(4)))
"""Numbers of bands that are tried, four per octave, besides one band per row up to the last."""
PARTS = (2, 4, 8, 16)
"""Numbers of channel parts that are tried for a single operator."""


@dataclass(frozen=True)
class Stack:
    """A stack: operators ``first`` up to ``last`` (exclusive) in ``bands`` bands.

    Bands are of rows, or of ``columns``. In a ``pipelined`` stack an operator is one band behind
    its predecessor, so that cores can work on all of them at once; else each band passes through
    all operators before the next. A stack of one operator may also be cut into parts of its output
    ``channels``: each part makes all its bands before the next part, so that its weights stay
    meanwhile. A stack of several operators may be cut across its bands into ``column_tiles``, each
    of which makes all its bands before the next.
    """

    first: int
    last: int
    bands: int
    columns: bool = False
    pipelined: bool = False
    channels: int = 1
    column_tiles: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether the operator is not cut."""
        return self.bands == self.channels == 1


@dataclass
class AxisView:
    """A network whose operators are cut along rows or along ``columns``."""

    network: DivisibleNetwork
    columns: bool = False
    _edges: dict[Any, tuple[Ints, Ints]] = field(default_factory=dict)

    @cached_property
    def across(self) -> AxisView:
        """The view along the other axis."""
        other = AxisView(self.network, not self.columns)
        other.__dict__["across"] = self
        return other

    def along(self, columns: bool) -> AxisView:
        """The view along columns, or along rows."""
        return self if columns == self.columns else self.across

    @cached_property
    def problem(self) -> _native.BandProblem:
        """Operators and storages, by number, as arrays for native code."""
        graph, fused = self.network.graph, self.network.fused
        tensors = graph.tensors
        axes = (self.along(False), self.along(True))
        reads = [g.reads for g in fused]
        writes = [g.writes for g in fused]
        number: dict[str, int] = {}
        for access in itertools.chain(*reads, *writes):
            number.setdefault(access.tensor, len(number))
        outputs = {tensors[name].storage for name in graph.outputs}
        kinds = {TensorKind.WEIGHT: 1, TensorKind.INPUT: 2}
        # Operators that are alike share the arrays of their edges: each is handed over once.
        edges = [
            [
                None
                if axis.is_weight(access.tensor) or axis.rows(reader) is None
                else axis.edge(reader, access.tensor)
                for reader, own in enumerate(reads)
                for access in own
            ]
            for axis in axes
        ]
        distinct = {id(edge): edge for own in edges for edge in own if edge is not None}
        sizes = (len(begin) + len(end) for begin, end in distinct.values())
        place = dict(zip(distinct, itertools.accumulate(sizes, initial=0), strict=False))

        def ints(values: Any) -> Ints:
            return np.array(values, dtype=np.int64)

        def first(each: Sequence[Sequence[Any]]) -> Ints:
            return ints([0, *itertools.accumulate(map(len, each))])

        operators = range(len(fused))
        return _native.BandProblem(
            read_first=first(reads),
            read=ints([number[access.tensor] for own in reads for access in own]),
            read_bytes=ints([access.bytes for own in reads for access in own]),
            write_first=first(writes),
            write=ints([number[access.tensor] for own in writes for access in own]),
            bytes=ints([self.bytes_of(name) for name in number]),
            kind=ints([kinds.get(tensors[name].kind, 0) for name in number]),
            output=ints([name in outputs for name in number]),
            extent=ints([[a.extent(n) for n in operators] for a in axes]),
            step=ints([[a.step(n) for n in operators] for a in axes]),
            rows=ints([[a.rows_of(name) for name in number] for a in axes]),
            edge=ints([[place.get(id(edge), -1) for edge in own] for own in edges]),
            edges=np.concatenate([ints([]), *itertools.chain(*distinct.values())]),
        )

    def bytes_of(self, storage: str) -> int:
        """Bytes of a storage."""
        return self.network.graph.tensors[storage].bytes

    def is_weight(self, storage: str) -> bool:
        """Whether a storage is a weight, which all bands share."""
        return self.network.graph.tensors[storage].kind is TensorKind.WEIGHT

    def rows(self, number: int) -> int | None:
        """The dimension of an operator's result that holds its rows, if it can be cut along it."""
        form = self.network.forms[number]
        if form is None:
            return None
        axis = self._axis(form.shape)
        if axis is None or axis not in form.axes or form.shape[axis] > MOST_ROWS:
            return None
        as_many = (
            self.rows_of(w.tensor) == form.shape[axis] for w in self.network.fused[number].writes
        )
        return axis if all(as_many) else None

    def extent(self, number: int) -> int:
        """Rows of an operator's result; 0 if it cannot be cut along them."""
        form, axis = self.network.forms[number], self.rows(number)
        return 0 if form is None or axis is None else form.shape[axis]

    def step(self, number: int) -> int:
        """Number of rows of which every piece of an operator's result is a multiple."""
        form, axis = self.network.forms[number], self.rows(number)
        return 1 if form is None or axis is None else form.step[axis]

    def channels(self, number: int) -> int | None:
        """The dimension of an operator's result that holds its output channels, if it can be cut
        and is not the dimension of rows."""
        form, group = self.network.forms[number], self.network.fused[number]
        if form is None or len(group.nests) != 1:
            return None
        axis = channels_of(form, group)
        return axis if axis != self.rows(number) else None

    def divides_by_channel(self, number: int, storage: str) -> bool:
        """Whether every channel part of an operator needs a different part of an operand."""
        form, axis = self.network.forms[number], self.channels(number)
        return form is not None and axis is not None and form.divides(storage, axis)

    def ways(self, number: int) -> list[tuple[int, int]]:
        """(Bands, channel parts) into which an operator can be cut; 1 part where it cannot be cut
        along channels."""
        able = sorted({min(count, max(1, self.extent(number))) for count in BANDS})
        axis, form = self.channels(number), self.network.forms[number]
        parts = [
            count
            for count in PARTS
            if axis is not None
            and form is not None
            and count <= form.shape[axis] // form.step[axis]
        ]
        # With channel parts only powers of two of bands are tried.
        few = [count for count in able if count & (count - 1) == 0]
        return [*((count, 1) for count in able), *itertools.product(few, parts)]

    def middles(self, number: int, ways: Ints) -> Ints:
        """Box of the middle piece of an operator's result for each of ``ways``, shape (ways,
        dimensions, 2)."""
        form = self.network.forms[number]
        assert form is not None
        boxes = whole_boxes(form.shape, len(ways))
        for axis, count in zip((self.rows(number), self.channels(number)), ways.T, strict=True):
            if axis is not None:
                extent = form.shape[axis]
                length = np.maximum(-(-extent // count), form.step[axis])
                boxes[:, axis, 0] = (extent - length) // 2
                boxes[:, axis, 1] = boxes[:, axis, 0] + length
        return boxes

    def edge(self, reader: int, storage: str) -> tuple[Ints, Ints]:
        """Rows of a storage that rows of an operator's result need: (begin for row ``r``, end for
        rows before ``r``).

        Operators with equal shapes and windows share the arrays.
        """
        form, axis = self.network.forms[reader], self.rows(reader)
        assert form is not None
        assert axis is not None
        uses = form.uses[storage]
        key = (form.shape, uses.shape, uses.views)
        if key not in self._edges:
            extent, own = form.shape[axis], self._axis(uses.shape)
            needed = np.tile(np.array([0, 1], dtype=np.int64), (extent, 1))
            if own is not None:
                boxes = whole_boxes(form.shape, extent)
                boxes[:, axis] = np.arange(extent)[:, None] + [0, 1]
                needed = uses.needed_boxes(boxes)[:, own]
            self._edges[key] = (
                np.append(needed[:, 0], self.rows_of(storage)),
                np.append(0, np.maximum.accumulate(needed[:, 1])),
            )
        return self._edges[key]

    def rows_of(self, storage: str) -> int:
        """Rows of a storage."""
        shape = self.network.graph.tensors[storage].shape
        axis = self._axis(shape)
        return 1 if axis is None else shape[axis]

    def _axis(self, shape: Sequence[int]) -> int | None:
        """The dimension of a tensor that holds its rows or, along columns, the columns of an
        image."""
        if len(shape) >= 4:
            return 3 if self.columns else 2
        return max(0, len(shape) - 2) if shape and not self.columns else None


@dataclass(frozen=True)
class WayCosts:
    """Costs of an operator for each of :meth:`AxisView.ways`, without start-up times.

    Attributes
    ----------
    bands, channels
        The ways, shape (ways,).
    beside
        Seconds of all cores together if other pieces keep idle cores busy, shape (ways,).
    alone
        Seconds until the last piece ends if nothing else runs, so that cores may be idle, shape
        (ways,).
    refill
        How often each storage read crosses the port of the smallest buffer, shape (ways, reads).
    """

    bands: Ints
    channels: Ints
    beside: Floats
    alone: Floats
    refill: Floats


def way_costs(view: AxisView, target: Target) -> list[WayCosts]:
    """Costs of every operator of a network; 0 for operators that cannot be cut, as no choice of
    bands changes them. Linear in the ways of distinct operators."""
    network = view.network
    like = canonical_index(network)
    ways = [np.array(view.ways(n), dtype=np.int64) for n in range(len(network.fused))]
    pieces = [
        OperatorPieces(network.fused[n], form, view.middles(n, ways[n]))
        for n, form in enumerate(network.forms)
        if form is not None and like[n] == n
    ]
    work = piece_workload(network.graph, pieces)
    table = job_table(work, target)
    seconds = np.maximum(table.compute - column_of(target.cores, "start_up"), 1e-12)
    moved = grouped_sums(table.operand_job, table.moved.min(axis=1), len(work.jobs))
    smallest = min(range(len(target.cores)), key=lambda c: target.cores[c].buffer or np.inf)
    crossed = table.moved[:, smallest] / np.maximum(operand_bytes(work.jobs), 1)
    storage = [tensor.name for tensor in work.tensors]
    found: list[WayCosts] = []
    first = 0
    for number, own in enumerate(ways):
        if like[number] != number:
            found.append(found[like[number]])
            continue
        reads = {access.tensor: k for k, access in enumerate(network.fused[number].reads)}
        refill, beside, alone = np.ones((len(own), len(reads))), *np.zeros((2, len(own)))
        if network.forms[number] is not None:
            jobs, counts = slice(first, first + len(own)), own.prod(axis=1)
            links = counts * moved[jobs] / target.near.read_bandwidth
            beside = np.maximum(counts / (1.0 / seconds[jobs]).sum(axis=1), links)
            ends = map(until_all_end, seconds[jobs], counts.tolist())
            alone = np.maximum(links, list(ends))
            rows = np.arange(*np.searchsorted(table.operand_job, [first, first + len(own)]))
            for row in rows[~table.operand_write[rows]].tolist():
                cell = table.operand_job[row] - first, reads[storage[table.operand_tensor[row]]]
                refill[cell] = max(refill[cell], crossed[row])
            first += len(own)
        found.append(WayCosts(own[:, 0], own[:, 1], beside, alone, refill))
    return found


def until_all_end(each: Floats, count: int) -> float:
    """Earliest end of ``count`` equal pieces, each of which takes ``each[c]`` seconds on core
    ``c``; an estimate for more than 64."""
    if count > 64:
        return float(count / (1.0 / np.maximum(each, 1e-12)).sum() + each.min() / 2)
    ends = np.sort((np.arange(1, count + 1)[:, None] * each).ravel())
    return float(ends[count - 1])

"""Writes a network whose regions run in bands, with standard operators only.

A region becomes a subgraph for one band, which ``IF`` with a constant condition runs once for every
band, so operators and weights exist once. ``SLICE`` cuts a band's rows out of the source,
``CONCATENATION`` joins the bands, and ``SLICE`` in the subgraph drops rows with invalid values from
padding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.integrations.tflite.bands.regions import Bands
from loadmaster.integrations.tflite.flatbuffer_writer import (
    Field,
    Number,
    Numbers,
    Table,
    kept,
    numbers,
)
from loadmaster.integrations.tflite.planned_file import copied_operator, file_with
from loadmaster.workloads.frontends.tflite.flatbuffer import FlatTable
from loadmaster.workloads.frontends.tflite.model import OperatorEntry, TfliteModel
from loadmaster.workloads.frontends.tflite.schema import OPERATORS, TYPES

MOST_JOINED = 10
"""Most operands of TFLM's CONCATENATION."""
_CODES, _SUBGRAPHS, _BUFFERS = 1, 2, 4
_OPTION_TYPES = {"IF": 92, "CONCATENATION": 10}
_OPTIONS = {"CONV_2D": "biibiib", "DEPTHWISE_CONV_2D": "biiibii"}
"""Types of the fields of the options of convolutions."""


@dataclass
class _NewSubgraph:
    """Tensors and operators of a new subgraph."""

    tensors: list[Table | FlatTable] = field(default_factory=list)
    operators: list[Table | FlatTable] = field(default_factory=list)

    def tensor(self, table: Table | FlatTable) -> int:
        """Add a tensor and return its number."""
        self.tensors.append(table)
        return len(self.tensors) - 1

    def table(self, inputs: Sequence[int], outputs: Sequence[int]) -> dict[int, Field]:
        """Return the subgraph's table."""
        vectors = Numbers("i", inputs), Numbers("i", outputs)
        return {0: self.tensors, 1: vectors[0], 2: vectors[1], 3: self.operators}


def in_bands(model: TfliteModel, chosen: Sequence[Bands]) -> bytes:
    """Return the file with the ``chosen`` regions (in order) in bands and without a plan.

    Every region becomes one subgraph, in order.
    """
    operators, rewriter, at = model.subgraphs[0].operators, _Rewriter(model), 0
    for bands in chosen:
        region = bands.region
        inside = {t for op in operators[region.first : region.last] for t in op.outputs}
        rewriter.clear(inside - {region.result})
        rewriter.keep(operators[at : region.first])
        rewriter.add_bands(bands)
        at = region.last
    rewriter.keep(operators[at:])
    return rewriter.written()


def in_order(model: TfliteModel, order: Sequence[int], folds: Mapping[int, int]) -> bytes:
    """Return the file with its operators in another order. ``folds`` are convolutions that get SAME
    padding instead of the PAD before them, which is removed, each with the operand of the PAD."""
    operators, rewriter = model.subgraphs[0].operators, _Rewriter(model)
    padded = {operators[number].inputs[0] for number in folds}
    rewriter.clear(padded)
    for number in order:
        if number in folds:
            rewriter.fold(operators[number], folds[number])
        elif padded.isdisjoint(operators[number].outputs):
            rewriter.keep([operators[number]])
    return rewriter.written()


class _Rewriter:
    """Writes a model of one subgraph again with other operators; tables that stay are referred to
    in the old file."""

    def __init__(self, model: TfliteModel) -> None:
        self.model, self.main = model, model.subgraphs[0]
        self.file = model.root.file
        self.codes: list[Table | FlatTable] = [*model.root.tables(_CODES)]
        self.buffers: list[Table | FlatTable] = [*model.root.tables(_BUFFERS)]
        self.network = _NewSubgraph([tensor.table for tensor in self.main.tensors])
        self.added: list[Table] = []
        self.kinds: dict[str, int] = {}
        self.constants: dict[bytes, int] = {}

    def written(self) -> bytes:
        """Return the file."""
        (first,) = self.model.root.tables(_SUBGRAPHS)
        main = self.network.table(self.main.inputs, self.main.outputs) | kept(first, (4,))
        changed: Table = {
            _CODES: self.codes,
            _SUBGRAPHS: [main, *self.added],
            _BUFFERS: self.buffers,
        }
        return file_with(self.model, changed, self.file.data)

    def clear(self, unused: Iterable[int]) -> None:
        """Make tensors that nothing uses one byte, because TFLM would place them."""
        for tensor in unused:
            self.network.tensors[tensor] = _tensor("unused", "int8", [1])

    def keep(self, operators: Sequence[OperatorEntry]) -> None:
        """Add operators of the old file unchanged."""
        self.network.operators += (op.table for op in operators)

    def fold(self, op: OperatorEntry, operand: int) -> None:
        """Add a convolution of another operand, with SAME padding."""
        assert op.options is not None
        options = numbers(op.options, dict(enumerate(_OPTIONS[op.kind])))
        copied = copied_operator(op, [operand, *op.inputs[1:]], op.outputs)
        self.network.operators.append(copied | {4: {**options, 0: Number("b", 0)}})

    def add_bands(self, bands: Bands) -> None:
        """Add the operators of a region in bands: for each band slices of the source and an IF that
        runs the region's subgraph, then concatenations of the bands, at most MOST_JOINED at
        once."""
        network, region = self.network, bands.region
        number = Number("i", 1 + len(self.added))
        self.added.append(self._subgraph(bands))
        true = network.tensor(self._constant("band", b"\1", "bool", ()))
        level: list[tuple[int, int]] = []
        for band, start in enumerate(bands.starts):
            begin = self._begin_at(network, start)
            rows = self._add_slice(
                network, region.source, begin, region.source, bands.height, f"rows {band}"
            )
            part = network.tensor(self._tensor_like(region.result, bands.rows, f"band {band}"))
            moved = (cut for cut in bands.cuts if cut.moves)
            begins = (self._begin_at(network, cut.begins[band]) for cut in moved)
            self._add(network, "IF", [true, rows, *begins], part, {0: number, 1: number})
            level.append((part, bands.rows))
        if bands.again:
            begin, left = self._begin_at(network, bands.again), bands.rows - bands.again
            rest = self._add_slice(network, part, begin, region.result, left, "rest")
            level[-1] = rest, left
        while len(level) > 1:
            groups = [level[at : at + MOST_JOINED] for at in range(0, len(level), MOST_JOINED)]
            level = []
            for at, group in enumerate(groups):
                height = sum(rows for _, rows in group)
                made = region.result
                if len(groups) > 1:
                    name = f"bands {at * MOST_JOINED}"
                    made = network.tensor(self._tensor_like(region.result, height, name))
                parts = [tensor for tensor, _ in group]
                self._add(network, "CONCATENATION", parts, made, {0: Number("i", 1)})
                level.append((made, height))

    def _add_slice(
        self, graph: _NewSubgraph, operand: int, begin: int, tensor: int, rows: int, what: str
    ) -> int:
        """Add a SLICE of ``rows`` rows of an operand, itself rows of ``tensor`` of the network;
        return the result."""
        size = graph.tensor(self._vector((1, rows, *self.main.tensors[tensor].shape[2:])))
        made = graph.tensor(self._tensor_like(tensor, rows, what))
        self._add(graph, "SLICE", [operand, begin, size], made)
        return made

    def _subgraph(self, bands: Bands) -> Table:
        """Return the subgraph of one band. Operand 0 is the band's slice; the others are the first
        rows of cuts that differ between bands."""
        region, own = bands.region, _NewSubgraph()
        inputs = [own.tensor(self._tensor_like(region.source, bands.height, "rows"))]
        place = {-1: -1, region.source: inputs[0]}
        begins: list[int] = []
        for cut in bands.cuts:
            if cut.moves:
                inputs.append(own.tensor(_tensor("begin", "int32", [4])))
            begins.append(inputs[-1] if cut.moves else self._begin_at(own, cut.begins[0]))
        for number in range(region.first, region.last + 1):
            for cut, begin in zip(bands.cuts, begins, strict=True):
                if cut.before == number:
                    place[cut.tensor] = self._add_slice(
                        own, place[cut.tensor], begin, cut.tensor, cut.rows, "kept"
                    )
            if number == region.last:
                break
            op = self.main.operators[number]
            for tensor in op.inputs:
                if tensor not in place:
                    place[tensor] = own.tensor(self.main.tensors[tensor].table)
            (made,) = op.outputs
            place[made] = own.tensor(self._tensor_like(made, bands.heights[made]))
            operands = [place[t] for t in op.inputs]
            own.operators.append(copied_operator(op, operands, [place[made]]))
        name = f"band of operators {region.first} to {region.last - 1}"
        return own.table(inputs, [place[region.result]]) | {4: name}

    def _add(
        self,
        graph: _NewSubgraph,
        kind: str,
        inputs: Sequence[int],
        output: int,
        options: Table | None = None,
    ) -> None:
        """Add a new operator; ``options`` are the fields of its options table."""
        if kind not in self.kinds:
            self.kinds[kind] = len(self.codes)
            code = OPERATORS.index(kind)
            old_code = Number("b", min(code, 127))
            self.codes.append({0: old_code, 2: Number("i", 1), 3: Number("i", code)})
        operator: dict[int, Field] = {
            0: Number("I", self.kinds[kind]),
            1: Numbers("i", inputs),
            2: Numbers("i", [output]),
        }
        if options is not None:
            operator |= {3: Number("B", _OPTION_TYPES[kind]), 4: options}
        graph.operators.append(operator)

    def _tensor_like(self, tensor: int, rows: int, what: str = "") -> Table:
        """Return a new tensor with the type and quantisation of ``tensor`` and another number of
        rows."""
        known = self.main.tensors[tensor]
        name = f"{known.name} ({what})" if what else known.name
        made = _tensor(name, known.dtype, [1, rows, *known.shape[2:]])
        return made | kept(known.table, (4,))

    def _begin_at(self, graph: _NewSubgraph, row: int) -> int:
        """Add the constant with which a SLICE begins at a row."""
        return graph.tensor(self._vector((0, row, 0, 0)))

    def _vector(self, values: Sequence[int]) -> Table:
        """Return a constant vector of 32-bit integers."""
        content = struct.pack(f"<{len(values)}i", *values)
        return self._constant("sizes", content, "int32", (len(values),))

    def _constant(self, name: str, content: bytes, dtype: str, shape: Sequence[int]) -> Table:
        """Return a constant tensor; equal contents share a buffer."""
        if content not in self.constants:
            self.constants[content] = len(self.buffers)
            self.buffers.append({0: content})
        return _tensor(name, dtype, shape) | {2: Number("I", self.constants[content])}


def _tensor(name: str, dtype: str, shape: Sequence[int]) -> dict[int, Field]:
    """Return a new tensor without data."""
    return {0: Numbers("i", shape), 1: Number("b", TYPES.index(dtype)), 3: name}

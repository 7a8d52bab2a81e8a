"""Writes a network whose regions run in bands, with standard operators only.

A region becomes a subgraph for one band, which ``IF`` with a constant condition runs once for every
band, so operators and weights exist once. ``SLICE`` cuts a band's rows out of the source,
``CONCATENATION`` joins the bands, and ``SLICE`` in the subgraph drops rows with invalid values from
padding.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from loadmaster.integrations.tflite.bands.regions import Bands, RowRange
from loadmaster.integrations.tflite.flatbuffer_writer import (
    Existing,
    Field,
    Number,
    Numbers,
    Table,
    kept,
)
from loadmaster.integrations.tflite.planned_file import copied_operator, file_with
from loadmaster.workloads.frontends.tflite.flatbuffer import Flatbuffer, FlatTable
from loadmaster.workloads.frontends.tflite.model import OperatorEntry, TfliteModel
from loadmaster.workloads.frontends.tflite.schema import OPERATORS, TYPES

MOST_JOINED = 10
"""Most operands of TFLM's CONCATENATION."""
_CODES, _SUBGRAPHS, _BUFFERS = 1, 2, 4
_TENSORS, _INPUTS, _OUTPUTS, _OPERATORS = 0, 1, 2, 3
_IF_OPTIONS, _CONCATENATION_OPTIONS = 92, 10
_OPTIONS = {"CONV_2D": "iibiib", "DEPTHWISE_CONV_2D": "iiibii"}
"""Fields of the options of convolutions without the padding, with their types."""


@dataclass(frozen=True)
class Written:
    """A region rewritten in bands.

    Attributes
    ----------
    subgraph
        Number of the region's subgraph.
    slices, parts
        Tensors of the network: the operands and the results of the IF of every band.
    joins
        Partial concatenations, and the new rows of the last band if it repeats some; each with its
        first row in the result.
    calls
        Operators of the network: the SLICE of every band, which its IF follows.
    """

    bands: Bands
    subgraph: int
    slices: tuple[int, ...]
    parts: tuple[int, ...]
    joins: tuple[tuple[int, int], ...]
    calls: tuple[int, ...]


@dataclass
class _Lists:
    """Tensors and operators of a new subgraph."""

    tensors: list[Table | Existing] = field(default_factory=list)
    operators: list[Table | Existing] = field(default_factory=list)

    def tensor(self, table: Table | Existing) -> int:
        """Add a tensor and return its number."""
        self.tensors.append(table)
        return len(self.tensors) - 1


def in_bands(
    model: TfliteModel, chosen: Sequence[Bands], outputs: Sequence[int] | None = None
) -> tuple[bytes, list[Written]]:
    """Return the file with the ``chosen`` regions (in order) in bands and without a plan, and the
    rewritten regions. ``outputs`` are the network's new outputs; None: its own.
    """
    return _Rewriter(model).run(chosen, model.subgraphs[0].outputs if outputs is None else outputs)


def in_order(model: TfliteModel, order: Sequence[int], folds: Mapping[int, int]) -> bytes:
    """Return the file with its operators in another order. ``folds`` are convolutions that get SAME
    padding instead of the PAD before them, which is removed, each with the operand of the PAD."""
    return _Rewriter(model).ordered(order, folds)


class _Rewriter:
    """Writes a model again with other operators; tables that stay are referred to in the old
    file."""

    def __init__(self, model: TfliteModel) -> None:
        self.model, self.root = model, model.root
        self.file: Flatbuffer = model.root.file
        self.main = model.subgraphs[0]
        self.codes: list[Table | Existing] = [
            Existing(table.position) for table in self.root.tables(_CODES)
        ]
        self.buffers: list[Table | Existing] = [
            Existing(table.position) for table in self.root.tables(_BUFFERS)
        ]
        self.added: list[Table] = []
        self.kinds: dict[str, int] = {}
        self.constants: dict[bytes, int] = {}

    def run(self, chosen: Sequence[Bands], outputs: Sequence[int]) -> tuple[bytes, list[Written]]:
        """Return the file with the chosen regions in bands, and the new tensors and operators of
        each."""
        network = self._network(
            {
                t
                for bands in chosen
                for op in self.main.operators[bands.region.first : bands.region.last]
                for t in op.outputs
                if t != bands.region.result
            }
        )
        at, written = 0, []
        for bands in chosen:
            self._keep_operators(network, at, bands.region.first)
            written.append(self._add_bands(network, bands))
            at = bands.region.last
        self._keep_operators(network, at, len(self.main.operators))
        return self._file(network, outputs), written

    def ordered(self, order: Sequence[int], folds: Mapping[int, int]) -> bytes:
        """Write the file of :func:`in_order`."""
        operators = self.main.operators
        padded = {operators[number].inputs[0] for number in folds}
        network = self._network(padded)
        for number in order:
            op = operators[number]
            if number in folds:
                copied = copied_operator(self.file, op, [folds[number], *op.inputs[1:]], op.outputs)
                network.operators.append({**copied, 4: self._with_padding(op)})
            elif padded.isdisjoint(op.outputs):
                network.operators.append(Existing(op.position))
        return self._file(network, self.main.outputs)

    def _with_padding(self, op: OperatorEntry) -> dict[int, Field]:
        """Return the options of a convolution with SAME padding."""
        assert op.options is not None
        fields: dict[int, Field] = {0: Number("b", 0)}
        for number, code in enumerate(_OPTIONS[op.kind], 1):
            if op.options.at(number) is not None:
                fields[number] = Number(code, op.options.number(number, code))
        return fields

    def _network(self, unused: Collection[int]) -> _Lists:
        """Return the tensors of the network; ``unused`` ones become one byte, because TFLM would
        place them."""
        network = _Lists([Existing(t.position) for t in self.main.tensors])
        for tensor in unused:
            network.tensors[tensor] = _tensor("unused", "int8", [1])
        return network

    def _file(self, network: _Lists, outputs: Sequence[int]) -> bytes:
        """Return the file with the lists of the new main subgraph."""
        first, *others = self.root.tables(_SUBGRAPHS)
        main: Table = {
            _TENSORS: network.tensors,
            _INPUTS: Numbers("i", self.main.inputs),
            _OUTPUTS: Numbers("i", outputs),
            _OPERATORS: network.operators,
            **kept(first, (4,)),
        }
        unchanged = (Existing(t.position) for t in others)
        changed: Table = {
            _CODES: self.codes,
            _SUBGRAPHS: [main, *unchanged, *self.added],
            _BUFFERS: self.buffers,
        }
        return file_with(self.model, changed, self.file.data)

    def _add_bands(self, network: _Lists, bands: Bands) -> Written:
        """Add the operators of a region in bands: for each band slices of the source and an IF that
        runs the region's subgraph, then concatenations of the bands, at most MOST_JOINED at
        once."""
        region = bands.region
        number = len(self.model.subgraphs) + len(self.added)
        self.added.append(self._subgraph(bands))
        true = network.tensor(self._constant("band", b"\1", "bool", ()))
        slices, parts, calls = [], [], []
        for band, start in enumerate(bands.starts):
            begin = network.tensor(self._begin_at(start))
            calls.append(len(network.operators))
            slices.append(
                self._add_slice(
                    network, region.source, begin, region.source, bands.height, f"rows {band}"
                )
            )
            parts.append(
                network.tensor(self._tensor_like(region.result, bands.rows, f"band {band}"))
            )
            moved = (cut for cut in bands.cuts if cut.moves)
            begins = (network.tensor(self._begin_at(cut.begins[band])) for cut in moved)
            operands = [true, slices[-1], *begins]
            runs = {0: Number("i", number), 1: Number("i", number)}
            network.operators.append(
                self._operator("IF", operands, [parts[-1]], (_IF_OPTIONS, runs))
            )
        joins: list[tuple[int, int]] = []
        level = [(part, top, bands.rows) for part, top in zip(parts, bands.tops, strict=True)]
        if bands.again:
            rows = bands.rows - bands.again
            first = bands.tops[-1] + bands.again
            begin = network.tensor(self._begin_at(bands.again))
            rest = self._add_slice(network, parts[-1], begin, region.result, rows, "rest")
            joins.append((rest, first))
            level[-1] = (rest, first, rows)
        while len(level) > MOST_JOINED:
            joined = []
            for at in range(0, len(level), MOST_JOINED):
                group = level[at : at + MOST_JOINED]
                rows = sum(each[2] for each in group)
                made = network.tensor(self._tensor_like(region.result, rows, f"bands {at}"))
                self._add_concatenation(network, [each[0] for each in group], made)
                joins.append((made, group[0][1]))
                joined.append((made, group[0][1], rows))
            level = joined
        self._add_concatenation(network, [each[0] for each in level], region.result)
        return Written(bands, number, tuple(slices), tuple(parts), tuple(joins), tuple(calls))

    def _add_slice(
        self, lists: _Lists, operand: int, begin: int, tensor: int, rows: int, what: str
    ) -> int:
        """Add a SLICE of ``rows`` rows of an operand, itself rows of ``tensor`` of the network;
        return the result."""
        size = lists.tensor(self._vector((1, rows, *self.main.tensors[tensor].shape[2:])))
        made = lists.tensor(self._tensor_like(tensor, rows, what))
        lists.operators.append(self._operator("SLICE", [operand, begin, size], [made]))
        return made

    def _add_concatenation(self, network: _Lists, operands: Sequence[int], result: int) -> None:
        """Add a CONCATENATION of rows, axis 1."""
        options = _CONCATENATION_OPTIONS, {0: Number("i", 1)}
        network.operators.append(self._operator("CONCATENATION", operands, [result], options))

    def _subgraph(self, bands: Bands) -> dict[int, Field]:
        """Return the subgraph of one band. Operand 0 is the band's slice; the others are the first
        rows of cuts that differ between bands."""
        region, own = bands.region, _Lists()
        place = {region.source: own.tensor(self._tensor_like(region.source, bands.height, "rows"))}
        inputs = [place[region.source]]
        cuts: dict[RowRange, int] = {}
        for cut in bands.cuts:
            begin = _tensor("begin", "int32", [4]) if cut.moves else self._begin_at(cut.begins[0])
            cuts[cut] = own.tensor(begin)
            if cut.moves:
                inputs.append(cuts[cut])
        operators = self.main.operators[region.first : region.last]
        for number, op in enumerate(operators, region.first):
            self._add_cuts(own, number, place, cuts)
            for tensor in op.inputs:
                if tensor >= 0 and tensor not in place:
                    place[tensor] = own.tensor(Existing(self.main.tensors[tensor].position))
            (made,) = op.outputs
            place[made] = own.tensor(self._tensor_like(made, bands.heights[made]))
            operands = [place.get(t, -1) for t in op.inputs]
            own.operators.append(copied_operator(self.file, op, operands, [place[made]]))
        self._add_cuts(own, region.last, place, cuts)
        return {
            _TENSORS: own.tensors,
            _INPUTS: Numbers("i", inputs),
            _OUTPUTS: Numbers("i", [place[region.result]]),
            _OPERATORS: own.operators,
            4: f"band of operators {region.first} to {region.last - 1}",
        }

    def _add_cuts(
        self, own: _Lists, number: int, place: dict[int, int], cuts: Mapping[RowRange, int]
    ) -> None:
        """Add the cuts before operator ``number``."""
        for cut, begin in cuts.items():
            if cut.before == number:
                place[cut.tensor] = self._add_slice(
                    own, place[cut.tensor], begin, cut.tensor, cut.rows, "kept"
                )

    def _keep_operators(self, network: _Lists, first: int, last: int) -> None:
        """Add the operators ``first`` to ``last`` - 1 of the old file unchanged."""
        network.operators += (Existing(op.position) for op in self.main.operators[first:last])

    def _operator(
        self,
        kind: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: tuple[int, Table] | None = None,
    ) -> dict[int, Field]:
        """Return a new operator; ``options`` holds the number and the fields of its options
        table."""
        fields: dict[int, Field] = {
            0: Number("I", self._code(kind)),
            1: Numbers("i", inputs),
            2: Numbers("i", outputs),
        }
        if options is not None:
            fields |= {3: Number("B", options[0]), 4: options[1]}
        return fields

    def _code(self, kind: str) -> int:
        """Return the number of an operator's code, which is added on the first call."""
        if kind not in self.kinds:
            number = OPERATORS.index(kind)
            codes = (0, "b", min(number, 127)), (2, "i", 1), (3, "i", number)
            self.codes.append({at: Number(code, value) for at, code, value in codes})
            self.kinds[kind] = len(self.codes) - 1
        return self.kinds[kind]

    def _tensor_like(self, tensor: int, rows: int, what: str = "") -> dict[int, Field]:
        """Return a new tensor with the type and quantisation of ``tensor`` and another number of
        rows."""
        known = self.main.tensors[tensor]
        table = FlatTable(self.file, known.position)
        fields: dict[int, Field] = {
            0: Numbers("i", [1, rows, *known.shape[2:]]),
            1: Number("b", table.number(1, "b")),
            3: f"{known.name} ({what})" if what else known.name,
        }
        return fields | kept(table, (4,))

    def _begin_at(self, row: int) -> dict[int, Field]:
        """Return the constant with which a SLICE begins at a row."""
        return self._vector((0, row, 0, 0))

    def _vector(self, values: Sequence[int]) -> dict[int, Field]:
        """Return a constant vector of 32-bit integers."""
        return self._constant(
            "sizes", struct.pack(f"<{len(values)}i", *values), "int32", (len(values),)
        )

    def _constant(
        self, name: str, content: bytes, dtype: str, shape: Sequence[int]
    ) -> dict[int, Field]:
        """Return a constant tensor; equal contents share a buffer."""
        if content not in self.constants:
            self.buffers.append({0: content})
            self.constants[content] = len(self.buffers) - 1
        return _tensor(name, dtype, shape) | {2: Number("I", self.constants[content])}


def _tensor(name: str, dtype: str, shape: Sequence[int]) -> dict[int, Field]:
    """Return a new tensor without data."""
    return {0: Numbers("i", shape), 1: Number("b", TYPES.index(dtype)), 3: name}

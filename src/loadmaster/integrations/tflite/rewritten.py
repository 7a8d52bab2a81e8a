"""Checks a rewritten ``.tflite`` file against the original file, without any other information.

Both networks run on symbols instead of numbers. Two tensors have the same symbol if the same
operator, with the same options and quantisation, made them from the same symbols. A slice of rows
has the symbol of the whole tensor, its first row, and a flag for each row whether it is valid.
Windows are followed tap by tap. The new network runs in the order of its file, with bodies of
``IF`` in their place, on a model of the arena: a result is written to its planned address, and must
still be there when it is read. So order, addresses, aliases, halos, padding, weights and outputs
are all checked.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.errors import AllocationError
from loadmaster.workloads.frontends.tflite.flatbuffer import FlatTable
from loadmaster.workloads.frontends.tflite.model import (
    OperatorEntry,
    SubgraphEntry,
    TensorEntry,
    TfliteModel,
    parse_model,
)

_UNIT = 16
"""Alignment in bytes of tensor sizes and addresses in TFLM."""
_WINDOWS = {
    "CONV_2D": "iibii",
    "DEPTHWISE_CONV_2D": "iiibii",
    "AVERAGE_POOL_2D": "iiiib",
    "MAX_POOL_2D": "iiiib",
}
"""Types of the options of window operators after the padding: strides of columns and rows first,
then taps of a pool, or, last, dilations of a convolution."""
_BY_ELEMENT = (
    "ABS ADD DEQUANTIZE ELU EXP HARD_SWISH LEAKY_RELU LOGISTIC MAXIMUM MINIMUM MUL NEG PRELU"
    " QUANTIZE RELU RELU6 RELU_N1_TO_1 RSQRT SQRT SQUARE SUB TANH"
)
_WITH_STATE = ("ASSIGN_VARIABLE", "CALL_ONCE", "RANDOM_UNIFORM", "READ_VARIABLE", "VAR_HANDLE")
_WIDTHS = {"int4": 1, "bfloat16": 2, "resource": 4, "double": 8, "complex64": 8}
_CONCATENATION_OPTIONS = 10
_NOTHING = -1


@dataclass(frozen=True)
class _SymbolRows:
    """Rows of a symbol from ``start`` on, and which of them are valid. Tensors other than one image
    have one row."""

    symbol: int
    start: int
    right: np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class _OriginalResult:
    """A result of the original network: its symbol, its rows, the rows of its window's operand, and
    the padding above them."""

    symbol: int
    rows: int
    pad: int = 0
    source_rows: int = 1


def check_rewritten(old: bytes, new: bytes) -> int:
    """Check that file ``new`` computes the same as ``old`` at its planned addresses, and return
    the bytes of its arena's head.

    Raises
    ------
    AllocationError
        If it does not, with the first operator at fault; such a file must not be used.
    """
    kept = len(new) - len(old)
    if kept < 0 or memoryview(new)[kept:] != memoryview(old):
        raise _fault("the new file", "does not end with the old one")
    known = _Symbols()
    try:
        before = _SymbolicRun(old, known, is_old=True)
        after = _SymbolicRun(new, known, is_old=False)
        expected, found = before.outputs(), after.outputs()
    except (LookupError, MemoryError, TypeError, ValueError, struct.error) as error:
        raise _fault("the new file", f"is damaged ({error})") from None
    if (before.stateful, before.signatures()) != (after.stateful, after.signatures()):
        raise _fault("the new file", "has other inputs, outputs or operators with state")
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        if (one.symbol, other.start) != (other.symbol, 0) or not other.right.all():
            raise _fault(f"output {number}", "is not that of the old file")
    return after.end


def _fault(where: str, what: str) -> AllocationError:
    """Return the error for a fault of an operator."""
    return AllocationError(f"the check of the rewritten file found a fault: {where} {what}")


class _Symbols:
    """Symbols of the original network's results, by operator and operands."""

    def __init__(self) -> None:
        self.made: dict[object, list[_OriginalResult]] = {}
        self.types: dict[int, object] = {}
        self.rows: list[int] = []
        self.content: list[bytes | None] = []
        self.folded: dict[int, tuple[int, int, int, int]] = {}

    def symbol(
        self,
        key: object,
        rows: int,
        content: bytes | None = None,
        pad: int = 0,
        source_rows: int = 1,
    ) -> int:
        """Return the symbol of an operator's result, a new one at the first call."""
        made = self.made.setdefault(key, [])
        for each in made:
            if (each.rows, each.pad, each.source_rows) == (rows, pad, source_rows):
                return each.symbol
        made.append(_OriginalResult(len(self.rows), rows, pad, source_rows))
        self.rows.append(rows)
        self.content.append(content)
        return made[-1].symbol


class _SymbolicRun:
    """A run of one file on symbols. The original file creates symbols; the new one only looks them
    up, and has addresses."""

    def __init__(self, data: bytes, symbols: _Symbols, *, is_old: bool) -> None:
        self.data, self.symbols, self.is_old = data, symbols, is_old
        self.model: TfliteModel = parse_model(data)
        self.stateful = self.end = 0
        self.values: dict[tuple[int, int], _SymbolRows] = {}
        main = self.model.subgraphs[0]
        self.at: dict[tuple[int, int], tuple[int, int]] = {}
        if not is_old:
            self._place()
        for position, tensor in enumerate(main.inputs):
            value = self._named_value(main.tensors[tensor], "input", position)
            self._write(0, tensor, value, "the input")
        for position, entry in enumerate(main.tensors):
            if entry.is_variable:
                self.values[0, position] = self._named_value(entry, "variable", position)
        self._subgraph(0)

    def outputs(self) -> list[_SymbolRows]:
        """Run the network, and return the values of its outputs."""
        return [self._read(0, tensor, "the end") for tensor in self.model.subgraphs[0].outputs]

    def signatures(self) -> list[object]:
        """Return the names, types and shapes of inputs and outputs."""
        main = self.model.subgraphs[0]
        entries = [main.tensors[tensor] for tensor in (*main.inputs, *main.outputs)]
        return [len(main.inputs), [(e.name, e.shape, self._type(e)) for e in entries]]

    # --- Results of operators.

    def _subgraph(self, number: int) -> None:
        """Run the operators of a subgraph on symbols."""
        subgraph = self.model.subgraphs[number]
        for index, operator in enumerate(subgraph.operators):
            where = f"operator {index} of subgraph {number} ({operator.kind})"
            operands = [
                None if tensor < 0 else self._read(number, tensor, where)
                for tensor in operator.inputs
            ]
            if operator.kind == "IF" and not self.is_old:
                self._branch(number, operator, operands, where)
                continue
            made = self._results(subgraph, operator, operands, where)
            read = [(number, tensor) for tensor in operator.inputs]
            for tensor, value in zip(operator.outputs, made, strict=True):
                self._write(number, tensor, value, where, read)

    def _branch(
        self, number: int, operator: OperatorEntry, operands: list[_SymbolRows | None], where: str
    ) -> None:
        """Run the subgraph that a constant condition of IF selects, with TFLM's copies of operands
        and results."""
        condition, *given = operands
        content = None if condition is None else self.symbols.content[condition.symbol]
        if content is None or len(content) != 1:
            raise _fault(where, "has a condition that is not constant")
        body = operator.bodies[0 if content[0] else 1]
        entry = self.model.subgraphs[body]
        if len(given) != len(entry.inputs) or len(operator.outputs) != len(entry.outputs):
            raise _fault(where, "has other operands than the subgraph that it runs")
        for tensor, inner, value in zip(operator.inputs[1:], entry.inputs, given, strict=True):
            if value is not None:
                self._write(body, inner, value, where, [(number, tensor)])
        self._subgraph(body)
        for tensor, inner in zip(operator.outputs, entry.outputs, strict=True):
            value = self._read(body, inner, where)
            self._write(number, tensor, value, where, [(body, inner)])

    def _results(
        self,
        subgraph: SubgraphEntry,
        operator: OperatorEntry,
        operands: list[_SymbolRows | None],
        where: str,
    ) -> list[_SymbolRows]:
        """Return an operator's results as symbols, equal for equal operators on equal operands;
        state and custom operators count as different each time."""
        kind = operator.kind
        results = [subgraph.tensors[tensor] for tensor in operator.outputs]
        if kind in _WINDOWS or self._padding_of(operator, operands):
            shapes = [subgraph.tensors[operator.inputs[0]].shape, results[0].shape]
            if all(len(shape) == 4 and shape[0] == 1 for shape in shapes):
                return [self._window(subgraph, operator, operands, where)]
        given = [value for value in operands if value is not None]
        with_state = (
            kind in _WITH_STATE
            or kind.startswith("CUSTOM")
            or not results
            or any(
                tensor >= 0 and subgraph.tensors[tensor].is_variable for tensor in operator.inputs
            )
        )
        self.stateful += with_state
        key = (
            kind,
            tuple(None if value is None else value.symbol for value in operands),
            self._options(operator),
            tuple(map(self._type, results)),
            self.stateful if with_state else None,
        )
        rows = [_rows(entry) for entry in results]
        if self.is_old:
            return [
                self._all_rows(self.symbols.symbol((key, place), each))
                for place, each in enumerate(rows)
            ]
        found = [
            made[0].symbol
            for place in range(len(results))
            if (made := self.symbols.made.get((key, place)))
        ]
        if len(found) < len(results):
            self._require_whole(given[1:] if kind == "SLICE" else (), where)
            moved = self._moved_rows(operator, results[0], given)
            if moved is None:
                raise _fault(where, "computes what nothing in the old file does")
            return [moved]
        if kind in _BY_ELEMENT.split() and self.symbols.rows[found[0]] != rows[0]:
            total = self.symbols.rows[found[0]]
            rowed = [v for v in given if self.symbols.rows[v.symbol] == total > 1]
            if len({(value.start, len(value.right)) for value in rowed}) != 1:
                raise _fault(where, "has operands of different rows")
            self._require_whole([v for v in given if self.symbols.rows[v.symbol] != total], where)
            right = np.logical_and.reduce([value.right for value in rowed])
            return [_SymbolRows(found[0], rowed[0].start, right)]
        self._require_whole(given, where)
        return [self._all_rows(symbol) for symbol in found]

    def _require_whole(self, values: Sequence[_SymbolRows | None], where: str) -> None:
        """Raise the fault if a value lacks rows or has rows that are not valid."""
        for value in values:
            if value is not None and (
                value.start
                or len(value.right) != self.symbols.rows[value.symbol]
                or not value.right.all()
            ):
                raise _fault(where, "needs rows that are missing or wrong")

    def _moved_rows(
        self, operator: OperatorEntry, result: TensorEntry, given: list[_SymbolRows]
    ) -> _SymbolRows | None:
        """Return the result of a SLICE or CONCATENATION of rows; None for other operators."""
        first = given[0]
        if operator.kind == "SLICE" and len(given) == 3:
            begin, size = (self._integers(value) for value in given[1:])
            rows = len(first.right)
            if (
                len(result.shape) == 4
                and size == result.shape
                and begin[:1] + begin[2:] == (0, 0, 0)
                and 0 <= begin[1] <= rows - size[1]
            ):
                right = first.right[begin[1] : begin[1] + size[1]]
                return _SymbolRows(first.symbol, first.start + begin[1], right)
        if operator.kind == "CONCATENATION" and operator.options is not None:
            starts = list(itertools.accumulate((len(v.right) for v in given), initial=first.start))
            if (
                (operator.options.number(0), operator.options.number(1, "b")) == (1, 0)
                and self._table(operator).number(3, "B") == _CONCATENATION_OPTIONS
                and len(result.shape) == 4
                and {value.symbol for value in given} == {first.symbol}
                and [value.start for value in given] == starts[:-1]
            ):
                return _SymbolRows(
                    first.symbol, first.start, np.concatenate([value.right for value in given])
                )
        return None

    def _window(
        self,
        subgraph: SubgraphEntry,
        operator: OperatorEntry,
        operands: list[_SymbolRows | None],
        where: str,
    ) -> _SymbolRows:
        """Return the result of a window operator. A row is valid if each tap reads a valid row, or
        padding where the whole tensor has padding."""
        source, *others = operands
        result = subgraph.tensors[operator.outputs[0]]
        entry, symbols = subgraph.tensors[operator.inputs[0]], self.symbols
        if source is None:
            raise _fault(where, "has no operand")
        self._require_whole(others, where)
        pads = self._padding_of(operator, operands)
        options = () if pads else self._window_options(operator, where)
        (stride, spread, taps, pad), (*_, left) = self._geometry(
            subgraph, operator, pads, options, where
        )
        key = (
            operator.kind,
            options[1:],
            self._table(operator).number(3, "B"),
            tuple(v.symbol if v else None for v in others[bool(pads) :]),
            self._type(result),
            result.shape[2:],
        )
        if self.is_old:
            height, rows = entry.shape[1], result.shape[1]
            place = (*key, source.symbol, left)
            symbol = symbols.symbol(place, rows, pad=pad, source_rows=height)
            if operator.kind == "PAD" and self._type(result) == self._type(entry):
                symbols.folded[symbol] = (source.symbol, pad, left, height)
            if operator.kind.endswith("CONV_2D") and source.symbol in symbols.folded:
                inner, above, before, height = symbols.folded[source.symbol]
                made = _OriginalResult(symbol, rows, pad + above, height)
                symbols.made.setdefault((*key, inner, left + before), []).append(made)
            return self._all_rows(symbol)
        rows = len(source.right)
        best: _SymbolRows | None = None
        known = symbols.made.get((*key, source.symbol, left), ())
        for made in sorted(known, key=lambda each: each.rows != result.shape[1]):
            start, rest = divmod(source.start + made.pad - pad, stride)
            local = np.arange(result.shape[1])[:, None] * stride - pad + np.arange(taps) * spread
            whole = local + source.start
            has = (local >= 0) & (local < rows)
            had = (whole >= 0) & (whole < made.source_rows)
            right = np.where(has, had & source.right[np.clip(local, 0, rows - 1)], ~had).all(axis=1)
            places = start + np.arange(result.shape[1])
            right &= (rest == 0) & (places >= 0) & (places < made.rows)
            if best is None or right.sum() > best.right.sum():
                best = _SymbolRows(made.symbol, start, right)
        if best is None:
            raise _fault(where, "computes what nothing in the old file does")
        return best

    def _window_options(self, operator: OperatorEntry, where: str) -> tuple[int, ...]:
        """Return the options in the order of their fields; an absent dilation is 1."""
        codes, options = _WINDOWS[operator.kind], operator.options
        if options is None:
            raise _fault(where, "has no options")
        dilated = len(codes) - 2 if operator.kind.endswith("CONV_2D") else len(codes)
        fields = (
            options.number(field, code, int(field > dilated)) for field, code in enumerate(codes, 1)
        )
        return (options.number(0, "b"), *fields)

    def _geometry(
        self,
        subgraph: SubgraphEntry,
        operator: OperatorEntry,
        pads: Sequence[int],
        options: Sequence[int],
        where: str,
    ) -> list[tuple[int, int, int, int]]:
        """Return stride, dilation, taps and padding in front, for rows and for columns."""
        shape = subgraph.tensors[operator.inputs[0]].shape
        result = subgraph.tensors[operator.outputs[0]].shape
        found, sizes = [], []
        for axis in (1, 2):
            stride, spread, taps = 1, 1, 1
            if pads:
                pad, after = pads[2 * axis : 2 * axis + 2]
                size = shape[axis] + pad + after
            else:
                # Options of columns precede those of rows.
                stride = options[3 - axis]
                if operator.kind.endswith("CONV_2D"):
                    spread, taps = options[-axis], subgraph.tensors[operator.inputs[1]].shape[axis]
                else:
                    taps = options[5 - axis]
                reach, same = (taps - 1) * spread + 1, options[0] == 0
                size = (shape[axis] + (0 if same else 1 - reach) + stride - 1) // stride
                pad = max(0, (size - 1) * stride + reach - shape[axis]) // 2 if same else 0
            found.append((stride, spread, taps, pad))
            sizes.append(size)
        if tuple(sizes) != result[1:3]:
            raise _fault(where, f"makes {sizes} rows and columns, not {list(result[1:3])}")
        return found

    # --- Addresses.

    def _place(self) -> None:
        """Set the addresses of tensors in units. Variables, and tensors without an address, get
        addresses of their own behind the arena."""
        tensors = (
            (index, position, entry)
            for index, subgraph in enumerate(self.model.subgraphs)
            for position, entry in enumerate(subgraph.tensors)
        )
        for (index, position, entry), offset in zip(tensors, self._plan(), strict=False):
            if offset < 0:
                continue
            units = -(-entry.count * self._width(entry) // _UNIT)
            if offset % _UNIT or entry.constant or not units:
                raise _fault(f"tensor {entry.name!r}", f"lies at {offset}")
            if not entry.is_variable:
                self.at[index, position] = (offset // _UNIT, units)
                self.end = max(self.end, offset + units * _UNIT)
        self.memory = np.full((2, self.end // _UNIT), _NOTHING, dtype=np.int64)

    def _plan(self) -> Sequence[int]:
        """Return the planned address of every tensor, as the metadata state them; empty without a
        plan."""
        root = self.model.root
        buffers = list(root.tables(4))
        for note in root.tables(6):
            if note.text(0) == "OfflineMemoryAllocation":
                at, length = buffers[note.number(1, "I")].content(0)
                return struct.unpack_from(f"<{length // 4}i", self.data, at)[3:]
        return ()

    def _read(self, number: int, tensor: int, where: str) -> _SymbolRows:
        """Return the value of a tensor that an operator reads. Report a fault if the tensor was
        overwritten; a SLICE gets it with the overwritten rows marked as wrong."""
        entry = self.model.subgraphs[number].tensors[tensor]
        if entry.constant:
            at, length = entry.content
            content = bytes(self.data[at : at + length])
            key = ("constant", content, entry.shape, self._type(entry))
            return self._all_rows(self.symbols.symbol(key, _rows(entry), content))
        value = self.values.get((number, tensor))
        if value is None:
            raise _fault(where, f"reads tensor {entry.name!r} before it is made")
        if (number, tensor) in self.at:
            expected = self._units(number, tensor, value)
            begin, units = self.at[number, tensor]
            there = self.memory[:, begin : begin + units]
            lost = np.flatnonzero((there != expected).any(axis=0) & (expected[0] != _NOTHING))
            if len(lost) and not where.endswith("(SLICE)"):
                raise _fault(where, f"reads tensor {entry.name!r} when another lies over it")
            if len(lost):
                value = _SymbolRows(value.symbol, value.start, value.right.copy())
                row = entry.count * self._width(entry) // len(value.right)
                for unit in lost.tolist():
                    value.right[unit * _UNIT // row : ((unit + 1) * _UNIT - 1) // row + 1] = False
        return value

    def _write(
        self,
        number: int,
        tensor: int,
        value: _SymbolRows,
        where: str,
        read: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Write a result at its address. It must not overwrite the operands ``read``."""
        entry = self.model.subgraphs[number].tensors[tensor]
        rows, whole = len(value.right), self.symbols.rows[value.symbol]
        if entry.constant or rows != _rows(entry) or (rows != whole and len(entry.shape) != 4):
            raise _fault(where, f"makes other rows than tensor {entry.name!r} has")
        image = len(entry.shape) == 4 and entry.shape[0] == 1
        signature = (self._type(entry), entry.shape[2:] if image else entry.shape)
        if self.symbols.types.setdefault(value.symbol, signature) != signature:
            raise _fault(where, f"makes another type, shape or scale than {entry.name!r} has")
        self.values[number, tensor] = value
        if (number, tensor) not in self.at:
            return
        content = self._units(number, tensor, value)
        begin, units = self.at[number, tensor]
        for operand in read:
            first, count = self.at.get(operand, (0, 0))
            low, high = max(first, begin), min(first + count, begin + units)
            there, then = self.memory[:, low:high], content[:, low - begin : high - begin]
            if low < high and (there != then).any():
                raise _fault(where, f"writes {entry.name!r} over an operand")
        self.memory[:, begin : begin + units] = content

    def _units(self, number: int, tensor: int, value: _SymbolRows) -> Ints:
        """Return the contents of a tensor's units: a symbol, and the offset in it of each unit's
        first byte."""
        entry = self.model.subgraphs[number].tensors[tensor]
        size = entry.count * self._width(entry)
        row = size // max(1, len(value.right))
        begin = np.arange(0, size, _UNIT)
        sums = np.concatenate([[0], np.cumsum(value.right)])
        last = np.minimum(begin + _UNIT, size) - 1
        right = sums[last // max(1, row) + 1] > sums[begin // max(1, row)]
        return np.where(right, [np.full_like(begin, value.symbol), value.start * row + begin], -1)

    # --- Comparisons.

    def _all_rows(self, symbol: int) -> _SymbolRows:
        """Return the value of all rows of a symbol, all valid."""
        return _SymbolRows(symbol, 0, np.ones(self.symbols.rows[symbol], dtype=np.bool_))

    def _named_value(self, entry: TensorEntry, *key: object) -> _SymbolRows:
        """Return the value of an input, variable or constant, named by ``key``."""
        return self._all_rows(self.symbols.symbol(key, _rows(entry)))

    def _integers(self, value: _SymbolRows | None) -> tuple[int, ...]:
        """Return the 32-bit integers of a constant; none for other values."""
        content = None if value is None else self.symbols.content[value.symbol]
        return () if content is None else struct.unpack(f"<{len(content) // 4}i", content)

    def _padding_of(
        self, operator: OperatorEntry, operands: list[_SymbolRows | None]
    ) -> tuple[int, ...]:
        """Return the padding of rows and columns, if there is no other."""
        pads = self._integers(operands[1]) if operator.kind in ("PAD", "PADV2") else ()
        return pads if len(pads) == 8 and not any((*pads[:2], *pads[6:])) else ()

    def _options(self, operator: OperatorEntry) -> tuple[int | None, ...]:
        """Return the position of an operator's options, counted from the end of the file, which is
        the same in both files."""
        table = self._table(operator)
        places = [table.at(field) for field in (4, 5, 12)]
        distances = (at if at is None else len(self.data) - table.file.follow(at) for at in places)
        return (table.number(3, "B"), table.number(11, "B"), *distances)

    def _table(self, operator: OperatorEntry) -> FlatTable:
        """Return an operator's table."""
        return FlatTable(self.model.root.file, operator.position)

    def _type(self, entry: TensorEntry) -> tuple[object, ...]:
        """Return the element type and quantisation."""
        scales = FlatTable(self.model.root.file, entry.position).table(4)
        if scales is None:
            return (entry.dtype,)
        vectors = ((scales.content(field), width) for field, width in ((2, 4), (3, 8)))
        values = tuple(bytes(self.data[at : at + width * n]) for (at, n), width in vectors)
        return (entry.dtype, *values, scales.number(6) if len(values[0]) > 4 else 0)

    def _width(self, entry: TensorEntry) -> int:
        """Return the bytes of an element."""
        return _WIDTHS.get(entry.dtype) or np.dtype(entry.dtype).itemsize


def _rows(entry: TensorEntry) -> int:
    """Return the rows of one image; 1 for any other tensor."""
    return entry.shape[1] if len(entry.shape) == 4 and entry.shape[0] == 1 else 1

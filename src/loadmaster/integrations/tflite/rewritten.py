"""Checks a rewritten ``.tflite`` file against the original file, without any other information.

Both networks run on value numbers instead of values: two rows of feature maps have the same number
if the same operator, with the same options and quantisation, made them from rows with the same
numbers. Windows are followed tap by tap. A row that the original network does not compute has the
number :data:`_WRONG`. The new network runs in the order of its file, with bodies of ``IF`` in their
place, on a model of the arena: a result is written to its planned address, and must still be there
when it is read. So order, addresses, aliases, halos, padding, weights and outputs are all checked.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.core.arrays import Ints
from loadmaster.core.errors import AllocationError
from loadmaster.workloads.frontends.tflite.model import OperatorEntry, TensorEntry, parse_model

_UNIT = 16
"""Alignment in bytes of tensor sizes and addresses in TFLM."""
_WRONG, _ZEROS = -1, "zeros"
_MOST_ROWS = 2**22
"""Most rows of all tensors, and most taps of an operator, that are followed."""
_WINDOWS = {
    "CONV_2D": "biibii",
    "DEPTHWISE_CONV_2D": "biiibii",
    "AVERAGE_POOL_2D": "biiiib",
    "MAX_POOL_2D": "biiiib",
}
"""Types of the options of window operators: padding, strides of columns and rows, then taps of a
pool, or, last, dilations of a convolution."""
_BY_ELEMENT = (
    "ABS ADD DEQUANTIZE ELU EXP HARD_SWISH LEAKY_RELU LOGISTIC MAXIMUM MINIMUM MUL NEG PRELU"
    " QUANTIZE RELU RELU6 RELU_N1_TO_1 RSQRT SQRT SQUARE SUB TANH"
)
_WITH_STATE = "ASSIGN_VARIABLE CALL_ONCE CUSTOM MULTINOMIAL RANDOM READ_VARIABLE VAR_HANDLE"
"""How the names of operators with state begin."""
_WIDTHS = {"int4": 1, "bfloat16": 2, "resource": 4, "double": 8, "complex64": 8}

_Place = tuple[int, int]
"""A subgraph, and one of its tensors."""


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
    try:
        before = _NumberedRun(old, None)
        after = _NumberedRun(new, before)
    except (
        ArithmeticError,
        LookupError,
        MemoryError,
        RecursionError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise _fault("the new file", f"is damaged ({error})") from None
    if before.interface() != after.interface():
        raise _fault("the new file", "has other inputs, outputs or operators with state")
    for number, (one, other) in enumerate(zip(before.outputs, after.outputs, strict=True)):
        if not np.array_equal(one, other):
            raise _fault(f"output {number}", "is not that of the old file")
    return after.end


def _fault(where: str, what: str) -> AllocationError:
    """Return the error for a fault of an operator."""
    return AllocationError(f"the check of the rewritten file found a fault: {where} {what}")


@dataclass(frozen=True)
class _NumberedStep:
    """An operator that runs: its place for errors, its operands and results, and the value numbers
    of operands."""

    where: str
    operator: OperatorEntry
    entries: Sequence[TensorEntry]
    given: Sequence[Ints]
    results: Sequence[TensorEntry]


class _NumberedRun:
    """A run of one file on value numbers. The original file makes them; the new one only looks them
    up, and has addresses."""

    def __init__(self, data: bytes, old: _NumberedRun | None) -> None:
        self.data, self.is_old = data, old is None
        # The number of each row; and what makes it: the operator or source, the operands' rows,
        # and the type and shape of the row.
        self.known: dict[object, int] = {} if old is None else old.known
        self.made: list[tuple[tuple[Any, ...], Any, object]] = [] if old is None else old.made
        self.model = parse_model(data)
        self.stateful = self.end = 0
        self.values: dict[_Place, Ints] = {}
        self.at: dict[_Place, slice] = {}
        self.entries = {
            (number, tensor): entry
            for number, subgraph in enumerate(self.model.subgraphs)
            for tensor, entry in enumerate(subgraph.tensors)
        }
        if sum(map(_rows, self.entries.values())) > _MOST_ROWS:
            raise _fault("the new file", "has too many rows to be checked")
        if not self.is_old:
            self._set_addresses()
        for place, entry in self.entries.items():
            if entry.constant:
                content = data[entry.content[0] : sum(entry.content)]
                self.values[place] = self._source(entry, content)
            elif entry.is_variable:
                self.values[place] = self._source(entry, ("variable", place))
        main = self.model.subgraphs[0]
        for position, tensor in enumerate(main.inputs):
            value = self._source(main.tensors[tensor], ("input", position))
            self._write((0, tensor), value, "the input")
        self._subgraph(0)
        self.outputs = [self._read((0, tensor), "the end") for tensor in main.outputs]

    def interface(self) -> list[object]:
        """Return the number of operators with state, and the names, types and shapes of inputs and
        outputs."""
        main = self.model.subgraphs[0]
        entries = [main.tensors[tensor] for tensor in (*main.inputs, *main.outputs)]
        values = [(entry.name, entry.shape, self._type(entry)) for entry in entries]
        return [self.stateful, len(main.inputs), values]

    # --- Results of operators.

    def _subgraph(self, number: int) -> None:
        """Run the operators of a subgraph on value numbers."""
        for index, operator in enumerate(self.model.subgraphs[number].operators):
            where = f"operator {index} of subgraph {number} ({operator.kind})"
            read = [(number, tensor) for tensor in operator.inputs if tensor >= 0]
            given = [self._read(at, where, partly=operator.kind == "SLICE") for at in read]
            written = [(number, tensor) for tensor in operator.outputs]
            if operator.kind == "IF":
                self._branch(operator, read, given, written, where)
                continue
            entries, results = ([self.entries[at] for at in each] for each in (read, written))
            made = self._results(_NumberedStep(where, operator, entries, given, results))
            for place, value in zip(written, made, strict=True):
                if len(value) and (value == _WRONG).all():
                    raise _fault(where, "computes what nothing in the old file does")
                self._write(place, value, where, read)

    def _branch(
        self,
        operator: OperatorEntry,
        read: list[_Place],
        given: list[Ints],
        written: list[_Place],
        where: str,
    ) -> None:
        """Run the subgraph that a constant condition of IF selects, with TFLM's copies of operands
        and results."""
        content = self._content(given[0])
        if len(content) != 1:
            raise _fault(where, "has a condition that is not constant")
        body = operator.bodies[0 if content[0] else 1]
        subgraph = self.model.subgraphs[body]
        for place, inner, value in zip(read[1:], subgraph.inputs, given[1:], strict=True):
            self._write((body, inner), value, where, [place])
        self._subgraph(body)
        for place, inner in zip(written, subgraph.outputs, strict=True):
            self._write(place, self._read((body, inner), where), where, [(body, inner)])

    def _results(self, step: _NumberedStep) -> list[Ints]:
        """Return an operator's results as value numbers; state and custom operators make new
        results each time."""
        operator, kind, given = step.operator, step.operator.kind, step.given
        first = step.results[0] if step.results and given else None
        if first is not None:
            moved = self._moved_rows(step)
            if moved is not None:
                return [moved]
            pads = self._integers(given[1]) if kind in ("PAD", "PADV2") else ()
            image = all(len(e.shape) == 4 and e.shape[0] == 1 for e in (step.entries[0], first))
            if image and len(pads) == 8 and not any((*pads[:2], *pads[6:])):
                return [self._padded(step, pads)]
            if image and kind in _WINDOWS:
                return [self._window(step)]
        state = None
        if (
            not step.results
            or kind.startswith(tuple(_WITH_STATE.split()))
            or any(entry.is_variable for entry in step.entries)
        ):
            self.stateful += 1
            state = self.stateful
        key = (kind, operator.inputs.count(-1), self._options(operator), state)
        if first is not None and kind in _BY_ELEMENT.split():
            rows = _rows(first)
            if {len(value) for value in given} <= {1, rows}:
                columns = (np.broadcast_to(value, rows).tolist() for value in given)
                return [self._value(first, key, zip(*columns, strict=True))]
        whole = self._whole(step)
        return [
            self._value(entry, (key, whole, place), ((row,) for row in range(_rows(entry))))
            for place, entry in enumerate(step.results)
        ]

    def _value(
        self,
        entry: TensorEntry,
        key: tuple[Any, ...],
        rows: Iterable[tuple[int | None, ...]],
        new: bool = False,
    ) -> Ints:
        """Return the value of a tensor, given the numbers of the rows that each row is made from. A
        row that is made from a wrong one is wrong; so is one that the old file does not make,
        unless it is ``new``."""
        found, signature = [], self._signature(entry)
        for row in rows:
            made = (key, None if _WRONG in row else row, signature)
            if (new or self.is_old) and made not in self.known:
                self.known[made] = len(self.made)
                self.made.append(made)
            found.append(self.known.get(made, _WRONG))
        return np.array(found, dtype=np.int64)

    def _source(self, entry: TensorEntry, name: object) -> Ints:
        """Return the value of an input, variable or constant."""
        rows = ((row,) for row in range(_rows(entry)))
        return self._value(entry, (name, entry.shape), rows, new=True)

    def _whole(self, step: _NumberedStep, first: int = 0) -> tuple[tuple[int, ...], ...]:
        """Return the numbers of all rows of operands from the ``first`` on, none of which may be
        wrong."""
        values = step.given[first:]
        if any(_WRONG in value for value in values):
            raise _fault(step.where, "needs rows that are wrong")
        return tuple(tuple(value.tolist()) for value in values)

    def _moved_rows(self, step: _NumberedStep) -> Ints | None:
        """Return the result of a SLICE or CONCATENATION of rows; None for other operators."""
        operator, given, result = step.operator, step.given, step.results[0]
        moved, options = np.empty(0, dtype=np.int64), operator.options
        if operator.kind == "SLICE":
            begin, size = map(self._integers, given[1:])
            if size == result.shape and begin[:1] + begin[2:] == (0, 0, 0) and begin[1] >= 0:
                moved = given[0][begin[1] : begin[1] + size[1]]
        if (
            operator.kind == "CONCATENATION"
            and options is not None
            and (options.number(0), options.number(1, "b")) == (1, 0)
            # Options of CONCATENATION have type 10.
            and operator.table.number(3, "B") == 10
        ):
            moved = np.concatenate(given)
        fits = len(result.shape) == 4 and len(moved) == _rows(result)
        return moved if fits and self._is_of(moved, result) else None

    def _padded(self, step: _NumberedStep, pads: Sequence[int]) -> Ints:
        """Return the result of PAD: rows with columns beside them, and rows of padding (None)."""
        image, result = step.entries[0], step.results[0]
        top, bottom, left, right = pads[2:6]
        size = top + image.shape[1] + bottom, left + image.shape[2] + right
        if min(pads) < 0 or size != result.shape[1:3]:
            raise _fault(step.where, "makes other rows or columns than its result has")
        rows = [None] * top + step.given[0].tolist() + [None] * bottom
        # Without a rescaling, PAD adds zeros.
        value = _ZEROS if self._type(result) == self._type(image) else ""
        key = (step.operator.kind, value, left, self._whole(step, 2))
        return self._value(result, key, ((row,) for row in rows))

    def _window(self, step: _NumberedStep) -> Ints:
        """Return the result of a convolution or pool. Each tap of a row reads a row of the operand,
        or padding (None)."""
        operator, entries, result, where = step.operator, step.entries, step.results[0], step.where
        convolves = operator.kind.endswith("CONV_2D")
        codes, options = _WINDOWS[operator.kind], operator.options
        if options is None:
            raise _fault(where, "has no options")
        # Dilations are 1 if they are absent.
        dilated = len(codes) - 2 if convolves else len(codes)
        values = [options.number(n, code, int(n >= dilated)) for n, code in enumerate(codes)]
        axes = []
        for axis in (1, 2):
            # Options of columns precede those of rows.
            size, stride = entries[0].shape[axis], values[3 - axis]
            taps, spread = values[5 - axis], 1
            if convolves:
                taps, spread = entries[1].shape[axis], values[-axis]
            reach, same = (taps - 1) * spread + 1, values[0] == 0
            made = (size + (0 if same else 1 - reach) + stride - 1) // stride
            if made != result.shape[axis]:
                raise _fault(where, "makes other rows or columns than its result has")
            pad = max(0, (made - 1) * stride + reach - size) // 2 if same else 0
            axes.append((stride, spread, taps, pad))
        (stride, spread, taps, pad), (*_, left) = axes
        if _rows(result) * taps > _MOST_ROWS:
            raise _fault(where, "has too many taps to be checked")
        rows: list[int | None] = step.given[0].tolist()
        while convolves:
            made_by = [None if row in (None, _WRONG) else self.made[row] for row in rows]
            keys = {each[0] for each in made_by if each}
            if len(keys) != 1 or (key := keys.pop())[:2] != ("PAD", _ZEROS):
                break
            # Zeros that a PAD adds are what a convolution pads with.
            rows = [each[1][0] if each else row for each, row in zip(made_by, rows, strict=True)]
            left += key[2]
        taps_of = [
            tuple(
                rows[at] if 0 <= at < len(rows) else None
                for at in range(top, top + taps * spread, spread)
            )
            for top in range(-pad, _rows(result) * stride - pad, stride)
        ]
        constants, kind = self._whole(step, 1), operator.table.number(3, "B")
        return self._value(result, (operator.kind, kind, *values[1:], constants, left), taps_of)

    # --- Addresses.

    def _set_addresses(self) -> None:
        """Set the addresses of tensors in grains, of which none is in two rows. Variables, and
        tensors without an address, get addresses of their own behind the arena."""
        planned = zip(self.entries.items(), self._plan(), strict=False)
        placed = [(place, entry, offset) for (place, entry), offset in planned if offset >= 0]
        rows = [self._bytes(entry) // _rows(entry) for _, entry, _ in placed if _rows(entry) > 1]
        self.grain = math.gcd(_UNIT, *rows)
        for place, entry, offset in placed:
            end = offset + self._bytes(entry)
            if offset % _UNIT or entry.constant or end == offset:
                raise _fault(f"tensor {entry.name!r}", f"lies at {offset}")
            if not entry.is_variable:
                self.at[place] = slice(offset // self.grain, -(-end // self.grain))
                self.end = max(self.end, -(-end // _UNIT) * _UNIT)
        self.memory = np.full(self.end // self.grain, _WRONG, dtype=np.int64)

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

    def _read(self, place: _Place, where: str, *, partly: bool = False) -> Ints:
        """Return the value of a tensor that an operator reads. Report a fault if the tensor was
        overwritten; if the operator reads it ``partly``, the overwritten rows are wrong instead."""
        entry, value = self.entries[place], self.values.get(place)
        if value is None:
            raise _fault(where, f"reads tensor {entry.name!r} before it is made")
        if place not in self.at:
            return value
        expected = self._grains(entry, value)
        lost = (self.memory[self.at[place]].reshape(expected.shape) != expected).any(axis=1)
        if lost.any() and not partly:
            raise _fault(where, f"reads tensor {entry.name!r} when another lies over it")
        return np.where(lost, _WRONG, value)

    def _write(self, place: _Place, value: Ints, where: str, read: Sequence[_Place] = ()) -> None:
        """Write a result at its address. It must not overwrite the operands ``read``."""
        entry = self.entries[place]
        if entry.constant or len(value) != _rows(entry):
            raise _fault(where, f"makes other rows than tensor {entry.name!r} has")
        if not self._is_of(value, entry):
            raise _fault(where, f"makes another type, shape or scale than {entry.name!r} has")
        self.values[place] = value
        if place not in self.at:
            return
        own, content = self.at[place], self._grains(entry, value).ravel()
        for operand in read:
            other = self.at.get(operand, slice(0, 0))
            low, high = max(other.start, own.start), min(other.stop, own.stop)
            there, then = self.memory[low:high], content[low - own.start : high - own.start]
            if low < high and (there != then).any():
                raise _fault(where, f"writes {entry.name!r} over an operand")
        self.memory[own] = content

    def _grains(self, entry: TensorEntry, value: Ints) -> Ints:
        """Return the contents of a tensor's grains, by row: the row's number, and the place in
        it."""
        size = -(-self._bytes(entry) // (len(value) * self.grain))
        numbers = value[:, None]
        return np.where(numbers == _WRONG, _WRONG, numbers * 2**32 + np.arange(size))

    # --- Comparisons.

    def _content(self, value: Ints) -> bytes:
        """Return the bytes of a constant; none for other values."""
        number = int(value[0])
        name = self.made[number][0][0] if number != _WRONG else b""
        return name if isinstance(name, bytes) else b""

    def _integers(self, value: Ints) -> tuple[int, ...]:
        """Return the 32-bit integers of a constant; none for other values."""
        content = self._content(value)
        return struct.unpack(f"<{len(content) // 4}i", content)

    def _options(self, operator: OperatorEntry) -> tuple[int | None, ...]:
        """Return the position of an operator's options, counted from the end of the file, which is
        the same in both files."""
        table = operator.table
        places = [table.at(field) for field in (4, 5, 12)]
        distances = (at if at is None else len(self.data) - table.file.follow(at) for at in places)
        return (table.number(3, "B"), table.number(11, "B"), *distances)

    def _is_of(self, value: Ints, entry: TensorEntry) -> bool:
        """Return whether the rows of a value, but for wrong ones, can be those of a tensor."""
        found = {self.made[number][2] for number in value.tolist() if number != _WRONG}
        return found <= {self._signature(entry)}

    def _signature(self, entry: TensorEntry) -> tuple[object, ...]:
        """Return the type and shape of a tensor's rows."""
        shape = ("row", len(entry.shape), *entry.shape[-2:]) if _is_image(entry) else entry.shape
        return (self._type(entry), shape)

    def _type(self, entry: TensorEntry) -> tuple[object, ...]:
        """Return the element type and quantisation."""
        scales = entry.table.table(4)
        if scales is None:
            return (entry.dtype,)
        vectors = ((scales.content(field), width) for field, width in ((2, 4), (3, 8)))
        values = tuple(bytes(self.data[at : at + width * n]) for (at, n), width in vectors)
        return (entry.dtype, *values, scales.number(6) if len(values[0]) > 4 else 0)

    def _bytes(self, entry: TensorEntry) -> int:
        """Return the bytes of a tensor."""
        return entry.count * (_WIDTHS.get(entry.dtype) or np.dtype(entry.dtype).itemsize)


def _is_image(entry: TensorEntry) -> bool:
    """Return whether a tensor has rows: it is one image."""
    return len(entry.shape) > 2 and math.prod(entry.shape[:-3]) == 1


def _rows(entry: TensorEntry) -> int:
    """Return the rows of one image; 1 for any other tensor."""
    return entry.shape[-3] if _is_image(entry) else 1

"""Runs of operators that can run in bands, and the slices of rows with which they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from loadmaster.integrations.tflite.bands.rows import (
    RowRule,
    Slice,
    padding_of,
    row_rule,
    window_rule,
    work_of,
)
from loadmaster.workloads.frontends.tflite.flatbuffer import Table
from loadmaster.workloads.frontends.tflite.model import OperatorEntry, TfliteModel

LONGEST = 16
"""Operators of a region at most: what halos of so many repeat is more than any memory is worth."""
MOST_BANDS = 32
"""Bands of a region at most: each takes room in the arena's tail."""
_SLACK = 4
"""Rows beyond the fewest with which a slice is tried, so that padding comes out right."""


@dataclass(frozen=True)
class Region:
    """Operators [first, last) of the network with one feature map in (``source``) and one out
    (``result``), all of one image, and the rule of each.

    From ``rest`` on every operator makes a row from one row of its operands: there ``kept``, what
    was made before and is still read, is cut down to the rows of a band.
    """

    first: int
    last: int
    source: int
    result: int
    rules: tuple[RowRule, ...]
    rest: int
    kept: tuple[int, ...]


@dataclass(frozen=True)
class Bands:
    """A region in ``count`` bands of ``rows`` rows of its result each, from ``tops[b]`` on.

    Every band takes a slice of ``height`` rows of the source, from ``starts[b]`` on. ``heights``
    are rows of every tensor in a band; where a tensor that the region keeps has others than
    ``rows``, it is cut, from row ``begins[tensor][b]`` on. IF runs a subgraph of fixed shapes, so
    all bands are as high as one another: where ``count`` does not divide the rows, the last band
    makes the last rows of the one before again.
    """

    region: Region
    count: int
    rows: int
    height: int
    tops: tuple[int, ...]
    starts: tuple[int, ...]
    begins: Mapping[int, tuple[int, ...]]
    heights: Mapping[int, int]

    @property
    def again(self) -> int:
        """Rows of the result that the last band makes again."""
        return (self.count - 1) * self.rows - self.tops[-1]


class Chain:
    """The operators of a network's first subgraph, as regions see them."""

    def __init__(self, model: TfliteModel) -> None:
        self.subgraph = model.subgraphs[0]
        self.file = model.root.file
        self.data = self.file.data
        self.rules = [row_rule(self.subgraph, op, self.data) for op in self.subgraph.operators]
        self.last_use: dict[int, int] = {}
        for number, operator in enumerate(self.subgraph.operators):
            for tensor in operator.inputs:
                self.last_use[tensor] = number
        for tensor in self.subgraph.outputs:
            self.last_use[tensor] = len(self.subgraph.operators)

    def is_given(self, tensor: int) -> bool:
        """Whether an operand is absent or constant."""
        return tensor < 0 or self.subgraph.tensors[tensor].constant

    def rows(self, tensor: int) -> int:
        """Rows of a feature map."""
        return self.subgraph.tensors[tensor].shape[1]

    @cached_property
    def work(self) -> list[int]:
        """Multiply-accumulates for each row of every operator's result."""
        return [work_of(self.subgraph, op) for op in self.subgraph.operators]

    @property
    def total_work(self) -> int:
        """Multiply-accumulates of all operators that have rows."""
        return sum(
            work * self.rows(op.outputs[0])
            for work, op in zip(self.work, self.subgraph.operators, strict=True)
            if work
        )

    def folds(self) -> dict[int, int]:
        """Convolutions with SAME padding instead of a PAD before them, where that is equal, each
        with the operand of the PAD."""
        operators = self.subgraph.operators
        found: dict[int, int] = {}
        for pad in operators:
            if pad.kind != "PAD" or self.rules[operators.index(pad)] is None:
                continue
            (source, _), (result,) = pad.inputs, pad.outputs
            readers = [n for n, op in enumerate(operators) if result in op.inputs]
            alike = self._scales(source) == self._scales(result)
            if (
                alike
                and result not in self.subgraph.outputs
                and all(self._folds(pad, operators[number]) for number in readers)
            ):
                found |= dict.fromkeys(readers, source)
        return found

    def _folds(self, pad: OperatorEntry, conv: OperatorEntry) -> bool:
        tensors = self.subgraph.tensors
        padding = padding_of(self.subgraph, pad, self.data)
        if padding is None or conv.options is None or not conv.kind.endswith("V_2D"):
            return False
        for axis, given in enumerate(padding, 1):
            rule = window_rule(self.subgraph, conv, conv.options, axis)
            same, size = replace(rule, same=True), tensors[pad.inputs[0]].shape[axis]
            if (
                rule.same
                or same.pad_top(size) != given.top
                or same.height(size) != tensors[conv.outputs[0]].shape[axis]
            ):
                return False
        return conv.inputs[0] == pad.outputs[0]

    def _scales(self, tensor: int) -> list[object]:
        """Type and quantisation."""
        entry = self.subgraph.tensors[tensor]
        table = Table(self.file, entry.position).table(4)
        if table is None:
            return [entry.dtype]
        return [entry.dtype, table.numbers(2, "f"), table.numbers(3, "q")]

    def regions(self) -> Iterator[Region]:
        """All regions. O(operators x LONGEST^2)."""
        for first in range(len(self.subgraph.operators)):
            for last in range(first + 1, min(first + LONGEST, len(self.rules)) + 1):
                if self.rules[last - 1] is None:
                    break
                region = self._region(first, last)
                if region is not None:
                    yield region

    def _region(self, first: int, last: int) -> Region | None:
        operators = self.subgraph.operators[first:last]
        made: dict[int, int] = {}
        sources: set[int] = set()
        for number, operator in enumerate(operators, first):
            if len(operator.outputs) != 1 or any(
                self.is_given(t) and t >= 0 and not self._broadcasts(operator, t)
                for t in operator.inputs
            ):
                return None
            sources |= {t for t in operator.inputs if not self.is_given(t) and t not in made}
            made[operator.outputs[0]] = number
        (result,) = operators[-1].outputs
        kept = [t for t in made if t != result and self.last_use.get(t, -1) >= last]
        tensors = self.subgraph.tensors
        if len(sources) != 1 or kept:
            return None
        (source,) = sources
        every = (source, *made)
        if any(len(tensors[t].shape) != 4 or tensors[t].shape[0] != 1 for t in every) or any(
            tensors[t].is_variable for t in every
        ):
            return None
        rules = tuple(rule for rule in self.rules[first:last] if rule is not None)
        rest = first + max(
            (n + 1 for n, rule in enumerate(rules) if not rule.row_by_row), default=0
        )
        read = {result} | {t for op in self.subgraph.operators[rest:last] for t in op.inputs}
        before = (source, *(t for t, number in made.items() if number < rest))
        return Region(
            first, last, source, result, rules, rest, tuple(t for t in before if t in read)
        )

    def _broadcasts(self, operator: OperatorEntry, tensor: int) -> bool:
        """Whether a constant operand is the same for all rows of a result."""
        if operator.kind in ("CONV_2D", "DEPTHWISE_CONV_2D", "PAD", "PADV2"):
            return True
        shape = self.subgraph.tensors[tensor].shape
        return len(shape) < 3 or shape[-3] == 1

    def needed(self, region: Region, first: int, last: int) -> tuple[int, int]:
        """Rows of the source that rows [first, last) of the result need, clipped."""
        need = {region.result: (first, last)}
        for operator, rule in reversed(self._ruled(region)):
            span = need.get(operator.outputs[0])
            if span is None:
                continue
            for tensor in self._maps(operator):
                rows = self.rows(tensor)
                low, high = rule.needs(*span, rows)
                low, high = max(low, 0), min(high, rows)
                if tensor in need:
                    low, high = min(low, need[tensor][0]), max(high, need[tensor][1])
                need[tensor] = low, high
        return need[region.source]

    def slices(self, region: Region, start: int, height: int) -> dict[int, Slice] | None:
        """What comes of a slice of the source: rows of every tensor before the rest; None if rows
        do not meet."""
        found = {region.source: Slice(start, height, start, start + height)}
        for operator, rule in self._ruled(region)[: region.rest - region.first]:
            parts = [
                rule.applied(found[tensor], self.rows(tensor)) for tensor in self._maps(operator)
            ]
            if any(part is None for part in parts):
                return None
            known = [part for part in parts if part is not None]
            if len({(part.start, part.height) for part in known}) != 1:
                return None
            first, last = max(p.first for p in known), min(p.last for p in known)
            if first >= last:
                return None
            found[operator.outputs[0]] = Slice(known[0].start, known[0].height, first, last)
        return found

    def bands(self, region: Region, count: int) -> Bands | None:
        """The region in so many bands, with the shortest slices that come out right; None if there
        are none."""
        total = self.rows(region.result)
        rows = -(-total // count)
        tops = tuple(min(band * rows, total - rows) for band in range(count))
        needs = [self.needed(region, top, top + rows) for top in tops]
        most = self.rows(region.source)
        fewest = max(last - first for first, last in needs)
        for height in range(fewest, min(most - 1, fewest + _SLACK) + 1):
            found = self._with_height(region, tops, rows, needs, height)
            if found is not None:
                return found
        return None

    def _with_height(
        self,
        region: Region,
        tops: tuple[int, ...],
        rows: int,
        needs: Sequence[tuple[int, int]],
        height: int,
    ) -> Bands | None:
        starts: list[int] = []
        begins: dict[int, list[int]] = {tensor: [] for tensor in region.kept}
        heights: dict[int, int] = {}
        most = self.rows(region.source)
        for top, (first, last) in zip(tops, needs, strict=True):
            low, high = max(0, last - height), min(first, most - height)
            for start in range(high, low - 1, -1):
                found = self.slices(region, start, height)
                if found is None:
                    continue
                kept = {tensor: found[tensor] for tensor in region.kept}
                if all(
                    max(made.first, made.start) <= top
                    and top + rows <= min(made.last, made.start + made.height)
                    for made in kept.values()
                ):
                    starts.append(start)
                    for tensor, made in kept.items():
                        begins[tensor].append(top - made.start)
                    heights = {tensor: each.height for tensor, each in found.items()}
                    break
            else:
                return None
        for operator in self.subgraph.operators[region.rest : region.last]:
            heights[operator.outputs[0]] = rows
        cut = {t: tuple(each) for t, each in begins.items() if heights[t] != rows}
        return Bands(region, len(tops), rows, height, tops, tuple(starts), cut, heights)

    def _ruled(self, region: Region) -> list[tuple[OperatorEntry, RowRule]]:
        operators = self.subgraph.operators[region.first : region.last]
        return list(zip(operators, region.rules, strict=True))

    def _maps(self, operator: OperatorEntry) -> list[int]:
        """Feature maps that an operator reads."""
        return list(dict.fromkeys(t for t in operator.inputs if not self.is_given(t)))


def counts(rows: int) -> list[int]:
    """Counts of bands of a result of so many rows: the fewest for each height."""
    return [
        count
        for count in range(2, min(rows, MOST_BANDS) + 1)
        if -(-rows // -(-rows // count)) == count
    ]

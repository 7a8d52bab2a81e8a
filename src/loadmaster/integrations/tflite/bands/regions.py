"""Regions of operators that can run in bands of rows, and the slices of rows of each band."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from loadmaster.integrations.tflite.bands.rows import RowRule, RowSlice, rules_of
from loadmaster.integrations.tflite.lifetimes import needs_room
from loadmaster.workloads.frontends.tflite.model import OperatorEntry, TfliteModel

LONGEST = 16
"""Most operators of a region; the halos of more repeat too much work."""
MOST_BANDS = 32
"""Most bands of a region; each takes memory in the arena's tail."""
_TYPES = ("float32", "int8", "int16", "int32", "bool")
"""Types of elements that TFLM's SLICE and CONCATENATION move."""
_SLACK = 4
"""Most rows by which a slice is higher than needed, to align it with strides and padding."""


@dataclass(frozen=True)
class Region:
    """Operators [first, last) of the network with one input feature map (``source``) and one
    output feature map (``result``), for one image.

    Attributes
    ----------
    rest
        First operator from which on all operators are row by row.
    kept
        Tensors from before ``rest`` that are read from there on; they are cut to the rows of a
        band.
    """

    first: int
    last: int
    source: int
    result: int
    rest: int
    kept: tuple[int, ...]


@dataclass(frozen=True)
class RowRange:
    """Rows of a tensor that operators from ``before`` on need: in each band ``b`` the ``rows`` rows
    from ``begins[b]`` on. Of a cut, rows count from the begin of the slice that the band makes."""

    before: int
    tensor: int
    rows: int
    begins: tuple[int, ...]

    @property
    def moves(self) -> bool:
        """Whether the rows begin at different ones in different bands."""
        return len(set(self.begins)) > 1


@dataclass(frozen=True)
class Bands:
    """A region in ``count`` bands.

    Band ``b`` reads ``height`` rows of the source from ``starts[b]`` on, and makes ``rows`` rows of
    the result from ``tops[b]`` on. ``heights`` are the rows of every tensor in a band; ``cuts``
    drop rows with invalid values from padding. IF runs a subgraph of fixed shapes, so all bands
    have the same heights: if ``count`` does not divide the rows, the last band repeats rows of the
    band before it.
    """

    region: Region
    count: int
    rows: int
    height: int
    tops: tuple[int, ...]
    starts: tuple[int, ...]
    cuts: tuple[RowRange, ...]
    heights: Mapping[int, int]

    @property
    def again(self) -> int:
        """Number of rows of the result that the last band repeats."""
        return (self.count - 1) * self.rows - self.tops[-1]


class RowChain:
    """The operators of a network's first subgraph, with their row rules, and its regions."""

    def __init__(self, model: TfliteModel) -> None:
        self.subgraph = model.subgraphs[0]
        operators = self.subgraph.operators
        found = (rules_of(self.subgraph, op, model.root.file.data) for op in operators)
        self.windows = {number: each for number, each in enumerate(found) if each is not None}
        self.rules = {number: rows for number, (rows, _) in self.windows.items()}
        self.last_use = {
            tensor: number for number, op in enumerate(operators) for tensor in op.inputs
        } | dict.fromkeys(self.subgraph.outputs, len(operators))

    def is_given(self, tensor: int) -> bool:
        """Return whether an operand is absent or constant."""
        return tensor < 0 or self.subgraph.tensors[tensor].constant

    def rows(self, tensor: int) -> int:
        """Return the number of rows of a feature map."""
        return self.subgraph.tensors[tensor].shape[1]

    def folds(self) -> dict[int, int]:
        """Return the convolutions whose SAME padding can replace a PAD before them with equal
        results, each with the operand of the PAD."""
        operators = self.subgraph.operators
        found: dict[int, int] = {}
        for index, padding in self.windows.items():
            pad = operators[index]
            if pad.kind != "PAD":
                continue
            source, (result,) = pad.inputs[0], pad.outputs
            readers = [n for n, op in enumerate(operators) if result in op.inputs]
            if (
                self._type_and_scale(source) == self._type_and_scale(result)
                and result not in self.subgraph.outputs
                and all(self._can_fold(pad, padding, number) for number in readers)
            ):
                found |= dict.fromkeys(readers, source)
        return found

    def _can_fold(self, pad: OperatorEntry, padding: Sequence[RowRule], number: int) -> bool:
        """Whether a PAD can be left out: convolution ``number`` with padding SAME pads its rows and
        columns equally."""
        conv, windows = self.subgraph.operators[number], self.windows.get(number)
        if windows is None or not conv.kind.endswith("V_2D") or conv.inputs[0] != pad.outputs[0]:
            return False
        sizes, results = (self.subgraph.tensors[t].shape for t in (pad.inputs[0], conv.outputs[0]))
        for axis, (rule, given) in enumerate(zip(windows, padding, strict=True), 1):
            same = replace(rule, same=True)
            size = sizes[axis]
            if rule.same or (same.pad_top(size), same.height(size)) != (given.top, results[axis]):
                return False
        return True

    def _type_and_scale(self, tensor: int) -> list[object]:
        """Return the type and quantisation of a tensor."""
        entry = self.subgraph.tensors[tensor]
        table = entry.table.table(4)
        return [entry.dtype, table and (table.numbers(2, "f"), table.numbers(3, "q"))]

    def regions(self) -> Iterator[Region]:
        """Yield all regions. O(operators x LONGEST^2)."""
        for first in range(len(self.subgraph.operators)):
            for last in range(first + 1, first + LONGEST + 1):
                if last - 1 not in self.rules:
                    break
                if region := self._region(first, last):
                    yield region

    def _region(self, first: int, last: int) -> Region | None:
        """Return the operators ``first`` to ``last`` - 1 as a region; None unless they have one
        source, one result that later operators read, and only images of one batch between."""
        operators = self.subgraph.operators[first:last]
        made: dict[int, int] = {}
        sources: set[int] = set()
        for number, operator in enumerate(operators, first):
            read = {*self._feature_maps(operator)}
            if len(operator.outputs) != 1 or not (
                read
                and all(self._broadcasts(operator, t) for t in {*operator.inputs} - read - {-1})
            ):
                return None
            sources |= read - made.keys()
            made[operator.outputs[0]] = number
        (result,) = operators[-1].outputs
        kept = [t for t in made if t != result and self.last_use.get(t, last) >= last]
        if len(sources) != 1 or kept:
            return None
        (source,) = sources
        every = [self.subgraph.tensors[t] for t in (source, *made)]
        if not all(
            needs_room(t) and len(t.shape) == 4 and t.shape[0] == 1 and t.dtype in _TYPES
            for t in every
        ):
            return None
        rest = max(
            (n + 1 for n in range(first, last) if not self.rules[n].row_by_row), default=first
        )
        read = {result} | {t for op in operators[rest - first :] for t in op.inputs}
        before = (source, *(t for t, number in made.items() if number < rest))
        rows = tuple(t for t in before if t in read)
        return Region(first, last, source, result, rest, rows)

    def _broadcasts(self, operator: OperatorEntry, tensor: int) -> bool:
        """Return whether a constant operand is the same for all rows of a result."""
        if operator.kind.endswith("CONV_2D"):
            return True
        shape = self.subgraph.tensors[tensor].shape
        return len(shape) < 3 or shape[-3] == 1

    def bands(self, region: Region, count: int) -> Iterator[Bands]:
        """Yield the region in ``count`` bands: with invalid rows cut before ``rest`` only, and also
        cut behind window operators, which saves work."""
        total = self.rows(region.result)
        rows = -(-total // count)
        tops = tuple(min(band * rows, total - rows) for band in range(count))
        for points in dict.fromkeys(((), tuple(self._cut_points(region)))):
            if found := self._with_cuts(region, points, tops, rows):
                yield found

    def _cut_points(self, region: Region) -> Iterator[int]:
        """Yield the operators before which the result of a window operator can be cut: no earlier
        tensor is read from there to ``rest``."""
        operators, made = self.subgraph.operators, {region.source}
        for number in range(region.first + 1, region.rest):
            read = {t for op in operators[number : region.rest] for t in op.inputs}
            if not self.rules[number - 1].row_by_row and made.isdisjoint(read):
                yield number
            made.add(operators[number - 1].outputs[0])

    def _with_cuts(
        self, region: Region, points: tuple[int, ...], tops: tuple[int, ...], rows: int
    ) -> Bands | None:
        """Return the bands of a region with cuts before the operators ``points``, too; None if
        there are no slices that give valid rows.

        Works backwards over the parts between cuts: the slices that a part reads are the rows that
        the part before it must make.
        """
        operators = self.subgraph.operators
        heights = {op.outputs[0]: rows for op in operators[region.rest : region.last]}
        asked, cuts, left = list[RowRange](), list[RowRange](), [*region.kept]
        for first, last in reversed(list(pairwise((region.first, *points, region.rest)))):
            outer = first == region.first
            source = region.source if outer else operators[first - 1].outputs[0]
            here = {source, *(op.outputs[0] for op in operators[first:last])}
            asked += [RowRange(region.rest, t, rows, tops) for t in left if t in here]
            left = [t for t in left if t not in here]
            # A slice must be smaller than the region's source.
            placed = self._slices(first, last, source, asked, self.rows(source) - outer)
            if not placed:
                return None
            for each in reversed(asked):
                slices = [made[each.tensor] for made in placed]
                if slices[0].height != each.rows:
                    pairs = zip(each.begins, slices, strict=True)
                    begins = tuple(begin - there.start for begin, there in pairs)
                    cuts.insert(0, replace(each, begins=begins))
            heights |= {tensor: each.height for tensor, each in placed[0].items()}
            starts = tuple(made[source].start for made in placed)
            asked = [RowRange(first, source, heights[source], starts)]
        height = heights[region.source]
        return Bands(region, len(tops), rows, height, tops, starts, tuple(cuts), heights)

    def _slices(
        self, first: int, last: int, source: int, asked: Sequence[RowRange], most: int
    ) -> list[dict[int, RowSlice]]:
        """Return, for each band, the slices of all tensors for the lowest slices of a source (at
        most ``most`` rows) from which operators [first, last) make the rows ``asked`` for; none if
        there are no such slices."""
        count = len(asked[0].begins)
        needs = [self._needed_rows(first, last, source, asked, band) for band in range(count)]
        fewest = max(1, *(high - low for low, high in needs))
        for height in range(fewest, min(most, fewest + _SLACK) + 1):
            placed = list[dict[int, RowSlice]]()
            for band, (low, high) in enumerate(needs):
                latest = min(low, self.rows(source) - height)
                for start in range(latest, max(0, high - height) - 1, -1):
                    made = self._result_slices(first, last, source, start, height)
                    if all(
                        each.tensor in made
                        and made[each.tensor].first
                        <= each.begins[band]
                        <= made[each.tensor].last - each.rows
                        for each in asked
                    ):
                        placed.append(made)
                        break
                else:
                    break
            else:
                return placed
        return []

    def _needed_rows(
        self, first: int, last: int, source: int, asked: Sequence[RowRange], band: int
    ) -> tuple[int, int]:
        """Return the rows [low, high) of the source that a band needs, clipped to the tensor."""
        need: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for each in asked:
            need[each.tensor].append((each.begins[band], each.begins[band] + each.rows))
        for number in reversed(range(first, last)):
            operator = self.subgraph.operators[number]
            if wanted := need[operator.outputs[0]]:
                for tensor in self._feature_maps(operator):
                    rows = self.rows(tensor)
                    low, high = self.rules[number].needs(*_span(wanted), rows)
                    need[tensor].append((max(low, 0), min(high, rows)))
        return _span(need[source])

    def _result_slices(
        self, first: int, last: int, source: int, start: int, height: int
    ) -> dict[int, RowSlice]:
        """Return the slices of all results for ``height`` rows of the source from ``start`` on, up
        to an operator whose operands have different rows."""
        found = {source: RowSlice(start, height, start, start + height)}
        for number in range(first, last):
            operator = self.subgraph.operators[number]
            parts = [
                self.rules[number].applied(found[t], self.rows(t))
                for t in self._feature_maps(operator)
            ]
            made = parts[0]
            for part in parts[1:]:
                made = made and part and made.common(part)
            if made is None:
                break
            found[operator.outputs[0]] = made
        return found

    def _feature_maps(self, operator: OperatorEntry) -> list[int]:
        """Return the feature maps that an operator reads."""
        return list(dict.fromkeys(t for t in operator.inputs if not self.is_given(t)))


def _span(ranges: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """Return the least range that contains all ranges."""
    return min(low for low, _ in ranges), max(high for _, high in ranges)


def counts(rows: int) -> list[int]:
    """Return the numbers of bands to try for a result of ``rows`` rows: the least for each height
    of a band."""
    return [
        count
        for count in range(2, min(rows, MOST_BANDS) + 1)
        if -(-rows // -(-rows // count)) == count
    ]

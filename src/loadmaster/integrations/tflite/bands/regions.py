"""Runs of operators that can run in bands, and the slices of rows with which they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmaster.integrations.tflite.bands.rows import RowRule, Slice, row_rule, work_of
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
    (``result``), all of one image, and the rule of each."""

    first: int
    last: int
    source: int
    result: int
    rules: tuple[RowRule, ...]


@dataclass(frozen=True)
class Bands:
    """A region in ``count`` bands of ``rows`` rows of its result each.

    Every band takes a slice of ``height`` rows of the source, from ``starts[b]`` on; rows of what it
    makes before ``begins[b]`` are dropped. ``heights`` are rows of every tensor in a band.
    """

    region: Region
    count: int
    rows: int
    height: int
    starts: tuple[int, ...]
    begins: tuple[int, ...]
    heights: Mapping[int, int]

    @property
    def drops(self) -> bool:
        """Whether rows of what a band makes are dropped."""
        return self.heights[self.region.result] != self.rows


class Chain:
    """The operators of a network's first subgraph, as regions see them."""

    def __init__(self, model: TfliteModel) -> None:
        self.subgraph = model.subgraphs[0]
        self.data = model.root.file.data
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
        rules = self.rules[first:last]
        return Region(
            first, last, source, result, tuple(rule for rule in rules if rule is not None)
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
        """What comes of a slice of the source: rows of every tensor; None if rows do not meet."""
        found = {region.source: Slice(start, height, start, start + height)}
        for operator, rule in self._ruled(region):
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
        rows = self.rows(region.result) // count
        needs = [self.needed(region, b * rows, (b + 1) * rows) for b in range(count)]
        most = self.rows(region.source)
        fewest = max(last - first for first, last in needs)
        for height in range(fewest, min(most - 1, fewest + _SLACK) + 1):
            found = self._with_height(region, count, rows, needs, height)
            if found is not None:
                return found
        return None

    def _with_height(
        self,
        region: Region,
        count: int,
        rows: int,
        needs: Sequence[tuple[int, int]],
        height: int,
    ) -> Bands | None:
        starts, begins = [], []
        heights: Mapping[int, int] = {}
        most = self.rows(region.source)
        for band, (first, last) in enumerate(needs):
            low, high = max(0, last - height), min(first, most - height)
            for start in range(high, low - 1, -1):
                found = self.slices(region, start, height)
                if found is None:
                    continue
                made = found[region.result]
                begin = band * rows - made.start
                if (
                    begin >= 0
                    and begin + rows <= made.height
                    and made.first <= band * rows
                    and (band + 1) * rows <= made.last
                ):
                    starts.append(start)
                    begins.append(begin)
                    heights = {tensor: each.height for tensor, each in found.items()}
                    break
            else:
                return None
        return Bands(region, count, rows, height, tuple(starts), tuple(begins), heights)

    def _ruled(self, region: Region) -> list[tuple[OperatorEntry, RowRule]]:
        operators = self.subgraph.operators[region.first : region.last]
        return list(zip(operators, region.rules, strict=True))

    def _maps(self, operator: OperatorEntry) -> list[int]:
        """Feature maps that an operator reads."""
        return list(dict.fromkeys(t for t in operator.inputs if not self.is_given(t)))


def divisors(number: int) -> list[int]:
    """Counts of bands of a result of so many rows, all of them as high as one another."""
    return [count for count in range(2, min(number, MOST_BANDS) + 1) if number % count == 0]

"""Operators that run as one job, as the model has them: what they read, write, and can be cut
along."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from loadmaster.planning.against.model import ReferenceNetwork
from loadmaster.planning.verify.boxes import Box, hull, reshaped, volume
from loadmaster.workloads.graph import Op
from loadmaster.workloads.window import ALL, SUMMED, Window

Use = tuple[tuple[int, ...], tuple[Window, ...]]
"""The shape in which an operator reads a storage, and its windows."""


@dataclass(frozen=True)
class OperatorGroup:
    """Operators that run as one job, whole or in pieces."""

    model: ReferenceNetwork
    names: tuple[str, ...]

    @cached_property
    def ops(self) -> list[Op]:
        """The operators; the others are fused into the first."""
        return [self.model.operators[name] for name in self.names]

    @property
    def main(self) -> Op:
        """The operator that the job is of."""
        return self.ops[0]

    @cached_property
    def made(self) -> dict[str, int]:
        """Storages that the operators write, with their elements."""
        return {
            self.model.storage(w.tensor): self.model.elements(w.tensor)
            for op in self.ops
            for w in op.writes
        }

    @cached_property
    def reads(self) -> dict[str, int]:
        """Storages from outside, and the bytes that whole operators touch of each."""
        all_of = self.model.storages([access for op in self.ops for access in op.reads])
        return {storage: size for storage, size in all_of.items() if storage not in self.made}

    @cached_property
    def uses(self) -> dict[str, list[Use]]:
        """Every way in which the operators read each storage, their own results among them."""
        found: dict[str, list[Use]] = defaultdict(list)
        for op in self.ops:
            for access in (access for access in op.reads if access.bytes):
                storage = self.model.storage(access.tensor)
                seen = self.model.tensor(storage if access.of_storage else access.tensor).shape
                windows = self._by_axes(op, access.windows) or (ALL,) * len(seen)
                found[storage].append((seen, windows))
        return found

    def _by_axes(self, op: Op, windows: Sequence[Window]) -> tuple[Window, ...]:
        """Windows of an operator by the dimensions of the first one's result: those of its own that
        leave as many elements behind them, and have as many; of others all is needed."""
        own = self.model.tensor(op.writes[0].tensor).shape
        if own == self.shape:
            return tuple(windows)
        mine, theirs = (
            {(extent, math.prod(shape[axis:])): axis for axis, extent in enumerate(shape)}
            for shape in (own, self.shape)
        )
        at = {mine[key]: theirs[key] for key in mine.keys() & theirs.keys() if key[0] > 1}
        return tuple(
            replace(window, axis=at[window.axis])
            if window.axis in at
            else window
            if window.axis < 0
            else ALL
            for window in windows
        )

    def needed(self, storage: str, box: Box, terms: Sequence[int]) -> Box | None:
        """The box of a storage that a part of the result needs, or a piece that takes some terms of
        its sum; None for nothing.

        A piece that does not take the last terms needs nothing but what is summed.
        """
        found, shape = list[Box](), self.model.tensor(storage).shape
        for seen, windows in self.uses[storage]:
            if not terms or terms[1] == self.summed or SUMMED in windows:
                part = tuple(
                    (terms[0], terms[1])
                    if terms and window == SUMMED
                    else _range(window, box, extent)
                    for window, extent in zip(windows, seen, strict=True)
                )
                if volume(part):
                    found.append(part if seen == shape else reshaped(part, seen, shape))
        return hull(found) if found else None

    def operands_with(self, storage: str) -> set[str]:
        """Operands of loop nests that a storage is a part of."""
        return {
            self.model.storage(operand)
            for op in self.ops
            for read in op.reads
            for operand in read.part_of
            if self.model.storage(read.tensor) == storage
        }

    @cached_property
    def makes_one(self) -> bool:
        """Whether of the first operator's results only the first is needed."""
        return bool(self.main.writes) and not any(
            write.tensor in self.model.needed for write in self.main.writes[1:]
        )

    @cached_property
    def sees_all(self) -> bool:
        """Whether every operand is seen as an array of as many elements as its storage has."""
        return all(
            math.prod(seen) == self.model.elements(storage)
            for storage, uses in self.uses.items()
            for seen, _ in uses
        )

    @cached_property
    def summed(self) -> int:
        """The extent of what the only loop nest sums over, if it is not grouped and both factors
        say where they have it; else 0."""
        factors = {
            self.model.storage(name)
            for nest in self.main.nests
            for name in (nest.input, nest.weight)
        }
        found = {
            tuple(n for n, window in zip(*use, strict=True) if window == SUMMED)
            for factor in factors
            for use in self.uses.get(factor, [])
        }
        extents = {(nest.c,) for nest in self.main.nests}
        divides = (
            len(self.main.nests) == 1
            and self.main.nests[0].groups == 1
            and factors <= self.uses.keys() - self.made.keys()
        )
        return self.main.nests[0].c if divides and found == extents else 0

    @cached_property
    def elements(self) -> int:
        """Scalar operations outside loop nests."""
        return sum(op.elements for op in self.ops)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first operator's first result."""
        return self.model.tensor(self.main.writes[0].tensor).shape


def _range(window: Window, box: Box, extent: int) -> tuple[int, int]:
    """Elements of an operand's dimension that a part of the result needs."""
    if window.axis < 0:
        return 0, extent
    first, last = box[window.axis]
    scale, divide, unit = window.numerator, window.denominator, window.unit
    begin = max(0, min((first * scale + window.low) // divide * unit, extent))
    end = (((last - 1) * scale + window.high) // divide + 1) * unit
    return begin, max(begin, min(end, extent))

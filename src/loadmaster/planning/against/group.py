"""Operators that run as one job, as the model has them: what they read, write, and can be cut
along."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from loadmaster.planning.against.model import Model
from loadmaster.workloads.graph import Op
from loadmaster.workloads.job import OperandNeeds, OperandWindow


@dataclass(frozen=True)
class Group:
    """Operators that run as one job, whole or in pieces: ``needs`` of what comes from outside, by
    storage."""

    model: Model
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
    def needs(self) -> dict[str, list[OperandNeeds]]:
        """What parts of the result need of each storage from outside."""
        found: dict[str, list[OperandNeeds]] = defaultdict(list)
        for op in self.ops:
            for operand in self.model.needs(op):
                if operand.tensor not in self.made:
                    found[operand.tensor].append(operand)
        return found

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
    def summed(self) -> int:
        """The extent of what the only loop nest sums over, if it is not grouped and both factors
        say where they have it; else 0."""
        factors = {
            self.model.storage(name)
            for nest in self.main.nests
            for name in (nest.input, nest.weight)
        }
        found = {
            tuple(n for n, w in zip(o.shape, o.windows, strict=True) if w.summed)
            for f in factors
            for o in self.needs.get(f, [])
        }
        extents = {(nest.c,) for nest in self.main.nests}
        divides = (
            len(self.main.nests) == 1
            and self.main.nests[0].groups == 1
            and factors <= self.needs.keys()
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

    @cached_property
    def result_channels(self) -> tuple[int, ...]:
        """Elements outside, along and inside the output channels: second in a convolution's result,
        last in a matrix product's."""
        return _around(self.shape, self._channel_axis)

    @cached_property
    def _channel_axis(self) -> int:
        return 1 if "Conv" in self.main.kind else len(self.shape) - 1

    def operand_channels(self, storage: str) -> set[tuple[int, ...]]:
        """The same of an operand, for every way in which it is read and each dimension that goes
        with the output channels."""
        channels = OperandWindow(self._channel_axis)
        return {
            _around(needs.shape, d)
            for needs in self.needs.get(storage, ())
            for d, window in enumerate(needs.windows)
            if window == channels
        }

    @cached_property
    def divided(self) -> frozenset[str]:
        """Storages of which every output channel of the only loop nest needs its own part, where
        windows are not known."""
        nest = self.main.nests[0]
        result = self.model.tensor(nest.output).shape if nest.output else ()
        axis = 1 - len(result) if "Conv" in self.main.kind else -1
        apart, together = {self.model.storage(nest.weight)}, {self.model.storage(nest.input)}
        for op in self.ops:
            for read in op.reads:
                shape = self.model.tensor(read.tensor).shape
                along = (
                    len(shape) >= -axis
                    and shape[axis] == nest.k
                    and self.model.tensor(op.writes[0].tensor).shape == result
                )
                own = (
                    along or (op is self.main and shape == (nest.k,)) or read.tensor == nest.weight
                ) and not (op is self.main and nest.input in read.part_of)
                (apart if own else together).add(self.model.storage(read.tensor))
        return frozenset(apart - together)


def _around(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    return (
        (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
        if 0 <= axis < len(shape)
        else ()
    )

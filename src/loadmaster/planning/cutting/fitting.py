"""Cuts for a machine that must copy operands: all operands of a piece have to fit into the fast
memory together."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadmaster.core.errors import CapacityError
from loadmaster.planning.goal import lack_of_room
from loadmaster.targets.hardware import Target
from loadmaster.workloads.lowering.grid import WHOLE, Grid
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork
from loadmaster.workloads.window import Box, volume, volumes

_MOST_PIECES = 3000
"""Most pieces of all operators together."""
_SMALL = 0.5
"""If a piece needs less than this share of the room, its operands lie in parts that are too large:
their makers are cut first."""

_SUM = -1
"""The reduction of an operator, as an axis beside the dimensions of its result."""


@dataclass(frozen=True)
class _Demand:
    """Bytes in the fast memory of an operator's largest piece: in total, and of its reads by
    storage."""

    bytes: int
    reads: dict[str, int]


def fitted(
    network: DivisibleNetwork, target: Target, room: int, *, sums: bool = True
) -> list[Grid]:
    """Cuts with which the operands of every piece fit into ``room`` bytes.

    Operators that fit stay whole. A tensor in parts is copied part by part. So an operator is cut
    if its pieces need too many bytes, and its producer is cut if that makes parts that are too
    large: each time into twice as many pieces, along the dimension that leaves the fewest bytes.
    Reductions are split only if that does not suffice and ``sums`` allows it. O(rounds x pieces).

    Raises
    ------
    CapacityError
        If no such cuts are found; names an operator that is too large in the smallest pieces tried.
    """
    divides_sums = sums and any(form and form.summed for form in network.forms)
    for in_parts in (False, True)[: 1 + divides_sums]:
        fitting = _Fitting(network, target, room, sums=in_parts)
        try:
            fitting.require_room()
            while not fitting.cut_once():
                pass
            return fitting.cuts
        except CapacityError as error:
            refusal = error
    raise refusal


class _Fitting:
    """Cuts of a network's operators, refined round by round until all fit."""

    def __init__(self, network: DivisibleNetwork, target: Target, room: int, *, sums: bool) -> None:
        self._sums = sums
        self._accumulator = max(core.accumulator for core in target.cores)
        self._graph, self._fused, self._forms = network.graph, network.fused, network.forms
        self._home = network.home
        self._target = target
        self._room = room
        # Of pieces smaller than they must be, a core needs few.
        few = 16 * len(target.cores) * len(self._fused)
        self._most = _MOST_PIECES if room == target.room else min(few, _MOST_PIECES)
        self._padded = target.near.padded
        self._parts: list[dict[int, int]] = [{} for _ in self._fused]
        self.cuts: list[Grid] = [WHOLE] * len(self._fused)

    def require_room(self) -> None:
        """Raise CapacityError if the smallest piece of some operator does not fit, although its
        operands lie in parts just as small."""
        needs = list(map(self._least, range(len(self._fused))))
        if (least := max(needs, default=0)) > self._room:
            raise self._refusal(needs.index(least), least)

    def _refusal(self, number: int, required: int) -> CapacityError:
        """Return the error for an operator that is too large."""
        return lack_of_room(
            f"{self._graph.name}/{self._fused[number].main.name}", required, self._target.near
        )

    def cut_once(self) -> bool:
        """Cut every operator that does not fit once more; return whether all fit already.

        Raises CapacityError if an operator cannot be cut further or pieces are too many."""
        changed = set[int]()
        lacking: tuple[int, int] | tuple[()] = ()
        for number, demand in enumerate(self._demands()):
            if demand.bytes <= self._room:
                continue
            lacking = number, demand.bytes
            # A piece needs room for whole parts, also for bytes of them that it does not read.
            small = sum(self._needed(number).values()) <= self._room * _SMALL
            ways = (self._halve_makers, self._halve_own)[:: 1 if small else -1]
            if number not in changed and not any(halve(number, demand, changed) for halve in ways):
                raise self._refusal(*lacking)
        if lacking and sum(cut.tiles for cut in self.cuts) > self._most:
            raise self._refusal(*lacking)
        return not lacking

    def _least(self, number: int) -> int:
        """Least bytes of an operator's smallest piece in the fast memory."""
        form, group = self._forms[number], self._fused[number]
        if form is None:
            sizes = {access.tensor: access.bytes for access in (*group.reads, *group.writes)}
        else:
            finest = form.grid(dict(enumerate(form.shape)))
            box = tuple((0, ends[0]) for ends in finest.ends)
            sizes = {access.tensor: 1 for access in group.writes}
            summed = (form.summed - 1, form.summed) if self._sums and form.summed else ()
            sizes |= {
                storage: self._bytes(storage, *map(volume, uses.needed([box], summed)))
                for storage, uses in form.uses.items()
            }
            if summed:
                sizes[""] = self._width(number)
        return sum(map(self._padded, sizes.values()))

    def _demands(self) -> Iterator[_Demand]:
        """Yield the largest demand of every operator's pieces with the current cuts."""
        work = lower([self._graph], self._target, cuts=[Cuts(self.cuts)])
        index, jobs = work.tensor_index, iter(work.jobs)
        for cut in self.cuts:
            most = _Demand(-1, {})
            for _ in range(cut.tiles):
                job = next(jobs)
                sizes = {
                    operand.tensor: self._padded(work.tensors[index[operand.tensor]].bytes)
                    for operand in (*job.reads, *job.writes)
                }
                total = sum(sizes.values())
                if total > most.bytes:
                    reads = Counter[str]()
                    for name in dict.fromkeys(operand.tensor for operand in job.reads):
                        tensor = work.tensors[index[name]]
                        if not tensor.summed:
                            reads[tensor.storage] += sizes[name]
                    most = _Demand(total, reads)
            yield most

    def _needed(self, number: int, parts: dict[int, int] | None = None) -> dict[str, int]:
        """Bytes of every storage, the result included, that an operator's largest piece needs, if
        the operator is cut into ``parts``, by default its own."""
        parts = parts or self._parts[number]
        form = self._forms[number]
        group = self._fused[number]
        tensors = self._graph.tensors
        made = {access.tensor: tensors[access.tensor].bytes for access in group.writes}
        if form is None:
            return made | {access.tensor: tensors[access.tensor].bytes for access in group.reads}
        cut = form.grid(parts).boxes
        boxes = np.array(cut, dtype=np.int64).reshape(len(cut), -1, 2)
        largest = int(volumes(boxes).max())
        share = largest / max(1, math.prod(form.shape))
        found = {storage: math.ceil(size * share) for storage, size in made.items()}
        result = sum(found.values())
        # The last piece of a chain needs most: also the operands used after the reduction.
        links = parts.get(_SUM, 1)
        summed = (form.summed * (links - 1) // links, form.summed) if links > 1 else ()
        for storage, uses in form.uses.items():
            needed = volumes(uses.needed_boxes(boxes, summed))
            found[storage] = self._bytes(storage, int(needed.max()))
        if links > 1:
            # In the middle of a chain a piece reads sums and writes others, at its end it writes
            # the result.
            sums = largest * self._width(number)
            found[""] = max(sums, 2 * sums - result)
        return found

    def _width(self, number: int) -> int:
        """Bytes of a partial sum of an operator."""
        return max(self._accumulator, -(-self._fused[number].main.bits // 8))

    def _bytes(self, storage: str, elements: int) -> int:
        """Return the bytes of some elements of a storage, rounded up."""
        tensor = self._graph.tensors[storage]
        return -(-tensor.bytes * elements // max(1, math.prod(tensor.shape)))

    def _halve_makers(self, number: int, demand: _Demand, changed: set[int]) -> bool:
        """Cut the producers of operands that lie in parts much larger than a piece needs; return
        whether any was cut in this round."""
        form = self._forms[number]
        if form is None:
            return False
        needed = self._needed(number)
        boxes = form.grid(self._parts[number]).boxes
        middle = boxes[len(boxes) // 2]
        for storage, size in demand.reads.items():
            maker = self._home.get(storage)
            if (
                maker is None
                or maker in changed
                or size <= needed.get(storage, size) * (1 + _SMALL)
            ):
                continue
            axis = self._longest(maker, *form.uses[storage].needed([middle]))
            if axis is not None and self._halve(maker, axis):
                changed.add(maker)
        return any(self._home.get(storage) in changed for storage in demand.reads)

    def _longest(self, maker: int, box: Box) -> int | None:
        """The dimension along which an operator's pieces are longest relative to a needed box; None
        if none can be shortened."""
        form = self._forms[maker]
        if form is None or len(box) != len(form.shape):
            return None
        now = sum(self._needed(maker).values())
        able = [
            axis for axis in self._open(maker) if axis != _SUM and self._halved(maker, axis) <= now
        ]
        return max(
            able,
            key=lambda axis: (
                form.shape[axis] / self._count(maker, axis) / max(1, box[axis][1] - box[axis][0])
            ),
            default=None,
        )

    def _halved(self, number: int, axis: int) -> int:
        """Bytes that an operator's largest piece needs with twice as many parts along ``axis``."""
        return sum(
            self._needed(
                number, {**self._parts[number], axis: 2 * self._count(number, axis)}
            ).values()
        )

    def _count(self, number: int, axis: int) -> int:
        """Return the number of parts of an operator along an axis."""
        return self._parts[number].get(axis, 1)

    def _open(self, number: int) -> list[int]:
        """Dimensions along which an operator can be cut further."""
        form = self._forms[number]
        if form is None:
            return []
        further = self._sums and self._count(number, _SUM) < form.summed
        return [a for a in form.axes if self._count(number, a) < form.shape[a] // form.step[a]] + [
            _SUM
        ] * further

    def _halve_own(self, number: int, _: _Demand, changed: set[int]) -> bool:
        """Cut an operator along the dimension that leaves its pieces the fewest bytes; return
        whether that reduces them."""
        least = sum(self._needed(number).values())
        best = None
        for axis in self._open(number):
            if (size := self._halved(number, axis)) < least:
                least, best = size, axis
        done = best is not None and self._halve(number, best)
        if done:
            changed.add(number)
        return done

    def _halve(self, number: int, axis: int) -> bool:
        """Double the parts of an operator along an axis; return whether that gives more pieces."""
        form, before = self._forms[number], self.cuts[number].tiles
        assert form is not None
        self._parts[number][axis] = 2 * self._count(number, axis)
        cut = form.chains(self._parts[number], min(form.summed, self._count(number, _SUM)))
        self.cuts[number] = cut
        return cut.tiles > before

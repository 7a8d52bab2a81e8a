"""Where tensors of a plan lie while a job or copy uses them, and which part of an array they
hold."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

from loadmaster.core.errors import PlanError
from loadmaster.planning.plan_records import PlannedAllocation, PlannedTensor, PlanRecord
from loadmaster.workloads.job import Ranges


@dataclass(frozen=True)
class Part:
    """Elements ``ranges`` of an array seen as one of ``shape``; both are empty for all of it."""

    shape: tuple[int, ...] = ()
    ranges: Ranges = ()


@dataclass(frozen=True)
class Addresses:
    """Looks up tensors of a plan in its memories."""

    plan: PlanRecord

    @cached_property
    def tensors(self) -> dict[str, PlannedTensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.plan.tensors}

    @cached_property
    def storages(self) -> dict[tuple[str, str, int], list[PlannedTensor]]:
        """Tensors by network, storage and mini-batch, but for partial sums; all share weights,
        whose mini-batch is 0."""
        found = defaultdict(list)
        for tensor in (each for each in self.plan.tensors if not each.summed):
            found[tensor.network, tensor.storage, tensor.mini_batch].append(tensor)
        return dict(found)

    @cached_property
    def memories(self) -> dict[str, int]:
        """Bytes of every memory that are used, from address 0 on."""
        used = {memory.name: 0 for memory in self.plan.target.memories}
        for each in self.plan.allocations:
            if each.memory in used:
                used[each.memory] = max(used[each.memory], each.offset + each.bytes)
        return used

    @cached_property
    def _stays(self) -> dict[tuple[str, str], list[PlannedAllocation]]:
        found = defaultdict(list)
        for each in self.plan.allocations:
            found[each.tensor, each.memory].append(each)
        return {key: sorted(stays, key=lambda each: each.start) for key, stays in found.items()}

    def address(self, tensor: str, memory: str, start: float, end: float) -> int:
        """Address of a tensor in a memory over [start, end). Raises `PlanError` if it has none.
        O(log stays)."""
        stays = self._stays.get((tensor, memory), [])
        at = bisect_right(stays, start, key=lambda each: each.start) - 1
        if at < 0 or stays[at].end < end:
            raise PlanError(
                f"tensor {tensor!r} has no address in {memory} over [{start}, {end}) s: plan again"
            )
        return stays[at].offset

    def part(self, tensor: PlannedTensor) -> Part:
        """Which part of its storage a tensor holds. Raises `PlanError` if the plan does not
        tell."""
        if tensor.ranges:
            return Part(tensor.shape, tensor.ranges)
        if tensor.channels:
            outer, channels, inner, first, last = tensor.channels
            return Part((outer, channels, inner), ((0, outer), (first, last), (0, inner)))
        if len(self.storages[tensor.network, tensor.storage, tensor.mini_batch]) > 1:
            text = (
                f"tensor {tensor.name!r} is a part of {tensor.storage!r}, and the plan does not"
                " tell which"
            )
            raise PlanError(f"{text}: plan again with another --cut")
        return Part()

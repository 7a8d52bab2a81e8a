"""Where the tensors of a plan lie in its memories, and which elements of the model's they hold."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.core.errors import PlanError
from loadmaster.integrations.execute.model import AnyArray, SourceModel, element_type
from loadmaster.planning.plan_records import PlannedAllocation, PlannedTensor, PlanRecord
from loadmaster.workloads.frontends.onnx.types import ELEMENT_BITS
from loadmaster.workloads.frontends.onnx.walk import Step

Bytes = NDArray[np.uint8]
Memories = dict[str, Bytes]


class Layout:
    """Looks up the tensors of a plan.

    A model whose elements are wider than the plan's has memories of so many times the bytes:
    ``width`` bytes stand for each of the plan, so that all stays in its place.
    """

    def __init__(self, plan: PlanRecord, models: Mapping[str, SourceModel]) -> None:
        self._plan, self._models = plan, models
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        self.width = max(map(self._width, plan.tensors), default=1)
        self.parts: dict[tuple[str, str, int], list[PlannedTensor]] = defaultdict(list)
        for tensor in plan.tensors:
            if not tensor.summed:
                self.parts[tensor.network, tensor.storage, tensor.mini_batch].append(tensor)

    def _width(self, tensor: PlannedTensor) -> int:
        value = self._models[tensor.network].values[tensor.storage]
        bits = 8 * element_type(value).itemsize
        if not tensor.summed:
            return -(-bits // ELEMENT_BITS[value.stored])
        count = self.view(np.broadcast_to(False, value.shape), tensor).size
        return -(-bits * count // (8 * tensor.bytes))

    @cached_property
    def turned(self) -> Mapping[str, Mapping[str, Step]]:
        """By network and weight, the transposition of weights in parts, which lie as it makes them:
        plans take a weight to be laid out as its reader needs it."""
        divided = {key[:2] for key, parts in self.parts.items() if len(parts) > 1}
        return {
            name: {
                step.node.result.storage: step
                for step in model.steps.values()
                if step.node.kind == "Transpose"
                and step.node.result.constant
                and (name, step.node.label(0)) in divided
            }
            for name, model in self._models.items()
        }

    @cached_property
    def _stays(self) -> dict[tuple[str, str], list[PlannedAllocation]]:
        found = defaultdict(list)
        for each in sorted(self._plan.allocations, key=lambda each: each.start):
            found[each.tensor, each.memory].append(each)
        return found

    def memories(self, byte: int) -> Memories:
        """Memories as long as the plan uses them, full of a byte."""
        used = {memory.name: 0 for memory in self._plan.target.memories}
        for each in self._plan.allocations:
            if each.memory in used:
                used[each.memory] = max(used[each.memory], each.offset + each.bytes)
        return {name: np.full(size * self.width, byte, np.uint8) for name, size in used.items()}

    def view(self, array: AnyArray, tensor: PlannedTensor) -> AnyArray:
        """The part of its storage that a tensor holds. Raises `PlanError` if the plan does not
        tell."""
        if tensor.ranges:
            return array.reshape(tensor.shape)[tuple(slice(*each) for each in tensor.ranges)]
        if tensor.channels:
            *shape, first, last = tensor.channels
            return array.reshape(shape)[:, first:last]
        if len(self.parts[tensor.network, tensor.storage, tensor.mini_batch]) > 1:
            raise PlanError(
                f"tensor {tensor.name!r} is a part of {tensor.storage!r}, and the plan does not"
                " tell which: plan again with another --cut"
            )
        return array

    def bytes_at(
        self, memories: Memories, tensor: str, memory: str, times: Sequence[float]
    ) -> Bytes:
        """The bytes of a tensor in a memory over the times [start, end). Raises `PlanError` if it
        has no address there then."""
        stays = self._stays.get((tensor, memory), [])
        at = bisect_right(stays, times[0], key=lambda each: each.start) - 1
        if at < 0 or stays[at].end < times[1]:
            raise PlanError(f"tensor {tensor!r} has no address in {memory} over {tuple(times)} s")
        first = stays[at].offset * self.width
        return memories[memory][first : first + self.tensors[tensor].bytes * self.width]

    def load(self, data: Bytes, array: AnyArray, tensor: PlannedTensor) -> None:
        """Take a tensor's elements from its bytes."""
        part = self.view(array, tensor)
        part[...] = data[: part.nbytes].view(part.dtype).reshape(part.shape)

    def store(self, data: Bytes, array: AnyArray, tensor: PlannedTensor) -> None:
        """Put a tensor's elements into its bytes, of which none is kept."""
        found = self.view(array, tensor).tobytes()
        data[: len(found)] = np.frombuffer(found, np.uint8)
        data[len(found) :] = 0xFF

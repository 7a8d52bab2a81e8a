"""Addresses of a plan's tensors in its memories, and their elements in the model's tensors."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import starmap

import numpy as np

from loadmaster.core.arrays import Array
from loadmaster.core.errors import PlanError
from loadmaster.integrations.execute.model import SourceModel, element_type
from loadmaster.planning.plan_records import PlannedAllocation, PlannedTensor, PlanRecord
from loadmaster.planning.verify.facts import ps
from loadmaster.workloads.frontends.onnx.rules import ELEMENT_BITS
from loadmaster.workloads.frontends.onnx.walk import VisitedNode
from loadmaster.workloads.job import Ranges


class Layout:
    """Reads and writes the tensors of a plan in its memories, which `fill` makes.

    If a model's elements are wider than the plan's, memories have ``width`` bytes for each byte of
    the plan, so that addresses scale.
    """

    def __init__(self, plan: PlanRecord, models: Mapping[str, SourceModel]) -> None:
        self._models = models
        self.tensors = {tensor.name: tensor for tensor in plan.tensors}
        self.parts: dict[tuple[str, str, int], list[PlannedTensor]] = defaultdict(list)
        for tensor in plan.tensors:
            if not tensor.summed:
                self.parts[tensor.network, tensor.storage, tensor.mini_batch].append(tensor)
        self.width = max(map(self._width, plan.tensors), default=1)
        self._stays: dict[tuple[str, str], list[PlannedAllocation]] = defaultdict(list)
        self._memories: dict[str, Array] = {}
        self._used = {memory.name: 0 for memory in plan.target.memories}
        for each in plan.allocations:
            self._stays[each.tensor, each.memory].append(each)
            if each.memory in self._used:
                self._used[each.memory] = max(self._used[each.memory], each.offset + each.bytes)

    def _width(self, tensor: PlannedTensor) -> int:
        """Return the bytes in which an array is run for each planned byte of a tensor."""
        value = self._models[tensor.network].values[tensor.storage]
        bits = 8 * element_type(value).itemsize
        size = ELEMENT_BITS[value.stored]
        if tensor.summed:
            size = 8 * tensor.bytes // self.view(np.broadcast_to(False, value.shape), tensor).size
        return -(-bits // size)

    def turned(self, network: str, weight: str) -> VisitedNode | None:
        """Return the transposition of a weight that is stored transposed, because plans store
        parts of a weight in its reader's layout; None for other weights."""
        model, parts = self._models[network], self.parts[network, weight, 0]
        if all(part.shape == model.values[weight].shape for part in parts):
            return None
        return model.turns.get(weight)

    def fill(self, byte: int) -> None:
        """Make new memories of the sizes that the plan uses, filled with a byte."""
        for name, size in self._used.items():
            self._memories[name] = np.full(size * self.width, byte, np.uint8)

    def view(self, array: Array, tensor: PlannedTensor) -> Array:
        """Return the view of a storage's array with the elements of a tensor. Raises `PlanError` if
        the plan does not give them."""
        if math.prod(tensor.shape) != array.size:
            raise PlanError(
                f"{tensor.storage!r} has {array.size} elements, and is planned as"
                f" {list(tensor.shape)}: plan again with another --cut, unless the size of the"
                " operator's result depends on values, or the runtime takes it to be another"
            )
        seen = array.reshape(tensor.shape)
        return seen[tuple(starmap(slice, tensor.ranges))] if tensor.ranges else seen

    def bytes_at(self, tensor: str, memory: str, start: float, end: float) -> Array:
        """Return the bytes of a tensor in a memory while a job or copy uses it. Raises `PlanError`
        if the tensor has no address there at that time."""
        for each in self._stays[tensor, memory]:
            if ps(each.start) <= ps(start) and ps(end) <= ps(each.end):
                first = each.offset * self.width
                last = first + self.tensors[tensor].bytes * self.width
                return self._memories[memory][first:last]
        raise PlanError(f"tensor {tensor!r} has no address in {memory} over [{start}, {end}) s")

    def load(
        self,
        array: Array,
        tensor: PlannedTensor,
        memory: str,
        times: tuple[float, float],
        ranges: Ranges = (),
    ) -> None:
        """Copy a tensor's elements, or those of the box ``ranges``, from its bytes in a memory into
        the array of its storage."""
        data = self.bytes_at(tensor.name, memory, *times)
        found = np.empty_like(array)
        part = self.view(found, tensor)
        part[...] = data[: part.nbytes].view(part.dtype).reshape(part.shape)
        box = replace(tensor, ranges=ranges or tensor.ranges)
        self.view(array, box)[...] = self.view(found, box)

    def store(
        self, array: Array, tensor: PlannedTensor, memory: str, times: tuple[float, float]
    ) -> None:
        """Copy a tensor's elements from the array of its storage to its bytes in a memory,
        overwriting all of them."""
        data = self.bytes_at(tensor.name, memory, *times)
        found = self.view(array, tensor).tobytes()
        data[: len(found)] = np.frombuffer(found, np.uint8)
        data[len(found) :] = 0xFF

"""Versions of one graph: with whole kernels, and with more and more kernels in blocks. In all of
them results reuse the storage of operands after their last use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from loadmaster.core.arrays import Ints
from loadmaster.integrations.torch_compile.captured import Call, View, map_views, views
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.persistent import SMALLEST
from loadmaster.integrations.torch_compile.placing import DeviceMemory
from loadmaster.integrations.torch_compile.updates import Traced

aten: Any = torch.ops.aten
_CUT_SHARES = (1.0, 0.7, 0.5, 0.35)
"""Shares of the budget, tried in this order: kernels that need more are cut into blocks."""
_LEAST_BLOCK = 64 << 10
"""Least bytes of a block; a smaller transfer takes a disk as long."""
_BLOCKS = 4
"""Ratio of the limit above which kernels are cut to the bytes of their blocks."""
_LEAST = 16
"""Ratio of that limit to the least bytes of an operand that is streamed."""


_OVERLOADS = {
    "default": """
        relu gelu silu sigmoid tanh hardtanh hardswish hardsigmoid leaky_relu elu exp log sqrt rsqrt
        reciprocal neg abs sin cos erf clamp clamp_min clamp_max maximum minimum addcmul addcdiv
        threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward
        hardtanh_backward hardswish_backward hardsigmoid_backward leaky_relu_backward
        _native_batch_norm_legit_no_training
    """,
    "Tensor_Scalar": "pow",
    "Tensor Scalar": "add sub mul div",
    "self": "where",
}
IN_PLACE: frozenset[Any] = frozenset(
    getattr(getattr(aten, packet), overload)
    for overloads, packets in _OVERLOADS.items()
    for packet in packets.split()
    for overload in overloads.split()
)
"""Operators whose first result may be written to the storage of an operand of the same type and
layout, because they read every element before they write it. Gradients of normalisations are left
out: PyTorch has an implementation in two passes, the first of which writes."""


def in_place(captured: Traced) -> Traced:
    """Return the graph with results written to the storages of operands, wherever a call is the
    last use of the operand. O(uses of storages).

    Calls and storages keep their indices; replaced storages are used by no call.
    """
    last = {s: k for k, call in enumerate(captured.calls) for s in call.storages}
    boundary = captured.parts[0].end
    for view in views([part.returned for part in captured.parts]):
        # The backward part needs the saved tensors.
        last[view.storage] = max(last.get(view.storage, 0), boundary)
    place: dict[int, int] = {}

    def moved(view: View) -> View:
        """Return an operand with the number of its new storage."""
        return view._replace(storage=place.get(view.storage, view.storage))

    rename = partial(map_views, moved)

    def rename_call(call: Call) -> Call:
        """Return a call with the numbers of the new storages."""
        arguments, keywords, results = rename((call.arguments, call.keywords, call.results))
        used = call.reads, call.writes
        reads, writes = (tuple(dict.fromkeys(place.get(s, s) for s in some)) for some in used)
        return Call(call.name, call.target, arguments, keywords, results, reads, writes)

    calls = []
    for k, call in enumerate(map(rename_call, captured.calls)):
        operand = next((s for s in _reusable_operands(captured, call) if last[s] <= k), None)
        if operand is not None:
            result = call.results[0].storage
            place[result], last[operand] = operand, last.get(result, k)
            call = replace(rename_call(call), in_place=True)
        calls.append(call)
    parts = tuple(
        replace(part, returned=rename(part.returned), given=rename(part.given))
        for part in captured.parts
    )
    return replace(captured, calls=calls, parts=parts)


def _reusable_operands(captured: Traced, call: Call) -> Iterator[int]:
    """Yield the storages of operands that the first result of a call may reuse after their last
    use."""
    result = call.results[0] if call.target in IN_PLACE else None
    if result is None or not _is_whole_storage(captured, result):
        return
    operands = call.operands
    for operand in operands:
        if (
            operand[1:] == result[1:]
            and all(other == operand for other in operands if other.storage == operand.storage)
            and _is_whole_storage(captured, operand)
            and operand.storage not in call.writes
        ):
            yield operand.storage


def _is_whole_storage(captured: Traced, view: View) -> bool:
    """Return whether a tensor is the whole of a storage that the plan owns and places in the
    arena."""
    whole = captured.storages[view.storage].bytes == view.bytes > 0
    return whole and captured.is_planned(view) and view.storage not in captured.streamed


_BUDGET_MARGIN = 1.05
"""Factor by which a budget given as a share may grow when the workspaces of kernels are known."""


class GraphVersions:
    """Versions of one graph, each profiled once.

    Parameters
    ----------
    graph
        The graph before it is profiled.
    movable
        The caller's storages, and gradients, that may leave the fast memory.
    memory, profiles
        Memory of the device; profiles of earlier calls.
    budget
        Bytes of fast memory, without workspaces if the budget is a share; None: no limit. Calls
        whose operands alone take more run in blocks in every version.
    """

    def __init__(
        self,
        graph: Traced,
        movable: frozenset[int],
        memory: DeviceMemory,
        profiles: CallProfiles,
        budget: int | None,
    ) -> None:
        self._movable, self._memory, self._profiles = movable, memory, profiles
        self._plain, self._always_streamed = graph, frozenset[int]()
        for limit, least, room in self._levels(budget)[:1]:
            large = (c for c in graph.calls if graph.operand_bytes(c) > int(_BUDGET_MARGIN * limit))
            self._always_streamed = self._with_streamed(
                frozenset(self._used(large, least)), room
            ).streamed
        self.whole = replace(in_place(graph), profiles=profiles.of(graph, self._always_streamed))
        self._versions: dict[tuple[frozenset[int], int], Traced] = {}

    def _levels(self, budget: int | None) -> list[tuple[int, int, int]]:
        """Return levels of cutting, coarsest first: the bytes above which a kernel is cut, the
        least bytes of an operand that is then streamed, and the bytes for blocks.

        There are none without a budget or a slow file, and none with blocks below `_LEAST_BLOCK`.
        """
        if budget is None or self._memory.file is None:
            return []
        limits = (int(budget * share) for share in _CUT_SHARES)
        every = [(limit, limit // _LEAST, limit // _BLOCKS) for limit in limits]
        return [level for level in every if level[2] >= _LEAST_BLOCK]

    def _used(self, calls: Iterable[Call], least: int) -> set[int]:
        """Return the storages of at least ``least`` bytes that calls use."""
        storages = self._plain.storages
        return {s for call in calls for s in call.storages if storages[s].bytes >= least}

    def finer(self, budget: int | None, needed: Callable[[], Ints]) -> Iterator[Traced]:
        """Yield the graph with whole kernels, then versions with more and more kernels in blocks.

        ``needed`` returns the least bytes with which each kernel of the whole graph can run, shape
        (kernels,).
        """
        if not self._always_streamed:
            yield self.whole
        before, needed = None, cache(needed)
        for limit, least, room in self._levels(budget):
            large = (self._plain.calls[k] for k in np.flatnonzero(needed() > limit))
            used = self._used(large, max(least, SMALLEST))
            key = self._always_streamed | used, room
            if key not in self._versions:
                cut = self._with_streamed(*key)
                self._versions[key] = replace(in_place(cut), profiles=self._profiles.of(cut))
            version = self._versions[key]
            if version.streamed and version.calls != before:
                before = version.calls
                yield version
        if self._always_streamed and before is None:
            yield self.whole  # too little is left for blocks; what it needs can be told

    def _with_streamed(self, wanted: frozenset[int], room: int) -> Traced:
        """Return the graph with as many of the ``wanted`` storages streamed as possible."""
        if not wanted:
            return self._plain
        # Imported late, as most graphs need no blocks.
        from loadmaster.integrations.torch_compile.blocks import stream_storages

        return stream_storages(self._plain, self._movable, wanted, room, self._memory.link)

"""Versions of one graph: whole, and with more and more of its kernels in blocks; in all of them
results take the place of operands that nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster.core.arrays import Ints
from loadmaster.integrations.torch_compile.captured import Call, View, is_view, views
from loadmaster.integrations.torch_compile.cpu_memory import DeviceMemory
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.persistent import SMALLEST
from loadmaster.integrations.torch_compile.updates import Traced

aten: Any = torch.ops.aten
_SHARES = (1.0, 0.7, 0.5, 0.35)
"""Fractions of the budget: kernels that need more are cut, the smaller fractions where the larger
ones do not help."""
_LEAST_BLOCK = 64 << 10
"""A transfer of less takes a disk as long as one of this."""
_BLOCKS = 4
"""A cut kernel's blocks take a fourth of that."""
_LEAST = 16
"""Operands of at least a sixteenth of that rest in the slow memory."""


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
"""Operators whose first result may take the place of any operand of its type and layout: they pass
over the elements once. The gradients of normalisation are not among them, as PyTorch has a way to
compute those in two passes, the first of which writes."""


def in_place(captured: Traced) -> Traced:
    """Let results take the place of operands, wherever a call is the last that needs the operand.
    O(uses of storages).

    Calls and storages keep their numbers; a storage whose place was not needed is used by no call.
    """
    last = {s: k for k, call in enumerate(captured.calls) for s in call.storages}
    boundary = captured.parts[0].end
    for view in views([part.returned for part in captured.parts]):
        # What the first part saves is needed by the second.
        last[view.storage] = max(last.get(view.storage, 0), boundary)
    place: dict[int, int] = {}

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, View):
            return leaf
        return leaf._replace(storage=place.get(leaf.storage, leaf.storage))

    def renamed(values: Any) -> Any:
        return tree_map(moved, values, is_leaf=is_view)

    def renamed_call(call: Call) -> Call:
        arguments, keywords, results = renamed((call.arguments, call.keywords, call.results))
        used = call.reads, call.writes
        reads, writes = (tuple(dict.fromkeys(place.get(s, s) for s in some)) for some in used)
        return Call(call.name, call.target, arguments, keywords, results, reads, writes)

    calls = []
    for k, call in enumerate(map(renamed_call, captured.calls)):
        operand = next((s for s in _dying(captured, call) if last[s] <= k), None)
        if operand is not None:
            result = call.results[0].storage
            place[result], last[operand] = operand, last.get(result, k)
            call = replace(renamed_call(call), in_place=True)
        calls.append(call)
    parts = tuple(
        replace(part, returned=renamed(part.returned), given=renamed(part.given))
        for part in captured.parts
    )
    return replace(captured, calls=calls, parts=parts)


def _dying(captured: Traced, call: Call) -> Iterator[int]:
    """Operands whose place the first result of a call can take, if nobody needs them any more."""
    result = call.results[0] if call.target in IN_PLACE else None
    if result is None or not _alone(captured, result):
        return
    operands = list(views((call.arguments, call.keywords)))
    for operand in operands:
        if (
            operand[1:] == result[1:]
            and all(other == operand for other in operands if other.storage == operand.storage)
            and _alone(captured, operand)
            and operand.storage not in call.writes
        ):
            yield operand.storage


def _alone(captured: Traced, view: View) -> bool:
    """Whether a tensor is all of a storage of the plan's own, in the arena."""
    whole = captured.storages[view.storage].bytes == view.bytes > 0
    return whole and captured.is_planned(view) and view.storage not in captured.streamed


_ABOUT = 1.05
"""A budget that is a share is not known before the workspaces of kernels are: they may make it
larger by this."""


class Versions:
    """Versions of one graph, each profiled once.

    Parameters
    ----------
    graph
        The graph before it is profiled.
    movable
        The caller's storages, and gradients, that may leave the fast memory.
    memory, profiles
        Where it is to run; profiles of calls that were seen before.
    budget
        Bytes of fast memory, as far as they are known. Calls whose operands alone take more are not
        tried whole, and run in blocks in every version.
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
        self._plain, self._always = graph, frozenset[int]()
        for limit, least, room in self._levels(budget)[:1]:
            large = (c for c in graph.calls if graph.operand_bytes(c) > int(_ABOUT * limit))
            self._always = self._at_rest(frozenset(self._used(large, least)), room).streamed
        self.whole = replace(in_place(graph), profiles=profiles.of(graph, self._always))
        self._known: dict[tuple[frozenset[int], int], Traced] = {}

    def _levels(self, budget: int | None) -> list[tuple[int, int, int]]:
        """Ever finer cuts: the bytes from which on a kernel is cut, the least bytes of operands
        that then rest, and the room for blocks.

        There are none without a budget, none without a file that blocks are read from, and none
        whose blocks would be too small to be worth a transfer.
        """
        if budget is None or self._memory.file is None:
            return []
        limits = (int(budget * share) for share in _SHARES)
        every = [(limit, limit // _LEAST, limit // _BLOCKS) for limit in limits]
        return [level for level in every if level[2] >= _LEAST_BLOCK]

    def _used(self, calls: Iterable[Call], least: int) -> set[int]:
        """Storages of at least so many bytes that calls use."""
        storages = self._plain.storages
        return {s for call in calls for s in call.storages if storages[s].bytes >= least}

    def finer(self, budget: int | None, needed: Callable[[], Ints]) -> Iterator[Traced]:
        """Give the whole graph, and then versions for a budget with more and more kernels in
        blocks.

        ``needed`` gives the bytes without which each kernel of the whole graph cannot run.
        """
        if not self._always:
            yield self.whole
        before, needed = None, cache(needed)
        for limit, least, room in self._levels(budget):
            large = (self._plain.calls[k] for k in np.flatnonzero(needed() > limit))
            used = self._used(large, max(least, SMALLEST))
            key = self._always | used, room
            if key not in self._known:
                cut = self._at_rest(*key)
                self._known[key] = replace(in_place(cut), profiles=self._profiles.of(cut))
            version = self._known[key]
            if version.streamed and version.calls != before:
                before = version.calls
                yield version

    def _at_rest(self, wanted: frozenset[int], room: int) -> Traced:
        """Return the graph with those of the ``wanted`` storages at rest that can be."""
        if not wanted:
            return self._plain
        # Most kernels fit whole.
        from loadmaster.integrations.torch_compile.blocks import rests

        return rests(self._plain, self._movable, wanted, room, self._memory.link)

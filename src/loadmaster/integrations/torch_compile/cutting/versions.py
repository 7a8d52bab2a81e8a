"""A captured graph as a whole, and with ever more of its kernels in blocks, as far as a budget asks
for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.captured import (
    Call,
    Captured,
    Owner,
    View,
    is_view,
    views,
)
from loadmaster.integrations.torch_compile.cutting.choose import levels, rests, too_large
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.persistent import SMALLEST
from loadmaster.integrations.torch_compile.placing import Problem
from loadmaster.integrations.torch_compile.traced import Traced
from loadmaster.placement.sequence import CopyLink

aten: Any = torch.ops.aten

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


def in_place(captured: Captured) -> Captured:
    """Let results take the place of operands, wherever a call is the last that needs the operand.
    O(uses of storages).

    Calls and storages keep their numbers; a storage whose place was not needed is used by no call.
    """
    last = {s: k for k, call in enumerate(captured.calls) for s in (*call.reads, *call.writes)}
    boundary = captured.parts[0].end
    for view in views(
        [part.returned for part in captured.parts]
    ):  # what the first part saves is needed by the second
        last[view.storage] = max(last.get(view.storage, 0), boundary)
    place: dict[int, int] = {}

    def moved(leaf: Any) -> Any:
        return (
            leaf._replace(storage=place[leaf.storage])
            if isinstance(leaf, View) and leaf.storage in place
            else leaf
        )

    def renamed(values: Any) -> Any:
        return tree_map(moved, values, is_leaf=is_view)

    calls = []
    for k, call in enumerate(captured.calls):
        arguments, keywords, results = renamed((call.arguments, call.keywords, call.results))
        reads, writes = (
            tuple(dict.fromkeys(place.get(s, s) for s in some))
            for some in (call.reads, call.writes)
        )
        call = replace(
            call,
            arguments=arguments,
            keywords=keywords,
            results=results,
            reads=reads,
            writes=writes,
        )
        operand = next((s for s in _dying(captured, call) if last[s] <= k), None)
        if operand is not None:
            result = call.results[0].storage  # type: ignore[union-attr]
            place[result], last[operand] = operand, last.get(result, k)
            written = tuple(operand if s == result else s for s in call.writes)
            call = replace(call, results=renamed(call.results), writes=written, in_place=True)
        calls.append(call)
    parts = tuple(
        replace(part, returned=renamed(part.returned), given=renamed(part.given))
        for part in captured.parts
    )
    return replace(captured, calls=calls, parts=parts)


def _dying(captured: Captured, call: Call) -> Iterator[int]:
    """Operands whose place the first result of a call can take, if nobody needs them any more."""
    result = call.results[0] if call.target in IN_PLACE else None
    if result is None or not _alone(captured, result):
        return
    operands = list(views((call.arguments, call.keywords)))
    for operand in operands:
        once = all(other == operand for other in operands if other.storage == operand.storage)
        if (
            operand[1:] == result[1:]
            and once
            and _alone(captured, operand)
            and operand.storage not in call.writes
        ):
            yield operand.storage


def _alone(captured: Captured, view: View) -> bool:
    """Whether a tensor is all of a storage of the plan's own, in the arena."""
    storage = captured.storages[view.storage]
    elements = torch.Size(view.size).numel()
    whole = storage.owner is Owner.PLAN and storage.bytes == elements * view.dtype.itemsize > 0
    return whole and view.storage not in captured.streamed


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
    link, profiles
        What transfers take; profiles of calls that were seen before.
    budget
        Bytes of fast memory, as far as they are known. Calls whose operands alone take more are not
        tried whole, and run in blocks in every version.
    """

    def __init__(
        self,
        graph: Traced,
        movable: frozenset[int],
        link: CopyLink,
        profiles: CallProfiles,
        budget: int | None,
    ) -> None:
        self._movable, self._link, self._profiles = movable, link, profiles
        large = frozenset() if budget is None else too_large(graph.captured, int(_ABOUT * budget))
        self._always: frozenset[int] = frozenset()
        ways = [] if budget is None else levels(budget)
        if ways and large:
            _, least, room = ways[0]
            wanted = [s for s in large if graph.captured.storages[s].bytes >= least]
            self._always = rests(graph.captured, movable, wanted, room, link).streamed
        self._plain = graph.captured
        self.whole = replace(
            graph,
            captured=in_place(graph.captured),
            profiles=profiles.of(graph.captured, self._always),
        )
        self._known: dict[tuple[frozenset[int], int], Traced] = {}

    def finer(self, budget: int | None, problem: Callable[[Traced], Problem]) -> Iterator[Traced]:
        """Give the whole graph, and then versions for a budget with more and more kernels in
        blocks.

        ``problem`` is the whole graph's, with all moving that may.
        """
        if not self._always:
            yield self.whole
        if budget is None:
            return
        needed = problem(self.whole).needed()
        captured = self._plain
        before = None
        for limit, least, room in levels(budget):
            calls = [captured.calls[k] for k in np.flatnonzero(needed > limit)]
            used = {
                s
                for call in calls
                for s in (*call.reads, *call.writes)
                if captured.storages[s].bytes >= max(least, SMALLEST)
            }
            version = self._cut(self._always | used, room)
            if version.captured.streamed and version.captured.calls != before:
                before = version.captured.calls
                yield version

    def _cut(self, wanted: frozenset[int], room: int) -> Traced:
        """Return the graph with those of the ``wanted`` storages at rest that can be, and its
        kernels profiled."""
        key = wanted, room
        if key not in self._known:
            captured = rests(self._plain, self._movable, wanted, room, self._link)
            profiles = self._profiles.of(captured)
            self._known[key] = replace(self.whole, captured=in_place(captured), profiles=profiles)
        return self._known[key]

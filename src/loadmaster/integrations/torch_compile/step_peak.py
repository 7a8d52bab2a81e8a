"""The peak of fast memory over a whole step in which nothing moves; a budget that is a share is a
share of this.

A step may run several graphs (graph breaks): forward one after the other, and backward in the
opposite order. While one runs, what those before it have saved waits for their backward passes, and
gradients of those after it are there already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from loadmaster.integrations.torch_compile.captured import Captured, Owner, View
from loadmaster.integrations.torch_compile.placing import Problem


@dataclass(frozen=True)
class Footprint:
    """Bytes of fast memory that one graph takes in a step, without persistent tensors.

    Attributes
    ----------
    forward, backward
        Peak of each part, inputs and results included.
    saved
        Tensors kept from the forward part for the backward part.
    left
        Gradients of parameters, results of the backward part, which stay until the step is over.
    """

    forward: int
    backward: int
    saved: int
    left: int


def footprint(captured: Captured, unmoved: Problem, persistent: Collection[int]) -> Footprint:
    """Return the bytes that a graph takes, by a problem in which it is alone and nothing moves;
    ``persistent`` storages do not count."""
    taken = (
        unmoved.sequence.live_bytes()
        + unmoved.elsewhere
        - sum(captured.storages[s].bytes for s in persistent)
    )
    boundary = captured.parts[0].end
    forward = int(taken[:boundary].max(initial=0))
    if len(captured.parts) == 1:
        return Footprint(forward, 0, 0, 0)
    second = captured.parts[1]
    saved = _storages([second.given[i] for i in second.saved])
    sizes = [
        sum(captured.storages[s].bytes for s in some)
        for some in (saved, gradients_left(captured, persistent))
    ]
    return Footprint(forward, int(taken[boundary:].max(initial=0)), *sizes)


def live_bytes(captured: Captured) -> int:
    """Most bytes of storages that live at once when nothing moves, without what operators take
    beside them."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for k, call in enumerate(captured.calls):
        for s in (*call.reads, *call.writes):
            first.setdefault(s, k)
            last[s] = k
    end = len(captured.calls)
    change = [0] * (end + 1)
    for s, storage in enumerate(captured.storages):
        begin = 0 if storage.owner is Owner.CALLER else first.get(s, end)
        change[begin] += storage.bytes
        change[last.get(s, end - 1) + 1 if storage.owner is Owner.PLAN and s in first else end] -= (
            storage.bytes
        )
    return max(accumulate(change), default=0)


def gradients_left(captured: Captured, persistent: Collection[int]) -> set[int]:
    """Storages of parameters' gradients that the backward part returns."""
    pairs = (
        zip(captured.parts[0].given, captured.parts[-1].returned, strict=False)
        if len(captured.parts) > 1
        else ()
    )
    gradients = [
        gradient
        for slot, gradient in pairs
        if isinstance(slot, View) and slot.storage in persistent
    ]
    return {s for s in _storages(gradients) if captured.storages[s].owner is Owner.RETURNED}


def _storages(values: Sequence[object]) -> set[int]:
    return {value.storage for value in values if isinstance(value, View)}


def step_peak(graphs: Sequence[Footprint]) -> int:
    """Most bytes in use at once in a step that runs ``graphs`` in this order, without persistent
    tensors. O(graphs)."""
    waiting = [0, *accumulate(graph.saved for graph in graphs)]
    after = left_after(graphs)
    return max(
        (
            wait + max(graph.forward, graph.backward + left)
            for graph, wait, left in zip(graphs, waiting, after, strict=False)
        ),
        default=0,
    )


def left_after(graphs: Sequence[Footprint]) -> list[int]:
    """Return for each graph the bytes of gradients in use when its backward pass begins: those of
    the graphs after it. O(graphs)."""
    return [0, *accumulate(graph.left for graph in reversed(graphs))][-2::-1]

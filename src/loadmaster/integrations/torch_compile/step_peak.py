"""What a whole step takes when nothing moves: a share of fast memory is a share of this.

A step may run several graphs (graph breaks): forward one after the other, and backward in the opposite order. While one runs, what those
before it have saved waits for their backward passes, and gradients of those after it are there already.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate

from loadmaster.integrations.torch_compile.captured import Captured, Owner, View
from loadmaster.integrations.torch_compile.placing import Problem


@dataclass(frozen=True)
class Footprint:
    """Bytes that one graph takes in a step, beside tensors that last from step to step.

    Attributes
    ----------
    forward, backward
        Most at once in either part, inputs and results included.
    saved
        What waits between the two parts.
    left
        Gradients of parameters, results of the backward part, which stay until the step is over.
    """

    forward: int
    backward: int
    saved: int
    left: int


def footprint(captured: Captured, unmoved: Problem, lasting: Collection[int]) -> Footprint:
    """Of a graph by its problem, in which nothing moves and there are no others; ``lasting`` storages last from step to step."""
    taken = unmoved.sequence.live_bytes() + unmoved.elsewhere - sum(captured.storages[s].bytes for s in lasting)
    boundary = captured.parts[0].end
    forward = int(taken[:boundary].max(initial=0))
    if len(captured.parts) == 1:
        return Footprint(forward, 0, 0, 0)
    second = captured.parts[1]
    saved = _storages([second.given[i] for i in second.saved])
    pairs = zip(captured.parts[0].given, second.returned, strict=False)
    gradients = [gradient for slot, gradient in pairs if isinstance(slot, View) and slot.storage in lasting]
    left = {s for s in _storages(gradients) if captured.storages[s].owner is Owner.RETURNED}
    sizes = [sum(captured.storages[s].bytes for s in some) for some in (saved, left)]
    return Footprint(forward, int(taken[boundary:].max(initial=0)), *sizes)


def _storages(values: Sequence[object]) -> set[int]:
    return {value.storage for value in values if isinstance(value, View)}


def step_peak(graphs: Sequence[Footprint]) -> int:
    """Most bytes at once in a step that runs ``graphs`` in this order, beside tensors that last. O(graphs)."""
    waiting = [0, *accumulate(graph.saved for graph in graphs)]
    after = left_after(graphs)
    return max(
        (wait + max(graph.forward, graph.backward + left) for graph, wait, left in zip(graphs, waiting, after, strict=False)), default=0
    )


def left_after(graphs: Sequence[Footprint]) -> list[int]:
    """For each graph the bytes of gradients that are there when its backward pass begins: those of the graphs after it. O(graphs)."""
    return [0, *accumulate(graph.left for graph in reversed(graphs))][-2::-1]

"""The peak of fast memory over a whole step in which nothing moves; a budget that is a share is a
share of this.

A step may run several graphs (graph breaks): forward one after the other, and backward in the
opposite order. While one runs, what those before it have saved waits for their backward passes, and
gradients of those after it are there already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol

import torch

from loadmaster.integrations.torch_compile.captured import Captured, Owner, View
from loadmaster.integrations.torch_compile.executor import Program, Times
from loadmaster.integrations.torch_compile.persistent import SMALLEST, PersistentTensors
from loadmaster.integrations.torch_compile.placing import Problem, TooSmall


class Planned(Protocol):
    """The part of a planned graph that its model and the reports on it use; see `PlannedGraph`."""

    name: str
    graphs: list[torch.fx.GraphModule]
    times: Times
    program: Program | None
    unmoved_peak: int
    refused: TooSmall | None

    @property
    def changes(self) -> frozenset[int]:
        """Parameters (by ``id``) that the graph's runs update."""

    @property
    def problem(self) -> Problem:
        """The placement problem that the plan solves."""

    @property
    def placed_peak(self) -> int:
        """Most bytes of fast memory in use at once under the plan."""

    @property
    def kernels_in_blocks(self) -> tuple[str, ...]:
        """Operators of the kernels that run block by block."""

    @property
    def moved_bytes(self) -> int:
        """Bytes that a step copies, both ways."""

    @property
    def predicted_seconds(self) -> float:
        """Seconds that a step should take."""

    def gradients_left(self, at_least: bool) -> int:
        """Bytes of gradients that a step leaves in the fast memory; with ``at_least``, if all that
        may move do."""

    def place_parameters(self) -> None:
        """Offload or reload parameters, buffers and optimizer state so that each is where the plan
        expects it."""

    def refresh_prediction(self) -> None:
        """Predict the time of a step again, from the steps measured so far; the plan stays."""

    def forget_times(self) -> None:
        """Predict from the steps that follow: those so far ran under other conditions."""

    def rows(self) -> list[dict[str, Any]]:
        """A row for each kernel with its predicted and measured seconds."""


_OF_A_KERNEL, _OF_A_SYMBOLIC_KERNEL = 44 << 10, 72 << 10
COMPILER = 56 << 20
"""Bytes that PyTorch's compiler may take for itself in a step that compiles, which are not part of
the budget."""
ALLOWED = 8 << 20
"""Bytes that a process may take beside a budget: the objects of some 180 kernels are among them."""


def object_bytes(kernels: int, symbolic: bool) -> int:
    """Estimate the bytes of the objects of a graph; ``symbolic`` if it was captured with sizes that
    are symbols."""
    return kernels * (_OF_A_SYMBOLIC_KERNEL if symbolic else _OF_A_KERNEL)


def beyond_allowed(graphs: Iterable[int]) -> int:
    """Sum up the bytes of the objects of all graphs that are more than what a process may take
    beside a budget."""
    return max(sum(graphs) - ALLOWED, 0)


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


@dataclass
class Seen:
    """What was seen of one graph.

    Attributes
    ----------
    footprint
        What it takes when nothing moves, None before it is captured.
    earlier, beside
        Most bytes of gradients of earlier backward passes, and of results of graphs that somebody
        held, when each part began.
    after
        The graphs after it, in each step.
    results
        What its forward part has given to the caller.
    """

    footprint: Footprint | None = None
    earlier: list[int] = field(default_factory=lambda: [0, 0])
    beside: list[int] = field(default_factory=lambda: [0, 0])
    after: set[tuple[Planned, ...]] = field(default_factory=set)
    results: PersistentTensors = field(default_factory=lambda: PersistentTensors(None))


class SeenSteps:
    """The graphs of each step that was seen, in order, and what was in memory beside them.

    ``now`` are those of the step under way, and ``peak`` the most bytes of any step, without
    persistent tensors.
    """

    def __init__(self) -> None:
        self.now: list[Planned] = []
        self.peak = 0
        self._seen: defaultdict[Planned, Seen] = defaultdict(Seen)

    def join(self, plan: Planned, taken: Footprint | None = None) -> None:
        """Note that a graph runs in the step under way, if it is known what it takes when nothing
        moves."""
        self._seen[plan].footprint = taken or self._seen[plan].footprint
        if self._seen[plan].footprint is None:
            return
        if plan not in self.now:
            self.now.append(plan)
        seen = [self._seen[one] for one in self.now]
        earlier = [sum(one.earlier[part] for one in seen) for part in (0, 1)]
        step = [
            replace(
                one.footprint,
                forward=one.footprint.forward + earlier[0] + one.beside[0],
                backward=one.footprint.backward + earlier[1] + one.beside[1],
            )
            for one in seen
            if one.footprint is not None
        ]
        self.peak = max(self.peak, step_peak(step))
        for i, one in enumerate(seen):
            one.after.add(tuple(self.now[i + 1 :]))

    def note_gradients(self, plan: Planned, part: int, bytes: int) -> None:
        """Note the bytes of gradients of earlier backward passes that are there when a part of a
        graph begins."""
        self._note_most(self._seen[plan].earlier, plan, part, bytes)

    def note_results(self, plan: Planned, returned: Iterable[Any]) -> None:
        """Note what the forward part of a graph gives to the caller, who may keep it for any
        time."""
        for one in returned:
            if _is_plain(one) and one.untyped_storage().nbytes() >= SMALLEST:
                self._seen[plan].results.of(one)

    def note_results_beside(self, plan: Planned, part: int, arguments: Iterable[Any]) -> None:
        """Note how much of what graphs have returned is held when a part of a graph begins, but for
        its arguments and its own results."""
        given = {one.untyped_storage()._cdata for one in arguments if _is_plain(one)}
        held = sum(
            seen.results.bytes(given)
            for other, seen in self._seen.items()
            if part == 0 or other is not plan
        )
        self._note_most(self._seen[plan].beside, plan, part, held)

    def _note_most(self, most: list[int], plan: Planned, part: int, bytes: int) -> None:
        if bytes > most[part]:
            most[part] = bytes
            self.join(plan)

    def results_beside(self, plan: Planned) -> tuple[int, int]:
        """Most bytes of others' results that were held while the forward, and while the backward
        part of a graph ran."""
        forward, backward = self._seen[plan].beside
        return forward, backward

    def left_after(self, plan: Planned, at_least: bool) -> int:
        """Most bytes of gradients that graphs after this one leave in the fast memory; with
        ``at_least``, if all that may move do."""
        after = self._seen[plan].after
        return max(
            (sum(one.gradients_left(at_least) for one in later) for later in after), default=0
        )


def _is_plain(value: Any) -> bool:
    return type(value) is torch.Tensor and value.layout is torch.strided

"""A captured graph as a whole, and with ever more of its kernels in blocks, as far as a budget asks
for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from loadmaster.integrations.torch_compile.cutting.choose import levels, rests, too_large
from loadmaster.integrations.torch_compile.in_place import in_place
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.persistent import SMALLEST
from loadmaster.integrations.torch_compile.placing import Problem
from loadmaster.integrations.torch_compile.traced import Traced
from loadmaster.placement.sequence import CopyLink

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

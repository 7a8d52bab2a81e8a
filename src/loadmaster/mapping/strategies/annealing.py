"""Simulated annealing on queues: one job moves or two change places
(src/native/mapping/anneal.cpp)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadmaster.core.arrays import Floats
from loadmaster.mapping.group import Group, Queues, core_and_position
from loadmaster.mapping.group_search import MappingSearch, MappingStrategy
from loadmaster.mapping.strategies import ai_mt, herald
from loadmaster.mapping.strategies.paced import paced

_HOT, _WARM, _COLD = 1e-1, 5e-4, 1e-5
"""Temperatures, as relative differences in score that are accepted about one time in three. Walks
start at different temperatures between the first two, and all end at the last."""
_STEPS = 100
"""Number of temperatures of a walk."""
_WALKS, _WALK = 16, 20_000
"""Most walks, and samples that each should have."""
_TOGETHER = 0.4
"""Share of a walk after which all walks restart from the best of them."""
_NEAR, _FAR, _FROZEN = 0.3, 0.03, 1e-8
"""After the restart, temperatures begin between the first two shares of the gap to the bound, and
end at the last."""


def run(search: MappingSearch) -> None:
    """Anneal from the manual mappings."""
    herald.run(search)
    if not search.done:
        ai_mt.run(search)
        anneal(search, [])


def anneal(search: MappingSearch, starts: Sequence[Queues]) -> None:
    """Run several annealing walks until the budget is spent, from the starts in turn (or the best
    mapping, without starts); the walk of the lowest temperature starts from the best mapping.

    Walks end in different local optima: the best of several short walks beats a long one.
    """
    if search.queues is None:
        return
    walks = int(np.clip(search.expected // _WALK, 1, _WALKS))
    starts = starts or [search.queues]
    queues = best = np.concatenate(
        [*(starts[i % len(starts)] for i in range(walks - 1)), search.queues]
    )
    score = least = np.array([search.value(row[None]) for row in queues])
    begin = np.geomspace(_HOT, _WARM, walks)
    near = np.geomspace(_NEAR, _FAR, walks)
    begun, stream, apart = search.budget_spent, search.taken, True
    budget = search.left
    while not search.done and search.left >= walks:
        passed = (search.budget_spent - begun) / max(1e-9, 1 - begun)
        if apart and passed >= _TOGETHER:
            apart = False
            row, value = _best_of(search, best, least)
            queues = best = np.repeat(row, walks, axis=0)
            score = least = np.full(walks, value)
        if apart:
            temperature = begin * (_COLD / begin) ** (passed / _TOGETHER)
        else:
            gap = min(_HOT, max(0.0, search.score / max(search.bound.score, 1e-300) - 1))
            again = np.maximum(gap * near, _FROZEN)
            temperature = again * (_FROZEN / again) ** ((passed - _TOGETHER) / (1 - _TOGETHER))
        steps = max(1, min(search.slice, budget // _STEPS, search.left) // walks)
        walked = search.group.native.anneal(
            queues,
            best,
            score,
            least,
            temperature=temperature,
            samples=steps,
            target=search.bound.score,
            seed=search.seed,
            stream=stream,
            threads=search.threads,
        )
        queues = walked.queues
        best = walked.best
        score = walked.score
        least = walked.best_score
        at = int(least.argmin())
        if least[at] < search.score:
            search.queues = best[at : at + 1]
        search.spent(walked.tried, float(least[at]))
        stream += 1


def _best_of(search: MappingSearch, walks: Queues, scores: Floats) -> tuple[Queues, float]:
    """The best mapping of the walks, in its own order or a paced order, with its score."""
    best: Queues = walks[int(scores.argmin())][None]
    least = float(scores.min())
    for walk in walks[: search.left]:
        queues = paced(search.group, core_and_position(walk, search.group.cores)[0])
        if (score := search.offer(queues)) < least:
            best, least = queues, score
    return best, least


def default_samples(group: Group) -> int:
    """Default number of samples: 600,000 for up to 100 jobs, about a second of one core; fewer for
    more jobs."""
    return max(5_000, min(600_000, 60_000_000 // group.jobs))


STRATEGY = MappingStrategy(run, default_samples)

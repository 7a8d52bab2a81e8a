"""Checks of the order: times respect it, and nothing that needs an order rests on times alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain

from loadmaster.planning.verify.facts import Facts, quoted, when
from loadmaster.planning.verify.memory import successions


def orders(facts: Facts) -> Iterator[str]:
    """Everything that a step's ``after`` names has ended before the step starts."""
    for step in facts.steps:
        for first in (facts.steps[facts.step_of[name]] for name in step.after):
            if first.end > step.start:
                yield (
                    f"{step.label} starts at {when(step.start)}, before {first.label} that it waits"
                    f" for ends at {when(first.end)}"
                )


def cycles(facts: Facts) -> Iterator[str]:
    """No step waits for itself, through ``after`` lists and the order on each core."""
    # The last of the cycle is the first again.
    if names := [facts.steps[step].label for step in facts.topological[1][1:]]:
        yield (
            "these wait for one another: "
            + ", ".join(names[:4])
            + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        )


def dependencies(facts: Facts) -> Iterator[str]:
    """Of the steps that put a tensor where another reads it, one is before the reader in the order,
    not just earlier."""
    reads = [
        (use, [put for put in puts if facts.steps[put].end <= facts.steps[use.step].start])
        for use, puts in facts.fetches
    ]
    missing = _unordered(facts, [(put, use.step) for use, puts in reads for put in puts])
    for use, puts in reads:
        if puts and all((put, use.step) in missing for put in puts):
            yield (
                f"{facts.steps[use.step].label} reads {quoted(use.tensor)}, but nothing makes it"
                f" wait for {facts.steps[puts[0]].label} that puts it in {use.memory}"
            )


def races(facts: Facts) -> Iterator[str]:
    """Where bytes of a shared memory pass to another tensor, all users of the earlier are before
    all writers of the later in the order.

    Each allocation is compared with the latest earlier ones that had any of its bytes. Those before
    them need no look: the users of each come before the writers of the next, who are users of it.
    """
    users: dict[int, dict[int, None]] = defaultdict(dict)
    writers: dict[int, dict[int, None]] = defaultdict(dict)
    for use in facts.uses:
        if use.held is not None:
            users[use.held][use.step] = None
            if use.written:
                writers[use.held][use.step] = None
    found = [
        (before, after, one, two)
        for memory in facts.memories
        for one, two in successions(facts, filter(users.__contains__, facts.groups[memory]))
        if facts.spans[one][1] <= facts.spans[two][0]
        for before in users[one]
        for after in writers[two]
    ]
    missing = _unordered(facts, [(before, after) for before, after, _, _ in found])
    for before, after, one, two in found:
        if (before, after) in missing:
            earlier = facts.plan.allocations[one]
            later = facts.plan.allocations[two]
            yield (
                f"{facts.steps[after].label} writes {quoted(later.tensor)} over"
                f" {quoted(earlier.tensor)} in {later.memory} at offset {later.offset}, but nothing"
                f" makes it wait for {facts.steps[before].label}, which uses"
                f" {quoted(earlier.tensor)}"
            )


def _unordered(facts: Facts, pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those of some pairs of steps of which the first is no ancestor of the second.

    A bit of one integer per step says whether the first of a pair is its ancestor, kept while a
    follower still needs it: O(edges x such firsts / 64). Nothing is said if the order has a cycle,
    which :func:`cycles` reports.
    """
    asked = defaultdict(set)
    for one, two in pairs:
        asked[two].add(one)
    bits = {step: 1 << i for i, step in enumerate(sorted(set[int]().union(*asked.values())))}
    followers = Counter(chain.from_iterable(facts.predecessors))
    lines: dict[int, int] = {}
    missing = set()
    for step in facts.topological[0]:
        ancestors = 0
        for predecessor in facts.predecessors[step]:
            ancestors |= lines[predecessor]
            followers[predecessor] -= 1
            if not followers[predecessor]:
                del lines[predecessor]
        missing |= {(one, step) for one in asked.get(step, ()) if not ancestors & bits[one]}
        if followers[step]:
            lines[step] = ancestors | bits.get(step, 0)
    return missing

"""Checks of the order: times respect it, and nothing that needs an order rests on times alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np

from loadmaster.core.arrays import Ints, Mask
from loadmaster.planning.verify.columns import joined
from loadmaster.planning.verify.facts import NOWHERE, Facts, quoted, when


def orders(facts: Facts) -> Iterator[str]:
    """Everything that a step's ``after`` names has ended before the step starts."""
    (before, after), (start, end) = facts.waits, facts.step_times
    for pair in np.flatnonzero(end[before] > start[after]).tolist():
        first, step = facts.steps[before[pair]], facts.steps[after[pair]]
        yield (
            f"{step.label} starts at {when(step.start)}, before {first.label} that it waits for"
            f" ends at {when(first.end)}"
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
    uses, (held, source), (start, end) = facts.uses, facts.deliveries, facts.step_times
    reads = np.flatnonzero(~uses.written & (uses.held != NOWHERE))
    reads = reads[~facts.initial[uses.held[reads]]]
    first = np.searchsorted(held, uses.held[reads])
    owner, row = joined(first, np.searchsorted(held, uses.held[reads], "right") - first)
    in_time = end[source[row]] <= start[uses.step[reads[owner]]]
    owner, row = owner[in_time], row[in_time]
    missing = _unordered(facts, source[row], uses.step[reads[owner]])
    asked, found = (
        np.bincount(owner[each], minlength=len(reads)) for each in (slice(None), ~missing)
    )
    for number in np.flatnonzero((asked > 0) & (found == 0)).tolist():
        use = reads[number]
        putter, tensor = (
            facts.steps[source[row[np.argmax(owner == number)]]].label,
            facts.plan.tensors[uses.tensor[use]].name,
        )
        where = facts.plan.allocations[uses.held[use]].memory
        yield (
            f"{facts.steps[uses.step[use]].label} reads {quoted(tensor)}, but nothing makes it wait"
            f" for {putter} that puts it in {where}"
        )


def races(facts: Facts) -> Iterator[str]:
    """Where bytes of a shared memory pass to another tensor, all users of the earlier are before
    all writers of the later in the order.

    Each allocation is compared with the latest earlier ones that had any of its bytes. Those before
    them need no look: the users of each come before the writers of the next, who are users of it.
    """
    uses = facts.uses
    (user_of, user), (writer_of, writer) = (
        _steps_of(facts, mask & (uses.held != NOWHERE)) for mask in (True, uses.written)
    )
    used = np.zeros(len(facts.plan.allocations), dtype=np.bool_)
    used[user_of] = True
    used &= facts.columns.allocations.high > facts.columns.allocations.low
    groups = ([i for i in facts.groups.get(memory, ()) if used[i]] for memory in facts.memories)
    pairs = np.array(
        [pair for group in groups for pair in _reuses(facts, group)], dtype=np.int64
    ).reshape(-1, 2)
    owner, row = joined(*_range_of(user_of, pairs[:, 0]))
    one, two, before = pairs[owner, 0], pairs[owner, 1], user[row]
    owner, row = joined(*_range_of(writer_of, two))
    after = writer[row]
    for pair in np.flatnonzero(_unordered(facts, before[owner], after)).tolist():
        earlier, later = (facts.plan.allocations[each[owner[pair]]] for each in (one, two))
        yield (
            f"{facts.steps[after[pair]].label} writes {quoted(later.tensor)} over"
            f" {quoted(earlier.tensor)} in {later.memory} at offset {later.offset}, but nothing"
            f" makes it wait for {facts.steps[before[owner[pair]]].label}, which uses"
            f" {quoted(earlier.tensor)}"
        )


def _steps_of(facts: Facts, mask: Mask) -> tuple[Ints, Ints]:
    """Pairs of an allocation and a step of those uses, each once; by allocation, then step."""
    pairs = np.unique(facts.uses.held[mask] * len(facts.steps) + facts.uses.step[mask])
    return pairs // len(facts.steps), pairs % len(facts.steps)


def _range_of(column: Ints, values: Ints) -> tuple[Ints, Ints]:
    """Of a sorted column, where the rows of each value begin, and how many there are."""
    first = np.searchsorted(column, values)
    return first, np.searchsorted(column, values, "right") - first


def _unordered(facts: Facts, before: Ints, after: Ints) -> Mask:
    """For pairs of steps, whether the first is no ancestor of the second.

    A bit of one integer per step says whether the first of a pair is its ancestor, kept while a
    follower still needs it: O(edges x such firsts / 64). Nothing is said if the order has a cycle,
    which :func:`cycles` reports.
    """
    pairs, missing = list(zip(before.tolist(), after.tolist(), strict=True)), set()
    asked = defaultdict(set)
    for one, two in pairs:
        asked[two].add(one)
    bits = {step: 1 << i for i, step in enumerate(np.unique(before).tolist())}
    followers = np.bincount(facts.edges[0], minlength=len(facts.steps)).tolist()
    lines: dict[int, int] = {}
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
    return np.array([pair in missing for pair in pairs], dtype=np.bool_)


def _reuses(facts: Facts, allocations: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Pairs (earlier, later) of allocations of one memory where the earlier was the latest to have
    some of the later's bytes.

    Sweeps by time over a map from addresses to their latest owners; an allocation adds two bounds
    to it and removes those inside, so there are O(n) pairs. Pairs that overlap in time are left to
    the check of overlaps.
    """
    bounds, owners = [0], [NOWHERE]
    for i in sorted(allocations, key=facts.spans.__getitem__):
        allocation = facts.plan.allocations[i]
        low = _cut(bounds, owners, allocation.offset)
        high = _cut(bounds, owners, allocation.offset + allocation.bytes)
        for owner in dict.fromkeys(owners[low:high]):
            if owner != NOWHERE and facts.spans[owner][1] <= facts.spans[i][0]:
                yield owner, i
        bounds[low:high] = [allocation.offset]
        owners[low:high] = [i]


def _cut(bounds: list[int], owners: list[int], address: int) -> int:
    """Index of the stretch that begins at an address, after splitting the one around it if need
    be."""
    at = bisect_left(bounds, address)
    if at == len(bounds) or bounds[at] != address:
        bounds.insert(at, address)
        owners.insert(at, owners[at - 1])
    return at

"""Checks of the order: times respect it, and nothing that needs an order rests on times alone."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from loadmaster.planning.verify.facts import NOWHERE, Facts, quoted, when


def orders(facts: Facts) -> Iterator[str]:
    """Everything that a step's ``after`` names has ended before the step starts."""
    for step in facts.steps:
        for name in step.after:
            before = facts.steps[facts.step_of[name]]
            if before.end > step.start:
                yield f"{step.label} starts at {when(step.start)}, before {before.label} that it waits for ends at {when(before.end)}"


def cycles(facts: Facts) -> Iterator[str]:
    """No step waits for itself, through ``after`` lists and the order on each core."""
    stuck = set(range(len(facts.steps))).difference(facts.topological)
    if stuck:
        # Every stuck step has a stuck predecessor, so walking back must come round.
        path: dict[int, None] = {}
        step = min(stuck)
        while step not in path:
            path[step] = None
            step = next(before for before in facts.predecessors[step] if before in stuck)
        names = [facts.steps[i].label for i in list(path)[list(path).index(step) :]]
        yield "these wait for one another: " + ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def dependencies(facts: Facts) -> Iterator[str]:
    """Of the steps that put a tensor where another reads it, one is before the reader in the order, not just earlier."""
    needs = []
    for access in facts.accesses:
        number, _, _, writes, place = access
        if not writes and place != NOWHERE and place not in facts.initial:
            start = facts.steps[number].start
            needs.append((access, [step for step in facts.deliveries.get(place, ()) if facts.steps[step].end <= start]))
    missing = _unordered(facts, ((source, access.step) for access, sources in needs for source in sources))
    for access, sources in needs if missing else ():
        if sources and all((source, access.step) in missing for source in sources):
            reader, source = facts.steps[access.step].label, facts.steps[sources[0]].label
            yield f"{reader} reads {quoted(access.tensor)}, but nothing makes it wait for {source} that puts it in {access.memory}"


def races(facts: Facts) -> Iterator[str]:
    """Where bytes of a shared memory pass to another tensor, all users of the earlier are before all writers of the later in the order.

    Each allocation is compared with the latest earlier ones that had any of its bytes. Those before them need no look: the users of
    each come before the writers of the next, who are users of it. Of the users on one core, the last speaks for all.
    """
    users: dict[int, set[int]] = defaultdict(set)
    writers: dict[int, set[int]] = defaultdict(set)
    for step, _, _, writes, place in facts.accesses:
        users[place].add(step)
        if writes:
            writers[place].add(step)
    pairs = []
    for memory in facts.memories:
        used = [i for i in facts.groups.get(memory, ()) if facts.plan.allocations[i].bytes and i in users]
        last = {i: _last_users(facts, users[i]) for i in used}
        pairs += [(one, two, user) for one, two in _reuses(facts, used) for user in last[one]]
    missing = _unordered(facts, ((user, writer) for _, two, user in pairs for writer in writers[two]))
    # Almost always none is: no pair need be looked at again.
    for one, two, user in pairs if missing else ():
        for writer in sorted(writer for writer in writers[two] if (user, writer) in missing):
            earlier, later = facts.plan.allocations[one], facts.plan.allocations[two]
            yield (
                f"{facts.steps[writer].label} writes {quoted(later.tensor)} over {quoted(earlier.tensor)} in {later.memory} "
                f"at offset {later.offset}, "
                f"but nothing makes it wait for {facts.steps[user].label}, which uses {quoted(earlier.tensor)}"
            )


def _unordered(facts: Facts, pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    """Those (before, after) pairs of steps of which the first is no ancestor of the second.

    Most pairs run on one core or are named by ``after``. For the rest, a bit of one integer per step says whether the first of a pair
    is its ancestor, kept while a follower still needs it: O(edges x such firsts / 64). Nothing is said if the order has a
    cycle, which :func:`cycles` reports.
    """
    if len(facts.topological) < len(facts.steps):
        return set()
    asked = defaultdict(set)
    for before, after in pairs:
        if not _plainly_ordered(facts, before, after):
            asked[after].add(before)
    bits = {before: 1 << i for i, before in enumerate(sorted(set().union(*asked.values())))}
    followers = [0] * len(facts.steps)
    for predecessors in facts.predecessors:
        for predecessor in predecessors:
            followers[predecessor] += 1
    missing = set()
    lines: dict[int, int] = {}
    for step in facts.topological if asked else ():
        ancestors = 0
        for predecessor in facts.predecessors[step]:
            ancestors |= lines[predecessor]
            followers[predecessor] -= 1
            if not followers[predecessor]:
                del lines[predecessor]
        missing |= {(before, step) for before in asked[step] if not ancestors & bits[before]}
        if followers[step]:
            lines[step] = ancestors | bits.get(step, 0)
    return missing


def _plainly_ordered(facts: Facts, before: int, after: int) -> bool:
    """Whether a step waits for another by name, or comes later on the same core; no step comes before itself."""
    (core, turn), (other, later) = facts.turns[before], facts.turns[after]
    return (core == other and turn < later) or before in facts.direct[after]


def _last_users(facts: Facts, users: Collection[int]) -> list[int]:
    """The last of the users on each core, and all copies among them."""
    if len(users) == 1:
        return list(users)
    return list({facts.turns[user][0]: user for user in sorted(users, key=lambda i: (facts.turns[i][1], i))}.values())


def _reuses(facts: Facts, allocations: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Pairs (earlier, later) of allocations of one memory where the earlier was the latest to have some of the later's bytes.

    Sweeps by time over a map from addresses to their latest owners; an allocation adds two bounds to it and removes those inside, so
    there are O(n) pairs. Pairs that overlap in time are left to the check of overlaps.
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
    """Index of the stretch that begins at an address, after splitting the one around it if need be."""
    at = bisect_left(bounds, address)
    if at == len(bounds) or bounds[at] != address:
        bounds.insert(at, address)
        owners.insert(at, owners[at - 1])
    return at

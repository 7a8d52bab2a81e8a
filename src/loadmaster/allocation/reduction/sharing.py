"""How few bytes buffers take that are alive together, if some pairs of them may share."""

from __future__ import annotations

from collections.abc import Mapping, Set

_EXACT = 10
"""Buffers of a component up to which the fewest bytes are found; beyond, those of a set of which no
two may share are a bound."""


def least_bytes(bytes_of: Mapping[int, int], near: Mapping[int, Set[int]], nested: bool) -> int:
    """A lower bound on the bytes of buffers that are alive together, where those ``near`` each
    other may share.

    ``nested``: all that share an address have its lowest byte in common. Then they are all near
    each other, and take what the largest of them takes; the bound is exact where few hang together.
    Else two may lie apart in a third, and only those that are not near count.
    """
    open_, total = set(bytes_of), 0
    while open_:
        component, front = set(), [open_.pop()]
        while front:
            buffer = front.pop()
            component.add(buffer)
            reached = near.get(buffer, frozenset()) & open_
            open_ -= reached
            front.extend(reached)
        ordered = sorted(component, key=lambda buffer: (-bytes_of[buffer], buffer))
        sizes = [bytes_of[buffer] for buffer in ordered]
        links = [
            sum(1 << at for at, other in enumerate(ordered) if other in near.get(buffer, ()))
            for buffer in ordered
        ]
        total += (
            _fewest(sizes, links) if nested and len(ordered) <= _EXACT else _apart(sizes, links)
        )
    return total


def _fewest(sizes: list[int], links: list[int]) -> int:
    """The cheapest partition into sets whose members are all linked; a set costs what its largest
    member, which comes first, does."""
    everyone = (1 << len(sizes)) - 1
    known = {0: 0}

    def cost(left: int) -> int:
        if left not in known:
            first = (left & -left).bit_length() - 1
            known[left] = sizes[first] + min(
                cost(left & ~group) for group in _groups(1 << first, links[first] & left, links)
            )
        return known[left]

    return cost(everyone)


def _groups(group: int, candidates: int, links: list[int]) -> list[int]:
    """All linked sets that extend a group by candidates."""
    found = [group]
    while candidates:
        bit = candidates & -candidates
        candidates ^= bit
        found += _groups(group | bit, candidates & links[bit.bit_length() - 1], links)
    return found


def _apart(sizes: list[int], links: list[int]) -> int:
    """Bytes of a set of which no two are linked: greedily, the largest first, and those that bar
    the least."""
    best = 0
    for order in (
        range(len(sizes)),
        sorted(range(len(sizes)), key=lambda at: links[at].bit_count()),
    ):
        barred, total = 0, 0
        for at in order:
            if not barred >> at & 1:
                barred |= links[at]
                total += sizes[at]
        best = max(best, total)
    return best

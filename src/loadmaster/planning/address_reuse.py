"""Who must be done before an address can be used again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import itemgetter


def reuse_pairs(
    start: Sequence[int], offset: Sequence[int], size: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Pairs ``(earlier, later)`` of buffers such that ``later`` takes over bytes whose last owner
    was ``earlier``.

    Buffers take their addresses in order of ``start``. Earlier owners of the same bytes are not
    listed again: they were done before the last owner came. O(n log n) but for shifting the list of
    ranges in use.
    """
    # Ranges of addresses by address, disjoint: first byte, the one after the last, and owner.
    lows: list[int] = []
    highs: list[int] = []
    owners: list[int] = []
    for buffer in sorted(range(len(start)), key=lambda i: (start[i], i)):
        low, high = offset[buffer], offset[buffer] + size[buffer]
        first = bisect_left(highs, low)
        if first < len(highs) and highs[first] == low:
            first += 1
        last = first
        kept = []
        while last < len(lows) and lows[last] < high:
            yield owners[last], buffer
            if lows[last] < low:
                kept.append((lows[last], low, owners[last]))
            if highs[last] > high:
                kept.append((high, highs[last], owners[last]))
            last += 1
        kept.append((low, high, buffer))
        kept.sort(key=itemgetter(0))
        lows[first:last], highs[first:last], owners[first:last] = zip(*kept, strict=True)

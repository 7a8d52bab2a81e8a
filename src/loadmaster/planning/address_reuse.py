"""Who must be done before an address can be used again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Range:
    low: int
    high: int
    owner: int


def reuse_pairs(start: Sequence[int], offset: Sequence[int], size: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs ``(earlier, later)`` of buffers such that ``later`` takes over bytes whose last owner was ``earlier``.

    Buffers take their addresses in order of ``start``. Earlier owners of the same bytes are not listed again: they were
    done before the last owner came. O(n log n) but for shifting the list of ranges in use.
    """
    ranges: list[_Range] = []
    for buffer in sorted(range(len(start)), key=lambda i: (start[i], i)):
        low, high = offset[buffer], offset[buffer] + size[buffer]
        first = bisect_left(ranges, low, key=lambda r: r.high)
        if first < len(ranges) and ranges[first].high == low:
            first += 1
        last = first
        kept = []
        while last < len(ranges) and ranges[last].low < high:
            old = ranges[last]
            yield old.owner, buffer
            if old.low < low:
                kept.append(_Range(old.low, low, old.owner))
            if old.high > high:
                kept.append(_Range(high, old.high, old.owner))
            last += 1
        kept.append(_Range(low, high, buffer))
        ranges[first:last] = sorted(kept, key=lambda r: r.low)

"""TFLM's own planner (``GreedyMemoryPlanner``), to know what it would do: without a plan, and with
what a plan leaves to it.

Buffers with an address stay there, whatever they overlap. The others follow, the largest first and
of equal ones the last first, each into the lowest gap between those that are there at the same
time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A buffer as TFLM asks for it: bytes, first and last scope, and its address if the plan has
    one."""

    bytes: int
    first: int
    last: int
    offset: int | None = None


def online_offsets(requests: Sequence[Request]) -> list[int]:
    """Addresses that TFLM gives. O(n^2) time for n buffers, as in TFLM itself."""
    placed: list[tuple[int, int]] = []
    offsets = [0] * len(requests)
    fixed = [index for index, request in enumerate(requests) if request.offset is not None]
    free = sorted(
        (index for index, request in enumerate(requests) if request.offset is None),
        key=lambda i: (-requests[i].bytes, -i),
    )
    for rank, index in enumerate((*fixed, *free)):
        request = requests[index]
        offsets[index] = (
            request.offset
            if request.offset is not None
            else _lowest_gap(request, placed, requests, (*fixed, *free))
        )
        insort(placed, (offsets[index], rank))
    return offsets


def _lowest_gap(
    request: Request,
    placed: Sequence[tuple[int, int]],
    requests: Sequence[Request],
    order: Sequence[int],
) -> int:
    """The end of the first buffer behind which there is room, among those that are there at the
    same time, by address."""
    candidate = 0
    for offset, rank in placed:
        other = requests[order[rank]]
        if other.first <= request.last and request.first <= other.last:
            if offset - candidate >= request.bytes:
                break
            candidate = max(candidate, offset + other.bytes)
    return candidate


def head_of(requests: Sequence[Request], offsets: Sequence[int]) -> int:
    """Bytes of the arena's head, in which TFLM has all that is planned."""
    return max(
        (offset + request.bytes for request, offset in zip(requests, offsets, strict=True)),
        default=0,
    )

"""Random problems whose optimum often exceeds the load bound, and a brute force to compare with."""

from dataclasses import replace
from functools import cache

import numpy as np
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.buffer_rules import problem_of
from loadmaster.buffers import Gap
from loadmaster.errors import AllocationError


@st.composite
def records(draw, most: int = 7, extras: bool = True) -> list[lm.Buffer]:
    """Crowded buffers; with ``extras`` most sets have alignment, pins or gaps."""
    count = draw(st.integers(0, most))
    kind = draw(st.sampled_from(["alignment", "pins", "gaps", "all"])) if extras else "plain"
    found: list[lm.Buffer] = []
    for i in range(count):
        lower = draw(st.integers(0, 8))
        upper = lower + draw(st.integers(0 if i == 0 else 1, 7))
        size = draw(st.integers(0 if i == 1 else 1, 9))
        alignment = draw(st.sampled_from([1, 2, 4, 8])) if kind in ("alignment", "all") else 1
        gaps = ()
        if kind in ("gaps", "all") and upper - lower >= 3 and draw(st.booleans()):
            begin = draw(st.integers(lower + 1, upper - 2))
            end = draw(st.integers(begin + 1, upper - 1))
            gaps = (Gap(begin, end, (0, draw(st.integers(1, size))) if size and draw(st.booleans()) else None),)
        found.append(lm.Buffer(f"b{i}", lower, upper, size, alignment, gaps=gaps))
    if kind in ("pins", "all"):
        found = pinned(found, draw)
    return found


def pinned(found: list[lm.Buffer], draw) -> list[lm.Buffer]:
    """Pin up to two buffers where they do not contradict each other."""
    for i in range(min(2, len(found))):
        step = found[i].alignment
        trial = [*found[:i], replace(found[i], offset=step * draw(st.integers(0, 16 // step))), *found[i + 1 :]]
        try:
            problem_of(trial)
        except AllocationError:
            continue
        found = trial
    return found


@cache
def rectangles(buffer: lm.Buffer) -> list[tuple[int, int, int, int]]:
    """Instants and bytes, one instant each."""
    cells = []
    for instant in range(buffer.lower, buffer.upper):
        gap = next((g for g in buffer.gaps if g.lower <= instant < g.upper), None)
        low, high = (0, buffer.size) if gap is None else gap.window or (0, 0)
        if low < high:
            cells.append((instant, instant + 1, low, high))
    return cells


def clash(one: lm.Buffer, at: int, other: lm.Buffer, there: int) -> bool:
    if one.upper <= other.lower or other.upper <= one.lower or at + one.size <= there or there + other.size <= at:
        return False
    return any(
        a == c and at + low < there + last and there + first < at + high
        for a, _, low, high in rectangles(one)
        for c, _, first, last in rectangles(other)
    )


def lowest_peak(buffers: list[lm.Buffer]) -> int:
    """Smallest peak by trying all orders, each buffer at its lowest place; pins first."""
    solid = [b for b in buffers if b.size and b.upper > b.lower]
    placed = [(b, b.offset) for b in solid if b.offset is not None]
    reached = max((at + b.size for b, at in placed), default=0)
    return _lowest([b for b in solid if b.offset is None], placed, reached, 10**9)


def _lowest(free: list[lm.Buffer], placed: list[tuple[lm.Buffer, int]], reached: int, best: int) -> int:
    if not free:
        return min(best, reached)
    for buffer in free:
        at = 0
        while any(clash(buffer, at, other, there) for other, there in placed):
            at += buffer.alignment
        if max(reached, at + buffer.size) < best:
            rest = [b for b in free if b is not buffer]
            best = _lowest(rest, [*placed, (buffer, at)], max(reached, at + buffer.size), best)
    return best


def columns(rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lower, upper, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return lower, upper, size

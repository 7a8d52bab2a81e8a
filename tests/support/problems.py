"""Random problems whose optimum often exceeds the load bound, and a brute force to compare
with."""

import importlib.util
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.allocation.problem import Gap

rivals = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="OR-Tools is not installed"
)


def attempt(call, *given, **options):
    """The answer, or why there is none."""
    try:
        return call(*given, **options), ""
    except lm.AllocationError as error:
        return None, str(error)


def _gap(text):
    instants, _, window = text.partition("@")
    low_and_high = tuple(map(int, window.split(":"))) if window else None
    return Gap(*map(int, instants.split("-")), low_and_high)


def _preference(text):
    name, _, cost = text.partition(":")
    return (name, int(cost)) if cost else name


FIELDS = {
    "memory": str,
    "gaps": lambda text: tuple(map(_gap, text.split("+"))),
    "prefers": lambda text: tuple(map(_preference, text.split("+"))),
}


def buffers_of(text):
    """Name, lower, upper and size of each buffer, then fields such as ``offset=3``,
    ``gaps=0-3+5-7@2:8`` and ``prefers=sram+dram:5``; commas between buffers."""
    found = []
    for row in text.split(","):
        name, *numbers = (cells := row.split())[:4]
        fields = dict(cell.split("=") for cell in cells[4:])
        more = {key: FIELDS.get(key, int)(value) for key, value in fields.items()}
        found.append(lm.Buffer(name, *map(int, numbers), **more))
    return found


@st.composite
def records(draw, most=7):
    """Crowded buffers, mostly with alignment, pins or gaps."""
    count = draw(st.integers(0, most))
    kind = draw(st.sampled_from(["alignment", "pins", "gaps", "all"]))
    found = []
    for i in range(count):
        lower = draw(st.integers(0, 8))
        upper = lower + draw(st.integers(0 if i == 0 else 1, 7))
        size = draw(st.integers(0 if i == 1 else 1, 9))
        alignment = draw(st.sampled_from([1, 2, 4, 8])) if kind in ("alignment", "all") else 1
        gaps = (
            draw(some_gaps(lower, upper, size))
            if kind in ("gaps", "all") and upper > lower and draw(st.booleans())
            else ()
        )
        found.append(lm.Buffer(f"b{i}", lower, upper, size, alignment, gaps=gaps))
    if kind in ("pins", "all"):
        found = pinned(found, draw)
    return found


@st.composite
def some_gaps(draw, lower, upper, size):
    """One or two gaps, now and then from birth to death; with a window of any bytes in half of
    them."""
    cuts = sorted(draw(st.lists(st.integers(lower, upper), min_size=2, max_size=4)))
    if draw(st.integers(0, 5)) == 0:
        cuts = [lower, upper]
    gaps = []
    for begin, end in zip(cuts[::2], cuts[1::2], strict=False):
        low = draw(st.sampled_from([0, 0, 1, 3]))
        window = (
            (low, draw(st.integers(low + 1, size))) if low < size and draw(st.booleans()) else None
        )
        gaps.append(Gap(begin, end, window))
    return tuple(gaps)


def orderly(buffers):
    """Whether windows leave no low bytes free, so that an exhausted search is a proof."""
    return all(
        gap.window is None or gap.window[0] == 0 or gap.window[0] >= gap.window[1]
        for b in buffers
        for gap in b.gaps
    )


def pinned(found, draw):
    """Pin up to two buffers where they do not contradict each other."""
    for i in range(min(2, len(found))):
        step = found[i].alignment
        trial = [
            *found[:i],
            replace(found[i], offset=step * draw(st.integers(0, 16 // step))),
            *found[i + 1 :],
        ]
        try:
            lm.problem_of(trial)
        except lm.AllocationError:
            continue
        found = trial
    return found


@cache
def rectangles(buffer):
    """Instants and bytes, one instant each."""
    cells = []
    for instant in range(buffer.lower, buffer.upper):
        gap = next((g for g in buffer.gaps if g.lower <= instant < g.upper), None)
        low, high = (0, buffer.size) if gap is None else gap.window or (0, 0)
        if low < high:
            cells.append((instant, instant + 1, low, high))
    return cells


def clash(one, at, other, there):
    if (
        one.upper <= other.lower
        or other.upper <= one.lower
        or at + one.size <= there
        or there + other.size <= at
    ):
        return False
    return any(
        a == c and at + low < there + last and there + first < at + high
        for a, _, low, high in rectangles(one)
        for c, _, first, last in rectangles(other)
    )


def lowest_peak(buffers):
    """Smallest peak by trying all orders, each buffer at its lowest place; pins first."""
    solid = [b for b in buffers if rectangles(b)]
    placed = [(b, b.offset) for b in solid if b.offset is not None]
    reached = max((at + b.size for b, at in placed), default=0)
    return _lowest([b for b in solid if b.offset is None], placed, reached, 10**9)


def _lowest(free, placed, reached, best):
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


def columns(rows):
    lower, upper, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return lower, upper, size


def lived(rows):
    """Columns of rows that say when a buffer begins and how long it lives."""
    lower, length, size = columns(rows)
    return lower, lower + length, size


def crowd(count, span, longest, largest, seed=0, step=1):
    """Columns of many random buffers."""
    random = np.random.default_rng(seed)
    lower = random.integers(0, span, count)
    upper, size = lower + random.integers(1, longest, count), random.integers(1, largest, count)
    return lower, upper, size * step


def every_offset(buffers, most, *, reserved=(), aliases=(), in_place=(), conflicts=None):
    """Smallest peak up to ``most`` by trying every offset of every buffer, under all demands; None
    if there is none."""
    aliases = [
        [member if isinstance(member, tuple) else (member, 0) for member in group]
        for group in aliases
    ]
    in_place = [(*pair, 0) if len(pair) == 2 else pair for pair in in_place]
    group = {member: number for number, members in enumerate(aliases) for member, _ in members}
    shift = {member: up for members in aliases for member, up in members}
    solid = [bool(b.size) if conflicts is not None else bool(rectangles(b)) for b in buffers]
    placed = [b for b in range(len(buffers)) if solid[b] or b in group]
    # What takes no space may lie past the end, with an alias that is pinned there.
    farthest = max((b.offset or 0 for b in buffers), default=0) + max(shift.values(), default=0)

    def apart(i, at, j, there):
        if group.get(i, -1) == group.get(j, -2):
            return at - shift[i] == there - shift[j]
        if not (solid[i] and solid[j]):
            return True
        if (i, j, there - at) in in_place or (j, i, at - there) in in_place:
            return True
        if conflicts is not None:
            listed = (i, j) in conflicts or (j, i) in conflicts
            return not listed or at + buffers[i].size <= there or there + buffers[j].size <= at
        return not clash(buffers[i], at, buffers[j], there)

    def free(i, at):
        cells = (
            []
            if not solid[i]
            else rectangles(buffers[i])
            if conflicts is None
            else [(0, 1, 0, buffers[i].size)]
        )
        return not any(
            at + first < high and low < at + last
            for _, _, first, last in cells
            for low, high in reserved
        )

    def search(chosen, reached, best):
        if len(chosen) == len(placed):
            return reached
        i = placed[len(chosen)]
        size = buffers[i].size if solid[i] else 0
        limit = (most if best is None else best - 1) - size
        limit = limit if solid[i] else max(limit, farthest)
        pin = buffers[i].offset
        for at in range(0, limit + 1, buffers[i].alignment) if pin is None else [pin]:
            top = max(reached, at + size) if solid[i] else reached
            if top > (most if best is None else best - 1) or not free(i, at):
                continue
            if all(apart(i, at, j, there) for j, there in zip(placed, chosen, strict=False)):
                found = search([*chosen, at], top, best)
                best = found if found is not None else best
        return best

    return search([], 0, None)


def among(members, aliases=(), in_place=(), conflicts=None):
    """The demands that concern some of the buffers alone, by their places among these."""
    place = {i: at for at, i in enumerate(members)}

    def within(pairs):
        return [(place[i], place[j], *shift) for i, j, *shift in pairs if i in place and j in place]

    return {
        "aliases": tuple(
            tuple((place[i], shift) for i, shift in group)
            for group in aliases
            if group[0][0] in place
        ),
        "in_place": within(in_place),
        "conflicts": None if conflicts is None else within(conflicts),
    }


def answer_holds(buffers, answer, **wanted):
    """Fail unless a packing that was found is valid, and optimal only where it meets its bound."""
    if answer.offsets is None:
        assert answer.peak is None
        return
    assert (
        lm.verify_buffers(lm.problem_of(buffers, **wanted), answer.offsets, answer.capacity) == ()
    )
    assert answer.lower_bound <= answer.peak
    assert (answer.status == "optimal") == (answer.peak == answer.lower_bound)


@st.composite
def demands(draw, count):
    """Any combination of reserved ranges, an alias group, in-place pairs and conflicts."""
    found = {}
    wanted = draw(
        st.sets(st.sampled_from(["reserved", "aliases", "in_place", "conflicts"]), min_size=1)
    )
    pairs = [(i, j) for j in range(count) for i in range(j)]
    some = st.lists(st.sampled_from(pairs), unique=True) if pairs else st.just([])
    if "reserved" in wanted:
        lows = draw(st.lists(st.integers(0, 12), min_size=1, max_size=2))
        found["reserved"] = tuple((low, low + draw(st.integers(1, 4))) for low in lows)
    if "aliases" in wanted and count > 1:
        members = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=2, max_size=5))
        shifts = (
            draw(st.lists(st.sampled_from([0, 0, 2, 4, 5]), min_size=5, max_size=5))
            if draw(st.booleans())
            else [0] * 5
        )
        rows = tuple(zip(members, shifts, strict=False))
        found["aliases"] = (rows[:2], rows[2:]) if len(rows) > 3 else (rows,)
    if "in_place" in wanted and pairs:
        found["in_place"] = [(i, j, draw(st.sampled_from([0, 0, 0, -2, 3]))) for i, j in draw(some)]
    if "conflicts" in wanted and pairs:
        found["conflicts"] = draw(some)
    return found


@st.composite
def combined(draw, most):
    """Buffers, and demands on them."""
    buffers = draw(records(most))
    return buffers, draw(demands(len(buffers)))

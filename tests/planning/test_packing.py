"""Packing: nothing overlaps, nothing ends past the capacity, and reuse says who must be done first."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadmaster.planning.address_reuse import reuse_pairs
from loadmaster.planning.packing import pack

buffers = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(1, 9)), max_size=14)


def columns(rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    start = np.array([s for s, _, _ in rows], dtype=np.int64)
    return start, start + np.array([length for _, length, _ in rows], dtype=np.int64), np.array([b for *_, b in rows], dtype=np.int64)


@given(buffers, st.sampled_from([1, 4]), st.integers(4, 40))
@settings(max_examples=200, deadline=None)
def test_packings_are_valid(rows, alignment: int, capacity: int) -> None:
    start, end, size = columns(rows)
    packing = pack(start, end, size, capacity=capacity, alignment=alignment)
    placed = [i for i in range(len(rows)) if packing.offsets[i] >= 0]
    for i in placed:
        assert packing.offsets[i] % alignment == 0
        assert packing.offsets[i] + size[i] <= capacity
        for j in placed:
            together = i < j and start[i] < max(end[j], start[j] + 1) and start[j] < max(end[i], start[i] + 1)
            apart = packing.offsets[i] + size[i] <= packing.offsets[j] or packing.offsets[j] + size[j] <= packing.offsets[i]
            assert not together or apart
    assert packing.peak == max((int(packing.offsets[i] + size[i]) for i in placed), default=0)


@given(buffers)
@settings(deadline=None)
def test_with_room_for_all_everything_is_placed_between_load_and_sum(rows) -> None:
    start, end, size = columns(rows)
    packing = pack(start, end, size, capacity=10**6, alignment=1)
    assert (packing.offsets >= 0).all()
    assert packing.load <= packing.peak <= size.sum()


def test_the_load_counts_what_is_alive_at_once() -> None:
    start, end, size = columns([(0, 4, 3), (2, 4, 5), (4, 4, 7)])
    assert pack(start, end, size, capacity=100, alignment=1).load == 12


def test_what_does_not_fit_is_left_out_by_value() -> None:
    start, end, size = columns([(0, 10, 6), (0, 10, 6)])
    packing = pack(start, end, size, capacity=10, alignment=1, value=np.array([1.0, 2.0]))
    assert sorted(packing.offsets.tolist()) == [-1, 0]


def naive_reuse(start, offset, size) -> set[tuple[int, int]]:
    """Byte by byte."""
    owner: dict[int, int] = {}
    pairs = set()
    for buffer in sorted(range(len(start)), key=lambda i: (start[i], i)):
        for byte in range(offset[buffer], offset[buffer] + size[buffer]):
            if byte in owner:
                pairs.add((owner[byte], buffer))
            owner[byte] = buffer
    return pairs


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 8)), max_size=20))
@settings(max_examples=200, deadline=None)
def test_reuse_pairs_are_those_found_byte_by_byte(rows) -> None:
    start, offset, size = ([row[i] for row in rows] for i in range(3))
    pairs = list(reuse_pairs(start, offset, size))
    assert set(pairs) == naive_reuse(start, offset, size)

"""Which shapes are joined when there are too many."""

from __future__ import annotations

import random

import pytest

from loadmaster.report.merging import merge_neighbours
from loadmaster.report.text import clipped, percent, shortened
from loadmaster.report.timeline import time_unit, total_over_time


def test_the_shortest_pair_goes_first() -> None:
    """Of lengths 5, 1, 1, 5 the two in the middle are joined."""
    assert merge_neighbours([(0, 0, 5), (0, 5, 6), (0, 6, 7), (0, 7, 12)], 3) == [
        range(1),
        range(1, 3),
        range(3, 4),
    ]


@pytest.mark.parametrize("limit", [1, 2, 7, 50, 199, 200, 500])
def test_groups_cover_everything_once(limit: int) -> None:
    """Whatever the limit, the groups are the items in order, within lanes, and no more than asked
    for."""
    dice = random.Random(limit)
    lanes = sorted(dice.randrange(4) for _ in range(200))
    starts = [float(i) for i in range(200)]
    ends = [s + dice.random() for s in starts]
    groups = merge_neighbours(list(zip(lanes, starts, ends, strict=True)), limit)
    assert [i for group in groups for i in group] == list(range(200))
    assert len(groups) == max(min(limit, 200), len(set(lanes)))
    assert all(len({lanes[i] for i in group}) == 1 for group in groups)


def test_time_unit_fits_the_makespan() -> None:
    assert [time_unit(t).name for t in (0.0, 3e-9, 3e-6, 0.781e-3, 3e-3, 12.0)] == [
        "ns",
        "ns",
        "us",
        "us",
        "ms",
        "s",
    ]
    assert time_unit(12.3e-3).span(0.001, 0.0025) == "1.000 to 2.500 ms"


def test_bytes_alive_counts_half_open_lifetimes() -> None:
    """What ends at an instant makes room for what starts there."""
    alive = total_over_time([(0, 2, 5), (2, 3, 7)])
    assert (list(alive.times), list(alive.values)) == ([0, 2, 3], [5, 7, 0])
    assert alive.peak_instant() == 2
    assert alive.mean(4) == pytest.approx(17 / 4)


def test_text_helpers() -> None:
    assert shortened(["a", "b", "c"], 2) == "a, b and 1 more"
    assert len(clipped("x" * 50, 19)) == 19
    assert clipped("abcdefghijklmnopqrstuvwxyz", 11) == "abcd...wxyz"
    assert [percent(v) for v in (0, 0.5, 0.00123, 1e-9, 12.0)] == [
        "0.0 %",
        "50.0 %",
        "0.12 %",
        "< 0.001 %",
        "1200 %",
    ]

"""Which shapes are joined when there are too many."""

import random

import pytest

from loadmaster.report.merging import around, band_of, neighbours
from loadmaster.report.text import clipped, percent, shortened
from loadmaster.report.timeline import largest, outline, time_unit, total_over_time
from loadmaster.report.view import MemoryMap, Shape


def test_the_shortest_pair_goes_first():
    """Of lengths 5, 1, 1, 5 the two in the middle are joined."""
    shapes = [Shape(*ends, 0, 1) for ends in ((0, 5), (5, 6), (6, 7), (7, 12))]
    assert neighbours(shapes, 3) == [shapes[:1], shapes[1:3], shapes[3:]]


@pytest.mark.parametrize("limit", [1, 2, 7, 50, 199, 200, 500])
def test_groups_cover_everything_once(limit):
    """Whatever the limit, the groups are the items in order, within lanes, and no more than asked
    for."""
    dice = random.Random(limit)
    lanes = sorted(dice.randrange(4) for _ in range(200))
    shapes = [
        Shape(start, start + dice.random(), lane, lane + 1) for start, lane in enumerate(lanes)
    ]
    groups = neighbours(shapes, limit)
    assert [shape for group in groups for shape in group] == shapes
    most = max(min(limit, 200), len(set(lanes)))
    assert most * 0.99 <= len(groups) <= most
    assert all(len({shape.low for shape in group}) == 1 for group in groups)


def test_regions_that_live_long_stay_alone_and_none_is_lost():
    """Regions overlap in time; those that are joined are in one band of addresses."""
    shapes = [Shape(at, at + (9_000 if at % 100 == 0 else 2), at, at + 7) for at in range(6_000)]
    groups = neighbours(shapes, 500, band_of(MemoryMap("", shapes, 6_007)))
    assert len(groups) <= 500
    assert sorted(shape.start for group in groups for shape in group) == list(range(6_000))
    assert sum(len(group) == 1 and group[0].start % 100 == 0 for group in groups) == 60
    outline = around(groups[0])
    assert all(outline.low <= each.low and each.high <= outline.high for each in groups[0])
    assert max(around(group).high - around(group).low for group in groups) <= 6_007 / 64 + 8


def test_time_unit_fits_the_makespan():
    units = " ".join(time_unit(t).name for t in (0.0, 3e-9, 3e-6, 0.781e-3, 3e-3, 12.0))
    assert units == "ns ns us us ms s"
    assert time_unit(12.3e-3).span(0.001, 0.0025) == "1.000 to 2.500 ms"


def test_bytes_alive_counts_half_open_lifetimes():
    """What ends at an instant makes room for what starts there."""
    alive = total_over_time([(0, 2, 5), (2, 3, 7)])
    assert alive == [(0, 2, 5), (2, 3, 7)]
    assert largest(alive) == (2, 3, 7)
    assert outline([*alive, (4, 5, 1)]) == [(0, 5), (2, 7), (3, 0), (4, 1), (5, 0)]


def test_text_helpers():
    assert shortened(["a", "b", "c"], 2) == "a, b and 1 more"
    assert len(clipped("x" * 50, 19)) == 19
    assert clipped("abcdefghijklmnopqrstuvwxyz", 11) == "abcd...wxyz"
    shares = ", ".join(map(percent, (0, 0.5, 0.00123, 1e-9, 12.0)))
    assert shares == "0.0 %, 50.0 %, 0.12 %, < 0.001 %, 1200 %"

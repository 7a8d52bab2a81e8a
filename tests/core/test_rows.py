"""Arrays: distinct rows are NumPy's, an interrupt at any line stays one, and records of columns."""

import itertools
import sys
from dataclasses import FrozenInstanceError, dataclass
from itertools import repeat

import numpy as np
import pytest

from loadmaster.core.arrays import distinct_rows, ranges, records_of


@pytest.mark.parametrize("shape", [(0, 2), (1, 3), (40, 1), (60, 3), (5, 0)])
def test_distinct_rows_are_those_of_numpy(shape):
    rows = np.random.default_rng(0).choice([0.0, 1.5, np.inf], shape)
    found = distinct_rows(rows)
    if rows.size:
        for ours, theirs in zip(
            found, np.unique(rows, axis=0, return_inverse=True, return_counts=True), strict=True
        ):
            assert np.array_equal(ours, theirs.reshape(ours.shape))
    assert np.array_equal(found[0][found[1]], rows)
    assert int(found[2].sum()) == len(rows)


def test_an_interrupt_at_any_line_is_raised_as_such():
    """In ``numpy.unique`` along an axis some become a TypeError, which ended whole searches."""
    rows, left, before = np.random.default_rng(0).random((20, 3)), 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt
        return trace

    for at in itertools.count(1):
        left = at
        sys.settrace(trace)
        try:
            distinct_rows(rows)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
    assert at > 10, "nothing was traced"


def test_ranges_follow_one_another():
    assert ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert ranges(np.array([], dtype=np.int64), np.array([], dtype=np.int64)).tolist() == []


# Records that are made column by column.


@dataclass(frozen=True, slots=True)
class _Point:
    name: str
    x: int
    y: int = 0


def test_records_of_columns_are_those_made_one_by_one():
    made = records_of(_Point, 3, ["a", "b", "c"], range(3), repeat(7))
    assert made == [_Point("a", 0, 7), _Point("b", 1, 7), _Point("c", 2, 7)]
    assert {hash(point) for point in made} == {
        hash(_Point(name, x, 7)) for x, name in enumerate("abc")
    }
    with pytest.raises(FrozenInstanceError):
        made[0].x = 2


def test_every_field_needs_a_column():
    with pytest.raises(ValueError, match="shorter"):
        records_of(_Point, 1, ["a"], [1])

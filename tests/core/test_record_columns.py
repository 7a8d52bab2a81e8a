"""Records that are made column by column are those that are made one by one."""

from dataclasses import FrozenInstanceError, dataclass
from itertools import repeat

import pytest

from loadmaster.core.arrays import records_of


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


def test_they_are_as_frozen_as_others():
    (made,) = records_of(_Point, 1, ["a"], [1], [2])
    with pytest.raises(FrozenInstanceError):
        made.x = 2


def test_every_field_needs_a_column():
    with pytest.raises(ValueError, match="shorter"):
        records_of(_Point, 1, ["a"], [1])

"""JSON objects have what the types of records say, whatever the record is read from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from loadmaster.core.json_object import ABSENT, json_of
from loadmaster.core.provenance import Label


@dataclass(frozen=True)
class Part:
    name: str
    source: float | None = field(default=None, metadata={"key": "from"})


@dataclass(frozen=True)
class Whole:
    label: Label
    parts: Sequence[Part]
    counts: Mapping[str, int]
    gap: float | None
    best: Part | str | None
    reason: str = ABSENT


def test_fields_are_attributes_or_keys_or_given():
    made = SimpleNamespace(
        label=Label.MEASURED, parts=(Part("a", 1.0), {"name": "b", "from": 2.0}), counts={"c": 3}
    )
    expected = {
        "label": "measured",
        "parts": [{"name": "a", "from": 1.0}, {"name": "b", "from": 2.0}],
        "counts": {"c": 3},
        "gap": None,
        "best": {"name": "a", "from": None},
    }
    shown = json_of(made, Whole, gap=float("inf"), best=SimpleNamespace(name="a", source=None))
    assert shown == expected
    assert list(shown) == list(expected)
    assert json_of(shown, Whole) == expected
    assert json_of(shown, Whole, best="none", reason="why")["reason"] == "why"


def test_only_what_is_not_always_there_may_be_missing():
    with pytest.raises(AttributeError, match="gap"):
        json_of({"label": Label.MEASURED, "parts": (), "counts": {}}, Whole, best=None)

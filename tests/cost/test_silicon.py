"""Published silicon: the page says what the benchmark makes, the tables add up, and estimates stay
near the chips where they were near."""

import pytest
from benchmarks import silicon

from loadmaster.targets.load import target as read_target


def test_the_page_shows_the_tables_as_they_are_now():
    text = silicon.PAGE.read_text(encoding="utf-8")
    assert silicon.on_page(text) == text, "run python -m benchmarks.silicon --write"


def test_estimates_of_alexnet_on_eyeriss_are_within_a_fifth():
    found = silicon.estimates([layer.nest for layer in silicon.ALEXNET], read_target("eyeriss"), 16)
    assert sum(e.processing for e in found) == pytest.approx(
        sum(layer.processing for layer in silicon.ALEXNET) * 1e-3, rel=0.2
    )
    for layer, estimate in zip(silicon.ALEXNET, found, strict=True):
        assert estimate.processing == pytest.approx(layer.processing * 1e-3, rel=0.2)
        assert estimate.processing <= estimate.total

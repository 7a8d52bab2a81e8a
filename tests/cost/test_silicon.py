"""Published silicon: the page says what the benchmark makes, the tables add up, and estimates stay
near the chips where they were near."""

import pytest
from benchmarks import silicon

from loadmaster.targets.load import target as read_target


def test_the_page_shows_the_tables_as_they_are_now() -> None:
    text = silicon.PAGE.read_text(encoding="utf-8")
    assert silicon.on_page(text) == text, "run python -m benchmarks.silicon --write"


@pytest.mark.parametrize(
    ("layers", "processing", "total", "dram", "power", "macs"),
    [
        (silicon.ALEXNET, 103.5, 115.3, 15.4, 278, 2.66e9),
        (silicon.VGG, 3755.2, 4309.5, 321.1, 236, 46.04e9),
    ],
)
def test_published_rows_add_up_to_published_sums(
    layers: tuple[silicon.Layer, ...],
    processing: float,
    total: float,
    dram: float,
    power: float,
    macs: float,
) -> None:
    """The papers give sums beside the rows: a figure that was copied wrongly would show."""
    assert sum(layer.processing for layer in layers) == pytest.approx(processing, rel=1e-3)
    assert sum(layer.total for layer in layers) == pytest.approx(total, rel=1e-3)
    assert sum(layer.dram for layer in layers) == pytest.approx(dram, rel=2e-3)
    assert sum(layer.power * layer.total for layer in layers) / total == pytest.approx(
        power, rel=0.01
    )
    assert sum(layer.nest.macs for layer in layers) == pytest.approx(macs, rel=0.01)


def test_estimates_of_alexnet_on_eyeriss_are_within_a_fifth() -> None:
    found = silicon.estimates([layer.nest for layer in silicon.ALEXNET], read_target("eyeriss"), 16)
    assert sum(e.processing for e in found) == pytest.approx(
        sum(layer.processing for layer in silicon.ALEXNET) * 1e-3, rel=0.2
    )
    for layer, estimate in zip(silicon.ALEXNET, found, strict=True):
        assert estimate.processing == pytest.approx(layer.processing * 1e-3, rel=0.2)
        assert estimate.processing <= estimate.total

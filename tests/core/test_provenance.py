"""Labels of costs: the weakest decides, and parts with one source add up."""

from loadmaster.core.json_object import json_of
from loadmaster.core.provenance import CostBasis, Label, Provenance, costs_of, described, weakest

MEASURED = Provenance(Label.MEASURED, "times.csv", 45)
ESTIMATED = Provenance(Label.ESTIMATED, "roofline of x", 3)


def test_a_figure_of_several_costs_has_the_weakest_label():
    assert weakest((MEASURED, ESTIMATED)) == "estimated"
    assert weakest((MEASURED,)) == "measured"
    assert weakest(()) == "estimated"
    order = [Label.ESTIMATED, Label.CALIBRATED, Label.PUBLISHED, Label.MEASURED]
    assert [
        weakest([Provenance(label, "") for label in order[first:]]) for first in range(4)
    ] == order


def test_parts_are_described_and_written_alike():
    assert (
        described((MEASURED, ESTIMATED)) == "45 measured (times.csv), 3 estimated (roofline of x)"
    )
    assert described((MEASURED,)) == "measured (times.csv)"
    assert described(()) == "estimated"
    assert json_of(costs_of((MEASURED, ESTIMATED)), CostBasis) == {
        "label": "estimated",
        "from": [
            {"label": "measured", "source": "times.csv", "count": 45},
            {"label": "estimated", "source": "roofline of x", "count": 3},
        ],
    }

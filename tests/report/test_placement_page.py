"""The report of a placement shows what was measured beside what was estimated, and the curve if
there is one."""

from dataclasses import replace
from typing import Any

from tests.support.hand_sequence import step

from loadmaster.placement.answer import MemoryPlan
from loadmaster.placement.place import place
from loadmaster.report.page import render
from loadmaster.report.placement import placement_page


def render_placement(plan: MemoryPlan, *curve: Any) -> str:
    return render(placement_page(plan, *curve))


def test_measured_kernels_stand_beside_their_estimates() -> None:
    plain = step()
    assert "Estimated against measured" not in render_placement(place(plain, 30))
    kernel = replace(plain.kernels[1], measured=((7.25, 8.0, 8.0, 9.0),))
    measured = replace(plain, kernels=(plain.kernels[0], kernel, *plain.kernels[2:]))
    page = render_placement(place(measured, 30))
    assert "Estimated against measured" in page
    assert "7.25 s" in page
    assert "All 1 measured kernel: estimated 2.00 s, measured 7.25 s." in page


def test_the_same_placement_gives_the_same_page_with_its_curve() -> None:
    plan = place(step(), 30)
    curve = [
        {"capacity": 30, "makespan": 5.0, "lower_bound": 4.0, "slowdown": 1.2},
        {"capacity": 0, "makespan": None, "lower_bound": None, "slowdown": None},
    ]
    assert render_placement(plan, curve) == render_placement(plan, curve)
    assert "At 1 limit nothing fits." in render_placement(plan, curve)

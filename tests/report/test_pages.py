"""The pages of mappings, packings, runs and networks: what they say, and that they draw in a
browser in any width and colour."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from tests.support.browser import (
    charts_drawn,
    console_errors,
    of_charts,
    open_page,
    outside_requests,
)
from tests.support.drawn_plan import drawn_plan
from tests.support.hand_sequence import step
from tests.support.job_tables import table_of
from tests.support.networks import GraphBuilder
from tests.support.problems import buffers_of
from tests.support.report_pages import (
    charts,
    columns,
    objects,
    rectangles,
    section,
    without_library,
)

import loadmaster as lm
from loadmaster.core.provenance import Label, Provenance
from loadmaster.cost.job_pool import JobPool
from loadmaster.report.comparison import comparison_json, comparison_page, rows
from loadmaster.report.inspection import Alive, PeakJson, inspection_page
from loadmaster.report.mapping import mapping_page, shared_bandwidth
from loadmaster.report.packing import packing_page
from loadmaster.report.page import render
from loadmaster.report.placement import placement_page
from loadmaster.report.plan import plan_page
from loadmaster.report.run import run_page
from loadmaster.workloads.graph import TensorKind

BUFFERS = buffers_of("first 0 4 600, second 2 6 300, <b>third 5 9 800")


def pool(jobs=12):
    """Jobs of two networks on two cores; every third asks for more than there is."""
    numbers = np.arange(jobs)
    latency = np.stack([1e-3 * (1 + numbers % 5), 2e-3 * (1 + numbers % 3)], axis=1)
    bandwidth = np.stack([1e9 * (1 + numbers % 3), np.full(jobs, 5e8)], axis=1)
    energy = np.stack([1e-3 + 1e-4 * numbers, 5e-4 + 0 * numbers], axis=1)
    return JobPool(
        table_of(latency, bandwidth, flops=np.full(jobs, 10**6), energy=energy),
        ((),) * jobs,
        tuple("ab"[number % 2] for number in numbers),
        (0,) * jobs,
        ("int8",),
    )


def result():
    """What a run writes, with a rival that failed and one that was beaten."""
    rivals = {
        "eager": {
            "step_seconds": 0.02,
            "measured_peak": 2**21,
            "loadmaster_at_its_peak": {"step_seconds": 0.01},
            "difference": {"low": 0.4, "high": 0.6, "verdict": "faster"},
            "peak_kept": True,
        },
        "offloading": {"step_seconds": None, "measured_peak": None, "failed": "needs CUDA"},
    }
    figures = {
        "budget": 2**20,
        "measured_peak": 2**20,
        "planned_peak": 2**20,
        "unmoved_peak": 2**21,
        "unmoved_measured_peak": 2**21,
        "step_seconds": 0.012,
        "predicted_step_seconds": 0.011,
        "measured_over_predicted": {"ratio": 1.09, "low": 1.0, "high": 1.2},
        "unmoved_step_seconds": 0.01,
        "waiting_seconds": 1e-3,
        "moved_bytes": 4096,
        "gradients_equal": True,
        "budget_kept": True,
        "rivals": rivals,
        "label": "measured",
        "costs": {"label": "measured"},
        "interrupted": False,
    }
    kernels = [
        {
            "kernel": f"k{i}",
            "operator": "mm",
            "predicted_seconds": 1e-3 * (i + 1),
            "measured_seconds": 2e-3,
            "fast_bytes": 2**14 * (i + 1),
        }
        for i in range(60)
    ]
    return figures, kernels


def mapped():
    return render(mapping_page([lm.map_jobs(pool().analysis, 2e9, samples=50)], pool(), 2e9))


def packed():
    problem = lm.problem_of(BUFFERS)
    return problem, lm.allocate(problem)


PAGES = {
    "map": mapped,
    "allocate": lambda: render(packing_page(*reversed(packed()))),
    "place": lambda: render(placement_page(lm.place(step(), 30))),
    "run": lambda: render(run_page("torch:m:f", *result())),
    "inspect": lambda: render(
        inspection_page(lm.load("onnx:squeezenet", precision="int8"), lm.target("edge-npu"))
    ),
}


def test_a_mapping_draws_every_job():
    page = mapped()
    assert rectangles(page)[0] == 12
    assert "GOP/s" in without_library(page) or "MOP/s" in without_library(page)


@pytest.mark.parametrize("allocator", ["demand", "even"])
def test_what_a_mapping_moves_is_what_its_jobs_ask_for_and_never_more_than_there_is(allocator):
    table = pool(30)
    mapping = lm.map_jobs(table.analysis, 2e9, samples=50, allocator=allocator)
    segments = shared_bandwidth(mapping, table, 2e9, allocator)
    assert max(segment.bytes_per_second for segment in segments) <= 2e9
    assert (segments[0].start, segments[-1].end) == (0.0, pytest.approx(mapping.makespan))
    moved = sum(s.bytes_per_second * (s.end - s.start) for s in segments)
    asked = sum(
        table.analysis.latency[j, c] * table.analysis.bandwidth[j, c]
        for j, c in enumerate(mapping.core.tolist())
    )
    assert moved == pytest.approx(asked, rel=1e-6)


@pytest.mark.slow
def test_a_front_has_a_chart_and_a_row_for_every_mapping():
    front = lm.pareto_front(pool().analysis, 2e9, ("makespan", "energy"), samples=200)
    page = render(mapping_page(front, pool(), 2e9))
    assert len(objects(charts(page)["docs"], "Figure")) == 3
    assert section(without_library(page), "Pareto front").count("<tr>") == len(front) + 1


def test_a_packing_says_peak_and_bound_and_who_holds_it():
    page = without_library(PAGES["allocate"]())
    assert "2 buffers of 1,100 bytes together at instant 5" in page
    assert "at the bound" in page
    assert "&lt;b&gt;third" in page
    assert "<b>third" not in page


def test_a_packing_in_two_memories_has_a_map_of_each():
    problem, _ = packed()
    answer = lm.allocate_banks(problem, (lm.Bank("sram", 1000), lm.Bank("dram")))
    page = render(packing_page(answer, problem))
    assert rectangles(page) == [2, 1]
    assert "<h3>Cost of spilling</h3><p class=value>300</p><p>lower bound 300, at the bound" in page


def test_a_run_says_what_was_measured_of_whom():
    page = without_library(PAGES["run"]())
    for words in (
        "12.0 ms",
        "11.0 ms",
        "faster (0.40 to 0.60 of its time)",
        "needs CUDA",
        "equal bit for bit",
        "and 10 shorter kernels",
    ):
        assert words in page


def test_a_run_draws_fast_memory_under_its_budget_and_no_column_without_entries():
    figures, kernels = result()
    page = render(run_page("torch:m:f", figures | {"rivals": {}}, kernels))
    (steps,) = [data for data in columns(page) if "kernel" in data and "top" in data]
    assert steps["top"][-1] == 0.9375  # MiB
    assert "budget 1.00 MiB" in json.dumps(charts(page))
    assert "against it" not in without_library(page)
    assert "Against a rival" not in without_library(page)


@pytest.mark.slow
def test_a_placement_has_a_legend_of_kinds_and_lists_moves_by_tensor():
    sequence = lm.read_sequence("onnx:squeezenet", "optane-server", batch=64)
    plan = lm.place(sequence, 156 * 2**20, mode="async")
    page = without_library(render(placement_page(plan)))
    assert page.count("data-shapes=") == 4
    owners = {plan.division.of[move.tensor] for move in plan.placement.moves}
    moves = section(page, "Moves")
    assert moves.count("<tr>") == 1 + len(owners) < len(plan.placement.moves)
    assert not re.search(r"r\d+\[", moves)


def test_no_rate_of_a_roofline_is_above_its_roof():
    graph, machine = lm.load("onnx:shufflenet", precision="int8"), lm.target("edge-npu")
    points = [
        (x, y)
        for column in columns(render(inspection_page(graph, machine)))
        if "operations" in column
        for x, y in zip(column["x"], column["y"], strict=True)
    ]
    roof = max(
        2 * core.rows * core.columns * core.clock * max(core.macs_per_cycle.values())
        for core in machine.cores
    )
    assert len(points) > 20
    assert all(y <= 1.001 * min(roof, x * machine.main.read_bandwidth) for x, y in points)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_the_same_again_and_small_enough_to_mail(name):
    page = PAGES[name]()
    assert len(page) < 0.6e6  # most of it is Bokeh, which grows from release to release
    if name not in ("allocate", "map", "place"):  # these say how long the search took
        assert PAGES[name]() == page


def look(driver, width=1400, scheme="light"):
    """Have the browser show pages in a width, for who asks for a light or a dark scheme."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False},
    )
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PAGES, "plan"])
def test_pages_draw_in_every_width_ask_for_nothing_and_never_scroll_sideways(
    driver, name, plan, tmp_path
):
    page = render(plan_page(plan)) if name == "plan" else PAGES[name]()
    for width in (420, 900, 1400):
        look(driver, width)
        open_page(driver, tmp_path, page)
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
        assert console_errors(driver) == []
        assert outside_requests(driver) == []
    assert charts_drawn(driver) >= (5 if name == "plan" else 1)
    unnamed = (
        "return [...document.querySelectorAll('.wide, .chart')].filter(e =>"
        " !e.getAttribute('aria-label') || e.tabIndex != 0).length"
    )
    assert driver.execute_script(unnamed) == 0


@pytest.mark.slow
def test_a_page_is_dark_for_who_asks_for_it(driver, plan, tmp_path):
    """Paper and ink of the page and of its charts."""
    seen = []
    for scheme in ("light", "dark"):
        look(driver, scheme=scheme)
        open_page(driver, tmp_path, render(plan_page(plan)))
        paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
        seen.append((paper, of_charts(driver, "v.model.title.text_color")[0]))
    assert seen == [("rgb(255, 255, 255)", "#1f2933"), ("rgb(18, 24, 31)", "#e4e7eb")]


@pytest.mark.slow
def test_keys_move_all_charts_of_a_page(driver, plan, tmp_path):
    from selenium.webdriver import Keys

    look(driver)
    open_page(driver, tmp_path, render(plan_page(plan)))
    ends = "[v.model.x_range.start, v.model.x_range.end]"
    first = of_charts(driver, ends)[0]
    chart = driver.find_element("id", "chart0")
    seen = []
    for key in ("+", Keys.ARROW_RIGHT, "-", "0"):
        chart.send_keys(key)
        found = of_charts(driver, ends)
        assert all(each == found[0] for each in found)
        seen.append(found[0])
    closer, right, wider, reset = seen
    assert closer[0] > first[0]
    assert closer[1] < first[1]
    assert right[0] > closer[0]
    assert wider[1] - wider[0] > right[1] - right[0]
    assert reset == first


def test_two_plans_stand_side_by_side(plan):
    """Every job of both is drawn, over one time axis; what only one has is left empty."""
    other = drawn_plan({"resnet50": 3})
    page = render(comparison_page(plan, other))
    schedules = [
        len(each.jobs) + sum(not transfer.job for transfer in each.transfers)
        for each in (plan, other)
    ]
    assert rectangles(page)[:2] == schedules
    figures = objects(charts(page), "Figure")
    assert len({figure["attributes"]["x_range"]["id"] for figure in figures}) == 1
    shown = comparison_json(plan, other)
    makespan = shown["figures"]["makespan"]
    spans = [each.metrics.makespan.value for each in (plan, other)]
    assert [makespan["first"], makespan["second"]] == spans
    assert makespan["change"] == pytest.approx(spans[1] / spans[0] - 1)
    spent = {
        kind: sum(job.end - job.start for job in plan.jobs if job.kind == kind)
        for kind in {job.kind for job in plan.jobs}
    }
    first = {kind: row["first"] for kind, row in shown["kinds"].items() if row["first"]}
    assert first == pytest.approx(spent)


def test_two_plans_rest_on_the_costs_of_both(plan):
    fitted = Provenance(Label.CALIBRATED, "times.csv")
    other = replace(plan, target=replace(plan.target, provenance=fitted))
    for pair in ((plan, other), (other, plan)):
        costs = comparison_json(*pair)["costs"]
        assert costs["label"] == "estimated"
        sources = {part["source"] for part in costs["from"]}
        assert sources == {each.costs[0].source for each in pair}
        assert "times.csv" in render(comparison_page(*pair))


def test_plans_of_different_machines_leave_empty_what_one_has_not(plan):
    alone = replace(
        plan, target=replace(plan.target, memories=plan.target.memories[:1]), allocations=()
    )
    row = {row.key: row for row in rows(alone, plan)}["peak.scratchpad"]
    assert row.second is not None
    bare = replace(plan.metrics, memory={}, traffic={})
    row = {row.key: row for row in rows(replace(alone, metrics=bare), plan)}["peak.scratchpad"]
    assert (row.first, row.change, row.cells()[">first"]) == (None, None, "\N{EN DASH}")


@pytest.mark.slow
def test_the_legend_hides_a_network_in_both_plans(driver, plan, tmp_path):
    look(driver)
    open_page(driver, tmp_path, render(comparison_page(plan, drawn_plan({"resnet50": 3}))))
    driver.find_elements("css selector", ".legend button")[0].click()
    counts = of_charts(driver, "v.model.renderers.filter(r => !r.visible).length")
    assert counts[0] == counts[1] == 1
    assert sum(counts) == 6  # two schedules, two maps of each memory
    assert console_errors(driver) == []


def test_the_same_placement_gives_the_same_page_with_its_curve():
    plan = lm.place(step(), 30)
    curve = [
        {"capacity": 30, "makespan": 5.0, "lower_bound": 4.0, "slowdown": 1.2},
        {"capacity": 0, "makespan": None, "lower_bound": None, "slowdown": None},
    ]
    first, again = (render(placement_page(plan, {"curve": curve})) for _ in range(2))
    assert first == again
    assert "does not fit" in first


@pytest.mark.slow
def test_operators_on_a_machine_are_listed_by_time():
    graph, machine = lm.load("onnx:shufflenet", precision="int8"), lm.target("edge-npu")
    page = without_library(render(inspection_page(graph, machine)))
    listed = re.findall(r">([0-9.]+) us</td></tr>", section(page, "Operators by time"))
    times = list(map(float, listed))
    assert len(times) > 20
    assert times == sorted(times, reverse=True)
    assert "Operators by time" not in render(inspection_page(graph))


def test_inspection_names_where_most_bytes_are_alive():
    """A result of so many channels is alive beside one of half as many, then beside its like."""
    build = GraphBuilder("two")
    build.tensor("x", (8, 16, 16), TensorKind.INPUT)
    build.elementwise("half", "x")
    build.conv("full", "half", 16, 1)
    build.elementwise("like", "full")
    graph = build.graph("like")
    size = {name: graph.tensors[name].bytes for name in ("half", "full", "like")}
    assert Alive.of(graph).peak == PeakJson(
        size["full"] + size["like"], graph.ops[-1].name, ["full", "like"]
    )
    assert [value for *_, value in Alive.of(graph).steps] == [
        size["half"],
        size["half"] + size["full"],
        size["full"] + size["like"],
    ]
    page = render(inspection_page(graph))
    assert "Memory over the operators" in page
    assert f"at {graph.ops[-1].name}: full" in page

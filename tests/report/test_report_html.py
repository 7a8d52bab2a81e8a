"""The page as text: what it says, that it says it again, and that it stays usable when there is too
much to say."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.drawn_plan import drawn_plan, empty, rename
from tests.support.report_pages import (
    charts,
    models,
    objects,
    rectangles,
    section,
    without_library,
)

from loadmaster.core.errors import OutputError
from loadmaster.core.units import format_bytes, format_seconds
from loadmaster.planning.plan_records import Cost
from loadmaster.report.charts import MAX_SHAPES
from loadmaster.report.page import render
from loadmaster.report.plan import plan_page
from loadmaster.report.trace import render_trace
from loadmaster.report.write import write_report


def render_page(plan):
    return render(plan_page(plan))


@pytest.fixture(scope="module")
def page(plan):
    return render_page(plan)


def test_writes_both_files_and_nothing_else(plan, tmp_path):
    paths = write_report(plan, tmp_path / "new" / "place")
    assert [path.name for path in paths] == ["report.html", "trace.json.gz"]
    assert sorted(paths) == sorted((tmp_path / "new" / "place").iterdir())
    assert all(path.stat().st_size > 1_000 for path in paths)


def test_unwritable_place_is_named_and_left_alone(plan, tmp_path):
    """A directory in the way of a file, and a file in the way of the directory."""
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OutputError, match=r"report\.html"):
        write_report(plan, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file: cannot make this directory"):
        write_report(plan, tmp_path / "file")


@pytest.mark.slow
def test_same_plan_same_bytes_in_any_process(page, plan, tmp_path):
    """Again in this process, where Bokeh has counted on, and in another, where sets have another
    order."""
    assert render_page(drawn_plan(notes=plan.notes)) == page
    code = (
        "import sys; from tests.support.drawn_plan import drawn_plan;"
        f" drawn_plan(notes={plan.notes}).report(sys.argv[1])"
    )
    places = [str(Path(__file__).parents[2]), *sys.path]
    environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(places)}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], env=environment, check=True)
    assert (tmp_path / "report.html").read_text("utf-8") == page
    assert (tmp_path / "trace.json.gz").read_bytes() == render_trace(plan)


def test_says_what_was_planned_and_that_times_are_estimates(page, plan):
    text, makespan = without_library(page), plan.metrics.makespan
    assert "<h1>Plan of resnet50, mobilenet_v2 on edge-npu</h1>" in text
    assert "Times, traffic and energy are estimates of an analytical model" in text
    for said in (
        *plan.notes,
        format_seconds(makespan.value),
        f"lower bound {format_seconds(makespan.lower_bound)}",
        "OP/s",
        "feasible",
        "seed 7",
        "GridSample",
    ):
        assert said in text


def test_one_chart_for_the_schedule_each_link_and_each_memory(page):
    """They share one range, and have a lane for each core and one for copies."""
    data = charts(page)
    figures = objects(data, "Figure")
    assert len(figures) == 5
    assert len({figure["attributes"]["x_range"]["id"] for figure in figures}) == 1
    labels = dict(
        figures[0]["attributes"]["left"][0]["attributes"]["major_label_overrides"]["entries"]
    )
    assert list(labels.values()) == ["ws0", "ws1", "ws2", "lb", "copy to scratchpad"]


def test_every_job_and_buffer_is_a_rectangle(page, plan):
    copies = sum(not transfer.job for transfer in plan.transfers)
    shared = [
        sum(a.memory == memory.name for a in plan.allocations) for memory in plan.target.memories
    ]
    links = [len(plan.links[memory.name]) for memory in plan.target.memories]
    assert rectangles(page) == [len(plan.jobs) + copies, *links, *shared]


@pytest.mark.slow
def test_too_many_shapes_are_merged_and_the_page_says_so(large_plan):
    """A viewer must neither die of 20,000 jobs nor hide any of them in silence."""
    page = render_page(large_plan)
    assert max(rectangles(page)) == MAX_SHAPES
    text = without_library(page)
    assert "More than 3,000 rectangles would make this chart unusable" in text
    said = re.findall(r"the [\d,]+ shortest are drawn as [\d,]+ grey rectangles", text)
    assert len(said) == 2  # the schedule and the map
    assert "the shortest are averaged to 3,000" in text
    assert len(page) < 3e6


def test_names_are_escaped(plan):
    hostile = "<script>alert('x')</script>\"&$$x$$\u202e"
    page = render_page(rename(plan, hostile, hostile + "[tensor]"))
    text = without_library(page)
    assert "alert" in text
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&quot;&amp;" in text
    assert "$$" not in json.dumps(objects(charts(page), "LegendItem"))


@pytest.mark.slow
def test_bokeh_knows_every_model_attribute_and_value_of_the_charts(plan):
    """The page states models of Bokeh's script without Bokeh's classes; these check what they
    read."""
    import bokeh.models
    from bokeh.document import Document

    document = charts(render_page(plan))["docs"]["plan"]
    for model in models(document):
        kind = (
            bokeh.models.Plot if model["name"] == "Figure" else getattr(bokeh.models, model["name"])
        )
        assert set(model["attributes"]) <= set(kind.properties()), model["name"]
    document["config"] = {"type": "object", "name": "DocumentConfig", "id": "configuration"}
    assert len(Document.from_json(document).roots) == len(document["roots"]) > 2


def test_names_with_dollar_signs_are_not_taken_for_tex(plan):
    """Bokeh would show such a title or tick as a formula, or rather its source text."""
    cores = (replace(plan.target.cores[0], name="\\(c\\)"),)
    target = replace(plan.target.with_memory(0, name="$$m$$"), cores=cores)
    data = charts(render_page(replace(plan, target=target)))
    drawn = json.dumps([objects(data, name) for name in ("Title", "LinearAxis", "Label")])
    assert "$\\u200b$m$\\u200b$" in drawn
    assert "$$" not in drawn
    assert "\\\\(" not in drawn


def test_capacity_far_above_the_peak_is_named_not_drawn(page, plan):
    """A map of DRAM up to 4 GiB would show an empty chart; that of the nearly full scratchpad goes
    up to its capacity."""
    dram, scratchpad = objects(charts(page), "Figure")[3:]
    use = plan.metrics.memory["dram"]
    peak = f"peak {format_bytes(use.peak)}"
    title = dram["attributes"]["title"]["attributes"]["text"]
    assert title.startswith(f"dram: {peak}")
    assert title.endswith("capacity 4.00 GiB")
    assert objects(dram, "Label")[-1]["attributes"]["text"].startswith(peak)
    assert dram["attributes"]["y_range"]["attributes"]["end"] < 2**20
    assert "capacity 64.0 KiB" in [
        label["attributes"]["text"] for label in objects(scratchpad, "Label")
    ]


def test_link_with_two_bandwidths_shows_its_load(plan):
    """Bytes per second have no single limit where reading and writing differ; the share of the
    link's time has."""
    page = render_page(
        replace(plan, target=plan.target.with_memory(0, read_bandwidth=34e9, write_bandwidth=17e9))
    )
    link = objects(charts(page), "Figure")[1]
    assert "load (%)" in json.dumps(link)
    assert "34.0 GB/s read, 17.0 GB/s write" in page


def test_tables_of_traffic_and_peak(page, plan):
    """Ways have all bytes of their transfers, and no more than thirty buffers are listed for a
    peak."""
    moved = Counter()
    for transfer in plan.transfers:
        moved[transfer.source, transfer.destination] += transfer.bytes
    table = section(page, "Traffic")
    for (source, to), size in moved.items():
        cells = f'<td>{source}</td>\n<td>{to}</td>\n<td class="figure">{format_bytes(size)}</td>'
        assert cells.replace("\n", "") in table.replace("\n", "")
    peak = section(page, "At the peak of dram")
    assert peak.count("<tr>") - 1 <= 30
    assert f"hold {format_bytes(plan.metrics.memory['dram'].lower_bound)} of dram" in peak


def test_peak_table_says_how_many_it_leaves_out():
    peak = section(render_page(drawn_plan({"wide": 40})), "At the peak of dram")
    assert peak.count("<tr>") == 31
    assert re.search(r"and \d+ smaller buffers", peak)


def test_empty_and_optimal_plans_have_a_page(plan):
    assert "Nothing is ever kept in dram" in render_page(empty(plan))
    span = plan.metrics.makespan.value
    best = render_page(
        replace(plan, status="optimal", metrics=replace(plan.metrics, makespan=Cost(span, span)))
    )
    assert "at the bound" in best
    assert "no plan has a lower makespan" in best


def test_nothing_in_the_page_points_outside(page):
    """No link, image, font or style from elsewhere, and a policy that forbids them."""
    text = without_library(page)
    assert "default-src 'none'" in text
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", text)
    assert len(page) < 0.6e6

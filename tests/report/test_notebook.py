"""Answers show themselves in notebooks: in a line, as text, as HTML with a picture, and as tables
of pandas."""

import json
import re
import runpy
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.support.drawn_plan import rename
from tests.support.efforts import SEPARATE

import loadmaster as lm
from loadmaster.core import errors
from loadmaster.core.units import format_seconds
from loadmaster.planning.sweep.store import networks_key
from loadmaster.report.colours import PALETTE
from loadmaster.report.notebook import draw
from loadmaster.report.text import percent
from loadmaster.report.view import Curve, Shape, TimelineChart, steps

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "first-plan.ipynb"
TARGET = lm.target("m3e-s1")
TWO = [0, 1], [2, 3], [5, 7]
"""Lower and upper ends and sizes of two buffers that need 12 bytes."""


def graph():
    return lm.load("onnx:squeezenet")


def mapping():
    return lm.map_jobs(lm.analyse(lm.lower([graph()], TARGET), TARGET), 1e9, strategy="herald")


def memory_plan():
    return lm.place(
        lm.read_sequence(graph(), lm.target("optane-server")),
        "70%",
        mode="static",
        strategy="first-touch",
    )


def banks():
    return lm.allocate_banks(
        ([0, 0, 1], [2, 2, 3], [4096, 4096, 64]), [lm.Bank("sram", 4096), lm.Bank("<dram>")]
    )


ANSWERS = {
    "graph": graph,
    "mapping": mapping,
    "memory plan": memory_plan,
    "banks": banks,
    "allocation": lambda: lm.allocate(TWO, 100),
    "infeasible": lambda: lm.allocate(TWO, 11),
    "infeasible banks": lambda: lm.allocate_banks(([0], [2], [9]), [lm.Bank("sram", 8)]),
    "no buffers": lambda: lm.allocate(([], [], [])),
}


@pytest.mark.parametrize("kind", ["plan", *ANSWERS])
def test_an_answer_shows_itself_briefly(kind, plan):
    answer = plan if kind == "plan" else ANSWERS[kind]()
    line = repr(answer)
    assert "\n" not in line
    assert len(line) < 200
    status = getattr(answer, "status", "operators")
    assert status in line
    assert answer.summary().splitlines()[0] == line[1:-1]
    page = answer._repr_html_()
    assert len(page) < 20_000
    root = ElementTree.fromstring(page)
    assert status in "".join(root.itertext())
    drawn = root.findall(".//{http://www.w3.org/2000/svg}svg")
    assert bool(drawn) == (kind not in ("banks", "infeasible", "infeasible banks"))


def test_a_summary_holds_values_bounds_and_distances(plan):
    makespan = plan.metrics.makespan
    (row,) = (line for line in plan.summary().splitlines() if line.startswith("Makespan"))
    above = percent(makespan.value / makespan.lower_bound - 1)
    figures = map(format_seconds, (makespan.value, makespan.lower_bound))
    assert re.split("  +", row) == ["Makespan", *figures, f"{above} above"]


def test_tables_hold_every_part(plan):
    pandas = pytest.importorskip("pandas")
    jobs = plan.to_pandas()
    assert isinstance(jobs, pandas.DataFrame)
    assert jobs["end"].tolist() == [job.end for job in plan.jobs]
    network = graph()
    assert network.to_pandas()["macs"].sum() == network.macs
    mapped = mapping()
    assert mapped.to_pandas()["core"].tolist() == [mapped.cores[core] for core in mapped.core]
    placed = memory_plan()
    stays = placed.to_pandas().dropna(subset="offset")
    assert len(stays) == len(placed.placement.stays)
    answer = banks()
    assert answer.to_pandas()["memory"].tolist() == list(answer.memory)
    packed = lm.allocate(TWO)
    assert packed.to_pandas()["offset"].tolist() == packed.offsets.tolist()
    assert lm.allocate(TWO, 11).to_pandas().empty


def test_an_allocation_is_drawn_as_a_map_of_its_memory():
    """A region for each buffer, where it lies; without a clock, or without a packing, there is
    none."""
    page = lm.allocate(([0, 10], [20, 30], [64, 128]), 1024)._repr_html_()
    assert page.count("z") >= 2
    regions = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v-([\d.]+)", page)
    assert sorted((float(x), float(width)) for x, _, width, _ in regions) == [
        (120.0, 346.7),
        (293.3, 346.7),
    ]
    heights = sorted(float(height) for *_, height in regions)
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert "peak 192 B" in page
    many = np.arange(5_000)
    assert lm.allocate((many, many + 3, many + 1))._repr_html_().count("z") <= 150
    ordered = lm.allocate(([0, 0], [1, 1], [5, 7]), conflicts=[(0, 1)])
    assert "svg" not in ordered._repr_html_()


def test_without_pandas_a_table_says_what_to_install(plan, monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(errors, "import_module", absent)
    with pytest.raises(
        errors.MissingPackageError, match=r"Plan\.to_pandas needs pandas.*loadmaster\[notebook\]"
    ):
        plan.to_pandas()


def test_names_cannot_break_a_page(plan):
    wild = rename(plan, plan.networks[0].name, '<script>alert("&")</script>\n')
    assert "\n" not in repr(wild)
    assert not ElementTree.fromstring(wild._repr_html_()).findall(".//script")
    assert "<script" not in wild._repr_html_()


@pytest.mark.slow
def test_pictures_of_large_plans_stay_small(large_plan):
    assert len(large_plan.jobs) > 5_000
    assert len(large_plan._repr_html_()) < 20_000


def paths_of(svg):
    """The outlines of a picture by their colour."""
    paths = ElementTree.fromstring(svg).findall(".//{http://www.w3.org/2000/svg}path")
    return {path.attrib["fill"]: path.attrib["d"] for path in paths}


def test_lanes_have_a_shape_for_each_job_as_long_as_there_are_few():
    shapes = [Shape(0.0, 75.0, 0, 1), Shape(75.0, 150.0, 0, 1, colour=1)]
    assert list(paths_of(draw(TimelineChart("", ["a"], shapes))).values()) == [
        "M120.0 16.2h260.0v-14.4h-260.0z",
        "M380.0 16.2h260.0v-14.4h-260.0z",
    ]


def test_joined_jobs_have_the_colour_of_the_longest():
    shapes = [Shape(at, at + (0.9 if at % 3 else 0.1), 0, 1, colour=at % 3) for at in range(999)]
    shapes += [Shape(2000.0, 3000.0, 1, 2, colour=5)]
    paths = paths_of(draw(TimelineChart("", ["a", "b"], shapes)))
    assert sum(path.count("z") for path in paths.values()) <= 300
    assert PALETTE[5] in paths
    assert PALETTE[0] not in paths


def test_amounts_keep_their_peak_however_short():
    shapes = steps((at, at + 1, 9.0 if at == 5_000 else 1.0) for at in range(10_000))
    assert draw(Curve("bytes", "", shapes)).count("v-60.0") == 1
    assert draw(Curve("none", "", [])).startswith("<svg")


def test_networks_that_differ_have_different_keys_though_they_look_alike():
    one = graph()
    other = replace(
        one, ops=(*one.ops[:-1], replace(one.ops[-1], elements=one.ops[-1].elements + 1))
    )
    assert repr(one) == repr(other)
    assert networks_key([one]) != networks_key([other])
    assert networks_key([one]) == networks_key([replace(one, source="elsewhere")])


def test_sizes_may_have_units():
    packed = lm.allocate(TWO, "1 KiB")
    assert packed.capacity == 1024
    with pytest.raises(lm.UnitError, match="'many' is not a number of bytes"):
        lm.allocate(TWO, "many")
    sequence = lm.read_sequence(graph(), lm.target("optane-server"))
    assert memory_plan().limit == int(0.7 * sequence.peak_bytes)


@pytest.mark.slow
def test_a_plan_takes_a_model_in_memory_and_leaves_it_as_it_is():
    onnx = pytest.importorskip("onnx")
    from loadmaster.workloads.frontends.onnx.file import light_path

    model = onnx.load(light_path("squeezenet"))
    before = model.SerializeToString(deterministic=True)
    read = lm.load(model)
    assert model.SerializeToString(deterministic=True) == before
    assert (read.ops, read.tensors) == (graph().ops, graph().tensors)
    few = {"effort": SEPARATE, "cut": "none"}
    by_name, by_model = lm.plan("onnx:squeezenet", TARGET, **few), lm.plan([model], TARGET, **few)
    assert [(job.core, job.start) for job in by_name.jobs] == [
        (job.core, job.start) for job in by_model.jobs
    ]
    with pytest.raises(lm.ModelError, match="of type dict: give text or a path, an"):
        lm.load({})


def test_a_network_is_read_from_a_module_and_its_inputs_and_the_module_stays_as_it_is():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.BatchNorm1d(4)
    ).train()
    inputs = torch.ones(2, 8)
    kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for training in (False, True):
        read = lm.load((module, inputs), training=training)
        assert read.name == "Sequential"
        assert read.macs >= 2 * 8 * 4
    assert module.training
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(torch.equal(tensor, kept[name]) for name, tensor in module.state_dict().items())
    assert np.isfinite(module(inputs).sum().item())
    with pytest.raises(lm.ModelError, match=r"give \(module, inputs\)"):
        lm.load(module)
    with pytest.raises(lm.ModelError, match=r"Sequential: .*change these"):
        lm.load((module, inputs), batch=3)


@pytest.mark.slow
def test_the_tutorial_notebook_runs_and_its_answers_show_themselves():
    """Cell by cell in one namespace, as a kernel would; what ends a cell is stored as it is shown
    today."""
    pytest.importorskip("pandas")
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (
        4,
        len(notebook["cells"]),
    )
    runner = NOTEBOOK.with_name("run.py")
    assert runpy.run_path(str(runner))["executed"]() == notebook, f"run: python {runner}"
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    pages = ["".join(each.get("data", {}).get("text/html", ())) for each in outputs]
    assert sum("<svg" in page for page in pages) == 3
    assert sum("<table" in page for page in pages) == 5

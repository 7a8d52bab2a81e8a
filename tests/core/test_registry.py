"""What is found by name: a file that is added is an entry at once, and no other place lists the
names."""

import ast
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from tests.support.problems import buffers_of

import loadmaster as lm
from loadmaster.allocation.strategies.registry import STRATEGIES as ALLOCATING
from loadmaster.cost.registry import COST_MODELS
from loadmaster.integrations.dumps.readers.registry import READERS
from loadmaster.mapping.strategies.registry import STRATEGIES as MAPPING
from loadmaster.placement.strategies.registry import IN_HARDWARE, PLACING
from loadmaster.workloads.frontends.frontend import FRONTENDS

ROOT = Path(lm.__file__).parent
REGISTRIES = {
    "allocation/strategies": ALLOCATING,
    "mapping/strategies": MAPPING,
    "placement/strategies": PLACING,
    "placement/strategies in hardware": IN_HARDWARE,
    "cost/models": COST_MODELS,
    "workloads/frontends": FRONTENDS,
    "integrations/dumps/readers": READERS,
}

ALLOCATION = '''"""Stacked: every buffer above the one before. Wasteful."""
import numpy as np
from loadmaster.allocation.native import PackingStrategy

def run(search):
    search.offer(np.cumsum(search.problem.size) - search.problem.size)

STRATEGY = PackingStrategy(frozenset(), run)
'''
MAPPED = '''"""All jobs on the first core. Slow."""
import numpy as np
from loadmaster.mapping.group import queues_of
from loadmaster.mapping.group_search import MappingStrategy

def run(search):
    jobs = search.group.jobs
    search.offer(queues_of(np.zeros(jobs, dtype=np.int64), np.arange(jobs), search.group.cores))

STRATEGY = MappingStrategy(run, lambda group: 1)
'''
PLACED = '''"""Like all that is slow, under another name."""
from loadmaster.placement.strategies.all_slow import run

NAME = "4slow"
BASELINE = run
'''
COSTED = '''"""Twice as slow as the usual model."""
from dataclasses import replace
from loadmaster.cost.base import CostModel
from loadmaster.cost.models.dataflow import Dataflow

class Doubled(CostModel):
    def analyse(self, workload, target):
        found = Dataflow().analyse(workload, target)
        return replace(found, latency=2 * found.latency)

MODEL = Doubled()
'''


def add(monkeypatch, folder, package, file, source):
    """A new file in a package, for as long as the test lasts."""
    (folder / file).write_text(source)
    home = import_module(package)
    monkeypatch.setattr(home, "__path__", [*home.__path__, str(folder)])
    # What importing it adds goes with the test.
    monkeypatch.setitem(sys.modules, f"{package}.{Path(file).stem}", None)
    del sys.modules[f"{package}.{Path(file).stem}"]


def test_a_new_allocation_strategy_is_one_file(monkeypatch, tmp_path):
    add(monkeypatch, tmp_path, "loadmaster.allocation.strategies", "all_stacked.py", ALLOCATION)
    assert lm.strategies("allocate")["all-stacked"] == "Stacked: every buffer above the one before."
    found = lm.allocate(buffers_of("a 0 1 8, b 1 2 8"), strategy="all-stacked")
    assert (found.offsets.tolist(), found.status) == ([0, 8], "feasible")
    refused = "'all-stacked' cannot honour alignment and pins: use auto or best-fit"
    with pytest.raises(lm.LoadmasterError, match=refused):
        lm.allocate(buffers_of("a 0 1 8 alignment=8 offset=8"), strategy="all-stacked")
    with pytest.raises(lm.LoadmasterError, match="did you mean all-stacked"):
        lm.allocate(buffers_of("a 0 1 8"), strategy="al-stacked")


def test_a_new_baseline_is_one_file_and_may_have_a_name_that_no_file_has(monkeypatch, tmp_path):
    add(monkeypatch, tmp_path, "loadmaster.placement.strategies", "four_slow.py", PLACED)
    assert lm.strategies("place")["4slow"] == "Like all that is slow, under another name."
    plan = lm.place(
        lm.read_sequence("onnx:squeezenet", lm.target("optane-server")), 0, strategy="4slow"
    )
    assert plan.strategy == "4slow"
    assert plan.seconds == pytest.approx(plan.all_slow_seconds)


def test_a_new_cost_model_is_one_file(monkeypatch, tmp_path):
    add(monkeypatch, tmp_path, "loadmaster.cost.models", "doubled.py", COSTED)
    assert "doubled" in lm.strategies("cost")
    (tmp_path / "jobs.csv").write_text("K,C,Y,X,R,S,type\n8,8,8,8,3,3,1\n")
    from loadmaster.workloads.frontends.job_list import read_job_list

    jobs, target = read_job_list(tmp_path / "jobs.csv"), lm.target("m3e-s2")
    assert (
        lm.analyse(jobs, target, "doubled").latency == 2 * lm.analyse(jobs, target).latency
    ).all()
    with pytest.raises(lm.JobError, match=r"doubled:table\.csv: cannot be read"):
        lm.analyse(jobs, target, "doubled:table.csv")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "package", "source"),
    [
        ("allocate", "allocation.strategies", ALLOCATION),
        ("map", "mapping.strategies", MAPPED),
        ("place", "placement.strategies", PLACED),
    ],
)
def test_a_new_strategy_is_in_the_help(tmp_path, command, package, source):
    (tmp_path / "added.py").write_text(source)
    program = f"""
import sys
import loadmaster.{package} as package
package.__path__.append({str(tmp_path)!r})
from loadmaster.cli.main import main
sys.argv = ["loadmaster", {command!r}, "--help"]
main()
"""
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    shown = " ".join(shown.replace("│", " ").split())
    name = "4slow" if command == "place" else "added"
    assert re.search(rf"--strategy NAME [^\[]*\b{name}\b[^\[]*\[default: auto\]", shown), shown


@pytest.mark.parametrize("home", REGISTRIES)
def test_names_are_those_of_the_modules_that_assign_the_attribute(home):
    """Lines are searched for speed: what parsing finds is the same."""
    registry = REGISTRIES[home]
    found = {}
    for path in (ROOT / home.split()[0]).glob("*.py"):
        assigned = {}
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign):
                assigned |= {
                    target.id: node.value for target in node.targets if isinstance(target, ast.Name)
                }
        if registry.attribute in assigned:
            name = assigned.get("NAME")
            found[path.stem.replace("_", "-") if name is None else ast.literal_eval(name)] = path
    assert set(registry.names) == set(found) != set()
    assert set(registry.summaries()) == set(found)
    assert all(
        summary.endswith(".") and len(summary) > 20 for summary in registry.summaries().values()
    )
    for name in registry.names:
        assert registry.find(name) is not None
    assert registry.names == tuple(sorted(registry.names, key=lambda name: (name != "auto", name)))


def test_other_kinds_of_strategies_are_refused():
    with pytest.raises(
        lm.LoadmasterError, match="there is no kind of strategies 'maps': did you mean map"
    ):
        lm.strategies("maps")
    with pytest.raises(lm.MappingError, match="there is no strategy 'magna': did you mean magma"):
        MAPPING.find("magna")


ALONE = {
    "core/errors.py": {"onnx", "tflite", "iree"},
    "cost/registry.py": {"dataflow"},
    "integrations/execute/model.py": {"onnxruntime"},
    "workloads/frontends/load.py": {"onnx"},
    "mapping/divided_jobs.py": {"herald"},
    "placement/place.py": {"best-fit"},
    "planning/verify/plan.py": {"dataflow"},
    "integrations/dumps/readers/onnxruntime.py": {"onnx"},
    "integrations/iree/export.py": {"onnx"},
}
"""Names that stand alone elsewhere: packages, defaults, the packing of what does not fit, and a
check that is called like a model."""


@cache
def strings(path):
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("home", REGISTRIES)
def test_no_other_place_lists_the_names(home):
    """Docstrings and help texts included: a name may be spoken of, but three in a row (two, if
    there are no more) are a list."""
    folder, names = ROOT / home.split()[0], REGISTRIES[home].names
    distinct = [name for name in names if name not in ("auto", "random", "exact", "torch")]
    either = rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?![\w-])"
    row = re.compile(rf"{either}(?:[`'\":\w.]*(?:, or |, | or | and |\|)[`'\".]*{either})+")
    for path in ROOT.rglob("*.py"):
        place = str(path.relative_to(ROOT))
        for text in () if folder in path.parents else strings(path):
            for found in row.findall(text):
                assert len(set(re.findall(either, found))) < min(3, len(names)) or len(names) < 2, (
                    f"{place} lists {found!r} of {home}"
                )
            assert text not in distinct or text in ALONE.get(place, ()), (
                f"{place} knows {text!r} of {home}"
            )

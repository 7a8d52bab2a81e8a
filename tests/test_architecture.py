"""The rooms of the house: verbs know the nouns and none of their siblings."""

import ast
from pathlib import Path

import pytest

import loadmaster

ROOT = Path(loadmaster.__file__).parent
VERBS = ("frontends", "lowering", "cost", "mapping", "placement", "allocation", "simulate", "verification", "report", "targets", "joint")


DRIVERS = {
    *("planner", "assemble", "outcome", "waiting"),
    *("allocator", "bank_allocator", "at_once"),
    *("mapper", "job_pool", "job_analyser"),
    *("placer", "kernel_reader", "fast_memory_sizing"),
    *("sweeper", "sweep_store", "sweep_workers"),
    *("cli", "commands", "runtime"),
}


def imports(path: Path) -> set[str]:
    """Second parts of all ``loadmaster.*`` imports of a file."""
    tree = ast.walk(ast.parse(path.read_text()))
    modules = [node.module or "" for node in tree if isinstance(node, ast.ImportFrom)]
    return {module.split(".")[1] for module in modules if module.startswith("loadmaster.")}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_knows_none_of_its_siblings(verb: str) -> None:
    siblings = set(VERBS) - {verb} | DRIVERS
    for path in (ROOT / verb).glob("*.py"):
        assert not imports(path) & siblings, path


def test_every_folder_is_accounted_for() -> None:
    assert {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"} == {*VERBS, "commands", "runtime"}

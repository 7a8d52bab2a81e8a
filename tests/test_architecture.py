"""The layout of the package: what may import what, without circles, and verifiers that know records only."""

from __future__ import annotations

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import loadmaster

ROOT = Path(loadmaster.__file__).parent
PACKAGES = (*("core", "targets", "workloads", "allocation", "placement", "cost", "mapping", "planning", "report", "integrations", "cli"),)
"""In order: a package imports only those before it."""
RECORDS = {
    "allocation.verify": {"allocation.problem"},
    "allocation.memories.verify": {
        "allocation.problem",
        "allocation.verify",
        "allocation.memories.problem",
        "allocation.answer",
        "allocation.rules",
    },
    "placement.verify": {"allocation.problem", "allocation.verify", "placement.sequence", "placement.decisions"},
    "planning.verify": {"planning.plan_records", "targets.hardware", "workloads.job", "workloads.graph", "workloads.network_timing"},
}
"""What verifiers may import, beside ``core`` and each other in their own folder; records are checked for what they import in turn."""
NATIVE = "_native"


@cache
def modules() -> dict[str, Path]:
    """Every module but the package itself, by its dotted name below ``loadmaster``."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and name != "__main__":
            found[name] = path
    return found


def imported(node: ast.AST) -> list[str]:
    """Dotted names below ``loadmaster`` that an import names, modules or what is in them."""
    if isinstance(node, ast.Import):
        return [alias.name.removeprefix("loadmaster.") for alias in node.names if alias.name.startswith("loadmaster.")]
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "loadmaster":
        base = node.module.removeprefix("loadmaster").removeprefix(".")
        return [f"{base}.{alias.name}".removeprefix(".") for alias in node.names]
    return []


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(tree: ast.AST, types: bool) -> list[str]:
    found = imported(tree)
    for child in ast.iter_child_nodes(tree):
        if types or not is_for_types(child):
            found += imports_of(child, types)
    return found


def module_of(name: str) -> str | None:
    """The module that a dotted name is, or is in."""
    parts = name.split(".")
    return next((".".join(parts[:k]) for k in range(len(parts), 0, -1) if ".".join(parts[:k]) in modules()), None)


@cache
def imports(module: str, types: bool = True) -> frozenset[str]:
    """Modules that a module imports, inside functions too; ``types`` says whether those for type checkers alone count."""
    found = {module_of(name) for name in imports_of(ast.parse(modules()[module].read_text()), types) if name != NATIVE}
    return frozenset(name for name in found if name and name != module)


@cache
def reach(module: str) -> frozenset[str]:
    """Everything that a module imports, directly or not, when it runs."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        for name in imports(waiting.pop(), False) - seen:
            seen.add(name)
            waiting.append(name)
    return frozenset(seen)


def test_the_package_holds_these_packages_and_nothing_else() -> None:
    entries = {path.name for path in ROOT.iterdir() if path.name != "__pycache__" and not path.name.endswith(".so")}
    assert entries == {*PACKAGES, "__init__.py", "__main__.py", "py.typed", "_native.pyi"}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_before_it(package: str) -> None:
    allowed = {*PACKAGES[: PACKAGES.index(package) + 1]}
    for module in modules():
        if module.split(".")[0] == package:
            beyond = {name for name in imports(module) if name.split(".")[0] not in allowed}
            assert not beyond, f"{module} imports {sorted(beyond)}"


def test_no_module_imports_itself_by_way_of_others() -> None:
    try:
        TopologicalSorter({module: imports(module) for module in modules()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("folder", sorted({name.rpartition(".")[0] for name in modules()} - {""}))
def test_no_folder_imports_itself_by_way_of_its_neighbours(folder: str) -> None:
    """The entries of a folder, files or folders, have an order too."""
    depth = len(folder.split(".")) + 1
    graph: dict[str, set[str]] = {}
    for module in modules():
        if module.startswith(f"{folder}."):
            entry = ".".join(module.split(".")[:depth])
            inside = {".".join(name.split(".")[:depth]) for name in imports(module) if name.startswith(f"{folder}.")}
            graph.setdefault(entry, set()).update(inside - {entry})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("verifier", sorted(RECORDS))
def test_verifiers_import_records_only(verifier: str) -> None:
    for module in modules():
        if module == verifier or module.startswith(f"{verifier}."):
            beyond = {name for name in reach(module) if name.split(".")[0] != "core" and name not in RECORDS[verifier]}
            beyond -= {name for name in beyond if name == verifier or name.startswith(f"{verifier}.")}
            # Importing a module runs the __init__ of its packages, which hold nothing.
            assert not {name for name in beyond if modules()[name].name != "__init__.py"}, f"{module} reaches {sorted(beyond)}"


def section(heading: str) -> str:
    """A section of the page that draws the layout."""
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_draws_the_packages_in_their_order() -> None:
    drawing = section("The eleven packages").split("```")[1]
    assert tuple(line.split()[0] for line in drawing.splitlines()[1:]) == PACKAGES


def test_the_files_that_a_network_passes_through_are_there() -> None:
    flow = section("A network becomes a plan").split("```")[1]
    files = re.findall(r"[\w/]+\.py", flow.replace(", onnx/", ", workloads/frontends/onnx/"))
    assert len(files) > 10
    assert not [file for file in files if not (ROOT / file).exists()]


def test_packages_hold_no_code_of_their_own() -> None:
    """So that a name has one home: what is in a package is in a module of it."""
    for module, path in modules().items():
        if path.name == "__init__.py":
            body = ast.parse(path.read_text()).body
            assert len(body) == 1, f"{module}: an __init__.py holds a docstring only"

"""The layout of the package: what may import what, without circles, and verifiers that know records
only."""

import ast
import io
import re
import sys
import tokenize
from collections import defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import loadmaster

ROOT = Path(loadmaster.__file__).parent
LIMITS = {
    "core": (11_526, 16, 10),
    "targets": (5_419, 6, 1),
    "workloads": (64_013, 36, 32),
    "allocation": (26_956, 25, 18),
    "placement": (31_248, 24, 31),
    "cost": (29_744, 24, 37),
    "mapping": (19_210, 32, 37),
    "planning": (79_770, 51, 51),
    "report": (31_871, 27, 21),
    "integrations": (97_526, 63, 89),
    "cli": (15_084, 19, 6),
}
"""Of each package at most: tokens, comments and docstrings left out; modules; and named numbers.
These only fall; a new capability that raises one says in its commit what it is for."""
PACKAGES = tuple(LIMITS)
"""In order: a package imports only those before it."""
RECORDS = {
    "allocation.verify": {"allocation.problem"},
    "allocation.memories.verify": {
        "allocation.problem",
        "allocation.verify",
        "allocation.memories.problem",
        "allocation.rules",
    },
    "placement.verify": {
        "allocation.problem",
        "allocation.verify",
        "placement.sequence",
        "placement.decisions",
    },
    "integrations.tflite.rewritten": {
        "workloads.frontends.tflite.flatbuffer",
        "workloads.frontends.tflite.model",
        "workloads.frontends.tflite.schema",
    },
    "planning.verify": {
        "planning.plan_records",
        "targets.hardware",
        "workloads.job",
        "workloads.graph",
    },
}
"""What verifiers may import, beside ``core`` and each other in their own folder; records are
checked for what they import in turn."""
NATIVE = "_native"
OUTSIDE = frozenset({*sys.stdlib_module_names, "numpy"})
"""What verifiers may import that is not ours."""
BY_NAME = {("planning.plan", "report.write"), ("core.registry", "report.notebook")}
"""Imports against the order, by name when a method is called: a plan writes its own report, and
answers show themselves.

There are no others."""


@cache
def modules():
    """Every module but the package itself, by its dotted name below ``loadmaster``."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name and name != "__main__":
            found[name] = path
    return found


def named(node):
    """Dotted names that an import names, absolute: modules or what is in them; of
    ``import_module``, what its text begins with."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if (
        isinstance(node, ast.Call)
        and node.args
        and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__")
    ):
        text = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
        return (
            [text.value] if isinstance(text, ast.Constant) and isinstance(text.value, str) else []
        )
    return []


def imported(node):
    """Dotted names below ``loadmaster`` that an import names."""
    return [
        name.removeprefix("loadmaster.") for name in named(node) if name.startswith("loadmaster.")
    ]


def is_for_types(node):
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def imports_of(tree, types):
    found = imported(tree)
    for child in ast.iter_child_nodes(tree):
        if types or not is_for_types(child):
            found += imports_of(child, types)
    return found


def module_of(name):
    """The module that a dotted name is, or is in."""
    parts = name.split(".")
    return next(
        (".".join(parts[:k]) for k in range(len(parts), 0, -1) if ".".join(parts[:k]) in modules()),
        None,
    )


@cache
def tree_of(module):
    return ast.parse(modules()[module].read_text())


@cache
def imports(module, types=True):
    """Modules that a module imports, inside functions too; ``types`` says whether those for type
    checkers alone count."""
    found = {module_of(name) for name in imports_of(tree_of(module), types)}
    return frozenset(
        name for name in found if name and name != module and (module, name) not in BY_NAME
    )


@cache
def reach(module):
    """Everything that a module imports, directly or not, when it runs."""
    seen = set()
    waiting = [module]
    while waiting:
        for name in imports(waiting.pop(), False) - seen:
            seen.add(name)
            waiting.append(name)
    return frozenset(seen)


def test_the_package_holds_these_packages_and_nothing_else():
    entries = {
        path.name
        for path in ROOT.iterdir()
        if path.name != "__pycache__" and not path.name.endswith(".so")
    }
    assert entries == {*PACKAGES, "__init__.py", "__main__.py", "py.typed", "_native.pyi"}


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_imports_only_those_before_it(package):
    allowed = {*PACKAGES[: PACKAGES.index(package) + 1]}
    for module in modules():
        if module.split(".")[0] == package:
            beyond = {name for name in imports(module) if name.split(".")[0] not in allowed}
            assert not beyond, f"{module} imports {sorted(beyond)}"


def test_no_module_imports_itself_by_way_of_others():
    try:
        TopologicalSorter({module: imports(module) for module in modules()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("folder", sorted({name.rpartition(".")[0] for name in modules()} - {""}))
def test_no_folder_imports_itself_by_way_of_its_neighbours(folder):
    """The entries of a folder, files or folders, have an order too."""
    depth = len(folder.split(".")) + 1
    graph = {}
    for module in modules():
        if module.startswith(f"{folder}."):
            entry = ".".join(module.split(".")[:depth])
            inside = {
                ".".join(name.split(".")[:depth])
                for name in imports(module)
                if name.startswith(f"{folder}.")
            }
            graph.setdefault(entry, set()).update(inside - {entry})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


@pytest.mark.parametrize("verifier", sorted(RECORDS))
def test_verifiers_import_records_only(verifier):
    for module in modules():
        if module == verifier or module.startswith(f"{verifier}."):
            beyond = {
                name
                for name in reach(module)
                if name.split(".")[0] != "core" and name not in RECORDS[verifier]
            }
            beyond -= {
                name for name in beyond if name == verifier or name.startswith(f"{verifier}.")
            }
            # Importing a module runs the __init__ of its packages, which hold nothing.
            assert not {name for name in beyond if modules()[name].name != "__init__.py"}, (
                f"{module} reaches {sorted(beyond)}"
            )


def test_checks_against_a_model_take_networks_and_costs_and_nothing_that_decides():
    """They read what frontends make and the cost model counts; cutting, scheduling, placing and
    packing are strange to them.

    Only the function that calls them computes bounds again, by the code that bounds plans. What
    runs plans decides nothing either.
    """
    own = ("core", "targets", "cost", "planning.against", "planning.verify", "workloads.frontends")
    records = {
        "planning.plan_records",
        "planning.decisions",
        "workloads.graph",
        "workloads.job",
        "workloads.window",
        "workloads.lowering.fuse",
        "workloads.lowering.single_assignment",
    }
    checks = [module for module in modules() if module.startswith("planning.against.")]
    assert len(checks) > 3
    for module in checks:
        beyond = {
            name
            for name in reach(module)
            if not f"{name}.".startswith(tuple(f"{each}." for each in own)) and name not in records
        }
        assert not {name for name in beyond if modules()[name].name != "__init__.py"}, (
            f"{module} reaches {sorted(beyond)}"
        )
    deciders = (
        "allocation.",
        "placement.",
        "planning.joint.",
        "planning.packing",
        "planning.planner",
    )
    for caller in ("planning.verify_against", "integrations.execute.run"):
        assert not [name for name in reach(caller) if name.startswith(deciders)]


@pytest.mark.parametrize("verifier", sorted(RECORDS))
def test_verifiers_and_their_records_use_neither_native_code_nor_solvers(verifier):
    for module in modules():
        if module == verifier or module.startswith(f"{verifier}."):
            for reached in (module, *sorted(reach(module))):
                names = {name for node in ast.walk(tree_of(reached)) for name in named(node)}
                beyond = {
                    name
                    for name in names
                    if name.split(".")[0] not in OUTSIDE | {"loadmaster"}
                    or name.startswith("loadmaster._native")
                }
                assert not beyond, f"{module} reaches {sorted(beyond)} in {reached}"


@pytest.mark.slow
def test_modules_import_from_where_things_are():
    """Neither relative to themselves nor from ``loadmaster``, which would hide what a module
    depends on."""
    for module in modules():
        tree = tree_of(module)
        facade = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "loadmaster"
        }
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.ImportFrom) and node.level), (
                f"{module}, line {node.lineno}: a relative import"
            )
            names = (
                [alias.name for alias in node.names]
                if isinstance(node, ast.ImportFrom) and node.module == "loadmaster"
                else []
            )
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in facade
            ):
                names = [node.attr]
            beyond = {*names} - {NATIVE, "__version__"}
            assert not beyond, (
                f"{module} takes {sorted(beyond)} from loadmaster: import from the module that"
                " defines it"
            )


def section(heading):
    """A section of the page that draws the layout."""
    page = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text()
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def test_the_page_draws_the_packages_in_their_order():
    drawing = section("The eleven packages").split("```")[1]
    assert tuple(line.split()[0] for line in drawing.splitlines()[1:]) == PACKAGES


def test_the_files_that_a_network_passes_through_are_there():
    flow = section("A network becomes a plan").split("```")[1]
    files = re.findall(r"[\w/]+\.py", flow.replace(", onnx/", ", workloads/frontends/onnx/"))
    assert len(files) > 10
    assert not [file for file in files if not (ROOT / file).exists()]


def test_the_files_that_the_page_points_to_are_there():
    files = re.findall(r"[\w/]+\.(?:py|cpp)", section("Where to look"))
    native = Path(__file__).parents[1] / "src"
    assert len(files) > 10
    assert not [
        file for file in files if not ((native if file.endswith(".cpp") else ROOT) / file).exists()
    ]


def test_packages_hold_no_code_of_their_own():
    """So that a name has one home: what is in a package is in a module of it."""
    for module, path in modules().items():
        if path.name == "__init__.py":
            body = ast.parse(path.read_text()).body
            # What other programs load is named by the folder of their integration.
            doors = [
                line
                for line in body[1:]
                if module.startswith("integrations.") and isinstance(line, ast.ImportFrom)
            ]
            assert len(body) == 1 + len(doors), f"{module}: an __init__.py holds a docstring only"


def test_a_name_of_a_class_stands_for_one_thing():
    homes = defaultdict(list)
    for module in modules():
        for each in tree_of(module).body:
            if isinstance(each, ast.ClassDef):
                homes[each.name.lstrip("_")].append(module)
    assert not {name: found for name, found in homes.items() if len(found) > 1}


def test_types_of_arrays_and_the_clock_have_one_home():
    """A type of arrays is named in core/arrays.py, files are renamed in core/files.py, and searches
    read the clock of core/progress.py."""
    homes = {
        r"^\w+ = NDArray\[": "core.arrays",
        r"\bos\.replace\(": "core.files",
        r"\btime\.perf_counter\(": "",
    }
    searches = {"allocation", "placement", "mapping", "planning"}
    for module, path in modules().items():
        for pattern, home in homes.items():
            if module != home and (home or module.split(".")[0] in searches):
                assert not re.search(pattern, path.read_text(), flags=re.MULTILINE), (
                    f"{module} has {pattern}"
                )


def tokens_of(text):
    """Tokens without comments, docstrings and layout; an f-string is one, as before Python 3.12."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    opens, closes = getattr(tokenize, "FSTRING_START", -1), getattr(tokenize, "FSTRING_END", -1)
    count, begins, depth = 0, True, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        depth += (token.type == opens) - (token.type == closes)
        if token.type in (*layout, closes) or depth - (token.type == opens) > 0:
            continue
        if token.type == tokenize.NEWLINE or (token.type == tokenize.STRING and begins):
            begins = token.type == tokenize.NEWLINE
            continue
        count, begins = count + 1, False
    return count


def named_numbers_of(text):
    """Constants of a module that are numbers, or tuples of numbers."""
    count = 0
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        parts = list(ast.walk(node.value)) if getattr(node, "value", None) else []
        leaves = [part.value for part in parts if isinstance(part, ast.Constant)]
        plain = (ast.Constant, ast.Tuple, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
        count += bool(
            any(name.isupper() for name in names)
            and leaves
            and all(isinstance(part, (*plain, ast.expr_context)) for part in parts)
            and all(isinstance(leaf, int | float) for leaf in leaves)
        )
    return count


def size_of(package):
    """Tokens, modules and named numbers of a package."""
    texts = [path.read_text() for name, path in modules().items() if name.split(".")[0] == package]
    tokens = [tokens_of(text) for text in texts]
    return sum(tokens), sum(map(bool, tokens)), sum(map(named_numbers_of, texts))


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_does_not_grow(package):
    assert all(size <= limit for size, limit in zip(size_of(package), LIMITS[package], strict=True))

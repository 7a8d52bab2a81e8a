"""Every example in the README and in docs/, sub-folders included, runs as it is printed, in the
order of its page."""

import ast
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import loadmaster as lm
from loadmaster.cli.main import app

pytestmark = pytest.mark.usefixtures("little_effort")

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLE = re.compile(r"^```(sh|python|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Setting up is what runs these tests in the first place.
NOT_HERE = ("make ", "pip install ")
ALWAYS = r"README\.md|docs/tutorial\.md|docs/how-to/"
"""Pages whose examples `make test` runs; `.ci/nightly` runs those of the others."""


def examples(page):
    """Language and text of every example."""
    return EXAMPLE.findall(page.read_text())


def of(pages, always=""):
    """A parameter for each page; pages whose paths do not match ``always`` wait for the night."""
    paths = [str(page.relative_to(ROOT)) for page in pages]
    marks = [() if re.match(always, path) else pytest.mark.nightly for path in paths]
    given = [
        pytest.param(page, id=path, marks=own)
        for page, path, own in zip(pages, paths, marks, strict=True)
    ]
    return pytest.mark.parametrize("page", given)


def run_commands(body):
    for line in body.splitlines():
        words = shlex.split(line, comments=True)
        if not words or line.startswith(NOT_HERE):
            continue
        assert words[0] == "loadmaster", line
        target = words.index(">") if ">" in words else len(words)
        result = CliRunner().invoke(app, words[1:target], catch_exceptions=False)
        assert result.exit_code == 0, f"{line}\n{result.output}"
        if target < len(words):
            Path(words[target + 1]).write_text(result.stdout)


def run_python(body):
    exec(compile(body, "documentation", "exec"), {})


def save_target(body):
    """A machine that a page describes is there, under its name, for the commands after it."""
    name = re.search(r'^name = "(.*)"', body, re.MULTILINE)
    assert name, body
    file = Path(f"{name[1]}.toml")
    file.write_text(body)
    assert lm.target(file).cores


RUN = {"sh": run_commands, "python": run_python, "toml": save_target}


@pytest.fixture
def sweeps_here(monkeypatch):
    """Points of sweeps are planned by a thread of this process; the tests of sweeps have
    processes."""

    @contextmanager
    def thread(count=None):
        with ThreadPoolExecutor(1) as executor:
            yield executor

    monkeypatch.setattr("loadmaster.planning.sweep.workers.local_processes", thread)


@pytest.mark.slow
@pytest.mark.usefixtures("sweeps_here")
@of([page for page in PAGES if examples(page)], ALWAYS)
def test_examples_of_a_page_run(page, tmp_path, monkeypatch):
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    for language, body in examples(page):
        RUN[language](body)


@pytest.mark.slow
@pytest.mark.usefixtures("sweeps_here")
def test_the_demo_shows_what_joint_planning_is_worth_and_ends_with_commands_that_run(
    tmp_path, monkeypatch
):
    """What `make demo` does once everything is installed, and then the three commands that it
    names."""
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)
    recipe = (ROOT / "Makefile").read_text().split("\ndemo: ")[1].split("\n\n")[0]
    commands = re.findall(r"\$\(BIN\)/(loadmaster [^\"\n]+)", recipe)
    assert len(commands) == 4
    run_commands("\n".join(commands))
    plan = lm.Plan.load("demo-plan/plan.json")
    assert [(network.precision, network.mini_batches) for network in plan.networks] == [
        ("int8", 4)
    ] * 2
    assert plan.metrics.makespan.value < plan.search[0].value
    assert "demo-plan/report.html" in recipe


@of([page for page in PAGES if any(language == "python" for language, _ in examples(page))])
def test_python_of_a_page_imports_no_module_of_ours_but_the_package(page):
    for node in ast.walk(
        ast.parse("\n".join(body for language, body in examples(page) if language == "python"))
    ):
        if isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.startswith("loadmaster.")]
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("loadmaster")


@of(PAGES)
def test_what_a_page_links_to_exists(page):
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / link).exists(), link


@pytest.mark.slow
def test_the_package_docstring_is_an_example_that_runs():
    import doctest

    assert doctest.testmod(lm).failed == 0

"""Every example in the README and in docs/ runs as it is printed."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import loadmaster as lm
from loadmaster.cli.main import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Setting up is what runs these tests in the first place.
NOT_HERE = ("make ", "pip install ")


def blocks(language: str) -> list:
    found = [
        (page, body) for page in PAGES for body in re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]
    return [pytest.param(body, id=f"{page.name}-{number}") for number, (page, body) in enumerate(found)]


@pytest.fixture(autouse=True)
def in_a_folder_with_the_fixtures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("body", blocks("sh"))
@pytest.mark.slow
def test_commands_of_the_documentation_run(body: str) -> None:
    for line in body.splitlines():
        words = shlex.split(line, comments=True)
        if not words or line.startswith(NOT_HERE):
            continue
        assert words[0] == "loadmaster", line
        target = words.index(">") if ">" in words else len(words)
        result = CliRunner().invoke(app, words[1:target], catch_exceptions=False)
        assert result.exit_code == 0, line
        if target < len(words):
            Path(words[target + 1]).write_text(result.stdout)


@pytest.mark.parametrize("body", blocks("python"))
def test_python_of_the_documentation_runs(body: str) -> None:
    exec(compile(body, "documentation", "exec"), {})


@pytest.mark.parametrize("body", blocks("toml"))
def test_target_files_of_the_documentation_are_valid(body: str, tmp_path: Path) -> None:
    file = tmp_path / "documented.toml"
    file.write_text(body)
    assert lm.target(file).cores


def test_pictures_and_pages_that_are_linked_exist() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_package_docstring_is_an_example_that_runs() -> None:
    import doctest

    assert doctest.testmod(lm).failed == 0

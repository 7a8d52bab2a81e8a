"""What the program does where packages that only parts of it need are not installed."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import loadmaster as lm
from loadmaster.core.errors import _EXTRAS, LoadmasterError, MissingPackageError, package

ROOT = Path(__file__).parents[2]
BARE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Nothing())
sys.argv = {arguments!r}
"""


PROGRAM = "from loadmaster.cli.main import main; main()"


def bare(code, *arguments):
    """Python code in a process where only what the package itself asks for can be imported; newer
    releases of typer need pydantic too."""
    blocked = sorted(_EXTRAS.keys() - ({"pydantic"} if code == PROGRAM else set()))
    start = BARE.format(blocked=blocked, arguments=["loadmaster", *arguments])
    return subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, check=False
    )


def test_every_extra_that_an_error_names_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(_EXTRAS.values()) <= set(project["optional-dependencies"])
    required = {requirement.partition(">")[0] for requirement in project["dependencies"]}
    assert required == {"numpy", "typer", "rich"}


@pytest.mark.slow
def test_the_allocator_and_its_command_need_no_extra(tmp_path):
    (tmp_path / "buffers.csv").write_text("id,lower,upper,size\na,0,3,4\nb,1,5,2\nc,4,6,4\n")
    ran = bare(PROGRAM, "allocate", str(tmp_path / "buffers.csv"), "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["peak"] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("plan", "onnx:squeezenet", "--target", "edge-npu"), ("inspect", "onnx:squeezenet")],
    ids=["plan", "inspect"],
)
def test_a_command_without_its_package_says_what_to_install(arguments):
    ran = bare(PROGRAM, *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "which is not installed: pip install 'loadmaster[plan]'" in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_a_name_of_the_package_without_its_package_says_what_to_install():
    ran = bare(
        "import loadmaster as lm\ntry:\n    lm.target('edge-npu')\nexcept lm.LoadmasterError as"
        " error:\n    print(error)"
    )
    assert (
        ran.stdout == "loadmaster.target needs pydantic, which is not installed: pip install"
        " 'loadmaster[plan]'\n"
    ), ran.stderr


def test_a_strategy_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(
        MissingPackageError,
        match=r"strategy 'cp-sat' needs ortools, .* pip install 'loadmaster\[rivals\]'",
    ):
        lm.allocate([lm.Buffer("a", 0, 2, 8)], strategy="cp-sat")


def test_a_module_that_no_extra_brings_stays_python_s_own_error():
    with pytest.raises(ModuleNotFoundError) as raised:
        package("loadmaster.nothing_of_the_kind", "this test")
    assert not isinstance(raised.value, LoadmasterError)

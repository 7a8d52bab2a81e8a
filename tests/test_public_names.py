"""What users import is on ``loadmaster`` itself, and nowhere else."""

import ast
from pathlib import Path

import pytest

import loadmaster as lm
from loadmaster.core import errors


def imported_for_type_checkers():
    """Module, and its name there if that is another one, of every name that
    ``loadmaster/__init__.py`` imports under ``TYPE_CHECKING``."""
    found = {}
    (block,) = (
        node for node in ast.parse(Path(lm.__file__).read_text()).body if isinstance(node, ast.If)
    )
    for node in block.body:
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("loadmaster.")
        ):
            for alias in node.names:
                public = alias.asname or alias.name
                found[public] = (
                    node.module if public == alias.name else f"{node.module}:{alias.name}"
                )
    return found


def test_the_lists_of_public_names_agree():
    assert dir(lm) == sorted([*lm._HOMES, "__version__"])
    kinds = {name for name, each in vars(errors).items() if isinstance(each, type)}
    assert {name for name in kinds if issubclass(vars(errors)[name], Exception)} <= set(lm._HOMES)
    assert imported_for_type_checkers() == lm._HOMES


@pytest.mark.parametrize("name", lm.__all__)
def test_a_public_name_is_there_and_documented(name):
    if "torch_compile" in lm._HOMES[name]:
        pytest.importorskip("torch", exc_type=ImportError)
    public = getattr(lm, name)
    assert callable(public)
    assert public.__doc__
    assert public.__module__.startswith("loadmaster.")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lm.nothing  # noqa: B018

"""Instances of other people, where they are at hand."""

import os
from pathlib import Path

import pytest
from tests.support.needs import PUBLIC_INSTANCES

import loadmaster as lm

FOLDER = Path(os.environ.get("LOADMASTER_ALLOCATION_DATA", Path(__file__).parents[3] / "shared" / "data" / "allocation"))
FILES = {path.name.split(".")[0]: path for path in sorted(FOLDER.glob("*.csv"))}
pytestmark = pytest.mark.skipif(not FILES, reason=PUBLIC_INSTANCES)


def read(name: str) -> lm.Problem:
    if name not in FILES:
        pytest.skip(f"{name}: {PUBLIC_INSTANCES}")
    return lm.read_buffers(FILES[name])


@pytest.mark.parametrize("name", ["A", "C", "D", "J", "K"])
def test_challenging_instances_fit_their_capacity(name: str) -> None:
    answer = lm.allocate(read(name), 2**20)
    assert answer.status in ("optimal", "feasible")
    assert answer.peak <= 2**20


@pytest.mark.parametrize(("name", "peak"), [("A", 2**20), ("C", 1039360), ("input", 12), ("iopddl_G_1", 3030937746)])
def test_optima_are_proven(name: str, peak: int) -> None:
    answer = lm.allocate(read(name))
    assert (answer.status, answer.peak) == ("optimal", peak)


def test_a_large_instance_comes_close_to_its_bound() -> None:
    answer = lm.allocate(read("iopddl_S_1"))
    assert answer.peak <= 1.005 * answer.lower_bound

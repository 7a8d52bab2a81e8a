"""Whole instances: hard ones of our own with a known optimum, and those of other people, where they
are at hand.

Large ones of our own are in test_packing_at_scale.
"""

import os
from pathlib import Path

import pytest
from tests.support.needs import PUBLIC_INSTANCES
from tests.support.tilings import PEAK, tight

import loadmaster as lm

FOLDER = Path(
    os.environ.get(
        "LOADMASTER_ALLOCATION_DATA", Path(__file__).parents[3] / "shared" / "data" / "allocation"
    )
)
FILES = {path.name.split(".")[0]: path for path in sorted(FOLDER.glob("*.csv"))}
public = pytest.mark.skipif(not FILES, reason=PUBLIC_INSTANCES)


def read(name):
    if name not in FILES:
        pytest.skip(f"{name}: {PUBLIC_INSTANCES}")
    return lm.read_buffers(FILES[name])


@pytest.mark.parametrize("pinwheels", [0.0, 0.5])
@pytest.mark.parametrize(("count", "seed"), [(24, 1), (30, 2), (36, 3)])
def test_cut_rectangles_are_packed_without_a_gap(count, seed, pinwheels, tmp_path):
    problem = lm.read_buffers(lm.write_buffers(tmp_path / "cut.csv", tight(count, seed, pinwheels)))
    fits = lm.allocate(problem, PEAK)
    assert fits.peak == PEAK
    assert lm.verify_buffers(problem, fits.offsets, PEAK) == ()
    best = lm.allocate(problem)
    assert (best.status, best.peak, best.lower_bound) == ("optimal", PEAK, PEAK)
    assert lm.allocate(problem, PEAK - 1).status == "infeasible"


@public
@pytest.mark.parametrize("name", ["A", "C", "D", "J", "K"])
def test_challenging_instances_fit_their_capacity(name):
    answer = lm.allocate(read(name), 2**20)
    assert answer.status in ("optimal", "feasible")
    assert answer.peak <= 2**20


@public
@pytest.mark.parametrize(
    ("name", "peak"),
    [("A", 2**20), ("C", 1039360), ("D", 986112), ("input", 12), ("iopddl_G_1", 3030937746)],
)
def test_optima_are_proven(name, peak):
    answer = lm.allocate(read(name))
    assert (answer.status, answer.peak) == ("optimal", peak)


@pytest.mark.slow
@public
def test_a_large_public_instance_comes_close_to_its_bound():
    answer = lm.allocate(read("iopddl_S_1"))
    assert answer.peak <= 1.005 * answer.lower_bound

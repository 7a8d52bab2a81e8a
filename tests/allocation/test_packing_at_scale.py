"""Many buffers: packings hold, come out the same every time, are close to the load bound, and take
little memory."""

import os
import subprocess
import sys

import numpy as np
import pytest
from tests.support.needs import SANITIZER
from tests.support.problems import crowd

import loadmaster as lm
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.rules import problem_of
from loadmaster.allocation.verify import broken_rules


def windows(count, length, seed):
    lower = np.arange(count)
    return lower, lower + length, np.random.default_rng(seed).integers(1, 1 << 16, count)


def layers(count, seed):
    random, lower = np.random.default_rng(seed), np.arange(count)
    length = np.where(
        random.random(count) < 0.9, random.integers(1, 6, count), random.integers(6, 2000, count)
    )
    return lower, lower + length, (2 ** random.uniform(8, 22, count)).astype(np.int64)


def packed(problem):
    return packing_problem(problem).greedy()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.slow
def test_large_packings_hold_and_repeat_and_do_not_beat_the_bound(seed):
    problem = problem_of(crowd(3000, 3000, 300, 1 << 16, seed))
    found = packed(problem)
    assert not list(broken_rules(problem, found.offsets))
    assert found.bound <= found.peak <= 1.04 * found.bound
    assert (packed(problem).offsets == found.offsets).all()


@pytest.mark.parametrize("alignment", [64, 96])
def test_aligned_ones_hold(alignment):
    columns = dict(zip(("lower", "upper", "size"), crowd(2500, 2500, 300, 1 << 16, 7), strict=True))
    columns["alignment"] = np.where(columns["size"] % 3 > 0, alignment, 1)
    problem = problem_of(columns)
    assert not list(broken_rules(problem, packed(problem).offsets))


@pytest.mark.parametrize("length", [64, 300, 1024])
def test_sliding_windows_come_within_a_hundredth_of_the_bound(length):
    found = packed(problem_of(windows(25_000, length, 1)))
    assert found.peak <= 1.01 * found.bound


def test_layers_come_within_seven_thousandths_of_the_bound():
    found = packed(problem_of(layers(40_000, 0)))
    assert found.peak <= 1.007 * found.bound


@pytest.mark.slow
def test_layers_that_packing_at_scale_leaves_far_from_the_bound_come_near_to_it():
    """Sets of some thousand buffers of which few are large: their fullest instant is hard, and the
    rest easy."""
    columns = layers(2000, 4)
    assert (simple := packed(problem_of(columns))).peak > 1.05 * simple.bound
    best = lm.allocate(columns, effort="quick")
    assert best.peak < 1.016 * best.lower_bound


_BYTES_PER_BUFFER = """
import resource
import numpy as np
import loadmaster as lm
sizes = np.random.default_rng(0).integers(1, 1 << 16, 200_000)
columns = np.arange(200_000), np.arange(200_000) + 64, sizes
lm.allocate(tuple(column[:10] for column in columns))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
lm.allocate(columns)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / 200_000)
"""


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason=SANITIZER)
def test_a_buffer_of_arrays_takes_few_bytes():
    """Its three columns are with the caller; offsets, problem, packing and check come to about
    three hundred bytes."""
    said = subprocess.run(
        [sys.executable, "-c", _BYTES_PER_BUFFER], capture_output=True, text=True, check=True
    )
    assert float(said.stdout) < 400


def test_best_fit_by_birth_is_best_fit():
    columns = crowd(1600, 1600, 300, 1 << 16, 3)
    order = np.lexsort((-columns[2], columns[0]))
    problem = problem_of(columns)
    quick = packing_problem(problem).place_in_order(order, best_fit=True).offsets
    # A pinned buffer that is never alive keeps it from the short way.
    pinned = problem_of(
        {
            "lower": [*columns[0], 0],
            "upper": [*columns[1], 0],
            "size": [*columns[2], 1],
            "pin": [-1] * 1600 + [0],
        }
    )
    slow = packing_problem(pinned).place_in_order(np.array([*order, 1600]), best_fit=True)
    assert (quick == slow.offsets[:-1]).all()


def holed(count, seed):
    """Each absent for about a third of its life."""
    random = np.random.default_rng(seed)
    rows = [random.integers(*ends, count).tolist() for ends in ((0, count), (9, 100), (1, 1000))]
    return [
        lm.Buffer.during(str(i), [(a, a + n // 3), (a + 2 * n // 3, a + n)], s)
        for i, (a, n, s) in enumerate(zip(*rows, strict=True))
    ]


def test_large_sets_with_gaps_end_below_every_greedy_order():
    buffers = holed(2100, 0)
    best, greedy = lm.allocate(buffers), lm.allocate(buffers, strategy="greedy")
    assert not list(broken_rules(lm.problem_of(buffers), best.offsets))
    assert best.lower_bound <= best.peak < greedy.peak

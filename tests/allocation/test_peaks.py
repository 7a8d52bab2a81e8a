"""The fullest sets of buffers that are alive together."""

import random

import numpy as np

from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Buffer
from loadmaster.allocation.rules import problem_of


def test_peaks_are_the_maximal_sets_the_fullest_first():
    for seed in range(200):
        rng = random.Random(seed)
        buffers = []
        for number in range(rng.randint(1, 9)):
            lower = rng.randint(0, 8)
            upper = lower + rng.randint(1, 5)
            buffers.append(Buffer(f"b{number}", lower, upper, rng.randint(1, 50)))
        found = peaks(problem_of(buffers), np.arange(len(buffers)), 99)
        alive = [
            {number for number, each in enumerate(buffers) if each.lower <= at < each.upper}
            for at in range(15)
        ]
        maximal = {frozenset(one) for one in alive if one and not any(one < two for two in alive)}
        assert {frozenset(each.buffers) for each in found} == maximal
        assert len(found) == len(maximal)
        bytes_ = [sum(buffers[at].size for at in each.buffers) for each in found]
        assert [each.bytes for each in found] == sorted(bytes_, reverse=True) == bytes_
        sizes = [buffers[at].size for at in found[0].buffers]
        assert sizes == sorted(sizes, reverse=True)

"""In-place pairs by the hundred, as networks have them: proven by what sharing leaves at the
fullest instant."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz

import loadmaster as lm
from loadmaster.allocation.native import lower_bound
from loadmaster.allocation.rules import problem_of


def residual(blocks):
    """Blocks of a residual network: three convolutions with normalisation and activation, and a sum
    with what came in."""
    born, dead, size, pairs = [0], [1], [96], []

    def step(sources, bytes_, in_place):
        now, result = len(born), len(born)
        for source in sources:
            dead[source] = now + 1
        born.append(now)
        dead.append(now + 1)
        size.append(bytes_)
        pairs.extend((source, result) for source in sources if in_place and size[source] == bytes_)
        return result

    kept = 0
    for _ in range(blocks):
        now = kept
        for bytes_ in (24, 24, 96):
            now = step([now], bytes_, False)
            now = step([now], bytes_, True)
            now = step([now], bytes_, True) if bytes_ == 24 else now
        kept = step([step([now, kept], 96, True)], 96, True)
    ended = [(one, other) for one, other in pairs if dead[one] == born[other] + 1]
    return (born, dead, size), ended


@pytest.mark.parametrize("blocks", [3, 60])
def test_networks_with_hundreds_of_pairs_are_proven(blocks):
    buffers, pairs = residual(blocks)
    assert len(pairs) > (256 if blocks == 60 else 10)
    answer = lm.allocate(buffers, in_place=pairs)
    assert (answer.status, answer.peak) == ("optimal", 216)
    assert lm.allocate(buffers).peak == 288
    assert answer.certificate.bytes == 216


def cheapest(members, near, size):
    """By trying every partition."""
    if not members:
        return 0
    first, rest = members[0], members[1:]
    found = []
    for count in range(len(rest) + 1):
        for others in itertools.combinations(rest, count):
            if all(b in near[a] for a, b in itertools.combinations((first, *others), 2)):
                left = [buffer for buffer in rest if buffer not in others]
                found.append(max(size[b] for b in (first, *others)) + cheapest(left, near, size))
    return min(found)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=7), st.data())
@fuzz(100)
def test_the_fewest_bytes_of_buffers_that_may_share_are_those_of_the_best_partition(size, data):
    count = len(size)
    pairs = [pair for pair in itertools.combinations(range(count), 2) if data.draw(st.booleans())]
    near = {i: {a + b - i for a, b in pairs if i in (a, b)} for i in range(count)}
    best = cheapest(list(range(count)), near, size)
    alike = ([0] * count, [1] * count, size)
    bound = lower_bound(problem_of(alike, in_place=pairs)).bytes
    assert bound == best
    more = [(*pair, shift) for pair in pairs for shift in (0, 1)]
    assert lower_bound(problem_of(alike, in_place=more)).bytes <= bound

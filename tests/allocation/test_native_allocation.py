"""The native kernels: against brute force, rules on and off, and hostile arrays."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import columns, crowd, lived, lowest_peak, orderly, records

import loadmaster as lm
from loadmaster import _native
from loadmaster.allocation.native import packing_problem
from loadmaster.allocation.rules import problem_of

NONE = np.zeros(0, dtype=np.int64)


def ints(values):
    return np.array(list(values), dtype=np.int64)


def native(buffers):
    """Buffers, or rows (lower, upper, size)."""
    records = bool(buffers) and isinstance(buffers[0], lm.Buffer)
    return packing_problem(problem_of(buffers if records else columns(buffers)))


def minimise(problem, **options):
    return problem.exact(-1, **{"nodes": 200_000, "seed": 0, **options})


@given(records(most=6), st.integers(0, 20))
@fuzz(300)
def test_fit_agrees_with_brute_force(buffers, capacity):
    assume(orderly(buffers))
    problem, fits = native(buffers), lowest_peak(buffers) <= capacity
    found = problem.exact(capacity, nodes=200_000, seed=0)
    assert found.status == ("feasible" if fits else "infeasible")
    if fits:
        assert lm.verify_buffers(problem_of(buffers), found.offsets, capacity) == ()
        assert found.peak <= capacity


@given(records(most=8), st.booleans(), st.randoms())
@fuzz(200)
def test_any_order_gives_a_valid_packing(buffers, best_fit, random):
    order = random.sample(range(len(buffers)), len(buffers))
    placed = native(buffers).place_in_order(ints(order), best_fit)
    assert lm.verify_buffers(problem_of(buffers), placed.offsets, placed.peak) == ()


def test_pins_that_overlap_are_refused():
    arrays = [4, 4], [1, 1], [0, 3], [0, 1, 2], [0, 0], [2, 2], [0, 0], [4, 4]
    problem = _native.PackingProblem(*map(ints, arrays))
    with pytest.raises(ValueError, match="overlap"):
        problem.place_in_order(ints([0, 1]), False)


rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)), max_size=8)


def test_nothing_at_all():
    nothing = native([])
    assert minimise(nothing).status == "optimal"
    assert nothing.exact(0, nodes=1, seed=0).status == "feasible"
    assert _native.allocate_small(NONE, NONE, NONE)[1:] == (0, 0)
    found = minimise(native([(3, 3, 5), (0, 4, 0)]))
    assert (found.peak, found.bound) == (0, 0)


def test_sizes_near_two_to_the_62():
    for sizes in ([2**61, 2**61 + 1], [2**62, 1]):
        with pytest.raises(OverflowError, match="2\\^62"):
            _native.allocate_small(ints([0, 1]), ints([2, 3]), ints(sizes))


@pytest.mark.parametrize(
    ("which", "value", "match"),
    [
        (0, -1, "size"),
        (1, 0, "alignment"),
        (2, -2, "pin"),
        (3, 1, "first"),
        (4, 99, "begin"),
        (6, -1, "low"),
        (7, 99, "high"),
    ],
)
def test_malformed_arrays_are_refused(which, value, match):
    arrays = [*map(ints, ([4, 5], [1, 1], [-1, -1], [0, 1, 2], [0, 1], [2, 3], [0, 0], [4, 5]))]
    arrays[which][0] = value
    with pytest.raises(ValueError, match=match):
        minimise(_native.PackingProblem(*arrays))


@given(rows, st.data())
@fuzz(200)
def test_the_quick_check_of_packings_finds_every_overlap(triples, data):
    lower, upper, size = lived(triples)
    offsets = ints(data.draw(st.integers(0, 20)) for _ in triples)
    top = max((offsets + size)[(size > 0) & (lower < upper)].tolist(), default=0)
    holds = lm.verify_buffers(problem_of((lower, upper, size)), offsets) == ()
    assert _native.packing_holds(lower, upper, size, offsets, top) == holds
    assert not _native.packing_holds(lower, upper, size, offsets, top + 1)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_the_answer(threads):
    problem = packing_problem(problem_of(crowd(120, 60, 50, 90, seed=3)))
    capacity = -1
    for _ in range(2):
        one, several = (
            problem.exact(capacity, seed=5, nodes=60_000, threads=count) for count in (1, threads)
        )
        assert np.array_equal(one.offsets, several.offsets)
        for name in ("status", "peak", "bound", "counters"):
            assert getattr(one, name) == getattr(several, name)
        capacity = one.peak - 1


def apart(size, alignment, pairs):
    """Buffers of which some pairs must be apart, whatever their lifetimes."""
    count = len(size)
    first, none, begin = np.arange(count + 1), ints([-1] * count), ints([0] * count)
    rows = np.array(sorted(pairs), dtype=np.int64)
    rows = rows if len(rows) else np.empty((0, 2), dtype=np.int64)
    return _native.PackingProblem(
        size, alignment, none, first, begin, begin + 1, begin, size, conflicts=rows
    )


@given(
    st.lists(st.tuples(st.integers(1, 6), st.sampled_from([1, 2, 4])), min_size=1, max_size=7),
    st.data(),
)
@fuzz(60)
def test_neighbours_are_apart_and_each_lies_at_its_lowest_place(rows, data):
    count = len(rows)
    pairs = {(i, j) for j in range(count) for i in range(j) if data.draw(st.booleans())}
    order = data.draw(st.permutations(range(count)))
    size, alignment = ints(row[0] for row in rows), ints(row[1] for row in rows)
    found = apart(size, alignment, pairs).place_in_order(ints(order))
    placed = {}
    for i in order:
        at = 0
        while any(
            at < placed[j] + size[j] and placed[j] < at + size[i]
            for j in placed
            if (min(i, j), max(i, j)) in pairs
        ):
            at += int(alignment[i])
        placed[i] = at
    assert found.offsets.tolist() == [placed[i] for i in range(count)]
    assert found.peak == max(placed[i] + int(size[i]) for i in range(count))


def test_pairs_of_buffers_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="pair: names a buffer that does not exist"):
        apart(ints([1]), ints([1]), [(0, 4)])
    with pytest.raises(ValueError, match="rows: of another width"):
        apart(ints([1]), ints([1]), [(0, 0, 0)])

"""The native kernels: against brute force, rules on and off, and hostile arrays."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz

from loadmaster import _native

NONE = np.zeros(0, dtype=np.int64)
RULES = (
    "section_inference",
    "dominance",
    "level_skipping",
    "decomposition",
    "symmetry_breaking",
    "failed_states",
    "spanning_buffers",
    "slot_reduction",
)


def ints(values) -> np.ndarray:
    return np.array(list(values), dtype=np.int64)


class Problem:
    """Buffers as (size, alignment, pin, sections), a section being (begin, end, low, high)."""

    def __init__(self, buffers) -> None:
        self.buffers = buffers
        sections = [section for *_, mine in buffers for section in mine]
        first = np.cumsum([0] + [len(mine) for *_, mine in buffers])
        columns = [ints(s[k] for s in sections) for k in range(4)]
        self.arrays = [
            ints(b[0] for b in buffers),
            ints(b[1] for b in buffers),
            ints(b[2] for b in buffers),
            first.astype(np.int64),
            *columns,
        ]

    def clash(self, i: int, at: int, j: int, other: int) -> bool:
        return any(
            b < e2 and b2 < e and at + low < other + high2 and other + low2 < at + high
            for b, e, low, high in self.buffers[i][3]
            for b2, e2, low2, high2 in self.buffers[j][3]
            if b < e and b2 < e2 and low < high and low2 < high2
        )

    def alive(self, i: int) -> bool:
        return any(b < e and low < high for b, e, low, high in self.buffers[i][3])

    def valid(self, offsets) -> bool:
        n = len(self.buffers)
        return all(
            o >= 0 and (pin == o if pin >= 0 else o % a == 0)
            for o, (_, a, pin, _) in zip(offsets, self.buffers, strict=True)
        ) and not any(self.clash(i, offsets[i], j, offsets[j]) for i in range(n) for j in range(i))

    def peak(self, offsets) -> int:
        return max(
            (
                int(o) + b[0]
                for i, (o, b) in enumerate(zip(offsets, self.buffers, strict=True))
                if self.alive(i)
            ),
            default=0,
        )

    def optimum(self, most: int) -> int | None:
        """The smallest peak up to ``most``, by trying every offset."""
        alive = [i for i in range(len(self.buffers)) if self.alive(i)]
        alive.sort(key=lambda i: (self.buffers[i][2] < 0, -self.buffers[i][0]))
        best = None
        chosen: dict[int, int] = {}

        def place(k: int, peak: int) -> None:
            nonlocal best
            limit = most if best is None else best - 1
            if peak > limit:
                return
            if k == len(alive):
                best = peak
                return
            i = alive[k]
            size, alignment, pin, _ = self.buffers[i]
            for at in [pin] if pin >= 0 else range(0, limit - size + 1, alignment):
                if not any(self.clash(i, at, j, other) for j, other in chosen.items()):
                    chosen[i] = at
                    place(k + 1, max(peak, at + size))
                    del chosen[i]

        place(0, 0)
        return best

    @property
    def native(self) -> _native.PackingProblem:
        return _native.PackingProblem(*self.arrays)

    def minimise(
        self, seed: int = 0, nodes: int = 200_000, threads: int = 1
    ) -> _native.ExactPacking:
        return self.native.minimise(nodes=nodes, seed=seed, threads=threads)

    def fit(
        self,
        capacity: int,
        rules: _native.SearchRules | None = None,
        seed: int = 0,
        nodes: int = 200_000,
        threads: int = 1,
    ):
        return self.native.fit(capacity, nodes=nodes, seed=seed, rules=rules, threads=threads)


def plain(rows) -> Problem:
    """Buffers (lower, upper, size)."""
    return Problem([(size, 1, -1, [(lower, upper, 0, size)]) for lower, upper, size in rows])


def cut(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Rectangles cut from one of 48 by 48, which fit exactly."""
    random = np.random.default_rng(seed)
    pieces = [(0, 48, 0, 48)]
    while len(pieces) < count:
        left, right, low, high = pieces.pop(
            max(
                range(len(pieces)),
                key=lambda i: (pieces[i][1] - pieces[i][0]) * (pieces[i][3] - pieces[i][2]),
            )
        )
        if right - left > high - low:
            at = int(random.integers(left + 1, right))
            pieces += [(left, at, low, high), (at, right, low, high)]
        else:
            at = int(random.integers(low + 1, high))
            pieces += [(left, right, low, at), (left, right, at, high)]
    return [(left, right, high - low) for left, right, low, high in pieces]


@st.composite
def sections(draw, size: int, windows: bool):
    cuts = sorted(
        draw(st.lists(st.integers(0, 8), min_size=2, max_size=6 if draw(st.booleans()) else 2))
    )
    mine = []
    for begin, end in itertools.pairwise(cuts):
        if len(mine) and draw(st.booleans()):
            continue
        low, high = 0, size
        if windows and draw(st.booleans()):
            low = draw(st.integers(0, size))
            high = draw(st.integers(low, size))
        mine.append((begin, end, low, high))
    return mine


@st.composite
def problems(draw, windows: bool = False, most: int = 6):
    pins = draw(st.sampled_from([0, 0, 1, 2]))
    buffers = []
    for index in range(draw(st.integers(1, most))):
        size = draw(st.integers(1, 6))
        alignment = draw(st.sampled_from([1, 1, 2, 3, 4, 8]))
        pin = draw(st.integers(0, 8)) if index < pins else -1
        buffers.append((size, 1 if pin >= 0 else alignment, pin, draw(sections(size, windows))))
    return Problem(buffers)


@given(problems(), st.integers(0, 20), st.sampled_from(RULES))
@fuzz(300)
def test_fit_agrees_with_brute_force_with_any_rule_off(
    problem: Problem, capacity: int, rule: str
) -> None:
    fits = problem.optimum(capacity) is not None
    none = dict.fromkeys(RULES, False)
    for switched in ({}, {rule: False}, none | {rule: True}, none):
        found = problem.fit(capacity, _native.SearchRules(**switched))
        assert found.status == ("feasible" if fits else "infeasible"), switched
        if fits:
            assert problem.valid(found.offsets)
            assert found.peak == problem.peak(found.offsets) <= capacity


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "slot_reduction"])
def test_every_rule_changes_how_many_nodes_a_search_takes(rule: str) -> None:
    """A switch that did nothing would pass every comparison with brute force. Fewer slots save
    time, but no nodes."""
    problem = plain(cut(34, 14)).native
    found, without = (
        problem.minimise(nodes=3000, rules=_native.SearchRules(**switched))
        for switched in ({}, {rule: False})
    )
    assert found.status == "optimal"
    assert without.nodes != found.nodes


@given(problems(windows=True, most=8), st.booleans(), st.randoms())
@fuzz(200)
def test_any_order_gives_a_valid_packing(problem: Problem, best_fit: bool, random) -> None:
    order = list(range(len(problem.buffers)))
    random.shuffle(order)
    pinned = [i for i, b in enumerate(problem.buffers) if b[2] >= 0]
    if any(
        problem.clash(i, problem.buffers[i][2], j, problem.buffers[j][2])
        for i in pinned
        for j in pinned
        if j < i
    ):
        with pytest.raises(ValueError, match="overlap"):
            problem.native.place_in_order(ints(order), best_fit)
        return
    placed = problem.native.place_in_order(ints(order), best_fit)
    assert problem.valid(placed.offsets)
    assert placed.peak == problem.peak(placed.offsets)


rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.integers(0, 9)), max_size=30)


def test_nothing_at_all() -> None:
    nothing = plain([])
    assert nothing.minimise().status == "optimal"
    assert nothing.fit(0).status == "feasible"
    assert nothing.native.load_bound().bytes == 0
    assert _native.allocate_small(NONE, NONE, NONE)[1:] == (0, 0)
    found = plain([(3, 3, 5), (0, 4, 0)]).minimise()
    assert (found.peak, found.bound) == (0, 0)


def test_sizes_near_two_to_the_62() -> None:
    half = 2**61
    assert plain([(0, 2, half), (1, 3, half)]).minimise().peak == 2**62
    with pytest.raises(OverflowError, match="2\\^62"):
        plain([(0, 2, half), (1, 3, half + 1)]).minimise()
    with pytest.raises(OverflowError, match="2\\^62"):
        _native.allocate_small(ints([0, 1]), ints([2, 3]), ints([2**62, 1]))


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
def test_malformed_arrays_are_refused(which: int, value: int, match: str) -> None:
    problem = plain([(0, 2, 4), (1, 3, 5)])
    problem.arrays[which][0] = value
    with pytest.raises(ValueError, match=match):
        problem.minimise()


@given(rows, st.data())
@fuzz(200)
def test_the_quick_check_of_packings_finds_every_overlap(triples, data) -> None:
    table = [(lower, lower + length, size) for lower, length, size in triples][:8]
    lower, upper, size = (ints(row[k] for row in table) for k in range(3))
    offsets = ints(
        data.draw(st.lists(st.integers(0, 20), min_size=len(table), max_size=len(table)))
    )
    top = max((offsets + size)[(size > 0) & (lower < upper)].tolist(), default=0)
    assert _native.packing_holds(lower, upper, size, offsets, top) == plain(table).valid(offsets)
    assert not _native.packing_holds(lower, upper, size, offsets, top + 1)


def assert_same(one: _native.ExactPacking, other: _native.ExactPacking) -> None:
    assert np.array_equal(one.offsets, other.offsets)
    assert (one.status, one.peak, one.bound, one.nodes) == (
        other.status,
        other.peak,
        other.bound,
        other.nodes,
    )


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_do_not_change_the_answer(threads: int) -> None:
    random = np.random.default_rng(3)
    lower = random.integers(0, 60, 120)
    problem = plain(
        zip(
            lower.tolist(),
            (lower + random.integers(5, 50, 120)).tolist(),
            random.integers(1, 90, 120).tolist(),
            strict=True,
        )
    )
    one = problem.minimise(seed=5, nodes=60_000)
    assert_same(one, problem.minimise(seed=5, nodes=60_000, threads=threads))
    below = one.peak - 1
    assert_same(
        problem.fit(below, seed=5, nodes=60_000),
        problem.fit(below, seed=5, nodes=60_000, threads=threads),
    )


def apart(size, alignment, pairs) -> _native.PackingProblem:
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
def test_neighbours_are_apart_and_each_lies_at_its_lowest_place(rows, data) -> None:
    count = len(rows)
    pairs = {(i, j) for j in range(count) for i in range(j) if data.draw(st.booleans())}
    order = data.draw(st.permutations(range(count)))
    size, alignment = ints(row[0] for row in rows), ints(row[1] for row in rows)
    found = apart(size, alignment, pairs).place_in_order(ints(order))
    placed: dict[int, int] = {}
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


def test_pairs_of_buffers_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="pair: names a buffer that does not exist"):
        apart(ints([1]), ints([1]), [(0, 4)])
    with pytest.raises(ValueError, match="rows: of another width"):
        apart(ints([1]), ints([1]), [(0, 0, 0)])

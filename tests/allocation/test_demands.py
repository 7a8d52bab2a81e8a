"""What users may ask for beyond lifetimes: aliases, in-place pairs, reserved ranges, gaps,
conflicts without a clock."""

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import buffers_of, lived
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.allocation.native import lower_bound
from loadmaster.allocation.peaks import peaks
from loadmaster.allocation.problem import Load
from loadmaster.allocation.rules import conflicts_of_order, problem_of
from loadmaster.allocation.verify import broken_rules
from loadmaster.core.errors import AllocationError

THREE = buffers_of("a 0 4 10, b 2 6 10, c 5 9 10")


@given(st.integers(2, 6), st.data())
@fuzz(50)
def test_buffers_without_a_common_clock_are_apart_unless_ordered(count, data):
    every = list(itertools.combinations(range(count), 2))
    pairs = [pair for pair in every if data.draw(st.booleans())]
    later = {}
    for first in reversed(range(count)):
        after = [j for i, j in pairs if i == first]
        later[first] = set(after).union(*map(later.get, after))
    apart = [[i, j] for i, j in every if j not in later[i]]
    assert conflicts_of_order(count, pairs).tolist() == apart


@pytest.mark.parametrize(
    ("count", "before", "message"),
    [
        (3, [(0, 1), (1, 2), (2, 0)], "buffer 0 would be dead before it is born"),
        (3, [(0, -1)], r"\(0, -1\) names a buffer that is not there: there are 3"),
        (3, [(0, 3)], r"\(0, 3\) names a buffer that is not there"),
        (3, [(0.5, 1)], "before is 0.5: write a whole number"),
        (3, [(0, 1, 2, 0)], "give pairs of whole numbers"),
        (3, [None], "give pairs of whole numbers"),
        (-1, [], "count is -1"),
    ],
)
def test_an_order_that_is_none_is_refused(count, before, message):
    with pytest.raises(AllocationError, match=message):
        conflicts_of_order(count, before)


def test_buffers_without_a_common_clock_need_no_lifetimes():
    zeros, size = np.zeros(3, dtype=np.int64), np.array([8, 8, 4])
    problem = problem_of((zeros, zeros, size), conflicts=[(0, 1), (0, 2)])
    answer = lm.allocate(problem)
    assert (answer.peak, answer.status) == (16, "optimal")
    assert [rule for rule, _ in broken_rules(problem, zeros)] == ["overlap", "overlap"]
    assert lm.allocate(problem, 15).status == "infeasible"


def test_alignment_applies_to_all_and_is_named_as_the_reason():
    buffers = buffers_of("a 0 4 5, b 0 4 5")
    answer = lm.allocate(buffers, 12, alignment=8)
    assert answer.status == "infeasible"
    assert (answer.certificate.kind, answer.certificate.required) == ("alignment", 13)
    assert lm.allocate(buffers, alignment=8).peak == 13


def test_load_names_the_instant_and_no_more_buffers_than_it_takes():
    buffers = buffers_of("small 0 9 1, big 2 5 60, other 4 9 50")
    answer = lm.allocate(buffers, 100)
    reason = answer.certificate
    assert (reason.kind, reason.instant, reason.required, reason.buffers) == (
        "load",
        4,
        110,
        ("big", "other"),
    ), "the bytes of those that are named"
    assert answer.lower_bound == 111, "the bytes of all"


def test_a_hint_is_a_start_and_binds_nobody():
    buffers = buffers_of("a 0 4 5 hint=100, b 0 4 5 hint=0")
    assert lm.allocate(buffers).peak == 10


@pytest.mark.parametrize(
    ("buffers", "words"),
    [
        ([lm.Buffer("x", 0, 1, 1.5)], "size is 1.5: write a whole number"),
        ([lm.Buffer("x", 0, 1, float("nan"))], "size is nan"),
        ([lm.Buffer("x", 0, 4, 8, gaps=((1, 2),))], r"a gap of buffer 'x' is \(1, 2\)"),
        ((np.array([0]), np.array([1]), np.array([1.0])), "size is 1.0: write a whole number"),
        ((np.array([0]), np.array([1, 2]), np.array([1])), "'upper' has 2 entries"),
        ("nonsense", "buffers is .nonsense., of type str: give a list or a mapping"),
        (np.array(5), "give Buffer records"),
        *(
            (buffers_of(text), words)
            for text, words in cases(r"""
            x 0 1 1, x 0 1 1 | 'x': id is taken already
            x 0 1 4611686018427387904 | 2\^62
            x 0 1 1180591620717411303424 | 2\^62
            x 0 1 2305843009213693952, y 0 1 2305843009213693952 | add up to
            x 5 1 1 | 'x': upper is 1, before lower
            x -1 1 1 | 'x': lower is -1
            x 0 1 -1 | 'x': size is -1
            x 0 1 1 alignment=0 | 'x': alignment is 0
            x 0 1 1 alignment=4 offset=2 | 'x': offset is 2, not a multiple
            x 0 1 1 offset=-5 | 'x': offset is -5
            x 0 2 4 offset=0, y 1 2 4 offset=3 | 'y': offset is 3, and buffer 'x' is pinned to 0
            x 2 6 1 gaps=1-3 | 'x': gaps has 1-3, which is not within its lifetime 2-6
            x 2 6 1 gaps=3-5+4-6 | overlaps the gap before
            x 2 6 4 gaps=3-5@2:8 | not within its 4 bytes
            """)
        ),
    ],
)
def test_malformed_problems_are_refused_by_name(buffers, words):
    with pytest.raises(AllocationError, match=words):
        lm.allocate(buffers)


def test_nothing_and_what_takes_no_space_need_no_bytes():
    assert lm.allocate([]).peak == 0
    assert lm.allocate(([], [], [])).status == "optimal"
    answer = lm.allocate(buffers_of("empty 3 3 50, nothing 0 9 0, pinned 4 4 9 offset=64"), 0)
    assert (answer.status, answer.peak) == ("optimal", 0)
    assert answer.offsets.tolist() == [0, 0, 64]


def test_sizes_near_the_limit_are_exact():
    big = 2**60
    answer = lm.allocate([lm.Buffer("x", 0, 2, big), lm.Buffer("y", 1, 3, big + 1)])
    assert (answer.status, answer.peak) == ("optimal", 2 * big + 1)


def test_a_time_limit_is_not_waited_for_once_exact_search_has_ended_without_a_proof():
    buffers = buffers_of(
        "a 0 2 7 gaps=0-1@2:7, b 2 7 5 gaps=2-4@1:5, c 1 6 8 gaps=1-3@7:8, d 2 7 6 gaps=2-5@1:6,"
        " e 0 4 7 gaps=0-2@4:7, f 3 7 4 gaps=3-6@1:4"
    )
    answer = lm.allocate(buffers, time_limit=10.0)
    assert (answer.status, answer.peak, answer.lower_bound, answer.interrupted) == (
        "feasible",
        28,
        27,
        False,
    )


def test_the_verifier_finds_an_alias_that_has_lost_its_distance():
    """Two parts of a concatenation are written one after the other, and read as a whole."""
    buffers = buffers_of("first 0 3 64, second 2 3 32, whole 3 5 96, other 0 2 32")
    problem = problem_of(buffers, aliases=((2, (0, 0), (1, 64)),))
    offsets = lm.allocate(problem).offsets.copy()
    assert offsets[:3].tolist() == [0, 64, 0]
    offsets[1] -= 1
    assert lm.verify_buffers(problem, offsets)[0].rule == "alias"


@pytest.mark.parametrize("far", [2**63 - 1, 2**63 - 8, 2**62])
def test_an_address_at_which_sums_would_overflow_does_not_hold(far):
    problem = problem_of(buffers_of("a 0 4 16, b 0 4 16"))
    (violation,) = lm.verify_buffers(problem, np.array([far, far]), 100)
    assert violation.message == f"buffer 'a' is at {far}, beyond 2^62"
    assert len(lm.verify_buffers(problem, np.array([2**62 - 1, 2**62 - 1]), 100)) == 3


def test_alignments_of_pairs_need_a_common_multiple():
    buffers = [lm.Buffer("a", 0, 2, 8, alignment=2**33), lm.Buffer("b", 0, 2, 8, alignment=3**20)]
    assert lm.allocate(buffers).status == "optimal"
    with pytest.raises(AllocationError, match=r"alignments have no common multiple below 2\^62"):
        lm.allocate(buffers, in_place=[(0, 1, 4)])


def test_pairs_that_are_not_linked_need_no_common_multiple():
    primes = (3, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79)
    buffers = [lm.Buffer(f"b{p}", i // 2, i // 2 + 1, p, alignment=p) for i, p in enumerate(primes)]
    pairs = [(i, i + 1, 0) for i in range(0, len(primes), 2)]
    assert lm.allocate(buffers, in_place=pairs).peak == 79


def test_an_alignment_for_all_is_one_of_a_groups_address_and_not_of_what_lies_within_it():
    buffers = buffers_of("a 0 4 40 alignment=16, b 0 4 8 alignment=16, c 0 4 3")
    offsets = lm.allocate(buffers[::2], alignment=64, aliases=((0, (1, 4)),)).offsets
    assert offsets.tolist() == [0, 4]
    with pytest.raises(
        AllocationError,
        match=r"no address suits the alignments of 'a', 'b', which lie at \[0, 24\]",
    ):
        lm.allocate(buffers, aliases=((0, (1, 24)),))


def test_pins_of_aliases_at_an_offset_agree():
    pinned = buffers_of("a 0 4 40, b 0 4 8 offset=48, c 0 4 16")
    assert lm.allocate(pinned, aliases=((0, (1, 32)),)).offsets.tolist() == [16, 48, 0]
    with pytest.raises(AllocationError, match="'a', 'b' would begin at -16"):
        lm.allocate(pinned, aliases=((0, (1, 64)),))
    odd = buffers_of("a 0 4 40 alignment=16, b 0 4 8 offset=50")
    with pytest.raises(AllocationError, match="'a' must share is pinned to 18, not a multiple of"):
        lm.allocate(odd, aliases=((0, (1, 32)),))
    met = buffers_of("a 0 3 4 offset=0, b 0 3 4, c 0 3 4 offset=4")
    with pytest.raises(AllocationError, match="'c' and buffer 'a' are pinned to addresses that"):
        lm.allocate(met, aliases=((0, (1, 4)),))
    with pytest.raises(AllocationError, match="'a' and a reserved range are pinned to addresses"):
        lm.allocate(met[:2], aliases=((0, (1, 4)),), reserved=((5, 6),))


class Whole:
    """A whole number of a library's own, such as SymPy's."""

    def __init__(self, value):
        self.value = value

    def __index__(self):
        return self.value


def test_whole_numbers_of_any_type_are_taken():
    n = Whole
    buffers = [
        lm.Buffer("a", n(0), n(4), n(8), alignment=n(4), offset=n(8)),
        lm.Buffer("b", n(2), n(4), n(8)),
    ]
    aliases = ((n(0), (n(1), n(8))),)
    answer = lm.allocate(buffers, n(64), alignment=n(2), aliases=aliases)
    assert answer.offsets.tolist() == [8, 16]
    assert lm.allocate(([n(0)], [n(1)], [n(5)]), reserved=((n(0), n(3)),)).peak == 8
    accessed = replace(buffers[1], accesses=n(2))
    assert lm.allocate_banks([accessed], [lm.Bank("sram", n(64), alignment=n(8))]).cost == 0
    with pytest.raises(AllocationError, match="offset is -3"):
        lm.allocate([lm.Buffer("a", 0, 1, 1, offset=n(-3))])
    with pytest.raises(AllocationError, match="capacity True"):
        lm.allocate(buffers[:1], True)


@pytest.mark.parametrize("strategy", ["auto", "greedy", "best-fit", "local-search"])
def test_what_is_absent_throughout_takes_no_space(strategy):
    buffers = buffers_of("absent 0 4 4 gaps=0-4, b 0 4 3, c 0 4 3")
    for capacity in (None, 2):
        answer = lm.allocate(buffers[:1], capacity, strategy=strategy)
        assert (answer.status, answer.peak) == ("optimal", 0)
        assert lm.verify_buffers(problem_of(buffers[:1]), answer.offsets, capacity) == ()
    with_pairs = lm.allocate(buffers, strategy=strategy, in_place=[(0, 1)])
    assert with_pairs.peak == 6


def test_a_range_at_the_end_of_the_capacity_does_not_raise_the_bound_of_what_is_not_found():
    buffers = buffers_of("a 0 2 2, b 1 4 3, c 3 5 5")
    answer = lm.allocate(buffers, 9, strategy="best-fit", reserved=((8, 20),))
    assert (answer.status, answer.lower_bound) == ("unknown", 8)
    assert lm.allocate(buffers, 9, reserved=((8, 20),)).peak == 8


def test_the_verifier_takes_problems_only():
    refused = pytest.raises(AllocationError, match=r"problem is .*: give a Problem, from")
    for buffers in (([0], [2], [8]), buffers_of("a 0 2 8"), None):
        with refused:
            lm.verify_buffers(buffers, [0])
        with refused:
            lm.verify_banks(buffers, ["sram"], [0], [lm.Bank("sram", 16)])


def test_the_verifier_takes_whole_numbers_only():
    problem = problem_of(buffers_of("a 0 2 8, b 0 2 8"))
    assert lm.verify_buffers(problem, [0, 8]) == ()
    refused = pytest.raises(AllocationError, match=r"offsets.*: give a")
    for offsets in ([0.5, 8.5], np.array([0.5, 8.5]), ["0", "8"], None, [[0, 8]]):
        with refused:
            lm.verify_buffers(problem, offsets)
        with refused:
            lm.verify_banks(problem, ["sram", "sram"], offsets, [lm.Bank("sram", 16)])


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 3), st.integers(0, 5)),
        min_size=2,
        max_size=7,
    )
)
@fuzz(150)
def test_the_verifier_finds_every_pair_that_overlaps_beside_an_alias(rows):
    lower, upper, size = lived([row[:3] for row in rows])
    offsets = np.array([row[3] for row in rows])
    offsets[1] = offsets[0]
    top = offsets + size
    wrong = {
        f"buffers '{i}' and '{j}' share bytes at instant {max(lower[i], lower[j])}"
        for i, j in itertools.combinations(range(len(rows)), 2)
        if j > 1
        and max(lower[i], lower[j]) < min(upper[i], upper[j])
        and max(offsets[i], offsets[j]) < min(top[i], top[j])
    }
    found = broken_rules(problem_of((lower, upper, size), aliases=[(0, 1)]), offsets)
    assert {message for rule, message in found if rule == "overlap"} == wrong


@pytest.mark.parametrize(
    "demands",
    [
        {"reserved": ((0, 64),)},
        {"aliases": ((0, 1, 2),)},
        {"in_place": [(0, 1), (1, 2)]},
        {"conflicts": [(0, 1), (0, 2), (1, 2)]},
    ],
)
def test_demands_hold_for_buffers_that_were_read_as_for_those_that_were_listed(demands):
    both = THREE, problem_of(THREE)
    listed, read = (lm.allocate(buffers, **demands) for buffers in both)
    assert read.peak == listed.peak != 20
    assert read.offsets.tolist() == listed.offsets.tolist()
    if "reserved" not in demands:
        banks = [lm.Bank("m", 100)]
        listed, read = (lm.allocate_banks(buffers, banks, **demands) for buffers in both)
        assert read.offsets.tolist() == listed.offsets.tolist()
    with pytest.raises(AllocationError, match="buffer 9 of an alias group or a pair"):
        lm.allocate(both[1], in_place=[(0, 9)])


@pytest.mark.parametrize("demand", ["alignment", "pins", "reserved ranges"])
def test_the_demand_that_is_named_is_the_one_in_the_way(demand):
    """Random small sets with aliases and in-place pairs, also where a merged group has it."""
    generator, named = np.random.default_rng(0), 0
    for _ in range(400):
        count, capacity = generator.integers((2, 4), (5, 14)).tolist()
        lower, size = generator.integers(0, 3, count), generator.integers(1, 6, count)
        plain = {"lower": lower, "upper": lower + generator.integers(1, 4, count), "size": size}
        offsets = np.where(generator.random(count) < 0.4, generator.integers(0, 9, count), -1)
        more = {
            "alignment": {"alignment": generator.integers(1, 7, count)},
            "pins": {"pin": offsets},
        }
        pair = {"aliases": ((0, (1, 2)),)} if offsets[0] < 2 else {"in_place": [(0, 1, 0)]}
        reserved = ((3, 6),) if demand == "reserved ranges" else ()
        try:
            wanted = problem_of(plain | more.get(demand, {}), reserved=reserved, **pair)
            answer = lm.allocate(wanted, capacity)
        except AllocationError:
            continue
        if answer.status == "infeasible":
            fits = lm.allocate(problem_of(plain, **pair), capacity).offsets is not None
            assert answer.certificate.kind == demand or not fits, plain
            named += fits
    assert named > 20, "demands are often what is in the way"


def test_a_proof_by_load_names_all_that_takes_the_bytes_and_nothing_else():
    """The bytes of those named that are alive at the instant, and of reserved ranges named, are the
    bytes claimed."""
    generator, ranges, groups = np.random.default_rng(1), 0, 0
    for _ in range(300):
        count = int(generator.integers(1, 5))
        buffers = lived(generator.integers((0, 1, 1), (3, 4, 6), (count, 3)))
        lower, upper, size = buffers
        low = int(generator.integers(0, 4))
        reserved = ((low, low + 3),) if generator.random() < 0.5 else ()
        aliases = ((0, 1),) if count > 1 and generator.random() < 0.5 else ()
        answer = lm.allocate(buffers, reserved=reserved, aliases=aliases)
        proof = answer.certificate
        if not isinstance(proof, Load) or proof.instant is None:
            continue
        named = [int(name) for name in proof.buffers if not name.startswith("(")]
        taken = {i: size[i] for i in named if lower[i] <= proof.instant < upper[i]}
        assert len(taken) == len(named)
        if aliases and {0, 1} <= set(taken):
            taken[0] = max(taken[0], taken.pop(1))
        held = 3 * (len(proof.buffers) - len(named))
        assert sum(taken.values()) + held == proof.bytes, (buffers, reserved, aliases, proof)
        ranges += held > 0
        groups += bool(aliases)
    assert min(ranges, groups) > 10


# The fullest sets of buffers that are alive together.


def test_peaks_are_the_maximal_sets_the_fullest_first():
    for seed in range(200):
        rng = random.Random(seed)
        rows = [
            (rng.randint(0, 8), rng.randint(1, 5), rng.randint(1, 50))
            for _ in range(rng.randint(1, 9))
        ]
        lower, upper, size = lived(rows)
        found = peaks(problem_of((lower, upper, size)), np.arange(len(rows)), 99)
        alive = [set(np.flatnonzero((lower <= at) & (at < upper)).tolist()) for at in range(15)]
        maximal = {frozenset(one) for one in alive if one and not any(one < two for two in alive)}
        assert {frozenset(each.buffers) for each in found} == maximal
        assert len(found) == len(maximal)
        bytes_ = [size[list(each.buffers)].sum() for each in found]
        assert [each.bytes for each in found] == sorted(bytes_, reverse=True) == bytes_
        sizes = size[list(found[0].buffers)].tolist()
        assert sizes == sorted(sizes, reverse=True)


# In-place pairs by the hundred, as networks have them.


NARROW = [((1,), 24, False), ((1,), 24, True), ((1,), 24, True)]
BLOCK = [
    *NARROW,
    *NARROW,
    ((1,), 96, False),
    ((1,), 96, True),
    ((1, 9), 96, True),
    ((1,), 96, True),
]
"""Three convolutions with normalisation and activation, and a sum with what came in: how far back
the operands are of what each step makes, its bytes, and whether it works in place."""


def residual(blocks):
    """Columns of the buffers of so many blocks, and pairs that may share."""
    steps = [((), 96, False), *BLOCK * blocks]
    dead = [now + 1 for now in range(len(steps))]
    pairs = []
    for now, (back, bytes_, in_place) in enumerate(steps):
        for source in (now - distance for distance in back):
            dead[source] = now + 1
            if in_place and steps[source][1] == bytes_:
                pairs.append((source, now))
    ended = [(one, other) for one, other in pairs if dead[one] == other + 1]
    return (list(range(len(steps))), dead, [bytes_ for _, bytes_, _ in steps]), ended


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

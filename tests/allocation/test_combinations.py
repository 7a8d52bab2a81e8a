"""Every combination of demands: honoured, checked, and optimal as brute force says."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, event, example, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import (
    among,
    answer_holds,
    attempt,
    buffers_of,
    combined,
    every_offset,
    orderly,
    records,
    rectangles,
    rivals,
)

import loadmaster as lm
from loadmaster.allocation.buffers_csv import format_buffers, parse_buffers
from loadmaster.allocation.strategies.registry import STRATEGIES
from loadmaster.core.effort import Effort

MOST = 40


def claims_less(buffers, wanted):
    """Where windows or shifts leave low bytes free, an exhausted search proves nothing; without a
    clock there are no windows."""
    shifted = any(
        shift
        for row in (*sum(wanted.get("aliases", ()), ()), *wanted.get("in_place", ()))
        for shift in row[-1:]
    )
    return shifted or (not orderly(buffers) and "conflicts" not in wanted)


def named(buffers, wanted, reason):
    """The buffers that a reason names, under the demands that concern them, and the ranges that it
    names."""
    groups = {
        "+".join(buffers[i].id for i, _ in group): group for group in wanted.get("aliases", ())
    }
    index = {buffer.id: ((i, 0),) for i, buffer in enumerate(buffers)}
    ranges = [
        name[len("(reserved ") : -1].split("-") for name in reason.buffers if name.startswith("(")
    ]
    blocks = [
        groups.get(name) or index[name] for name in reason.buffers if not name.startswith("(")
    ]
    members = sorted(i for block in blocks for i, _ in block)
    found = among(members, **{kind: wanted[kind] for kind in {*wanted} - {"reserved"}})
    found["reserved"] = tuple((int(low), int(high)) for low, high in ranges)
    if reason.instant is not None:
        assert all(
            any(cell[0] == reason.instant for i, _ in block for cell in rectangles(buffers[i]))
            for block in blocks
        )
    return [buffers[i] for i in members], found


# A third buffer shares with both of two that are apart at one address.
@example(
    (
        buffers_of("a 0 3 1, b 0 3 1, c 0 3 9, d 0 3 9 gaps=0-3@5:9"),
        {"in_place": [(0, 2, 0), (3, 2, 0)]},
    )
)
# A group leaves free what none of it occupies.
@example((buffers_of("low 0 3 1, c 0 3 4, d 0 3 9 gaps=0-3@5:9"), {"aliases": (((0, 0), (2, 0)),)}))
# A range may lie where a buffer never is.
@example((buffers_of("d 0 3 12 gaps=0-3@0:3, b 0 1 2"), {"reserved": ((11, 15),)}))
@given(combined(5))
@fuzz(150)
@pytest.mark.slow
def test_auto_honours_every_combination_and_proves_the_optimum(case):
    buffers, wanted = case
    answer, refusal = attempt(lm.allocate, buffers, **wanted)
    best = every_offset(buffers, MOST if answer is None else answer.peak, **wanted)
    if answer is None:
        assert (
            "pinned" in refusal
            or "touches the reserved range" in refusal
            or "no address suits" in refusal
        )
        assert best is None
        return
    assert best is not None
    event(f"demands: {sorted(wanted)}")
    answer_holds(buffers, answer, **wanted)
    assert answer.lower_bound <= best <= answer.peak
    if not claims_less(buffers, wanted):
        assert (answer.status, answer.peak) == ("optimal", best)


@given(combined(5), st.integers(0, 20))
@fuzz(100)
def test_fit_is_decided_under_every_combination(case, capacity):
    buffers, wanted = case
    best = every_offset(buffers, MOST, **wanted)
    assume(best is not None)
    answer = lm.allocate(buffers, capacity, **wanted)
    answer_holds(buffers, answer, **wanted)
    if answer.offsets is not None:
        assert best <= capacity
    elif answer.status == "infeasible":
        assert best > capacity
        assert answer.certificate.available == capacity < answer.certificate.required <= best
        is_true(answer.certificate, *named(buffers, wanted, answer.certificate))
    else:
        assert claims_less(buffers, wanted)


def is_true(reason, buffers, wanted):
    """Those named do not fit, and do without what the kind names."""
    assert every_offset(buffers, reason.available, **wanted) is None
    if reason.kind in ("load", "fragmentation"):
        return
    kinds = reason.kind.split(" and ")
    assert not set(kinds) - {"pins", "alignment", "reserved ranges"}
    looser = [
        replace(
            b,
            offset=None if "pins" in kinds else b.offset,
            alignment=1 if "alignment" in kinds else b.alignment,
        )
        for b in buffers
    ]
    if "reserved ranges" in kinds:
        assert wanted.pop("reserved")
    assert every_offset(looser, reason.available, **wanted) is not None


@pytest.mark.parametrize("name", [name for name in STRATEGIES.names if name != "cp-sat"])
@given(combined(5))
@fuzz(30)
def test_every_strategy_honours_a_combination_or_refuses_it_by_name(name, case):
    buffers, wanted = case
    answer, refusal = attempt(lm.allocate, buffers, strategy=name, **wanted)
    if answer is None:
        assert f"strategy {name!r} cannot honour" in refusal or any(
            words in refusal
            for words in ("pinned", "touches the reserved range", "no address suits")
        )
    else:
        answer_holds(buffers, answer, **wanted)


@pytest.mark.parametrize(
    ("buffers", "wanted"),
    [
        (
            "a 1 4 183 gaps=2-4@147:174, b 0 3 190 alignment=4, c 2 4 160, d 3 5 53, e 4 6 66",
            {"in_place": [(3, 4, 0)]},
        ),
        (
            "a 3 7 5 gaps=5-6@3:5, b 2 7 2 alignment=4, c 5 7 3, d 0 5 2 alignment=4,"
            " e 4 8 2 alignment=4",
            {"aliases": (((2, 3), (3, 1)),), "in_place": [(4, 3, 0)]},
        ),
    ],
    ids=["apart", "alias"],
)
def test_auto_is_no_worse_than_simple_strategies_where_exact_search_proves_nothing(buffers, wanted):
    auto, *others = (
        lm.allocate(buffers_of(buffers), strategy=name, **wanted).peak
        for name in ("auto", "best-fit", "exact", "greedy", "local-search", "telamalloc")
    )
    assert auto == min(others)


def test_pairs_that_are_pinned_to_one_address_share_it():
    buffers = buffers_of("a 0 4 4 offset=0, b 3 8 6 offset=0, c 0 8 4")
    answer = lm.allocate(buffers, in_place=[(0, 1)])
    assert (answer.status, answer.peak) == ("optimal", 10)
    with pytest.raises(lm.AllocationError, match="pinned to 0: they overlap at instant 3"):
        lm.allocate(buffers)
    with pytest.raises(lm.AllocationError, match="pinned to 0: they overlap: move one"):
        lm.allocate(buffers, conflicts=[(0, 1)])


@pytest.mark.slow
def test_thousands_of_conflicting_buffers_are_packed():
    random = np.random.default_rng(0)
    lower = np.concatenate([np.arange(500), np.arange(500)])
    core = np.repeat([0, 1], 500)
    upper = lower + random.integers(1, 20, 1000)
    size = random.integers(1, 100, 1000)
    one, other = np.triu_indices(1000, 1)
    together = (lower[one] < upper[other]) & (lower[other] < upper[one])
    conflicts = np.column_stack([one, other])[together | (core[one] != core[other])]
    answer = lm.allocate((lower, upper, size), conflicts=conflicts)
    assert answer.lower_bound <= answer.peak <= 1.2 * answer.lower_bound


@pytest.mark.slow
def test_search_over_thousands_of_scattered_conflicts_stays_short():
    """Conflicts become many lifetimes of one instant, over which each node takes long."""
    random = np.random.default_rng(0)
    conflicts = random.integers(0, 2100, (21_000, 2))
    zeros = np.zeros(2100, dtype=np.int64)
    answer = lm.allocate((zeros, zeros + 1, random.integers(1, 1000, 2100)), conflicts=conflicts)
    assert answer.counters["nodes"] < 20_000


# An independent solver, and hostile files.


@rivals
@example((buffers_of("a 0 9 4, b 0 9 4, c 5 12 8, d 2 5 3 offset=8"), {"in_place": [(0, 1)]}))
@example(
    (
        buffers_of(
            "a 4 9 3, b 4 8 2 alignment=4, c 0 4 5 alignment=4, d 1 3 8 alignment=4, e 6 11 8"
        ),
        {"capacity": 13},
    )
)
@example(
    (
        buffers_of("a 3 7 1, b 2 8 2, c 3 9 3, d 0 6 9, e 7 12 9"),
        {"in_place": [(2, 4), (1, 3)], "capacity": 13},
    )
)
@given(combined(12))
@fuzz(25)
def test_cp_sat_agrees_under_every_combination(case):
    buffers, wanted = case
    mine, theirs = (
        attempt(lm.allocate, buffers, strategy=name, **wanted)[0] for name in ("auto", "cp-sat")
    )
    assert (mine is None) == (theirs is None)
    if mine is None or theirs is None:
        return
    if "infeasible" in (mine.status, theirs.status):
        assert mine.status == theirs.status
        return
    assert mine.lower_bound <= theirs.peak
    assert theirs.lower_bound <= mine.peak
    if mine.status == theirs.status == "optimal":
        assert mine.peak == theirs.peak


@given(records(), st.data())
@fuzz(60)
def test_a_file_that_is_cut_off_or_spoilt_is_read_or_refused(buffers, data):
    text = format_buffers(lm.problem_of(buffers)) if buffers else "id,lower,upper,size\n"
    at = data.draw(st.integers(0, len(text)))
    hostile = ["", "nan", "inf", "-1", "1e9", '"', ",", "\n", "\x00", "id,", "0-5@9:1", "\u0664"]
    hostile += [":", "1_0", *map(str, (2**62, 2**63, 10**400))]
    rest = text[at + data.draw(st.integers(0, len(text))) :]
    spoilt = text[:at] + data.draw(st.sampled_from(hostile)) + rest
    problem, refusal = attempt(parse_buffers, spoilt, "f.csv")
    if problem is not None:
        lm.allocate(problem, time_limit=1.0)
        return
    assert refusal.startswith("f.csv") or "buffers: the sizes" in refusal
    assert len(refusal) < 1000


@given(st.binary(max_size=60))
@fuzz(50)
def test_any_bytes_in_a_file_are_read_or_refused(tmp_path_factory, content):
    file = tmp_path_factory.getbasetemp() / "any.csv"
    file.write_bytes(b"id,lower,upper,size\n" + content)
    problem, refusal = attempt(lm.read_buffers, file)
    assert problem is not None or "any.csv" in refusal or "buffers: the sizes" in refusal


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"conflicts": [(0, 1, 1)]}, "conflicts: give pairs"),
        ({"conflicts": [(0, 9)]}, "buffer 9 of an alias group or a pair does not exist"),
        ({"conflicts": [(0, 0.5)]}, "conflicts is 0.5"),
        ({"in_place": [(0, "a")]}, "in_place"),
        ({"aliases": ((0, 7),)}, "buffer 7 of an alias group"),
        ({"aliases": ((0, "x"),)}, "aliases is 'x'"),
        ({"aliases": 3}, "aliases"),
        ({"reserved": ((9, 3),)}, "reserved range 9-3"),
        ({"reserved": ((0, 2**63),)}, "reserved is 9223372036854775808"),
        ({"reserved": ((0, "x"),)}, "reserved"),
        ({"reserved": 5}, "reserved"),
        ({"colour": 5}, "colour"),
    ],
)
def test_malformed_demands_are_refused_by_name(wanted, words):
    with pytest.raises(lm.AllocationError, match=words):
        lm.allocate(buffers_of("a 0 4 4, b 0 4 4"), **wanted)


@pytest.mark.slow
def test_pairs_by_the_ten_thousand_leave_time_to_pack():
    """Their groups and their load once took time with the square of their number."""
    count, rng = 60_000, np.random.default_rng(0)
    lower = np.sort(rng.integers(0, 2 * count, count))
    buffers = (lower, lower + rng.integers(1, 40, count), rng.integers(1, 2**16, count))
    first = np.flatnonzero(rng.random(count - 1) < 0.2)
    pairs = [(one, one + 1) for one in first.tolist()]
    answer = lm.allocate(buffers, in_place=pairs, effort=Effort.TEST)
    assert answer.peak <= 1.02 * answer.lower_bound


@pytest.mark.slow
def test_identical_buffers_by_the_hundred_thousand_are_stacked():
    count = 100_000
    answer = lm.allocate((np.zeros(count, dtype=np.int64), np.full(count, 5), np.full(count, 3)))
    assert (answer.status, answer.peak) == ("optimal", 3 * count)

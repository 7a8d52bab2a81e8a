"""Problems whose optimum is above the load, against an independent solver and under changes that
change nothing; hostile files."""

import importlib.util

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.problems import attempt, buffers_of, combined, records

import loadmaster as lm
from loadmaster.allocation.buffers_csv import format_buffers, parse_buffers
from loadmaster.allocation.rules import problem_of
from loadmaster.core.errors import AllocationError

rivals = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="OR-Tools is not installed"
)


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
    text = format_buffers(problem_of(buffers)) if buffers else "id,lower,upper,size\n"
    at = data.draw(st.integers(0, len(text)))
    hostile = [
        "",
        "nan",
        "inf",
        "-1",
        "1e9",
        str(2**62),
        str(2**63),
        "9" * 400,
        '"',
        ",",
        "\n",
        "\x00",
        "id,",
        "0-5@9:1",
        "\u0664",
        ":",
        "1_0",
    ]
    spoilt = (
        text[:at]
        + data.draw(st.sampled_from(hostile))
        + text[at + data.draw(st.integers(0, len(text))) :]
    )
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
    with pytest.raises(AllocationError, match=words):
        lm.allocate(buffers_of("a 0 4 4, b 0 4 4"), **wanted)


def test_identical_buffers_by_the_hundred_thousand_are_stacked():
    count = 100_000
    answer = lm.allocate((np.zeros(count, dtype=np.int64), np.full(count, 5), np.full(count, 3)))
    assert (answer.status, answer.peak) == ("optimal", 3 * count)

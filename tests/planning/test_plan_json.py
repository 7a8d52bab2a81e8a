"""Plan files: what is written is read back, and whatever else is read is refused in one line."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import spoilt
from tests.support.hand_plan import copying_plan, long_plan, shared_plan, tensor
from tests.support.tables import cases

from loadmaster.core.errors import OutputError, PlanError
from loadmaster.planning.plan import Plan, plan_from_text, plan_to_text
from loadmaster.planning.plan_records import Cost, Rate

PLANS = {"shared": shared_plan(), "copying": copying_plan(), "long": long_plan(5)}
TEXT = plan_to_text(PLANS["shared"])


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_plan_is_read_back_as_it_was(plan, tmp_path):
    path = plan.save(tmp_path / "plan.json")
    assert path == tmp_path / "plan.json"
    back = Plan.load(path)
    assert back == plan
    assert type(back.target.cores[0].style) is type(plan.target.cores[0].style)
    assert back.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["again.json", "plan.json"]


@given(
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), max_size=3),
    number=st.floats(0, allow_infinity=False),
)
def test_any_text_and_any_number_survive(names, number):
    plan = PLANS["shared"]
    metrics = replace(
        plan.metrics,
        utilisation={name: Rate(number, number) for name in names},
        makespan=Cost(number, 0.5),
    )
    plan = replace(
        plan,
        notes=tuple(names),
        metrics=metrics,
        tensors=tuple(replace(tensor("net/t@0", 2**63 - 1), name=name) for name in names if name),
    )
    text = plan_to_text(plan)
    assert plan_from_text(text, "plan.json") == plan
    assert plan_to_text(plan_from_text(text, "plan.json")) == text


def test_equal_plans_give_equal_bytes_whatever_kinds_of_number_they_hold():
    plan = PLANS["shared"]
    metrics = replace(plan.metrics, makespan=Cost(np.float64(1), 0))
    assert plan_to_text(replace(plan, seed=np.int64(7), metrics=metrics)) == plan_to_text(
        replace(plan, seed=7, metrics=replace(metrics, makespan=Cost(1.0, 0.0)))
    )


def test_records_have_lines_of_their_own():
    lines = TEXT.splitlines()
    assert lines[1] == ' "version":9,'
    assert (
        '  {"tensor":"net/w","memory":"dram","offset":4096,"bytes":1024,"start":0.0,"end":0.00004},'
        in lines
    )
    assert sum('"from":' in line and '"to":' in line for line in lines) == len(
        PLANS["shared"].transfers
    )
    assert sum(line.startswith('  {"name":"net/conv@') for line in lines) == 2


def test_writing_fails_in_one_line(tmp_path):
    path = tmp_path / "missing" / "plan.json"
    with pytest.raises(OutputError, match=re.escape(f"{path}: the plan cannot be written: ")):
        PLANS["shared"].save(path)


def test_what_json_cannot_say_is_not_written(tmp_path):
    plan = PLANS["shared"]
    with pytest.raises(OutputError, match="cannot be written"):
        replace(plan, metrics=replace(plan.metrics, makespan=Cost(float("nan"), 0.0))).save(
            tmp_path / "plan.json"
        )
    with pytest.raises(OutputError, match="cannot be written"):
        replace(plan, notes=("\ud800",)).save(tmp_path / "plan.json")
    assert not list(tmp_path.iterdir())


def _edited(old, new):
    """The text with something else in it, both as people write JSON."""
    old = old.replace(": ", ":").replace(", ", ",")
    assert old in TEXT
    return TEXT.replace(old, new, 1)


EDITS = cases(r"""
    other version | "version": 9 | "version": 2 | \
        version: the file has version 2, this program reads version 9
    version of the wrong type | "version": 9 | "version": "1" | \
        version: input should be a valid integer
    missing version |  "version": 9,\n |  | version: field required
    unknown field | "seed": 7 | "seed": 7, "sead": 8 | sead: unexpected keyword argument
    unknown field of a record | "is_output": false | "is_output": false, "x": 0 | \
        tensors\.0\.x: unexpected
    missing field | "compute": 2e-6,  |  | jobs\.0\.compute: field required
    text for a number | "start": 0.0 | "start": "0.0" | \
        jobs\.0\.start: input should be a valid number
    number for text | "core": "a" | "core": 1 | jobs\.0\.core: input should be a valid string
    number for truth | "is_output": false | "is_output": 0 | \
        tensors\.0\.is_output: input should be a valid boolean
    truth for a number | "offset": 0 | "offset": false | \
        allocations\.0\.offset: input should be a valid integer
    fraction | "offset": 0 | "offset": 0.5 | \
        allocations\.0\.offset: input should be a valid integer
    record for a list | "after": [] | "after": {} | \
        jobs\.0\.after: input should be a valid list
    list for a record | "reads": [{"tensor" | "reads": [[], {"tensor" | \
        jobs\.0\.reads\.0: input should be a dictionary
    not a number | "start": 0.0 | "start": NaN | jobs\.0\.start: input should be a finite number
    negative time | "start": 0.0 | "start": -1e-12 | \
        jobs\.0\.start: input should be greater than or equal to 0
    negative bytes | "bytes": 2048 | "bytes": -1 | \
        tensors\.0\.bytes: input should be greater than or equal to 0
    huge | "bytes": 2048 | "bytes": 9223372036854775808 | \
        tensors\.0\.bytes: input should be less than or equal to 9223372036854775807
    repeated key | "core": "a" | "core": "a", "core": "b" | \
        jobs\.0\.core: the key occurs more than once
    unknown style | "weight-stationary" | "lazy" | \
        target\.cores\.0\.style: input should be 'weight-stationary'
    word for bits | "macs_per_cycle": {"8" | "macs_per_cycle": {"08" | \
        target\.cores\.0\.macs_per_cycle\.08
    half a character | "core": "a" | "core": "\ud800" | \
        jobs\.0\.core: input should be a valid string
    internal name | "from":  | "source":  | transfers\.0\.from: field required
""")
BAD_TEXTS = {name: (_edited(old, new), expected) for name, old, new, expected in EDITS} | {
    "empty": ("", r"not JSON from line 1, column 1 on"),
    "truncated": (TEXT[:3000], r"not JSON from line \d+, column \d+ on"),
    "not an object": ("[1, 2]", r"must hold one JSON object"),
    "very huge": (_edited('"bytes": 2048', '"bytes": 1' + "0" * 400), r"tensors\.0\.bytes: "),
    "too many digits": (
        _edited('"bytes": 2048', '"bytes": 1' + "0" * 9000),
        r"a number has too many digits",
    ),
    "deep": ("[" * 100_000, r"nested too deeply"),
    "deep record": (
        '{"version": 9, "a": ' + '{"a":' * 100_000 + "1" + "}" * 100_001,
        r"nested too deeply",
    ),
    "line break in a key": (_edited('"seed": 7', r'"seed": 7, "a\nb": 8'), r"a\\nb: unexpected"),
}


@pytest.mark.parametrize(("text", "expected"), BAD_TEXTS.values(), ids=BAD_TEXTS)
def test_what_is_no_plan_is_refused_in_one_line(text, expected, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=rf"/plan\.json: .*{expected}") as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(PlanError, match=r"/none\.json: cannot be read: No such file"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(PlanError, match="null"):
        Plan.load("nul\0")
    (tmp_path / "plan.json").write_bytes(b'{"version": \xff}')
    with pytest.raises(PlanError, match=r"/plan\.json: not a plan file: byte 12 is not UTF-8"):
        Plan.load(tmp_path / "plan.json")


def test_the_first_few_errors_are_shown_and_the_others_counted():
    with pytest.raises(
        PlanError,
        match=r"^plan\.json: jobs\.0\.kind: .*; jobs\.1\.kind: .*; jobs\.2\.kind: .*; and 3 more$",
    ):
        plan_from_text(TEXT.replace('"kind":"Conv"', '"kind":3'), "plan.json")


def test_fields_that_have_a_default_may_be_left_out():
    text = TEXT.replace(',"name":"","after":[]', "")
    assert text != TEXT
    assert plan_from_text(text, "plan.json") == PLANS["shared"]


@given(spoilt(json.loads(TEXT)))
def test_garbage_in_any_place_is_a_plan_or_a_plan_error(document):
    refusal = "plan.json: nothing is wrong"
    try:
        plan_from_text(json.dumps(document), "plan.json")
    except PlanError as error:
        refusal = str(error).encode().decode()
    assert re.fullmatch(r"plan\.json: .+", refusal)

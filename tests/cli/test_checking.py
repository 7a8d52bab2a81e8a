"""A large plan is checked in a process of its own: it finds what is found here, also if that process dies."""

from dataclasses import replace

import pytest
from tests.support.hand_plan import long_plan

from loadmaster.cli import checking
from loadmaster.planning.plan import Plan
from loadmaster.planning.verify.plan import verify

GOOD = long_plan(301, 3)
BROKEN = replace(GOOD, jobs=GOOD.jobs[:-1])


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_MANY_JOBS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


@pytest.mark.parametrize("plan", [GOOD, BROKEN], ids=["good", "broken"])
def test_another_process_finds_what_is_found_here(plan: Plan) -> None:
    assert checking.checking(plan)() == verify(plan)


def test_where_the_other_process_dies_the_plan_is_checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_check", lambda plan, sender: sender.close())
    assert checking.checking(BROKEN)() == verify(BROKEN) != ()

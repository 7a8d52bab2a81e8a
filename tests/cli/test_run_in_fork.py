"""A large plan is checked and drawn in processes of their own: they do what is done here, also if
they die."""

import multiprocessing
import os
import time
from dataclasses import replace
from functools import partial

import pytest
from tests.support.hand_plan import long_plan

import loadmaster as lm
from loadmaster.cli import run_in_fork

GOOD = long_plan(301, 3)
BROKEN = replace(GOOD, jobs=GOOD.jobs[:-1])


@pytest.fixture(autouse=True)
def apart(monkeypatch):
    monkeypatch.setattr(run_in_fork, "_MANY_JOBS", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})


@pytest.mark.parametrize("plan", [GOOD, BROKEN], ids=["good", "broken"])
def test_another_process_finds_what_is_found_here(plan):
    with run_in_fork.run_in_fork(partial(lm.verify, plan), plan) as found:
        assert found() == lm.verify(plan)


def test_it_is_another_process():
    with run_in_fork.run_in_fork(os.getpid, GOOD) as found:
        assert found() != os.getpid()


def test_where_the_other_process_dies_the_plan_is_checked_here(monkeypatch):
    monkeypatch.setattr(run_in_fork, "_send_result", lambda function, sender: sender.close())
    with run_in_fork.run_in_fork(partial(lm.verify, BROKEN), BROKEN) as found:
        assert found() == lm.verify(BROKEN) != ()


def test_another_process_writes_the_report_that_is_written_here(tmp_path):
    with run_in_fork.run_in_fork(partial(GOOD.report, tmp_path / "there"), GOOD) as written:
        names = [path.name for path in written()]
    for name, here in zip(names, GOOD.report(tmp_path / "here"), strict=True):
        assert (tmp_path / "there" / name).read_bytes() == here.read_bytes()


def test_what_fails_there_is_told_here(tmp_path):
    (tmp_path / "report.html").mkdir()
    with (
        pytest.raises(lm.OutputError, match=r"report\.html"),
        run_in_fork.run_in_fork(partial(GOOD.report, tmp_path), GOOD) as written,
    ):
        written()


def test_what_nobody_waits_for_ends_with_the_work(tmp_path):
    def write_late():
        time.sleep(60)
        (tmp_path / "late").touch()

    def interrupt():
        assert multiprocessing.active_children()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), run_in_fork.run_in_fork(write_late, GOOD):
        interrupt()
    assert not multiprocessing.active_children()

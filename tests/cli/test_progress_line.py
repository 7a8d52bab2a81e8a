"""The progress line: nothing for short work, one line for long work on a terminal, nothing left behind."""

from __future__ import annotations

from typing import Any

import pytest
import rich.console
import rich.progress

from loadmaster.cli import progress_line
from loadmaster.cli.progress_line import LateProgress


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_line, "time", clock)
    return clock


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Progress bars that were made, recording what they were told."""
    made: list[Any] = []

    class Bar:
        def __init__(self, *_: Any, console: Any, transient: bool, disable: bool) -> None:
            self.disabled, self.transient, self.task_ids, self.told = disable, transient, [0], []
            made.append(self)

        def add_task(self, description: str, total: float) -> None:
            assert total == 1.0

        def start(self) -> None:
            self.told.append("start")

        def update(self, task: int, description: str, completed: float) -> None:
            self.told.append((description, completed))

        def stop(self) -> None:
            self.told.append("stop")

    monkeypatch.setattr(rich.progress, "Progress", Bar)
    return made


def test_short_work_shows_nothing(clock: Clock, bars: list[Any]) -> None:
    with LateProgress() as progress:
        progress("reading", 0.1)
        clock.now += 0.9
        progress("mapping", 0.9)
    assert bars == []


def test_long_work_shows_one_line_from_then_on_and_removes_it(clock: Clock, bars: list[Any]) -> None:
    with LateProgress() as progress:
        progress("reading", 0.0)
        clock.now += 1.1
        progress("mapping", 0.25)
        progress("packing", 0.5)
    (bar,) = bars
    assert bar.transient
    assert bar.told == ["start", ("mapping", 0.25), ("packing", 0.5), "stop"]


def test_a_failure_removes_the_line(clock: Clock, bars: list[Any]) -> None:
    def work() -> None:
        with LateProgress() as progress:
            clock.now += 2
            progress("mapping", 0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert bars[0].told[-1] == "stop"


def test_a_file_or_a_pipe_gets_no_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with LateProgress() as progress:
        clock.now += 2
        progress("mapping", 0.5)
    assert capsys.readouterr() == ("", "")

"""The progress line: nothing for short work, one line for long work on a terminal, nothing left
behind."""

from contextlib import closing

import pytest
import rich.console
import rich.progress

from loadmaster.cli import output
from loadmaster.cli.output import LateProgress


class Clock:
    now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(output, "time", clock)
    return clock


@pytest.fixture
def bars(monkeypatch):
    """Progress bars that were made, recording what they were told."""
    made = []

    class Bar:
        def __init__(self, *_, console, transient, disable):
            self.disable, self.transient, self.task_ids, self.told = disable, transient, [0], []
            made.append(self)

        def add_task(self, description, total):
            assert total is None

        def start(self):
            self.told.append("start")

        def update(self, task, description, total, completed):
            assert total == (1.0 if completed else None)
            self.told.append((description, completed))

        def stop(self):
            self.told.append("stop")

    monkeypatch.setattr(rich.progress, "Progress", Bar)
    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    return made


def work(clock, *steps, **options):
    """Tell the progress of stages, such as ``("reading", 0.5)``, and let seconds pass between
    them."""
    with closing(LateProgress(**options)) as progress:
        for step in steps:
            if isinstance(step, tuple):
                progress(*step)
            else:
                clock.now += step


def test_short_work_shows_nothing(clock, bars):
    work(clock, ("reading", 0.1), 0.9, ("mapping", 0.9))
    assert bars == []


def test_long_work_shows_one_line_from_then_on_and_removes_it(clock, bars):
    work(clock, ("reading", 0.0), 1.1, ("mapping", 0.25), ("packing", 0.5))
    (bar,) = bars
    assert bar.transient
    assert bar.told == ["start", ("mapping", 0.25), ("packing", 0.5), "stop"]


def test_a_failure_removes_the_line(clock, bars):
    def interrupted():
        with closing(LateProgress()) as progress:
            clock.now += 2
            progress("mapping", 0.5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert bars[0].told[-1] == "stop"


def test_a_file_or_a_pipe_gets_no_line(clock, capsys):
    work(clock, 2, ("mapping", 0.5))
    assert capsys.readouterr() == ("", "")


def test_long_stages_say_how_much_longer_they_will_take(clock, bars):
    """At the pace so far; a stage that begins again is measured from there, and nothing is said
    that would be a guess."""
    later = {0.01: 0, 0.25: 0, 0.5: 297, 0.75: 0, 1.0: 1, 0.2: 4, 0.6: 4}
    steps = [step for share, wait in later.items() for step in (wait, ("measuring", share))]
    work(clock, ("measuring", 0.0), 3, *steps)
    told = [entry[0].removeprefix("measuring") for entry in bars[0].told[1:-1]]
    assert told == [
        "",
        ", about 9 s left",
        ", about 5 min left",
        ", about 2 min left",
        "",
        "",
        ", about 4 s left",
    ]


def test_a_stage_of_another_name_is_estimated_from_its_own_begin(clock, bars):
    jointly = "planning jointly"
    work(clock, ("choosing cuts, 1 tried", 0.0), 60, (jointly, 0.1), 3, (jointly, 0.4))
    assert bars[0].told[-2] == ("planning jointly, about 6 s left", 0.4)


def test_without_a_terminal_a_line_is_written_every_ten_seconds(clock, capsys):
    work(clock, *[("choosing cuts", 0.0), 1] * 25)
    assert capsys.readouterr().err.splitlines() == [
        "choosing cuts, 10 s so far",
        "choosing cuts, 20 s so far",
    ]


def test_a_quiet_line_is_never_shown(clock, bars):
    work(clock, 5, ("measuring", 0.5), quiet=True)
    assert bars == []

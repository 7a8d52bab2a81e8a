"""Which candidate is planned in full, with planners whose quick scores and plans are given."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from loadmaster.core.progress import NO_DEADLINE, Deadline, Interrupts, no_progress
from loadmaster.planning import cut_selection
from loadmaster.planning.cut_selection import CutSelection
from loadmaster.planning.cutting.candidates import Candidate
from loadmaster.planning.decisions import Score


@dataclass
class Planner:
    """A planner whose quick score and best plan end at given times."""

    seems: int
    ends: int
    jobs: int = 1
    interrupted: bool = False
    tilings: int = 0
    """What a choice of tilings takes off the end."""
    large: bool = False

    @property
    def problem(self):
        job = SimpleNamespace(
            ranges=((0, 1),), network="n", mini_batch=0, operators=("a",), tiles=1
        )
        return SimpleNamespace(
            workload=SimpleNamespace(jobs=[job] * self.jobs, networks=(), tensors=()),
            target=SimpleNamespace(main=SimpleNamespace(capacity=0)),
            goal=SimpleNamespace(objective="throughput", latency_network=None, urgent=()),
        )

    def quick_score(self):
        return Score(0, 0, self.seems, self.seems)

    def best(self):
        return self.ends

    def score_of(self, ends):
        return Score(0, 0, ends, ends)

    def is_late(self):
        return False

    def bounds(self):
        return SimpleNamespace(objective=lambda *_: 0)


def contest_of(planners, deadline=NO_DEADLINE):
    offered = {f"way {number}": planner for number, planner in enumerate(planners)}
    candidates = (
        Candidate(name, pieces=planner.jobs, large=planner.large)
        for name, planner in offered.items()
    )
    interrupts = Interrupts()
    return CutSelection(
        candidates, lambda candidate: offered[candidate.name], interrupts, deadline, no_progress
    )


@pytest.fixture(autouse=True)
def _tilings_as_they_are(monkeypatch):
    monkeypatch.setattr(
        cut_selection, "retiled", lambda planner, ends: (planner, ends - planner.tilings)
    )


def test_plans_are_compared_with_tilings_of_their_own():
    whole, cut = Planner(500, 100, tilings=20), Planner(60, 95, tilings=1)
    assert contest_of([whole, cut]).best() == (whole, 80)


def test_what_seems_worse_is_not_planned_in_full():
    whole, good, hopeless = Planner(500, 500), Planner(60, 60), Planner(300, 1)
    assert contest_of([whole, good, hopeless]).best()[0] is good


def test_ways_of_too_many_pieces_are_left_out_with_a_note_and_smaller_ones_are_tried():
    large, small = Planner(10, 10, cut_selection.MOST_JOBS), Planner(60, 60)
    found = contest_of([Planner(500, 500), large, small])
    assert found.best()[0] is small
    assert "not tried: 1," in str(found.notes(stopped=False))


def test_without_time_for_a_candidate_operators_stay_whole_with_a_note():
    """Time is kept for a candidate by how long whole operators took: with a second left there is
    enough here, and the second candidate is tried, too."""
    whole, first, second = Planner(500, 500), Planner(60, 60), Planner(50, 50)
    for seconds, best in ((0.0, whole), (1.0, second)):
        found = contest_of([whole, first, second], Deadline.within(seconds))
        assert found.best()[0] is best
        stopped = "stopped early" in str(found.notes(stopped=False))
        assert stopped == (best is whole)


def test_large_pieces_are_tried_whatever_whole_operators_take(monkeypatch):
    """Whole operators of very many jobs of a worse quick score are not planned in full; else
    they are."""
    monkeypatch.setattr(Planner, "best", lambda planner: planned.append(planner) or planner.ends)
    for jobs, seems, expected in (
        (cut_selection.MOST_JOBS, 500, 1),
        (100, 500, 2),
        (cut_selection.MOST_JOBS, 50, 1),
    ):
        planned = []
        whole = Planner(seems, seems, jobs)
        large = Planner(60, 60, cut_selection.MOST_JOBS, large=True)
        found = contest_of([whole, large])
        assert found.best()[0] is (large if seems > 60 else whole)
        assert (found.full, len(planned)) == (True, expected)


def test_large_pieces_are_bounded_too():
    whole, large = Planner(500, 500), Planner(60, 60, 100_000, large=True)
    assert contest_of([whole, large]).best()[0] is whole


def test_a_contest_that_whole_operators_fill_says_so():
    """Where they leave room for no other way, working one out would be in vain."""
    for jobs in (1, cut_selection.MOST_JOBS):
        found = contest_of([Planner(500, 500, jobs)])
        found.best()
        assert found.full is (jobs > 1)


@pytest.mark.parametrize(("ends", "chosen"), [(70, True), (90, False)])
def test_the_next_candidate_is_planned_where_addresses_take_back_what_the_first_promised(
    ends, chosen
):
    whole, bands, tiles = Planner(500, 500), Planner(80, 80), Planner(60, ends)
    hopeless = Planner(85, 1)
    found = contest_of([whole, bands, tiles, hopeless]).best()[0]
    assert found is (tiles if chosen else bands)


def test_a_search_that_was_stopped_says_so_also_if_its_plan_is_not_the_answer():
    whole, first, next_best = Planner(500, 500), Planner(60, 90), Planner(80, 95, interrupted=True)
    found = contest_of([whole, first, next_best])
    assert found.best()[0] is first
    assert "stopped early" in str(found.notes(stopped=False))

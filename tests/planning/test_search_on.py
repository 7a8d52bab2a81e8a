"""The best way to cut is searched for longer, most of all for several networks."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

import loadmaster as lm
from loadmaster.core.deadline import NO_DEADLINE
from loadmaster.core.interrupts import Interrupts
from loadmaster.core.progress import no_progress
from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.energy_model import EnergyModel
from loadmaster.planning import search_on
from loadmaster.planning.decisions import Score
from loadmaster.planning.goal import goal_of
from loadmaster.planning.search_on import searched_on
from loadmaster.planning.workload_planner import WorkloadPlanner
from loadmaster.workloads.lowering.instantiate import lower


@dataclass
class Planner:
    """A planner of some networks whose longer searches end at a given time, and which remembers of
    how many rounds they were."""

    mini_batches: tuple[int, ...] = (4, 4)
    jobs: int = 100
    rounds: int = 4
    late: bool = False
    ends: int | None = 5
    interrupts: bool = False
    interrupted: bool = False
    asked: list[int] = field(default_factory=list)

    @property
    def workload(self) -> Any:
        return SimpleNamespace(
            jobs=[None] * self.jobs,
            networks=[SimpleNamespace(mini_batches=count) for count in self.mini_batches],
        )

    def is_late(self) -> bool:
        return self.late

    def longer(self, rounds: int) -> int | None:
        self.asked.append(rounds)
        self.interrupted |= self.interrupts
        return self.ends

    def score_of(self, ends: int) -> Score:
        return 0, ends, ends


@pytest.fixture
def tilings_that_take_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_on, "retiled", lambda planner, ends: (planner, ends + 1))


def searched(begun: Planner, ends: int = 7) -> tuple[Planner, int]:
    """The planner and the end of what a longer search makes of a plan that ends after 7, or so,
    which began as one that ended after 8."""
    given: tuple[Any, ...] = (begun, 8, Planner(jobs=1), ends)
    return cast("tuple[Planner, int]", searched_on(*given))


@pytest.mark.usefixtures("tilings_that_take_longer")
@pytest.mark.parametrize(
    ("begun", "rounds"),
    [
        (Planner((4, 4)), [16]),
        (Planner((1, 1)), [16]),
        (Planner((4,)), [16]),
        (Planner((1,)), [8]),
        (Planner((1,), jobs=625), [8]),
        (Planner((1,), jobs=626), []),
        (Planner((4, 4), jobs=1250), [16]),
        (Planner((4, 4), jobs=1251), []),
    ],
)
def test_rounds_follow_from_networks_and_jobs(begun: Planner, rounds: list[int]) -> None:
    searched(begun)
    assert begun.asked == rounds


@pytest.mark.usefixtures("tilings_that_take_longer")
def test_the_better_plan_is_kept() -> None:
    assert searched(Planner(ends=5))[1] == 6
    assert searched(Planner(ends=7))[1] == 7
    assert searched(Planner(ends=9))[1] == 7
    assert searched(Planner(ends=None))[1] == 7


@pytest.mark.usefixtures("tilings_that_take_longer")
def test_a_search_that_is_stopped_is_told_of() -> None:
    assert searched(Planner(ends=9, interrupts=True))[0].interrupted


def test_a_longer_search_of_two_networks_finds_a_better_plan() -> None:
    graphs = [lm.load(f"onnx:{name}", precision="int8") for name in ("squeezenet", "shufflenet")]
    target = lm.target("edge-npu", ["dram.bandwidth=8 GB/s", "scratchpad.capacity=2 MiB"])
    workload = lower(graphs, target, mini_batches=2)
    table, goal = job_table(workload, target), goal_of(workload, "throughput", None, {}, {})
    energy = EnergyModel(table, energy_rates(target))
    begun = WorkloadPlanner(
        workload, table, target, goal, energy, 0, 4, 1, NO_DEADLINE, no_progress, Interrupts()
    )
    first = begun.best()
    planner, longer = searched_on(begun, first, begun, first)
    assert planner.score_of(longer) < begun.score_of(first)

"""Plans of random networks, and what comes of running them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest
from tests.support.random_networks import Builder, random_network

import loadmaster as lm
from loadmaster.integrations.execute.execution import Execution
from loadmaster.integrations.execute.run import run_plan
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.workloads.graph import Graph


@dataclass
class Case:
    """Networks in files, as they are planned."""

    files: list[str]
    graphs: list[Graph]

    def run(self, plan: PlanRecord, orders: int = 3, precision: str | None = None) -> Execution:
        return run_plan(plan, self.files, orders=orders, precision=precision)

    def faults(self, plan: PlanRecord, orders: int = 3, precision: str | None = None) -> list[str]:
        """What is wrong with a plan; empty if nothing is."""
        found = self.run(plan, orders, precision)
        if not found.violations:
            assert {(each.network, each.mini_batch) for each in found.outputs} == {
                (batch.network, batch.number) for batch in plan.mini_batches
            }
        return [each.message for each in found.violations]


@pytest.fixture
def case(tmp_path: Path) -> Callable[..., Case]:
    """Networks of some seeds, or given ones, saved and read again."""

    def make(
        *seeds: int,
        builds: Sequence[Builder] = (),
        models: Sequence[onnx.ModelProto] = (),
        precision: str | None = None,
        **options: int,
    ) -> Case:
        builds = [*builds, *(random_network(seed, **options) for seed in seeds)]
        models = [*models, *(each.model(each.last) for each in builds)]
        files = [str(tmp_path / f"net{number}.onnx") for number, _ in enumerate(models)]
        for file, each in zip(files, models, strict=True):
            onnx.save(each, file)
        return Case(files, [lm.load(file, precision=precision) for file in files])

    return make

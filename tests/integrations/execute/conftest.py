"""Plans of random networks, and what comes of running them."""

from dataclasses import dataclass

import onnx
import pytest
from tests.support.random_networks import random_network

import loadmaster as lm
from loadmaster.integrations.execute.run import run_plan


@dataclass
class Case:
    """Networks in files, as they are planned."""

    files: list[str]
    graphs: list[lm.Graph]

    def run(self, plan, orders=3, precision=None):
        return run_plan(plan, self.files, orders=orders, precision=precision)

    def faults(self, plan, orders=3):
        """What is wrong with a plan; empty if nothing is."""
        found = self.run(plan, orders)
        if not found.violations:
            assert {(each.network, each.mini_batch) for each in found.outputs} == {
                (batch.network, batch.number) for batch in plan.mini_batches
            }
        return [each.message for each in found.violations]

    def holds(self, plan):
        """Fail if anything is wrong with a plan, as it stands or when it is run."""
        assert lm.verify(plan) == ()
        assert self.faults(plan) == []


@pytest.fixture
def case(tmp_path):
    """Networks of some seeds, or given ones, saved and read again."""

    def make(*seeds, builds=(), models=(), precision=None, **options):
        builds = [*builds, *(random_network(seed, **options) for seed in seeds)]
        models = [*models, *(each.model(each.last) for each in builds)]
        files = [str(tmp_path / f"net{number}.onnx") for number, _ in enumerate(models)]
        for file, each in zip(files, models, strict=True):
            onnx.save(each, file)
        return Case(files, [lm.load(file, precision=precision) for file in files])

    return make

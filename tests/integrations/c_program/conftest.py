"""Plans of random networks, with their models and what these compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.c_programs import build, execute, expected, outputs_of
from tests.support.program_networks import random_network
from tests.support.random_networks import Builder

import loadmaster as lm
from loadmaster.integrations.c_program.export import read_models
from loadmaster.integrations.c_program.program import Program, program_of
from loadmaster.planning.plan_records import PlanRecord
from loadmaster.workloads.graph import Graph

TOLERANCE = 1e-4


@dataclass
class Case:
    """Networks in files, as they are planned, and how they were built."""

    files: list[str]
    graphs: list[Graph]
    builds: list[Builder]
    folder: Path

    def program(self, plan: PlanRecord) -> Program:
        return program_of(plan, read_models(plan, self.files))

    def feeds(self, plan: PlanRecord, program: Program, seed: int) -> list[np.ndarray]:
        """An input for each port, of another value in every mini-batch."""
        generator = np.random.default_rng(seed)
        return [
            generator.uniform(-1, 1, port.value.shape).astype(np.float32) for port in program.inputs
        ]

    def results(
        self, plan: PlanRecord, program: Program, feeds: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """What another runtime computes, for each output port."""
        given: dict[str, dict[str, np.ndarray]] = {}
        for port, feed in zip(program.inputs, feeds, strict=True):
            prefix, name = port.name.rsplit("/", 1)
            given.setdefault(prefix, {})[name] = feed
        models = dict(zip((network.name for network in plan.networks), self.builds, strict=True))
        found = {
            prefix: expected(
                models[prefix.split("#")[0]].model(models[prefix.split("#")[0]].last), own
            )
            for prefix, own in given.items()
        }
        return [
            found[port.name.rsplit("/", 1)[0]][port.name.rsplit("/", 1)[1]]
            for port in program.outputs
        ]

    def faults(
        self,
        plan: PlanRecord,
        program: Program,
        sanitizer: str,
        options: Sequence[Sequence[str]],
        seed: int = 1,
    ) -> list[str]:
        """What goes wrong with the first of some options that show it; empty if outputs are right
        and nothing complains."""
        feeds = self.feeds(plan, program, seed)
        due = self.results(plan, program, feeds)
        build(program, self.folder / "program", sanitizer)
        found = []
        for words in options:
            if found:
                break
            ended = execute(self.folder / "program", feeds, len(program.outputs), words)
            if ended.returncode or ended.stderr:
                found.append(f"{words}: exit {ended.returncode}: {ended.stderr[:2000]}")
                continue
            for port, mine, its in zip(
                program.outputs,
                outputs_of(self.folder / "program", program.outputs),
                due,
                strict=True,
            ):
                if not np.allclose(mine, its, TOLERANCE, TOLERANCE):
                    found.append(f"{words}: {port.name} differs by {np.abs(mine - its).max()}")
        return found


@pytest.fixture
def case(tmp_path: Path) -> Callable[..., Case]:
    """Networks of some seeds, or given ones, saved and read again."""

    def make(*seeds: int, builds: Sequence[Builder] = (), **options: int) -> Case:
        builds = [*builds, *(random_network(seed, **options) for seed in seeds)]
        files = [str(tmp_path / f"net{number}.onnx") for number, _ in enumerate(builds)]
        for file, each in zip(files, builds, strict=True):
            onnx.save(each.model(each.last), file)
        return Case(files, [lm.load(file) for file in files], builds, tmp_path)

    return make

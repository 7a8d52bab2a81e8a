"""What planning jointly is worth: ``python -m benchmarks.joint [--targets NAME ...] [--capacities
MIB ...] [--bandwidths GBS ...] ...``.

Every task (real networks, planned together) on every target, scratchpad, bandwidth and number of
mini-batches, three ways: mapping alone (fused jobs, not cut, operands from and to main memory), the
separate pipeline (map, place, allocate once: ``effort=SEPARATE``), and jointly. Prints makespans,
the bound of mapping alone, traffic, energy with its bound, seconds of processor time, and the
distance to the joint bound; and geometric means over the cases. Times and energies are estimates of
the cost model.
``--objective`` plans for something else than makespan: then ``x sep.`` and ``gap`` are of that.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import loadmaster as lm
from loadmaster.core.effort import Effort
from loadmaster.core.units import PICOSECONDS
from loadmaster.cost.analytical.job_costs import least_table
from loadmaster.planning.bounds import makespan_bound
from loadmaster.planning.goal import OBJECTIVES
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.instantiate import lower

FIXTURES = Path(__file__).parents[1] / "fixtures"
SEPARATE = replace(Effort.NORMAL, name="separate", evaluations=0)
TASKS = {
    "vision": ("onnx:resnet50", "onnx:inception_v1", "onnx:squeezenet"),
    "language": tuple(
        str(FIXTURES / f"{name}.onnx.gz") for name in ("bert-base", "gpt2", "mobilebert")
    ),
    "recommendation": tuple(
        str(FIXTURES / f"{name}.onnx.gz") for name in ("dlrm", "ncf", "wide-and-deep")
    ),
    "mix": (
        "onnx:resnet50",
        str(FIXTURES / "bert-base.onnx.gz"),
        str(FIXTURES / "mobilenetv2.onnx.gz"),
    ),
}


@dataclass(frozen=True)
class Row:
    """One case; seconds, bytes, joules."""

    task: str
    target: str
    mebibytes: int
    gigabytes_per_second: float
    mini_batches: int
    jobs: int
    mapping: float
    mapping_bound: float
    separate: float
    joint: float
    bound: float
    traffic: tuple[float, float, float]
    energy: tuple[float, float, float]
    energy_bound: float
    objective: str
    value: tuple[float, float]
    value_bound: float
    separate_seconds: float
    joint_seconds: float
    peak: float

    @property
    def over_mapping(self) -> float:
        """Times that the joint plan is faster than any plan that only maps can be."""
        return self.mapping_bound / self.joint

    @property
    def over_separate(self) -> float:
        """Times that the joint plan is better than the separate one."""
        return self.value[0] / self.value[1]

    @property
    def gap(self) -> float:
        """The objective over its bound."""
        return self.value[1] / self.value_bound


def mapping_bound(graphs: Sequence[Graph], target: Target, mini_batches: int) -> float:
    """Seconds that every plan takes whose jobs read and write main memory: arithmetic over cores,
    and all operands over the main link, by the least of all tilings."""
    work = lower(graphs, target, mini_batches=mini_batches)
    table = least_table(work, target)
    bandwidth = [
        target.main.write_bandwidth if write else target.main.read_bandwidth
        for write in table.operand_write.tolist()
    ]
    traffic = sum(
        moved / speed
        for moved, speed in zip(table.moved.min(axis=1).tolist(), bandwidth, strict=True)
    )
    return max(
        traffic, makespan_bound(work.jobs, work.tensors, table, target).picoseconds / PICOSECONDS
    )


def measure(
    task: str,
    name: str,
    mebibytes: int,
    speed: float,
    mini_batches: int,
    effort: str,
    objective: str,
) -> Row:
    """Plan one case the three ways and check every plan."""
    graphs = [lm.load(network, precision="int8") for network in TASKS[task]]
    settings = [f"dram.bandwidth={speed} GB/s"]
    alone = lm.target(name, [*settings, "scratchpad.capacity=0"])
    target = lm.target(name, [*settings, f"scratchpad.capacity={mebibytes}MiB"])
    plans, seconds = [], []
    ways: tuple[tuple[Target, Effort | str, str], ...] = (
        (alone, SEPARATE, "none"),
        (target, SEPARATE, "auto"),
        (target, effort, "auto"),
    )
    for machine, own, cut in ways:
        began = time.process_time()
        plans.append(
            lm.plan(
                graphs,
                machine,
                mini_batches=mini_batches,
                effort=own,
                objective=objective,
                cut=cut,
            )
        )
        seconds.append(time.process_time() - began)
        assert lm.verify(plans[-1]) == (), (task, name, mebibytes, speed, mini_batches)
    mapped, separate, joint = (plan.metrics.makespan.value for plan in plans)
    main = target.main.name
    use = plans[2].metrics.memory[target.fast.name] if target.fast else None
    return Row(
        task,
        name,
        mebibytes,
        speed,
        mini_batches,
        len(plans[2].jobs),
        mapped,
        mapping_bound(graphs, alone, mini_batches),
        separate,
        joint,
        plans[2].metrics.makespan.lower_bound,
        (
            plans[0].metrics.traffic[main].value,
            plans[1].metrics.traffic[main].value,
            plans[2].metrics.traffic[main].value,
        ),
        (
            plans[0].metrics.energy.value,
            plans[1].metrics.energy.value,
            plans[2].metrics.energy.value,
        ),
        plans[2].metrics.energy.lower_bound,
        objective,
        (plans[1].objective.value, plans[2].objective.value),
        plans[2].objective.lower_bound,
        seconds[1],
        seconds[2],
        use.peak / use.capacity if use else 0.0,
    )


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(map(math.log, values)) / len(values))


def show(row: Row) -> None:
    """One line."""
    traffic = "/".join(f"{size / 1e6:.0f}" for size in row.traffic)
    energy = "/".join(f"{joules * 1e3:.1f}" for joules in row.energy)
    print(
        f"{row.task:14} {row.target:9} {row.mebibytes:3d} {row.gigabytes_per_second:4g}"
        f" {row.mini_batches:2d} {row.jobs:5d} {row.mapping * 1e3:9.3f}"
        f" {row.mapping_bound * 1e3:9.3f} {row.separate * 1e3:9.3f} {row.joint * 1e3:9.3f}"
        f" {row.over_mapping:6.2f} {row.over_separate:6.2f} {row.gap:6.3f} {row.peak:5.2f}"
        f" {traffic:>17} {energy:>23} {row.energy_bound * 1e3:8.1f} {row.separate_seconds:5.1f}"
        f" {row.joint_seconds:5.1f}",
        flush=True,
    )


def main() -> None:
    """Measure all cases and print them with their means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--targets", nargs="+", default=["edge-npu", "m3e-s2", "m3e-s4", "m3e-s6"])
    parser.add_argument("--capacities", nargs="+", type=int, default=[1, 8, 32], metavar="MIB")
    parser.add_argument(
        "--bandwidths", nargs="+", type=float, default=[1, 4, 16, 64], metavar="GB/S"
    )
    parser.add_argument("--mini-batches", nargs="+", type=int, default=[1, 4, 8])
    parser.add_argument("--effort", default="normal")
    parser.add_argument("--objective", default="throughput", choices=OBJECTIVES)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    print(
        "task           target    MiB GB/s mb  jobs  alone/ms  bound/ms  separate     joint x bound"
        " x sep.   gap  peak MB alone/sep/joint      mJ alone/sep/joint mJ bound CPU s sep/joint"
    )
    cases = itertools.product(
        arguments.targets,
        arguments.tasks,
        arguments.capacities,
        arguments.bandwidths,
        arguments.mini_batches,
    )
    rows = []
    for target, task, capacity, bandwidth, batches in cases:
        rows.append(
            measure(
                task, target, capacity, bandwidth, batches, arguments.effort, arguments.objective
            )
        )
        show(rows[-1])
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    for what, pick in (
        ("over mapping's bound", "over_mapping"),
        ("over the separate plan", "over_separate"),
        ("gap to the bound", "gap"),
    ):
        values = [getattr(row, pick) for row in rows]
        print(
            f"{what}: geometric mean {geometric_mean(values):.3f}, {min(values):.3f} to"
            f" {max(values):.3f}"
        )


if __name__ == "__main__":
    main()

"""What choosing a tiling for each job is worth: ``python -m benchmarks.tilings [--cut auto]``.

Plans three networks on ``edge-npu`` with slow main memories and small private buffers, with the
tilings that a plan begins with and with those that it chooses for where it leaves operands; prints
makespan, traffic of the main memory, bound and processor time as a table.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from unittest.mock import patch

import loadmaster as lm
from loadmaster.planning.decisions import Solution
from loadmaster.planning.workload_planner import WorkloadPlanner

FIXTURES = Path(__file__).parents[1] / "fixtures"
NETWORKS = {
    "ResNet-50": "onnx:resnet50",
    "BERT-base": str(FIXTURES / "bert-base.onnx.gz"),
    "MobileNetV2": str(FIXTURES / "mobilenetv2.onnx.gz"),
}
BANDWIDTHS = ("2 GB/s", "4 GB/s", "8 GB/s")
MEMORIES = (("128 KiB", "8 MiB"), ("32 KiB", "8 MiB"), ("32 KiB", "512 KiB"))
"""Private buffers of the cores, and the scratchpad."""


def as_begun(planner: WorkloadPlanner, solution: Solution) -> tuple[WorkloadPlanner, Solution]:
    """A plan with the tilings that it began with."""
    return planner, solution


def planned(network: str, target: lm.Target, cut: str) -> tuple[lm.Plan, float]:
    """A plan, and the processor time that it took."""
    begun = time.process_time()
    plan = lm.plan([lm.load(network, precision="int8")], target, cut=cut)
    return plan, time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cut", choices=("auto", "none"), default="none")
    cut = parser.parse_args().cut
    print(
        "| network | main memory | buffers, scratchpad | as begun, ms, MB | chosen, ms, MB | |"
        " bound, ms | seconds |\n" + "|---" * 8 + "|"
    )
    for (name, network), (buffer, scratchpad), bandwidth in (
        (n, m, b) for n in NETWORKS.items() for m in MEMORIES for b in BANDWIDTHS
    ):
        changes = [f"dram.bandwidth={bandwidth}", f"scratchpad.capacity={scratchpad}"]
        target = lm.target(
            "edge-npu", [*changes, f"cores.ws.buffer={buffer}", f"cores.lb.buffer={buffer}"]
        )
        with patch("loadmaster.planning.cut_selection.retiled", as_begun):
            before, short = planned(network, target, cut)
        after, long = planned(network, target, cut)
        figures = [
            f"{plan.metrics.makespan.value * 1e3:.3f},"
            f" {plan.metrics.traffic[target.main.name].value / 1e6:.2f}"
            for plan in (before, after)
        ]
        change = after.metrics.makespan.value / before.metrics.makespan.value - 1
        bound = after.metrics.makespan.lower_bound * 1e3
        cells = (
            name,
            bandwidth,
            f"{buffer}, {scratchpad}",
            *figures,
            f"{change:+.1%}",
            f"{bound:.3f}",
            f"{short:.1f}, {long:.1f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""What cutting operators is worth: ``python -m benchmarks.cutting [--effort E] [--part
cores|memory|llm] [--network NAME]``.

First the networks that the onnx package ships, each alone on ``edge-npu`` at int8: makespan with
whole operators and with cut ones, over the roofline (multiply-accumulates at the rate of all cores,
or weights, inputs and outputs at the bandwidth) and over the lower bound. Then bytes over the main
link with small scratchpads, over what is compulsory: weights, inputs and outputs once. Plans are of
least makespan: they trade bytes for time where the link does not limit, so bytes are told at the
machine's bandwidth and at one that is so low that it does. Every plan is verified. Times are
estimates of the cost model; ``s`` is processor time. ``--part llm`` plans decoders of the shape of
Llama 7B instead: 512 tokens at once, and one token after 2,048, for one sequence and for eight.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import loadmaster as lm
from benchmarks.networks.image_to_image import fsrcnn, unet
from benchmarks.networks.llama import llama
from loadmaster.planning.plan import Plan
from loadmaster.targets.hardware import Target
from loadmaster.workloads.graph import Graph
from loadmaster.workloads.lowering.single_assignment import without_updates

NETWORKS = (
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
)
MOBILENET = str(Path(__file__).parents[1] / "fixtures" / "mobilenetv2.onnx.gz")
SMALL: dict[str, tuple[Callable[[], Graph], tuple[str, ...], str]] = {
    "resnet50": (
        lambda: lm.load("onnx:resnet50", precision="int8"),
        ("256 KiB", "512 KiB", "1 MiB"),
        "1 GB/s",
    ),
    "mobilenetv2": (
        lambda: lm.load(MOBILENET, precision="int8"),
        ("256 KiB", "512 KiB", "1 MiB"),
        "1 GB/s",
    ),
    "unet_256": (unet, ("256 KiB", "512 KiB", "1 MiB"), "1 GB/s"),
    "fsrcnn_960x540": (fsrcnn, ("512 KiB", "1 MiB", "2 MiB"), "100 MB/s"),
}
"""Networks that small memories are hard on, scratchpads that are small for each, and a bandwidth at
which the link limits it."""


def roofline(graph: Graph, target: Target) -> float:
    """Seconds that arithmetic at full rate, or compulsory bytes at full bandwidth, take."""
    rate = sum(
        core.rows * core.columns * core.macs_per_cycle[8] * core.clock for core in target.cores
    )
    return max(graph.macs / rate, compulsory(graph) / target.main.read_bandwidth)


def compulsory(graph: Graph) -> int:
    """Bytes of weights that are read, inputs and outputs."""
    tensors = graph.tensors
    read = {tensors[access.tensor].storage: access.bytes for op in graph.ops for access in op.reads}
    given = sum(read[name] for name in read if tensors[name].kind != "activation")
    return given + sum(
        tensors[name].bytes for name in {tensors[output].storage for output in graph.outputs}
    )


def planned(graph: Graph, target: Target, cut: str, effort: str) -> tuple[Plan, float]:
    """A plan that holds, and processor seconds."""
    started = time.process_time()
    plan = lm.plan([graph], target, cut=cut, effort=effort)
    seconds = time.process_time() - started
    violations = lm.verify(plan)
    if violations:
        raise SystemExit(f"{graph.name}, {target.name}, {cut}: {violations[0].message}")
    return plan, seconds


def mean(values: Sequence[float]) -> float:
    """Geometric mean."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))


def over_cores(effort: str, only: str) -> None:
    """Print makespans of networks on all cores."""
    target = lm.target("edge-npu")
    print(
        f"{'network':14} {'whole ms':>9} {'cut ms':>9} {'/ roofline':>11} {'/ bound':>8}"
        f" {'jobs':>6} {'s':>6}"
    )
    over: list[tuple[float, float, float]] = []
    for name in NETWORKS:
        if only not in name:
            continue
        graph = lm.load(f"onnx:{name}", precision="int8")
        whole, _ = planned(graph, target, "none", effort)
        cut, seconds = planned(graph, target, "auto", effort)
        before, after = whole.metrics.makespan.value, cut.metrics.makespan
        over.append(
            (
                before / roofline(graph, target),
                after.value / roofline(graph, target),
                after.value / after.lower_bound,
            )
        )
        figures = (
            f"{before * 1e3:9.3f} {after.value * 1e3:9.3f} {over[-1][1]:11.2f} {over[-1][2]:8.2f}"
        )
        print(f"{name:14} {figures} {len(cut.jobs):6} {seconds:6.1f}", flush=True)
    if over:
        whole_mean, cut_mean, bound_mean = (mean(column) for column in zip(*over, strict=True))
        print(
            f"geometric means: / roofline {whole_mean:.2f} whole, {cut_mean:.2f} cut; / bound"
            f" {bound_mean:.2f}\n"
        )


def through_memories(effort: str, only: str) -> None:
    """Print bytes over the main link with small scratchpads."""
    columns = f"{'whole':>7} {'cut':>7} {'whole ms':>9} {'cut ms':>9} {'jobs':>6} {'s':>6}"
    print(f"{'network':16} {'scratchpad':>10} {'bandwidth':>9} {columns}")
    for name, (read, capacities, limiting) in SMALL.items():
        if only not in name:
            continue
        graph = read()
        for capacity, bandwidth in itertools.product(capacities, ("34 GB/s", limiting)):
            machine = lm.target(
                "edge-npu", [f"scratchpad.capacity={capacity}", f"dram.bandwidth={bandwidth}"]
            )
            plans = [planned(graph, machine, cut, effort) for cut in ("none", "auto")]
            bytes_moved = [
                plan.metrics.traffic["dram"].value / compulsory(graph) for plan, _ in plans
            ]
            times = [plan.metrics.makespan.value * 1e3 for plan, _ in plans]
            jobs, seconds = len(plans[1][0].jobs), plans[1][1]
            figures = f"{bytes_moved[0]:7.2f} {bytes_moved[1]:7.2f} {times[0]:9.3f} {times[1]:9.3f}"
            print(
                f"{name:16} {capacity:>10} {bandwidth:>9} {figures} {jobs:6} {seconds:6.1f}",
                flush=True,
            )


def language_models() -> None:
    """Print makespans of prefill and decode over their bounds, and bytes over the main link over
    compulsory ones."""
    print(
        f"{'network':18} {'target':12} {'ms':>9} {'of bound':>9} {'GB':>7} {'/ least':>8}"
        f" {'jobs':>6} {'s':>6}"
    )
    # The weights alone exceed the memory of edge-npu as it is.
    machines = [lm.target("edge-npu", ["dram.capacity=16 GiB"]), lm.target("server-npu")]
    for target, batch, cached in itertools.product(machines, (1, 8), (0, 2048)):
        graph = llama(batch, 1 if cached else 512, cached)
        started = time.process_time()
        plan = lm.plan([graph], target, effort="quick")
        seconds = time.process_time() - started
        if violations := lm.verify(plan):
            raise SystemExit(f"{graph.name}, {target.name}: {violations[0].message}")
        makespan, moved = plan.metrics.makespan, plan.metrics.traffic[target.main.name].value
        share, least = (
            makespan.lower_bound / makespan.value,
            moved / compulsory(without_updates(graph)),
        )
        figures = (
            f"{makespan.value * 1e3:9.2f} {share:9.1%} {moved / 1e9:7.2f} {least:8.2f}"
            f" {len(plan.jobs):6} {seconds:6.1f}"
        )
        print(f"{graph.name:18} {target.name:12} {figures}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--effort", default="normal")
    parser.add_argument(
        "--part", choices=("cores", "memory", "llm"), help="one of the tables; llm only if named"
    )
    parser.add_argument("--network", default="", help="only networks with this in their name")
    given = parser.parse_args()
    if given.part == "llm":
        language_models()
    if given.part in (None, "cores"):
        over_cores(given.effort, given.network)
    if given.part in (None, "memory"):
        through_memories(given.effort, given.network)


if __name__ == "__main__":
    main()

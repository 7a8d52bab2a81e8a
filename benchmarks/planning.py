"""What plans reach and what they take, beside commit 26223263: ``python -m benchmarks.planning
[CASE ...] [--commands]``.

Plans the cases of `benchmarks.ablation` and some that had no part in tuning; ``--commands`` runs
whole commands instead, from a file to the written report. ``planning.json`` has what 26223263
reached, and its seconds on a machine of two processors that others used too. Values are results of
the cost model: they do not depend on the machine. Seconds do: run both commits on one machine
before they are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import loadmaster as lm
from benchmarks.ablation import BERT, CASES, MOBILENET, NCF, RESNET, SQUEEZENET, geometric, networks

BEFORE = json.loads(Path(__file__).with_suffix(".json").read_text())
NPU = "edge-npu"
OTHERS: dict[str, tuple[Sequence[Any], str, Sequence[str], Mapping[str, Any]]] = {
    "squeezenet x 16": ([SQUEEZENET], NPU, [], {"mini_batches": 16}),
    "mobilenetv2 x 2": ([MOBILENET], NPU, [], {"mini_batches": 2}),
    "mobilenetv2 @ latency": ([MOBILENET], NPU, [], {"objective": "latency"}),
    "squeezenet @ 128 KiB": ([SQUEEZENET], NPU, ["scratchpad.capacity=128KiB"], {}),
    "two networks, whole": ([SQUEEZENET, MOBILENET], NPU, [], {"cut": "none"}),
    "ncf x 32": ([NCF], NPU, [], {"mini_batches": 32}),
    "fsrcnn @ 4 MiB": (["fsrcnn"], NPU, ["scratchpad.capacity=4MiB"], {}),
    "densenet121": (["onnx:densenet121"], NPU, [], {}),
    "resnet50 + bert x 4": ([RESNET, BERT], NPU, [], {"mini_batches": 4}),
    "alexnet": (["onnx:bvlc_alexnet"], NPU, [], {}),
    "inception_v2": (["onnx:inception_v2"], NPU, [], {}),
    "vgg19": (["onnx:vgg19"], NPU, [], {}),
    "zfnet512": (["onnx:zfnet512"], NPU, [], {}),
}
COMMANDS = {
    "resnet50": [RESNET],
    "resnet50 --effort quick": [RESNET, "--effort", "quick"],
    "resnet50 at 512 KiB": [RESNET, "--set", "scratchpad.capacity=512KiB"],
    "densenet121": ["onnx:densenet121"],
    "resnet50 + bert x 4": [RESNET, BERT, "--mini-batches", "4"],
    "10,260 jobs --time-limit 2": [RESNET, "--mini-batches", "180", "--time-limit", "2"],
}


def planned(case: str) -> tuple[float, float, float]:
    """The objective, the lower bound of the makespan, and seconds of the processor."""
    models, target, overrides, options = (CASES | OTHERS)[case]
    graphs, machine = networks(models), lm.target(target, list(overrides))
    begun = time.process_time()
    plan = lm.plan(graphs, machine, **options)
    spent = time.process_time() - begun
    assert lm.verify(plan) == ()
    return plan.objective.value, plan.metrics.makespan.lower_bound, spent


def commanded(case: str) -> tuple[float, float, float]:
    """The same of a whole command; its seconds are by the clock where it has a time limit."""
    arguments = COMMANDS[case]
    with tempfile.TemporaryDirectory() as folder:
        command = [str(Path(sys.executable).parent / "loadmaster"), "plan", *arguments]
        command += ["--target", NPU, "--precision", "int8", "--out", folder, "--json"]
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        # A user's second command does not compile the package again, which takes 0.8 s.
        kept = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run(command, check=True, capture_output=True, env=kept)
        clock, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        metrics = json.loads((Path(folder) / "plan.json").read_text())["metrics"]["makespan"]
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = clock if "--time-limit" in arguments else spent
    return metrics["value"], metrics["lower_bound"], seconds


def rows(cases: Sequence[str], commands: bool) -> Iterator[tuple[float, ...]]:
    """Print a row for each case; its value and seconds over those before."""
    print(f"{'':28} {'value':>10} {'before':>10} {'':>8} {'bound':>10} {'s':>6} {'before':>6}")
    for case in cases:
        value, bound, seconds = (commanded if commands else planned)(case)
        known = BEFORE["commands" if commands else "plans"].get(case)
        text = f"{case:28} {value:10.4g}"
        if known is None:
            print(f"{text} {'':10} {'':8} {bound:10.4g} {seconds:6.2f}", flush=True)
            continue
        ratio = value / known["value"]
        text += f" {known['value']:10.4g} {ratio - 1:+8.2%} {bound:10.4g} {seconds:6.2f}"
        print(f"{text} {known['seconds']:6.2f}", flush=True)
        yield ratio, seconds, known["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--commands", action="store_true")
    arguments = parser.parse_args()
    every = [*COMMANDS] if arguments.commands else [*CASES, *OTHERS]
    found = [*rows(arguments.cases or every, arguments.commands)]
    if found:
        ratios, spent, before = zip(*found, strict=True)
        print(
            f"{len(found)} cases: geometric mean {geometric(ratios) - 1:+.2%}, worst"
            f" {max(ratios) - 1:+.2%}, {sum(spent):.0f} s, {sum(before):.0f} s before"
        )


if __name__ == "__main__":
    main()

"""Plans that run in PyTorch, against rivals, on the same steps in the same process, measured in
turns.

``python -m benchmarks.runtime [training|inference|operators ...] [--device cuda] [--network NAME]
[--budgets 70,50,30] [--slow-memory DIR]`` prints tables in Markdown: training steps under budgets,
peaks of inference, and what variants of operators that write into a given tensor allocate beside
it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TRAINING = {
    "resnet50": ("benchmarks.networks.resnet:resnet50", {"cpu": 4, "cuda": 128}, ""),
    "gpt": ("benchmarks.runtime:gpt_768", {"cpu": 1, "cuda": 32}, "adamw"),
    "unet": ("benchmarks.runtime:unet_96", {"cpu": 4, "cuda": 128}, ""),
    "gpt2": ("benchmarks.networks.hugging_face:gpt2", {"cpu": 1, "cuda": 32}, "adamw"),
    "bert": ("benchmarks.networks.hugging_face:bert", {"cpu": 2, "cuda": 64}, "adamw"),
    "vit": ("benchmarks.networks.hugging_face:vit", {"cpu": 2, "cuda": 64}, "adamw"),
}
"""Factory, batch by device, and an optimizer that is part of the step: a step takes a second or a
few on two cores."""
INFERENCE = {
    "resnet18": ("benchmarks.runtime:resnet18", {"cpu": 8, "cuda": 256}),
    "resnet50": ("benchmarks.networks.resnet:resnet50", {"cpu": 8, "cuda": 256}),
    "encoder": ("benchmarks.runtime:encoder", {"cpu": 8, "cuda": 256}),
    "unet": ("benchmarks.runtime:unet_96", {"cpu": 8, "cuda": 256}),
}
ASKED = {"cpu": {50: 1.2, 30: 1.4}, "cuda": {50: 1.15, 30: 1.4}}
"""Time of eager steps that a step takes at most, by budget."""


def gpt_768(batch):  # type: ignore[no-untyped-def]
    """GPT-2's twelve layers, 768 wide, on sequences of 256; a vocabulary of 8,192."""
    from benchmarks.networks.gpt import gpt

    return gpt(batch, layers=12, width=768, heads=12, steps=256, vocabulary=8192)


def unet_96(batch):  # type: ignore[no-untyped-def]
    """A U-Net on small images."""
    from benchmarks.networks.unet import unet

    return unet(batch, size=96, width=32)


def resnet18(batch):  # type: ignore[no-untyped-def]
    """A ResNet of two blocks of two convolutions in every stage."""
    from torch import nn

    from benchmarks.networks.classification import conv_unit, labelled

    class Basic(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                conv_unit(inputs, outputs, 3, stride, 1),
                nn.Conv2d(outputs, outputs, 3, 1, 1),
                nn.BatchNorm2d(outputs),
            )
            self.shortcut = (
                nn.Conv2d(inputs, outputs, 1, stride) if inputs != outputs else nn.Identity()
            )

        def forward(self, x):  # type: ignore[no-untyped-def]
            return (self.body(x) + self.shortcut(x)).relu()

    widths = [64, 64, 128, 256, 512]
    stages = [
        block
        for stage, (inputs, outputs) in enumerate(itertools.pairwise(widths))
        for block in (Basic(inputs, outputs, 2 if stage else 1), Basic(outputs, outputs, 1))
    ]
    stem = [conv_unit(3, 64, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    return labelled(
        nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)),
        batch,
        224,
    )


def encoder(batch):  # type: ignore[no-untyped-def]
    """A transformer encoder of six layers, 512 wide, on sequences of 512."""
    import torch
    from torch import nn

    layer = nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), (
        torch.randn(batch, 512, 512),
    )


def _measured(
    factory: str,
    given: argparse.Namespace,
    training: bool,
    batch: int,
    budgets: list[float],
    optimizer: str = "",
) -> dict[str, Any]:
    """A process of its own for each network: peaks do not see each other's libraries."""
    arguments = [
        factory,
        given.device,
        int(training),
        batch,
        json.dumps(budgets),
        given.slow_memory or "",
        given.steps,
        optimizer,
    ]
    script = "import sys; from benchmarks.runtime import measure; measure(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def measure(
    factory: str,
    device: str,
    training: str,
    batch: str,
    budgets: str,
    slow_memory: str,
    steps: str,
    optimizer: str,
) -> None:
    """Print the figures of a network, as JSON."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    from loadmaster.core.json_object import json_of
    from loadmaster.integrations.torch_compile.compare.run_json import RunJson
    from loadmaster.integrations.torch_compile.running import made_module

    shares = json.loads(budgets)
    options: dict[str, Any] = {"fast_memory": shares[0], "slow_memory": slow_memory or None}
    work = made_module(factory, int(batch), training == "1", device, optimizer or None)
    from loadmaster.integrations.torch_compile.compare.comparison import compare

    result = compare(work, options, int(steps), True, shares[1:])
    print(json.dumps(json_of(result, RunJson)))


def _mib(count: object) -> str:
    return f"{count / 2**20:.0f}" if isinstance(count, int | float) else "-"


def _seconds(value: object, base: float | None = None) -> str:
    if not isinstance(value, float):
        return "-"
    return f"{value:.2f}" + ("" if base is None else f" ({value / base:.2f}x)")


def _row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def _head(*cells: str) -> None:
    print()
    _row(*cells)
    _row(*("---" for _ in cells))


def training(given: argparse.Namespace) -> None:
    """Plans under budgets, the same graphs unmoved, and rivals."""
    budgets = [float(budget) for budget in given.budgets.split(",")]
    _head("network, way", "peak MiB", "s/step", "moved MiB", "what else")
    for network in given.network or TRAINING:
        factory, batches, optimizer = TRAINING[network]
        result = _measured(
            factory,
            given,
            True,
            batches[given.device],
            [budget / 100 for budget in budgets],
            optimizer,
        )
        if "failed" in result:
            _row(network, "-", "-", "-", result["failed"])
            continue
        base = result["unmoved_step_seconds"]
        equal = "gradients equal"
        if not result["gradients_equal"]:
            close = "within" if result["results_close"] else "DIFFER by"
            equal = f"gradients {close} {result['error']:.1e}"
        _row(
            f"{network}, graphs unmoved",
            _mib(result["unmoved_measured_peak"]),
            _seconds(base, base),
            "0",
            equal,
        )
        busy = result["executor_step_cpu_seconds"] / result["unmoved_step_cpu_seconds"] - 1
        _row(
            f"{network}, executor, nothing moved",
            "",
            _seconds(result["executor_step_seconds"], base),
            "0",
            f"{busy:+.1%} CPU time",
        )
        for budget, plan in zip(budgets, result["budgets"], strict=True):
            _row(
                f"{network}, budget {budget:.0f} %: {_mib(plan['budget'])} MiB",
                *_plan_cells(
                    plan, base, result["rivals"]["eager"], ASKED[given.device].get(int(budget))
                ),
            )
        for name, way in result["rivals"].items():
            _row(
                f"{network}, {name}",
                _mib(way["measured_peak"]),
                _seconds(way["step_seconds"], base),
                "",
                _against(way, base),
            )


def _plan_cells(
    plan: dict[str, Any], base: float, eager: dict[str, Any], asked: float | None
) -> Iterator[str]:
    if "failed" in plan:
        yield from ("-", "-", "-", plan["failed"])
        return
    yield from (
        _mib(plan["measured_peak"]),
        _seconds(plan["step_seconds"], base),
        _mib(plan["moved_bytes"]),
    )
    times = "" if "failed" in eager else f"{_times_of_eager(plan, eager, asked)}; "
    yield (
        f"planned {_mib(plan['planned_peak'])} MiB; {times}predicted"
        f" {plan['predicted_step_seconds']:.2f} s, steps took"
        f" {_ratio(plan['measured_over_predicted'])} of it"
    )


def _times_of_eager(plan: dict[str, Any], eager: dict[str, Any], asked: float | None) -> str:
    slower, busy = (plan[name] / eager[name] for name in ("step_seconds", "step_cpu_seconds"))
    reached = (
        "" if asked is None else f" (asked {asked}x: {'reached' if slower <= asked else 'missed'})"
    )
    return f"{slower:.2f}x eager's time{reached}, {busy:.2f}x its processor time"


def _ratio(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    return f"{found['ratio']:.2f}" + (
        "" if found["low"] is None else f" ({found['low']:.2f} to {found['high']:.2f})"
    )


def _against(way: dict[str, Any], base: float) -> str:
    if "failed" in way:
        return str(way["failed"])
    mine = way["loadmaster_at_its_peak"]
    shown = (
        mine["failed"].split(":")[0]
        if "failed" in mine
        else f"{_seconds(mine['step_seconds'], base)}"
    )
    beaten = "yes" if way["beaten"] else (way["difference"] or {"verdict": "-"})["verdict"]
    return f"plan at its peak: {shown}; beaten: {beaten}"


def inference(given: argparse.Namespace) -> None:
    """Peaks of inference above parameters and inputs; nothing moves."""
    _head("network, way", "planned MiB", "peak MiB", "above parameters and inputs MiB", "s/step")
    for network in given.network or INFERENCE:
        factory, batches = INFERENCE[network]
        result = _measured(factory, given, False, batches[given.device], [1.0])
        if "failed" in result:
            _row(network, "-", "-", "-", result["failed"])
            continue
        plan = {"measured_peak": result["measured_peak"], "step_seconds": result["step_seconds"]}
        for name, way in {"planned arena": plan, **result["rivals"]}.items():
            peak = way["measured_peak"]
            above = None if peak is None else peak - result["resident"]
            planned = result["planned_peak"] if way is plan else None
            _row(
                f"{network}, {name}",
                _mib(planned),
                _mib(peak),
                _mib(above),
                way.get("failed") or _seconds(way["step_seconds"]),
            )


def operators(_: argparse.Namespace) -> None:
    """What operators allocate beside a result that they are given, and beside one at a planned
    address."""
    import torch
    from tests.support.compiled import most_allocated

    def allocated(call: Callable[[], object]) -> int:
        call()
        return most_allocated(call)

    x, images, weight = (
        torch.randn(512, 1024),
        torch.randn(8, 64, 56, 56),
        torch.randn(64, 64, 3, 3),
    )
    aten = torch.ops.aten
    convolution = (images, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    made = (images, None, None, None, None, True, 0.1, 1e-5)
    cases: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("convolution", aten.convolution, convolution),
        ("relu", aten.relu, (x,)),
        ("gelu", aten.gelu, (x,)),
        ("mm", aten.mm, (x, x.t())),
        ("addmm", aten.addmm, (x[0, :512], x, x.t())),
        ("cat", aten.cat, ([x, x],)),
        ("_softmax", aten._softmax, (x, 1, False)),
        ("native_layer_norm", aten.native_layer_norm, (x, [1024], None, None, 1e-5)),
        ("native_batch_norm", aten.native_batch_norm, made),
        ("max_pool2d_with_indices", aten.max_pool2d_with_indices, (images, [2, 2])),
        ("upsample_nearest2d", aten.upsample_nearest2d, (images, [112, 112])),
        ("embedding", aten.embedding, (x, torch.zeros(4096, dtype=torch.long))),
    ]
    _head("operator", "result MiB", "beside it, with .out", "beside it, at a planned address")
    with torch.no_grad():
        for name, packet, arguments in cases:
            results = packet(*arguments)
            several = isinstance(results, tuple)
            outs = results if several else (results,)
            size = sum(out.nbytes for out in outs)
            overload = next(
                o
                for o in packet.overloads()
                if o.endswith("out") and "dimname" not in o and "names" not in o
            )
            named = [
                argument.name
                for argument in getattr(packet, overload)._schema.arguments
                if argument.is_out
            ]
            given = dict(zip(named, outs, strict=True))
            out_variant = allocated(lambda: getattr(packet, overload)(*arguments, **given))  # noqa: B023
            planned = allocated(lambda: packet(*arguments)) - size  # noqa: B023
            _row(
                name,
                f"{size / 2**20:.1f}",
                f"{out_variant / 2**20:.1f}",
                f"{max(planned, 0) / 2**20:.1f}",
            )


def _conditions(given: argparse.Namespace) -> str:
    import torch

    folder = Path(given.slow_memory or os.environ.get("TMPDIR", "/tmp"))
    mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text().splitlines()]
    disk = max(
        (m for m in mounts if folder.resolve().is_relative_to(m[1])), key=lambda m: len(m[1])
    )
    machine = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    if given.device == "cuda":
        ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        machine += (
            ", " + subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
        )
        from loadmaster.integrations.torch_compile.cuda_memory import CudaMemory

        link = CudaMemory(torch.device("cuda", 0)).link
        machine += (
            f", {link.to_fast / 1e9:.1f} GB/s from host memory, {link.to_slow / 1e9:.1f} to it"
        )
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{given.device}: {machine or platform.machine()}; torch {torch.__version__},"
        f" {torch.get_num_threads()} threads; disk {disk[0]} ({disk[2]}) at {folder}; load at the"
        f" start {load}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "tables", nargs="*", default=["training", "inference", "operators"], metavar="TABLE"
    )
    parser.add_argument("--network", action="append")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--budgets", default="70,50,30")
    parser.add_argument("--slow-memory")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    print(_conditions(given), flush=True)
    for table in given.tables:
        {"training": training, "inference": inference, "operators": operators}[table](given)


if __name__ == "__main__":
    main()

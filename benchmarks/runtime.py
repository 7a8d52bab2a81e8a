"""Plans that run in PyTorch: time per step and measured peak at budgets of 70, 50 and 30 %, against rivals, on the same steps.

``python -m benchmarks.runtime [--device cuda] [--budgets 70,50,30] [--slow-memory DIR] [NETWORK...]`` prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys

NETWORKS = {
    "resnet50": ("benchmarks.networks.resnet:resnet50", {"cpu": 4, "cuda": 128}),
    "gpt": ("benchmarks.runtime:gpt_256", {"cpu": 4, "cuda": 64}),
    "unet": ("benchmarks.runtime:unet_64", {"cpu": 4, "cuda": 128}),
}
"""Factory and batch by device: a step takes about a second on a few cores."""


def gpt_256(batch):  # type: ignore[no-untyped-def]
    """GPT-2's layout with twelve layers, at a width at which activations outweigh parameters on a CPU."""
    from benchmarks.networks.gpt import gpt

    return gpt(batch, layers=12, width=256, heads=8, steps=256, vocabulary=2048)


def unet_64(batch):  # type: ignore[no-untyped-def]
    """A U-Net on small images."""
    from benchmarks.networks.unet import unet

    return unet(batch, size=64, width=32)


def _run(network: str, device: str, budget: str, slow_memory: str | None, steps: int) -> dict[str, object]:
    """A process of its own for each cell: peaks do not see each other's libraries."""
    factory, batches = NETWORKS[network]
    command = [sys.executable, "-m", "loadmaster", "run", f"torch:{factory}", "--training", "--batch", str(batches[device])]
    command += ["--fast", f"{budget}%", "--device", device, "--steps", str(steps), "--compare", "--json"]
    command += [] if slow_memory is None else ["--slow-memory", slow_memory]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1]}


def _mib(count: object) -> str:
    return f"{count / 2**20:.0f}" if isinstance(count, int | float) else "-"


def _row(name: str, budget: str, seconds: object, base: object, peak: object, more: str = "") -> str:
    shown = f"{seconds:.2f}" if isinstance(seconds, float) else "-"
    slower = f"{seconds / base:.2f}x" if isinstance(seconds, float) and isinstance(base, float) else "-"
    return f"| {name} | {budget} | {shown} | {slower} | {_mib(peak)} | {more} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--budgets", default="70,50,30")
    parser.add_argument("--slow-memory")
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    machine = platform.processor() or platform.machine()
    if given.device == "cuda":
        ask = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        machine = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    print(f"{given.device}: {machine}\n")
    print("| network, way | budget | s/step | slowdown | peak MiB | plan |")
    print("|---|---|---|---|---|---|")
    for network in given.networks:
        for budget in given.budgets.split(","):
            cell = _run(network, given.device, budget, given.slow_memory, given.steps)
            if "failed" in cell:
                print(f"| {network} | {budget} % | - | - | - | {cell['failed']} |", flush=True)
                continue
            base = cell["unmoved_step_seconds"]
            sizes = f"planned {_mib(cell['planned_peak'])}, moved {_mib(cell['moved_bytes'])} MiB"
            plan = f"{sizes}, predicted {cell['predicted_step_seconds']:.2f} s"
            plan += "" if cell["gradients_equal"] else ", GRADIENTS DIFFER"
            print(_row(f"{network}, loadmaster", f"{budget} %", cell["step_seconds"], base, cell["measured_peak"], plan))
            print(_row(f"{network}, unmoved", "", base, base, cell["unmoved_measured_peak"]))
            for name, way in cell["rivals"].items():  # type: ignore[attr-defined]
                print(_row(f"{network}, {name}", "", way["step_seconds"], base, way["measured_peak"]), flush=True)


if __name__ == "__main__":
    main()

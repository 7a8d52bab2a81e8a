"""Models as people train them, under budgets: the peak of each of the first steps, watched from
outside of the process.

``python -m benchmarks.models [NAME ...] [--budgets 50,30] [--steps 10] [--small] [--slow-memory
DIR]`` prints a table in Markdown with the peak above the imports and the budget. Every way of
running is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadmaster.integrations.torch_compile.compare.measurement import status_bytes


@dataclass(frozen=True)
class Training:
    """How a model is trained: its factory in `benchmarks.networks.hugging_face`, batch, optimizer,
    and what the loop does besides."""

    factory: str
    batch: int
    optimizer: str = "AdamW"
    accumulated: int = 1
    clipped: bool = False


CASES = {
    "bert": Training("hugging_face:bert", 4, accumulated=2, clipped=True),
    "gpt2": Training("hugging_face:gpt2", 1),
    "vit": Training("hugging_face:vit", 2),
    "t5": Training("hugging_face:t5", 4),
    "diffusion": Training("hugging_face:diffusion", 1),
    "wide_resnet50": Training("resnet:wide_resnet50", 4, optimizer="SGD"),
}


def made(case: Training, small: bool) -> tuple[Any, Any]:
    """The module and its batch."""
    import importlib

    module, name = case.factory.split(":")
    factory = getattr(importlib.import_module(f"benchmarks.networks.{module}"), name)
    model, inputs = factory(case.batch, small=True) if small else factory(case.batch)
    return model, inputs


def train(name: str, budget: str, small: str, folder: str) -> None:
    """Make a step for each line on the standard input; print when imports are done, and after each
    step its seconds."""
    import torch

    from loadmaster.integrations.torch_compile.backend import loadmaster, model_of
    from loadmaster.integrations.torch_compile.compare.measurement import return_freed_memory

    warnings.simplefilter("ignore")
    case = CASES[name]
    return_freed_memory()
    warm_up(budget)
    print("{}", flush=True)
    sys.stdin.readline()
    torch.manual_seed(0)
    module, inputs = made(case, small == "small")
    module.train()
    optimizer = getattr(torch.optim, case.optimizer)(module.parameters(), lr=1e-4)
    options = {"fast_memory": budget, "slow_memory": folder or None}
    call = (
        module if budget == "eager" else torch.compile(module, backend=loadmaster, options=options)
    )
    for _ in sys.stdin:
        start, busy = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        for _ in range(case.accumulated):
            out = call(**inputs) if isinstance(inputs, dict) else call(*inputs)
            loss = (
                out
                if isinstance(out, torch.Tensor)
                else out[0]
                if isinstance(out, tuple)
                else out.loss
            )
            loss.backward()
            del out
        if case.clipped:
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        row: dict[str, Any] = {
            "loss": loss.item(),
            "seconds": time.perf_counter() - start,
            "cpu_seconds": time.process_time() - busy,
        }
        if budget != "eager":
            model = model_of(call)
            row |= {
                "budget": model.budget,
                "unmoved": model.unmoved_peak,
                "planned": max((plan.placed_peak for plan in model.plans), default=None),
                "moved": sum(plan.moved_bytes for plan in model.plans),
                "graphs": len(model.plans),
                "fallbacks": [f"{f.graph}: {f.reason}" for f in model.fallbacks],
            }
        print(json.dumps(row), flush=True)


def warm_up(budget: str) -> None:
    """Have the libraries and the compiler take the memory that they keep: a few steps of something
    small."""
    import torch

    module, inputs = made(CASES["bert"], True)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    call = (
        module
        if budget == "eager"
        else torch.compile(module, backend="loadmaster", options={"fast_memory": "100%"})
    )
    for _ in range(3):
        call(**inputs).loss.backward()
        optimizer.step()


def watched(name: str, budget: str, small: bool, folder: str, steps: int) -> list[dict[str, Any]]:
    """The rows of `train` with the peak of anonymous memory in each step, above the imports; the
    kernel's own high-water mark."""
    script = "import sys; from benchmarks.models import train; train(*sys.argv[1:])"
    command = [sys.executable, "-c", script, name, budget, "small" if small else "", folder]
    rows: list[dict[str, Any]] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        empty = status_bytes(process.pid)["RssAnon"]
        process.stdin.write("\n")
        for _ in range(steps):
            Path(f"/proc/{process.pid}/clear_refs").write_text("5")
            before = status_bytes(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                rows.append({"failed": process.stderr.read().strip().splitlines()[-1]})
                break
            now = status_bytes(process.pid)
            shared = max(one["RssFile"] + one["RssShmem"] for one in (now, before))
            rows.append(
                json.loads(line)
                | {
                    "peak": now["VmHWM"] - shared - empty,
                    "rest": now["RssAnon"] - empty,
                }
            )
        process.kill()
    return rows


def _mib(count: Any) -> str:
    return "-" if count is None else f"{count / 2**20:,.0f}"


def report(name: str, budget: str, rows: list[dict[str, Any]]) -> None:
    """Print a row of the table."""
    done = [row for row in rows if "failed" not in row]
    failed = [row["failed"] for row in rows if "failed" in row]
    if not done:
        print(f"| {name} | {budget} | {failed[0]} |", flush=True)
        return
    later = done[len(done) // 2 :]
    cells = [
        name,
        budget,
        _mib(done[-1].get("budget")),
        _mib(done[-1].get("planned")),
        " ".join(_mib(row["peak"]) for row in done),
        f"{statistics.median(row['seconds'] for row in later):.2f}",
        f"{statistics.median(row['cpu_seconds'] for row in later):.2f}",
        _mib(done[-1].get("moved")),
        "; ".join([*done[-1].get("fallbacks", []), *failed])
        or f"{done[-1].get('graphs', '-')} graphs, loss {done[-1]['loss']:.6f}",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--budgets", default="eager,50%,30%")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--slow-memory", default="")
    given = parser.parse_args()
    print(
        "| model | budget | budget MiB | planned MiB | peak of each step, MiB | s/step | CPU s/step"
        " | moved MiB | what else |"
    )
    print("|" + "---|" * 9)
    for name in given.names or CASES:
        for budget in given.budgets.split(","):
            report(name, budget, watched(name, budget, given.small, given.slow_memory, given.steps))


if __name__ == "__main__":
    main()

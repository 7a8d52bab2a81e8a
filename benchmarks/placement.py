"""AutoTM's tables and figures.

``python -m benchmarks.placement [--table conventional|large|gpu|goal|speed|inference] [--networks
NAME ...] [--modes MODE ...]``

Whole training steps are captured with fake tensors and placed on ``optane-server`` at the DRAM:PMM
ratios of the slides, or on ``gpu-pcie`` at the memory of its card. Every figure is an estimate of
the roofline model; what the slides measured stands in docs/reproduce-the-papers.md. Needs torch
(extra ``torch``). One line for each network and limit; ``--json`` prints an object a line instead.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import loadmaster as lm
from loadmaster.core.errors import LoadmasterError
from loadmaster.cost.read_sequence import read_sequence
from loadmaster.placement.place import place
from loadmaster.placement.sequence import KernelSequence

MODULES = {
    "inception-v4": "inception:inception_v4",
    "vgg-19": "vgg:vgg19",
    "vgg-416": "vgg:vgg416",
    "resnet-200": "resnet:resnet200",
    "densenet-264": "densenet:densenet264",
}
CONVENTIONAL = {"inception-v4": 1024, "vgg-19": 2048, "resnet-200": 512, "densenet-264": 512}
LARGE = {"inception-v4": 6144, "vgg-416": 320, "resnet-200": 2560, "densenet-264": 3072}
GPU = {
    "inception-v4": (64, 128, 256),
    "resnet-200": (32, 64, 128),
    "densenet-264": (32, 64, 128),
    "vgg-19": (64, 128),
}
RATIOS = {"1:0": 1.0, "8:1": 8 / 9, "4:1": 0.8, "1:1": 0.5, "1:4": 0.2, "0:1": 0.0}
"""DRAM to PMM, as the share of the step's peak that is DRAM; 1:4 is the goal of this project, not a
column of the slides."""
DRAM = 384 * 2**30
"""Bytes of DRAM in the machine of the slides, which the large networks exceed."""
MODES = ("static", "sync", "async")
INFERENCE = ("resnet50", "squeezenet", "shufflenet", "inception_v1")
"""Networks of the onnx package whose few large tensors have to share little fast memory."""
RIVALS = ("first-touch", "2lm", "lru", "largest-first", "intervals")


@dataclass(frozen=True)
class Row:
    """One network at one limit."""

    network: str
    batch: int
    share: str
    limit: int
    figures: dict[str, Any]

    def line(self) -> str:
        shown = " ".join(f"{key} {_short(value)}" for key, value in self.figures.items())
        return (
            f"{self.network:13} batch {self.batch:5} {self.share:>5} {self.limit / 1e9:7.1f} GB "
            f" {shown}"
        )


def captured(network: str, batch: int, target: str) -> KernelSequence:
    """A training step."""
    return read_sequence(
        f"torch:benchmarks.networks.{MODULES[network]}",
        lm.target(target),
        training=True,
        batch=batch,
        cost="roofline",
    )


def figures(sequence: KernelSequence, limit: int, modes: tuple[str, ...]) -> dict[str, Any]:
    """Slowdown of every mode and rival, with gap, moved bytes and CPU seconds."""
    found: dict[str, Any] = {}
    for mode in modes:
        try:
            plan = place(sequence, limit, mode=mode)
        except LoadmasterError:
            found[mode] = None
            continue
        found[mode] = plan.slowdown
        found[f"{mode}-gap"] = f"{plan.gap:.2%}"
        found[f"{mode}-moved"] = f"{plan.moved_bytes / 1e9:.1f}GB"
        found[f"{mode}-cpu"] = f"{plan.cpu_seconds:.1f}s"
        for rival in plan.rivals:
            if rival.name in RIVALS:
                found[rival.name] = (
                    None if rival.makespan is None else rival.makespan / plan.all_fast_seconds
                )
    return found


def conventional(networks: list[str], target: str, modes: tuple[str, ...]) -> Iterator[Row]:
    """The slides' conventional networks at every ratio."""
    for network in networks:
        batch = CONVENTIONAL[network]
        sequence = captured(network, batch, target)
        for share, part in RATIOS.items():
            limit = sequence.peak_bytes if part == 1 else int(sequence.peak_bytes * part)
            yield Row(network, batch, share, limit, figures(sequence, limit, modes))


def large(networks: list[str], target: str, modes: tuple[str, ...]) -> Iterator[Row]:
    """The large networks in the machine's own DRAM."""
    for network in networks:
        batch = LARGE[network]
        sequence = captured(network, batch, target)
        yield Row(network, batch, "384Gi", DRAM, figures(sequence, DRAM, modes))


def gpu(networks: list[str], target: str, modes: tuple[str, ...]) -> Iterator[Row]:
    """The card: kernels need their operands in its memory, so that nothing is static."""
    for network in networks:
        for batch in GPU[network]:
            sequence = captured(network, batch, target)
            fast = lm.target(target).fast
            assert fast is not None
            share = f"{min(1.0, fast.capacity / sequence.peak_bytes):.0%}"
            yield Row(
                network,
                batch,
                share,
                fast.capacity,
                figures(sequence, fast.capacity, tuple(mode for mode in modes if mode != "static")),
            )


def goal(networks: list[str], target: str, modes: tuple[str, ...]) -> Iterator[Row]:
    """80 % of the fast memory replaced: every mode and its bound, and the geometric mean over the
    networks."""
    losses: dict[str, list[float]] = {}
    for network in networks:
        sequence = captured(network, CONVENTIONAL[network], target)
        limit = int(sequence.peak_bytes * 0.2)
        shown: dict[str, Any] = {}
        for mode in modes:
            plan = place(sequence, limit, mode=mode)
            bound = plan.lower_bound / plan.all_fast_seconds
            shown |= {mode: plan.slowdown, f"{mode}-bound": bound}
            losses.setdefault(mode, []).append(plan.slowdown)
            losses.setdefault(f"{mode}-bound", []).append(bound)
        yield Row(network, CONVENTIONAL[network], "20%", limit, shown)
    means = {
        key: math.exp(sum(map(math.log, values)) / len(values)) for key, values in losses.items()
    }
    yield Row("geo. mean", 0, "20%", 0, means)


def speed(networks: list[str], target: str, modes: tuple[str, ...]) -> Iterator[Row]:
    """From captured graph to checked placement."""
    for network in networks:
        started = time.perf_counter()
        sequence = captured(network, CONVENTIONAL[network], target)
        capture = time.perf_counter() - started
        for share in (0.5, 0.3, 0.2):
            limit = int(sequence.peak_bytes * share)
            shown: dict[str, Any] = {
                "capture": f"{capture:.1f}s",
                "kernels": len(sequence.kernels),
                "tensors": len(sequence.tensors),
            }
            for mode in modes:
                plan = place(sequence, limit, mode=mode)
                shown |= {
                    f"{mode}-s": plan.search_seconds,
                    f"{mode}-cpu": plan.cpu_seconds,
                    f"{mode}-gap": f"{plan.gap:.2%}",
                }
                shown[f"{mode}-rounds"] = plan.rounds
            yield Row(network, CONVENTIONAL[network], f"{share:.0%}", limit, shown)


def inference(networks: list[str], target: str, modes: tuple[str, ...]) -> Iterator[Row]:
    """Inference with 20 and 10 % of the fast memory: whole tensors, and pieces of them."""
    for network in networks:
        for batch in (1, 64):
            sequence = read_sequence(f"onnx:{network}", lm.target(target), batch=batch)
            for share in (0.2, 0.1):
                limit = int(sequence.peak_bytes * share)
                shown: dict[str, Any] = {}
                for name, page in (("whole", 0), ("pieces", sequence.page)):
                    for mode in modes:
                        plan = place(replace(sequence, page=page), limit, mode=mode)
                        shown |= {
                            f"{mode}-{name}": plan.slowdown,
                            f"{mode}-{name}-gap": f"{plan.gap:.2%}",
                        }
                        shown[f"{mode}-{name}-cpu"] = f"{plan.cpu_seconds:.1f}s"
                yield Row(network, batch, f"{share:.0%}", limit, shown)


TABLES = {
    "conventional": conventional,
    "large": large,
    "gpu": gpu,
    "goal": goal,
    "speed": speed,
    "inference": inference,
}


def _short(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", choices=list(TABLES), default="conventional")
    parser.add_argument("--networks", nargs="*", choices=[*MODULES, *INFERENCE])
    parser.add_argument("--modes", nargs="*", choices=MODES, default=list(MODES))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    known = {"large": LARGE, "gpu": GPU, "inference": INFERENCE}.get(options.table, CONVENTIONAL)
    networks = [name for name in options.networks or known if name in known]
    for row in TABLES[options.table](
        networks, "gpu-pcie" if options.table == "gpu" else "optane-server", tuple(options.modes)
    ):
        print(json.dumps(vars(row)) if options.json else row.line(), flush=True)


if __name__ == "__main__":
    main()

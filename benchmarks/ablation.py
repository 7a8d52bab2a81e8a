"""What each mechanism of the planner gains: ``python -m benchmarks.ablation [--seeds N] [--cases
A,B] [--without A,B] [--processes N]``.

Plans every case with everything, then with one mechanism taken away at a time, and prints the
geometric mean and the worst case of the objective over that with everything, and the processor
time. Beside them stands the noise: other seeds with everything. A mechanism that gains less than
half a per cent beyond the noise has no place in the planner. Objectives are results of the cost
model, so that they do not depend on the machine; processor time does.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import loadmaster as lm
from loadmaster.planning.joint import search

FIXTURES = Path(__file__).parents[1] / "fixtures"
MOBILENET, BERT, NCF = (
    str(FIXTURES / f"{name}.onnx.gz") for name in ("mobilenetv2", "bert-base", "ncf")
)
SQUEEZENET, SHUFFLENET, RESNET = "onnx:squeezenet", "onnx:shufflenet", "onnx:resnet50"


def small(capacity: str, bandwidth: str = "34 GB/s") -> list[str]:
    return [f"scratchpad.capacity={capacity}", f"dram.bandwidth={bandwidth}"]


CASES: dict[str, tuple[Sequence[Any], str, Sequence[str], Mapping[str, Any]]] = {
    "squeezenet": ([SQUEEZENET], "edge-npu", [], {}),
    "shufflenet": ([SHUFFLENET], "edge-npu", [], {}),
    "mobilenetv2": ([MOBILENET], "edge-npu", [], {}),
    "inception_v1": (["onnx:inception_v1"], "edge-npu", [], {}),
    "ncf": ([NCF], "edge-npu", [], {}),
    "resnet50": ([RESNET], "edge-npu", [], {}),
    "squeezenet x 4": ([SQUEEZENET], "edge-npu", [], {"mini_batches": 4}),
    "shufflenet x 8 @ 8 GB/s": (
        [SHUFFLENET],
        "edge-npu",
        ["dram.bandwidth=8 GB/s"],
        {"mini_batches": 8},
    ),
    "two networks": ([SQUEEZENET, MOBILENET], "edge-npu", [], {}),
    "three networks x 2": ([SQUEEZENET, SHUFFLENET, NCF], "edge-npu", [], {"mini_batches": 2}),
    "mobilenetv2 @ 256 KiB": ([MOBILENET], "edge-npu", small("256 KiB", "4 GB/s"), {}),
    "resnet50 @ 512 KiB": ([RESNET], "edge-npu", small("512 KiB"), {}),
    "resnet50 @ small buffers": (
        [RESNET],
        "edge-npu",
        [
            *small("512 KiB", "8 GB/s"),
            "cores.ws.buffer=32KiB",
            "cores.lb.buffer=32KiB",
        ],
        {"cut": "none"},
    ),
    "squeezenet @ 256 KiB": ([SQUEEZENET], "edge-npu", small("256 KiB", "8 GB/s"), {}),
    "unet @ 512 KiB": (["unet"], "edge-npu", small("512 KiB"), {}),
    "fsrcnn @ 512 KiB": (["fsrcnn"], "edge-npu", small("512 KiB"), {}),
    "squeezenet @ energy": ([SQUEEZENET], "edge-npu", [], {"objective": "energy"}),
    "mobilenetv2 @ edp": ([MOBILENET], "edge-npu", small("1 MiB"), {"objective": "edp"}),
    "deadlines": (
        [SQUEEZENET, MOBILENET],
        "edge-npu",
        [],
        {
            "mini_batches": 3,
            "periods": {"mobilenetv2": 4e-4},
            "deadlines": {"mobilenetv2": 3.5e-4},
        },
    ),
    "m3e-s4": ([SHUFFLENET, SQUEEZENET], "m3e-s4", ["dram.bandwidth=4 GB/s"], {}),
    "copied": ([SQUEEZENET], "gpu-pcie", ["hbm.capacity=4 MiB"], {}),
    "decode": (["decode"], "server-npu", [], {}),
}
"""Networks, target, what is changed of it, and options."""


def networks(names: Sequence[str]) -> list[Any]:
    from benchmarks.networks.image_to_image import fsrcnn, unet
    from benchmarks.networks.llama import llama

    made: dict[str, Callable[[], Any]] = {
        "unet": lambda: unet(128, 16, 3),
        "fsrcnn": lambda: fsrcnn(180, 320),
        "decode": lambda: llama(1, 1, 256, layers=4, vocabulary=4000),
    }
    return [
        made[name]() if name in made else lm.load(name, precision="int8", batch=1) for name in names
    ]


def replaced(name: str, value: Any) -> Callable[[], Any]:
    return lambda: patch(f"loadmaster.planning.{name}", value)


def _nothing(*_: Any, **__: Any) -> Iterator[Any]:
    return iter(())


def _without(name: str, rest: Callable[[Any], Any]) -> Callable[[], Any]:
    """Of what a function of the joint search lists, the rest; several such patches add up."""

    def patched() -> Any:
        listed = getattr(search, name)
        return replaced(f"joint.search.{name}", lambda *given: rest(listed(*given)))()

    return patched


def _without_number(name: str) -> Callable[[], Any]:
    """A number of the joint search's policy that keeps its first value."""
    return _without(
        "policy_values",
        lambda values: {key: own for key, own in values.items() if key != name},
    )


def _without_move(kind: type) -> Callable[[], Any]:
    return _without("moves", lambda moves: [move for move in moves if not isinstance(move, kind)])


NUMBERS = (
    "streamed_share",
    "core_wait_ratio",
    "prefetch_fraction",
    "link_load_limit",
)
MOVES = (
    search.ChangePrice,
    search.ChangeBlocks,
    search.ChangeNetwork,
    search.ShiftJobs,
    search.StreamTensors,
)
MECHANISMS: dict[str, Sequence[Callable[[], Any]]] = {
    "halves": [replaced("cutting.candidates._halves", _nothing)],
    "retiling": [replaced("cut_selection.retiled", lambda planner, solution: (planner, solution))],
    "column tiles": [replaced("cutting.band_cuts.has_wide_bands", lambda *_: False)],
    "bands for half and a quarter": [replaced("cutting.band_cuts._SHARES", (1.0,))],
    "bands for a quarter": [replaced("cutting.band_cuts._SHARES", (1.0, 0.5))],
    "listed changes before drawn ones": [replaced("joint.search.listed", lambda _: [])],
    **{f"policy: {name}": [_without_number(name)] for name in NUMBERS},
    **{f"move: {kind.__name__}": [_without_move(kind)] for kind in MOVES},
}


@contextmanager
def without(names: Sequence[str]) -> Iterator[None]:
    with ExitStack() as patches:
        for name in names:
            for each in MECHANISMS[name]:
                patches.enter_context(each())
        yield


def run(case: str, names: Sequence[str], seed: int, effort: str) -> tuple[float, float]:
    """The objective, with lateness in front, and seconds of the processor."""
    models, target, overrides, options = CASES[case]
    graphs, machine = networks(models), lm.target(target, list(overrides))
    with without(names):
        begun = time.process_time()
        plan = lm.plan(graphs, machine, seed=seed, effort=effort, **options)
        spent = time.process_time() - begun
    assert lm.verify(plan) == ()
    return plan.objective.value + 1e3 * plan.lateness, spent


def geometric(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cases", default=",".join(CASES), metavar="A,B")
    parser.add_argument(
        "--without",
        action="append",
        metavar="A,B",
        help="mechanisms taken away together; may be repeated; default: each alone",
    )
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--effort", default="normal")
    arguments = parser.parse_args()
    cases = arguments.cases.split(",")
    ways = [way.split(",") for way in arguments.without or MECHANISMS]
    seeds = range(arguments.seeds)
    with ProcessPoolExecutor(arguments.processes) as pool:
        found = {
            (case, tuple(names), seed): pool.submit(run, case, names, seed, arguments.effort)
            for names in ([], *ways)
            for seed in seeds
            for case in cases
        }
        base = {(case, seed): found[case, (), seed].result() for seed in seeds for case in cases}
        for case in cases:
            values = [base[case, seed][0] for seed in seeds]
            spent = sum(base[case, seed][1] for seed in seeds) / len(seeds)
            spread = max(values) / min(values) - 1
            print(f"{case:24} {min(values):.6g}, seeds {spread:.2%} apart, {spent:.1f} s")
        noise = [
            geometric([base[case, seed][0] / base[case, 0][0] for case in cases]) for seed in seeds
        ]
        print(f"noise of seeds: {min(noise) - 1:+.2%} to {max(noise) - 1:+.2%}\n")
        print(f"{'without':36} {'mean':>8} {'worst':>8} {'time':>8}")
        for names in ways:
            results = {key: found[key[0], tuple(names), key[1]].result() for key in base}
            ratios = [results[key][0] / base[key][0] for key in base]
            spent = sum(result[1] for result in results.values())
            total = sum(result[1] for result in base.values())
            worst = max(zip(ratios, base, strict=True))
            name = ", ".join(names) if len(names) < 3 else f"{len(names)} mechanisms"
            print(
                f"{name:36} {geometric(ratios) - 1:+8.2%} {worst[0] - 1:+8.2%}"
                f" {spent / total - 1:+8.0%}  {worst[1][0]}",
                flush=True,
            )


if __name__ == "__main__":
    main()

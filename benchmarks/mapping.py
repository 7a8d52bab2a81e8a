"""The M3E paper's tables, with a bound: ``python -m benchmarks.mapping [DIR] [--tables]
[--networks] [--speed] [--all] [--tasks A,B] ...``.

DIR is a folder with ``instances/TASK.K.csv`` (M3E's job lists) and ``maestro.csv``. ``--tables``:
tasks x settings S1 to S6 x bandwidths x strategies, throughput relative to MAGMA's as in the paper,
and the bound's; ``--all`` takes every group of a task, not the first only. ``--networks``: the same
for real networks of each task, read through ONNX, pooled and cut into groups of 100, with the
`dataflow` cost model, and what flexible arrays gain; this needs no DIR. ``--speed``: mappings
evaluated per CPU second, and how many times that is what plain Python does in the same run.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.core.errors import MappingError
from loadmaster.cost.analyse import analyse
from loadmaster.cost.base import JobAnalysis
from loadmaster.cost.job_pool import read_pool
from loadmaster.mapping.bounds.group_bounds import GroupBound, group_bound
from loadmaster.mapping.group import Group, group_of
from loadmaster.mapping.group_search import MappingSearch
from loadmaster.mapping.map_jobs import map_jobs
from loadmaster.mapping.strategies.registry import STRATEGIES
from loadmaster.targets.hardware import Target
from loadmaster.targets.load import target
from loadmaster.workloads.frontends.job_list import read_job_list

TASKS = ("conv", "lang", "recom", "mix")
"""Vision, language, recommendation, and all of them."""
SMALL, LARGE = (1, 2, 4, 8, 16), (1, 16, 256)
SETTINGS = {
    "m3e-s1": SMALL,
    "m3e-s2": SMALL,
    "m3e-s3": LARGE,
    "m3e-s4": LARGE,
    "m3e-s5": LARGE,
    "m3e-s6": LARGE,
}
ROOT = Path(__file__).parents[1]
VISION = (
    "onnx:resnet50",
    "fixtures/mobilenetv2.onnx.gz",
    "onnx:squeezenet",
    "onnx:shufflenet",
    "onnx:vgg19",
    "onnx:inception_v1",
)
LANGUAGE = ("fixtures/bert-base.onnx.gz", "fixtures/gpt2.onnx.gz", "fixtures/mobilebert.onnx.gz")
RECOMMENDATION = ("fixtures/dlrm.onnx.gz", "fixtures/ncf.onnx.gz", "fixtures/wide-and-deep.onnx.gz")
NETWORKS = {
    "vision": VISION,
    "language": LANGUAGE,
    "recom": RECOMMENDATION,
    "mix": VISION[:3] + LANGUAGE + RECOMMENDATION,
}
"""Real networks of each task."""
SHOWN = (
    "magma",
    "auto",
    "herald",
    "ai-mt",
    "random",
    "es",
    "tbpsa",
    "ga",
    "de",
    "pso",
    "cma-es",
    "a2c",
    "ppo",
)
"""The paper's strategies; those whose library is not installed are shown as absent."""


def clocked(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds and the result."""
    started = time.process_time()
    result = call()
    return time.process_time() - started, result


def cases(
    folder: Path, tasks: list[str], settings: list[str], every: bool, cost: str
) -> Iterator[tuple[str, str, int, JobAnalysis]]:
    """Group, setting, GB/s and job analysis."""
    for task in tasks:
        files = sorted((folder / "instances").glob(f"{task}.*.csv"))
        for file in files if every else files[:1]:
            jobs = read_job_list(file)
            for setting in settings:
                bandwidths = SETTINGS[setting]
                table = analyse(jobs, target(setting), cost)
                for bandwidth in bandwidths:
                    yield file.stem, setting, bandwidth, table


def searched(group: Group, bound: GroupBound, name: str, samples: int | None = None) -> float:
    """Makespan that a strategy finds, without the proof."""
    chosen = STRATEGIES.find(name)
    search = MappingSearch(group, bound, samples=samples or chosen.samples(group))
    chosen.run(search)
    return search.score


def relative(magma: float, group: Group, bound: GroupBound, name: str) -> float | None:
    """Throughput relative to MAGMA's, or None where the strategy's library is not installed."""
    try:
        return magma / searched(group, bound, name)
    except MappingError:
        return None


def tables(folder: Path, strategies: list[str], arguments: argparse.Namespace) -> None:
    """Throughput relative to MAGMA's, and what the bound leaves possible."""
    others = [name for name in strategies if name not in ("magma", "auto")]
    print(
        f"cost model {arguments.cost}; throughput relative to MAGMA's with"
        f" {arguments.magma_samples} samples: 1 is equal, more is better"
    )
    columns = "  ".join(f"{name:>7}" for name in ["auto", *others, "bound"])
    print(
        f"{'group':8} {'setting':7} {'GB/s':>4}  {'magma ms':>9}  {columns}  {'gap':>8} "
        f" {'CPU s':>5}"
    )
    ratios: dict[str, list[float]] = {name: [] for name in ["auto", *others, "bound"]}
    gaps: list[float] = []
    for name, setting, bandwidth, table in cases(
        folder,
        arguments.tasks.split(","),
        arguments.settings.split(","),
        arguments.all,
        arguments.cost,
    ):
        group = group_of(table, bandwidth * 1e9)
        bound = group_bound(group)
        auto = map_jobs(table, bandwidth * 1e9)
        magma = searched(group, bound, "magma", arguments.magma_samples)
        row: dict[str, float | None] = {"auto": magma / auto.makespan} | {
            other: relative(magma, group, bound, other) for other in others
        }
        row["bound"] = magma / auto.lower_bound
        for column, ratio in row.items():
            ratios[column] += [] if ratio is None else [ratio]
        gaps.append(auto.gap)
        shown = "  ".join(" absent" if ratio is None else f"{ratio:7.3f}" for ratio in row.values())
        print(
            f"{name:8} {setting:7} {bandwidth:4}  {magma * 1e3:9.4f}  {shown}  {auto.gap:8.3%} "
            f" {auto.cpu_seconds:5.2f}  {auto.status}",
            flush=True,
        )
    means = "  ".join(
        f"{math.exp(np.mean(np.log(values))):7.3f}" if values else " absent"
        for values in ratios.values()
    )
    print(f"{'geometric mean':34}{means}")
    behind, close = (
        sum(ratio < 1 - 1e-9 for ratio in ratios["auto"]),
        sum(gap < 0.01 for gap in gaps),
    )
    print(
        f"auto behind MAGMA in {behind} of {len(gaps)}; within 1 % of its bound in {close}, median"
        f" gap {np.median(gaps):.4%}"
    )


def networks(arguments: argparse.Namespace) -> None:
    """Throughput over all jobs of real networks, in groups of 100, relative to MAGMA's, and on
    flexible arrays relative to fixed ones."""
    print(
        "cost model dataflow, int8; throughput relative to MAGMA's: 1 is equal, more is better;"
        " flexible: auto's, relative to fixed arrays"
    )
    columns = "  ".join(f"{name:>7}" for name in ("auto", "herald", "ai-mt", "bound"))
    print(
        f"{'task':9} {'jobs':>4} {'setting':7} {'GB/s':>4}  {'magma ms':>9}  {columns} "
        f" {'flexible':>8}"
    )
    for task, sources in NETWORKS.items():
        paths = [source if source.startswith("onnx:") else str(ROOT / source) for source in sources]
        for setting in arguments.settings.split(","):
            fixed = read_pool(paths, target(setting), precision="int8").analysis
            flexible = read_pool(paths, _flexible(target(setting)), precision="int8").analysis
            for bandwidth in LARGE:
                magma, auto, herald, ai_mt = (
                    map_jobs(fixed, bandwidth * 1e9, strategy=name, group_size=100)
                    for name in ("magma", "auto", "herald", "ai-mt")
                )
                shaped = map_jobs(flexible, bandwidth * 1e9, group_size=100)
                ratios = [
                    magma.makespan / each
                    for each in (auto.makespan, herald.makespan, ai_mt.makespan, auto.lower_bound)
                ]
                shown = "  ".join(f"{ratio:7.3f}" for ratio in ratios)
                print(
                    f"{task:9} {len(fixed.jobs):4} {setting:7} {bandwidth:4} "
                    f" {magma.makespan * 1e3:9.4f}  {shown} "
                    f" {auto.makespan / shaped.makespan:8.3f}",
                    flush=True,
                )


def _flexible(machine: Target) -> Target:
    return replace(machine, cores=tuple(replace(core, flexible=True) for core in machine.cores))


def plain_python(group: Group, queues: list[list[int]]) -> float:
    """The allocator as one would write it down."""
    latency, demand = group.latency.tolist(), group.demand.tolist()
    heads = [0] * len(queues)
    running: dict[int, list[float]] = {}
    now = 0.0
    while True:
        for core, queue in enumerate(queues):
            if core not in running and heads[core] < len(queue):
                job = queue[heads[core]]
                heads[core] += 1
                running[core] = [latency[job][core], demand[job][core]]
        if not running:
            return now
        slow = max(1.0, sum(demand for _, demand in running.values()))
        step = min(left for left, _ in running.values())
        now += step * slow
        for core in list(running):
            running[core][0] -= step
            if running[core][0] <= 0.0:
                del running[core]


def speed() -> None:
    """Mappings per CPU second of one thread, on random groups."""
    print(
        f"{'jobs':>6} {'cores':>5}  {'plain Python':>12}  {'queues':>16}  {'genomes':>16} "
        f" {'annealing moves':>16}  {'MAGMA 10,000':>12}"
    )
    for jobs, cores in ((100, 4), (100, 8), (100, 16), (1000, 16), (10_000, 64)):
        generator = np.random.default_rng(jobs + cores)
        shape = jobs, cores
        group = Group(generator.lognormal(0, 1.5, shape), generator.lognormal(-1.5, 1, shape))
        count = max(4, min(20_000, 2_000_000 // jobs))
        core = generator.integers(0, cores, (count, jobs), dtype=np.int32)
        priority = generator.integers(0, 2**32, (count, jobs), dtype=np.uint32)
        queues = group.decode(core, priority)
        some = max(1, 5000 // jobs)
        lists = [
            [
                [int(job) for job in part[part < jobs]]
                for part in np.split(row, np.flatnonzero(row == jobs)[:-1])
            ]
            for row in queues[:some]
        ]
        seconds, python = clocked(
            lambda group=group, lists=lists: [plain_python(group, each) for each in lists]
        )
        plain = some / seconds
        seconds, native = min(
            (clocked(lambda group=group, queues=queues: group.makespans(queues)) for _ in range(3)),
            key=lambda pair: pair[0],
        )
        assert np.allclose(native[:some], python, rtol=1e-9)
        by_queue = count / seconds
        by_genome = count / min(
            clocked(partial(group.native.scores, core, priority))[0] for _ in range(3)
        )
        moves = annealing_speed(group, queues[:1], count)
        print(
            f"{'':13}  two threads: {scaling(group, queues):.2f} times as fast as one", flush=True
        )
        magma = f"{magma_seconds(group) * 1e3:9.1f} ms" if jobs <= 1000 else ""
        ratios = "  ".join(
            f"{rate:9.0f} {rate / plain:5.0f}x" for rate in (by_queue, by_genome, moves)
        )
        print(f"{jobs:6} {cores:5}  {plain:12.0f}  {ratios}  {magma:>12}", flush=True)


def scaling(group: Group, queues: np.ndarray) -> float:
    """How many times as fast two threads evaluate a population, by the wall clock; the best of five
    each."""

    def wall(threads: int) -> float:
        started = time.perf_counter()
        group.makespans(queues, threads)
        return time.perf_counter() - started

    return min(wall(1) for _ in range(5)) / min(wall(2) for _ in range(5))


def annealing_speed(group: Group, queues: np.ndarray, count: int) -> float:
    """Neighbours tried per CPU second while cooling down from a random mapping."""
    best, score = queues, group.makespans(queues)
    least, tried, seconds = score, 0, 0.0
    for stream, temperature in enumerate(np.geomspace(3e-2, 1e-5, 20)):
        options = {
            "temperature": np.array([temperature]),
            "samples": max(1, count // 20),
            "target": 0.0,
            "seed": 1,
            "stream": stream,
        }
        spent, walked = clocked(
            partial(group.native.anneal, queues, best, score, least, threads=1, **options)
        )
        queues, best, score, least = walked.queues, walked.best, walked.score, walked.best_score
        tried, seconds = tried + walked.tried, seconds + spent
    return tried / seconds


def magma_seconds(group: Group) -> float:
    """CPU seconds of 10,000 samples, operators included; the best of three."""
    table = JobAnalysis(
        tuple(map(str, range(group.jobs))),
        tuple(map(str, range(group.cores))),
        group.latency,
        group.demand,
        np.zeros(group.jobs, dtype=np.int64),
    )
    grouped = group_of(table, 1.0)
    generator = np.random.default_rng(0)
    core = generator.integers(0, group.cores, (100, group.jobs), dtype=np.int32)
    priority = generator.integers(0, 2**32, (100, group.jobs), dtype=np.uint32)

    def run() -> None:
        score = grouped.native.scores(core, priority)
        rates = {
            "mutation": 0.05,
            "crossover_gen": 0.9,
            "crossover_rg": 0.05,
            "crossover_accel": 0.05,
        }
        grouped.native.evolve(
            core,
            priority,
            score,
            **rates,
            elites=10,
            parents=10,
            first_generation=0,
            generations=110,
            seed=0,
            threads=1,
        )

    return min(clocked(run)[0] for _ in range(3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--tables", action="store_true", help="needs DIR")
    parser.add_argument("--networks", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--tasks", default=",".join(TASKS), metavar="A,B")
    parser.add_argument("--settings", default=",".join(SETTINGS), metavar="A,B")
    parser.add_argument("--all", action="store_true", help="every group of a task")
    parser.add_argument("--strategies", default=",".join(SHOWN), metavar="A,B")
    parser.add_argument("--cost", default="maestro")
    parser.add_argument("--magma-samples", type=int, default=10_000, metavar="N")
    arguments = parser.parse_args()
    names = arguments.settings.lower().split(",")
    arguments.settings = ",".join(f"m3e-{name}" if name[:1] == "s" else name for name in names)
    for option, known in (("settings", SETTINGS), ("tasks", TASKS)):
        for name in getattr(arguments, option).split(","):
            if name not in known:
                parser.error(f"--{option} {name}: choose from {','.join(known)}")
    if arguments.folder and not list((arguments.folder / "instances").glob("*.csv")):
        parser.error(f"{arguments.folder}: has no instances/TASK.K.csv")
    if not (arguments.tables or arguments.networks or arguments.speed):
        arguments.tables = arguments.networks = arguments.speed = True
    if arguments.speed:
        speed()
    if arguments.networks:
        networks(arguments)
    if arguments.tables and arguments.folder:
        tables(arguments.folder, arguments.strategies.split(","), arguments)
    elif arguments.tables:
        print("no tables of the paper's groups: give their DIR")


if __name__ == "__main__":
    main()

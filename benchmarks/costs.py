"""How fast the cost models are: ``python -m benchmarks.costs [LIST.csv ...] [--target NAME]
[--repeat N]``; ``--rivals``: other people's.

Makes the job analysis table of each list (by default 100 made-up layers of a convolutional network,
of a language model, and all distinct) on every core of the target with both analytical models, and
prints the milliseconds of processor time: for the whole table at once, one job and one core after
the other in a Python loop, and for the tables of all tilings that plans choose from. Then what the
cache saves on larger work. Medians over the repeats.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cost_rivals.answers import Answers
from benchmarks.cost_rivals.compare import add_options, compare
from loadmaster.cost.analyse import analyse, read_job_analysis
from loadmaster.cost.analytical.job_costs import job_tables
from loadmaster.cost.base import CostModel
from loadmaster.cost.models.measured import parse_job_analysis
from loadmaster.cost.registry import COST_MODELS
from loadmaster.targets.hardware import Target
from loadmaster.targets.load import target as read_target
from loadmaster.workloads.frontends.job_list import read_job_list
from loadmaster.workloads.job import Workload

HEADER = "K,C,Y,X,R,S,type"
CONVOLUTION = [
    (64, 64, 56, 56, 1, 1, 1),
    (64, 64, 58, 58, 3, 3, 1),
    (256, 512, 28, 28, 1, 1, 1),
    (1, 384, 16, 16, 3, 3, 2),
]
LANGUAGE = [
    (512, 768, 768, 1, 1, 1, 3),
    (512, 3072, 768, 1, 1, 1, 3),
    (512, 512, 64, 1, 1, 1, 3),
    (1000, 768, 1, 1, 1, 1, 0),
]


def made_up(
    folder: Path,
    name: str,
    layers: Sequence[tuple[int, ...]],
    count: int,
    *,
    distinct: bool = False,
) -> Path:
    """A list of layers like the given ones, of other channels each if they are to be distinct."""
    rng = random.Random(0)
    rows = []
    for index in range(count):
        k, c, *rest = layers[index % len(layers)]
        scale = index + 1 if distinct else rng.choice((1, 2, 3, 4))
        rows.append((k + 8 * scale if k > 1 else k, c + 8 * scale, *rest))
    path = folder / f"{name}.csv"
    path.write_text("\n".join([HEADER, *(",".join(map(str, row)) for row in rows)]))
    return path


def median(
    repeat: int, clock: Callable[[], float], run: Callable[..., object], *arguments: object
) -> float:
    """Milliseconds of a call, after one to warm up."""
    run(*arguments)
    seconds = []
    for _ in range(repeat):
        started = clock()
        run(*arguments)
        seconds.append(clock() - started)
    return statistics.median(seconds) * 1e3


def one_by_one(model: CostModel, work: Workload, target: Target) -> None:
    """The same table, one job and one core at a time."""
    for job in work.jobs:
        own = {operand.tensor for operand in (*job.reads, *job.writes)}
        single = replace(
            work,
            jobs=(job,),
            tensors=tuple(tensor for tensor in work.tensors if tensor.name in own),
        )
        for core in target.cores:
            model.analyse(single, replace(target, cores=(core,)))


def tables(lists: Sequence[Path], target: Target, repeat: int) -> None:
    print(
        f"{'list':24}{'jobs':>6}{'cores':>6} "
        f" {'model':10}{'table, ms':>10}{'loop, ms':>10}{'ratio':>8}{'all tilings, ms':>17}"
    )
    for path in lists:
        work = read_job_list(path)
        for name in ("dataflow", "maestro"):
            model = COST_MODELS.find(name)
            at_once = median(repeat, time.process_time, model.analyse, work, target)
            loop = median(1, time.process_time, one_by_one, model, work, target)
            front = (
                f"{median(repeat, time.process_time, job_tables, work, target):17.2f}"
                if name == "dataflow"
                else ""
            )
            print(
                f"{path.stem:24}{len(work.jobs):6}{len(target.cores):6} "
                f" {name:10}{at_once:10.2f}{loop:10.1f}{loop / at_once:8.0f}{front}"
            )


def looked_up(work: Workload, target: Target, cache: Path) -> None:
    analyse(work, target, cache=cache)


def read_again(table: Path, cache: Path) -> None:
    read_job_analysis(table, cache=cache)


def row(name: str, work: Workload, target: Target, fresh: float, known: float) -> str:
    sizes = f"{len(work.jobs):6}{len(target.cores):6}"
    return f"{name:24}{sizes}{fresh:10.1f}{known:10.1f}{fresh / known:8.1f}"


def cache(folder: Path, target: Target, repeat: int) -> None:
    print(f"\n{'cache':24}{'jobs':>6}{'cores':>6}{'work, ms':>10}{'known, ms':>10}{'ratio':>8}")
    store = folder / "cache"
    for name, distinct in (("layers that repeat", False), ("distinct layers", True)):
        work = read_job_list(
            made_up(folder, "large", CONVOLUTION + LANGUAGE, 2000, distinct=distinct)
        )
        fresh = median(
            repeat, time.perf_counter, COST_MODELS.find("dataflow").analyse, work, target
        )
        known = median(repeat, time.perf_counter, looked_up, work, target, store)
        print(row(name, work, target, fresh, known))
    table = folder / "table.csv"
    lines = [f"{job.name},{core.name},1e-6,1e9" for job in work.jobs for core in target.cores]
    text = "\n".join(["job,core,latency_s,bandwidth_bytes_per_s", *lines])
    table.write_text(text)
    fresh = median(repeat, time.perf_counter, parse_job_analysis, text, "table.csv")
    known = median(repeat, time.perf_counter, read_again, table, store)
    print(row("table of measured costs", work, target, fresh, known))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lists", nargs="*", type=Path)
    parser.add_argument("--target", default="m3e-s6")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument(
        "--rivals",
        action="store_true",
        help=(
            "instead: cycles, bytes and energy beside ZigZag's, AccelForge's, SCALE-Sim's and"
            " MAESTRO's"
        ),
    )
    add_options(parser)
    arguments = parser.parse_args()
    if arguments.rivals:
        compare(
            Answers(arguments.seconds, arguments.answers),
            arguments.layers,
            arguments.styles,
            arguments.programs,
        )
        return
    target = read_target(arguments.target)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        usual = [
            made_up(place, "convolutions", CONVOLUTION, 100),
            made_up(place, "language", LANGUAGE, 100),
        ]
        usual.append(made_up(place, "all-distinct", CONVOLUTION + LANGUAGE, 100, distinct=True))
        tables(arguments.lists or usual, target, arguments.repeat)
        cache(place, target, arguments.repeat)


if __name__ == "__main__":
    main()

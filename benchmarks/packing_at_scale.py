"""How tight and fast packing is for many buffers: ``python -m benchmarks.packing_at_scale [--count
N] [--only FAMILY] [FILE.csv ...]``.

For every family, and every file in MiniMalloc's CSV: peak / load bound, CPU seconds of
`loadmaster.allocate`, its check included, and peak memory of the process. Every case runs in a
process of its own. With ``--rivals`` omnimalloc's greedy packs the same data there too, if it can
be imported and the set is small enough for its quadratic memory.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import resource
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import loadmaster as lm
from loadmaster.core.arrays import Ints

Plain = tuple[Ints, Ints, Ints]
"""Lower, upper and size of every buffer."""

RIVAL_COPES_WITH = 30_000
"""Buffers beyond which omnimalloc runs out of memory."""


def uniform(count: int, seed: int) -> Plain:
    """Lifetimes of up to a twentieth of the time, one instant for ten buffers."""
    random = np.random.default_rng(seed)
    span = max(count // 10, 20)
    length = random.integers(1, span // 20 + 2, count)
    lower = (random.random(count) * (span - length)).astype(np.int64)
    return lower, lower + length, random.integers(1024, 1 << 20, count)


def model_like(count: int, seed: int) -> Plain:
    """A layer per instant: most outputs die after a few layers, some live long."""
    random = np.random.default_rng(seed)
    lower = np.arange(count)
    length = np.where(
        random.random(count) < 0.9, random.integers(1, 6, count), random.integers(6, 2000, count)
    )
    return lower, lower + length, (2 ** random.uniform(8, 22, count)).astype(np.int64)


def sliding(count: int, seed: int, window: int) -> Plain:
    """Windows of one length."""
    lower = np.arange(count)
    return lower, lower + window, np.random.default_rng(seed).integers(1, 1 << 16, count)


def tiling(count: int, seed: int, pinwheels: bool, shrunk: float = 0, most: int = 500) -> Plain:
    """A full rectangle cut into pieces, whose lifetimes then lose a little at both ends: nothing
    lines up; its height is enough for all.

    Each cut splits a piece, chosen by area, in two; with ``pinwheels`` every other one splits it in
    five, which no straight cut undoes. Ends lose up to 3 of 10,000 instants, or up to the part
    ``shrunk`` of the lifetime.
    """
    random, height, margin = np.random.default_rng(seed), 1 << 20, 16
    pieces = [(0, 10_000, 0, height)]
    while len(pieces) < min(count, most):
        area = np.array(
            [(upper - lower) * (high - low) for lower, upper, low, high in pieces], dtype=np.float64
        )
        lower, upper, low, high = pieces.pop(int(random.choice(len(pieces), p=area / area.sum())))
        wide, tall = upper - lower > 4 * margin, high - low > 4 * margin
        if pinwheels and wide and tall and random.random() < 0.5:
            a, b = sorted(
                (
                    lower + margin + random.choice(upper - lower - 2 * margin, 2, replace=False)
                ).tolist()
            )
            c, d = sorted(
                (low + margin + random.choice(high - low - 2 * margin, 2, replace=False)).tolist()
            )
            pieces += [
                (lower, b, low, c),
                (b, upper, low, d),
                (a, upper, d, high),
                (lower, a, c, high),
                (a, b, c, d),
            ]
        elif wide and (not tall or random.random() < 0.5):
            cut = int(random.integers(lower + margin, upper - margin))
            pieces += [(lower, cut, low, high), (cut, upper, low, high)]
        elif tall:
            cut = int(random.integers(low + margin, high - margin))
            pieces += [(lower, upper, low, cut), (lower, upper, cut, high)]
        else:
            pieces.append((lower, upper, low, high))
    begin, end, bottom, top = np.array(pieces).T
    late, early = random.integers(
        0, (shrunk * (end - begin)).astype(np.int64) + 1 if shrunk else 4, (2, len(pieces))
    )
    return begin + late, np.maximum(end - early, begin + late + 1), top - bottom


def identical(count: int, seed: int) -> Plain:
    """All alive at once, all alike."""
    return np.zeros(count, dtype=np.int64), np.ones(count, dtype=np.int64), np.full(count, 64)


def holed(count: int, seed: int, longest: int) -> lm.Problem:
    """Lifetimes of up to ``longest`` instants, each with one or two absences of any length; at most
    10,000 buffers."""
    random = np.random.default_rng(seed)
    count = min(count, HOLED)
    buffers = []
    for index in range(count):
        lower, length = int(random.integers(0, count)), int(random.integers(5, longest + 1))
        marks = np.unique(
            random.integers(lower + 1, lower + length, 2 * int(random.integers(1, 3)))
        ).tolist()
        edges = [lower, *marks[: len(marks) // 2 * 2], lower + length]
        buffers.append(
            lm.Buffer.during(
                str(index),
                list(zip(edges[::2], edges[1::2], strict=True)),
                int(random.integers(1, 1000)),
            )
        )
    return lm.problem_of(buffers)


HOLED = 10_000
WINDOWS = (64, 128, 256, 512, 1024, 2048, 4096)
FAMILIES: dict[str, Callable[[int, int], Plain | lm.Problem]] = {
    "uniform": uniform,
    "model-like": model_like,
    **{f"sliding {window}": partial(sliding, window=window) for window in WINDOWS},
    "identical": identical,
    "gaps, short": partial(holed, longest=100),
    "gaps, long": partial(holed, longest=1000),
    "tiling, straight cuts": partial(tiling, pinwheels=False),
    "tiling, pinwheels": partial(tiling, pinwheels=True),
    "tiling, shrunk": partial(tiling, pinwheels=False, shrunk=0.05),
    "tiling of 1,000, shrunk": partial(tiling, pinwheels=False, shrunk=0.05, most=1000),
}


def read(path: Path) -> Plain:
    """Plain columns of a file."""
    with path.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    lower, upper, size = (
        np.array([int(row[name]) for row in rows], dtype=np.int64)
        for name in ("lower", "upper", "size")
    )
    return lower, upper, size


def measure(name: str, make: Callable[[], Plain | lm.Problem], rivals: bool) -> None:
    """One line of the table."""
    case = make()
    started = time.process_time()
    answer = lm.allocate(case)
    took = time.process_time() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ratio = (answer.peak or 0) / answer.lower_bound
    print(
        f"{name:22} {len(answer.offsets):8} {ratio:8.4f} {took:8.2f} {memory:8.0f} MiB "
        f" {answer.status}",
        end="",
        flush=True,
    )
    if rivals and isinstance(case, tuple) and len(case[0]) <= RIVAL_COPES_WITH:
        _rival(case, answer.lower_bound)
    print(flush=True)


def _rival(plain: Plain, bound: int) -> None:
    try:
        from omnimalloc import Allocation
        from omnimalloc.allocators.greedy import GreedyByAllAllocator
    except ImportError:
        return
    rows = zip(*(column.tolist() for column in plain), strict=True)
    buffers = tuple(
        Allocation(id=i, size=size, start=lower, end=upper)
        for i, (lower, upper, size) in enumerate(rows)
    )
    started = time.process_time()
    peak = max(placed.offset + placed.size for placed in GreedyByAllAllocator().allocate(buffers))
    print(f"   omnimalloc {peak / bound:.4f} {time.process_time() - started:8.2f}", end="")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument(
        "--only",
        action="append",
        choices=FAMILIES,
        help="these families only; may be repeated; all by default",
    )
    arguments = parser.parse_args()
    wanted = arguments.only or list(FAMILIES)
    cases: list[tuple[str, Callable[[], Plain | lm.Problem]]] = [
        (path.stem, partial(read, path)) for path in arguments.files
    ]
    cases += [
        (name, partial(family, arguments.count, arguments.seed))
        for name, family in FAMILIES.items()
        if name in wanted
    ]
    print(f"{'':22} {'buffers':>8} {'/ bound':>8} {'CPU s':>8} {'memory':>8}")
    for name, make in cases:
        # A process each, which makes its own buffers, so that peak memory is its own.
        process = multiprocessing.get_context("fork").Process(
            target=measure, args=(name, make, arguments.rivals)
        )
        process.start()
        process.join()


if __name__ == "__main__":
    main()

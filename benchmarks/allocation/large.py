"""Generated families, and how close first-fit comes to their load bound."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.allocation.instances import NO_HINT, Plain, arrays, clocked
from loadmaster import _native


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
    length = np.where(random.random(count) < 0.9, random.integers(1, 6, count), random.integers(6, 2000, count))
    return lower, lower + length, (2 ** random.uniform(8, 22, count)).astype(np.int64)


def sliding(count: int, seed: int) -> Plain:
    """Windows of one length."""
    lower = np.arange(count)
    return lower, lower + 512, np.random.default_rng(seed).integers(1, 1 << 16, count)


def tiling(count: int, seed: int) -> Plain:
    """A rectangle cut into pieces: the optimum is the load bound, 2^20."""
    random = np.random.default_rng(seed)
    pieces = [(0, 1 << 20, 0, 1 << 10)]
    while len(pieces) < count:
        at = max(range(len(pieces)), key=lambda i: (pieces[i][1] - pieces[i][0]) * (pieces[i][3] - pieces[i][2]) * random.uniform(0.3, 1.3))
        left, right, low, high = pieces.pop(at)
        if high - low < 8 or random.random() < 0.5:
            cut = left + int((right - left) * random.beta(2, 2))
            pieces += [(left, cut, low, high), (cut, right, low, high)] if left < cut < right else [(left, right, low, high)]
        else:
            cut = low + 1 + int((high - low - 2) * random.beta(2, 2))
            pieces += [(left, right, low, cut), (left, right, cut, high)]
    random.shuffle(pieces)
    table = np.array(pieces, dtype=np.int64)
    return table[:, 0].copy(), table[:, 1].copy(), 1024 * (table[:, 3] - table[:, 2])


FAMILIES: dict[str, Callable[[int, int], Plain]] = {"uniform": uniform, "model-like": model_like, "sliding": sliding}


def large(name: str, plain: Plain) -> None:
    """The first order of the family, then all of it."""
    for title, seconds in (("first order", 0.0), ("all orders", 60.0)):
        took, (_, _, peak, bound, order) = clocked(lambda seconds=seconds: _native.allocate_greedy(*arrays(plain), NO_HINT, seconds))  # type: ignore[misc]
        print(f"  {name:22} {len(plain[0])} buffers, {title}: {peak / bound:.4f} x bound, {took:.2f} s CPU, by {order}")

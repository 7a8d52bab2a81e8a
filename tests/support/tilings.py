"""Packing problems that are hard, and whose optimum is known: a rectangle of time and memory cut
into buffers that fill it."""

import numpy as np
from tests.support.problems import columns

from loadmaster.allocation.rules import problem_of

SIDE = 64
"""Instants, and steps of memory, of the rectangle that is cut."""
STEP = 1024
PEAK = SIDE * STEP
"""Bytes alive at every instant: no packing is lower, and the cut one reaches it."""


def tight(count, seed, pinwheels=0.0):
    """At least ``count`` buffers; ``pinwheels`` is the share of cuts into five, which no straight
    cut takes apart again."""
    random = np.random.default_rng(seed)
    pieces = [(0, SIDE, 0, SIDE)]
    while len(pieces) < count:
        at = max(
            range(len(pieces)),
            key=lambda i: (
                (pieces[i][1] - pieces[i][0])
                * (pieces[i][3] - pieces[i][2])
                * random.uniform(0.3, 1)
            ),
        )
        left, right, low, high = pieces.pop(at)
        if pinwheels and min(right - left, high - low) >= 3 and random.random() < pinwheels:
            pieces += pinwheel(left, right, low, high, random)
        elif (right - left > high - low and right - left > 1) or high - low == 1:
            cut = int(random.integers(left + 1, right))
            pieces += [(left, cut, low, high), (cut, right, low, high)]
        else:
            cut = int(random.integers(low + 1, high))
            pieces += [(left, right, low, cut), (left, right, cut, high)]
    return problem_of(
        columns([(left, right, (high - low) * STEP) for left, right, low, high in pieces])
    )


def pinwheel(left, right, low, high, random):
    """Four rectangles around one in the middle."""
    a, b = sorted(random.choice(np.arange(left + 1, right), 2, replace=False).tolist())
    c, d = sorted(random.choice(np.arange(low + 1, high), 2, replace=False).tolist())
    return [
        (left, b, low, c),
        (b, right, low, d),
        (a, right, d, high),
        (left, a, c, high),
        (a, b, c, d),
    ]

"""Lists of layers of our own, in the format of the public ones, and what a walk through their loops
takes."""

import itertools

import numpy as np

HEADER = "K,C,Y,X,R,S,type"
WIDTH = 64


def layers(count, seed):
    """Distinct layers of ordinary proportions."""
    random = np.random.default_rng(seed)
    found = {}
    while len(found) < count:
        k, c = (int(2 ** random.uniform(2, 8)) for _ in range(2))
        kind = int(random.choice([0, 1, 1, 1, 3]))
        taps = int(random.choice([1, 3, 5]))
        rows = int(random.integers(taps, 20))
        found[
            {
                0: (k, c, 1, 1, 1, 1, 0),
                1: (k, c, rows, rows, taps, taps, 1),
                3: (c, rows, k, 1, 1, 1, 3),
            }[kind]
        ] = None
    return list(found)


def loops(layer):
    """K, C, output rows and columns, R and S."""
    k, c, y, x, r, s, kind = layer
    # M x K by K x N: N output channels, K input channels, M rows; the file has M, N, K.
    return (c, y, k, 1, 1, 1) if kind == 3 else (k, c, y - r + 1, x - s + 1, r, s)


def walked_cycles(layer, style, rows):
    """Cycles by taking every step: tiles of the array one after another, the taps of each and a
    step to change tiles."""
    k, c, y, x, r, s = loops(layer)
    if style == "dla":  # output channels down, input channels across
        tiles = itertools.product(range(y), range(x), range(0, k, rows), range(0, c, WIDTH))
    else:  # output rows over the whole array, as many columns at once as there are taps
        tiles = itertools.product(range(k), range(c), range(0, y, WIDTH * rows), range(0, x, s))
    return 1 + sum(r * s + 1 for _ in tiles)


def macs(layer):
    return int(np.prod(loops(layer)))


def text(rows, header=HEADER):
    """A file of layers, or of layers with more columns."""
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"

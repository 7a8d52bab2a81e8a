"""Cycles and deliveries of a single tile against a walk through the loops, step by step, of small
ungrouped nests; and those of several tiles against their sums over the tiles."""

from itertools import product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.layers import loops, machine, operand_bytes, tilings_of

from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest

ROWS, COLUMNS = 4, 6
small = st.integers(1, 9)
nests = st.builds(
    LoopNest,
    k=small,
    c=small,
    y=small,
    x=st.integers(1, 4),
    r=st.integers(1, 3),
    s=st.integers(1, 3),
    batch=st.integers(1, 2),
)


def blocks(extent, size):
    for first in range(0, extent, size):
        yield list(range(first, min(extent, first + size)))


def sums(results, step, steps):
    """Bytes of results that leave after a pass: whole at the last, else as sums of four bytes,
    which came back if it was not the first."""
    return results * ((1 if step == steps - 1 else 4) + (4 if step else 0))


def weight_stationary(n, local):
    cycles = delivered = 0
    positions = n.batch * n.y * n.x
    steps = [(channels, tap) for tap in range(n.r * n.s) for channels in blocks(n.c, COLUMNS)]
    for outputs in blocks(n.k, ROWS):
        passes = list(blocks(len(steps), max(1, local)))
        for number, kept in enumerate(passes):
            delivered += sum(len(outputs) * len(steps[step][0]) for step in kept)
            for _ in range(positions):
                cycles += len(kept)
                delivered += sum(len(steps[step][0]) for step in kept) + sums(
                    len(outputs), number, len(passes)
                )
    return cycles, delivered


def output_stationary(n, local):
    cycles = delivered = 0
    reduced = n.c * n.r * n.s
    turns = list(blocks(n.batch * n.y * n.x, ROWS))
    for side_by_side in blocks(len(turns), max(1, local // 4)):
        delivered += n.k * reduced
        for turn in side_by_side:
            for outputs in blocks(n.k, COLUMNS):
                cycles += reduced
                delivered += len(turns[turn]) * (reduced + len(outputs))
    return cycles, delivered


def row_stationary(n, local):
    cycles = delivered = 0
    filters = max(1, ROWS // min(n.r, ROWS))
    interleaved = max(1, local // (2 * n.s))
    passes = [
        (taps, channels) for taps in blocks(n.r, ROWS) for channels in blocks(n.c, interleaved)
    ]
    for outputs in blocks(n.k, filters):
        delivered += n.batch * n.c * (n.y + n.r - 1) * (n.x + n.s - 1)
        for _ in range(n.batch):
            for lines in blocks(n.y, COLUMNS):
                for number, (taps, channels) in enumerate(passes):
                    cycles += n.x * n.s * len(channels)
                    delivered += len(outputs) * len(taps) * len(channels) * n.s
                    delivered += sums(len(outputs) * len(lines) * n.x, number, len(passes))
    return cycles, delivered


WALKS = {
    Style.WEIGHT_STATIONARY: weight_stationary,
    Style.OUTPUT_STATIONARY: output_stationary,
    Style.ROW_STATIONARY: row_stationary,
}


@pytest.mark.parametrize("style", list(WALKS))
@given(nests, st.sampled_from([0, 1, 4, 9, 30, 512]))
@fuzz(60)
def test_closed_forms_are_what_walking_through_the_loops_counts(style, nest, local):
    costs = tilings_of(nest, machine(style, ROWS, COLUMNS, buffer=0, local_buffer=local))
    fill = ROWS + COLUMNS - 2
    assert (int(costs.cycles[0]) - fill, int(costs.delivered[0])) == WALKS[style](nest, local)


def moved_to_tile(style, n, groups, k, c, batch, y, x):
    """Elements of weights and inputs that go to the array for a tile, as docs/costs.md has it for
    elements that keep one item each."""
    positions, taps = batch * y * x, n.r * n.s
    weights = groups * k * c * taps
    if style is Style.OUTPUT_STATIONARY:
        turns = max(groups, -(-groups * k // COLUMNS))
        return weights * -(-positions // ROWS) + positions * c * taps * turns
    turns = max(groups, -(-groups * k // max(1, ROWS // n.r)))
    inputs = batch * (y + n.r - 1) * (x + n.s - 1) * c
    return weights * batch * -(-y // COLUMNS) + inputs * turns


def position_tiles(n):
    """Every way to cut positions into whole images, rows of one, or columns."""
    for size in range(1, n.batch + 1):
        yield [(len(images), n.y, n.x) for images in blocks(n.batch, size)]
    for rows, columns in [*product(range(1, n.y), [n.x]), *product([1, n.y], range(1, n.x))]:
        pairs = product(blocks(n.y, rows), blocks(n.x, columns))
        yield [(1, len(down), len(across)) for down, across in pairs] * n.batch


@pytest.mark.parametrize(
    ("style", "nest", "buffer"),
    [
        # Columns are cut: each tile of them takes the filters.
        (Style.ROW_STATIONARY, loops("k=6 c=9 y=5 x=7 s=2"), 120),
        # Output channels of groups are cut: each tile of them takes the inputs of its groups.
        (Style.OUTPUT_STATIONARY, loops("k=7 c=4 r=2 groups=3"), 80),
        (Style.ROW_STATIONARY, loops("k=3 c=5 groups=2"), 80),
    ],
)
def test_deliveries_of_a_cut_nest_are_those_of_its_tiles(style, nest, buffer):
    costs = tilings_of(nest, machine(style, ROWS, COLUMNS, buffer=buffer, local_buffer=0))
    results = operand_bytes(nest)[2]
    extents = nest.groups, nest.k, nest.c
    found = set()
    for sizes in product(*(range(1, extent + 1) for extent in extents)):
        cuts = [list(map(len, blocks(*cut))) for cut in zip(extents, sizes, strict=True)]
        for positions in position_tiles(nest):
            turns = -(-sizes[0] * sizes[1] // COLUMNS) * -(-max(map(prod, positions)) // ROWS)
            row_stationary = style is Style.ROW_STATIONARY
            passes = nest.c if row_stationary else len(cuts[2]) if turns > 1 else 1
            moved = sum(
                moved_to_tile(style, nest, *channels, *tile)
                for channels, tile in product(product(*cuts), positions)
            )
            found.add(moved + results * (1 + 8 * (passes - 1)))
    assert costs.delivered[0] in found

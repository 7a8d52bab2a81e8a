"""SCALE-Sim's cycles in a closed form, with and without what it takes to fill and drain the array
for every fold."""

from __future__ import annotations

from benchmarks.cost_rivals.layers import COLUMNS, ROWS
from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest


def folds(nest: LoopNest, style: Style) -> tuple[int, int, int]:
    """Folds of a layer unrolled to a matrix product, the cycles of work in each, and those of
    filling and draining; none for other arrays.

    A fold has so many rows and columns of the product as the array has. With weights staying they
    are loaded, and positions stream by: so many cycles as there are positions. With sums staying,
    factors stream by: as many as are added up.
    """
    positions, reduced = nest.y * nest.x, nest.c * nest.r * nest.s
    if style is Style.WEIGHT_STATIONARY:
        return -(-reduced // COLUMNS) * -(-nest.k // ROWS), positions, 2 * COLUMNS + ROWS - 2
    if style is Style.OUTPUT_STATIONARY:
        return -(-positions // ROWS) * -(-nest.k // COLUMNS), reduced, ROWS + COLUMNS - 2
    return 0, 0, 0


def filled_for_every_fold(nest: LoopNest, style: Style) -> int | None:
    """What SCALE-Sim answers, to the cycle."""
    number, work, filling = folds(nest, style)
    return number * (work + filling) - 1 if number else None


def kept_full(nest: LoopNest, style: Style) -> int | None:
    """The same of an array whose next fold is loaded, and whose last one leaves, while it works."""
    number, work, _ = folds(nest, style)
    return number * work if number else None

"""The cost model: never below what physics allows, never worse for more hardware, and exact where
that can be said by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.layers import machine, nests, one_job, operand_bytes

from loadmaster.core.errors import TargetError
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest

FILL = 8 + 16 - 2
"""Cycles in which the array of 8 x 16 elements fills and drains."""


def with_any_bandwidth(target):
    """The target with a link that nothing waits for: a job takes the cycles of its array."""
    return target.with_memory(0, read_bandwidth=1e18, write_bandwidth=1e18)


def costs(workload, target):
    table = job_table(workload, target)
    return float(table.compute[0, 0]) * 1e9, table.moved[:, 0].tolist(), table.tile[:, 0].tolist()


@given(
    nests, st.sampled_from([Style.WEIGHT_STATIONARY, Style.OUTPUT_STATIONARY, Style.ROW_STATIONARY])
)
@fuzz(60)
def test_a_larger_array_is_never_busy_for_longer(nest, style):
    """It takes longer to fill and drain only, in every repeat."""
    workload = one_job(nest, *operand_bytes(nest))
    small, large = (
        costs(workload, with_any_bandwidth(machine(style, rows, 2 * rows, 2**20)))[0]
        for rows in (8, 16)
    )
    assert large <= small + 24 * nest.repeats + 1e-3


@pytest.mark.parametrize(
    ("style", "nest", "cycles"),
    [
        # Depthwise: groups share the array on its diagonal, eight at a time.
        (Style.WEIGHT_STATIONARY, LoopNest(k=1, c=1, y=5, x=7, r=3, s=3, groups=16), 5 * 7 * 9 * 2),
        (Style.ROOFLINE, LoopNest(k=4, c=32, y=10, x=10), 100),
    ],
)
def test_cycles_by_hand(style, nest, cycles):
    """Of what test_loops.py does not walk through."""
    fill = 0 if style is Style.ROOFLINE else FILL
    assert costs(one_job(nest, *operand_bytes(nest)), with_any_bandwidth(machine(style)))[
        0
    ] == pytest.approx(cycles + fill)


def test_wider_numbers_take_longer():
    nest = LoopNest(k=8, c=16, y=5, x=7)
    sizes = operand_bytes(nest)
    target = with_any_bandwidth(machine(Style.WEIGHT_STATIONARY))
    cycles = [
        costs(one_job(nest, *sizes, bits=bits), target)[0] - FILL for bits in (4, 8, 16, 32, 64)
    ]
    assert [c / cycles[0] for c in cycles] == pytest.approx([1, 1, 2, 4, 4])


def test_a_product_too_large_for_the_buffer_fetches_something_again_as_often_as_blocking_allows():
    nest = LoopNest(k=512, c=512, y=512)
    sizes = operand_bytes(nest)
    moved = costs(one_job(nest, *sizes), machine(Style.WEIGHT_STATIONARY, buffer=32 * 1024))[1]
    # Hong and Kung (1981): at least 2 mnk / sqrt(buffer elements) for the two factors.
    assert moved[0] + moved[1] >= 2 * 512**3 / (32 * 1024) ** 0.5
    assert moved[0] + moved[1] <= 6 * 2 * 512**3 / (32 * 1024) ** 0.5
    assert moved[2] == sizes[2]


def test_recurrent_weights_that_do_not_stay_are_fetched_in_every_step():
    nest = LoopNest(k=64, c=64, repeats=10)
    moved = costs(one_job(nest, 640, 4096, 640), machine(Style.WEIGHT_STATIONARY, buffer=1024))[1]
    stays = costs(one_job(nest, 640, 4096, 640), machine(Style.WEIGHT_STATIONARY, buffer=16384))[1]
    assert moved[1] == 40960
    assert stays[1] == 4096


def test_a_buffer_too_small_for_any_tile_is_an_error_that_names_core_and_job():
    nest = LoopNest(k=8, c=8, y=8, x=8, r=7, s=7)
    with pytest.raises(TargetError, match=r"core core.*job j"):
        job_table(one_job(nest, *operand_bytes(nest)), machine(Style.WEIGHT_STATIONARY, buffer=64))

"""The cost model: never below what physics allows, never worse for more hardware, and exact where
that can be said by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.layers import machine, nests, one_job, operand_bytes
from tests.support.networks import RATES, residual_chain

from loadmaster.core.errors import TargetError
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.job_times import JobTable
from loadmaster.targets.hardware import Style, Target
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Workload
from loadmaster.workloads.lowering.instantiate import lower

FILL = 8 + 16 - 2
"""Cycles in which the array of 8 x 16 elements fills and drains."""


def with_any_bandwidth(target: Target) -> Target:
    """The target with a link that nothing waits for: a job takes the cycles of its array."""
    return replace(target, main=replace(target.main, read_bandwidth=1e18, write_bandwidth=1e18))


def costs(workload: Workload, target: Target) -> tuple[float, list[int], list[int]]:
    table = job_table(workload, target)
    return float(table.compute[0, 0]) * 1e9, table.moved[:, 0].tolist(), table.tile[:, 0].tolist()


@given(nests, st.sampled_from(list(Style)), st.integers(0, 5000), st.sampled_from([8, 16, 32]))
@fuzz(150)
def test_no_job_beats_its_array_or_its_compulsory_traffic(
    nest: LoopNest, style: Style, extra: int, bits: int
) -> None:
    target = machine(style)
    workload = one_job(nest, *operand_bytes(nest), extra, bits)
    cycles, moved, tile = costs(workload, target)
    assert cycles >= nest.macs / (8 * 16 * RATES[bits]) * (1 - 1e-9)
    operands = (*workload.jobs[0].reads, *workload.jobs[0].writes)
    # Strides step over some of the input.
    skipped = [
        min(1.0, taps / stride)
        for taps, stride in ((nest.r, nest.stride[0]), (nest.s, nest.stride[1]))
    ]
    assert moved[0] >= operands[0].bytes * skipped[0] * skipped[1]
    assert all(m >= operand.bytes for m, operand in zip(moved[1:], operands[1:], strict=True))
    assert sum(tile) <= target.cores[0].buffer


@given(
    nests, st.sampled_from([Style.WEIGHT_STATIONARY, Style.OUTPUT_STATIONARY, Style.ROW_STATIONARY])
)
@fuzz(60)
def test_a_larger_array_is_never_busy_for_longer(nest: LoopNest, style: Style) -> None:
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
        # 16 channels in, 8 out fill the 8 x 16 array: one position and tap a cycle.
        (Style.WEIGHT_STATIONARY, LoopNest(k=8, c=16, y=5, x=7, r=3, s=3), 5 * 7 * 9),
        (Style.WEIGHT_STATIONARY, LoopNest(k=9, c=17, y=5, x=7, r=3, s=3), 5 * 7 * 9 * 4),
        # Depthwise: groups share the array on its diagonal, eight at a time.
        (Style.WEIGHT_STATIONARY, LoopNest(k=1, c=1, y=5, x=7, r=3, s=3, groups=16), 5 * 7 * 9 * 2),
        (Style.OUTPUT_STATIONARY, LoopNest(k=16, c=5, y=4, x=2, r=3, s=3), 5 * 9),
        (Style.OUTPUT_STATIONARY, LoopNest(k=16, c=5, y=3, x=3, r=3, s=3), 5 * 9 * 2),
        # Two output channels of three filter rows each fit in eight rows.
        (Style.ROW_STATIONARY, LoopNest(k=4, c=5, y=16, x=7, r=3, s=3), 7 * 3 * 5 * 2),
        (Style.ROOFLINE, LoopNest(k=4, c=32, y=10, x=10), 100),
    ],
)
def test_cycles_by_hand(style: Style, nest: LoopNest, cycles: int) -> None:
    fill = 0 if style is Style.ROOFLINE else FILL
    assert costs(one_job(nest, *operand_bytes(nest)), with_any_bandwidth(machine(style)))[
        0
    ] == pytest.approx(cycles + fill)


def test_wider_numbers_take_longer() -> None:
    nest = LoopNest(k=8, c=16, y=5, x=7)
    sizes = operand_bytes(nest)
    target = with_any_bandwidth(machine(Style.WEIGHT_STATIONARY))
    cycles = [
        costs(one_job(nest, *sizes, bits=bits), target)[0] - FILL for bits in (4, 8, 16, 32, 64)
    ]
    assert [c / cycles[0] for c in cycles] == pytest.approx([1, 1, 2, 4, 4])


def test_operands_that_fit_move_once() -> None:
    nest = LoopNest(k=8, c=8, y=8, x=8)
    sizes = operand_bytes(nest)
    assert costs(one_job(nest, *sizes), machine(Style.WEIGHT_STATIONARY))[1] == list(sizes)


def test_a_product_too_large_for_the_buffer_fetches_something_again_as_often_as_blocking_allows() -> (
    None
):
    nest = LoopNest(k=512, c=512, y=512)
    sizes = operand_bytes(nest)
    moved = costs(one_job(nest, *sizes), machine(Style.WEIGHT_STATIONARY, buffer=32 * 1024))[1]
    # Hong and Kung (1981): at least 2 mnk / sqrt(buffer elements) for the two factors.
    assert moved[0] + moved[1] >= 2 * 512**3 / (32 * 1024) ** 0.5
    assert moved[0] + moved[1] <= 6 * 2 * 512**3 / (32 * 1024) ** 0.5
    assert moved[2] == sizes[2]


def test_recurrent_weights_that_do_not_stay_are_fetched_in_every_step() -> None:
    nest = LoopNest(k=64, c=64, repeats=10)
    moved = costs(one_job(nest, 640, 4096, 640), machine(Style.WEIGHT_STATIONARY, buffer=1024))[1]
    stays = costs(one_job(nest, 640, 4096, 640), machine(Style.WEIGHT_STATIONARY, buffer=16384))[1]
    assert moved[1] == 40960
    assert stays[1] == 4096


def test_equal_cores_cost_the_same_and_a_jobs_cost_does_not_depend_on_its_company() -> None:
    target = machine(Style.WEIGHT_STATIONARY)
    twins = replace(target, cores=(target.cores[0], replace(target.cores[0], name="other")))
    alone, together = (
        lower([residual_chain(1)], twins),
        lower([residual_chain(1), residual_chain(3, "b", 24)], twins),
    )
    a, b = job_table(alone, twins), job_table(together, twins)
    for table in (a, b):
        assert np.array_equal(table.compute[:, 0], table.compute[:, 1])
        assert np.array_equal(table.moved[:, 0], table.moved[:, 1])
    rows = len(a.operand_job)
    assert np.array_equal(a.moved, b.moved[:rows])
    assert np.array_equal(a.tile, b.tile[:rows])


def test_rows_are_sorted_by_job_with_reads_before_writes() -> None:
    workload = lower([residual_chain(2)], machine(Style.ROOFLINE))
    table: JobTable = job_table(workload, machine(Style.ROOFLINE, buffer=0))
    assert (np.diff(table.operand_job) >= 0).all()
    for job in range(len(workload.jobs)):
        writes = table.operand_write[table.operand_job == job]
        assert (np.diff(writes.astype(int)) >= 0).all()


def test_a_buffer_too_small_for_any_tile_is_an_error_that_names_core_and_job() -> None:
    nest = LoopNest(k=8, c=8, y=8, x=8, r=7, s=7)
    with pytest.raises(TargetError, match=r"core core.*job j"):
        job_table(one_job(nest, *operand_bytes(nest)), machine(Style.WEIGHT_STATIONARY, buffer=64))

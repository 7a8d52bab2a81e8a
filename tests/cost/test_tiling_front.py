"""Several tilings of a job, for where its operands are expected: each a tiling that the array can run, the least of all below each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.layers import machine, nests, one_job, operand_bytes

import loadmaster as lm
from loadmaster.core.errors import JobError
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.analytical.tiling import EXPECTED, STREAMED
from loadmaster.cost.analytical.tiling_front import front_tables, least_table, mixed_table, table_as_planned
from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.lowering.instantiate import lower

ARRAYS = [Style.WEIGHT_STATIONARY, Style.OUTPUT_STATIONARY, Style.ROW_STATIONARY]
FIGURES = ("compute", "moved", "tile", "energy")


@given(nests, st.sampled_from(ARRAYS), st.sampled_from([2048, 8192, 10**5]))
@settings(max_examples=60, deadline=None)
def test_every_tiling_is_one_that_the_array_can_run_and_none_is_below_the_least(nest: LoopNest, style: Style, buffer: int) -> None:
    sizes = operand_bytes(nest)
    work, target = one_job(nest, *sizes), machine(style, buffer=buffer)
    least = least_table(work, target)
    for table in front_tables(work, target):
        assert (table.compute >= nest.macs / (8 * 16) * 1e-9 * (1 - 1e-9)).all()
        assert (table.moved[1:, 0] >= sizes[1:]).all()
        assert table.tile.sum() <= buffer
        assert all((getattr(table, name) >= getattr(least, name)).all() for name in FIGURES)


def test_what_is_near_may_cross_often_so_that_what_is_streamed_crosses_once() -> None:
    """Filters and a map of which neither fits: the one that is streamed moves less, the other more."""
    nest = LoopNest(k=256, c=256, y=28, x=28, r=3, s=3)
    work, target = one_job(nest, *operand_bytes(nest)), lm.target("edge-npu", "dram.bandwidth=4 GB/s")
    moved = {name: table.moved[:2, 0].tolist() for name, table in zip(EXPECTED, front_tables(work, target), strict=True)}
    assert moved["weights streamed"][1] < moved["activations streamed"][1]
    assert moved["activations streamed"][0] < moved["weights streamed"][0]


def test_a_crowded_link_takes_no_more_bytes_and_near_operands_no_more_cycles() -> None:
    target = lm.target("edge-npu", ["dram.bandwidth=16 GB/s", "cores.ws.buffer=32 KiB", "cores.lb.buffer=32 KiB"])
    work = lower([lm.load("onnx:resnet50", precision="int8")], target)
    tables = dict(zip(EXPECTED, front_tables(work, target), strict=True))
    assert tables["crowded link"].moved.sum() <= tables[STREAMED].moved.sum()
    assert tables["all near"].compute.sum() < tables[STREAMED].compute.sum()


def test_a_mixed_table_has_the_rows_of_the_tilings_that_were_chosen() -> None:
    target = lm.target("edge-npu", ["cores.ws.buffer=16 KiB", "cores.lb.buffer=16 KiB"])
    work = lower([lm.load("onnx:squeezenet", precision="int8")], target)
    tables, names = front_tables(work, target), list(EXPECTED)
    chosen = np.arange(len(work.jobs)) % len(names)
    mixed = mixed_table(tables, chosen)
    for job, tiling in enumerate(chosen.tolist()):
        rows = mixed.operand_job == job
        assert np.array_equal(mixed.compute[job], tables[tiling].compute[job])
        assert np.array_equal(mixed.moved[rows], tables[tiling].moved[rows])
    again = table_as_planned(work, target, [names[number] for number in chosen.tolist()])
    assert all(np.array_equal(getattr(again, name), getattr(mixed, name)) for name in FIGURES)
    with pytest.raises(JobError, match="tiled for 'nowhere': there are all streamed, all near"):
        table_as_planned(work, target, ["nowhere"] * len(work.jobs))
    usual = job_table(work, target)
    assert np.array_equal(usual.moved, tables[0].moved)

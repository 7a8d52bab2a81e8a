"""Several tilings of a job, for where its operands are expected: each a tiling that the array can
run, the least of all below each."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz
from tests.support.layers import (
    loops,
    machine,
    nests,
    one_job,
    operand_bytes,
    same_fields,
    styles,
)

import loadmaster as lm
from loadmaster.cost.analytical.divisible import least_delivered
from loadmaster.cost.analytical.job_costs import (
    job_table,
    job_tables,
    least_table,
    mixed_table,
    table_as_planned,
)
from loadmaster.cost.analytical.nests import EXPECTED, STREAMED, nest_table, tilings_for

FIGURES = ("compute", "moved", "tile", "energy")


@given(nests, styles, st.sampled_from([2048, 8192, 10**5]))
@fuzz(60)
def test_every_tiling_is_one_that_the_array_can_run_and_none_is_below_the_least(
    nest, style, buffer
):
    sizes = operand_bytes(nest)
    work, target = one_job(nest), machine(style, buffer=buffer)
    least = least_table(work, target)
    for table in job_tables(work, target):
        assert (table.compute >= nest.macs / (8 * 16) * 1e-9 * (1 - 1e-9)).all()
        assert (table.moved[1:, 0] >= sizes[1:]).all()
        assert table.tile.sum() <= buffer
        assert all((getattr(table, name) >= getattr(least, name)).all() for name in FIGURES)


@given(nests, styles, st.sampled_from([200, 2048, 10**5]), st.booleans())
@fuzz(40)
def test_tilings_that_are_chosen_together_are_those_that_are_chosen_one_by_one(
    nest, style, buffer, flexible
):
    target, table = (machine(style, flexible=flexible), nest_table(one_job(nest).jobs))
    room, core = np.array([float(buffer)]), target.cores[0]
    for name, together in zip(
        EXPECTED, tilings_for(table, room, core, target, list(EXPECTED)), strict=True
    ):
        (alone,) = tilings_for(table, room, core, target, [name])
        assert same_fields(together, alone)


@given(nests, styles, st.booleans(), st.sampled_from([0, 16, 512]), st.data())
def test_no_piece_has_less_delivered_than_its_share(nest, style, flexible, local, data):
    """A piece has any part of the groups, output channels and positions, and no tiling of it goes
    below that part of the least."""
    core = machine(style, flexible=flexible, local_buffer=local).cores[0]
    sizes = {
        name: data.draw(st.integers(1, getattr(nest, name)), label=name)
        for name in ("groups", "batch", "k", "y", "x")
    }
    piece = replace(nest, **sizes)
    table, of_piece = (nest_table(one_job(each).jobs) for each in (nest, piece))
    (least,) = least_delivered(table, core)
    for buffer in (300, 10**6):
        tilings = tilings_for(
            of_piece, np.array([float(buffer)]), core, machine(style), list(EXPECTED)
        )
        assert all(
            each.delivered[0] >= least * piece.macs / nest.macs * (1 - 1e-12) for each in tilings
        )


def test_what_is_near_may_cross_often_so_that_what_is_streamed_crosses_once():
    """Filters and a map of which neither fits: the one that is streamed moves less, the other
    more."""
    nest = loops("k=256 c=256 y=28 x=28 r=3 s=3")
    work, target = (one_job(nest), lm.target("edge-npu", "dram.bandwidth=4 GB/s"))
    moved = {
        name: table.moved[:2, 0].tolist()
        for name, table in zip(EXPECTED, job_tables(work, target), strict=True)
    }
    assert moved["weights streamed"][1] < moved["activations streamed"][1]
    assert moved["activations streamed"][0] < moved["weights streamed"][0]


def test_a_crowded_link_takes_no_more_bytes_and_near_operands_no_more_cycles():
    target = lm.target(
        "edge-npu", ["dram.bandwidth=16 GB/s", "cores.ws.buffer=32 KiB", "cores.lb.buffer=32 KiB"]
    )
    work = lm.lower([lm.load("onnx:resnet50", precision="int8")], target)
    tables = dict(zip(EXPECTED, job_tables(work, target), strict=True))
    assert tables["crowded link"].moved.sum() <= tables[STREAMED].moved.sum()
    assert tables["all near"].compute.sum() < tables[STREAMED].compute.sum()


def test_a_mixed_table_has_the_rows_of_the_tilings_that_were_chosen():
    target = lm.target("edge-npu", ["cores.ws.buffer=16 KiB", "cores.lb.buffer=16 KiB"])
    work = lm.lower([lm.load("onnx:squeezenet", precision="int8")], target)
    tables, names = job_tables(work, target), list(EXPECTED)
    chosen = np.arange(len(work.jobs)) % len(names)
    mixed = mixed_table(tables, chosen)
    for job, tiling in enumerate(chosen.tolist()):
        rows = mixed.operand_job == job
        assert np.array_equal(mixed.compute[job], tables[tiling].compute[job])
        assert np.array_equal(mixed.moved[rows], tables[tiling].moved[rows])
    again = table_as_planned(work, target, [names[number] for number in chosen.tolist()])
    assert all(np.array_equal(getattr(again, name), getattr(mixed, name)) for name in FIGURES)
    with pytest.raises(lm.JobError, match="tiled for 'nowhere': there are all streamed, all near"):
        table_as_planned(work, target, ["nowhere"] * len(work.jobs))
    usual = job_table(work, target)
    assert np.array_equal(usual.moved, tables[0].moved)


@pytest.mark.slow
def test_jobs_of_all_mini_batches_cost_what_they_cost_one_by_one():
    """Of jobs that share their loop nests one is costed; here each has its own."""
    target = lm.target("edge-npu", ["scratchpad.capacity=64KiB"])
    work = lm.lower(
        [
            lm.load("onnx:squeezenet", precision="int8"),
            lm.load("onnx:shufflenet", precision="int8"),
        ],
        target,
        mini_batches=3,
    )
    assert len(work.alike[0]) * 3 == len(work.jobs)
    alone = replace(
        work, jobs=tuple(replace(job, nests=(*job.nests[:1], *job.nests[1:])) for job in work.jobs)
    )
    assert all(map(same_fields, job_tables(work, target), job_tables(alone, target)))


def test_jobs_with_operands_of_other_sizes_are_not_alike():
    work = one_job(loops("k=8 c=8"))
    (job,) = work.jobs
    larger = replace(
        job, reads=(replace(job.reads[0], bytes=job.reads[0].bytes + 1), *job.reads[1:])
    )
    assert replace(work, jobs=(job, job, larger)).alike[1].tolist() == [0, 0, 1]

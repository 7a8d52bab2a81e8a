"""Job analysis tables of the user's: ready ones, and as the costs of a workload's jobs."""

import re

import numpy as np
import pytest
from tests.support.layers import machine, one_job

import loadmaster as lm
from loadmaster.core.errors import JobError
from loadmaster.cost.analyse import analyse, pooled, read_job_analysis, read_job_list, read_jobs
from loadmaster.targets.hardware import Style
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Workload

HEADER = "job,core,latency_s,bandwidth_bytes_per_s"
FULL = HEADER + ",flops,energy_j\n"


def write(folder, text, name="costs.csv"):
    file = folder / name
    file.write_text(text)
    return file


def test_a_table_is_read_in_the_order_in_which_it_names_things(tmp_path):
    table = read_job_analysis(
        write(tmp_path, FULL + "b,y,2e-3,5,7,1\na,x,.5,0,,2\nb,x,1,1e9,7,3.5\n")
    )
    assert (table.jobs, table.cores) == (("b", "a"), ("y", "x"))
    assert table.latency.tolist() == [[2e-3, 1.0], [np.inf, 0.5]]
    assert table.bandwidth.tolist() == [[5, 1e9], [0, 0]]
    assert table.energy.tolist() == [[1, 3.5], [np.inf, 2]]
    assert table.flops.tolist() == [7, 0]
    assert table.clock is None


def test_energy_and_flops_may_be_left_out(tmp_path):
    table = read_job_analysis(write(tmp_path, HEADER + "\na,x,1,1\n"))
    assert table.energy is None
    assert table.flops.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job,core,latency_s\na,x,1", "costs.csv:1: column 'bandwidth_bytes_per_s' is missing"),
        (HEADER + "\n,x,1,1", "costs.csv:2:1: job is empty"),
        (HEADER + "\na,,1,1", "costs.csv:2:2: core is empty"),
        (
            HEADER + "\na,x,0,1",
            "costs.csv:2:3: latency_s is '0': write a finite number more than zero",
        ),
        (HEADER + "\na,x,1e999,1", "costs.csv:2:3: latency_s is '1e999'"),
        (HEADER + "\na,x,1,-0.5", "costs.csv:2:4: bandwidth_bytes_per_s is '-0.5'"),
        (
            HEADER + "\na,x,1,1\nb,x,1,1\na,x,2,2",
            "costs.csv:4:1: job 'a' on 'x' is there twice, first at .*costs.csv:2",
        ),
        (
            FULL + "a,x,1,1,3,1\na,y,1,1,4,1",
            "costs.csv:3:5: flops is 4, and an earlier row of job 'a' says 3",
        ),
        (FULL + f"a,x,1,1,{2**63},1", "costs.csv:2:5: flops is 9223372036854775808"),
        (FULL + "a,x,1,1,3,", "costs.csv:2:6: energy_j is ''"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_column(text, message, tmp_path):
    with pytest.raises(JobError, match=message):
        read_job_analysis(write(tmp_path, text))


def jobs(folder):
    return read_job_list(
        write(folder, "K,C,Y,X,R,S,type\n4,5,1,1,1,1,0\n6,7,1,1,1,1,0\n", "two.csv")
    )


@pytest.mark.parametrize("names", [("two/0", "two/1"), ("0", "1")])
def test_costs_apply_to_jobs_by_name_or_by_position(names, tmp_path):
    work, target = jobs(tmp_path), lm.target("m3e-s1", ["cores.hb.count=3"])
    rows = f"\n{names[1]},hb2,3,30,,5\n{names[0]},hb0,1,10,99,6\n{names[0]},hb2,2,20,99,7"
    table = analyse(work, target, str(write(tmp_path, FULL.strip() + rows)))
    assert (table.jobs, table.cores) == (("two/0", "two/1"), ("hb0", "hb1", "hb2"))
    assert table.latency.tolist() == [[1, np.inf, 2], [np.inf, np.inf, 3]]
    assert table.bandwidth.tolist() == [[10, 0, 20], [0, 0, 30]]
    assert table.energy.tolist() == [[6, np.inf, 7], [np.inf, np.inf, 5]]
    assert table.flops.tolist() == [99, 2 * 42]
    assert table.clock == 1e9


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "two/0,hb0,1,1\ntwo/2,hb0,1,1",
            "costs.csv: there is no job 'two/2': jobs are called like 'two/0', or numbered from 0",
        ),
        ("0,hb0,1,1\n1,hb0,1,1\n2,hb0,1,1", "costs.csv: there is no job '2'"),
        ("two/1,hb0,1,1", "costs.csv: job 'two/0' has no row"),
        ("1,hb0,1,1", "costs.csv: job '0' has no row"),
        (
            "0,hb0,1,1\n1,lb,1,1",
            "costs.csv: core 'lb' is not one of the target's: there are hb0, hb1, hb2, hb3",
        ),
    ],
)
def test_a_table_must_match_jobs_and_cores(rows, message, tmp_path):
    with pytest.raises(JobError, match=message):
        analyse(jobs(tmp_path), lm.target("m3e-s1"), str(write(tmp_path, HEADER + "\n" + rows)))


def test_a_csv_file_is_known_by_its_header(tmp_path):
    assert isinstance(read_jobs(write(tmp_path, "k,C,Y,X,R,S,type\n1,1,1,1,1,1,0")), Workload)
    assert isinstance(
        read_jobs(write(tmp_path, '"K","C","Y","X","R","S","type"\r\n1,1,1,1,1,1,0\r\n')), Workload
    )
    assert read_jobs(write(tmp_path, "core,JOB,latency_s,bandwidth_bytes_per_s\nx,a,1,1")).jobs == (
        "a",
    )
    for text in ("", "id,lower,upper,size\n"):
        with pytest.raises(JobError, match=r"costs\.csv:1: neither"):
            read_jobs(write(tmp_path, text))


@pytest.mark.parametrize(
    ("cost", "instead"),
    [
        ("roofline", "choose one of dataflow, maestro, or give a .csv file"),
        ("", "choose one of dataflow, maestro, or give a .csv file"),
        ("maestro:", "did you mean maestro?"),
        ("dataflow:x", "did you mean dataflow?"),
    ],
)
def test_an_unknown_model_is_refused_with_those_that_there_are(cost, instead, tmp_path):
    with pytest.raises(JobError, match=re.escape(f"no cost model '{cost}': {instead}")):
        analyse(jobs(tmp_path), lm.target("m3e-s1"), cost)


def test_tables_of_several_sources_are_pooled_under_names_of_their_own(tmp_path):
    one = read_job_analysis(write(tmp_path, FULL + "a,x,1,2,3,4\n"))
    two = read_job_analysis(write(tmp_path, FULL + "b,x,5,6,7,8\na,x,1,1,1,1\n"))
    both = pooled([one, two, one])
    assert both.jobs == ("a", "b", "a-2", "a-3")
    assert both.latency.tolist() == [[1], [5], [1], [1]]
    assert both.flops.tolist() == [3, 7, 1, 3]
    assert both.energy.tolist() == [[4], [8], [1], [4]]
    bare = read_job_analysis(write(tmp_path, HEADER + "\na,x,1,1"))
    assert pooled([one, bare]).energy is None
    other = read_job_analysis(write(tmp_path, HEADER + "\na,y,1,1"))
    with pytest.raises(JobError, match="for different cores, x and y"):
        pooled([one, other])
    with pytest.raises(JobError, match="there are no jobs"):
        pooled([])


def test_more_arithmetic_than_can_be_counted_is_refused():
    nest = LoopNest(k=2**21, c=2**21, y=2**20)
    with pytest.raises(JobError, match="job j has 4611686018427387904 multiply-accumulates"):
        analyse(one_job(nest, 1, 1, 1), machine(Style.WEIGHT_STATIONARY), "maestro")

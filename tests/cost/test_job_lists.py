"""Job lists: what each row means, and where a mistake stands."""

import re

import numpy as np
import pytest
from tests.support import layer_lists
from tests.support.layers import M3E, loops, machine, one_job
from tests.support.needs import PUBLIC_INSTANCES
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.core.errors import JobError
from loadmaster.cost.analyse import analyse, pooled, read_job_analysis, read_jobs
from loadmaster.workloads.frontends.job_list import read_job_list
from loadmaster.workloads.job import Role, Workload

HEADER = layer_lists.HEADER + "\n"
INSTANCES = M3E / "instances"


def write(folder, text, name="list.csv"):
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("row", "nest", "sizes"),
    cases("""
        10,20,1,1,1,1,0 | k=10 c=20 | 20 200 10
        8,3,9,7,3,2,1 | k=8 c=3 y=7 x=6 r=3 s=2 | 189 144 336
        # K is ignored: every channel has a filter of its own.
        1,8,9,7,3,3,2 | k=1 c=1 y=7 x=5 r=3 s=3 groups=8 | 504 72 280
        # M x K by K x N with M = 4, N = 5, K = 6.
        4,5,6,1,1,1,3 | k=5 c=6 y=4 | 24 30 20
    """),
)
def test_rows_become_loop_nests_with_their_operands(row, nest, sizes, tmp_path):
    work = read_job_list(write(tmp_path, HEADER + row))
    (job,) = work.jobs
    assert job.nests == (loops(nest),)
    operands = (*job.reads, *job.writes)
    assert [operand.role for operand in operands] == [Role.INPUT, Role.WEIGHT, Role.OUTPUT]
    assert [operand.bytes for operand in operands] == list(map(int, sizes.split()))
    assert (job.name, job.bits, job.after) == ("list/0", 8, ())
    assert work.networks[0].macs == job.macs == loops(nest).macs


def test_jobs_are_named_after_file_and_row_and_share_nothing(tmp_path):
    work = read_job_list(write(tmp_path, HEADER + "1,1,1,1,1,1,0\n\n2,2,1,1,1,1,0\n", "mix.0.csv"))
    assert [job.name for job in work.jobs] == ["mix.0/0", "mix.0/1"]
    assert (
        len({operand.tensor for job in work.jobs for operand in (*job.reads, *job.writes)})
        == len(work.tensors)
        == 6
    )


def test_columns_come_in_any_order_and_case(tmp_path):
    assert read_job_list(write(tmp_path, "TYPE,c,k,Y,X,R,S\n0,20,10,1,1,1,1")).jobs[0].nests == (
        loops("k=10 c=20"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"list.csv:1: is empty"),
        (HEADER, "holds a header and no rows"),
        (HEADER + "1," + "9" * 5000 + ",1,1,1,1,0", r"list.csv:2:2: C is 9{30}: it must be"),
        *cases(r"""
            K,C,Y,X,R,S\n1,1,1,1,1,1 | list.csv:1: column 'type' is missing
            K,C,Y,X,R,S,type,stride\n | list.csv:1:8: column 'stride' is not known
            K,C,Y,X,R,S,type,k\n | list.csv:1:8: column 'K' is there twice
        """),
        *(
            (HEADER + rows, message)
            for rows, message in cases(r"""
            1,1,1,1,1,1,0\n1,1,1 | list.csv:3: has 3 cells where the header has 7
            1,nan,1,1,1,1,0 | list.csv:2:2: C is 'nan'
            1,0,1,1,1,1,0 | list.csv:2:2: C is 0: it must be at least 1
            1,9223372036854775808,1,1,1,1,0 | \
                list.csv:2:2: C is 9223372036854775808: it must be .* less than 2147483648
            1,1,1,1,1,1,4 | list.csv:2:7: type is 4: it must be at least 0 and less than 4
            1,1,1,1,1,1,conv | list.csv:2:7: type is 'conv'
            1,1,2,1,1,1,0 | list.csv:2:3: Y is 2: it must be 1 for a layer of type 0
            1,1,2,2,1,1,3 | list.csv:2:4: X is 2: it must be 1 for a layer of type 3
            1,1,2,5,3,1,1 | list.csv:2:5: R is 3, more than Y = 2
            2147483647,2147483647,1,1,1,1,0 | list.csv:2: .* more than one job may have
            "1,1 | list.csv:\d: is not CSV
            """)
        ),
    ],
)
def test_a_mistake_is_named_with_file_line_and_column(text, message, tmp_path):
    with pytest.raises(JobError, match=message) as caught:
        read_job_list(write(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for name in ("binary.csv", "absent.csv", "."):
        with pytest.raises(JobError, match=r"is not text in UTF-8|cannot be read"):
            read_job_list(tmp_path / name)


@pytest.mark.skipif(not INSTANCES.is_dir(), reason=PUBLIC_INSTANCES)
def test_the_public_instances_are_groups_of_a_hundred_jobs():
    lists = sorted(INSTANCES.glob("*.csv"))
    assert len(lists) == 20
    assert all(len(read_job_list(file).jobs) == 100 for file in lists)


# Job analysis tables of the user's: ready ones, and as the costs of a workload's jobs.


COLUMNS = "job,core,latency_s,bandwidth_bytes_per_s"
FULL = COLUMNS + ",flops,energy_j\n"


def costs(folder, text):
    return write(folder, text, "costs.csv")


def test_a_table_is_read_in_the_order_in_which_it_names_things(tmp_path):
    table = read_job_analysis(
        costs(tmp_path, FULL + "b,y,2e-3,5,7,1\na,x,.5,0,,2\nb,x,1,1e9,7,3.5\n")
    )
    assert (table.jobs, table.cores) == (("b", "a"), ("y", "x"))
    assert table.latency.tolist() == [[2e-3, 1.0], [np.inf, 0.5]]
    assert table.bandwidth.tolist() == [[5, 1e9], [0, 0]]
    assert table.energy.tolist() == [[1, 3.5], [np.inf, 2]]
    assert table.flops.tolist() == [7, 0]
    assert table.clock is None


def test_energy_and_flops_may_be_left_out(tmp_path):
    table = read_job_analysis(costs(tmp_path, COLUMNS + "\na,x,1,1\n"))
    assert table.energy is None
    assert table.flops.tolist() == [0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("job,core,latency_s\na,x,1", "costs.csv:1: column 'bandwidth_bytes_per_s' is missing"),
        *(
            (COLUMNS + rows, message)
            for rows, message in cases(r"""
            \n,x,1,1 | costs.csv:2:1: job is empty
            \na,,1,1 | costs.csv:2:2: core is empty
            \na,x,0,1 | costs.csv:2:3: latency_s is '0': write a number from 1e-30 to 1e30
            \na,x,1e999,1 | costs.csv:2:3: latency_s is '1e999'
            \na,x,1,-0.5 | costs.csv:2:4: bandwidth_bytes_per_s is '-0.5'
            \na,x,1,1\nb,x,1,1\na,x,2,2 | \
                costs.csv:4:1: job 'a' on 'x' is there twice, first at .*costs.csv:2
            """)
        ),
        *(
            (FULL + rows, message)
            for rows, message in cases(r"""
            a,x,1,1,3,1\na,y,1,1,4,1 | \
                costs.csv:3:5: flops is 4, and an earlier row of job 'a' says 3
            a,x,1,1,9223372036854775808,1 | costs.csv:2:5: flops is 9223372036854775808
            a,x,1,1,3, | costs.csv:2:6: energy_j is ''
            """)
        ),
    ],
)
def test_a_mistake_in_a_table_is_named_with_file_line_and_column(text, message, tmp_path):
    with pytest.raises(JobError, match=message):
        read_job_analysis(costs(tmp_path, text))


def jobs(folder):
    return read_job_list(
        write(folder, "K,C,Y,X,R,S,type\n4,5,1,1,1,1,0\n6,7,1,1,1,1,0\n", "two.csv")
    )


@pytest.mark.parametrize("names", [("two/0", "two/1"), ("0", "1")])
def test_costs_apply_to_jobs_by_name_or_by_position(names, tmp_path):
    work, target = jobs(tmp_path), lm.target("m3e-s1", ["cores.hb.count=3"])
    rows = f"\n{names[1]},hb2,3,30,,5\n{names[0]},hb0,1,10,99,6\n{names[0]},hb2,2,20,99,7"
    table = analyse(work, target, str(costs(tmp_path, FULL.strip() + rows)))
    assert (table.jobs, table.cores) == (("two/0", "two/1"), ("hb0", "hb1", "hb2"))
    assert table.latency.tolist() == [[1, np.inf, 2], [np.inf, np.inf, 3]]
    assert table.bandwidth.tolist() == [[10, 0, 20], [0, 0, 30]]
    assert table.energy.tolist() == [[6, np.inf, 7], [np.inf, np.inf, 5]]
    assert table.flops.tolist() == [99, 2 * 42]
    assert table.clock == 1e9


@pytest.mark.parametrize(
    ("rows", "message"),
    cases(r"""
        two/0,hb0,1,1\ntwo/2,hb0,1,1 | \
            costs.csv: there is no job 'two/2': jobs are called like 'two/0', or numbered from 0
        0,hb0,1,1\n1,hb0,1,1\n2,hb0,1,1 | costs.csv: there is no job '2'
        two/1,hb0,1,1 | costs.csv: job 'two/0' has no row
        1,hb0,1,1 | costs.csv: job '0' has no row
        0,hb0,1,1\n1,lb,1,1 | \
            costs.csv: core 'lb' is not one of the target's: there are hb0, hb1, hb2, hb3
    """),
)
def test_a_table_must_match_jobs_and_cores(rows, message, tmp_path):
    with pytest.raises(JobError, match=message):
        analyse(jobs(tmp_path), lm.target("m3e-s1"), str(costs(tmp_path, COLUMNS + "\n" + rows)))


def test_a_csv_file_is_known_by_its_header(tmp_path):
    assert isinstance(read_jobs(costs(tmp_path, "k,C,Y,X,R,S,type\n1,1,1,1,1,1,0")), Workload)
    assert isinstance(
        read_jobs(costs(tmp_path, '"K","C","Y","X","R","S","type"\r\n1,1,1,1,1,1,0\r\n')), Workload
    )
    assert read_jobs(costs(tmp_path, "core,JOB,latency_s,bandwidth_bytes_per_s\nx,a,1,1")).jobs == (
        "a",
    )
    for text in ("", "id,lower,upper,size\n"):
        with pytest.raises(JobError, match=r"costs\.csv:1: neither"):
            read_jobs(costs(tmp_path, text))


@pytest.mark.parametrize(
    ("cost", "instead"),
    cases("""
        roofline | choose one of dataflow, maestro, or give a .csv file
         | choose one of dataflow, maestro, or give a .csv file
        maestro: | did you mean maestro?
        dataflow:x | did you mean dataflow?
    """),
)
def test_an_unknown_model_is_refused_with_those_that_there_are(cost, instead, tmp_path):
    with pytest.raises(JobError, match=re.escape(f"no cost model '{cost}': {instead}")):
        analyse(jobs(tmp_path), lm.target("m3e-s1"), cost)


def test_tables_of_several_sources_are_pooled_under_names_of_their_own(tmp_path):
    one = read_job_analysis(costs(tmp_path, FULL + "a,x,1,2,3,4\n"))
    two = read_job_analysis(costs(tmp_path, FULL + "b,x,5,6,7,8\na,x,1,1,1,1\n"))
    both = pooled([one, two, one])
    assert both.jobs == ("a", "b", "a-2", "a-3")
    assert both.latency.tolist() == [[1], [5], [1], [1]]
    assert both.flops.tolist() == [3, 7, 1, 3]
    assert both.energy.tolist() == [[4], [8], [1], [4]]
    bare = read_job_analysis(costs(tmp_path, COLUMNS + "\na,x,1,1"))
    assert pooled([one, bare]).energy is None
    other = read_job_analysis(costs(tmp_path, COLUMNS + "\na,y,1,1"))
    with pytest.raises(JobError, match="for different cores, x and y"):
        pooled([one, other])
    with pytest.raises(JobError, match="there are no jobs"):
        pooled([])


def test_more_arithmetic_than_can_be_counted_is_refused():
    nest = loops("k=2097152 c=2097152 y=1048576")
    with pytest.raises(JobError, match="job j has 4611686018427387904 multiply-accumulates"):
        analyse(one_job(nest, (1, 1, 1)), machine(), "maestro")

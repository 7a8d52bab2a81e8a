"""Job lists: what each row means, and where a mistake stands."""

import numpy as np
import pytest
from tests.support import layer_lists
from tests.support.layers import M3E
from tests.support.needs import PUBLIC_INSTANCES

import loadmaster as lm
from loadmaster.core.errors import JobError
from loadmaster.cost.analyse import analyse, read_job_list
from loadmaster.workloads.graph import LoopNest
from loadmaster.workloads.job import Role

HEADER = "K,C,Y,X,R,S,type\n"
INSTANCES = M3E / "instances"


def write(folder, text, name="list.csv"):
    file = folder / name
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("row", "nest", "sizes"),
    [
        ("10,20,1,1,1,1,0", LoopNest(k=10, c=20), (20, 200, 10)),
        ("8,3,9,7,3,2,1", LoopNest(k=8, c=3, y=7, x=6, r=3, s=2), (189, 144, 336)),
        # K is ignored: every channel has a filter of its own.
        ("1,8,9,7,3,3,2", LoopNest(k=1, c=1, y=7, x=5, r=3, s=3, groups=8), (504, 72, 280)),
        # M x K by K x N with M = 4, N = 5, K = 6.
        ("4,5,6,1,1,1,3", LoopNest(k=5, c=6, y=4), (24, 30, 20)),
    ],
)
def test_rows_become_loop_nests_with_their_operands(row, nest, sizes, tmp_path):
    work = read_job_list(write(tmp_path, HEADER + row))
    (job,) = work.jobs
    assert job.nests == (nest,)
    operands = (*job.reads, *job.writes)
    assert [operand.role for operand in operands] == [Role.INPUT, Role.WEIGHT, Role.OUTPUT]
    assert tuple(operand.bytes for operand in operands) == sizes
    assert (job.name, job.bits, job.after) == ("list/0", 8, ())
    assert work.networks[0].macs == job.macs == nest.macs


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
        LoopNest(k=10, c=20),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"list.csv:1: is empty"),
        (HEADER, "holds a header and no rows"),
        ("K,C,Y,X,R,S\n1,1,1,1,1,1", r"list.csv:1: column 'type' is missing"),
        ("K,C,Y,X,R,S,type,stride\n", r"list.csv:1:8: column 'stride' is not known"),
        ("K,C,Y,X,R,S,type,k\n", r"list.csv:1:8: column 'k' is there twice"),
        (HEADER + "1,1,1,1,1,1,0\n1,1,1", r"list.csv:3: has 3 cells where the header has 7"),
        (HEADER + "1,nan,1,1,1,1,0", r"list.csv:2:2: C is 'nan'"),
        (HEADER + "1,0,1,1,1,1,0", r"list.csv:2:2: C is 0: it must be at least 1"),
        (
            HEADER + f"1,{2**63},1,1,1,1,0",
            r"list.csv:2:2: C is 9223372036854775808: it must be .* less than 2147483648",
        ),
        (HEADER + "1," + "9" * 5000 + ",1,1,1,1,0", r"list.csv:2:2: C is 9{30}: it must be"),
        (
            HEADER + "1,1,1,1,1,1,4",
            r"list.csv:2:7: type is 4: it must be at least 0 and less than 4",
        ),
        (HEADER + "1,1,1,1,1,1,conv", r"list.csv:2:7: type is 'conv'"),
        (HEADER + "1,1,2,1,1,1,0", r"list.csv:2:3: Y is 2: it must be 1 for a layer of type 0"),
        (HEADER + "1,1,2,2,1,1,3", r"list.csv:2:4: X is 2: it must be 1 for a layer of type 3"),
        (HEADER + "1,1,2,5,3,1,1", r"list.csv:2:5: R is 3, more than Y = 2"),
        (HEADER + "2147483647,2147483647,1,1,1,1,0", r"list.csv:2: .* more than one job may have"),
        (HEADER + '"1,1', r"list.csv:\d: is not CSV"),
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


def test_a_group_of_a_hundred_jobs_is_read_analysed_and_mapped(tmp_path):
    found = layer_lists.layers(100, 9)
    work = read_job_list(write(tmp_path, layer_lists.text(found), "group.csv"))
    assert [job.macs for job in work.jobs] == [layer_lists.macs(layer) for layer in found]
    table = analyse(work, lm.target("m3e-s2"), "maestro")
    mapping = lm.map_jobs(table, 4e9, samples=2000)
    assert mapping.lower_bound <= mapping.makespan <= 1.5 * mapping.lower_bound
    alone = table.latency[np.arange(100), mapping.core]
    assert (mapping.end - mapping.start >= alone * (1 - 1e-9)).all()


@pytest.mark.skipif(not INSTANCES.is_dir(), reason=PUBLIC_INSTANCES)
def test_the_public_instances_are_groups_of_a_hundred_jobs():
    lists = sorted(INSTANCES.glob("*.csv"))
    assert len(lists) == 20
    assert all(len(read_job_list(file).jobs) == 100 for file in lists)

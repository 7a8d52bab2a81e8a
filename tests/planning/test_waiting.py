"""What waits for what: bytes are taken over only when their last owners are done, whatever the
times turn out to be."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.planning.addresses import as_timed, waits
from loadmaster.planning.decisions import (
    MemoryCopy,
    Placement,
    Residence,
    Schedule,
    Stays,
    Timeline,
)
from loadmaster.workloads.job import Job


def job(number, *after):
    return Job(f"j{number}", "n", 0, "Conv", (), (), 0, 8, (), (), after)


def schedule(*cores):
    return Schedule(np.array(cores, dtype=np.int32), np.arange(len(cores)))


def placement(*copies):
    return Placement(np.zeros((2, 0), dtype=bool), copies, ())


def packed(stays):
    """Stays with their offsets and sizes, in the order in which they begin."""
    residences, offsets, sizes = ([stay[column] for stay in stays] for column in range(3))
    starts = list(range(len(stays)))
    columns = (starts, [start + 1 for start in starts], sizes, offsets)
    return Stays(tuple(residences), *(np.array(column, dtype=np.int64) for column in columns))


def test_jobs_wait_for_producers_and_for_copies():
    copy = MemoryCopy(0, 0, 1, after=(0,), before=(2,))
    assert waits([job(0), job(1, 0), job(2)], schedule(0, 0, 0), placement(copy), []) == (
        (),
        (0,),
        (3,),
        (0,),
    )


@given(st.data())
def test_no_order_that_keeps_the_waits_lets_two_stays_share_bytes(data):
    """Jobs in their order are one way to run; whoever takes over bytes must come after their users
    in every way."""
    count = data.draw(st.integers(2, 8))
    jobs = [job(number) for number in range(count)]
    cores = schedule(*data.draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    stays = []
    for writer in range(count):
        users = (
            tuple(sorted(data.draw(st.sets(st.integers(writer + 1, count - 1), max_size=2))))
            if writer + 1 < count
            else ()
        )
        offset, size = data.draw(st.integers(0, 4)), data.draw(st.integers(1, 4))
        if all(
            at + length <= offset or offset + size <= at or max(r.users, default=r.writer) < writer
            for r, at, length in stays
        ):
            stays.append((Residence(writer, 1, writer, users), offset, size))
    after = waits(jobs, cores, placement(), [packed(stays)])
    before = []
    for number in range(count):
        direct = {
            *after[number],
            *(i for i in range(number) if cores.core[i] == cores.core[number]),
        }
        assert all(i < number for i in direct)
        before.append(direct.union(*(before[i] for i in direct)))
    for later, (two, at, size) in enumerate(stays):
        for one, there, length in stays[:later]:
            if at < there + length and there < at + size:
                assert {one.writer, *one.users} <= before[two.writer]


def timeline(*spans):
    start, end = (np.array(column, dtype=np.int64) for column in zip(*spans, strict=True))
    nothing = np.zeros((0, 1))
    return Timeline(start, end, np.zeros(0, dtype=np.int64), nothing, nothing)


def test_a_task_that_starts_late_waits_for_one_that_ends_as_it_starts():
    times = timeline((0, 5), (0, 9), (9, 12), (5, 9))
    # Job 2 waits for job 0 only, and could start at 5; job 1 ends as it starts. Job 3 starts as its
    # own wait ends.
    assert as_timed(((), (), (0,), (0,)), times) == ((), (), (0, 1), (0,))
    # Nothing ends at 7: nothing can be waited for.
    assert as_timed(((), ()), timeline((0, 5), (7, 9))) == ((), ())

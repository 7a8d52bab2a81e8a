"""The cache of job analyses: the same answer with and without it, whatever happens to its file."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from tests.support.layers import same_fields
from tests.support.networks import npu, residual_chain

import loadmaster as lm
from loadmaster.cost import analyse as job_analyser
from loadmaster.cost.analyse import analyse, read_job_analysis
from loadmaster.cost.cache import _bytes_of, cached, default_place, work_key

TARGET = npu()
WORK = lm.lower([residual_chain(2)], TARGET)


def executed(place, statement, *values):
    with closing(sqlite3.connect(place)) as connection, connection:
        return connection.execute(statement, values).fetchall()


def entries(place):
    return len(executed(place, "SELECT * FROM costs"))


def forbid(monkeypatch):
    """Make working anything out an error: what comes back was looked up."""

    def refuse(*_):
        raise AssertionError("worked out again")

    monkeypatch.setattr("loadmaster.cost.models.dataflow.job_costs", refuse)
    monkeypatch.setattr(job_analyser, "parse_job_analysis", refuse)


def test_equal_work_is_analysed_once_and_keeps_its_own_names(tmp_path, monkeypatch):
    place = tmp_path / "folder" / "cache.sqlite"
    # Tilings, and with them latencies and bytes, depend on the bandwidths of memories.
    slow = TARGET.with_memory(1, read_bandwidth=1e8)
    first, slower = (analyse(WORK, target, cache=place) for target in (TARGET, slow))
    assert same_fields(first, analyse(WORK, TARGET))
    assert same_fields(slower, analyse(WORK, slow))
    assert not same_fields(slower, first)
    forbid(monkeypatch)
    assert same_fields(first, analyse(WORK, TARGET, cache=place))
    renamed = replace(WORK, jobs=tuple(replace(job, name=f"other {job.name}") for job in WORK.jobs))
    cores = replace(
        TARGET, cores=tuple(replace(core, name=f"other {core.name}") for core in TARGET.cores)
    )
    other = analyse(renamed, cores, cache=place)
    assert other.jobs[0] == f"other {WORK.jobs[0].name}"
    assert other.cores == ("other c0", "other c1")
    assert same_fields(replace(other, jobs=first.jobs, cores=first.cores), first)
    assert entries(place) == 2


def test_what_an_older_numpy_keeps_is_found_again(tmp_path, monkeypatch):
    """Before 2.1, numpy's ``savez`` has no options: all that it is given are columns."""
    place, known, savez = tmp_path / "cache.sqlite", vars(analyse(WORK, TARGET)).keys(), np.savez

    def columns_only(file, **columns):
        assert columns.keys() <= known
        savez(file, **columns)

    monkeypatch.setattr(np, "savez", columns_only)
    first = analyse(WORK, TARGET, cache=place)
    forbid(monkeypatch)
    assert same_fields(first, analyse(WORK, TARGET, cache=place))


def test_everything_that_costs_depend_on_is_in_the_key():
    core, job = TARGET.cores[0], WORK.jobs[0]
    cores = [
        {"rows": 9},
        {"clock": 2e9},
        {"buffer": 999},
        {"flexible": True},
        {"noc_bandwidth": 1.0},
        {"local_buffer": 1},
        {"lanes": 3},
    ]
    memories = [
        {"read_bandwidth": 3e9},
        {"write_bandwidth": 3e9},
        {"burst": 128},
        {"energy": 1e-12},
    ]
    targets = [
        TARGET,
        *(replace(TARGET, cores=(replace(core, **change), *TARGET.cores[1:])) for change in cores),
        *(TARGET.with_memory(0, **change) for change in memories),
        TARGET.with_memory(1, read_bandwidth=3e9),
    ]
    nest = job.nests[0]
    reads = (replace(job.reads[0], bytes=1), *job.reads[1:])
    works = [
        {"elements": 5},
        {"bits": 16},
        {"reads": reads},
        {"nests": (replace(nest, stride=(2, 2)),)},
        {"reads": job.reads[:1]},
    ]
    pools = [
        WORK.jobs,
        *((replace(job, **change), *WORK.jobs[1:]) for change in works),
        WORK.jobs[1:],
    ]
    keys = {
        work_key(model, jobs, target)
        for model in ("dataflow", "maestro")
        for jobs in pools
        for target in targets
    }
    assert len(keys) == 2 * len(pools) * len(targets)


def test_a_table_is_parsed_once(tmp_path, monkeypatch):
    file, place = tmp_path / "costs.csv", tmp_path / "cache.sqlite"
    file.write_text("job,core,latency_s,bandwidth_bytes_per_s\na,x,1,2\nb,y,3,4\n")
    first = read_job_analysis(file, cache=place)
    assert first.energy is None
    forbid(monkeypatch)
    assert same_fields(first, read_job_analysis(file, cache=place))
    file.write_text("job,core,latency_s,bandwidth_bytes_per_s\na,x,1,2\nb,y,3,5\n")
    with pytest.raises(AssertionError, match="worked out again"):
        read_job_analysis(file, cache=place)


def break_content(place):
    ((content,),) = executed(place, "SELECT content FROM costs")
    executed(place, CHANGE, content[:-40] + bytes(40))


def break_table(place):
    executed(place, "DROP TABLE costs")
    executed(place, "CREATE TABLE costs (something TEXT)")


CHANGE = "UPDATE costs SET content = ?"


@pytest.mark.parametrize(
    "damage",
    [
        lambda place: place.write_bytes(b"not a database" * 500),
        lambda place: place.write_bytes(b""),
        lambda place: place.write_bytes(place.read_bytes()[:1500]),
        break_content,
        lambda place: executed(place, CHANGE, "{"),
        lambda place: executed(place, CHANGE, 0),
        break_table,
        lambda place: (place.unlink(), place.mkdir()),
        lambda place: (place.unlink(), place.symlink_to("/proc/nowhere")),
    ],
)
def test_a_damaged_file_changes_nothing(damage, tmp_path):
    place = tmp_path / "cache.sqlite"
    good = analyse(WORK, TARGET, cache=place)
    damage(place)
    for _ in range(2):
        assert same_fields(analyse(WORK, TARGET, cache=place), good)


def test_a_file_that_another_process_holds_is_done_without(tmp_path, monkeypatch):
    monkeypatch.setattr("loadmaster.cost.cache._LOCK_SECONDS", 0.01)
    place = tmp_path / "cache.sqlite"
    good = analyse(WORK, TARGET, cache=place)
    with closing(sqlite3.connect(place, isolation_level=None)) as other, other:
        other.execute("BEGIN EXCLUSIVE")
        assert same_fields(analyse(WORK, TARGET, cache=place), good)
        other.execute("ROLLBACK")


def test_many_can_use_one_file_at_once_and_old_entries_make_room(tmp_path, monkeypatch):
    # The file holds no provenance: those who look costs up know it.
    place, table = tmp_path / "cache.sqlite", replace(analyse(WORK, TARGET), provenance=())
    monkeypatch.setattr("loadmaster.cost.cache._LARGEST", 5 * (len(_bytes_of(table)) + 32))

    def use(key):
        cached(place, False, lambda: key, lambda: table)
        return same_fields(cached(place, False, lambda: key, lambda: table), table)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, map(str, range(24))))
    assert entries(place) == 5
    cached(place, False, lambda: "last", lambda: table)
    assert entries(place) == 5
    kept = cached(place, False, lambda: "last", lambda: pytest.fail("it was kept"))
    assert kept is not table


def test_the_usual_place_is_the_one_that_the_environment_names(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "mine"))
    assert default_place() == tmp_path / "mine"
    monkeypatch.setenv("LOADMASTER_CACHE", "")
    assert default_place() is None
    monkeypatch.delenv("LOADMASTER_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_place() == tmp_path / "loadmaster" / "job-analyses.sqlite"


def test_only_large_work_is_kept_unasked(tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache.sqlite"))
    analyse(WORK, TARGET)
    assert not (tmp_path / "cache.sqlite").exists()
    monkeypatch.setattr("loadmaster.cost.models.dataflow.Dataflow.kept_from", len(WORK.jobs))
    analyse(WORK, TARGET)
    assert entries(tmp_path / "cache.sqlite") == 1

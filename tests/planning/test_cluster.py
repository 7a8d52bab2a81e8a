"""A sweep on a Dask cluster: a real scheduler and two workers on this machine, one of which is
killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.support.command_line import ran, words
from tests.support.networks import residual_chain

import loadmaster as lm
from loadmaster.planning.sweep.store import SweepStore
from loadmaster.planning.sweep.sweep import sweep
from loadmaster.planning.sweep.workers import dask_cluster, local_processes

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("default")

AXES = lm.parse_axes(["scratchpad=0,4KiB,8KiB,16KiB", "bandwidth=1GB/s,4GB/s"])


def dask(*arguments):
    kind, *rest = words(*arguments)
    command = [sys.executable, "-m", f"distributed.cli.dask_{kind}", *rest]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def scheduler(tmp_path):
    """Address of a scheduler, ``host:port``, with two workers of one thread each."""
    about = tmp_path / "scheduler.json"
    started = [dask("scheduler --host 127.0.0.1 --port 0 --no-dashboard --scheduler-file", about)]
    try:
        options = ("--nthreads 1 --no-nanny --no-dashboard --local-directory", tmp_path)
        started += [dask("worker --scheduler-file", about, *options) for _ in range(2)]
        while not about.exists() or not about.read_text():
            assert started[0].poll() is None, "the scheduler did not start"
            time.sleep(0.05)
        yield json.loads(about.read_text())["address"].removeprefix("tcp://")
    finally:
        for process in reversed(started):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_worker_that_is_killed_on_the_way_loses_nothing(scheduler, tmp_path):
    arguments = [residual_chain(4)], lm.target("edge-npu"), AXES
    options = {"mini_batches": 2, "effort": "test"}
    killed = []
    with (
        distributed.Client(scheduler, set_as_default=False) as onlooker,
        dask_cluster(f"dask://{scheduler}") as executor,
    ):
        onlooker.wait_for_workers(2, timeout=600)
        processes = onlooker.run(os.getpid)

        def kill_one(stage, share):
            busy = [worker for worker, tasks in onlooker.processing().items() if tasks]
            if share > 0 and not killed and busy:
                killed.append(processes[busy[0]])
                os.kill(killed[0], signal.SIGKILL)

        store = SweepStore(tmp_path / "sweep.sqlite")
        found = sweep(*arguments, executor=executor, store=store, progress=kill_one, **options)
        assert len(killed) == 1
        while (
            len(onlooker.scheduler_info()["workers"]) > 1
        ):  # the scheduler may not have noticed yet
            time.sleep(0.05)
    assert found.missing == 0
    with local_processes(1) as here:
        again = sweep(*arguments, executor=here, store=store, **options)
        assert again.reused == len(found.points) == 8
        assert sweep(*arguments, executor=here, **options).points == found.points


@pytest.mark.slow
def test_the_command_uses_the_cluster(scheduler, tmp_path):
    sweep = f"--sweep scratchpad=1MiB:2MiB --cluster dask://{scheduler} --out {tmp_path}"
    result = ran("plan onnx:squeezenet --target edge-npu --cut none --effort test", sweep)
    assert "2.00 MiB" in result.stdout


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr("loadmaster.planning.sweep.workers._CONNECT_TIMEOUT", "100ms")
    with (
        pytest.raises(lm.PlanError, match=r"127\.0\.0\.1:9.*no Dask scheduler answers"),
        dask_cluster("dask://127.0.0.1:9"),
    ):
        pass


def test_without_dask_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with (
        pytest.raises(lm.MissingPackageError, match=r"loadmaster\[cluster\]"),
        dask_cluster("dask://127.0.0.1:9"),
    ):
        pass

"""What goes wrong in the middle of a step: a clear error, nothing left behind, and the next step is
right."""

import contextlib
import gc
import itertools
import os
import signal
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from tests.support import steps
from tests.support.compiled import same, with_plan
from tests.support.processes import memory, open_files
from tests.support.steps import Failing, Trained, least_share
from torch import nn

from loadmaster import _native
from loadmaster.core.errors import SlowMemoryError
from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.cpu_memory import PAGE, SlowFile


def test_a_disk_that_is_full_is_an_error_before_the_step_and_the_next_step_works(small_disk):
    trained = Trained(slow_memory=str(small_disk))
    assert trained.step()
    assert trained.plan.moved_bytes > 0
    used = trained.file.bytes
    other = SlowFile(small_disk)
    with pytest.raises(SlowMemoryError, match="No space left"):
        _ = [other.reserve(1 << 20) for _ in range(1000)]  # somebody else takes all there is
    x = trained.call(trained.x)  # a step in the middle, which has its space already
    with pytest.raises(SlowMemoryError, match=r"cannot be had: No space left on device"):
        _ = [trained.call(trained.x) for _ in range(50)]  # each parks the one before
    gc.collect()
    x.backward()
    other.close()
    assert trained.step()
    del x
    assert trained.file.used == 0
    assert trained.file.bytes >= used
    assert not list(small_disk.glob("[!l]*"))


def test_what_could_not_be_had_is_given_back(small_disk):
    file = SlowFile(small_disk)
    file.reserve(1 << 20)
    free = os.statvfs(small_disk)
    with pytest.raises(SlowMemoryError, match="No space left"):
        file.reserve(1 << 30)
    assert (
        free.f_bfree - os.statvfs(small_disk).f_bfree < 65536 / free.f_frsize
    )  # but for what the file system notes for itself


def test_the_limit_of_slow_memory_holds_for_every_step(tmp_path):
    share = least_share()
    trained = Trained(share, slow_memory=str(tmp_path), slow_limit="64 KiB")
    for _ in range(2):
        with pytest.raises(SlowMemoryError, match=r"slow_limit allows 64\.0 KiB"):
            trained.step()
    trained.file.limit = 1 << 20 << 4
    assert trained.step()
    assert trained.step()
    assert trained.file.used == 0


@pytest.mark.parametrize("folder", ["/proc", "/dev/shm"])
def test_slow_memory_that_is_no_disk_is_refused(folder):
    if not Path(folder).is_dir():
        pytest.skip(f"no {folder}")
    with pytest.raises(SlowMemoryError, match=r"slow_memory /\w+.*: name a folder on a local disk"):
        SlowFile(Path(folder))


def test_slow_memory_that_cannot_be_written_is_refused_by_name(tmp_path):
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if os.access(folder, os.W_OK):  # root may write everywhere
        folder = tmp_path / "a file"
        folder.touch()
    with pytest.raises(SlowMemoryError, match=f"slow_memory {folder}: no file can be made there"):
        Trained(0.9, slow_memory=str(folder)).step()


class Late:
    """A copy that is made only when somebody waits for it, after those that were started before it
    in its direction."""

    def __init__(self, queue, make):
        self.queue, self.make = queue, make
        queue.append(self)

    def __call__(self):
        while self in self.queue:
            self.queue.pop(0).make()()
        return 0.0


@pytest.mark.parametrize("addresses", [True, False])
def test_copies_may_end_as_late_as_somebody_waits(monkeypatch, addresses):
    trained, queues = Trained(), ([], [])
    memory, made = trained.model.memory(torch.device("cpu")), []
    copy = memory.copy
    monkeypatch.setattr(
        memory,
        "copy",
        lambda arena, what: (
            made.append(what) or Late(queues[what.to_fast], lambda: copy(arena, what))
        ),
    )
    if not addresses:  # as on a GPU: results are copied to their places
        monkeypatch.setattr(memory, "script", lambda grants: None)
    assert trained.step()
    assert trained.step()
    assert len(made) == 2 * len(trained.plan.program.copies) > 0
    assert (trained.plan.times.copied_results > 0) is not addresses
    monkeypatch.undo()
    plain = Trained(1.0)
    assert same(trained.right, plain.gradients())


@pytest.mark.parametrize("which", ["forward", "backward"])
def test_an_operator_that_raises(which):
    trained = Trained()
    assert trained.step()
    for _ in range(3):
        steps.ARMED[which] = 1
        with pytest.raises(Failing, match=which):
            trained.gradients()
        assert steps.ARMED[which] == 0
        gc.collect()
        assert trained.file.used == 0
        assert trained.step()
    assert trained.plan.moved_bytes > 0
    assert trained.plan.times.unforeseen == 0


def test_a_limit_on_files_interrupts_at_any_time_and_a_kill(tmp_path):
    command = [sys.executable, "-m", "tests.support.steps", str(tmp_path), "20"]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as cleanup,
    ):
        cleanup.callback(process.kill)  # should something below fail
        assert "cannot be had: File too large" in process.stdout.readline()
        assert process.stdout.readline() == "moved True equal True caught 20 used 0\n"
        assert not list(tmp_path.iterdir())
        assert open_files(process.pid, tmp_path)  # they have no name, only a process
        process.send_signal(signal.SIGKILL)  # in the middle of a step
    assert process.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())
    assert not open_files(process.pid, tmp_path)


def test_a_forked_worker_that_is_killed_changes_nothing():
    trained = Trained()
    assert trained.step()
    worker = os.fork()
    if not worker:
        signal.pause()
    os.kill(worker, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(worker, 0)[1]) == signal.SIGKILL
    assert trained.step()


def test_a_forked_process_is_refused_what_it_would_wait_for_forever():
    trained = Trained()
    assert trained.step()
    child = os.fork()
    if not child:
        signal.alarm(60)
        torch.set_num_threads(1)  # OpenMP's other threads are not forked either
        try:
            trained.step()
        except SlowMemoryError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert trained.step()


def in_threads(work, cases):
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, cases)) == [None, None]


def test_two_models_side_by_side_in_two_threads_keep_their_own_budgets():
    least = least_share()
    budgets = least, (least + 1) / 2
    models = [Trained(budget, seed=number) for number, budget in enumerate(budgets)]
    for trained in models:
        trained.module.eval()  # threads share one random state
    assert all(trained.step() for trained in models)
    first, second = (
        trained.call(trained.x) for trained in models
    )  # forward and backward passes of the two interleave
    first.backward()
    second.backward()
    equal = []

    def work(trained):
        equal.extend(trained.step() for _ in range(40))

    in_threads(work, models)
    assert equal == [True] * 80
    for trained, budget in zip(models, budgets, strict=True):
        assert trained.plan.moved_bytes > 0
        assert (
            trained.plan.placed_peak
            <= trained.model.budget
            == int(budget * trained.model.unmoved_peak)
        )
        assert trained.file.used == 0
    assert models[0].file is not models[1].file


def test_one_model_in_two_threads():
    trained = Trained()
    trained.module.eval()  # threads share one random state
    parameters = list(trained.module.parameters())
    inputs = [trained.x, torch.randn_like(trained.x)]
    right = [torch.autograd.grad(trained.call(x), parameters) for x in inputs]
    results = [True, True]

    def work(number):
        for _ in range(30):
            made = torch.autograd.grad(trained.call(inputs[number]), parameters)
            results[number] &= same(made, right[number])

    in_threads(work, range(2))
    gc.collect()
    assert results == [True, True]
    assert trained.file.used == 0
    assert trained.step()


def _standing():
    """Anonymous memory, open files, threads of this process."""
    gc.collect()
    files, threads = (len(os.listdir(f"/proc/self/{each}")) for each in ("fd", "task"))
    return memory("self")["RssAnon"], files, threads


def test_models_that_are_gone_leave_nothing(tmp_path):

    both = [Trained(slow_memory=str(tmp_path), slow_limit=f"{number} GiB") for number in (1, 2)]
    assert all(trained.step() for trained in both)
    assert len(open_files("self", tmp_path)) == 2
    gone = [weakref.ref(trained.model) for trained in both]
    both.clear()
    torch._dynamo.reset()
    gc.collect()
    assert [model() for model in gone] == [None, None]
    assert not open_files("self", tmp_path)


def test_memory_where_an_arena_was_is_freed_again():
    call = with_plan(nn.Sequential(nn.Linear(512, 512), nn.GELU()))
    x = torch.ones(20_000, 512)
    with torch.no_grad():
        call(x)
    arena = model_of(call).plans[0].program.arena
    there = range(arena.base, arena.base + arena.bytes)
    del call, arena
    torch._dynamo.reset()
    gc.collect()
    count = 33 << 20  # from here on, each has a mapping of its own
    _native.start_recording()
    made = [torch.empty(count, dtype=torch.uint8) for _ in range(16)]
    assert any(one.data_ptr() in there for one in made)  # or the test shows nothing
    made.clear()
    rows = [row for row in _native.stop_recording() if row[1] == count]
    assert [freed >= 0 for _, _, freed in rows] == [True] * 16


def test_steps_of_many_shapes_in_any_order_grow_nothing():
    call = with_plan(nn.Linear(16, 4), dynamic=True)
    shapes = range(3, 8)
    with torch.no_grad():
        for order in itertools.permutations(shapes):
            for rows in order:
                call(torch.ones(rows, 16))
    plans = model_of(call).plans
    assert len(plans) == len(shapes)
    assert all(len(plan.later_graphs) <= 1 for plan in plans)


def test_steps_grow_nothing():
    trained = Trained(rows=128)
    assert all(trained.step() for _ in range(50))
    before, file = _standing(), trained.file.bytes
    standing = [before[0]]
    for _ in range(3):
        assert all(trained.step() for _ in range(100))
        standing.append(_standing()[0])
    # What leaks grows all the time; what earlier tests of this process have left may move once.
    assert min(after - before for before, after in itertools.pairwise(standing)) < 1 << 19
    abandoned = [
        trained.call(trained.x) for _ in range(3)
    ]  # forward passes whose backward passes never come
    parked = trained.file.used
    del abandoned
    assert parked > 0
    # What the next step brings back is still there, once, however many passes were abandoned.
    resting = trained.file.used
    assert resting < parked
    assert all(trained.call(trained.x) is not None for _ in range(3))
    assert trained.file.used == resting
    assert trained.step()
    assert trained.file.used == 0
    after = _standing()
    assert after[1:] == before[1:]
    assert trained.file.bytes - file <= 4 * parked
    assert trained.file.bytes % PAGE == 0

"""The memory of a GPU on a fake one, whose streams make copies as late as events allow: one that
nobody waits for is never made.

Kernels and copies that touch memory of a copy that is still under way, and that they should have
waited for, are errors by themselves, whatever the values: a GPU might make the copy at any time
until then.
"""

import pytest
import torch
from tests.support.compiled import most_allocated, with_plan
from tests.support.modules import linears
from tests.support.steps import ROWS, WIDTH, Trained
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import BudgetError
from loadmaster.integrations.torch_compile import cuda_memory
from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.compiled_model import CompiledModel
from loadmaster.integrations.torch_compile.executor import Session

SHARE = 0.65


def overlap(one, other):
    """Whether two tensors without gaps share bytes."""
    return (
        one.data_ptr() < other.data_ptr() + other.nbytes
        and other.data_ptr() < one.data_ptr() + one.nbytes
    )


def check(reads, writes, but=None):
    """Fail if a copy under way in a stream ``but`` one writes what is read or written, or reads
    what is written."""
    for stream in Stream.every:
        for source, target in stream.under_way() if stream is not but else ():
            assert not any(overlap(one, target) for one in (*reads, *writes)), (
                "touches what a copy under way writes"
            )
            assert not any(overlap(one, source) for one in writes), (
                "writes what a copy under way reads"
            )


class Deferred(TorchFunctionMode):
    """Puts copies into the queue of a stream instead of making them."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not torch.Tensor.copy_:
            return func(*args, **(kwargs or {}))
        assert self.stream.after_kernels, "a copy that does not wait for the kernels before it"
        self.stream.after_kernels = False
        check(
            reads=[args[1]], writes=[args[0]], but=self.stream
        )  # copies of one stream wait for one another
        self.stream.queue.append(lambda: func(*args))
        self.stream.operands.append((args[1], args[0]))
        return args[0]


class Stream:
    """Kernels run at once on the host, and each copy when somebody waits for its own event, not for
    that of a later one."""

    every: list = []  # noqa: RUF012

    def __init__(self, device=None):
        self.queue, self.operands, self.made, self.after_kernels = [], [], set(), False
        self.every.append(self)

    def wait_stream(self, other):
        self.after_kernels = other is CURRENT

    def wait_event(self, event):
        event.stream.run(event.place)

    def run(self, place):
        if place not in self.made:
            self.made.add(place)
            self.queue[place]()

    def under_way(self):
        return [operands for place, operands in enumerate(self.operands) if place not in self.made]

    def synchronize(self):
        for place in range(len(self.queue)):
            self.run(place)


class Event:
    def record(self, stream):
        self.stream, self.place = stream, len(stream.queue) - 1


CURRENT = Stream()


@pytest.fixture
def streams(monkeypatch):
    def synchronize(device=None):
        for stream in Stream.every:
            stream.synchronize()

    monkeypatch.setattr(Stream, "every", [])
    fakes = {
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda device: CURRENT,
        "synchronize": synchronize,
        "stream": Deferred,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("pin_memory", "unpin_memory"):
        monkeypatch.setattr(cuda_memory, name, lambda *_: None)
    monkeypatch.setattr(
        CompiledModel,
        "_make_memory",
        lambda model, device: cuda_memory.CudaMemory(
            torch.device("cpu"), model.settings.slow_limit
        ),
    )
    return Stream.every


def test_results_are_right_though_every_copy_is_as_late_as_may_be(streams):
    trained = Trained(SHARE)
    assert all(trained.step() for _ in range(4))
    plan = trained.plan
    assert plan.moved_bytes > 0
    assert sum(len(stream.made) for stream in streams) >= 4 * len(
        plan.program.copies
    )  # kernels have waited for all


def test_kernels_that_do_not_fit_are_refused_and_not_cut(streams):
    """Blocks are read from a file, and a GPU's slow memory is none."""
    with pytest.raises(BudgetError, match="too small"):
        Trained(0.3).step()


def test_a_result_goes_when_it_has_been_copied(streams):
    """Not only when the next kernel has made its own."""
    trained = Trained(SHARE)
    trained.step()
    assert (
        most_allocated(trained.gradients) < 2.5 * ROWS * WIDTH * 4
    )  # a dropout's results and what it takes beside them


def test_state_of_optimizers_counts(streams):
    """It does not move, and takes of the budget what it takes."""
    module = linears(512, 2, nn.ReLU)
    call = with_plan(module, "64 MiB", dynamic=False)
    optimizer = torch.optim.Adam(module.parameters())
    for _ in range(2):
        call(torch.randn(8, 512)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights = 2 * 512 * 512 * 4
    known = model_of(call).persistent
    assert 0 <= known.fast_bytes([]) - 3 * weights < weights / 10


def test_arenas_stay_between_steps(streams):
    trained = Trained(SHARE)
    assert trained.step()
    assert trained.model.standing_arenas == trained.plan.program.arena.bytes > 0


def test_a_copy_that_does_not_wait_for_kernels_is_noticed(streams, monkeypatch):
    monkeypatch.setattr(Stream, "wait_stream", lambda *_: None)
    with pytest.raises(AssertionError, match="does not wait for the kernels"):
        Trained(SHARE).step()


def checked(launch):
    """Have a kernel check what it touches before it runs."""
    run = launch.target

    def target(*arguments, **keywords):
        reads = [one for one in tree_leaves((arguments, keywords)) if isinstance(one, torch.Tensor)]
        check(reads, [result.planned for result in launch.results if result.planned is not None])
        return run(*arguments, **keywords)

    launch.target = target


def without_wait(monkeypatch, left_out):
    """Have the executor leave out the wait for one copy while the step runs."""
    wait = Session._wait
    monkeypatch.setattr(
        Session, "_wait", lambda session, i: None if i == left_out else wait(session, i)
    )


def test_every_wait_that_is_left_out_is_noticed(streams, monkeypatch):
    trained = Trained(SHARE)
    assert trained.step()
    program = trained.plan.program
    for launch in program.launches:
        checked(launch)
    assert trained.step()
    waits = [i for step in program.steps for i in (*step.waits, *step.blocking)]
    assert sorted(waits) == list(range(len(program.copies)))
    assert {copy.to_fast for copy in program.copies} == {False, True}
    for i in waits:
        with monkeypatch.context() as patch:
            without_wait(patch, i)
            with pytest.raises(AssertionError, match="a copy under way"):
                trained.step()
        assert trained.step()

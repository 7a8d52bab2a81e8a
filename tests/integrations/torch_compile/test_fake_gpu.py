"""The memory of a GPU on a fake one, whose streams make copies as late as events allow: one that nobody waits for is never made."""

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from tests.support.steps import Trained  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from loadmaster.integrations.torch_compile.compiled_model import Model  # noqa: E402
from loadmaster.integrations.torch_compile.devices import cuda_memory  # noqa: E402

SHARE = 0.65


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
        self.stream.queue.append(lambda: func(*args))
        return args[0]


class Stream:
    """Kernels run at once on the host, and copies when somebody waits for their event or a later one."""

    every: list = []  # noqa: RUF012

    def __init__(self, device=None):
        self.queue, self.done, self.after_kernels = [], 0, False
        self.every.append(self)

    def wait_stream(self, other):
        self.after_kernels = other is CURRENT

    def wait_event(self, event):
        event.stream.run_until(event.place)

    def run_until(self, place):
        while self.done < place:
            self.queue[self.done]()
            self.done += 1

    def synchronize(self):
        self.run_until(len(self.queue))


class Event:
    def record(self, stream):
        self.stream, self.place = stream, len(stream.queue)


CURRENT = Stream()


@pytest.fixture
def streams(monkeypatch):
    def synchronize(device=None):
        for stream in Stream.every:
            stream.synchronize()

    monkeypatch.setattr(Stream, "every", [])
    fakes = {"Stream": Stream, "Event": Event, "current_stream": lambda device: CURRENT, "synchronize": synchronize, "stream": Deferred}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("pin_memory", "unpin_memory"):
        monkeypatch.setattr(cuda_memory, name, lambda *_: None)
    monkeypatch.setattr(Model, "_made", lambda model, device: cuda_memory.CudaMemory(torch.device("cpu"), model.settings.slow_limit))
    return Stream.every


def test_results_are_right_though_every_copy_is_as_late_as_may_be(streams):
    trained = Trained(SHARE)
    assert all(trained.step() for _ in range(4))
    plan = trained.model.plans[0]
    assert plan.moved_bytes > 0
    assert sum(stream.done for stream in streams) >= 4 * len(plan.program.copies)  # kernels have waited for all


def test_a_copy_that_does_not_wait_for_kernels_is_noticed(streams, monkeypatch):
    monkeypatch.setattr(Stream, "wait_stream", lambda *_: None)
    with pytest.raises(AssertionError, match="does not wait for the kernels"):
        Trained(SHARE).step()

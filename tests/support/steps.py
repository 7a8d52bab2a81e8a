"""Steps of a small network that moves tensors, in this process and in one of its own, for tests of
what goes wrong."""

import os
import resource
import signal
import sys
import threading
import warnings
from functools import partial

import torch
from tests.support.compiled import clones, same, with_plan
from tests.support.modules import linears
from torch import nn

from loadmaster.core.errors import SlowMemoryError
from loadmaster.integrations.torch_compile.backend import model_of

ROWS, WIDTH = 1024, 64


class Failing(RuntimeError):
    """What `fragile` raises."""


ARMED = {"forward": 0, "backward": 0}
"""After how many runs of the operator it fails, forward and backward; 0: never."""


def _pass(x, which):
    if ARMED[which]:
        ARMED[which] -= 1
        if not ARMED[which]:
            raise Failing(which)
    return x.clone()


@torch.library.custom_op("loadmaster_tests::fragile", mutates_args=())
def fragile(x: torch.Tensor) -> torch.Tensor:
    """A user's operator that returns a copy, and fails when it is armed."""
    return _pass(x, "forward")


@torch.library.custom_op("loadmaster_tests::fragile_backward", mutates_args=())
def fragile_backward(x: torch.Tensor) -> torch.Tensor:
    """The same in the backward pass."""
    return _pass(x, "backward")


fragile.register_fake(torch.empty_like)
fragile_backward.register_fake(torch.empty_like)
fragile.register_autograd(lambda context, gradient: fragile_backward(gradient))


class Network(nn.Module):
    """Wide activations, few parameters, random state, and a user's operator in the middle."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.layers = linears(WIDTH, 3, nn.GELU, partial(nn.Dropout, 0.1))
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x):
        middle = self.layers[:4](x)
        return self.last(self.layers[4:](fragile(middle))).square().mean()


class Trained:
    """A compiled `Network` under a budget, its gradients, and those that it should have."""

    def __init__(self, budget=None, seed=0, rows=ROWS, **options):
        self.module, self.x = Network(seed), torch.randn(rows, WIDTH)
        self.call = with_plan(
            self.module, budget or least_share(rows), dynamic=False, refine_after=0, **options
        )
        self.right = []

    def gradients(self):
        """Gradients of a step."""
        self.module.zero_grad()
        torch.manual_seed(1)
        self.call(self.x).backward()
        return [p.grad for p in self.module.parameters() if p.grad is not None]

    def step(self):
        """Run a step; whether its gradients are those of the first."""
        made = self.gradients()
        if not self.right:
            self.right = clones(made)
        return same(made, self.right)

    @property
    def model(self):
        """What the backend knows of it."""
        return model_of(self.call)

    @property
    def plan(self):
        """That of its only graph."""
        (plan,) = self.model.plans
        return plan

    @property
    def file(self):
        """Its slow memory."""
        return self.model.memory(torch.device("cpu")).file


_LEAST = {}


def least_share(rows=ROWS):
    """A budget, as a share of the unmoved peak, under which most of the network's saved tensors
    move."""
    if rows not in _LEAST:
        trained = Trained(1.0, rows=rows)
        trained.step()
        needed = trained.plan.problem.needed().max()
        _LEAST[rows] = float(0.6 * needed / trained.plan.unmoved_peak + 0.4)
    return _LEAST[rows]


def _interrupt(seconds, over):
    """Send a SIGINT, and another where Python has dropped it: in a finalizer, exceptions are only
    printed."""
    while not over.wait(seconds):
        os.kill(os.getpid(), signal.SIGINT)
        seconds = 5


def disturbed(folder, rounds):
    """A step that may not make files longer, then steps that real SIGINTs hit at all times, then
    steps until the process is ended."""
    warnings.simplefilter("ignore")
    trained = Trained(slow_memory=folder)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        trained.step()
    except SlowMemoryError as error:
        print(error, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    equal = all(trained.step() for _ in range(4))
    caught = 0
    for number in range(rounds):
        over = threading.Event()
        sender = threading.Thread(target=_interrupt, args=(0.1 * (number + 0.5) / rounds, over))
        try:
            sender.start()
            while True:
                trained.gradients()
        except KeyboardInterrupt:
            over.set()
            caught += 1
        sender.join()
        equal &= trained.step()
    # An interrupt may have a graph compiled again.
    moved, used = trained.model.plans[0].moved_bytes > 0, trained.file.used
    print(f"moved {moved} equal {equal} caught {caught} used {used}", flush=True)
    while True:
        trained.step()


if __name__ == "__main__":
    disturbed(sys.argv[1], int(sys.argv[2]))

"""Forward passes that come before the backward passes of others: each backward pass finds its
own."""

import copy

import pytest
import torch
from tests.support.compiled import with_plan
from torch import nn

from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile.backend import loadmaster

WIDTH = 192


class Normalised(nn.Module):
    """A graph that saves results of its own for the backward pass."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return nn.functional.normalize(self.second(self.first(x).tanh()), dim=1)


def networks():
    torch.manual_seed(0)
    return {
        "saves only what the caller gave": nn.Linear(WIDTH, WIDTH),
        "saves parameters alone": nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Flatten()),
        "saves nothing": Scaled(),
        "saves results": Normalised(),
    }


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x):
        return x * 3 + self.bias


def inputs(count):
    torch.manual_seed(1)
    return [torch.randn(32, WIDTH) for _ in range(count)]


def siamese(run):
    x, y = inputs(2)
    (run(x) * run(y)).sum().backward()


def contrastive(run):
    x, y, z = inputs(3)
    anchor, near, far = run(x), run(y), run(z)
    ((anchor - near).square().sum() - (anchor - far).square().sum()).backward()


def last_first(run):
    losses = [run(x).square().sum() for x in inputs(3)]
    for loss in reversed(losses):
        loss.backward()


def same_input_twice(run):
    (x,) = inputs(1)
    (run(x) * run(x).exp()).sum().backward()


def one_never(run):
    x, y, z = inputs(3)
    kept = run(x)
    run(y)
    run(z).square().sum().backward()
    del kept


LOSSES = (siamese, contrastive, last_first, same_input_twice, one_never)


@pytest.mark.parametrize("options", [{}, {"fast_memory": 0.9}], ids=["unmoved", "budget"])
@pytest.mark.parametrize("network", networks())
def test_gradients_are_those_of_eager_mode(network, options):
    module = networks()[network]
    if options and isinstance(module, Scaled):
        return  # Nothing of it can move.
    twin = copy.deepcopy(module)
    call = torch.compile(twin, backend=loadmaster, options=options)
    for loss in LOSSES * 2:
        for one, run in ((module, module), (twin, call)):
            one.zero_grad()
            loss(run)
        for a, b in zip(twin.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-4)


def test_an_optimizer_in_the_plan_waits_for_all_of_them():
    torch.manual_seed(0)
    module = Normalised()
    twin = copy.deepcopy(module)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (module, twin)]
    call = with_plan(twin, optimizer=optimizers[1])
    for _ in range(3):
        for run, optimizer in zip((module, call), optimizers, strict=True):
            optimizer.zero_grad()
            siamese(run)
            optimizer.step()
        for a, b in zip(module.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_what_replaces_saved_tensors_is_refused():
    call = with_plan(nn.Linear(WIDTH, WIDTH))
    (x,) = inputs(1)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one):
        loss = call(x).sum()
    with pytest.raises(LoadmasterError, match="saved tensors were replaced"):
        loss.backward()

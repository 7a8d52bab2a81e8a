"""With the option ``optimizer`` gradients end in the backward pass: whoever asks for one hears
it."""

import pytest
import torch
from tests.support.compiled import with_plan
from torch import nn

from loadmaster.core.errors import LoadmasterError


def made():
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    call = with_plan(module, optimizer=optimizer)
    return module, optimizer, call, torch.randn(16, 48)


def logged(module, optimizer):
    return sum(float(p.grad.norm()) for p in module.parameters() if p.grad is not None)


def unscaled(module, optimizer):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)


def accumulated(module, optimizer):
    (module(torch.randn(16, 48)).sum()).backward()


def scaled_by_hand(module, optimizer):
    for p in module.parameters():
        if p.grad is not None:
            p.grad.data.mul_(0.5)


ASKING = {
    "norm": lambda module, _: torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0),
    "value": lambda module, _: torch.nn.utils.clip_grad_value_(module.parameters(), 1.0),
    "total": lambda module, _: torch.nn.utils.get_total_norm(
        [p.grad for p in module.parameters() if p.grad is not None]
    ),
    "logged": logged,
    "unscaled": unscaled,
    "accumulated": accumulated,
    "by hand": scaled_by_hand,
}


@pytest.mark.parametrize("asks", ASKING.values(), ids=ASKING)
def test_whoever_asks_for_a_gradient_that_is_gone_is_refused(asks):
    module, optimizer, call, x = made()
    optimizer.zero_grad()
    call(x).square().sum().backward()
    with pytest.raises(LoadmasterError, match="without this option"):
        asks(module, optimizer)


def test_a_second_backward_pass_before_the_step_is_refused():
    _, _, call, x = made()
    call(x).sum().backward()
    with pytest.raises(LoadmasterError, match="do not add up"):
        call(x).sum().backward()


@pytest.mark.parametrize("to_none", [True, False])
def test_zeroed_gradients_are_none(to_none):
    module, optimizer, call, x = made()
    call(x).sum().backward()
    assert all(p.grad.shape == p.shape and "Spent" in repr(p.grad) for p in module.parameters())
    optimizer.zero_grad(set_to_none=to_none)
    assert all(p.grad is None for p in module.parameters())


def test_a_closure_that_calls_backward():
    module, optimizer, call, x = made()
    before = module[0].weight.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = call(x).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    assert not torch.equal(before, module[0].weight)
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("when", ["before", "between"])
@pytest.mark.parametrize("where", ["parameter", "optimizer"])
def test_hooks_get_the_gradients(when, where):
    module, optimizer, call, x = made()
    seen = []

    def registered():
        if where == "optimizer":
            optimizer.register_step_pre_hook(
                lambda *_: seen.append(
                    float(torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01))
                )
            )
        else:
            module[0].weight.register_hook(lambda gradient: seen.append(float(gradient.norm())))

    if when == "before":
        registered()
    for i in range(3):
        optimizer.zero_grad()
        loss = call(x).square().sum()
        if when == "between" and i == 1:
            registered()
        loss.backward()
        optimizer.step()
    assert len(seen) == (3 if when == "before" else 2)
    assert all(value > 0 for value in seen)

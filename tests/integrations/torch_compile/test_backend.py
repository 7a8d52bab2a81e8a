"""Plans change where tensors are, and nothing else."""

import re

import pytest
import torch
from tests.support.compiled import model_of, same, with_plan
from torch import nn

import loadmaster as lm
from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.integrations.torch_compile.backend import loadmaster
from loadmaster.integrations.torch_compile.compare.rivals import unmoved_backend


class Returned(torch.autograd.Function):
    """A function whose gradient is a tensor that its forward pass has saved."""

    @staticmethod
    def forward(ctx, x):
        saved = x.exp()
        ctx.save_for_backward(saved)
        return x.sum() + saved[0, 0]

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0]


class Saving(nn.Module):
    """Parameters whose gradients were saved in the forward pass, beside others."""

    def __init__(self):
        super().__init__()
        self.weight, self.layer = nn.Parameter(torch.randn(256, 256)), nn.Linear(256, 256)

    def forward(self, x):
        return Returned.apply(self.weight) + self.layer(x).square().mean()


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_a_gradient_that_the_forward_pass_has_saved(optimizer):
    seen = []
    for backend in (loadmaster, unmoved_backend()):
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = Saving()
        made = torch.optim.SGD(module.parameters(), lr=0.1)
        options = (
            {"fast_memory": 0.9, **({} if optimizer is None else {"optimizer": made})}
            if backend is loadmaster
            else None
        )
        call = torch.compile(module, backend=backend, options=options)
        for _ in range(3):
            made.zero_grad()
            call(torch.ones(4, 256)).backward()
            made.step()
        seen.append(list(module.parameters()))
        if options:
            assert not model_of(options).fallbacks
    assert same(*seen)


def test_autocast_and_inference():
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.LayerNorm(64))
    x, call = torch.randn(128, 64), with_plan(module, "1 GiB")
    reduced = torch.autocast("cpu", dtype=torch.bfloat16)
    for mode in (reduced, torch.no_grad(), torch.inference_mode()):
        with mode:
            assert torch.equal(call(x), module(x))
            assert torch.equal(call(x), module(x))


def test_new_shapes_are_planned_anew():
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    options = {"fast_memory": "1 GiB"}
    call = torch.compile(module, backend=loadmaster, options=options)
    for rows in (3, 5, 8, 5):
        module.zero_grad()
        x = torch.randn(rows, 16)
        call(x).sum().backward()
        mine = [p.grad.clone() for p in module.parameters()]
        module.zero_grad()
        module(x).sum().backward()
        assert all(
            torch.allclose(a, p.grad, rtol=1e-4, atol=1e-5)
            for a, p in zip(mine, module.parameters(), strict=True)
        )
    assert not model_of(options).fallbacks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fast_memory": 1.5}, "share"), ({"fast_memory": "x%"}, "percentage"),
        ({"mode": "static"}, "sync or async"), ({"budget": 1}, "unknown"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options, said):
    from loadmaster.integrations.torch_compile.compiled_model import Settings

    with pytest.raises(BudgetError, match=said):
        Settings.of(options)


def test_wrong_options_are_our_own_error_when_the_module_is_called():
    call = torch.compile(nn.Linear(4, 4), backend="loadmaster", options={"fast_mem": "1 GiB"})
    with pytest.raises(BudgetError, match=r"'fast_mem' is unknown: .* has fast_memory"):
        call(torch.randn(2, 4))


def test_a_model_is_summed_up_once_in_the_log_and_whenever_asked(caplog):
    options = {"fast_memory": "1 GiB"}
    call = torch.compile(Saving(), backend="loadmaster", options=options)
    assert lm.summary(call).planned_peak == 0
    for _ in range(3):
        call(torch.ones(4, 256)).backward()
    found = lm.summary(call)
    (plan,) = model_of(options).of_last_step
    assert (found.planned_peak, found.moved_bytes) == (plan.placed_peak, plan.moved_bytes)
    (record,) = [each for each in caplog.records if each.name == "loadmaster"]
    said = r"loadmaster: budget 1\.00 GiB, planned peak .*, 0 B moved in a step, .* predicted"
    for line in (record.getMessage(), str(found)):
        assert re.fullmatch(f"{said}; without a plan: nothing", line), line


@pytest.mark.parametrize("donated", [True, False])
def test_backward_twice_is_refused(donated):
    """By PyTorch where it gives saved tensors away after the first time, else by the plan."""
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    with torch._functorch.config.patch(donated_buffer=donated):
        out = with_plan(module)(torch.randn(4, 8)).sum()

    def twice():
        for _ in range(2):
            out.backward(retain_graph=True)

    with pytest.raises((RuntimeError, LoadmasterError), match="retain_graph"):
        twice()

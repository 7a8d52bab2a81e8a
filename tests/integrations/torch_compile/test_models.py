"""Networks of the library transformers, small, trained and run as people do it: bit for bit what
the unmoved graphs give."""

import copy

import pytest
import torch
from tests.integrations.torch_compile.test_parameters import OPTIMIZERS, equal
from tests.support.compiled import clones, fit, same, with_plan, without_plan
from tests.support.nightly import by_night

pytest.importorskip("transformers")
from benchmarks.networks import hugging_face
from benchmarks.networks.resnet import Bottleneck

from loadmaster.integrations.torch_compile.backend import model_of

STEPS = 4


def made(name):
    torch.manual_seed(0)
    module, inputs = getattr(hugging_face, name)(2, small=True)
    if name in ("gpt2", "llama"):
        inputs["labels"] = inputs["input_ids"]
    return module.train(), inputs


def trained(module, inputs, call):
    """The optimizer, and losses and parameters of a loop with two backward passes a step, clipped
    gradients and a schedule."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses = []
    torch.manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            out = call(**inputs)
            loss = out if isinstance(out, torch.Tensor) else out.loss
            (loss / 2).backward()
            losses.append(loss)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return optimizer, clones([*losses, *module.parameters()])


@pytest.mark.parametrize("name", ["llama", *by_night("gpt2", "diffusion", "bert", "vit", "t5")])
def test_training_is_that_of_the_unmoved_graphs(name):
    module, inputs = made(name)
    plain = copy.deepcopy(module)
    _, right = trained(plain, inputs, without_plan(plain))
    torch._dynamo.reset()
    call = with_plan(module, 0.7)
    optimizer, mine = trained(module, inputs, call)
    assert same(mine, right)
    model = model_of(call)
    assert not model.fallbacks
    # The optimizer's state is offloaded as long as there is one.
    assert optimizer.state
    assert (
        sum(plan.moved_bytes for plan in model.plans) > 0 or model.persistent.offloaded_bytes() > 0
    )
    assert all(plan.placed_peak <= model.budget for plan in model.plans)


def test_a_wide_residual_network_with_updates_in_its_backward_pass():
    """A real one once failed with a bare AssertionError."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        Bottleneck(16, 16, 1, wider=2),
        Bottleneck(64, 32, 2, wider=2),
        torch.nn.Flatten(),
        torch.nn.LazyLinear(10),
    )
    x = torch.rand(4, 16, 16, 16)
    module(x)

    def fitted(twin, optimizer, call):
        fit(optimizer, call, x, steps=STEPS)
        return twin.buffers()

    _, _, call = equal(fitted, module, OPTIMIZERS["momentum"], fast_memory=0.5)
    assert model_of(call).plans[0].moved_bytes > 0


def test_generate_of_transformers_with_a_static_cache():
    module, inputs = made("llama")
    module.eval()
    prompt = inputs["input_ids"][:1]
    wanted = {
        "max_new_tokens": 5,
        "min_new_tokens": 5,
        "do_sample": False,
        "cache_implementation": "static",
        "disable_compile": True,
    }
    right = module.generate(prompt, **wanted)
    call = with_plan(module.forward, 0.7, dynamic=False)
    module.forward = call
    assert torch.equal(module.generate(prompt, **wanted), right)
    model = model_of(call)
    assert not model.fallbacks
    assert sum(plan.moved_bytes for plan in model.plans) > 0

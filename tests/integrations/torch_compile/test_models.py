"""Networks of the library transformers, small, trained and run as people do it: bit for bit what the unmoved graphs give."""

import copy
from contextlib import nullcontext

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
pytest.importorskip("transformers")
from benchmarks.networks import hugging_face  # noqa: E402

from loadmaster.integrations.torch_compile.backend import loadmaster  # noqa: E402
from loadmaster.integrations.torch_compile.compare.rivals import unmoved_backend  # noqa: E402
from loadmaster.integrations.torch_compile.owners import model_of  # noqa: E402

STEPS = 4


def made(name):
    torch.manual_seed(0)
    module, inputs = getattr(hugging_face, name)(2, small=True)
    if name in ("gpt2", "llama"):
        inputs["labels"] = inputs["input_ids"]
    return module.train(), inputs


def trained(module, inputs, call, around=nullcontext):
    """Losses and parameters of a loop with two backward passes a step, clipped gradients and a schedule."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    losses = []
    torch.manual_seed(1)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(2):
            with around():
                out = call(**inputs)
            loss = out if isinstance(out, torch.Tensor) else out.loss
            (loss / 2).backward()
            losses.append(loss.detach().clone())
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return [*losses, *(p.detach().clone() for p in module.parameters())]


def under_budget(module, share, **more):
    return torch.compile(module, backend=loadmaster, options={"fast_memory": share}, **more)


@pytest.mark.parametrize("name", ["bert", "gpt2", "vit", "t5", "llama", "diffusion"])
def test_training_is_that_of_the_unmoved_graphs(name):
    module, inputs = made(name)
    plain = copy.deepcopy(module)
    right = trained(plain, inputs, torch.compile(plain, backend=unmoved_backend()))
    torch._dynamo.reset()
    call = under_budget(module, 0.7)
    mine = trained(module, inputs, call)
    assert all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))
    model = model_of(call)
    assert not model.fallbacks
    assert sum(plan.moved_bytes for plan in model.plans) > 0 or model.offloaded_bytes() > 0
    assert all(plan.placed_peak <= model.budget for plan in model.plans)


def test_autocast_and_evaluation_between_steps():
    around = lambda: torch.autocast("cpu", torch.bfloat16)  # noqa: E731
    module, inputs = made("bert")
    plain = copy.deepcopy(module)
    results = []
    for one, call in ((plain, torch.compile(plain, backend=unmoved_backend())), (module, under_budget(module, 0.8))):
        torch._dynamo.reset()
        found = trained(one, inputs, call, around)
        one.eval()
        with torch.no_grad():
            found.append(call(**inputs).logits)
        results.append(found)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_generate_with_a_static_cache():
    module, inputs = made("llama")
    module.eval()
    prompt = inputs["input_ids"][:1]
    how = {"max_new_tokens": 6, "do_sample": False, "cache_implementation": "static", "disable_compile": True, "pad_token_id": 0}
    right = module.generate(prompt, **how)
    call = under_budget(module, 0.6, dynamic=False)
    module.forward, plain = call.forward if hasattr(call, "forward") else call, module.forward
    try:
        found = module.generate(prompt, **how)
    finally:
        module.forward = plain
    assert torch.equal(found, right)


class Numbers(torch.utils.data.Dataset):
    """Inputs that workers make."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((64,), float(index))


def test_workers_of_a_data_loader_are_forked_between_steps():
    def run(how):
        torch.manual_seed(0)
        module = torch.nn.Sequential(*(torch.nn.Linear(64, 512), torch.nn.Tanh(), torch.nn.Linear(512, 64)))
        call = how(module)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
        for _ in range(2):
            for batch in torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork"):
                optimizer.zero_grad()
                call(batch).square().mean().backward()
                optimizer.step()
        return [p.detach().clone() for p in module.parameters()], call

    right, _ = run(lambda module: torch.compile(module, backend=unmoved_backend()))
    mine, call = run(lambda module: under_budget(module, 0.6))
    assert all(torch.equal(a, b) for a, b in zip(mine, right, strict=True))
    assert model_of(call).offloaded_bytes() > 0

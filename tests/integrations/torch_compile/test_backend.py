"""Plans change where tensors are, and nothing else."""

import re

import pytest

import loadmaster as lm

torch = pytest.importorskip("torch", exc_type=ImportError)
from tests.support.compiled import model_of, same, train  # noqa: E402
from torch import nn  # noqa: E402

from loadmaster.core.errors import BudgetError, SlowMemoryError  # noqa: E402
from loadmaster.integrations.torch_compile.backend import loadmaster  # noqa: E402
from loadmaster.integrations.torch_compile.compare.rivals import unmoved_backend  # noqa: E402


def least_share(options, module, inputs):
    """A budget that makes tensors move: halfway between what the plan needs at least and what the
    step takes unmoved."""
    train(module, inputs, loadmaster, options, steps=1)
    plan = model_of(options).plans[0]
    least = int(plan.problem.needed().max())
    return (least + plan.unmoved_peak) // 2


def moved(module, inputs, **more):
    """Results of a plan that moves tensors, the plan, and results of the same graphs unmoved."""
    budget = least_share({"slow_memory": "/tmp"}, module, inputs)
    options = {"fast_memory": budget, **more}
    results = train(module, inputs, loadmaster, options)
    return results, model_of(options), train(module, inputs, unmoved_backend())


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.2), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8),
        nn.GELU(),
        nn.Conv2d(8, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 12 * 12, 7),
    )  # fmt: skip


class Tied(nn.Module):
    """Tied weights, views that are not contiguous, a split, a scaled product, an in-place update of
    a buffer."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 32)
        self.mix = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, tokens):
        self.calls.add_(1)
        x = self.norm(self.tokens(tokens))
        q, k, v = (
            part.view(*part.shape[:2], 4, 8).transpose(1, 2)
            for part in self.mix(x).split(32, dim=2)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + mixed.transpose(1, 2).reshape(x.shape)
        return nn.functional.linear(x, self.tokens.weight)


class Odd(nn.Module):
    """A zero-size tensor, a result that is an alias of another, a result that is an input."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        y = torch.relu(self.first(x))
        nothing = y[:0]
        z = torch.tanh(self.second(y)).t()
        return torch.cat([z.t() * nothing.sum(), z.t()[::2].sin()], dim=0)


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


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gradients_buffers_and_random_state_are_those_of_the_unmoved_graphs(mode):
    results, model, unmoved = moved(convolutions(), (torch.randn(4, 3, 24, 24),), mode=mode)
    assert same(results, unmoved)
    plan = model.plans[0]
    assert plan.moved_bytes > 0
    assert plan.placed_peak <= model.settings.fast_memory
    assert not model.fallbacks
    assert plan.times.unforeseen == 0


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Tied(), (torch.randint(50, (4, 64)),)),
        (Odd(), (torch.randn(32, 64),)),
        (nn.Linear(8, 8).double(), (torch.randn(0, 8).double(),)),
    ],
)
def test_views_aliases_ties_and_empty_tensors(module, inputs):
    results, _, unmoved = moved(module, inputs)
    assert same(results, unmoved)


def test_autocast_and_inference():
    module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.LayerNorm(64))
    x = torch.randn(128, 64)
    options = {"fast_memory": "1 GiB"}
    call = torch.compile(module, backend=loadmaster, options=options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(call(x), module(x))
    with torch.no_grad():
        assert torch.equal(call(x), module(x))
    with torch.inference_mode():
        assert torch.equal(call(x), module(x))
        assert torch.equal(call(x), module(x))


def test_a_second_forward_before_the_backward_parks_the_first():
    module = convolutions()
    inputs = torch.randn(4, 3, 24, 24), torch.randn(4, 3, 24, 24)
    gradients = []
    for backend in (loadmaster, unmoved_backend()):
        torch._dynamo.reset()
        module.zero_grad()
        call = torch.compile(
            module,
            backend=backend,
            options={"fast_memory": "1 GiB"} if backend is loadmaster else None,
        )
        torch.manual_seed(0)
        outs = [call(x) for x in inputs]
        (outs[0].square().sum() + outs[1].sum()).backward()
        call(inputs[0])  # a forward whose backward never comes
        gradients.append([p.grad.clone() for p in module.parameters()])
    assert same(*gradients)


def test_graph_breaks_share_a_budget():
    class Broken(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = convolutions(), nn.Linear(7, 7)

        def forward(self, x):
            y = self.one(x)
            torch._dynamo.graph_break()
            return self.two(y).relu()

    results, model, unmoved = moved(Broken(), (torch.randn(4, 3, 24, 24),))
    assert len(model.plans) == 2
    assert same(results, unmoved)


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


def test_an_impossible_budget_is_refused_with_the_operator_and_the_smallest():
    module, x = convolutions(), torch.randn(4, 3, 24, 24)
    options = {"fast_memory": "50 KiB"}
    with pytest.raises(BudgetError, match=r"operator aten\.\w+ \(\w+\) needs \d+ bytes"):
        torch.compile(module, backend=loadmaster, options=options)(x)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fast_memory": 1.5}, "share"), ({"fast_memory": "x%"}, "percentage"), ({"mode": "static"}, "sync or async"),
        ({"budget": 1}, "unknown"),
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
    call = torch.compile(convolutions(), backend="loadmaster", options=options)
    assert lm.summary(call).planned_peak == 0
    for _ in range(3):
        call(torch.randn(4, 3, 24, 24)).sum().backward()
    found = lm.summary(call)
    (plan,) = model_of(options).of_last_step
    assert (found.planned_peak, found.moved_bytes) == (plan.placed_peak, plan.moved_bytes)
    (record,) = [each for each in caplog.records if each.name == "loadmaster"]
    said = r"loadmaster: budget 1\.00 GiB, planned peak .*, 0 B moved in a step, .* predicted"
    for line in (record.getMessage(), str(found)):
        assert re.fullmatch(f"{said}; without a plan: nothing", line), line


def test_slow_memory_that_is_not_there_or_full_is_a_clear_error(tmp_path):
    module, x = convolutions(), torch.randn(4, 3, 24, 24)
    with pytest.raises(SlowMemoryError, match="no file can be made"):
        torch.compile(
            module, backend=loadmaster, options={"slow_memory": str(tmp_path / "nowhere")}
        )(x)
    budget = least_share({"fast_memory": None}, module, (x,))
    torch._dynamo.reset()
    options = {"fast_memory": budget, "slow_limit": "17 MiB", "slow_memory": str(tmp_path)}
    call = torch.compile(module, backend=loadmaster, options=options)
    call(x).sum().backward()
    model = model_of(options)
    model.memory(torch.device("cpu")).file.limit = 0
    model.memory(torch.device("cpu")).file._free.clear()
    with pytest.raises(SlowMemoryError, match="cannot be had"):
        call(x)
    model.memory(torch.device("cpu")).file.limit = None
    module.zero_grad()
    call(x).sum().backward()
    assert list(tmp_path.iterdir()) == []


def test_an_exception_in_the_middle_of_a_step_leaves_nothing_behind(monkeypatch):
    module, x = convolutions(), torch.randn(4, 3, 24, 24)
    options = {"fast_memory": least_share({"fast_memory": None}, module, (x,))}
    torch._dynamo.reset()
    call = torch.compile(module, backend=loadmaster, options=options)
    call(x).sum().backward()
    plan = model_of(options).plans[0]
    file = model_of(options).memory(torch.device("cpu")).file
    launch = plan.program.launches[len(plan.program.launches) // 2]
    right = launch.target

    def interrupted(*given, **named):
        raise KeyboardInterrupt

    launch.target = interrupted
    with pytest.raises(KeyboardInterrupt):
        call(x).sum().backward()
    launch.target = right
    module.zero_grad()
    torch.manual_seed(0)
    call(x).sum().backward()
    mine = [p.grad.clone() for p in module.parameters()]
    del launch
    assert file.used == 0
    torch._dynamo.reset()
    module.zero_grad()
    torch.manual_seed(0)
    torch.compile(module, backend=unmoved_backend())(x).sum().backward()
    assert same(mine, [p.grad for p in module.parameters()])


def test_backward_twice_is_refused():
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    out = torch.compile(module, backend=loadmaster)(torch.randn(4, 8)).sum()
    with pytest.raises(RuntimeError, match="retain_graph"):
        out.backward(retain_graph=True)

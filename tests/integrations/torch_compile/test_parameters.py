"""Parameters, gradients and optimizer state are part of the plan: they move, and nothing else
changes."""

import contextlib
import copy

import pytest
import torch
from tests.support.compiled import (
    Tied,
    model_of,
    models_of,
    same,
    state_of,
    tokens,
    with_plan,
    without_plan,
)
from tests.support.nightly import by_night
from torch import nn

from loadmaster.core.errors import BudgetError, LoadmasterError, SlowMemoryError
from loadmaster.integrations.torch_compile.backend import loadmaster
from loadmaster.integrations.torch_compile.compare.rivals import unmoved_backend
from loadmaster.integrations.torch_compile.compiled_model import CompileOptions

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.1),
    "adafactor": lambda parameters: torch.optim.Adafactor(
        parameters, lr=0.01
    ),  # no elements by themselves; state of other shapes
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def steps(module, optimizer, call, count=3, schedule=None):
    """Losses, and all parameters after every step."""
    seen = []
    for step in range(count):
        optimizer.zero_grad()
        loss = call(tokens(step))
        loss.backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
        seen += [loss.detach().clone(), *(p.detach().clone() for p in module.parameters())]
    return seen


def plain(module, make, count=3, scheduled=False):
    """The graphs unmoved, and the optimizer's step after each."""
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    optimizer = make(twin.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5) if scheduled else None
    return steps(twin, optimizer, without_plan(twin), count, schedule) + state_of(twin, optimizer)


def compiled(module, make=None, **options):
    """A copy of the module that runs plans, its optimizer and its options."""
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    optimizer = None if make is None else make(twin.parameters())
    given = dict(options) if optimizer is None else {"optimizer": optimizer, **options}
    return twin, optimizer, torch.compile(twin, backend=loadmaster, options=given), given


def agree(call, module, step):
    return torch.equal(call(tokens(step)), module(tokens(step)))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Updates in blocks of few rows, as large parameters have them."""
    from loadmaster.integrations.torch_compile import updates

    monkeypatch.setattr(updates, "_BLOCK", 32 << 10)


@pytest.mark.parametrize("name", ["adafactor", "adamw", *by_night("momentum", "sgd")])
def test_updates_in_the_backward_pass_are_the_optimizers_bit_for_bit(name):
    torch.manual_seed(0)
    module = Tied()
    right = plain(module, OPTIMIZERS[name], 5, scheduled=True)
    for budget in (1.0, 0.45):
        twin, optimizer, call, options = compiled(module, OPTIMIZERS[name], fast_memory=budget)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        assert same(steps(twin, optimizer, call, 5, schedule) + state_of(twin, optimizer), right)
        model = model_of(options)
        plan = model.plans[0]
        assert plan.placed_peak <= budget * plan.unmoved_peak
        assert (model.persistent.offloaded_bytes() > 0) == (budget < 1)
        assert all(p.grad is None for p in twin.parameters())
        assert not model.fallbacks
        assert plan.times.unforeseen == 0
        assert [update.count for update in plan.updates.values()] == [5] * len([*twin.parameters()])


def test_parameters_of_an_inference_move_and_show_their_values():
    module = Tied()
    twin, _, call, options = compiled(module, fast_memory=0.4)
    with torch.no_grad():
        assert agree(call, module, 0)
        model = model_of(options)
        assert model.plans[0].moved_bytes >= model.persistent.offloaded_bytes() > 0
        assert same(twin.state_dict().values(), module.state_dict().values())
        for changed in (twin, module):
            changed.tokens.weight.mul_(0.5)
            changed.wide[0].weight.data.add_(0.25)
            changed.narrow[0].weight[3] = 1.0
        assert agree(call, module, 1)
        twin.load_state_dict(Tied().state_dict())
        module.load_state_dict(twin.state_dict())
        assert agree(call, module, 1)
        twin.tokens.weight.data = module.tokens.weight.data = torch.ones(
            256, 128
        )  # another storage
        assert agree(call, module, 1)
    assert not model.fallbacks


def test_a_place_that_cannot_be_had_is_an_error_and_the_next_call_works():
    module = Tied()
    twin, _, call, options = compiled(module, fast_memory=0.4)
    with torch.no_grad():
        call(tokens(0))
        file = model_of(options).memory(torch.device("cpu")).file

        def refused():
            file.limit = 0
            file._free.clear()
            with pytest.raises(SlowMemoryError, match="slow_limit"):
                call(tokens(1))

        twin.tokens.weight.data = module.tokens.weight.data = torch.ones(256, 128)
        refused()
        file.limit = None
        assert agree(call, module, 1)
    torch._dynamo.reset()
    call(tokens(0)).backward()
    refused()


def test_aliases_of_a_parameter_follow_it():
    module = Tied()
    twin, _, call, _ = compiled(module, fast_memory=0.4)
    alias, row = twin.wide[0].weight.detach(), twin.wide[0].weight.data[5]
    with torch.no_grad():
        call(tokens(0))
        assert torch.equal(alias, module.wide[0].weight)
        row.zero_()
        module.wide[0].weight[5] = 0
        assert agree(call, module, 0)


def test_the_state_of_an_optimizer_can_be_saved_loaded_and_cleared():
    module = Tied()
    make = OPTIMIZERS["adamw"]
    right = plain(module, make, 4)
    first, one, call, _ = compiled(module, make, fast_memory=0.5)
    seen = steps(first, one, call, 2)
    saved = copy.deepcopy((first.state_dict(), one.state_dict()))
    second, other, again, _ = compiled(module, make, fast_memory=0.5)
    steps(second, other, again, 1)
    second.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    for step in (2, 3):
        other.zero_grad()
        loss = again(tokens(step))
        loss.backward()
        seen += [loss.detach().clone(), *(p.detach().clone() for p in second.parameters())]
    assert same(seen + state_of(second, other), right)


class Halves(nn.Module):
    """Two graphs; the embedding is used by both."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(256, 128)
        self.one, self.two = nn.Linear(128, 128), nn.Linear(128, 128)

    def forward(self, tokens):
        x = torch.tanh(self.one(self.tokens(tokens)))
        torch._dynamo.graph_break()
        return nn.functional.cross_entropy(
            nn.functional.linear(self.two(x), self.tokens.weight), tokens.roll(1)
        )


def test_another_optimizer_than_that_of_the_options_is_an_error_until_compiled_anew():
    module, x = nn.Sequential(nn.Linear(32, 32), nn.Tanh()), torch.randn(4, 32)
    module, first, call, _ = compiled(module, torch.optim.AdamW)
    call(x).sum().backward()
    first.step()
    second = torch.optim.SGD(module.parameters(), lr=0.1)
    before = [p.detach().clone() for p in module.parameters()]
    module(x).sum().backward()
    second.step()  # what was not compiled is its own
    assert not same([p.detach() for p in module.parameters()], before)
    second.zero_grad()
    call(x).sum().backward()
    with pytest.raises(
        LoadmasterError,
        match="by the AdamW that the option optimizer named, and this SGD is another",
    ):
        second.step()
    again = with_plan(module, optimizer=second)
    second.zero_grad()
    again(x).sum().backward()
    second.step()
    assert all(p.grad is None for p in module.parameters())


def test_a_parameter_of_two_graphs_is_left_to_the_optimizer():
    module = Halves()
    right = plain(module, OPTIMIZERS["adamw"])
    twin, optimizer, call, options = compiled(module, OPTIMIZERS["adamw"])
    assert same(steps(twin, optimizer, call) + state_of(twin, optimizer), right)
    model = model_of(options)
    assert len(model.plans) == 2
    assert model.updates.left == {id(twin.tokens.weight)}
    assert (
        sum(len(plan.updates) for plan in model.plans) == 4
    )  # weights and biases of the two layers


class Layer(nn.Linear):
    """A module that Dynamo captures on its own: it leaves PyTorch's alone."""

    def forward(self, x):
        return torch.tanh(nn.functional.linear(x, self.weight, self.bias))


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer(192, 192) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


def beside_unmoved(module, make, run, **options):
    """Run the same with a plan and with unmoved graphs, which see the same; the plan's options."""
    seen = []
    for backend in (unmoved_backend(), loadmaster):
        torch._dynamo.reset()
        twin = copy.deepcopy(module)
        optimizer = make(twin.parameters())
        given = None if not seen else {"optimizer": optimizer, **options}
        told = run(twin, optimizer, {"backend": backend, "options": given})
        seen.append([*told, *twin.parameters(), *state_of(twin, optimizer)])
    assert same(*seen)
    return given


def test_layers_that_share_a_captured_graph_have_plans_of_their_own():
    x = torch.randn(8, 192)

    def run(twin, optimizer, compiler):
        for layer in twin.layers:
            layer.compile(**compiler)
        for _ in range(4):
            optimizer.zero_grad()
            twin(x).backward()
            optimizer.step()
        return []

    options = beside_unmoved(Stack(), OPTIMIZERS["adamw"], run, fast_memory="900 KiB")
    plans = [plan for model in models_of(options) for plan in model.plans]
    assert len(plans) == 3  # one budget for each layer
    assert all(len(plan.updates) == 2 for plan in plans)


def test_one_layer_and_evaluations_between_steps():
    x = torch.randn(8, 192)

    def run(twin, optimizer, compiler):
        call, told = torch.compile(twin, **compiler), []
        for _ in range(5):
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
            with torch.no_grad():
                told.append(call(x).clone())
        return told

    options = beside_unmoved(nn.Linear(192, 192), OPTIMIZERS["momentum"], run)
    training, _ = model_of(options).plans
    assert [update.count for update in training.updates.values()] == [5, 5]


def test_parameters_of_other_graphs_count_and_make_room():
    class Apart(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = (
                nn.Sequential(*(nn.Linear(256, 256) for _ in range(6))) for _ in range(2)
            )

        def forward(self, x):
            x = self.one(x)
            torch._dynamo.graph_break()
            return self.two(x)

    module, x = Apart(), torch.randn(4, 256)
    whole = sum(p.nbytes for p in module.parameters())
    _, _, call, options = compiled(module, fast_memory=whole * 6 // 10)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(call(x), module(x))
    model = model_of(options)
    known = model.persistent
    assert known.fast_bytes([]) <= whole * 6 // 10
    for plan in model.plans:
        assert plan.placed_peak <= whole * 6 // 10
        assert plan.problem.elsewhere.min() >= known.fast_bytes(plan.persistent_tensors.values())


def test_what_updates_in_the_backward_pass_cannot_do_is_said():
    module = Tied(1)
    twin, _, call, _ = compiled(module, OPTIMIZERS["adamw"])
    loss = call(tokens(0))
    twin.tokens.weight.grad = torch.ones_like(twin.tokens.weight)
    with pytest.raises(LoadmasterError, match="zero_grad"):
        loss.backward()
    _, _, call, _ = compiled(module, torch.optim.LBFGS)
    with pytest.raises(BudgetError, match="LBFGS cannot update one parameter after another"):
        call(tokens(0))
    with pytest.raises(BudgetError, match=r"one of torch\.optim"):
        CompileOptions.of({"optimizer": "adamw"})


def test_a_step_that_fails_loses_no_update():
    module = Tied()
    twin, _, call, options = compiled(module, OPTIMIZERS["sgd"], fast_memory=0.5, refine_after=0)
    call(tokens(0)).backward()
    program = model_of(options).plans[0].program
    twin.zero_grad()
    before = [p.detach().clone() for p in twin.parameters()]
    last = program.launches[-1]
    right = last.target

    class Fails:
        begun = True

        def __call__(self, *_):
            raise KeyboardInterrupt

    last.target = Fails()
    with pytest.raises(KeyboardInterrupt):
        call(tokens(1)).backward()
    last.target = right
    changed = [not torch.equal(a, b) for a, b in zip(before, twin.parameters(), strict=True)]
    made = [update.count == 2 for update in model_of(options).plans[0].updates.values()]
    assert sorted(changed) == sorted(made)
    assert made.count(False) == 1


def test_a_refusal_names_the_smallest_budget_that_works():
    module = Tied(1)
    _, _, call, _ = compiled(module, fast_memory="1 KiB")
    with torch.no_grad():
        with pytest.raises(
            BudgetError, match=r"operator aten\.\w+ \(\w+\) needs \d+ bytes .* at once"
        ) as refused:
            call(tokens(0))
        least = int(str(refused.value).split("works is ")[1].split(" bytes")[0])
        for budget, works in ((least, True), (int(least * 0.97), False)):
            _, _, call, options = compiled(module, fast_memory=budget)
            if works:
                assert agree(call, module, 0)
                assert model_of(options).plans[0].placed_peak <= budget
            else:  # unless kernels run in blocks
                with contextlib.suppress(BudgetError):
                    call(tokens(0))
                    assert model_of(options).plans[0].kernels_in_blocks

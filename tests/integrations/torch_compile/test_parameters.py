"""Parameters, gradients and optimizer state are part of the plan: they move, and nothing else
changes."""

import contextlib
import copy
from functools import partial
from unittest.mock import Mock

import pytest
import torch
from tests.support.compiled import (
    Tied,
    clones,
    fit,
    same,
    stack,
    state_of,
    tokens,
    with_plan,
    without_plan,
)
from tests.support.modules import Parts, in_two, linears
from tests.support.nightly import by_night
from torch import nn

from loadmaster.core.errors import BudgetError, LoadmasterError, SlowMemoryError
from loadmaster.integrations.torch_compile.backend import loadmaster, model_of
from loadmaster.integrations.torch_compile.compare.rivals import unmoved_backend
from loadmaster.integrations.torch_compile.compiled_model import CompileOptions
from loadmaster.integrations.torch_compile.persistent import PersistentTensors

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1),
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.1),
    # No elements by themselves; state of other shapes.
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
}


def steps(module, optimizer, call, count=3, first=0):
    """Losses, and all parameters after every step."""
    seen = []
    for step in range(first, first + count):
        loss = fit(optimizer, call, tokens(step))
        seen += clones([loss, *module.parameters()])
    return seen


def unmoved(module, make):
    """A copy of the module, its optimizer, and what runs its graphs unmoved."""
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    return twin, make(twin.parameters()), without_plan(twin)


def compiled(module, make=None, **options):
    """A copy of the module, its optimizer, and what runs its plans."""
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    if make is None:
        return twin, None, with_plan(twin, **options)
    optimizer = make(twin.parameters())
    return twin, optimizer, with_plan(twin, optimizer=optimizer, **options)


def equal(run, module, make, **options):
    """Run the same with unmoved graphs and with a plan: what is returned of them, if anything,
    parameters and state are the same. What ran the plan, with its module and optimizer."""
    seen = []
    for kind, own in ((unmoved, {}), (compiled, options)):
        made = twin, optimizer, _ = kind(module, make, **own)
        told = run(*made) or ()
        seen.append([*told, *twin.parameters(), *state_of(twin, optimizer)])
    assert same(*seen)
    return made


def agree(call, module, step):
    return torch.equal(call(tokens(step)), module(tokens(step)))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Updates in blocks of few rows, as large parameters have them."""
    from loadmaster.integrations.torch_compile import updates

    monkeypatch.setattr(updates, "_BLOCK", 32 << 10)


@pytest.mark.parametrize("name", ["adafactor", "adamw", *by_night("momentum", "sgd")])
def test_updates_in_the_backward_pass_are_the_optimizers_bit_for_bit(name):
    def scheduled(one, optimizer, call):
        seen = []
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(5):
            loss = fit(optimizer, call, tokens(step))
            schedule.step()
            seen += clones([loss, *one.parameters()])
        return seen

    for budget in (1.0, 0.45):
        twin, _, call = equal(scheduled, Tied(), OPTIMIZERS[name], fast_memory=budget)
        model = model_of(call)
        plan = model.plans[0]
        assert plan.placed_peak <= budget * plan.unmoved_peak
        assert (model.persistent.offloaded_bytes() > 0) == (budget < 1)
        assert all(p.grad is None for p in twin.parameters())
        assert not model.fallbacks
        assert plan.times.unforeseen == 0
        assert [update.count for update in plan.updates.values()] == [5] * len([*twin.parameters()])


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (torch.optim.RAdam, {"weight_decay": 0.1}),
        (torch.optim.RMSprop, {"weight_decay": 0.1}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (OPTIMIZERS["momentum"], {"momentum": 0.0}),
        (partial(torch.optim.Adam, amsgrad=True), {"amsgrad": False}),
    ],
)
def test_updates_whose_temporaries_or_state_change_are_the_optimizers(make, change):
    torch.manual_seed(0)

    def changing(one, optimizer, call):
        # RAdam has other temporaries from the sixth step on, too.
        first = steps(one, optimizer, call)
        optimizer.param_groups[0].update(change)
        return first + steps(one, optimizer, call, 4)

    _, _, call = equal(changing, Tied(), make, fast_memory=0.45)
    assert (model_of(call).plans[0].times.unforeseen > 0) == (make is torch.optim.RAdam)


def test_state_that_is_not_used_for_some_steps_is_kept():
    def changing(one, optimizer, call):
        seen = []
        for momentum in (0.9, 0.0, 0.8):
            optimizer.param_groups[0]["momentum"] = momentum
            seen += steps(one, optimizer, call, 2) + state_of(one, optimizer)
        return seen

    equal(changing, Tied(), OPTIMIZERS["momentum"], fast_memory=0.45)


def test_a_backward_pass_for_other_gradients_updates_no_parameter():
    x = torch.randn(8, 192)

    def run(twin, optimizer, call):
        seen = []
        for _ in range(3):
            given = x.clone().requires_grad_()
            seen += torch.autograd.grad(call(given).sum(), given)
            seen += torch.autograd.grad(call(given).sum(), twin[0].weight)
            call(given).sum().backward(inputs=[given])
            seen += [given.grad, fit(optimizer, call, x)]
        return clones(seen)

    equal(run, linears(192, 3), OPTIMIZERS["adamw"], fast_memory=0.8)


def test_steps_that_are_skipped_are_refused():
    module, optimizer, call = compiled(Tied(), OPTIMIZERS["sgd"], fast_memory=0.6)
    steps(module, optimizer, call, 1)
    call(tokens(1)).backward()
    optimizer.zero_grad()
    loss = call(tokens(2))
    with pytest.raises(LoadmasterError, match=r"no optimizer\.step"):
        loss.backward()


def test_updates_reach_parameters_that_another_graph_has_moved_since():
    torch.manual_seed(0)

    def with_a_look(one, optimizer, call):
        seen = []
        for step in range(3):
            optimizer.zero_grad()
            loss = call(tokens(step))
            with torch.no_grad():
                call(tokens(step + 3))
            loss.backward()
            optimizer.step()
            seen += clones([loss, *one.parameters()])
        return seen

    equal(with_a_look, Tied(), OPTIMIZERS["adamw"], fast_memory=0.6)


def test_an_update_whose_state_was_replaced_since_its_forward_pass_is_refused():
    module, optimizer, call = compiled(Tied(), OPTIMIZERS["adamw"], fast_memory=0.6)
    steps(module, optimizer, call, 2)
    optimizer.zero_grad()
    loss = call(tokens(2))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    with pytest.raises(LoadmasterError, match="state of the optimizer was replaced"):
        loss.backward()


def test_state_that_was_saved_stays_when_the_optimizer_begins_anew():
    module, optimizer, call = compiled(Tied(), OPTIMIZERS["adamw"], fast_memory=0.6)
    steps(module, optimizer, call, 2)
    saved = [value for state in optimizer.state.values() for value in state.values()]
    before = clones(saved)
    optimizer.state.clear()
    steps(module, optimizer, call, 2)
    assert same(saved, before)


def test_parameters_that_other_processes_share_stay_in_their_memory():
    module = Tied().share_memory()
    twin, _, call = compiled(module, fast_memory=0.9)
    twin.share_memory()
    with torch.no_grad():
        assert agree(call, module, 0)
    assert all(parameter.is_shared() for parameter in twin.parameters())
    assert not model_of(call).persistent.offloaded_bytes()


def test_what_is_known_of_a_storage_stays_with_it_when_its_parameter_takes_another():
    parameter, known = nn.Parameter(torch.zeros(1 << 15)), PersistentTensors()
    one, before = known.of(parameter), parameter.data
    parameter.data = torch.ones(1 << 15)
    assert one.storage is before.untyped_storage()
    assert one.changed()
    assert known.of(parameter) is not one


def test_parameters_of_an_inference_move_and_show_their_values():
    module = Tied()
    twin, _, call = compiled(module, fast_memory=0.4)
    with torch.no_grad():
        assert agree(call, module, 0)
        model = model_of(call)
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
    twin, _, call = compiled(module, fast_memory=0.4)
    with torch.no_grad():
        call(tokens(0))
        file = model_of(call).memory(torch.device("cpu")).file

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
    twin, _, call = compiled(module, fast_memory=0.4)
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
    plain = twin, optimizer, _ = unmoved(module, make)
    right = steps(*plain, 4) + state_of(twin, optimizer)
    first, one, call = compiled(module, make, fast_memory=0.5)
    seen = steps(first, one, call, 2)
    saved = copy.deepcopy((first.state_dict(), one.state_dict()))
    second, other, again = compiled(module, make, fast_memory=0.5)
    steps(second, other, again, 1)
    second.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    seen += steps(second, other, again, 2, first=2)
    assert same(seen + state_of(second, other), right)


def test_another_optimizer_than_that_of_the_options_is_an_error_until_compiled_anew():
    x = torch.randn(4, 32)
    module, first, call = compiled(stack(32, 1), torch.optim.AdamW)
    fit(first, call, x)
    second = torch.optim.SGD(module.parameters(), lr=0.1)
    before = clones(module.parameters())
    fit(second, module, x)  # what was not compiled is its own
    assert not same(module.parameters(), before)
    second.zero_grad()
    call(x).sum().backward()
    said = "by the AdamW that the option optimizer named, and this SGD is another"
    with pytest.raises(LoadmasterError, match=said):
        second.step()
    fit(second, with_plan(module, optimizer=second), x)
    assert all(p.grad is None for p in module.parameters())


def test_a_parameter_of_two_graphs_is_left_to_the_optimizer():
    embedding = nn.Embedding(256, 128)
    last = Parts(lambda own, x: x @ own.embedding.weight.t(), embedding=embedding)
    first = nn.Sequential(embedding, nn.Linear(128, 128))
    module = in_two(first, nn.Sequential(nn.Linear(128, 128), last))
    twin, _, call = equal(steps, module, OPTIMIZERS["adamw"])
    model = model_of(call)
    assert len(model.plans) == 2
    assert model.updates.left == {id(twin.first[0].weight)}
    assert (
        sum(len(plan.updates) for plan in model.plans) == 4
    )  # weights and biases of the two layers


class Layer(nn.Linear):
    """A module that Dynamo captures on its own: it leaves PyTorch's alone."""

    def forward(self, x):
        return torch.tanh(nn.functional.linear(x, self.weight, self.bias))


def test_layers_that_share_a_captured_graph_have_plans_of_their_own():
    x, seen = torch.randn(8, 192), []
    module = nn.Sequential(*(Layer(192, 192) for _ in range(3)))
    for backend in (unmoved_backend(), loadmaster):
        torch._dynamo.reset()
        twin = copy.deepcopy(module)
        optimizer = OPTIMIZERS["adamw"](twin.parameters())
        options = {"optimizer": optimizer, "fast_memory": "900 KiB"} if seen else None
        for layer in twin:
            layer.compile(backend=backend, options=options)
        fit(optimizer, twin, x, steps=4)
        seen.append([*twin.parameters(), *state_of(twin, optimizer)])
    assert same(*seen)
    plans = [plan for layer in twin for plan in model_of(layer).plans]
    assert len(plans) == 3  # one budget for each layer
    assert all(len(plan.updates) == 2 for plan in plans)


def test_one_layer_and_evaluations_between_steps():
    x = torch.randn(8, 192)

    def run(twin, optimizer, call):
        told = []
        for _ in range(5):
            fit(optimizer, call, x)
            with torch.no_grad():
                told.append(call(x).clone())
        return told

    _, _, call = equal(run, nn.Linear(192, 192), OPTIMIZERS["momentum"])
    training, _ = model_of(call).plans
    assert [update.count for update in training.updates.values()] == [5, 5]


def test_parameters_of_other_graphs_count_and_make_room():
    module, x = in_two(linears(256, 6), linears(256, 6)), torch.randn(4, 256)
    whole = sum(p.nbytes for p in module.parameters())
    _, _, call = compiled(module, fast_memory=whole * 6 // 10)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(call(x), module(x))
    model = model_of(call)
    known = model.persistent
    assert known.fast_bytes([]) <= whole * 6 // 10
    for plan in model.plans:
        assert plan.placed_peak <= whole * 6 // 10
        assert plan.problem.elsewhere.min() >= known.fast_bytes(plan.persistent_tensors.values())


def test_what_updates_in_the_backward_pass_cannot_do_is_said():
    module = Tied(1)
    twin, _, call = compiled(module, OPTIMIZERS["adamw"])
    loss = call(tokens(0))
    twin.tokens.weight.grad = torch.ones_like(twin.tokens.weight)
    with pytest.raises(LoadmasterError, match="zero_grad"):
        loss.backward()
    _, _, call = compiled(module, torch.optim.LBFGS)
    with pytest.raises(BudgetError, match="LBFGS cannot update one parameter after another"):
        call(tokens(0))
    with pytest.raises(BudgetError, match=r"one of torch\.optim"):
        CompileOptions.of({"optimizer": "adamw"})


def test_a_step_that_fails_loses_no_update():
    module = Tied()
    twin, optimizer, call = compiled(module, OPTIMIZERS["sgd"], fast_memory=0.5, refine_after=0)
    call(tokens(0)).backward()
    optimizer.step()
    (plan,) = model_of(call).plans
    twin.zero_grad()
    before = clones(twin.parameters())
    last = plan.program.launches[-1]
    right = last.target
    last.target = Mock(side_effect=KeyboardInterrupt, begun=True)
    with pytest.raises(KeyboardInterrupt):
        call(tokens(1)).backward()
    last.target = right
    changed = [not torch.equal(a, b) for a, b in zip(before, twin.parameters(), strict=True)]
    made = [update.count == 2 for update in plan.updates.values()]
    assert sorted(changed) == sorted(made)
    assert made.count(False) == 1
    # The step need not be made before the next, for which the caller may undo this one.
    twin.zero_grad()
    call(tokens(1)).backward()
    assert all(
        update.count == 2 + was for update, was in zip(plan.updates.values(), made, strict=True)
    )


def test_a_refusal_names_the_smallest_budget_that_works():
    module = Tied(1)
    _, _, call = compiled(module, fast_memory="1 KiB")
    with torch.no_grad():
        said = r"operator aten\.\w+ \(\w+\) needs \d+ bytes .* at once"
        with pytest.raises(BudgetError, match=said) as refused:
            call(tokens(0))
        least = int(str(refused.value).split("works for this graph is ")[1].split(" bytes")[0])
        for budget, works in ((least, True), (int(least * 0.97), False)):
            _, _, call = compiled(module, fast_memory=budget)
            if works:
                assert agree(call, module, 0)
                assert model_of(call).plans[0].placed_peak <= budget
            else:  # unless kernels run in blocks
                with contextlib.suppress(BudgetError):
                    call(tokens(0))
                    assert model_of(call).plans[0].kernels_in_blocks


def scaled(layers):
    """Layers of which the first weight is not saved, so that it may change before the backward
    pass."""

    def run(own, x):
        for weight, bias in zip(own.weights, own.biases, strict=True):
            x = torch.tanh(x * weight + bias)
        return x.square().mean()

    weights = nn.ParameterList([nn.Parameter(torch.randn(512, 512)) for _ in range(layers)])
    biases = nn.ParameterList([nn.Parameter(torch.randn(512)) for _ in range(layers)])
    return Parts(run, weights=weights, biases=biases)


@pytest.mark.parametrize("what", ["parameter", "state"])
def test_changes_between_the_passes_are_kept(what):
    """Also of tensors whose copies stay in the arena from one pass to the other."""
    module, x = scaled(4), torch.randn(512, 512)

    def trained(twin, optimizer, call):
        for step in range(4):
            optimizer.zero_grad()
            loss = call(x)
            if step >= 2:
                with torch.no_grad():
                    twin.weights[0].clamp_(-0.01, 0.01)
                    for state in optimizer.state.values() if what == "state" else ():
                        state["exp_avg"].zero_()
            loss.backward()
            optimizer.step()

    make = partial(torch.optim.Adam, lr=0.01)
    equal(trained, module, make, fast_memory=0.75, refine_after=0)


@pytest.mark.parametrize("storage", ["shared", "flat"])
def test_parameters_without_a_storage_of_their_own_are_left_to_the_optimizer(storage):
    module, x = scaled(3), torch.randn(512, 512)

    def trained(twin, optimizer, call):
        if storage == "shared":
            twin.share_memory()
        else:
            flat = torch.cat([p.detach().flatten() for p in twin.parameters()])
            parts = flat.split([p.numel() for p in twin.parameters()])
            for parameter, part in zip(twin.parameters(), parts, strict=True):
                parameter.data = part.view_as(parameter)
        fit(optimizer, call, x, steps=3)

    equal(trained, module, OPTIMIZERS["momentum"], fast_memory=0.9)


def test_modules_that_are_made_in_inference_mode_move():
    """Their parameters have no version counters."""
    with torch.inference_mode():
        module = linears(512, 6).eval()
    torch._dynamo.reset()
    call, x = with_plan(module, 0.6), torch.randn(16, 512)
    for mode in (torch.inference_mode, torch.no_grad, torch.no_grad):
        with mode():
            assert torch.equal(call(x), module(x))
    assert model_of(call).summary().moved_bytes > 0

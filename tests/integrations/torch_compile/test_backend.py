"""Plans change where tensors are, and nothing else."""

import copy
import re

import pytest
import torch
from tests.support.compiled import fit, gradients, grads, same, with_plan, without_plan
from tests.support.modules import Parts, linears
from torch import nn
from torch.autograd import forward_ad

import loadmaster as lm
from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.integrations.torch_compile.backend import model_of


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


def saving():
    """Parameters whose gradients were saved in the forward pass, beside others."""
    return Parts(
        lambda own, x: Returned.apply(own.weight) + own.layer(x).square().mean(),
        weight=nn.Parameter(torch.randn(256, 256)),
        layer=nn.Linear(256, 256),
    )


@pytest.mark.parametrize("optimizer", [False, True])
def test_a_gradient_that_the_forward_pass_has_saved(optimizer):
    seen = []
    for compiled in (without_plan, with_plan):
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = saving()
        made = torch.optim.SGD(module.parameters(), lr=0.1)
        options = {"memory": 0.9} | ({"optimizer": made} if optimizer else {})
        call = compiled(module, **(options if compiled is with_plan else {}))
        fit(made, call, torch.ones(4, 256), steps=3)
        seen.append(list(module.parameters()))
    assert not model_of(call).fallbacks
    assert same(*seen)


def assigned(x):
    y = x * 1.5
    y[0, 1:3] = 5.0
    return y


def interleaved(x):
    y = (x * 1.5).clone()
    y[..., ::2] = x[..., 1::2]
    y[0, 1:3] = 5.0
    return y


@pytest.mark.parametrize("function", [assigned, interleaved])
@pytest.mark.parametrize("shape", [(8, 8), (64, 256)])
def test_assignments_to_parts_of_a_tensor(function, shape):
    """A scatter into a view returns a view into a copy of the whole storage, not of the view as
    fake tensors predict: it crashed, or lay over other tensors."""
    x = torch.randn(shape)
    with torch.no_grad():
        call = with_plan(function)
        assert all(torch.equal(call(x), function(x)) for _ in range(2))


@pytest.mark.parametrize("offset", [0, 15])
def test_strides_from_the_beginning_of_a_storage_in_whose_middle_the_input_begins(offset):
    x = torch.arange(40.0).reshape(4, 10)[1:]
    call = with_plan(lambda x: x.as_strided((3,), (2,), offset) + 1)
    assert torch.equal(call(x), x.as_strided((3,), (2,), offset) + 1)


def test_a_normalisation_of_the_input_has_no_gradient_for_it():
    """Its backward pass returns None where fake tensors predict a tensor."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 3), nn.ReLU())
    x = torch.ones(4, 3, 16, 16).cumsum(3)
    assert same(*(gradients(call, module, x) for call in (module, with_plan(module))))


@pytest.mark.parametrize("reduced", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "norm",
    [
        nn.LayerNorm(16),
        nn.LayerNorm(16, elementwise_affine=False),
        nn.GroupNorm(4, 8),
        nn.BatchNorm2d(8),
        nn.InstanceNorm2d(8, affine=True),
        nn.RMSNorm(16),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_normalisations_under_autocast_save_what_their_gradients_need(norm, reduced):
    """Their statistics have more bits than their results."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, padding=1), copy.deepcopy(norm), nn.GELU(), nn.Conv2d(8, 3, 1)
    module = nn.Sequential(*layers)
    x, found = torch.randn(4, 3, 16, 16), []
    for call in (module, with_plan(copy.deepcopy(module), "1 GiB")):
        with torch.autocast("cpu", dtype=reduced):
            loss = call(x).float().square().mean()
        loss.backward()
        own = getattr(call, "_orig_mod", call)
        found.append([loss, *grads(own), *own.buffers()])
    assert same(*found)


def test_new_shapes_are_planned_anew():
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    call = with_plan(module, "1 GiB")
    for rows in (3, 5, 8, 5):
        x = torch.randn(rows, 16)
        found = [gradients(run, module, x) for run in (call, module)]
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)
    assert not model_of(call).fallbacks


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fast_memory": 1.5}, "share"), ({"fast_memory": "x%"}, "percentage"),
        ({"mode": "static"}, "sync or async"),
        ({"refine_after": "never"}, "a whole number"), ({"slow_memory": 5}, "a path"),
    ],
)  # fmt: skip
def test_wrong_options_are_named(options, said):
    from loadmaster.integrations.torch_compile.compiled_model import CompileOptions

    with pytest.raises(BudgetError, match=said):
        CompileOptions.of(options)


def test_wrong_options_are_our_own_error_when_the_module_is_called():
    call = torch.compile(nn.Linear(4, 4), backend="loadmaster", options={"fast_mem": "1 GiB"})
    with pytest.raises(BudgetError, match=r"'fast_mem' is unknown: .* has fast_memory"):
        call(torch.randn(2, 4))


def test_a_model_is_summed_up_once_in_the_log_and_whenever_asked(caplog):
    call = torch.compile(saving(), backend="loadmaster", options={"fast_memory": "1 GiB"})
    assert lm.summary(call).planned_peak == 0
    for _ in range(3):
        call(torch.ones(4, 256)).backward()
    found = lm.summary(call)
    (plan,) = model_of(call).last_step_graphs
    assert (found.planned_peak, found.moved_bytes) == (plan.placed_peak, plan.moved_bytes)
    (record,) = [each for each in caplog.records if each.name == "loadmaster"]
    said = r"loadmaster: budget 1\.00 GiB, planned peak .*, 0 B moved in a step, .* predicted"
    for line in (record.getMessage(), str(found)):
        assert re.fullmatch(f"{said}; without a plan: nothing", line), line


@pytest.mark.parametrize("lazy", [torch.conj, lambda x: torch.conj(x).imag], ids=["conj", "neg"])
@pytest.mark.parametrize("first", [False, True])
def test_tensors_that_are_conjugated_or_negated_when_they_are_read(lazy, first):
    x = lazy(torch.randn(4, 64, dtype=torch.cfloat))
    module = Parts(lambda own, x: (x[1:3].exp() @ own.w).abs() + x.t()[0, 0].abs())
    module.w = nn.Parameter(torch.randn(64, 8, dtype=x.dtype))
    call = with_plan(module, "1 GiB")
    plain = x.resolve_conj().resolve_neg()
    # A run with a plan may end after the graph has fallen back.
    earlier = call(plain) if first else module(plain)
    assert torch.equal(call(x), module(x))
    seen = [torch.autograd.grad(one.sum(), module.w) for one in (earlier, call(x))]
    right = torch.autograd.grad(module(x).sum(), module.w)
    assert all(torch.allclose(own[0], right[0]) for own in seen)
    assert lm.summary(call).fallbacks


def test_gradients_of_products_with_complex_numbers():
    x = torch.randn(4, 64, requires_grad=True)
    weight = torch.randn(4, 64, 2)
    module = Parts(lambda own, x: torch.view_as_real(torch.complex(x, 2 * x) * 1j))
    call = with_plan(module, "1 GiB")
    seen = [torch.autograd.grad(one(x), x, weight)[0] for one in (call, module)]
    assert torch.equal(*seen)
    assert not lm.summary(call).fallbacks


def test_gradients_that_are_negated_when_they_are_read():
    layer, x = nn.Linear(32, 32), torch.randn(4, 32)
    call = with_plan(layer, "1 GiB")
    lazy = torch.conj(torch.randn(4, 32, dtype=torch.cfloat)).imag
    seen = [torch.autograd.grad(one(x), layer.weight, lazy)[0] for one in (call, layer)]
    assert torch.equal(*seen)


@pytest.mark.parametrize("budget", [None, "1 GiB"])
def test_forward_mode_differentiation_runs_without_a_plan(budget):
    module, x, tangent = nn.Linear(64, 64), torch.randn(4, 64), torch.randn(4, 64)
    call = with_plan(module, fast_memory=budget)
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(x, tangent)
        seen, right = (forward_ad.unpack_dual(one(dual)).tangent for one in (call, module))
        assert torch.equal(seen, right)
        assert torch.equal(call(x), module(x))
    assert lm.summary(call).fallbacks


@pytest.mark.parametrize("budget", [None, "1 GiB"])
def test_changes_of_tensors_that_are_saved_as_views_are_noticed(budget):
    """As where a GAN updates its discriminator before the generator's backward pass."""
    module = linears(64, 2)
    call = with_plan(module, fast_memory=budget)
    for _ in range(2):
        loss = call(torch.randn(4, 64)).square().mean()
        with torch.no_grad():
            module[1].weight.mul_(0.5)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_tangents_within_a_compiled_function():
    """A product with tangents of zeros is captured with tensors that have no memory."""
    module = linears(64, 2, nn.Tanh)
    given = (torch.randn(4, 64),), (torch.randn(4, 64),)
    call = torch.compile(lambda: torch.func.jvp(module, *given), backend="loadmaster")
    assert all(map(torch.equal, call(), torch.func.jvp(module, *given)))


def test_gradients_of_several_results_at_once_are_refused():
    call = with_plan(nn.Linear(64, 64))
    result = call(torch.randn(4, 64))
    with pytest.raises(lm.LoadmasterError, match="leave is_grads_batched out"):
        torch.autograd.grad(
            result, list(call.parameters()), torch.randn(3, 4, 64), is_grads_batched=True
        )


def test_parameters_that_no_graph_uses_are_told():
    """PyTorch runs what calls a module with a full backward hook without compiling it."""
    module = nn.Sequential(linears(64, 2), nn.Linear(64, 64))
    module[0][1].register_full_backward_hook(lambda *_: None)
    call = with_plan(module, "1 GiB")
    call(torch.ones(4, 64)).sum().backward()
    assert re.search(r"no compiled graph uses \d parameters of \d", str(lm.summary(call)))


@pytest.mark.parametrize("donated", [True, False])
def test_backward_twice_is_refused(donated):
    """By PyTorch where it gives saved tensors away after the first time, else by the plan."""
    module = linears(8, 2, nn.ReLU)
    with torch._functorch.config.patch(donated_buffer=donated):
        out = with_plan(module)(torch.randn(4, 8)).sum()

    def twice():
        for _ in range(2):
            out.backward(retain_graph=True)

    with pytest.raises((RuntimeError, LoadmasterError), match="retain_graph"):
        twice()


# Forward passes that come before the backward passes of others: each backward pass finds its own.


WIDTH = 192


def networks():
    torch.manual_seed(0)
    return {
        "saves only what the caller gave": nn.Linear(WIDTH, WIDTH),
        "saves parameters alone": nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Flatten()),
        "saves nothing": Parts(
            lambda own, x: x * 3 + own.bias, bias=nn.Parameter(torch.zeros(WIDTH))
        ),
        "saves results": Parts(
            lambda own, x: nn.functional.normalize(own.layers(x), dim=1),
            layers=linears(WIDTH, 2, nn.Tanh),
        ),
    }


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


def same_input_once(run):
    (x,) = inputs(1)
    run(x).square().mean().backward()


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
    if options and network == "saves nothing":
        return  # Nothing of it can move.
    twin = copy.deepcopy(module)
    call = with_plan(twin, **options)
    for loss in LOSSES * 2:
        for one, run in ((module, module), (twin, call)):
            one.zero_grad()
            loss(run)
        torch.testing.assert_close(grads(twin), grads(module), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.RMSprop])
def test_an_optimizer_in_the_plan_waits_for_all_of_them(make):
    torch.manual_seed(0)
    module = linears(WIDTH, 4)
    twin = copy.deepcopy(module)
    optimizers = [make(one.parameters(), lr=0.01) for one in (module, twin)]
    call = with_plan(twin, optimizer=optimizers[1])
    for loss in (same_input_once, siamese, same_input_once, siamese):
        for run, optimizer in zip((module, call), optimizers, strict=True):
            optimizer.zero_grad()
            loss(run)
            optimizer.step()
        torch.testing.assert_close(
            [*module.parameters()], [*twin.parameters()], rtol=1e-4, atol=1e-5
        )


def test_what_replaces_saved_tensors_is_refused():
    call = with_plan(nn.Linear(WIDTH, WIDTH))
    (x,) = inputs(1)
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), lambda one: one):
        loss = call(x).sum()
    with pytest.raises(LoadmasterError, match="saved tensors were replaced"):
        loss.backward()


# With the option ``optimizer`` gradients end in the backward pass: whoever asks for one hears it.


def made():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(48, 64), nn.Tanh(), nn.Linear(64, 8))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return module, optimizer, with_plan(module, optimizer=optimizer), torch.randn(16, 48)


def unscaled(module, optimizer):
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)


def accumulated(module, optimizer):
    (module(torch.randn(16, 48)).sum()).backward()


ASKING = {
    "norm": lambda module, _: torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0),
    "value": lambda module, _: torch.nn.utils.clip_grad_value_(module.parameters(), 1.0),
    "logged": lambda module, _: float(module[0].weight.grad.norm()),
    "unscaled": unscaled,
    "accumulated": accumulated,
    "by hand": lambda module, _: module[0].weight.grad.data.mul_(0.5),
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
                lambda *_: seen.append(nn.utils.clip_grad_norm_(module.parameters(), 0.01))
            )
        else:
            module[0].weight.register_hook(lambda gradient: seen.append(gradient.norm()))

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


def in_parts(own, x):
    """Columns and every other row of a tensor are updated in place."""
    x = own.first(x)
    x[:, :5] += 1
    x[::2] *= 2
    return own.last(x)


def test_a_graph_that_was_read_before_has_storages_of_the_same_bytes():
    """A copy onto some rows takes as much as all rows, which PyTorch forgets of shapes it has
    seen."""
    seen = []
    for _ in range(2):
        torch._dynamo.reset()
        torch.manual_seed(0)
        module = Parts(in_parts, first=nn.Linear(1024, 1024), last=nn.Linear(1024, 1024))
        x = torch.randn(4, 1024)
        seen.append(gradients(with_plan(module, "100%"), module, x))
        assert same(seen[-1], gradients(module, module, x))
    assert same(*seen)

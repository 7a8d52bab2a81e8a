"""The common loop needs no option: gradients rest in the slow memory until the optimizer is called,
and its step keeps the budget."""

import copy
import gc
import threading
import weakref
from functools import partial

import pytest
import torch
from tests.support.compiled import (
    Tied,
    clones,
    grads,
    same,
    state_of,
    tokens,
    with_plan,
    without_plan,
)
from tests.support.nightly import by_night
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from loadmaster.core.errors import SlowMemoryError
from loadmaster.integrations.torch_compile import optimizer_step
from loadmaster.integrations.torch_compile.backend import model_of

CPU = torch.device("cpu")
ELEMENTWISE = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": partial(torch.optim.AdamW, lr=0.01),
    "amsgrad": partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "fused": partial(torch.optim.AdamW, lr=0.01, fused=True),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.01),
}
WHOLE = {
    "adafactor": partial(torch.optim.Adafactor, lr=0.01),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.01, max_iter=2),
}


def network():
    return Tied(classes=512, width=192, inner=512)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Parameters of several blocks, the last of which is no whole number of pages."""
    monkeypatch.setattr(optimizer_step, "_BLOCK", 80 << 10)


class Loop:
    """Steps of a copy of a module, with and without a budget."""

    def __init__(self, make=ELEMENTWISE["adamw"], share=None, module=None):
        torch._dynamo.reset()
        self.module = copy.deepcopy(module or network())
        self.optimizer = make(self.module.parameters())
        self.call = without_plan(self.module) if share is None else with_plan(self.module, share)
        self.seen, self.budget, self.rested = [], share, 0

    @property
    def model(self):
        return model_of(self.call)

    def step(self, number):
        """One step of the common loop."""
        self.optimizer.zero_grad()
        loss = self.call(tokens(number))
        loss.backward()
        if self.budget:
            self.rested = max(self.rested, offloaded_gradients(self))
        self.optimizer.step()
        self.note(loss)

    def note(self, loss):
        self.seen += clones([loss, *grads(self.module), *self.module.parameters()])


def steps(count):
    """A run of so many steps."""
    return lambda loop: [loop.step(number) for number in range(count)]


def both(run, make=ELEMENTWISE["adamw"], share=0.5):
    """Run the same on a model with a budget and on one without; return the former, once all it has
    seen is equal."""
    module = network()
    ours, plain = Loop(make, share, module), Loop(make, module=module)
    for loop in (ours, plain):
        torch.manual_seed(5)
        run(loop)
    ours.seen += state_of(ours.module, ours.optimizer)
    plain.seen += state_of(plain.module, plain.optimizer)
    assert same(ours.seen, plain.seen)
    return ours


def offloaded_gradients(loop):
    return loop.model.gradients.offloaded_bytes()


def test_momentum_that_is_switched_on_later_has_its_state():
    def run(loop):
        for number in range(4):
            loop.optimizer.param_groups[0]["momentum"] = 0.9 * (number > 1)
            loop.step(number)

    both(run, partial(torch.optim.SGD, lr=0.1))


@pytest.mark.parametrize(
    "name", ["amsgrad", "fused", "rmsprop", *by_night("adagrad", "adamw", "momentum")]
)
def test_a_step_is_the_optimizers_bit_for_bit_and_keeps_the_budget(name):
    loop = both(steps(4), ELEMENTWISE[name])
    model = loop.model
    assert not model.fallbacks
    assert loop.rested > 0
    states = [
        v
        for s in loop.optimizer.state.values()
        for v in s.values()
        if torch.is_tensor(v) and v.nbytes >= 65536
    ]
    assert all(model.place_of(value) is not None for value in states)
    assert all(
        plan.placed_peak <= model.budget == int(0.5 * model.unmoved_peak) for plan in model.plans
    )
    assert model.plans[0].times.unforeseen == 0
    used, rested = model.memory(CPU).file.used, offloaded_gradients(loop)
    loop.optimizer.zero_grad()
    assert offloaded_gradients(loop) == 0
    assert used - model.memory(CPU).file.used == rested


def test_state_that_has_room_at_first_and_none_later():
    """Its contents were taken for unwritten, and were not copied when it left the memory."""

    def run(loop):
        loop.step(0)
        if loop.budget:
            assert loop.model.persistent.offloaded_bytes() == 0
            loop.model.persistent.offload_movable()
        loop.step(1)

    both(run, share=1.0)


@pytest.mark.parametrize("name", sorted(WHOLE))
def test_an_optimizer_that_needs_whole_tensors_works_and_is_named(name):
    def run(loop):
        def again():
            loop.optimizer.zero_grad()
            loss = loop.call(tokens(number))
            loss.backward()
            return loss

        for number in range(3):
            if name == "adafactor":
                loop.step(number)
            else:
                loop.note(loop.optimizer.step(again))

    loop = both(run, WHOLE[name])
    (fallback,) = loop.model.fallbacks
    assert fallback.graph.startswith("optimizer.")
    assert fallback.reason


def test_gradients_add_up_over_several_backward_passes_and_are_clipped_under_a_scheduler():
    def run(loop):
        schedule = torch.optim.lr_scheduler.OneCycleLR(loop.optimizer, 0.1, total_steps=4)
        for number in range(3):
            loop.optimizer.zero_grad()
            for part in range(3):
                loss = loop.call(tokens(3 * number + part)) / 3
                loss.backward()
            loop.seen.append(nn.utils.clip_grad_norm_(loop.module.parameters(), 0.1))
            loop.optimizer.step()
            schedule.step()
            loop.note(loss)

    loop = both(run)
    assert not loop.model.fallbacks
    assert loop.model.gradients.fast_bytes([]) < 0.1 * loop.model.gradients.bytes()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_may_be_dropped_before_or_after_the_forward_pass_and_set_to_zero(to_none):
    def run(loop):
        for number in range(4):
            loss = loop.call(tokens(number))
            loop.optimizer.zero_grad(set_to_none=to_none)
            loss.backward()
            loop.optimizer.step()
            loop.note(loss)

    both(run)


def test_a_scaler_of_gradients():
    def run(loop):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
        for number in range(4):
            loop.optimizer.zero_grad()
            loss = loop.call(tokens(number))
            scaler.scale(loss).backward()
            if number == 2:
                loop.module.tokens.weight.grad[3, 3] = float("inf")  # this step must be skipped
            scaler.unscale_(loop.optimizer)
            scaler.step(loop.optimizer)
            scaler.update()
            loop.note(loss)

    assert not both(run).model.fallbacks


def halved(parameter):
    parameter.grad.mul_(0.5)


def first_zeroed(optimizer, *_):
    optimizer.param_groups[0]["params"][0].grad.zero_()


def test_hooks_of_optimizers_and_parameters_see_what_they_should():
    def run(loop):
        loop.module.wide[0].weight.register_hook(lambda gradient: 2 * gradient)
        loop.module.wide[1].weight.register_post_accumulate_grad_hook(halved)
        steps(3)(loop)
        handle = loop.optimizer.register_step_pre_hook(first_zeroed)
        steps(3)(loop)
        handle.remove()
        loop.step(9)

    loop = both(run)
    assert [fallback.reason for fallback in loop.model.fallbacks] == ["hooks come before its step"]


def test_hooks_after_a_step_have_the_gradients():
    def run(loop):
        loop.optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())
        for number in range(3):
            loop.step(number)
            assert all(p.grad is None for p in loop.module.parameters())

    both(run)


def test_hooks_of_all_optimizers_see_whole_steps():
    calls = []

    def clip(optimizer, *_):
        calls.append(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(parameters, 1e-4)

    def run(loop):
        calls.clear()
        handle = register_optimizer_step_pre_hook(clip)
        try:
            steps(3)(loop)
        finally:
            handle.remove()
        assert calls == [loop.optimizer] * 3

    both(run, ELEMENTWISE["momentum"])


def test_an_optimizer_in_the_backward_pass_by_hooks_of_parameters():
    def run(loop):
        singles = {p: ELEMENTWISE["adamw"]([p]) for p in loop.module.parameters()}

        def update(parameter):
            singles[parameter].step()
            parameter.grad = None

        for parameter in singles:
            parameter.register_post_accumulate_grad_hook(update)
        for number in range(4):
            loss = loop.call(tokens(number))
            loss.backward()
            loop.note(loss)

    both(run)


def test_another_optimizer_takes_over():
    def run(loop):
        steps(3)(loop)
        loop.optimizer = ELEMENTWISE["momentum"](loop.module.parameters())
        for number in range(3, 6):
            loop.step(number)

    loop = both(run)
    model = loop.model
    gc.collect()
    assert model.persistent.bytes() == sum(
        p.nbytes * (2 if p.nbytes >= 65536 else 1) for p in loop.module.parameters()
    )


def test_an_optimizer_goes_with_the_last_reference_to_it():
    """As in eager mode, and with its state, however seldom garbage is collected."""
    loop = Loop(share=0.5)
    steps(3)(loop)
    gone = [weakref.ref(state["exp_avg"]) for state in loop.optimizer.state.values()]
    gc.collect()
    gc.disable()
    try:
        loop.optimizer = None
        assert not any(state() is not None for state in gone)
    finally:
        gc.enable()


def test_a_plan_that_moves_nothing_is_made_again_where_a_share_falls_below_it():
    """A share is of what a step takes, which falls with the state of the optimizer."""
    loop = Loop(partial(torch.optim.AdamW, amsgrad=True), share=0.85)
    steps(4)(loop)
    before = loop.model.summary()
    assert before.moved_bytes == 0
    loop.optimizer = torch.optim.SGD(loop.module.parameters(), 0.1)
    steps(3)(loop)
    now = loop.model.summary()
    assert now.planned_peak <= now.budget < before.planned_peak


def test_a_step_of_an_optimizer_that_is_not_the_option_is_no_part_of_a_share():
    module = network()
    own, other = (ELEMENTWISE["adamw"](module.parameters()) for _ in range(2))
    compiled = with_plan(module, 0.5, optimizer=own)
    for number in range(3):
        compiled(tokens(number)).backward()
        own.step()
    model = model_of(compiled)
    before = model.unmoved_peak, model.budget
    module(tokens(3)).backward()
    other.step()
    assert all(state["exp_avg"].any() for state in other.state.values())
    assert (model.unmoved_peak, model.budget) == before


def test_where_everything_fits_nothing_moves():
    loop = both(steps(4), share=1.0)
    assert loop.model.persistent.offloaded_bytes() == offloaded_gradients(loop) == 0
    assert all(plan.moved_bytes == 0 for plan in loop.model.plans)


def test_a_kept_gradient_stays_as_it_was():
    loop = Loop(share=0.5)
    loop.step(0)
    kept = [p.grad for p in loop.module.parameters()]
    values = clones(kept)
    for number in range(1, 4):
        loop.step(number)
    assert same(kept, values)
    assert not any(
        torch.equal(a, p.grad) for a, p in zip(kept, loop.module.parameters(), strict=True)
    )


def test_no_room_for_gradients_is_an_error_before_the_backward_pass_and_the_next_step_works(
    monkeypatch,
):
    # With more, some plans, which depend on measured times, have room for these gradients.
    loop = Loop(share=0.3)
    loop.step(0)
    assert loop.rested
    file = loop.model.memory(CPU).file
    loss = loop.call(tokens(1))
    kept = [p.grad for p in loop.module.parameters()]  # their places are not free
    loop.optimizer.zero_grad()
    with monkeypatch.context() as full:
        full.setattr(file, "limit", file.bytes)
        full.setattr(file, "release", lambda *_: None)  # whatever is given back meanwhile
        file._free.clear()
        with pytest.raises(SlowMemoryError, match="slow_limit"):
            loss.backward()
    del kept, loss
    loop.step(1)


def test_gradients_of_a_step_that_has_failed_do_not_come_back():
    loop = Loop(share=0.5)
    loop.step(0)
    loop.call(tokens(1)).backward()
    small = min(loop.module.parameters(), key=lambda p: p.nbytes)
    small.grad = small.grad.to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        loop.optimizer.step()
    loop.optimizer.zero_grad()
    loop.optimizer.step()
    assert all(p.grad is None for p in loop.module.parameters())


@pytest.mark.parametrize("option", [False, True])
def test_state_that_the_caller_refers_to_stays_that_of_the_optimizer(option):
    module, seen = network(), []
    for share in (None, 0.6):
        loop = Loop(share=share, module=module)
        if share and option:
            loop.call = with_plan(loop.module, share, optimizer=loop.optimizer)
        loop.step(0)
        kept, weights = loop.optimizer.state_dict(), copy.deepcopy(loop.module.state_dict())
        loop.step(1)
        loop.optimizer.load_state_dict(kept)
        loop.module.load_state_dict(weights)
        loop.step(2)
        seen.append([*loop.module.parameters(), *state_of(loop.module, loop.optimizer)])
    assert same(*seen)


def test_without_room_for_its_state_an_optimizer_makes_the_whole_step_itself(monkeypatch):
    def run(loop):
        if loop.budget:
            loop.call(tokens(0))
            file = loop.model.memory(CPU).file
            keep = loop.model.keep_state

            def full(state, fresh=False):
                # There is room for the state of one parameter, and for no other.
                monkeypatch.setattr(file, "limit", file.bytes)
                file._free.clear()
                return keep(state, fresh)

            monkeypatch.setattr(loop.model, "keep_state", full)
        twin = loop.module  # runs without a plan, as after a refusal
        for number in range(2):
            loop.optimizer.zero_grad()
            loss = twin(tokens(number))
            loss.backward()
            loop.optimizer.step()
            loop.note(loss)

    loop = both(run, share=0.5)
    assert [one.graph for one in loop.model.fallbacks] == ["optimizer.AdamW"]
    assert "slow_limit allows" in loop.model.fallbacks[0].reason


def test_what_the_caller_gave_is_updated_in_its_own_groups():
    def make(parameters):
        parameters = list(parameters)
        first = {"params": parameters[:2], "weight_decay": 0.0}
        return torch.optim.AdamW([first, {"params": parameters[2:], "lr": 0.1}], lr=0.01)

    def run(loop):
        for number in range(3):
            loop.step(number)
            loop.optimizer.param_groups[1]["lr"] *= 0.5

    both(run, make)


def test_state_that_is_loaded_before_the_first_update_is_no_longer_unwritten():
    """Its contents were not copied when it left the memory while another graph ran."""
    plain = Loop()
    plain.step(0)
    saved = copy.deepcopy(plain.optimizer.state_dict())
    ours = copy.deepcopy(plain.module)
    optimizer = ELEMENTWISE["adamw"](ours.parameters())
    call = with_plan(ours, 1.0, optimizer=optimizer)
    call(tokens(1))
    optimizer.load_state_dict(saved)
    loss = call(tokens(1))
    model_of(call).persistent.offload_movable()
    loss.backward()
    optimizer.step()
    plain.step(1)
    assert same(ours.parameters(), plain.module.parameters())


def test_a_step_while_another_thread_compiles(monkeypatch):
    """PyTorch's flag of a compilation is one for all threads."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    both(steps(2), ELEMENTWISE["momentum"], share=0.5)
    loop = Loop(ELEMENTWISE["adamw"], 0.5)
    loop.call = with_plan(loop.module, 0.6, optimizer=loop.optimizer)
    steps(2)(loop)
    assert not any(p.grad is not None for p in loop.module.parameters())


def test_a_step_does_not_wait_for_the_model_of_another_thread():
    """Two threads would wait for one another, as a step takes the locks of models within that of
    its own."""
    one, other = (Loop(ELEMENTWISE["momentum"], "60%") for _ in range(2))
    for loop in (one, other):
        loop.step(0)
    assert one.model is not other.model
    stepping = threading.Thread(target=one.step, args=(1,), daemon=True)
    with other.model.lock:
        stepping.start()
        stepping.join(60)
        assert not stepping.is_alive()

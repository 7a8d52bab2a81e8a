"""What people do to a module that has a plan: copy it, save it, compile parts of it, raise in
hooks, replace and resize parameters."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from tests.support.compiled import clones, fit, same, stack, with_plan
from tests.support.modules import Parts, linears
from torch import nn

from loadmaster.core.errors import LoadmasterError
from loadmaster.integrations.torch_compile import compiled_model
from loadmaster.integrations.torch_compile.backend import model_of

WIDTH = 192


class Loop:
    """Training steps under half of the memory, beside the same steps in eager mode, which give the
    same bits."""

    def __init__(self):
        self.module, self.plain = stack(WIDTH, 5), stack(WIDTH, 5)
        self.call = with_plan(self.module, 0.5)
        self.optimizers = [
            torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (self.module, self.plain)
        ]
        self.x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(3))

    def step(self, call=None):
        """Whether parameters are equal after a step of both."""
        for optimizer, run in zip(self.optimizers, (call or self.call, self.plain), strict=True):
            fit(optimizer, run, self.x)
        return self.equal(self.module)

    def equal(self, module):
        return same(module.state_dict().values(), self.plain.state_dict().values())

    @property
    def offloaded(self):
        return model_of(self.call).persistent.offloaded_bytes()


@pytest.fixture
def loop():
    made = Loop()
    assert all(made.step() for _ in range(2))
    assert made.offloaded > 0
    return made


def test_another_default_device_is_not_that_of_the_plan(loop):
    with torch.device("meta"):
        assert loop.step()
    assert loop.step()


def test_a_jagged_tensor_runs_without_a_plan():
    module = stack(WIDTH, 2)
    rows = [torch.randn(count, WIDTH) for count in (3, 5)]
    given = torch.nested.nested_tensor(rows, layout=torch.jagged)
    call = with_plan(module, "1 GiB")
    assert torch.equal(call(given).values(), module(given).values())
    assert model_of(call).fallbacks


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module)), saved]
)
def test_a_copy_is_a_module_of_its_own(loop, copied):
    other = copied(loop.module)
    before = clones(other.parameters())
    assert loop.equal(other)
    assert all(loop.step() for _ in range(3))
    assert same(other.parameters(), before)
    again = with_plan(other, 0.6)
    assert torch.equal(again(loop.x), other(loop.x))
    assert loop.step()


def test_a_copy_of_what_was_compiled(loop):
    other = copy.deepcopy(loop.call)
    assert torch.equal(other(loop.x), loop.plain(loop.x))
    assert loop.step()


def test_parts_that_are_compiled_one_by_one():
    loop = Loop()
    parts = [with_plan(part, 0.7) for part in (loop.module[:4], loop.module[6:])]
    call = lambda x: parts[1](loop.module[4:6](parts[0](x)))  # noqa: E731
    assert all(loop.step(call) for _ in range(5))
    assert model_of(parts[0]) is not model_of(parts[1])


class Wrong(RuntimeError):
    """What hooks raise."""


@pytest.mark.parametrize("where", ["output", "parameter", "optimizer"])
def test_an_exception_in_a_hook_and_the_next_step_is_right(loop, where):
    def raised(*_):
        raise Wrong

    start = copy.deepcopy(loop.module.state_dict())
    out = loop.call(loop.x)
    if where == "optimizer":
        out.square().mean().backward()
        handle = loop.optimizers[0].register_step_pre_hook(raised)
        with pytest.raises(Wrong):
            loop.optimizers[0].step()
    else:
        handle = (out if where == "output" else loop.module[4].weight).register_hook(raised)
        with pytest.raises(Wrong):
            out.square().mean().backward()
    handle.remove()
    del out
    assert same(loop.module.state_dict().values(), start.values())
    assert all(loop.step() for _ in range(3))


def test_another_budget_for_the_same_module_between_steps(loop):
    other = with_plan(loop.module, 0.8)
    assert all(loop.step(call) for call in (other, loop.call, other, other, loop.call))


def test_parameters_that_are_replaced_and_resized(loop):
    for module in (loop.module, loop.plain):
        torch.manual_seed(5)
        module[2].weight.data = torch.randn(WIDTH // 2, WIDTH)
        module[2].bias.data = torch.randn(WIDTH // 2)
        module[4] = nn.Linear(WIDTH // 2, WIDTH)
    loop.optimizers = [
        torch.optim.SGD(one.parameters(), lr=1e-2, momentum=0.9)
        for one in (loop.module, loop.plain)
    ]
    assert all(loop.step() for _ in range(4))


def test_parameters_that_become_parts_of_one_storage(loop):
    """As after `torch.nn.utils.vector_to_parameters`: plans that move them read other bytes."""
    for module in (loop.module, loop.plain):
        layers = [module[0], module[2]]
        whole = torch.cat([layer.weight.detach() for layer in layers])
        for layer, part in zip(layers, whole.split(WIDTH), strict=True):
            layer.weight.data = part
    with torch.no_grad():
        for x in (loop.x, loop.x[:3]):
            assert all(torch.equal(loop.call(x), loop.plain(x)) for _ in range(2))
    assert all(loop.step() for _ in range(3))


def test_a_parameter_that_is_resized_between_its_passes_is_an_error(loop):
    out = loop.call(loop.x)
    loop.module[2].weight.data = torch.randn(WIDTH // 2, WIDTH)
    said = "its memory was replaced between a forward pass and its backward pass"
    with pytest.raises(LoadmasterError, match=said):
        out.square().mean().backward()
    loop.module[2].weight.data = loop.plain[2].weight.detach().clone()
    assert loop.step()


def test_two_processes_on_one_folder(tmp_path):
    script = (
        "from tests.support.steps import Trained; import sys\n"
        "trained = Trained(slow_memory=sys.argv[1])\n"
        "print(all(trained.step() for _ in range(8)) and trained.plan.moved_bytes > 0)"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for _ in range(2)
    ]
    assert [one.communicate()[0] for one in both] == ["True\n", "True\n"]
    assert not list(tmp_path.iterdir())


def test_batches_from_forked_workers_of_a_loader(loop):
    data = torch.randn(48, WIDTH, generator=torch.Generator().manual_seed(4))
    loader = torch.utils.data.DataLoader(
        data, batch_size=16, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    )
    for _ in range(2):
        for loop.x in loader:
            assert loop.step()
    assert loop.offloaded > 0


def test_training_in_bfloat16_where_autocast_says_so(loop):
    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loop.step()

    assert all(step() for _ in range(3))
    assert loop.offloaded > 0


def averaged(own, x):
    """One of the module's buffers is replaced in each step."""
    own.mean = own.mean + x.T @ x
    return own.layers(x) @ own.mean.detach()


def test_a_buffer_that_is_replaced_is_planned_for_as_if_it_stayed(monkeypatch):
    made, make = [], compiled_model.PlannedGraph._make_plan
    monkeypatch.setattr(
        compiled_model.PlannedGraph, "_make_plan", lambda self: [made.append(self), make(self)]
    )
    module = Parts(averaged, layers=linears(256, 6), mean=nn.Buffer(torch.zeros(256, 256)))
    call = with_plan(module, 0.8)
    for _ in range(12):
        module.zero_grad()
        call(torch.randn(256, 256)).square().mean().backward()
    assert len(made) < 6  # the last with measured times

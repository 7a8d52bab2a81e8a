"""The same executor on a GPU: skipped where there is none."""

import gc

import pytest
import torch
from tests.support.needs import GPU

if not torch.cuda.is_available():
    pytest.skip(GPU, allow_module_level=True)
from tests.support.compiled import clones, grads, same, with_plan, without_plan
from tests.support.modules import Parts
from torch import nn

from loadmaster.core.errors import SlowMemoryError
from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.compare.measurement import STATED, peak_of
from loadmaster.integrations.torch_compile.cpu_memory import ArenaCopy
from loadmaster.integrations.torch_compile.cuda_memory import CudaMemory, Pinned

DEVICE = torch.device("cuda", 0)
BLOCK = 64 << 20


@pytest.fixture
def module():
    """Convolutions with batch normalisation and dropout, and a loss."""
    torch.manual_seed(0)
    units = [
        nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.1)
        )
        for _ in range(6)
    ]
    loss = Parts(lambda own, x: own.layers(x).square().mean(), layers=nn.Sequential(*units))
    return loss.to(DEVICE)


@pytest.fixture
def x():
    return torch.randn(32, 16, 96, 96, device=DEVICE)


def gradients(call, module, x, steps=1):
    """Loss, gradients and buffers of steps from the same random state."""
    torch.manual_seed(1)
    torch.cuda.manual_seed(1)
    for _ in range(steps):
        module.zero_grad()
        loss = call(x)
        loss.backward()
    return clones([loss, *grads(module), *module.buffers()])


def within(module, x, share=0.6, **more):
    """A module under a budget that makes tensors move, and what is known of it."""
    torch._dynamo.reset()
    call = with_plan(module, share, dynamic=False, **more)
    call(x).backward()
    model = model_of(call)
    assert model.plans[0].moved_bytes > 0
    return call, model


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_results_are_those_of_the_unmoved_graphs(module, x, mode):
    state = {name: value.clone() for name, value in module.state_dict().items()}
    call, model = within(module, x, mode=mode)
    module.load_state_dict(state)
    mine = gradients(call, module, x, steps=3)
    module.load_state_dict(state)
    torch._dynamo.reset()
    assert same(mine, gradients(without_plan(module, dynamic=False), module, x, steps=3))
    assert not model.fallbacks


def test_the_budget_holds(module, x):
    call, model = within(module, x)
    for _ in range(3):
        gradients(call, module, x)
    module.zero_grad()
    gc.collect()
    arena = model.plans[0].program.arena.bytes
    resident = sum(t.nbytes for t in (*module.parameters(), *module.buffers(), x))
    with peak_of(DEVICE) as peak:
        call(x).backward()
    assert resident + arena + peak.bytes <= model.budget + STATED
    assert resident + arena + peak.bytes <= 1.05 * model.plans[0].placed_peak + STATED


def test_copies_wait_for_kernels_and_kernels_for_copies():
    memory = CudaMemory(DEVICE)
    arena = memory.arena(2 * BLOCK)
    first, second = arena.memory[:BLOCK], arena.memory[BLOCK:]
    slot = memory.reserve(BLOCK)
    for number in range(1, 20):
        torch.cuda._sleep(2_000_000)  # the kernel before takes its time
        first.fill_(number)
        memory.copy(arena, ArenaCopy(False, 0, slot, BLOCK))()
        first.fill_(0)  # after the copy has read it
        memory.copy(arena, ArenaCopy(True, BLOCK, slot, BLOCK))()
        assert torch.equal(second, torch.full_like(second, number))
    memory.release(slot, BLOCK)
    memory.close()


def test_the_host_waits_for_no_copy():
    memory = CudaMemory(DEVICE)
    arena = memory.arena(BLOCK)
    slot = memory.reserve(BLOCK)
    torch.cuda._sleep(1_000_000_000)
    memory.copy(arena, ArenaCopy(False, 0, slot, BLOCK))()
    assert not torch.cuda.current_stream(DEVICE).query()
    memory.synchronize()
    torch.cuda.synchronize(DEVICE)
    memory.close()


def test_pinned_memory_is_bounded_and_goes_back():
    memory = CudaMemory(DEVICE, limit=4 * BLOCK)
    slots = [memory.reserve(BLOCK) for _ in range(4)]
    assert memory.pinned == 4 * BLOCK
    with pytest.raises(SlowMemoryError, match="slow_limit"):
        memory.reserve(BLOCK)
    for slot in slots:
        memory.release(slot, BLOCK)
    memory.reserve(2 * BLOCK)  # what is spare and too small makes room
    assert memory.pinned == 2 * BLOCK
    memory.close()
    assert memory.pinned == 0
    assert Pinned(BLOCK).memory.is_pinned()


def test_an_operator_that_raises_leaves_nothing_behind(module, x):
    call, model = within(module, x)
    torch.manual_seed(1)
    right = gradients(call, module, x)[1:7]
    program = model.plans[0].program
    launch = program.launches[len(program.launches) // 2]
    target, memory = launch.target, model.memory(DEVICE)

    def failing(*_, **__):
        raise ValueError("on purpose")

    launch.target = failing
    with pytest.raises(ValueError, match="on purpose"):
        call(x).backward()
    launch.target = target
    gc.collect()
    assert not memory._used
    assert same(right, gradients(call, module, x)[1:7])


def test_steps_grow_nothing(module, x):
    call, model = within(module, x)
    for _ in range(5):
        gradients(call, module, x)

    def standing():
        gc.collect()
        torch.cuda.synchronize(DEVICE)
        return torch.cuda.memory_allocated(DEVICE), model.memory(DEVICE).pinned

    before = standing()
    for _ in range(200):
        gradients(call, module, x)
    assert standing() == before
    assert not model.memory(DEVICE)._used

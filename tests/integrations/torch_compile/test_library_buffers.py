"""Buffers of the matrix library, which no allocator of PyTorch sees, are part of the plan and gone
after each kernel."""

import threading

import pytest
import torch
from tests.support.compiled import with_plan

from loadmaster.integrations.torch_compile.backend import model_of
from loadmaster.integrations.torch_compile.cpu_memory import free_library_buffers, library_bytes

SMALL = 1 << 20


@pytest.fixture
def layer():
    torch.manual_seed(0)
    layers = torch.nn.Linear(1024, 768), torch.nn.GELU(), torch.nn.Linear(768, 1024)
    module, x = torch.nn.Sequential(*layers), torch.rand(400, 1024)
    module(x)
    if library_bytes() <= SMALL:
        pytest.skip("this build of torch has no MKL that tells what it takes")
    return module, x


def test_they_count_while_their_kernel_runs_and_are_gone_after_it(layer):
    module, x = layer
    call = with_plan(module, 1.0)
    with torch.no_grad():
        call(x)
    model = model_of(call)
    operands = sum(tensor.nbytes for tensor in (x, *module.parameters())) + 2 * 400 * 1024 * 4
    assert library_bytes() <= SMALL
    rows = {row["operator"]: row["elsewhere"] for row in model.plans[0].rows()}
    assert rows["aten.addmm"] - rows["aten.gelu"] > SMALL
    assert model.unmoved_peak > operands + SMALL // 2


def test_they_may_be_freed_while_other_threads_multiply(layer):
    (a, b), wrong = (torch.rand(150, 300), torch.rand(300, 200)), []
    right, over = a @ b, threading.Event()

    def multiply():
        wrong.extend(number for number in range(60) if not torch.equal(a @ b, right))

    def free():
        while not over.is_set():
            free_library_buffers()

    freeing, *multiplying = (threading.Thread(target=run) for run in (free, multiply, multiply))
    for thread in (freeing, *multiplying):
        thread.start()
    for thread in multiplying:
        thread.join()
    over.set()
    freeing.join()
    assert not wrong
    free_library_buffers()
    assert library_bytes() <= SMALL

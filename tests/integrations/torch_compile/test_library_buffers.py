"""Buffers of the matrix library, which no allocator of PyTorch sees, are part of the plan and gone after each kernel."""

import pytest

torch = pytest.importorskip("torch", exc_type=ImportError)
from loadmaster.integrations.torch_compile.backend import loadmaster  # noqa: E402
from loadmaster.integrations.torch_compile.devices.library_buffers import free_library_buffers, library_bytes  # noqa: E402
from loadmaster.integrations.torch_compile.owners import model_of  # noqa: E402

SMALL = 1 << 20


@pytest.fixture
def layer():
    torch.manual_seed(0)
    module, x = torch.nn.Sequential(torch.nn.Linear(1024, 768), torch.nn.GELU(), torch.nn.Linear(768, 1024)), torch.rand(400, 1024)
    module(x)
    if library_bytes() <= SMALL:
        pytest.skip("this build of torch has no MKL that tells what it takes")
    return module, x


def test_buffers_are_freed(layer):
    free_library_buffers()
    assert library_bytes() <= SMALL


def test_they_count_while_their_kernel_runs_and_are_gone_after_it(layer):
    module, x = layer
    call = torch.compile(module, backend=loadmaster, options={"fast_memory": 1.0})
    with torch.no_grad():
        call(x)
    model = model_of(call)
    operands = sum(tensor.nbytes for tensor in (x, *module.parameters())) + 2 * 400 * 1024 * 4
    assert library_bytes() <= SMALL
    rows = {row["operator"]: row["elsewhere"] for row in model.plans[0].rows()}
    assert rows["aten.addmm"] - rows["aten.gelu"] > SMALL
    assert model.unmoved_peak > operands + SMALL

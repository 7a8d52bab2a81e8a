"""What the tests of the runtime share: plans against the same graphs unmoved, on the same random state."""

from __future__ import annotations

import copy
import gc
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs torch", exc_type=ImportError)


@pytest.fixture(autouse=True)
def quiet_and_fresh() -> Any:
    """Compile anew in every test, and let PyTorch warn about itself."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with some 40 MiB; needs the right to mount one."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(48 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


Step = Callable[[Any, Any], Any]


def train(module: Any, inputs: tuple[Any, ...], backend: Any, options: Any = None, steps: int = 2) -> list[Any]:
    """Outputs, gradients, parameters and buffers of a few optimiser steps on a copy of the module."""
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    call = twin if backend is None else torch.compile(twin, backend=backend, options=options)
    optimiser = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)
    torch.manual_seed(3)
    seen = []
    for _ in range(steps):
        optimiser.zero_grad()
        out = call(*inputs)
        out.float().square().mean().backward()
        seen += [out.detach().clone(), *(p.grad.clone() for p in twin.parameters() if p.grad is not None)]
        optimiser.step()
    return [*seen, *(p.detach().clone() for p in twin.parameters()), *(b.clone() for b in twin.buffers())]


def same(one: list[Any], other: list[Any]) -> bool:
    """Equal bit for bit."""
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def models_of(options: Any) -> list[Any]:
    """All models that live and were compiled with this very object of options."""
    from loadmaster.integrations.torch_compile.compiled_model import Model

    gc.collect()
    return [model for model in gc.get_objects() if type(model) is Model and model.options is options]


def model_of(options: Any) -> Any:
    """The only one."""
    (model,) = models_of(options)
    return model

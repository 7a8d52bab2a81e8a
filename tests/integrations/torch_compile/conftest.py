"""Every test of the runtime compiles anew."""

import gc
import subprocess
import warnings
from pathlib import Path

import pytest
from tests.support.needs import MOUNT

torch = pytest.importorskip("torch", reason="the runtime needs torch", exc_type=ImportError)


@pytest.fixture(autouse=True)
def quiet_and_fresh():
    """Compile anew in every test, and let PyTorch warn about itself."""
    torch._dynamo.reset()
    # The runtime collects garbage when it has compiled: not among what was there before.
    gc.collect()
    gc.freeze()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(autouse=True)
def buffers_of_the_matrix_library(request, monkeypatch):
    """Do not count MKL's buffers, 8 MiB at the least: most networks of tests are smaller.
    test_library_buffers.py counts them."""
    from loadmaster.integrations.torch_compile import kernel_profile

    if request.path.name != "test_library_buffers.py":
        monkeypatch.setattr(kernel_profile, "library_bytes", lambda: 0)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with some 40 MiB; needs the right to mount one."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(48 << 20)
    try:
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True, capture_output=True)
        subprocess.run(["mount", "-o", "loop", image, folder], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(MOUNT)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def pytest_collection_modifyitems(items):
    """Compiling takes seconds: every test of this folder is slow."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)

"""PyTorch's CPU memory, at addresses that a plan gives; see src/native/runtime."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from loadmaster import _native
from loadmaster.core.errors import RuntimeUnavailable

SUPPORTED = "2.13"
"""The native part has the binary layout of this version's allocator."""


@functools.cache
def install() -> None:
    """Put our allocator before PyTorch's, once a process, and see that it is asked. Raises `RuntimeUnavailable`."""
    if not torch.__version__.startswith(SUPPORTED + "."):
        raise RuntimeUnavailable(
            f"the runtime works with torch {SUPPORTED}, and this is {torch.__version__}: pip install 'loadmaster[torch]'"
        )
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        set_allocator = ctypes.cast(library._ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh, ctypes.c_void_p).value or 0
        standard = library._ZN3c1022GetDefaultCPUAllocatorEv
    except AttributeError:
        raise RuntimeUnavailable("this build of torch does not let its CPU allocator be replaced") from None
    standard.restype = ctypes.c_void_p
    _native.install_allocator(set_allocator, standard())
    spot = ctypes.create_string_buffer(256)
    address = -(-ctypes.addressof(spot) // 64) * 64
    _native.AllocationScript([(64, 0)]).begin(address)
    probe = torch.empty(64, dtype=torch.uint8)
    if _native.end_script() or probe.data_ptr() != address:
        raise RuntimeUnavailable("this build of torch asks another CPU allocator than the one that was set")

"""Has PyTorch allocate CPU memory at the addresses of a plan; see src/native/runtime.

The native part has the binary layout of ``c10::Allocator`` as of PyTorch 2.11 to 2.13. Whether the
installed build has it is tried, not read from its version: first in a forked process, which may
crash, then here. Where it has not, results are copied to their places.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from loadmaster import _native


@functools.cache
def _library() -> ctypes.CDLL | None:
    """PyTorch's library if MKL's functions (``mkl_free_buffers``, ``mkl_mem_stat``, by their names
    inside) are in it."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        library.mkl_serv_mem_stat.restype = ctypes.c_int64
        library.mkl_serv_free_buffers.restype = None
    except (OSError, AttributeError):
        return None
    return library


def library_bytes() -> int:
    """Bytes of the buffers that the library has at the moment, in use or kept."""
    library = _library()
    return 0 if library is None else int(library.mkl_serv_mem_stat(ctypes.byref(ctypes.c_int())))


def free_library_buffers() -> None:
    """Free the buffers that no operator uses."""
    library = _library()
    if library is not None:
        library.mkl_serv_free_buffers()


_TRIAL_SECONDS = 20.0
"""Seconds after which a trial that hangs counts as failed."""


@functools.cache
def install_allocator() -> bool:
    """Install our allocator in front of PyTorch's, so that operators write to planned addresses.

    Returns whether that worked. Where it cannot, warns; only the first call does anything.
    """
    reason = _unable()
    if reason:
        warnings.warn(
            f"loadmaster: this build of torch ({torch.__version__}) {reason}: results are copied to"
            " their places, which takes more memory and time; temporaries of operators are not"
            " part of the plan, so budgets are estimates",
            RuntimeWarning,
            stacklevel=2,
        )
    return not reason


def _unable() -> str:
    """Install our allocator; return the reason if that is not possible, else an empty string."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        set_allocator = (
            ctypes.cast(library._ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh, ctypes.c_void_p).value
            or 0
        )
        standard = library._ZN3c1022GetDefaultCPUAllocatorEv
    except (OSError, AttributeError):
        return "does not let its CPU allocator be replaced"
    standard.restype = ctypes.c_void_p

    def asked() -> bool:
        _native.install_allocator(set_allocator, standard())
        return _works()

    if not survives(asked):
        return "has a CPU allocator of another form"
    return "" if asked() else "asks another CPU allocator than the one that was set"


def _works() -> bool:
    """Whether scripted allocations get their addresses, and all others are recorded and freed as
    before."""
    spot = ctypes.create_string_buffer(256)
    address = -(-ctypes.addressof(spot) // 64) * 64
    script = _native.AllocationScript([(64, 0)])
    script.begin(address)
    planned = torch.full((64,), 7, dtype=torch.uint8)
    right = (
        not _native.end_script()
        and planned.data_ptr() == address
        and spot[address - ctypes.addressof(spot)] == b"\7"
    )
    _native.start_recording()
    kept, gone = torch.ones(1000, dtype=torch.uint8), torch.ones(2000, dtype=torch.uint8)
    address = kept.data_ptr()
    del gone
    seen = [row for row in _native.stop_recording() if row[1] in (1000, 2000)]
    grown = kept.clone().resize_(5000)
    right &= bool((grown[:1000] == 1).all()) and [row[1] for row in seen] == [1000, 2000]
    return right and seen[0][0] == address and [row[2] >= 0 for row in seen] == [False, True]


def survives(check: Callable[[], bool]) -> bool:
    """Whether a check that may crash the process succeeds in a fork of this one, within
    `_TRIAL_SECONDS` seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # threads of others are not touched by what is tried
        child = os.fork()
    if not child:
        verdict = 1
        try:
            signal.alarm(int(_TRIAL_SECONDS))
            verdict = 0 if check() else 1
        finally:
            os._exit(verdict)
    end = time.monotonic() + 2 * _TRIAL_SECONDS
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False

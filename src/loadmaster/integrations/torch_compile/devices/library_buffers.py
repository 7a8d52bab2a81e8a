"""Counts and frees what the matrix library inside of PyTorch (MKL) takes beside all allocators of
PyTorch.

MKL packs operands of matrix products into buffers of its own and keeps those of every size and
thread: 35 MiB for ViT-B on two threads, where no product needs more than 10. Freeing them after
each kernel takes no time that can be measured, so a plan counts them only while the kernel runs.
Where PyTorch has another library, or hides MKL's functions, nothing is counted and nothing freed.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch


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

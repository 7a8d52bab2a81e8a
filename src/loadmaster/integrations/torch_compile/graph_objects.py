"""What Python's and PyTorch's objects of compiled graphs take of the fast memory: no plan can move
them, so a budget leaves room for them.

They are estimated by the number of kernels, not measured: what a process has grown by depends on
what it has compiled before. Measured from outside after five steps, with libraries warm: 29 to 37
KiB for each kernel of GPT-2, ViT, BERT and Llama with 12 to 24 layers, 20 of a U-Net, and 67 of
GPT-2 with sizes that are symbols. ResNet-50 showed 164 in that probe, which is not explained, and
which the estimate leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable

_OF_A_KERNEL, _OF_A_SYMBOLIC_KERNEL = 44 << 10, 72 << 10
COMPILER = 56 << 20
"""Bytes that PyTorch's compiler may take for itself in a step that compiles, which are not part of
the budget."""
ALLOWED = 8 << 20
"""Bytes that a process may take beside a budget: the objects of some 180 kernels are among them."""


def object_bytes(kernels: int, symbolic: bool) -> int:
    """Estimate the bytes of the objects of a graph; ``symbolic`` if it was captured with sizes that
    are symbols."""
    return kernels * (_OF_A_SYMBOLIC_KERNEL if symbolic else _OF_A_KERNEL)


def beyond_allowed(graphs: Iterable[int]) -> int:
    """Sum up the bytes of the objects of all graphs that are more than what a process may take
    beside a budget."""
    return max(sum(graphs) - ALLOWED, 0)

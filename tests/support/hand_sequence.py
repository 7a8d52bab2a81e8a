"""A step small enough to follow by hand: two layers forward, loss, two layers backward, one weight
updated in place."""

from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelOperand,
    KernelSequence,
    StoredKind,
    StoredTensor,
)

LINK = CopyLink(to_fast=10.0, to_slow=5.0, asynchronous_to_fast=2.0, asynchronous_to_slow=1.0)
NAMES = ("x", "w", "a", "b", "da", "y")
X, W, A, B, DA, Y = range(6)


def operand(tensor, mode, slow=4.0):
    """``mode`` is "r", "w" or "rw"; one second where fast."""
    return KernelOperand(tensor, "r" in mode, "w" in mode, 1.0, slow)


def kernel(name, *operands, seconds=1.0, workspace=0):
    return Kernel(name, "made", operands, (Algorithm("only", seconds, workspace),))


def step(slow=4.0):
    """Kernels 0 to 4: a = f(x, w); b = g(a); da = g'(b); w -= f'(da, a); y = h(w)."""
    kinds = (StoredKind.INPUT, StoredKind.WEIGHT, *[StoredKind.INTERMEDIATE] * 3, StoredKind.OUTPUT)
    tensors = tuple(StoredTensor(name, 10, kind) for name, kind in zip(NAMES, kinds, strict=True))
    kernels = (
        kernel("f", operand(X, "r", slow), operand(W, "r", slow), operand(A, "w", slow)),
        kernel("g", operand(A, "r", slow), operand(B, "w", slow)),
        kernel("gradient", operand(B, "r", slow), operand(DA, "w", slow)),
        kernel(
            "update",
            operand(DA, "r", slow),
            operand(A, "r", slow),
            operand(W, "rw", slow),
            workspace=5,
        ),
        kernel("h", operand(W, "r", slow), operand(Y, "w", slow)),
    )
    return KernelSequence("step", tensors, kernels, LINK)

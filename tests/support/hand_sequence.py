"""A step small enough to follow by hand: two layers forward, loss, two layers backward, one weight
updated in place."""

from loadmaster.placement.decisions import Move, Stay
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
EVEN = CopyLink(1.0, 1.0, 1.0, 1.0)
NAMES = ("x", "w", "a", "b", "da", "y")
X, W, A, B, DA, Y = range(6)


def _rows(text):
    return [row.split() for row in text.split(",") if row]


def stays(text):
    """Where tensors of :func:`step` are fast: ``a 0-2, w 0-5``."""
    return tuple(Stay(NAMES.index(name), *map(int, span.split("-"))) for name, span in _rows(text))


def moves(text):
    """Copies of them: ``a out 1-2, a in 3-3``."""
    return tuple(
        Move(NAMES.index(name), way == "in", *map(int, span.split("-")))
        for name, way, span in _rows(text)
    )


def operand(tensor, mode, slow=4.0, fast=1.0):
    """``mode`` is "r", "w" or "rw"; one second where fast."""
    return KernelOperand(tensor, "r" in mode, "w" in mode, fast, slow)


def kernel(name, *operands, seconds=1.0, workspace=0, measured=None):
    return Kernel(name, "made", operands, (Algorithm("only", seconds, workspace),), measured)


def sequence_of(tensors, *kernels, name="made", link=EVEN, **more):
    """Kernels on tensors such as ``w 4 weight, g 4``, with their bytes."""
    stored = tuple(
        StoredTensor(called, int(size), *map(StoredKind, kind))
        for called, size, *kind in _rows(tensors)
    )
    return KernelSequence(name, stored, kernels, link, **more)


def step(slow=4.0):
    """Kernels 0 to 4: a = f(x, w); b = g(a); da = g'(b); w -= f'(da, a); y = h(w)."""
    return sequence_of(
        "x 10 input, w 10 weight, a 10, b 10, da 10, y 10 output",
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
        name="step",
        link=LINK,
    )

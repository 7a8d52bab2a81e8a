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
A = NAMES.index("a")


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

    def on(operands):
        return [operand(NAMES.index(name), mode, slow) for name, mode in _rows(operands)]

    return sequence_of(
        "x 10 input, w 10 weight, a 10, b 10, da 10, y 10 output",
        kernel("f", *on("x r, w r, a w")),
        kernel("g", *on("a r, b w")),
        kernel("gradient", *on("b r, da w")),
        kernel("update", *on("da r, a r, w rw"), workspace=5),
        kernel("h", *on("w r, y w")),
        name="step",
        link=LINK,
    )

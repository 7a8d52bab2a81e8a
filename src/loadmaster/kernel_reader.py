"""From what a user names to a kernel sequence: a network file, a torch factory, or a sequence that was written before; with costs."""

from __future__ import annotations

from loadmaster.cost.kernels import kernel_sequence
from loadmaster.errors import PlacementError
from loadmaster.frontends import load
from loadmaster.hardware import Target
from loadmaster.kernel_sequence import KernelSequence

ROOFLINE = "roofline"


def read_sequence(source: str, target: Target, *, training: bool = False, batch: int | None = None, cost: str = ROOFLINE) -> KernelSequence:
    """Read a graph and cost its kernels.

    Parameters
    ----------
    source
        ``.onnx``, ``onnx:NAME`` or ``torch:module.path:factory``.
    training
        Capture the whole training step of a torch module.
    batch
        Leading dimension of the inputs.
    cost
        ``roofline``: estimated from the target's figures.
    """
    if cost != ROOFLINE:
        raise PlacementError(f"cost {cost!r} does not exist: give {ROOFLINE}")
    return kernel_sequence(load(source, batch=batch, training=training), target)

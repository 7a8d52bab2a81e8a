"""The driver of ``loadmaster run``: checks what it needs, and calls the factory of a
module."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadmaster.core.errors import BudgetError, ModelError, RuntimeUnavailable
from loadmaster.workloads.frontends.torch.factory import factory_of, require_torch

if TYPE_CHECKING:
    from loadmaster.integrations.torch_compile.compare.comparison import MeasuredModule

OLDEST = (2, 11)
"""Oldest release of torch with which the runtime works."""


def made_module(
    spot: str,
    batch: int | None,
    training: bool,
    device: str,
    optimizer: str | None = None,
    dims: Mapping[str, int] | None = None,
) -> MeasuredModule:
    """Return the module made by factory ``spot``, whose arguments are ``dims``, to measure its
    steps.

    Raises
    ------
    ModelError
        The factory is not found or fails.
    BudgetError
        The optimizer is for steps of another kind.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    require_torch(OLDEST)
    import torch

    from loadmaster.integrations.torch_compile.compare.comparison import OPTIMIZERS, MeasuredModule

    if device not in ("cpu", "cuda"):
        raise RuntimeUnavailable(f"device {device!r}: write cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeUnavailable("device cuda: no GPU can be used here")
    made = factory_of(spot, batch, dims)
    torch.manual_seed(0)
    with torch.device(device):
        example = made()
    match example:
        case (torch.nn.Module() as module, inputs, *rest):
            module.train(training)
        case _:
            raise ModelError(f"torch:{spot}: the factory must return a module and its inputs")
    if any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers()))):
        raise ModelError(
            f"torch:{spot}: some parameters have no shape yet: call the module once in the factory"
        )
    maker = rest[0] if rest and training else None
    if optimizer is not None:
        if not training:
            raise BudgetError("--optimizer is for steps of training: add --training")
        if optimizer not in OPTIMIZERS:
            raise BudgetError(f"optimizer {optimizer!r}: write {' or '.join(OPTIMIZERS)}")
        maker = OPTIMIZERS[optimizer]
    return MeasuredModule(module, inputs, training, torch.device(device), maker)


def generated(
    spot: str, tokens: int, fast: str, slow_memory: Path | None, with_rivals: bool
) -> dict[str, Any]:
    """Generate tokens with the language model made by factory ``spot``; see
    `compare.generation.generate`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    require_torch(OLDEST)
    from loadmaster.integrations.torch_compile.compare.generation import generate

    return generate(spot, tokens, fast, slow_memory, with_rivals)

"""The driver of ``loadmaster run``: calls the factory of a module, plans the module, and measures
steps."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.core.errors import BudgetError, ModelError, RuntimeUnavailable
from loadmaster.core.progress import Progress, no_progress
from loadmaster.workloads.frontends.torch.factory import factory_of, require_torch

OLDEST = (2, 11)
"""Oldest release of torch with which the runtime works."""


def run(
    spot: str,
    batch: int | None,
    training: bool,
    device: str,
    options: dict[str, Any],
    steps: int,
    with_rivals: bool,
    optimizer: str | None = None,
    budgets: Sequence[int | float] = (),
    dims: Mapping[str, int] | None = None,
    progress: Progress = no_progress,
    tell: Callable[[str], object] = lambda _: None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Measure steps of a module made by factory ``spot``.

    Returns the summary (see `RunJson`), and a table row for each kernel. With rivals, plans under
    more ``budgets`` are measured, too, and ``tell`` is called with the expected time of the
    comparison. ``dims`` are arguments of the factory.

    Raises
    ------
    ModelError
        The factory is not found or fails.
    BudgetError
        The budget cannot be kept.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    require_torch(OLDEST)
    import torch

    from loadmaster.integrations.torch_compile.compare.comparison import MeasuredModule, compare
    from loadmaster.integrations.torch_compile.compiled_model import CompileOptions

    if device not in ("cpu", "cuda"):
        raise RuntimeUnavailable(f"device {device!r}: write cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeUnavailable("device cuda: no GPU can be used here")
    made = factory_of(spot, batch, dims)
    torch.manual_seed(0)
    with torch.device(device):
        example = made()
    match example:
        case (torch.nn.Module() as module, inputs, *_):
            module.train(training)
        case _:
            raise ModelError(f"torch:{spot}: the factory must return a module and its inputs")
    if any(map(torch.nn.parameter.is_lazy, (*module.parameters(), *module.buffers()))):
        raise ModelError(
            f"torch:{spot}: some parameters have no shape yet: call the module once in the factory"
        )
    if optimizer is not None and not training:
        raise BudgetError("--optimizer is for steps of training: add --training")
    work = MeasuredModule(module, inputs, training, torch.device(device), optimizer=optimizer)
    options = options | {"fast_memory": CompileOptions.of(options).fast_memory}
    result = compare(work, options, steps, with_rivals, budgets, progress, tell)
    return result, result.pop("kernels")


def generated(
    spot: str, tokens: int, fast: str, slow_memory: Path | None, with_rivals: bool
) -> dict[str, Any]:
    """Generate tokens with the language model made by factory ``spot``; see
    `compare.generation.generate`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")
    require_torch(OLDEST)
    from loadmaster.integrations.torch_compile.compare.generation import generate

    return generate(spot, tokens, fast, slow_memory, with_rivals)

"""Steps with an optimizer, for comparisons: parameters that every way of running starts from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from loadmaster.core.errors import BudgetError

OPTIMIZERS: dict[str, dict[str, Any]] = {"sgd": {"lr": 1e-3}, "adamw": {"lr": 1e-4}}


def optimizer_of(name: str | None, module: nn.Module) -> torch.optim.Optimizer | None:
    """PyTorch's own optimizer of that name, for all parameters of a module. Raises
    `BudgetError`."""
    if name is None:
        return None
    if name not in OPTIMIZERS:
        raise BudgetError(f"optimizer {name!r}: write {' or '.join(OPTIMIZERS)}")
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[name]
    return kind(module.parameters(), **OPTIMIZERS[name])


def state_bytes(optimizer: torch.optim.Optimizer | None) -> dict[int, int]:
    """Storages of an optimizer's state, by address, and their bytes."""
    if optimizer is None:
        return {}
    return bytes_of(
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def bytes_of(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Storages of tensors, by address, and their bytes."""
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


class Snapshot:
    """Parameters, buffers and inputs as they were, to begin from again: a step may change all."""

    def __init__(self, module: nn.Module, inputs: Any) -> None:
        self._buffers = [(part._buffers, dict(part._buffers)) for part in module.modules()]
        given = (leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor))
        self._tensors = [*module.parameters(), *module.buffers(), *given]
        self._values = [t.detach().clone() for t in self._tensors]

    def restore(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Begin again; the optimizer has no state yet."""
        for there, before in self._buffers:
            replaced = {name: value for name, value in before.items() if there[name] is not value}
            there.update(replaced)
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._values, strict=True):
                tensor.copy_(value)
        if optimizer is not None:
            optimizer.state.clear()

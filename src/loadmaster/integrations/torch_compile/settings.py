"""The options of ``torch.compile(model, backend="loadmaster", options={...})``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from loadmaster.core.errors import BudgetError
from loadmaster.core.units import parse_bytes
from loadmaster.placement.decisions import Mode

OPTIONS = ("fast_memory", "mode", "slow_memory", "slow_limit", "refine_after", "optimizer")


@dataclass(frozen=True)
class Settings:
    """The options of a compiled model.

    Attributes
    ----------
    fast_memory
        Bytes of fast memory that a step may take: parameters, inputs, results, and all that lies
        between. None: as much as it needs. A share, such as 0.5, is of what a whole step takes,
        over all graphs, when nothing moves.
    mode
        ``async``: copies overlap kernels. ``sync``: they do not.
    slow_memory
        Folder on a local disk for the unlinked file (CPU); by default that for temporary files.
    slow_limit
        Bytes of slow memory at most.
    refine_after
        Steps after which a plan is made again from the times that were measured; 0: never.
    optimizer
        Updates parameters in the backward pass, each as soon as its gradient is complete; the
        gradient ends there. None: gradients are results.
    """

    fast_memory: int | float | None = None
    mode: Mode = Mode.ASYNC
    slow_memory: Path | None = None
    slow_limit: int | None = None
    refine_after: int = 3
    optimizer: torch.optim.Optimizer | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Settings:
        """Settings from the options of ``torch.compile``. Raises `BudgetError`."""
        for name in options:
            if name not in OPTIONS:
                raise BudgetError(
                    f"option {name!r} is unknown: the loadmaster backend has {', '.join(OPTIONS)}"
                )
        budget = options.get("fast_memory")
        if isinstance(budget, str) and budget.strip().endswith("%"):
            try:
                budget = float(budget.strip()[:-1]) / 100
            except ValueError:
                raise BudgetError(
                    f"fast_memory {budget!r}: write bytes, such as '2 GiB', or a percentage, such"
                    " as '50%'"
                ) from None
        elif budget is not None and not isinstance(budget, float):
            budget = parse_bytes(budget)
        if isinstance(budget, float) and not 0 < budget <= 1:
            raise BudgetError(
                f"fast_memory {budget}: a share lies between 0 and 1; write bytes, such as '2 GiB',"
                " or a percentage, such as '50%'"
            )
        mode = options.get("mode", "async")
        if mode not in ("sync", "async"):
            why = (
                ": operands of kernels must be in fast memory, so tensors have to move"
                if mode == "static"
                else ""
            )
            raise BudgetError(f"mode {mode!r}: write sync or async{why}")
        optimizer = options.get("optimizer")
        if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
            raise BudgetError(
                f"optimizer of type {type(optimizer).__name__}: give one of torch.optim"
            )
        folder = options.get("slow_memory")
        limit = options.get("slow_limit")
        return cls(
            budget,
            Mode(mode),
            None if folder is None else Path(folder),
            None if limit is None else parse_bytes(limit),
            int(options.get("refine_after", 3)),
            optimizer,
        )

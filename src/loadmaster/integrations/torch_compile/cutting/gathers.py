"""Kernels that pick or add rows by index, and those that put a block into zeros, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import Call, View
from loadmaster.integrations.torch_compile.cutting.block_call import empty, fast
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, blocks

_IGNORED = -100
"""A class that no row has."""


@dataclass(frozen=True)
class PickedRows:
    """``embedding`` of a table in the slow memory, in blocks of its rows."""

    pieces: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Take the rows of each block for the indices that are in it."""
        table, indices = arguments[:2]
        view = call.results[0]
        assert isinstance(view, View)
        result = empty(view)
        for start, length in blocks(table.shape[0], self.pieces):
            block = fast(table.narrow(0, start, length))
            there = (indices >= start) & (indices < start + length)
            rows = torch.nn.functional.embedding((indices - start).clamp_(0, length - 1), block)
            torch.where(there.unsqueeze(-1), rows, result, out=result)
            del block, rows
        return (result,)


@dataclass(frozen=True)
class AddedRows:
    """``embedding_dense_backward``, in blocks of the table's rows: every row adds up in the same
    order as in the whole kernel."""

    pieces: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Add the gradients of each block's rows; those of others go to a row that is left out."""
        gradient, indices, rows, padding = arguments[:4]
        there = slow[0]
        assert there is not None
        for start, length in blocks(rows, self.pieces):
            left_out = (indices < start) | (indices >= start + length) | (indices == padding)
            inside = torch.where(left_out, length, indices - start)
            block = torch.ops.aten.embedding_dense_backward(
                gradient, inside, length + 1, length, False
            )
            there.narrow(0, start, length).write(block.narrow(0, 0, length))
            del block
        return (None,)


@dataclass(frozen=True)
class PickedScores:
    """``nll_loss_forward`` of scores in the slow memory, in blocks of rows: the score of each row's
    class, and then the loss of those."""

    pieces: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Compute the loss and its weight."""
        scores, classes, weight, reduction, ignored = arguments
        picked = torch.empty((scores.shape[0], 1), dtype=scores.dtype)
        counts = classes != ignored
        for start, length in blocks(scores.shape[0], self.pieces):
            block = fast(scores.narrow(0, start, length))
            mine = torch.where(counts, classes, 0).narrow(0, start, length).unsqueeze(1)
            torch.gather(block, 1, mine, out=picked.narrow(0, start, length))
            del block
        out = call.target(picked, torch.where(counts, 0, _IGNORED), weight, reduction, _IGNORED)
        return tuple(out)


@dataclass(frozen=True)
class InZeros:
    """``slice_backward``, in blocks of the dimension that was sliced: zeros around what is
    given."""

    pieces: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Write zeros, and what is given among them."""
        given, sizes, dim, first = arguments[:4]
        there = slow[0]
        assert there is not None
        for start, length in blocks(sizes[dim], self.pieces):
            low, high = max(start, first), min(start + length, first + given.shape[dim])
            block = torch.zeros(there.narrow(dim, start, length).shape, dtype=there.dtype)
            if high > low:
                block.narrow(dim, low - start, high - low).copy_(
                    fast(given.narrow(dim, low - first, high - low))
                )
            there.narrow(dim, start, length).write(block)
            del block
        return (None,)

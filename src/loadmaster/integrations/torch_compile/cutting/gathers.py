"""Kernels that pick or add rows by index, and those that put a block into zeros, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.captured import Call, View
from loadmaster.integrations.torch_compile.cutting.block_call import empty, fast
from loadmaster.integrations.torch_compile.cutting.cut import SUM, WHOLE, Cut
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, blocks


@dataclass(frozen=True)
class Slices:
    """A call in ``pieces`` blocks along the dimensions of ``cut``; what all blocks need is read
    once."""

    cut: Cut
    pieces: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Run the call; its results in fast memory."""
        made = [
            empty(view) if isinstance(view, View) and (there is None or dim == SUM) else None
            for there, view, dim in zip(slow, call.results, self.cut.results, strict=True)
        ]
        arguments, keywords = self._with_whole(arguments, keywords)
        for start, length in blocks(self.cut.length(call), self.pieces):
            given, named = self._block(arguments, keywords, start, length)
            out = call.target(*self.cut.sized(given, length), **named)
            del given, named
            for i, value in enumerate(out if isinstance(out, tuple | list) else (out,)):
                self._put(value, slow[i], made[i], i, (start, length))
            del out, value
        for there, whole in zip(slow, made, strict=True):
            if there is not None and whole is not None:
                there.write(whole)
        return tuple(None if there else whole for there, whole in zip(slow, made, strict=True))

    def _put(
        self,
        value: Any,
        there: SlowTensor | None,
        whole: torch.Tensor | None,
        i: int,
        block: tuple[int, int],
    ) -> None:
        """Put a block of result ``i`` in its place in the slow memory, or in the whole result."""
        dim, (start, length) = self.cut.results[i], block
        if value is None or (dim == WHOLE and start):
            return
        if there is not None and dim != SUM:
            (there if dim == WHOLE else there.narrow(dim, start, length)).write(value)
        elif whole is not None and dim == SUM and start:
            whole.add_(value)
        elif whole is not None:
            (whole if dim < 0 else whole.narrow(dim, start, length)).copy_(value)

    def _with_whole(self, arguments: Any, keywords: Any) -> Any:
        """The operands, with those in fast memory of which each block needs all."""
        number = count()

        def held(leaf: Any) -> Any:
            return fast(leaf) if _is_tensor(leaf) and self._dim(next(number)) == WHOLE else leaf

        return tree_map(held, (arguments, keywords), is_leaf=_is_tensor)

    def _block(self, arguments: Any, keywords: Any, start: int, length: int) -> Any:
        """The operands of one block, in fast memory."""
        number = count()

        def block(leaf: Any) -> Any:
            if not _is_tensor(leaf):
                return leaf
            i = next(number)
            dim = self.cut.operands[i]
            part = leaf if dim == WHOLE else leaf.narrow(dim, start, length)
            if i in self.cut.unread:
                return torch.empty(1, dtype=part.dtype).expand(part.shape)
            return fast(part)

        return tree_map(block, (arguments, keywords), is_leaf=_is_tensor)

    def _dim(self, operand: int) -> int | None:
        return None if operand in self.cut.unread else self.cut.operands[operand]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | SlowTensor)


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

"""Runs a call in blocks along the dimensions that a cut gives."""

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

"""Runs a call in blocks along the dimensions that `axes` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.captured import Call, View
from loadmaster.integrations.torch_compile.cutting.axes import WHOLE, Cut, length_of
from loadmaster.integrations.torch_compile.cutting.block_call import empty, fast
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, blocks


@dataclass(frozen=True)
class Slices:
    """A call in ``pieces`` blocks along the dimensions of ``cut``."""

    cut: Cut
    pieces: int

    def __call__(
        self, call: Call, slow: Sequence[SlowTensor | None], arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Run the call; its results in fast memory."""
        made = [None if there or not isinstance(view, View) else empty(view) for there, view in zip(slow, call.results, strict=True)]
        for start, length in blocks(length_of(call, self.cut), self.pieces):
            given, named = self._block(arguments, keywords, start, length)
            out = call.target(*given, **named)
            del given, named
            for i, value in enumerate(out if isinstance(out, tuple | list) else (out,)):
                there, dim, whole = slow[i], self.cut.results[i], made[i]
                if there is not None:
                    there.narrow(dim, start, length).write(value)
                elif whole is not None:
                    whole.narrow(dim, start, length).copy_(value)
        return tuple(made)

    def _block(self, arguments: Any, keywords: Any, start: int, length: int) -> Any:
        """The operands of one block, in fast memory."""
        number = count()

        def block(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor | SlowTensor):
                return leaf
            i = next(number)
            dim = self.cut.operands[i]
            part = leaf if dim == WHOLE else leaf.narrow(dim, start, length)
            if i in self.cut.unread:
                return torch.empty(1, dtype=part.dtype).expand(part.shape)
            return fast(part)

        return tree_map(block, (arguments, keywords), is_leaf=lambda leaf: isinstance(leaf, SlowTensor))

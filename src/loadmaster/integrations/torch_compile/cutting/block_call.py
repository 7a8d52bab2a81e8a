"""A kernel that runs block by block: reads blocks of operands that rest in the slow memory, and
writes blocks of results there.

All memory that it takes is asked of PyTorch's allocator in the same order every time, so a plan has
a place for each block, as for any temporary. The time of such a kernel is that of its computations,
measured like any other's, and what the link needs for the bytes.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.captured import (
    Call,
    Captured,
    View,
    views,
)
from loadmaster.integrations.torch_compile.cutting.axes import SUM, WHOLE, Cut
from loadmaster.integrations.torch_compile.kernel_profile import (
    CallProfile,
    profiled,
    profiled_update,
    signature,
    stand_ins,
)
from loadmaster.integrations.torch_compile.slow_tensor import (
    NoFile,
    SlowTensor,
    blocks,
    fast,
)
from loadmaster.integrations.torch_compile.updates import Update
from loadmaster.placement.sequence import CopyLink

Slow: TypeAlias = Sequence[SlowTensor | None]
Blocks = Callable[[Call, Slow, tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]
"""Runs a call on operands: slow results (None for those in fast memory), arguments, keywords;
returns the results in fast memory."""


@dataclass(frozen=True, eq=False)
class BlockCall:
    """The target of a call that runs block by block.

    Its first argument is a list with the views of results in the slow memory, None for the others;
    the rest are those of ``whole``.
    """

    whole: Call
    run: Blocks
    link: CopyLink

    def __str__(self) -> str:
        return f"{self.whole.kind}, in blocks"

    @property
    def begun(self) -> bool:
        """Whether the state of an update has been made."""
        return bool(getattr(self.whole.target, "begun", True))

    def __call__(self, slow: Slow, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Run all blocks; the results in fast memory, None for the others."""
        return self.run(self.whole, slow, arguments, keywords)

    def profile_key(self, call: Call, captured: Captured) -> Any:
        """A key that is equal for calls that run alike."""
        return (
            repr(self.run),
            signature(replace(call, target=self.whole.target)),
            *(view.storage in captured.streamed for view in views((call.arguments, call.keywords))),
        )

    def profile(self, call: Call, captured: Captured) -> CallProfile:
        """Measure the blocks of a call on made-up operands; the seconds of transfers are those that
        the link promises."""
        file, target = NoFile(), copy.copy(self.whole.target)
        whole = replace(self.whole, target=target) if isinstance(target, Update) else self.whole
        arguments, keywords = stand_ins(call, captured, lambda view: SlowTensor(view, file, 0))

        def run() -> Any:
            file.read_bytes = file.written_bytes = 0
            return self.run(whole, arguments[0], arguments[1:], keywords)

        if isinstance(target, Update):
            target.held = False
            profile = profiled_update(target, run, call.results)
        else:
            profile = profiled(run, call.results)
        seconds = file.read_bytes / self.link.to_fast + file.written_bytes / self.link.to_slow
        return replace(
            profile,
            seconds=profile.seconds + seconds,
            transferred=file.read_bytes + file.written_bytes,
        )


def empty(view: View) -> torch.Tensor:
    """A result in fast memory, not yet computed."""
    return torch.empty_strided(view.size, view.stride, dtype=view.dtype)


@dataclass(frozen=True)
class Slices:
    """A call in ``pieces`` blocks along the dimensions of ``cut``, each in blocks of its own with
    ``inner``; what all blocks need is read once."""

    cut: Cut
    pieces: int
    inner: Slices | None = None

    def __call__(
        self,
        call: Call,
        slow: Slow,
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
            given = self.cut.sized(given, length)
            if self.inner is not None:
                part = self.cut.block(call, length)
                out = self.inner(part, [None] * len(slow), tuple(given), named)
            elif call.kind == "aten.mm" and made[0] is not None and self.cut.results == (SUM,):
                made[0].addmm_(*given, beta=int(start > 0))  # needs no memory beside the sum
                out = None
            else:
                out = call.target(*given, **named)
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
        number = itertools.count()

        def held(leaf: Any) -> Any:
            whole = _is_tensor(leaf) and self._dim(next(number)) == WHOLE
            return fast(leaf) if whole and self.inner is None else leaf

        return tree_map(held, (arguments, keywords), is_leaf=_is_tensor)

    def _block(self, arguments: Any, keywords: Any, start: int, length: int) -> Any:
        """The operands of one block, in fast memory."""
        number = itertools.count()

        def block(leaf: Any) -> Any:
            if not _is_tensor(leaf):
                return leaf
            i = next(number)
            dim = self.cut.operands[i]
            part = leaf if dim == WHOLE else leaf.narrow(dim, start, length)
            if i in self.cut.unread:
                return torch.empty(1, dtype=part.dtype).expand(part.shape)
            return part if self.inner else fast(part)

        return tree_map(block, (arguments, keywords), is_leaf=_is_tensor)

    def _dim(self, operand: int) -> int | None:
        return None if operand in self.cut.unread else self.cut.operands[operand]


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | SlowTensor)


_IGNORED = -100
"""A class that no row has."""


def picked_rows(
    pieces: int, call: Call, slow: Slow, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """``embedding`` of a table in the slow memory, in blocks of its rows."""
    table, indices = arguments[:2]
    view = call.results[0]
    assert isinstance(view, View)
    result = empty(view)
    for start, length in blocks(table.shape[0], pieces):
        block = fast(table.narrow(0, start, length))
        there = (indices >= start) & (indices < start + length)
        rows = torch.nn.functional.embedding((indices - start).clamp_(0, length - 1), block)
        torch.where(there.unsqueeze(-1), rows, result, out=result)
        del block, rows
    return (result,)


def added_rows(
    pieces: int, call: Call, slow: Slow, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """``embedding_dense_backward``, in blocks of the table's rows: every row adds up in the same
    order as in the whole kernel."""
    gradient, indices, rows, padding = arguments[:4]
    there = slow[0]
    assert there is not None
    for start, length in blocks(rows, pieces):
        left_out = (indices < start) | (indices >= start + length) | (indices == padding)
        inside = torch.where(left_out, length, indices - start)
        block = torch.ops.aten.embedding_dense_backward(gradient, inside, length + 1, length, False)
        there.narrow(0, start, length).write(block.narrow(0, 0, length))
        del block
    return (None,)


def picked_scores(
    pieces: int, call: Call, slow: Slow, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """``nll_loss_forward`` of scores in the slow memory, in blocks of rows: the score of each row's
    class, and then the loss of those."""
    scores, classes, weight, reduction, ignored = arguments
    picked = torch.empty((scores.shape[0], 1), dtype=scores.dtype)
    counts = classes != ignored
    for start, length in blocks(scores.shape[0], pieces):
        block = fast(scores.narrow(0, start, length))
        mine = torch.where(counts, classes, 0).narrow(0, start, length).unsqueeze(1)
        torch.gather(block, 1, mine, out=picked.narrow(0, start, length))
        del block
    out = call.target(picked, torch.where(counts, 0, _IGNORED), weight, reduction, _IGNORED)
    return tuple(out)


def in_zeros(
    pieces: int, call: Call, slow: Slow, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """``slice_backward``, in blocks of the dimension that was sliced: zeros around what is
    given."""
    given, sizes, dim, first = arguments[:4]
    there = slow[0]
    assert there is not None
    for start, length in blocks(sizes[dim], pieces):
        low, high = max(start, first), min(start + length, first + given.shape[dim])
        block = torch.zeros(there.narrow(dim, start, length).shape, dtype=there.dtype)
        if high > low:
            block.narrow(dim, low - start, high - low).copy_(
                fast(given.narrow(dim, low - first, high - low))
            )
        there.narrow(dim, start, length).write(block)
        del block
    return (None,)


def updated_rows(
    pieces: int, call: Call, slow: Slow, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[Any, ...]:
    """An elementwise optimizer's step in blocks of the parameter's rows; the same to the bit as on
    the whole."""
    call.target.in_blocks(arguments, blocks(arguments[0].shape[0], pieces))
    return (None,) * len(slow)

"""A kernel that runs block by block: reads blocks of operands that rest in the slow memory, and
writes blocks of results there.

All memory that it takes is asked of PyTorch's allocator in the same order every time, so a plan has
a place for each block, as for any temporary. The time of such a kernel is that of its computations,
measured like any other's, and what the link needs for the bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.captured import Call, Captured, View
from loadmaster.integrations.torch_compile.cutting.axes import SUM, WHOLE, Cut
from loadmaster.integrations.torch_compile.kernel_profile import (
    CallProfile,
    likeness_of,
    profiled,
    profiled_update,
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

Slow: TypeAlias = Sequence[Any]
"""Results of a call in the slow memory, each a `SlowTensor`; None for those in the fast one."""
Blocks = Callable[..., tuple[Any, ...]]
"""Runs a call: given the call, slow results, and its arguments and keywords, returns the results in
fast memory."""


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
        return self.run(self.whole, slow, *arguments, **keywords)

    @property
    def likeness(self) -> Any:
        """Equal for targets that run alike."""
        return repr(self.run), likeness_of(self.whole.target)

    def profile(self, call: Call, captured: Captured) -> CallProfile:
        """Measure the blocks of a call on made-up operands; the seconds of transfers are those that
        the link promises."""
        file, whole, run_alone = NoFile(), self.whole, profiled
        if isinstance(whole.target, Update):
            whole = replace(whole, target=whole.target.trial())
            run_alone = partial(profiled_update, whole.target)
        arguments, keywords = stand_ins(call, captured, lambda view: SlowTensor(view, file, 0))

        def run() -> Any:
            file.read_bytes = file.written_bytes = 0
            return self.run(whole, *arguments, **keywords)

        profile = run_alone(run, call.results)
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

    def __call__(self, call: Call, slow: Slow, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Run the call; its results in fast memory."""
        made = [
            empty(view) if view and (there is None or dim == SUM) else None
            for there, view, dim in zip(slow, call.results, self.cut.results, strict=True)
        ]
        held = self._operands(None, arguments, keywords)
        for start, length in blocks(self.cut.length(call), self.pieces):
            given, named = self._operands((start, length), *held)
            given = self.cut.sized(given, length)
            if self.inner is not None:
                part = self.cut.block(call, length)
                out = self.inner(part, [None] * len(slow), *given, **named)
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
        there: Any,
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

    def _operands(self, block: tuple[int, int] | None, arguments: Any, keywords: Any) -> Any:
        """The operands of one block, in fast memory; without a ``block`` all operands, with those
        in fast memory of which each block needs all."""
        number = itertools.count()

        def operand(leaf: Any) -> Any:
            if not _is_tensor(leaf):
                return leaf
            i = next(number)
            dim, unread = self.cut.operands[i], i in self.cut.unread
            if block is None:
                return fast(leaf) if dim == WHOLE and not unread and not self.inner else leaf
            part = leaf if dim == WHOLE else leaf.narrow(dim, *block)
            if unread:
                return torch.empty(1, dtype=part.dtype).expand(part.shape)
            return part if self.inner else fast(part)

        return tree_map(operand, (arguments, keywords), is_leaf=_is_tensor)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor | SlowTensor)


_IGNORED = -100
"""A class that no row has."""


def picked_rows(
    pieces: int, call: Call, slow: Slow, table: Any, indices: torch.Tensor, *_: Any
) -> tuple[Any, ...]:
    """``embedding`` of a table in the slow memory, in blocks of its rows."""
    result = empty(call.results[0])
    for start, length in blocks(table.shape[0], pieces):
        block = fast(table.narrow(0, start, length))
        there = (indices >= start) & (indices < start + length)
        rows = torch.nn.functional.embedding((indices - start).clamp_(0, length - 1), block)
        torch.where(there.unsqueeze(-1), rows, result, out=result)
        del block, rows
    return (result,)


def added_rows(pieces: int, call: Call, slow: Slow, *arguments: Any) -> tuple[Any, ...]:
    """``embedding_dense_backward``, in blocks of the table's rows: every row adds up in the same
    order as in the whole kernel."""
    gradient, indices, rows, padding, _ = arguments
    for start, length in blocks(rows, pieces):
        left_out = (indices < start) | (indices >= start + length) | (indices == padding)
        inside = torch.where(left_out, length, indices - start)
        block = torch.ops.aten.embedding_dense_backward(gradient, inside, length + 1, length, False)
        slow[0].narrow(0, start, length).write(block.narrow(0, 0, length))
        del block
    return (None,)


def picked_scores(pieces: int, call: Call, slow: Slow, *arguments: Any) -> tuple[Any, ...]:
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


def in_zeros(pieces: int, call: Call, slow: Slow, *arguments: Any) -> tuple[Any, ...]:
    """``slice_backward``, in blocks of the dimension that was sliced: zeros around what is
    given."""
    given, sizes, dim, first, *_ = arguments
    for start, length in blocks(sizes[dim], pieces):
        low, high = max(start, first), min(start + length, first + given.shape[dim])
        there = slow[0].narrow(dim, start, length)
        block = torch.zeros(there.shape, dtype=there.dtype)
        if high > low:
            block.narrow(dim, low - start, high - low).copy_(
                fast(given.narrow(dim, low - first, high - low))
            )
        there.write(block)
        del block
    return (None,)


def updated_rows(pieces: int, call: Call, slow: Slow, *arguments: Any) -> tuple[Any, ...]:
    """An elementwise optimizer's step in blocks of the parameter's rows; the same to the bit as on
    the whole."""
    call.target.in_blocks(arguments, blocks(arguments[0].shape[0], pieces))
    return (None,) * len(slow)

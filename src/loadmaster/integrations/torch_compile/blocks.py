"""Kernels that run block by block: reads blocks of operands that rest in the slow memory, and
writes blocks of results there.

`rests` decides which storages rest in the slow memory for good, and cuts every kernel that uses one
of them. A storage can rest there only if each kernel that uses it can be cut; where one cannot, the
smallest of its storages does not. Each kernel is cut along whichever dimension suits it: blocks are
read from the slow memory in any order, so that no two kernels need to agree.

All memory that such a kernel takes is asked of PyTorch's allocator in the same order every time, so
a plan has a place for each block, as for any temporary. Its time is that of its computations,
measured like any other's, and what the link needs for the bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.captured import Call, Captured, Owner, View, views
from loadmaster.integrations.torch_compile.cuts import SUM, WHOLE, Cut, cuts_of
from loadmaster.integrations.torch_compile.kernel_profile import (
    CallProfile,
    profiled,
    profiled_update,
    stand_ins,
)
from loadmaster.integrations.torch_compile.slow_tensor import (
    NoFile,
    SlowTensor,
    blocks,
    fast,
    narrowed,
    parts,
)
from loadmaster.integrations.torch_compile.updates import Traced, Update, is_elementwise
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
        return repr(self.run), getattr(self.whole.target, "likeness", self.whole.target)

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
            view.empty() if view and (there is None or dim == SUM) else None
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
    result = call.results[0].empty()
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


_SUMMED = 4
"""Bytes of the shortest numbers that add up block by block: shorter ones would be rounded at every
block."""
_STRETCH = 2
"""Blocks of one element of the dimension that is cut may take this times that; not of products."""
_PRODUCTS = ("aten.mm", "aten.addmm")
_SEEK = 128 << 10
"""What a separate read costs, in bytes that could be read meanwhile."""
_SUMS = 2
"""Sums are whole unless that costs more than this times what sums in parts cost."""
_MOST = 256
"""Most blocks of a kernel: more take longer than what they compute."""
_UPDATED_AT_ONCE = 10
"""Blocks of an update in memory at once: operands, and what an optimizer computes beside them."""


def rests(
    captured: Traced, movable: frozenset[int], wanted: Iterable[int], room: int, link: CopyLink
) -> Traced:
    """Let those of the ``wanted`` storages rest in the slow memory that can, with kernels cut into
    blocks of at most ``room`` bytes.

    ``movable`` are the caller's storages, and gradients, that may leave the fast memory.
    """
    storages = captured.storages
    streamed = frozenset(s for s in wanted if storages[s].owner is Owner.PLAN or s in movable)
    known: dict[tuple[int, frozenset[int]], Call | None] = {}
    while True:
        calls: list[Any] = []
        stuck = set()
        for call in captured.calls:
            away = streamed.intersection(call.storages)
            key = id(call), away
            if key not in known:
                known[key] = _in_blocks(call, away, room, link) if away else call
            calls.append(known[key])
            if known[key] is None:
                stuck.add(min(away, key=lambda s: (storages[s].bytes, s)))
        if not stuck:
            return replace(captured, calls=calls, streamed=streamed)
        streamed -= stuck


def _in_blocks(call: Call, streamed: frozenset[int], room: int, link: CopyLink) -> Call | None:
    """The call cut into blocks; None if it cannot be cut so that the streamed storages rest."""
    run = _blocks_of(call, streamed, room)
    if run is None:
        return None
    slow = [
        view if isinstance(view, View) and view.storage in streamed else None
        for view in call.results
    ]
    return replace(call, target=BlockCall(call, run, link), arguments=(slow, *call.arguments))


def _blocks_of(call: Call, streamed: frozenset[int], room: int) -> Blocks | None:
    if isinstance(call.target, Update):
        # Each element by itself, in the same order of rows for all operands.
        parameter, forms = call.arguments[0], {view[2:4] for view in call.arguments}
        if not is_elementwise(call.target.optimizer) or len(forms) > 1 or not parameter.size:
            return None
        pieces = math.ceil(_UPDATED_AT_ONCE * parameter.bytes / room)
        return partial(updated_rows, min(pieces, parameter.size[0], _MOST))
    if set(call.writes).intersection(call.reads):
        return None
    if call.kind in _SPECIAL:
        run, rule = _SPECIAL[call.kind]
        bytes, length = rule(call, streamed)
        pieces = math.ceil(bytes / room)
        return partial(run, pieces) if pieces <= min(length, _MOST) else None
    product = call.kind in _PRODUCTS
    found: list[tuple[int, Slices]] = []
    for most in (room,) if product else (room, _STRETCH * room):
        ways = (_slices(call, cut, streamed, room, most) for cut in cuts_of(call))
        found = found or [
            (_reads(call, way, streamed) + _writes(call, way, streamed), way)
            for way in ways
            if way is not None
        ]
    if product or not found:
        found += _nested(call, streamed, room)
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _nested(call: Call, streamed: frozenset[int], room: int) -> Iterator[tuple[int, Slices]]:
    """Blocks in blocks along two cuts that take ``room``, with what they cost."""
    inside = streamed.difference(call.writes)
    for outer in cuts_of(call):
        whole = outer.length(call) if SUM not in outer.results else 0
        for pieces in (2**i for i in range(1, min(whole, _MOST).bit_length())):
            block = outer.block(call, -(-whole // pieces))
            left = max(room - sum(view.bytes for view in block.results if view is not None), 1)
            for inner in cuts_of(block):
                way = _slices(block, inner, inside, left, left)
                if way is not None and pieces * way.pieces <= _MOST:
                    both = Slices(outer, pieces, way)
                    reads = pieces * _reads(block, way, inside)
                    yield reads + _writes(call, both, streamed), both


def _slices(call: Call, cut: Cut, streamed: frozenset[int], room: int, most: int) -> Slices | None:
    """Blocks along a cut that take ``room``, with what all of them need, or ``most``; None if that
    is not possible."""
    made = [(v, d) for v, d in zip(call.results, cut.results, strict=True) if v is not None]
    tensors = [(view, dim) for view, dim in _with_dims(call, cut) if view.storage in streamed]
    tensors += made
    held = sum(view.bytes for view, dim in tensors if dim == WHOLE)
    # A part of a sum is beside the sum, but for products.
    beside = call.kind != "aten.mm"
    sums = [view for view, dim in made if dim == SUM]
    held += sum(view.bytes * ((view.storage in streamed) + beside) for view in sums)
    cutting = sum(view.bytes for view, dim in tensors if dim >= 0)
    if held >= room or any(view.dtype.itemsize < _SUMMED for view in sums):
        return None
    pieces = min(max(math.ceil(cutting / (room - held)), 1), cut.length(call))
    return Slices(cut, pieces) if pieces <= _MOST and held + cutting / pieces <= most else None


def _reads(call: Call, way: Slices, streamed: frozenset[int]) -> int:
    """Bytes that all blocks read, and what separate reads cost."""
    moved = sum(
        times * (part.bytes + _SEEK * parts(part, True))
        for part, times in _parts(call, way, _with_dims(call, way.cut), streamed)
    )
    return moved * (_SUMS if SUM in way.cut.results and call.kind in _PRODUCTS else 1)


def _writes(call: Call, way: Slices, streamed: frozenset[int]) -> int:
    """What separate writes cost: they read the pages at their ends, too."""
    pairs = zip(call.results, way.cut.results, strict=True)
    made = ((view, dim) for view, dim in pairs if view is not None)
    return sum(
        times * 3 * _SEEK * parts(part, False) for part, times in _parts(call, way, made, streamed)
    )


def _parts(
    call: Call, way: Slices, tensors: Iterable[tuple[View, int]], streamed: frozenset[int]
) -> Iterator[tuple[View, int]]:
    """What a block has of each streamed tensor, and how often it is moved."""
    length = -(-way.cut.length(call) // way.pieces)
    for view, dim in tensors:
        if view.storage in streamed:
            cut = dim >= 0
            yield narrowed(view, dim, 0, length) if cut else view, way.pieces if cut else 1


def _with_dims(call: Call, cut: Cut) -> Iterator[tuple[View, int]]:
    """Operands that are read, each with its dimension of the cut."""
    operands = enumerate(zip(views((call.arguments, call.keywords)), cut.operands, strict=True))
    return (one for i, one in operands if i not in cut.unread)


def _picked_rows(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    """Bytes of what is cut, and the length of the dimension, here as in the next rules; 0 if the
    call cannot be cut."""
    (table, indices), result = call.arguments[:2], call.results[0]
    return table.bytes, 0 if {indices.storage, result.storage} & streamed else table.size[0]


def _added_rows(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    gradient, indices, rows, _, scaled = call.arguments
    stuck = scaled or {gradient.storage, indices.storage} & streamed
    return 2 * call.results[0].bytes, 0 if stuck else rows


def _picked_scores(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    scores, classes, weight, reduction, _ = call.arguments
    stuck = weight is not None or len(scores.size) != 2 or classes.storage in streamed
    return scores.bytes, 0 if stuck or reduction == 0 else scores.size[0]


def _in_zeros(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    (given, sizes, dim, start, _, step), result = call.arguments, call.results[0]
    able = result.storage in streamed and step == 1 and start >= 0 and given.size[dim]
    return 2 * result.bytes, sizes[dim] if able and not call.keywords else 0


_SPECIAL: dict[str, tuple[Any, Any]] = {
    "aten.embedding": (picked_rows, _picked_rows),
    "aten.embedding_dense_backward": (added_rows, _added_rows),
    "aten.nll_loss_forward": (picked_scores, _picked_scores),
    "aten.slice_backward": (in_zeros, _in_zeros),
}
"""Calls that `axes` does not describe: what runs their blocks, and the rule."""

"""Kernels that run block by block: they read blocks of operands from slow memory, and write blocks
of results there.

`stream_storages` chooses the storages that are streamed, which means that they stay in slow memory,
and cuts every kernel that uses one of them. A storage can be streamed only if all kernels that use
it can be cut; for a kernel that cannot, its smallest streamed storage is not streamed. Each kernel
is cut along its own best dimension, because blocks can be read from slow memory in any order.

Such a kernel allocates its blocks from PyTorch's allocator in the same order every time, so a plan
has an address for each block, as for any temporary. Its time is the measured time of its
computations, plus the time of the link for its bytes.
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

from loadmaster.integrations.torch_compile.captured import Call, Captured, Owner, View
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
"""For each result of a call, its `SlowTensor`, or None if the result is in fast memory."""
Blocks = Callable[..., tuple[Any, ...]]
"""Function that runs a call in blocks: given the call, its slow results, arguments and keywords, it
returns the results in fast memory."""


@dataclass(frozen=True, eq=False)
class BlockCall:
    """The target of a call that runs block by block.

    Its first argument is the list of results in slow memory (`Slow`); the others are the arguments
    of ``whole``.
    """

    whole: Call
    run: Blocks
    link: CopyLink

    def __str__(self) -> str:
        return f"{self.whole.kind}, in blocks"

    def __call__(self, slow: Slow, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Run all blocks and return the results in fast memory, None for the others."""
        return self.run(self.whole, slow, *arguments, **keywords)

    @property
    def signature(self) -> Any:
        """Key that is equal for targets with the same profile."""
        return repr(self.run), getattr(self.whole.target, "signature", self.whole.target)

    def profile(self, call: Call, captured: Captured) -> CallProfile:
        """Measure the blocks of a call on stand-in operands; the seconds of transfers are
        calculated from the link's bandwidths and the latency of each."""
        whole, run_alone = self.whole, profiled
        if isinstance(whole.target, Update):
            whole = replace(whole, target=whole.target.trial())
            run_alone = partial(profiled_update, whole.target)
        file = NoFile()
        arguments, keywords = stand_ins(call, captured, lambda view: SlowTensor(view, file, 0))

        def run() -> Any:
            """Run all blocks, and count what the file does."""
            file.reset()
            return self.run(whole, *arguments, **keywords)

        profile = run_alone(run, call.results)
        read = file.read_bytes + file.calls * _SEEK_BYTES
        seconds = read / self.link.to_fast + file.written_bytes / self.link.to_slow
        return replace(
            profile,
            seconds=profile.seconds + seconds,
            transferred=file.read_bytes + file.written_bytes,
        )


def update_of(call: Call) -> Update | None:
    """Return the optimizer's update that a call makes, whole or in blocks."""
    target = call.target.whole.target if isinstance(call.target, BlockCall) else call.target
    return target if isinstance(target, Update) else None


@dataclass(frozen=True)
class Slices:
    """Runs a call in ``pieces`` blocks along the dimensions of ``cut``, each again in blocks of
    ``inner`` if it is not None. Operands that all blocks need are read once."""

    cut: Cut
    pieces: int
    inner: Slices | None = None

    def __call__(self, call: Call, slow: Slow, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        """Run the call and return its results in fast memory, None for the others."""
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
            outs = out if isinstance(out, tuple | list) else (out,)
            for value, there, whole, dim in zip(outs, slow, made, self.cut.results, strict=True):
                if value is None or (dim == WHOLE and start):
                    continue
                if there is not None and dim != SUM:
                    (there if dim == WHOLE else there.narrow(dim, start, length)).write(value)
                elif whole is not None and dim == SUM and start:
                    whole.add_(value)
                elif whole is not None:
                    (whole if dim < 0 else whole.narrow(dim, start, length)).copy_(value)
            del out, outs, value
        for there, whole in zip(slow, made, strict=True):
            if there is not None and whole is not None:
                there.write(whole)
        return tuple(None if there else whole for there, whole in zip(slow, made, strict=True))

    def _operands(self, block: tuple[int, int] | None, arguments: Any, keywords: Any) -> Any:
        """Return the arguments and keywords with operands of one block (start, length) in fast
        memory. With None, return all operands, those that all blocks need in fast memory."""
        number = itertools.count()

        def operand(leaf: Any) -> Any:
            """Return the block of an operand, in fast memory; an empty stand-in if the call does
            not read it."""
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
    """Whether an operand is a tensor in either memory."""
    return isinstance(leaf, torch.Tensor | SlowTensor)


_IGNORED_CLASS = -100
"""Class index of rows that the loss ignores."""


def picked_rows(
    pieces: int, call: Call, slow: Slow, table: Any, indices: torch.Tensor, *_: Any
) -> tuple[Any, ...]:
    """Run ``embedding`` with a table in slow memory, in blocks of its rows."""
    result, rows = call.results[0].empty(), table.shape[0]
    _require_below(rows, indices, "index out of range in self")
    for start, length in blocks(rows, pieces):
        block = fast(table.narrow(0, start, length))
        there = (indices >= start) & (indices < start + length)
        found = torch.nn.functional.embedding((indices - start).clamp_(0, length - 1), block)
        torch.where(there.unsqueeze(-1), found, result, out=result)
        del block, found
    return (result,)


def _require_below(count: int, indices: torch.Tensor, message: str) -> None:
    """Raise IndexError, as PyTorch does, for the first index that is not in [0, count)."""
    wrong = indices[(indices < 0) | (indices >= count)]
    if wrong.numel():
        raise IndexError(message.format(int(wrong[0])))


def added_rows(pieces: int, call: Call, slow: Slow, *arguments: Any) -> tuple[Any, ...]:
    """Run ``embedding_dense_backward`` in blocks of the table's rows; each row is summed in the
    same order as in the whole kernel."""
    gradient, indices, rows, padding, _ = arguments
    for start, length in blocks(rows, pieces):
        left_out = (indices < start) | (indices >= start + length) | (indices == padding)
        inside = torch.where(left_out, length, indices - start)
        block = torch.ops.aten.embedding_dense_backward(gradient, inside, length + 1, length, False)
        slow[0].narrow(0, start, length).write(block.narrow(0, 0, length))
        del block
    return (None,)


def picked_scores(pieces: int, call: Call, slow: Slow, *arguments: Any) -> tuple[Any, ...]:
    """Run ``nll_loss_forward`` with scores in slow memory: gather the score of each row's class in
    blocks of rows, then compute the loss of the gathered scores."""
    scores, classes, weight, reduction, ignored = arguments
    picked = torch.empty((scores.shape[0], 1), dtype=scores.dtype)
    counts = classes != ignored
    _require_below(scores.shape[1], classes[counts], "Target {} is out of bounds.")
    for start, length in blocks(scores.shape[0], pieces):
        block = fast(scores.narrow(0, start, length))
        mine = torch.where(counts, classes, 0).narrow(0, start, length).unsqueeze(1)
        torch.gather(block, 1, mine, out=picked.narrow(0, start, length))
        del block
    out = call.target(
        picked, torch.where(counts, 0, _IGNORED_CLASS), weight, reduction, _IGNORED_CLASS
    )
    return tuple(out)


def in_zeros(pieces: int, call: Call, slow: Slow, *arguments: Any) -> tuple[Any, ...]:
    """Run ``slice_backward`` (zeros around the given gradient) in blocks of the sliced
    dimension."""
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
    """Run an elementwise optimizer's step in blocks of the parameter's rows, bit for bit equal to
    the whole step."""
    call.target.in_blocks(arguments, blocks(arguments[0].shape[0], pieces))
    return (None,) * len(slow)


_LEAST_SUM_ITEMSIZE = 4
"""Least bytes of an element that is summed over blocks; shorter floating-point numbers would be
rounded after every block."""
_RELAXATION = 2
"""Factor by which blocks of kernels other than products may exceed the room, if no cut keeps
it."""
_PRODUCTS = ("aten.mm", "aten.addmm")
_SEEK_BYTES = 128 << 10
"""Latency of a separate read, in bytes that could be read in that time."""
_SUM_PENALTY = 2
"""Factor on the reads of a product that is cut along its reduction, which is the slower cut."""
_MOST = 256
"""Most blocks of a kernel; with more, overhead exceeds computation."""
_MOST_TRANSFERS = 2**14
"""Most separate reads and writes of a kernel, some 50 us each."""
_UPDATE_BLOCKS = 10
"""Blocks of an update in memory at once: its operands, and the optimizer's temporaries."""


def stream_storages(
    captured: Traced, movable: frozenset[int], wanted: Iterable[int], room: int, link: CopyLink
) -> Traced:
    """Return the graph with as many of the ``wanted`` storages streamed as possible, and the
    kernels that use them cut into blocks of at most ``room`` bytes.

    ``movable`` are the caller's storages, and gradients, that may leave fast memory.
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
    """Return the call cut into blocks of at most ``room`` bytes of the streamed storages; None if
    it cannot be cut so."""
    run = _blocks_of(call, streamed, room)
    if run is None:
        return None
    slow = [
        view if isinstance(view, View) and view.storage in streamed else None
        for view in call.results
    ]
    return replace(call, target=BlockCall(call, run, link), arguments=(slow, *call.arguments))


def _blocks_of(call: Call, streamed: frozenset[int], room: int) -> Blocks | None:
    """Return how to run a call in blocks that fit into ``room`` bytes, with the fewest bytes moved;
    None if it cannot be."""
    if isinstance(call.target, Update):
        # All operands must have the same shape and layout.
        parameter, forms = call.arguments[0], {view[2:4] for view in call.arguments}
        if not is_elementwise(call.target.optimizer) or len(forms) > 1 or not parameter.size:
            return None
        pieces = math.ceil(_UPDATE_BLOCKS * parameter.bytes / room)
        return partial(updated_rows, min(pieces, parameter.size[0], _MOST))
    if set(call.writes).intersection(call.reads):
        return None
    if call.kind in _SPECIAL_CALLS:
        run, rule = _SPECIAL_CALLS[call.kind]
        bytes, length = rule(call, streamed)
        pieces = math.ceil(bytes / room)
        return partial(run, pieces) if pieces <= min(length, _MOST) else None
    product = call.kind in _PRODUCTS
    found: list[tuple[int, Slices]] = []
    for most in (room,) if product else (room, _RELAXATION * room):
        ways = (_slices(call, cut, streamed, room, most) for cut in cuts_of(call))
        made = ((*_transfers(call, way, streamed), way) for way in ways if way is not None)
        found = found or [(cost, way) for cost, number, way in made if number <= _MOST_TRANSFERS]
    if product or not found:
        found += _nested(call, streamed, room)
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _nested(call: Call, streamed: frozenset[int], room: int) -> Iterator[tuple[int, Slices]]:
    """Yield nested blocks along two cuts that take at most ``room`` bytes, with their costs in
    bytes."""
    inside = streamed.difference(call.writes)
    for outer in cuts_of(call):
        whole = outer.length(call) if SUM not in outer.results else 0
        for pieces in (2**i for i in range(1, min(whole, _MOST).bit_length())):
            block = outer.block(call, -(-whole // pieces))
            left = max(room - sum(view.bytes for view in block.results if view is not None), 1)
            for inner in cuts_of(block):
                way = _slices(block, inner, inside, left, left)
                if way is None or pieces * way.pieces > _MOST:
                    continue
                cost, number = _transfers(block, way, inside)
                if pieces * number <= _MOST_TRANSFERS:
                    both = Slices(outer, pieces, way)
                    written, _ = _transfers(call, both, streamed.intersection(call.writes))
                    yield pieces * cost + written, both


def _slices(call: Call, cut: Cut, streamed: frozenset[int], room: int, most: int) -> Slices | None:
    """Return blocks along a cut, as many as let them and the operands needed by all blocks take
    ``room`` bytes; None if even the most blocks take more than ``most`` bytes."""
    made = _made(call, cut)
    tensors = [(view, dim) for view, dim in _with_dims(call, cut) if view.storage in streamed]
    tensors += made
    held = sum(view.bytes for view, dim in tensors if dim == WHOLE)
    # Partial sums take memory beside the sum, except for products, which add to the sum in place.
    beside = call.kind != "aten.mm"
    sums = [view for view, dim in made if dim == SUM]
    held += sum(view.bytes * ((view.storage in streamed) + beside) for view in sums)
    cutting = sum(view.bytes for view, dim in tensors if dim >= 0)
    if held >= room or any(view.dtype.itemsize < _LEAST_SUM_ITEMSIZE for view in sums):
        return None
    pieces = max(min(math.ceil(cutting / (room - held)), cut.length(call)), 1)
    return Slices(cut, pieces) if pieces <= _MOST and held + cutting / pieces <= most else None


def _transfers(call: Call, way: Slices, streamed: frozenset[int]) -> tuple[int, int]:
    """Return the cost in bytes of all blocks' reads and writes of streamed storages, and their
    number.

    A read costs its bytes and the latency of separate reads; a write the latency of reading the
    pages at its two ends and of writing.
    """
    length = -(-way.cut.length(call) // way.pieces)
    penalty = _SUM_PENALTY if SUM in way.cut.results and call.kind in _PRODUCTS else 1
    cost = number = 0
    for reads, tensors in ((True, _with_dims(call, way.cut)), (False, _made(call, way.cut))):
        for view, dim in tensors:
            if view.storage not in streamed:
                continue
            part, times = (narrowed(view, dim, 0, length), way.pieces) if dim >= 0 else (view, 1)
            separate = parts(part, gaps=reads)
            number += times * separate
            latency = _SEEK_BYTES * separate
            cost += times * (penalty * (part.bytes + latency) if reads else 3 * latency)
    return cost, number


def _made(call: Call, cut: Cut) -> list[tuple[View, int]]:
    """Return the results that are made, each with its dimension of the cut."""
    pairs = zip(call.results, cut.results, strict=True)
    return [(view, dim) for view, dim in pairs if view is not None]


def _with_dims(call: Call, cut: Cut) -> Iterator[tuple[View, int]]:
    """Return the operands that are read, each with its dimension of the cut."""
    operands = enumerate(zip(call.operands, cut.operands, strict=True))
    return (one for i, one in operands if i not in cut.unread)


def _picked_rows(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    """Return the bytes of the tensor that `picked_rows` cuts, and the length of the dimension; 0 if
    the call cannot be cut."""
    (table, indices), result = call.arguments[:2], call.results[0]
    return table.bytes, 0 if {indices.storage, result.storage} & streamed else table.size[0]


def _added_rows(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    """Return the same for `added_rows`."""
    gradient, indices, rows, _, scaled = call.arguments
    stuck = scaled or {gradient.storage, indices.storage} & streamed
    return 2 * call.results[0].bytes, 0 if stuck else rows


def _picked_scores(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    """Return the same for `picked_scores`."""
    scores, classes, weight, reduction, _ = call.arguments
    stuck = weight is not None or len(scores.size) != 2 or classes.storage in streamed
    return scores.bytes, 0 if stuck or reduction == 0 else scores.size[0]


def _in_zeros(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    """Return the same for `in_zeros`."""
    (given, sizes, dim, start, _, step), result = call.arguments, call.results[0]
    able = result.storage in streamed and step == 1 and start >= 0 and given.size[dim]
    return 2 * result.bytes, sizes[dim] if able and not call.keywords else 0


_SPECIAL_CALLS: dict[str, tuple[Any, Any]] = {
    "aten.embedding": (picked_rows, _picked_rows),
    "aten.embedding_dense_backward": (added_rows, _added_rows),
    "aten.nll_loss_forward": (picked_scores, _picked_scores),
    "aten.slice_backward": (in_zeros, _in_zeros),
}
"""Calls that no rule of `cuts` describes: the function that runs their blocks, and the rule that
returns the bytes and the length of the cut dimension."""

"""Decides which storages rest in the slow memory for good, and cuts every kernel that uses one of
them.

A storage can rest there only if each kernel that uses it can be cut; where one cannot, the smallest
of its storages does not. Each kernel is cut along whichever dimension suits it: blocks are read
from the slow memory in any order, so that no two kernels need to agree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from loadmaster.integrations.torch_compile.captured import (
    Call,
    Owner,
    View,
    views,
)
from loadmaster.integrations.torch_compile.cutting.axes import SUM, WHOLE, Cut, cuts_of
from loadmaster.integrations.torch_compile.cutting.block_call import (
    BlockCall,
    Blocks,
    Slices,
    added_rows,
    in_zeros,
    picked_rows,
    picked_scores,
    updated_rows,
)
from loadmaster.integrations.torch_compile.slow_tensor import narrowed, parts
from loadmaster.integrations.torch_compile.updates import Traced, Update, is_elementwise
from loadmaster.placement.sequence import CopyLink

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

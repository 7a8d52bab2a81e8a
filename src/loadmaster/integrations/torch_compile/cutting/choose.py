"""Decides which storages rest in the slow memory for good, and cuts every kernel that uses one of
them.

A storage can rest there only if each kernel that uses it can be cut; where one cannot, the smallest
of its storages does not. Each kernel is cut along whichever dimension suits it: blocks are read
from the slow memory in any order, so that no two kernels need to agree.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch.utils._pytree import tree_map

from loadmaster.core.arrays import Ints
from loadmaster.integrations.torch_compile.captured import (
    Call,
    Owner,
    View,
    is_view,
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
from loadmaster.integrations.torch_compile.devices.cpu_memory import DeviceMemory
from loadmaster.integrations.torch_compile.kernel_profile import CallProfiles
from loadmaster.integrations.torch_compile.persistent import SMALLEST
from loadmaster.integrations.torch_compile.slow_tensor import narrowed, parts
from loadmaster.integrations.torch_compile.updates import Traced, Update, is_elementwise
from loadmaster.placement.sequence import CopyLink

aten: Any = torch.ops.aten


_SHARES = (1.0, 0.7, 0.5, 0.35)
"""Fractions of the budget: kernels that need more are cut, the smaller fractions where the larger
ones do not help."""
_LEAST_BLOCK = 64 << 10
"""A transfer of less takes a disk as long as one of this."""
_BLOCKS = 4
"""A cut kernel's blocks take a fourth of that."""
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
_LEAST = 16
"""Operands of at least a sixteenth of that rest in the slow memory."""
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
    users: dict[int, list[Call]] = defaultdict(list)
    for call in captured.calls:
        for s in {*call.reads, *call.writes}:
            users[s].append(call)
    known: dict[tuple[int, frozenset[int]], Call | None] = {}

    def resting(call: Call) -> frozenset[int]:
        return streamed.intersection((*call.reads, *call.writes))

    def in_blocks(call: Call) -> Call | None:
        key = id(call), resting(call)
        if key not in known:
            known[key] = _in_blocks(call, key[1], room, link)
        return known[key]

    while True:
        using = {id(call): call for s in streamed for call in users[s]}
        calls = {key: in_blocks(call) for key, call in using.items()}
        stuck = [resting(using[key]) for key, call in calls.items() if call is None]
        if not stuck:
            break
        streamed -= {min(some, key=lambda s: (storages[s].bytes, s)) for some in stuck}
    return replace(
        captured, calls=[calls.get(id(call)) or call for call in captured.calls], streamed=streamed
    )


def levels(budget: int) -> list[tuple[int, int, int]]:
    """Ever finer cuts: the bytes from which on a kernel is cut, the least bytes of operands that
    then rest, and the room for blocks.

    None of which blocks would be too small to be worth a transfer.
    """
    limits = [int(budget * share) for share in _SHARES]
    return [
        (limit, limit // _LEAST, limit // _BLOCKS)
        for limit in limits
        if limit // _BLOCKS >= _LEAST_BLOCK
    ]


def too_large(captured: Traced, limit: int) -> set[int]:
    """Storages of calls whose operands alone take more than ``limit`` bytes."""
    found: set[int] = set()
    for call in captured.calls:
        if captured.operand_bytes(call) > limit:
            found |= {*call.reads, *call.writes}
    return found


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
        pieces = math.ceil(_UPDATED_AT_ONCE * _bytes(parameter) / room)
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
            left = max(room - sum(_bytes(view) for view in block.results if view is not None), 1)
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
    held = sum(_bytes(view) for view, dim in tensors if dim == WHOLE)
    # A part of a sum is beside the sum, but for products.
    beside = call.kind != "aten.mm"
    sums = [view for view, dim in made if dim == SUM]
    held += sum(_bytes(view) * ((view.storage in streamed) + beside) for view in sums)
    cutting = sum(_bytes(view) for view, dim in tensors if dim >= 0)
    if held >= room or any(view.dtype.itemsize < _SUMMED for view in sums):
        return None
    pieces = min(max(math.ceil(cutting / (room - held)), 1), cut.length(call))
    return Slices(cut, pieces) if pieces <= _MOST and held + cutting / pieces <= most else None


def _reads(call: Call, way: Slices, streamed: frozenset[int]) -> int:
    """Bytes that all blocks read, and what separate reads cost."""
    moved = sum(
        times * (_bytes(part) + _SEEK * parts(part, True))
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


def _bytes(view: Any) -> int:
    return int(math.prod(view.size) * view.dtype.itemsize)


def _picked_rows(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    """Bytes of what is cut, and the length of the dimension, here as in the next rules; 0 if the
    call cannot be cut."""
    (table, indices), result = call.arguments[:2], cast(View, call.results[0])
    return _bytes(table), 0 if {indices.storage, result.storage} & streamed else table.size[0]


def _added_rows(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    gradient, indices, rows, _, scaled = call.arguments
    stuck = scaled or {gradient.storage, indices.storage} & streamed
    return 2 * _bytes(call.results[0]), 0 if stuck else rows


def _picked_scores(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    scores, classes, weight, reduction, _ = call.arguments
    stuck = weight is not None or len(scores.size) != 2 or classes.storage in streamed
    return _bytes(scores), 0 if stuck or reduction == 0 else scores.size[0]


def _in_zeros(call: Call, streamed: frozenset[int]) -> tuple[int, int]:
    (given, sizes, dim, start, _, step), result = call.arguments, cast(View, call.results[0])
    able = result.storage in streamed and step == 1 and start >= 0 and given.size[dim]
    return 2 * _bytes(result), sizes[dim] if able and not call.keywords else 0


_SPECIAL: dict[str, tuple[Any, Any]] = {
    "aten.embedding": (picked_rows, _picked_rows),
    "aten.embedding_dense_backward": (added_rows, _added_rows),
    "aten.nll_loss_forward": (picked_scores, _picked_scores),
    "aten.slice_backward": (in_zeros, _in_zeros),
}
"""Calls that `axes` does not describe: what runs their blocks, and the rule."""


_OVERLOADS = {
    "default": """
        relu gelu silu sigmoid tanh hardtanh hardswish hardsigmoid leaky_relu elu exp log sqrt rsqrt
        reciprocal neg abs sin cos erf clamp clamp_min clamp_max maximum minimum addcmul addcdiv
        threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward
        hardtanh_backward hardswish_backward hardsigmoid_backward leaky_relu_backward
        _native_batch_norm_legit_no_training
    """,
    "Tensor_Scalar": "pow",
    "Tensor Scalar": "add sub mul div",
    "self": "where",
}
IN_PLACE: frozenset[Any] = frozenset(
    getattr(getattr(aten, packet), overload)
    for overloads, packets in _OVERLOADS.items()
    for packet in packets.split()
    for overload in overloads.split()
)
"""Operators whose first result may take the place of any operand of its type and layout: they pass
over the elements once. The gradients of normalisation are not among them, as PyTorch has a way to
compute those in two passes, the first of which writes."""


def in_place(captured: Traced) -> Traced:
    """Let results take the place of operands, wherever a call is the last that needs the operand.
    O(uses of storages).

    Calls and storages keep their numbers; a storage whose place was not needed is used by no call.
    """
    last = {s: k for k, call in enumerate(captured.calls) for s in (*call.reads, *call.writes)}
    boundary = captured.parts[0].end
    for view in views([part.returned for part in captured.parts]):
        # What the first part saves is needed by the second.
        last[view.storage] = max(last.get(view.storage, 0), boundary)
    place: dict[int, int] = {}

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, View):
            return leaf
        return leaf._replace(storage=place.get(leaf.storage, leaf.storage))

    def renamed(values: Any) -> Any:
        return tree_map(moved, values, is_leaf=is_view)

    def renamed_call(call: Call) -> Call:
        arguments, keywords, results = renamed((call.arguments, call.keywords, call.results))
        used = call.reads, call.writes
        reads, writes = (tuple(dict.fromkeys(place.get(s, s) for s in some)) for some in used)
        return Call(call.name, call.target, arguments, keywords, results, reads, writes)

    calls = []
    for k, call in enumerate(map(renamed_call, captured.calls)):
        operand = next((s for s in _dying(captured, call) if last[s] <= k), None)
        if operand is not None:
            result = call.results[0].storage  # type: ignore[union-attr]
            place[result], last[operand] = operand, last.get(result, k)
            call = replace(renamed_call(call), in_place=True)
        calls.append(call)
    parts = tuple(
        replace(part, returned=renamed(part.returned), given=renamed(part.given))
        for part in captured.parts
    )
    return replace(captured, calls=calls, parts=parts)


def _dying(captured: Traced, call: Call) -> Iterator[int]:
    """Operands whose place the first result of a call can take, if nobody needs them any more."""
    result = call.results[0] if call.target in IN_PLACE else None
    if result is None or not _alone(captured, result):
        return
    operands = list(views((call.arguments, call.keywords)))
    for operand in operands:
        if (
            operand[1:] == result[1:]
            and all(other == operand for other in operands if other.storage == operand.storage)
            and _alone(captured, operand)
            and operand.storage not in call.writes
        ):
            yield operand.storage


def _alone(captured: Traced, view: View) -> bool:
    """Whether a tensor is all of a storage of the plan's own, in the arena."""
    whole = captured.storages[view.storage].bytes == _bytes(view) > 0
    return whole and captured.is_planned(view) and view.storage not in captured.streamed


_ABOUT = 1.05
"""A budget that is a share is not known before the workspaces of kernels are: they may make it
larger by this."""


class Versions:
    """Versions of one graph, each profiled once.

    Parameters
    ----------
    graph
        The graph before it is profiled.
    movable
        The caller's storages, and gradients, that may leave the fast memory.
    memory, profiles
        Where it is to run; profiles of calls that were seen before.
    budget
        Bytes of fast memory, as far as they are known. Calls whose operands alone take more are not
        tried whole, and run in blocks in every version.
    """

    def __init__(
        self,
        graph: Traced,
        movable: frozenset[int],
        memory: DeviceMemory,
        profiles: CallProfiles,
        budget: int | None,
    ) -> None:
        self._movable, self._memory, self._profiles = movable, memory, profiles
        self._plain, self._always = graph, frozenset[int]()
        for limit, least, room in self._levels(budget)[:1]:
            large = too_large(graph, int(_ABOUT * limit))
            wanted = (s for s in large if graph.storages[s].bytes >= least)
            self._always = rests(graph, movable, wanted, room, memory.link).streamed
        self.whole = replace(in_place(graph), profiles=profiles.of(graph, self._always))
        self._known: dict[tuple[frozenset[int], int], Traced] = {}

    def _levels(self, budget: int | None) -> list[tuple[int, int, int]]:
        """No kernel is cut without a budget, or without a file that blocks are read from."""
        return [] if budget is None or self._memory.file is None else levels(budget)

    def finer(self, budget: int | None, needed: Callable[[], Ints]) -> Iterator[Traced]:
        """Give the whole graph, and then versions for a budget with more and more kernels in
        blocks.

        ``needed`` gives the bytes without which each kernel of the whole graph cannot run.
        """
        if not self._always:
            yield self.whole
        before, needed = None, cache(needed)
        for limit, least, room in self._levels(budget):
            calls = [self._plain.calls[k] for k in np.flatnonzero(needed() > limit)]
            used = {
                s
                for call in calls
                for s in (*call.reads, *call.writes)
                if self._plain.storages[s].bytes >= max(least, SMALLEST)
            }
            version = self._cut(self._always | used, room)
            if version.streamed and version.calls != before:
                before = version.calls
                yield version

    def _cut(self, wanted: frozenset[int], room: int) -> Traced:
        """Return the graph with those of the ``wanted`` storages at rest that can be, and its
        kernels profiled."""
        key = wanted, room
        if key not in self._known:
            cut = rests(self._plain, self._movable, wanted, room, self._memory.link)
            self._known[key] = replace(in_place(cut), profiles=self._profiles.of(cut))
        return self._known[key]

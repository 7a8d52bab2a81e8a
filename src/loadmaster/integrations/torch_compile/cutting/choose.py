"""Decides which storages rest in the slow memory for good, and cuts every kernel that uses one of
them.

A storage can rest there only if each kernel that uses it can be cut; where one cannot, the smallest
of its storages does not. Each kernel is cut along whichever dimension suits it: blocks are read
from the slow memory in any order, so that no two kernels need to agree.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import Call, Captured, Owner, View, views
from loadmaster.integrations.torch_compile.cutting.axes import cuts_of
from loadmaster.integrations.torch_compile.cutting.block_call import BlockCall, Blocks, fast
from loadmaster.integrations.torch_compile.cutting.cut import SUM, WHOLE, Cut
from loadmaster.integrations.torch_compile.cutting.gathers import (
    AddedRows,
    InZeros,
    PickedRows,
    PickedScores,
    Slices,
)
from loadmaster.integrations.torch_compile.cutting.products import product_within
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor, blocks, narrowed, parts
from loadmaster.integrations.torch_compile.updates import Update, is_elementwise
from loadmaster.placement.sequence import CopyLink


@dataclass(frozen=True)
class UpdatedRows:
    """An elementwise optimizer's step in blocks of the parameter's rows; the same to the bit as on
    the whole."""

    pieces: int

    def __call__(
        self,
        call: Call,
        slow: Sequence[SlowTensor | None],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> tuple[Any, ...]:
        """Make the step, or keep the gradient if the update is held."""
        update: Update = call.target
        parameter, gradient = arguments[:2]
        if update.held:
            update.gradient = fast(gradient).clone()
            return (None,) * len(slow)
        scalars = update.scalars if update.begun else None
        for start, length in blocks(parameter.shape[0], self.pieces):
            parts = [operand.narrow(0, start, length) for operand in arguments]
            values = [fast(part) for part in parts]
            after = update.step_on(scalars, *values)
            for part, value in zip(parts, values, strict=True):
                if isinstance(part, SlowTensor) and part is not parts[1]:
                    part.write(value)
            del values
        update.complete(after)
        return (None,) * len(slow)


class BlockUpdate(BlockCall):
    """The target of an update in blocks."""

    @property
    def begun(self) -> bool:
        """Whether the state has been made."""
        return bool(self.whole.target.begun)

    def _measured(self, call: Call, captured: Captured) -> CallProfile:
        """Measure the first update, which makes the state, and a later one."""
        trial: Update = copy.copy(self.whole.target)
        trial.begun, trial.held = False, False
        alone = BlockCall(
            replace(self.whole, target=trial), self.streamed, self.run, self.link, False
        )

        def again() -> None:
            trial.begun = False

        first = alone.measured(call, captured, again)
        later = alone.measured(call, captured)
        return replace(
            later, workspace=max(first.workspace, later.workspace), first=first.allocations
        )


def can_update_rows(call: Call) -> bool:
    """Whether an update treats each element by itself, in the same order of rows for all its
    operands."""
    forms = {(view.size, view.stride) for view in call.arguments}
    return (
        is_elementwise(call.target.optimizer) and len(forms) == 1 and bool(call.arguments[0].size)
    )


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
"""Blocks of one element of the dimension that is cut may take this times that."""
_LEAST = 16
"""Operands of at least a sixteenth of that rest in the slow memory."""
_MOST = 256
"""Most blocks of a kernel that is no product: more take longer than what they compute."""
_UPDATED_AT_ONCE = 10
"""Blocks of an update in memory at once: operands, and what an optimizer computes beside them."""


def rests(
    captured: Captured, movable: frozenset[int], wanted: Iterable[int], room: int, link: CopyLink
) -> Captured:
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
    while True:
        calls = {
            id(call): _in_blocks(call, streamed, room, link) for s in streamed for call in users[s]
        }
        stuck = [call for s in streamed for call in users[s] if calls[id(call)] is None]
        if not stuck:
            break
        streamed -= {
            min(
                streamed.intersection((*call.reads, *call.writes)),
                key=lambda s: (storages[s].bytes, s),
            )
            for call in stuck
        }
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


def too_large(captured: Captured, limit: int) -> frozenset[int]:
    """Storages of calls whose operands alone take more than ``limit`` bytes."""
    found: set[int] = set()
    for call in captured.calls:
        if captured.operand_bytes(call) > limit:
            found |= {*call.reads, *call.writes}
    return frozenset(found)


def _in_blocks(call: Call, streamed: frozenset[int], room: int, link: CopyLink) -> Call | None:
    """The call cut into blocks; None if it cannot be cut so that the streamed storages rest."""
    if isinstance(call.target, Update):
        if not can_update_rows(call):
            return None
        pieces = math.ceil(_UPDATED_AT_ONCE * _bytes(call.arguments[0]) / room)
        return BlockUpdate(
            call, streamed, UpdatedRows(min(pieces, call.arguments[0].size[0], _MOST)), link, False
        ).call()
    run = _blocks_of(call, streamed, room)
    if (
        run is None
        or set(call.writes).intersection(call.reads)
        or getattr(run, "pieces", 1) > _MOST
    ):
        return None
    sums = run.cut.sums if isinstance(run, Slices) else getattr(run, "terms", 1) > 1
    return BlockCall(call, streamed, run, link, sums).call()


def _blocks_of(call: Call, streamed: frozenset[int], room: int) -> Blocks | None:
    special = _SPECIAL.get(call.target)
    if special is not None:
        return special(call, streamed, room)  # type: ignore[no-any-return]
    for most in (room, _STRETCH * room):
        found = [
            way
            for cut in cuts_of(call)
            if (way := _slices(call, cut, streamed, room, most)) is not None
        ]
        if found:
            return min(found, key=lambda way: _reads(call, way, streamed))
    return None


def _slices(call: Call, cut: Cut, streamed: frozenset[int], room: int, most: int) -> Slices | None:
    """Blocks along a cut that take ``room``, with what all of them need, or ``most``; None if that
    is not possible."""
    tensors = [(view, dim, view.storage in streamed) for view, dim in _with_dims(call, cut)]
    results = [
        (view, dim, True)
        for view, dim in zip(call.results, cut.results, strict=True)
        if isinstance(view, View)
    ]
    held = sum(_bytes(view) for view, dim, there in (*tensors, *results) if there and dim == WHOLE)
    held += sum(2 * _bytes(view) for view, dim, _ in results if dim == SUM)
    cutting = sum(_bytes(view) for view, dim, there in (*tensors, *results) if there and dim >= 0)
    if held >= room or any(
        dim == SUM and view.dtype.itemsize < _SUMMED for view, dim, _ in results
    ):
        return None
    pieces = min(max(math.ceil(cutting / (room - held)), 1), cut.length(call))
    return Slices(cut, pieces) if pieces <= _MOST and held + cutting / pieces <= most else None


def _reads(call: Call, way: Slices, streamed: frozenset[int]) -> int:
    """Separate reads that all blocks take."""
    length = way.cut.length(call)
    there = [
        (view, dim)
        for view, dim in _with_dims(call, way.cut)
        if view.storage in streamed and dim >= 0
    ]
    return way.pieces * sum(
        parts(narrowed(view, dim, 0, -(-length // way.pieces)), True) for view, dim in there
    )


def _with_dims(call: Call, cut: Cut) -> Iterator[tuple[View, int]]:
    """Operands that are read, each with its dimension of the cut."""
    operands = enumerate(zip(views((call.arguments, call.keywords)), cut.operands, strict=True))
    return (one for i, one in operands if i not in cut.unread)


def _bytes(view: View) -> int:
    return int(math.prod(view.size) * view.dtype.itemsize)


def _picked_rows(call: Call, streamed: frozenset[int], room: int) -> Blocks | None:
    table, indices = call.arguments[:2]
    if indices.storage in streamed or call.results[0].storage in streamed:  # type: ignore[union-attr]
        return None
    return PickedRows(math.ceil(_bytes(table) / room))


def _added_rows(call: Call, streamed: frozenset[int], room: int) -> Blocks | None:
    gradient, indices, _, _, scaled = call.arguments
    if scaled or {gradient.storage, indices.storage} & streamed:
        return None
    result = call.results[0]
    assert isinstance(result, View)
    return AddedRows(math.ceil(2 * _bytes(result) / room))


def _picked_scores(call: Call, streamed: frozenset[int], room: int) -> Blocks | None:
    scores, classes, weight = call.arguments[:3]
    if (
        weight is not None
        or len(scores.size) != 2
        or classes.storage in streamed
        or call.arguments[3] == 0
    ):
        return None
    pieces = math.ceil(_bytes(scores) / room)
    return PickedScores(pieces) if pieces <= scores.size[0] else None


def _in_zeros(call: Call, streamed: frozenset[int], room: int) -> Blocks | None:
    result, (_, sizes, dim, start, _, step) = call.results[0], call.arguments
    if (
        result is None
        or result.storage not in streamed
        or step != 1
        or start < 0
        or call.arguments[0].size[dim] == 0
    ):
        return None
    pieces = math.ceil(2 * _bytes(result) / room)
    return InZeros(pieces) if pieces <= sizes[dim] and not call.keywords else None


_SPECIAL: dict[Any, Any] = {
    aten.mm.default: product_within,
    aten.addmm.default: product_within,
    aten.embedding.default: _picked_rows,
    aten.embedding_dense_backward.default: _added_rows,
    aten.nll_loss_forward.default: _picked_scores,
    aten.slice_backward.default: _in_zeros,
}
"""How a call is cut that `axes` does not describe."""

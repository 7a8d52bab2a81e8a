"""A kernel that runs block by block: reads blocks of operands that rest in the slow memory, and
writes blocks of results there.

All memory that it takes is asked of PyTorch's allocator in the same order every time, so a plan has
a place for each block, as for any temporary. The time of such a kernel is that of its computations,
measured like any other's, and what the link needs for the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch.utils._pytree import tree_map

from loadmaster.integrations.torch_compile.captured import (
    Call,
    Captured,
    View,
    is_view,
    on_storage,
    views,
)
from loadmaster.integrations.torch_compile.devices.library_buffers import (
    free_library_buffers,
    library_bytes,
)
from loadmaster.integrations.torch_compile.kernel_profile import (
    CallProfile,
    profile_of_run,
    signature,
    stand_in_storage,
    timed,
)
from loadmaster.integrations.torch_compile.slow_tensor import NoFile, SlowTensor
from loadmaster.placement.sequence import CopyLink

Operand: TypeAlias = torch.Tensor | SlowTensor
Blocks = Callable[
    [Call, Sequence[SlowTensor | None], tuple[Any, ...], dict[str, Any]], tuple[Any, ...]
]
"""Runs a call on operands: slow results (None for those in fast memory), arguments, keywords;
returns the results in fast memory."""


class BlockCall:
    """The target of a call that runs block by block.

    Its first argument is a list with the views of results in the slow memory, None for the others;
    the rest are those of ``whole``. ``sums`` says that results add up in another order than in the
    whole kernel.
    """

    def __init__(
        self, whole: Call, streamed: frozenset[int], run: Blocks, link: CopyLink, sums: bool
    ) -> None:
        self.whole, self.streamed, self.run, self.link, self.sums = whole, streamed, run, link, sums

    def __str__(self) -> str:
        return f"{self.whole.kind}, in blocks"

    def __call__(
        self, slow: Sequence[SlowTensor | None], *arguments: Any, **keywords: Any
    ) -> tuple[Any, ...]:
        """Run all blocks; the results in fast memory, None for the others."""
        return self.run(self.whole, slow, arguments, keywords)

    def call(self) -> Call:
        """The captured call with this target in the place of the whole one."""
        slow = [
            view if isinstance(view, View) and view.storage in self.streamed else None
            for view in self.whole.results
        ]
        return replace(self.whole, target=self, arguments=(slow, *self.whole.arguments))

    def profile(self, call: Call, captured: Captured, known: dict[Any, CallProfile]) -> CallProfile:
        """Measure the blocks of a call on made-up operands; the seconds of transfers are those that
        the link promises."""
        key = (
            "blocks",
            repr(self.run),
            self.whole.target,
            signature(replace(call, target=None)),
            self._order(call),
        )
        if key not in known:
            known[key] = self._measured(call, captured)
        return known[key]

    def _measured(self, call: Call, captured: Captured) -> CallProfile:
        return self.measured(call, captured)

    def _order(self, call: Call) -> tuple[bool, ...]:
        return tuple(
            view.storage in self.streamed for view in views((call.arguments, call.keywords))
        )

    def measured(
        self, call: Call, captured: Captured, again: Callable[[], None] = lambda: None
    ) -> CallProfile:
        """Measure a run of the blocks on made-up operands, after one that is not measured and
        ``again``."""
        file = NoFile()
        storages: dict[int, torch.UntypedStorage] = {}

        def real(leaf: Any) -> Any:
            if not isinstance(leaf, View):
                return leaf
            if leaf.storage in self.streamed:
                return SlowTensor(leaf, file, 0)
            if leaf.storage not in storages:
                storages[leaf.storage] = stand_in_storage(
                    captured.storages[leaf.storage].bytes, leaf, captured.device
                )
            return on_storage(storages[leaf.storage], leaf)

        arguments, keywords = tree_map(real, (call.arguments, call.keywords), is_leaf=is_view)
        kept: list[Any] = []
        self(
            *arguments, **keywords
        )  # the first run of an operator makes caches, which later ones find
        free_library_buffers()
        again()
        before, file.read_bytes, file.written_bytes = library_bytes(), 0, 0
        seconds, seen = timed(lambda: kept.append(self(*arguments, **keywords)), 1)
        library = library_bytes() - before
        free_library_buffers()
        addresses = {
            out.untyped_storage().data_ptr(): i
            for i, out in enumerate(kept[0])
            if isinstance(out, torch.Tensor)
        }
        seconds += file.read_bytes / self.link.to_fast + file.written_bytes / self.link.to_slow
        profile = profile_of_run(seconds, seen, addresses, (True,) * len(call.results))
        moved = file.read_bytes + file.written_bytes
        return replace(
            profile, outside=profile.outside + library, library=library, transferred=moved
        )


def fast(operand: Operand) -> torch.Tensor:
    """The operand, or block, in fast memory."""
    return operand.read() if isinstance(operand, SlowTensor) else operand


def empty(view: View) -> torch.Tensor:
    """A result in fast memory, not yet computed."""
    return torch.empty_strided(view.size, view.stride, dtype=view.dtype)

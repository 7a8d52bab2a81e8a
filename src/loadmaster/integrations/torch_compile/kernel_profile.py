"""Profiles every distinct call of a graph by running it alone: how long it takes, and which memory
it allocates.

AutoTM times kernels before it plans; so do we, and we record each allocation too. A call's
allocations come in the same order every time, so a plan can say where its results go, and where its
temporaries (reordered weights, columns of a convolution, oneDNN's scratch). Calls run on stand-in
operands, one call's operands at a time: no more memory than the largest call needs, and no random
state is used up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch.utils._pytree import tree_map

from loadmaster import _native
from loadmaster.integrations.torch_compile.captured import Call, Captured, View, on_storage, views
from loadmaster.integrations.torch_compile.devices import allocator_hook
from loadmaster.integrations.torch_compile.devices.library_buffers import (
    free_library_buffers,
    library_bytes,
)

ALIGNMENT = 64
"""Bytes to which PyTorch aligns CPU memory; temporaries in a workspace keep it."""
LATER = -1
"""The offset of an allocation that stays with PyTorch's own allocator."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation of a call: bytes, the position of the result that it became (None: a
    temporary), and its offset in the workspace."""

    bytes: int
    result: int | None
    offset: int = LATER


@dataclass(frozen=True, slots=True)
class CallProfile:
    """Time and memory of a call that was run alone.

    Attributes
    ----------
    seconds
        Least of a few runs.
    allocations
        In order. A temporary that outlives its call is a cache, and stays with PyTorch's allocator.
    workspace
        Bytes that temporaries need at once, packed.
    outside
        Bytes that the call takes outside of the arena while it runs.
    library
        Bytes of them that are buffers of the matrix library, to be freed after the call.
    direct
        For each result whether it can be written to its planned address: its strides are those that
        fake tensors predict.
    transferred
        Bytes that the call itself moves between the memories.
    first
        Allocations of the first run, if they differ: an optimizer makes its state then.
    """

    seconds: float
    allocations: tuple[Allocated, ...] = ()
    workspace: int = 0
    outside: int = 0
    direct: tuple[bool, ...] = ()
    first: tuple[Allocated, ...] | None = None
    library: int = 0
    transferred: int = 0


@dataclass
class CallProfiles:
    """Profiles by signature, so that equal calls are run once."""

    known: dict[Any, CallProfile] = field(default_factory=dict)

    def of(self, captured: Captured, but: frozenset[int] = frozenset()) -> list[CallProfile]:
        """A profile of every call, in order; an empty one for those that use a storage of ``but``,
        which is too large for a trial."""
        devices = [captured.device] if captured.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices, device_type="cuda"),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            return [
                self._of(call, captured)
                if but.isdisjoint((*call.reads, *call.writes))
                else CallProfile(0.0)
                for call in captured.calls
            ]

    def _of(self, call: Call, captured: Captured) -> CallProfile:
        own = getattr(call.target, "profile", None)
        if own is not None:
            return cast(CallProfile, own(call, captured, self.known))
        key = signature(call)
        if key not in self.known:
            self.known[key] = _profile(call, captured)
        return self.known[key]


def signature(call: Call) -> Any:
    """A key that is equal for calls that run alike: the operator, and its operands' types, sizes
    and strides."""
    numbers: dict[int, int] = {}

    def anonymous(leaf: Any) -> Any:
        if isinstance(leaf, View):
            return leaf._replace(storage=numbers.setdefault(leaf.storage, len(numbers)))
        return leaf

    shape = tree_map(
        anonymous, (call.arguments, call.keywords), is_leaf=lambda leaf: isinstance(leaf, View)
    )
    return call.target, repr(shape), torch.get_num_threads(), torch.is_inference_mode_enabled()


def _profile(call: Call, captured: Captured) -> CallProfile:
    device = captured.device
    storages = {
        view.storage: stand_in_storage(captured.storages[view.storage].bytes, view, device)
        for view in views((call.arguments, call.keywords))
    }

    def real(leaf: Any) -> Any:
        return on_storage(storages[leaf.storage], leaf) if isinstance(leaf, View) else leaf

    arguments, keywords = tree_map(
        real, (call.arguments, call.keywords), is_leaf=lambda leaf: isinstance(leaf, View)
    )
    if device.type == "cuda":
        return _profile_on_gpu(call, arguments, keywords, device)
    try:
        call.target(
            *arguments, **keywords
        )  # the first run of an operator makes caches, which later ones find
        free_library_buffers()
        before = library_bytes()
        seconds, seen, out = _recorded(lambda: call.target(*arguments, **keywords))
        library = library_bytes() - before
    except RuntimeError:
        return CallProfile(
            0.0,
            outside=sum(captured.storages[s].bytes for s in call.writes),
            direct=(False,) * len(call.results),
        )
    results = out if isinstance(out, tuple | list) else (out,)
    direct = tuple(
        _as_predicted(value, view) for value, view in zip(results, call.results, strict=True)
    )
    result_addresses = {
        value.untyped_storage().data_ptr(): i
        for i, value in enumerate(results)
        if isinstance(value, torch.Tensor)
    }
    del out, results
    if not allocator_hook.install_allocator():
        made = sum(captured.storages[s].bytes for s in call.writes if s not in call.reads)
        return CallProfile(
            _least(seconds, lambda: call.target(*arguments, **keywords)),
            outside=made,
            direct=(False,) * len(call.results),
        )
    seconds = _least(seconds, lambda: call.target(*arguments, **keywords))
    free_library_buffers()
    profile = profile_of_run(seconds, seen, result_addresses, direct)
    return replace(profile, outside=profile.outside + library, library=library)


def timed(run: Callable[[], Any], runs: int = 3) -> tuple[float, list[tuple[int, int, int]]]:
    """Measure the least seconds of a few runs (one, if it is long), and the allocations of the
    first one."""
    seconds, seen, _ = _recorded(run)
    return (_least(seconds, run) if runs > 1 else seconds), seen


def _recorded(run: Callable[[], Any]) -> tuple[float, list[tuple[int, int, int]], Any]:
    """Measure seconds, allocations and results of a run. The results are kept, so that their memory
    does not count as freed."""
    _native.start_recording()
    start = time.perf_counter()
    try:
        out = run()
    finally:
        seconds = time.perf_counter() - start
        seen = _native.stop_recording()
    return seconds, seen, out


def _least(seconds: float, run: Callable[[], Any]) -> float:
    for _ in range(2 if seconds < 0.01 else 0):
        start = time.perf_counter()
        run()
        seconds = min(seconds, time.perf_counter() - start)
    return seconds


def _profile_on_gpu(call: Call, arguments: Any, keywords: Any, device: torch.device) -> CallProfile:
    """Profile a call by CUDA events, with all memory that it takes, results included: they are
    copied to their places afterwards."""
    try:
        call.target(*arguments, **keywords)
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call.target(*arguments, **keywords)
        end.record()
        torch.cuda.synchronize(device)
    except RuntimeError:
        return CallProfile(0.0)
    return CallProfile(
        start.elapsed_time(end) / 1e3, outside=torch.cuda.max_memory_allocated(device) - before
    )


def profile_of_run(
    seconds: float,
    seen: list[tuple[int, int, int]],
    result_addresses: dict[int, int],
    direct: tuple[bool, ...],
) -> CallProfile:
    """Make a profile of recorded allocations ``seen`` (address, bytes, when freed) and the results
    by their address."""
    became: dict[int, int] = {}
    for i, (address, _, freed) in enumerate(seen):
        if freed < 0 and address in result_addresses:
            became[i] = result_addresses[address]
    temporaries = [
        (i, freed, size)
        for i, (_, size, freed) in enumerate(seen)
        if i not in became and freed >= 0
    ]
    offsets, workspace = pack(temporaries)
    allocations = tuple(
        Allocated(size, became.get(i), offsets.get(i, LATER))
        if direct[became.get(i, 0)] or i not in became
        else Allocated(size, None)
        for i, (_, size, _) in enumerate(seen)
    )
    outside = sum(a.bytes for a in allocations if a.result is None and a.offset == LATER)
    return CallProfile(seconds, allocations, workspace, outside, direct)


def pack(lives: Sequence[tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """Pack live ranges (start, end, bytes), each at the lowest free offset; offsets by start, and
    the bytes of all. O(n^2)."""
    offsets: dict[int, int] = {}
    placed: list[tuple[int, int, int, int]] = []
    top = 0
    for start, end, size in lives:
        offset = 0
        for _, _, low, high in sorted(
            (row for row in placed if row[1] > start and row[0] < end), key=lambda row: row[2]
        ):
            if offset + size <= low:
                break
            offset = max(offset, high)
        room = -(-size // ALIGNMENT) * ALIGNMENT
        placed.append((start, end, offset, offset + room))
        offsets[start] = offset
        top = max(top, offset + room)
    return offsets, top


def stand_in_storage(count: int, view: View, device: torch.device) -> torch.UntypedStorage:
    """Make an operand for profiling: zeros for indices, halves for floating point (no denormals, no
    overflow)."""
    items = torch.zeros(-(-count // view.dtype.itemsize), dtype=view.dtype, device=device)
    if view.dtype.is_floating_point or view.dtype.is_complex:
        items.fill_(0.5)
    return items.untyped_storage()


def _as_predicted(value: Any, view: View | None) -> bool:
    if not isinstance(value, torch.Tensor) or view is None:
        return True
    predicted = view.size, view.stride, view.offset, view.dtype
    return (tuple(value.size()), value.stride(), value.storage_offset(), value.dtype) == predicted

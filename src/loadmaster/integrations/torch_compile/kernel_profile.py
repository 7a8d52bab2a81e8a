"""Profiles every distinct call of a graph by running it alone: its seconds and its allocations.

Like AutoTM, we time kernels before planning. We also record each allocation: a call makes its
allocations in the same order every time, so a plan can give addresses to its results and
temporaries (reordered weights, columns of a convolution, oneDNN's scratch). Calls run one at a time
on stand-in operands, and the random state is restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from loadmaster import _native
from loadmaster.allocation.allocate import allocate
from loadmaster.allocation.problem import Buffer
from loadmaster.core.effort import Effort
from loadmaster.integrations.torch_compile.captured import Call, Captured, View, on_storage, view_of
from loadmaster.integrations.torch_compile.cpu_memory import (
    free_library_buffers,
    install_allocator,
    library_bytes,
)

ALIGNMENT = 64
"""Bytes to which PyTorch aligns CPU memory, and we align temporaries in a workspace."""
_PACKING_DIVISOR = 128
"""Divisor of the budget of nodes for packing temporaries."""
UNPLANNED = -1
"""Offset of an allocation that is left to PyTorch's own allocator."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """One allocation of a call: its bytes, the position of the result in it (None: a temporary),
    and its offset in the workspace."""

    bytes: int
    result: int | None
    offset: int = UNPLANNED


@dataclass(frozen=True, slots=True)
class CallProfile:
    """Time and memory of a call that was run alone.

    Attributes
    ----------
    seconds
        Least seconds of a few runs.
    allocations
        Allocations in order. A temporary that outlives its call is a cache and is left to PyTorch's
        allocator; so is a result with other strides than fake tensors predict.
    workspace
        Bytes of the packed temporaries.
    outside
        Bytes that the call takes outside of the arena while it runs.
    library
        Bytes of ``outside`` in buffers of the matrix library, which are freed after the call.
    transferred
        Bytes that the call itself moves between the memories.
    first
        Allocations of the first run of an optimizer's update, which makes its state; else None.
    """

    seconds: float
    allocations: tuple[Allocated, ...] = ()
    workspace: int = 0
    outside: int = 0
    first: tuple[Allocated, ...] | None = None
    library: int = 0
    transferred: int = 0


class CallProfiles:
    """Profiles by signature, so that equal calls are profiled once."""

    def __init__(self) -> None:
        self.known: dict[Any, CallProfile] = {}

    def of(self, captured: Captured, but: frozenset[int] = frozenset()) -> list[CallProfile]:
        """Return a profile of every call, in order. Calls that use a storage in ``but``, which is
        too large to run whole, get an empty profile."""
        devices = [captured.device] if captured.device.type == "cuda" else []
        with (
            torch.random.fork_rng(devices, device_type="cuda"),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            return [
                self._of(call, captured) if but.isdisjoint(call.storages) else CallProfile(0.0)
                for call in captured.calls
            ]

    def _of(self, call: Call, captured: Captured) -> CallProfile:
        """Return the profile of a call; equal calls are profiled once."""
        numbers: dict[int, int] = {}

        def anonymous(view: View) -> Any:
            """Return an operand with its storage numbered by first use."""
            number = numbers.setdefault(view.storage, len(numbers))
            return view.storage in captured.streamed, view._replace(storage=number)

        # Calls are equal if operators and types, sizes, strides and memories of operands are.
        operands = call.mapped(anonymous)
        threads = torch.get_num_threads()
        key = getattr(call.target, "signature", call.target), repr(operands), threads
        if key not in self.known:
            self.known[key] = getattr(call.target, "profile", _profile)(call, captured)
        return self.known[key]


def _profile(call: Call, captured: Captured) -> CallProfile:
    """Measure seconds and allocations of a call on operands of the same form."""
    arguments, keywords = stand_ins(call, captured)
    if captured.device.type == "cuda":
        return _profile_on_gpu(call, arguments, keywords, captured.device)
    made, seconds = captured.bytes_of({*call.writes}.difference(call.reads)), 0.0
    with suppress(RuntimeError):
        profile = profiled(lambda: call.target(*arguments, **keywords), call.results)
        if install_allocator():
            return profile
        seconds = profile.seconds
    return CallProfile(seconds, outside=made)


def stand_ins(call: Call, captured: Captured, slow: Callable[[View], Any] = id) -> Any:
    """Return arguments and keywords of a call with stand-in operands: zeros for integers, 0.5 for
    floating point (no denormals, no overflow), and ``slow(view)`` for streamed storages."""
    storages: dict[int, torch.UntypedStorage] = {}

    def real(view: View) -> Any:
        """Return a stand-in for an operand, of the same form and memory; operands that share a
        storage still do."""
        if view.storage in captured.streamed:
            return slow(view)
        if view.storage not in storages:
            count = -(-captured.storages[view.storage].bytes // view.dtype.itemsize)
            items = torch.zeros(count, dtype=view.dtype, device=captured.device)
            if view.dtype.is_floating_point or view.dtype.is_complex:
                items.fill_(0.5)
            storages[view.storage] = items.untyped_storage()
        return on_storage(storages[view.storage], view)

    return call.mapped(real)


def profiled(
    run: Callable[[], Any],
    results: Sequence[Any],
    again: Callable[[], None] = lambda: None,
) -> CallProfile:
    """Profile ``run``, whose results have the views ``results``, after an unmeasured run and a call
    of ``again``."""
    run()  # the first run of an operator fills caches
    free_library_buffers()
    again()
    before = library_bytes()
    _native.start_recording()
    start = time.perf_counter()
    try:
        out = run()  # kept until recording stops, so that results do not count as freed
    finally:
        seconds = time.perf_counter() - start
        seen = _native.stop_recording()
    library = library_bytes() - before
    values = out if isinstance(out, tuple | list) else (out,)
    addresses = {
        value.untyped_storage().data_ptr(): i
        for i, (value, view) in enumerate(zip(values, results, strict=False))
        # Only results that are as fake tensors predict get a planned address: scatters into a view
        # return a view into a copy of its whole storage.
        if isinstance(value, torch.Tensor)
        and view
        and view_of(value, view.storage) == view
        and value.untyped_storage().nbytes()
        <= view.empty(torch.device("meta")).untyped_storage().nbytes()
    }
    del out, values
    for _ in range(2 if seconds < 0.01 else 0):
        start = time.perf_counter()
        run()
        seconds = min(seconds, time.perf_counter() - start)
    free_library_buffers()
    allocations, workspace = _pack_temporaries(seen, addresses)
    outside = sum(a.bytes for a in allocations if a.result is None and a.offset == UNPLANNED)
    return CallProfile(seconds, allocations, workspace, outside + library, library=library)


def profiled_update(update: Any, run: Callable[[], Any], results: Sequence[Any]) -> CallProfile:
    """Profile an ``update`` called by ``run``: its first run, which makes the state, and a later
    one."""

    def again() -> None:
        """Prepare the update to run again."""
        update.begun = False

    again()
    first, later = profiled(run, results, again), profiled(run, ())
    return replace(later, workspace=max(first.workspace, later.workspace), first=first.allocations)


def _profile_on_gpu(call: Call, arguments: Any, keywords: Any, device: torch.device) -> CallProfile:
    """Profile a call with CUDA events. All memory that it allocates counts as ``outside``,
    including results, which are copied to their addresses afterwards."""
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


def _pack_temporaries(
    seen: list[tuple[int, int, int]], results: dict[int, int]
) -> tuple[tuple[Allocated, ...], int]:
    """Pack the temporaries among recorded allocations ``seen``, each (address, bytes, index of the
    allocation before which it was freed; negative: not freed).

    ``results`` are positions of results by address. Returns the allocations with offsets, and the
    bytes of the packed temporaries.
    """
    temporaries = {
        i: Buffer(str(i), i, freed, -(-size // ALIGNMENT) * ALIGNMENT, alignment=ALIGNMENT)
        for i, (_, size, freed) in enumerate(seen)
        if freed >= 0
    }
    packed = allocate(list(temporaries.values()), effort=Effort.NORMAL.divided(_PACKING_DIVISOR))
    assert packed.offsets is not None
    offsets = dict(zip(temporaries, packed.offsets.tolist(), strict=True))
    allocations = tuple(
        Allocated(size, results.get(address) if freed < 0 else None, offsets.get(i, UNPLANNED))
        for i, (address, size, freed) in enumerate(seen)
    )
    return allocations, packed.peak or 0

"""Tensors that last from step to step (parameters, buffers, optimizer state), and where they rest between steps.

A tensor that a plan moves rests in the slow memory: its storage is pointed at a mapping of its region of the file, so that the same
tensor, its aliases, and whoever holds them read and write the right values at any time, through the page cache. Steps read and write the
region past the cache; what the cache holds is given up before each. A tensor that no plan moves has memory of PyTorch's own, as before.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from loadmaster.integrations.torch_compile.devices.allocator_hook import survives
from loadmaster.integrations.torch_compile.devices.slow_file import SlowFile, pages

_DATA_POINTER = 16
"""Offset of c10::DataPtr (address, context, deleter, device) in c10::StorageImpl of PyTorch 2.11 to 2.13; tried before the first use."""
_POINTER_BYTES = 32
_AT_ONCE = 16 << 20


class _Region:
    """A part of the slow file that is mapped, for tensors that were first brought there together."""

    def __init__(self, file: SlowFile, count: int) -> None:
        self.file, self.bytes = file, count
        self.slot = file.reserve(count)
        self.map = file.mapped(self.slot, count)
        self._anchor = ctypes.c_char.from_buffer(self.map)
        self.base = ctypes.addressof(self._anchor)

    def forget(self, changed: bool) -> None:
        """Free what user code has brought into memory since the last step; what it has ``changed`` is written first."""
        if changed:
            self.map.flush()
        self.map.madvise(mmap.MADV_DONTNEED)
        self.file.forget(self.slot, self.bytes)


class Lasting:
    """One such tensor, by its storage. ``slot`` is its place in the slow file, once it has one."""

    def __init__(self, tensor: torch.Tensor, fresh: bool) -> None:
        self.bytes = tensor.untyped_storage().nbytes()
        self.resting = False
        self.movable = False
        """Some plan may move it."""
        self.fresh = fresh
        """Nothing was written to it yet, so there is nothing to keep."""
        self.region: _Region | None = None
        self.slot = -1
        self.tensor = weakref.ref(tensor)
        self._version = -1

    @property
    def address(self) -> int:
        """Where its region of the file is mapped."""
        assert self.region is not None
        return self.region.base + self.slot - self.region.slot

    def written(self) -> None:
        """A step has written to it: there is something to keep."""
        self.fresh = False

    def changed(self) -> bool:
        """Whether somebody has changed it since the last call."""
        tensor = self.tensor()
        version = -1 if tensor is None else tensor._version
        before, self._version = self._version, version
        return version != before


class LastingTensors:
    """All of them that the graphs of a model use, by storage."""

    def __init__(self, file: SlowFile | None) -> None:
        self.file = file
        self._known: dict[int, Lasting] = {}

    def of(self, tensor: torch.Tensor, fresh: bool = False, movable: bool = False) -> Lasting:
        """The entry of a tensor's storage; made at the first call. It is movable from the first plan on that may move it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._known[key] = Lasting(tensor, fresh)
            weakref.finalize(storage, _gone, self._known, key)
        one = self._known[key]
        one.movable |= movable
        return one

    def fast_bytes(self, but: Iterable[Lasting], at_least: bool = False) -> int:
        """Bytes of fast memory that all take, but for some; or ``at_least``: those that no plan may move."""
        left_out = set(map(id, but))
        here = (one for one in self._known.values() if not one.resting and id(one) not in left_out)
        return sum(one.bytes for one in here if not (at_least and one.movable))

    def bytes(self) -> int:
        """Bytes of all, wherever they are."""
        return sum(one.bytes for one in self._known.values())

    def resting_bytes(self) -> int:
        """Bytes that rest in the slow memory."""
        return sum(one.bytes for one in self._known.values() if one.resting)

    def reserve(self, wanted: Sequence[Lasting]) -> None:
        """Have a place in the slow memory for each. Raises `SlowMemoryError`."""
        new = [one for one in wanted if one.region is None]
        if not new:
            return
        assert self.file is not None
        region = _Region(self.file, sum(pages(one.bytes) for one in new))
        slot = region.slot
        for one in new:
            one.region, one.slot = region, slot
            slot += pages(one.bytes)

    def rest_movable(self, but: Iterable[Lasting]) -> None:
        """Bring all that may move to the slow memory, but for some."""
        left_out = set(map(id, but))
        there = [(one, one.tensor()) for one in self._known.values() if one.movable and not one.resting and id(one) not in left_out]
        self.settle([(one, tensor, True) for one, tensor in there if tensor is not None])

    def settle(self, wanted: Sequence[tuple[Lasting, torch.Tensor, bool]]) -> None:
        """Before a step: have tensors rest or not, and nothing of those that rest in fast memory."""
        self.reserve([one for one, _, rests in wanted if rests])
        for one, tensor, rests in wanted:
            one.resting = one.region is not None and tensor.untyped_storage().data_ptr() == one.address
            if rests and not one.resting:
                self.rest(one, tensor)
            elif one.resting and not rests:
                self.wake(one, tensor)
        self.forget_cached()

    def wake_all(self) -> None:
        """Bring all back into memory of PyTorch's own: for somebody else to run the module, as if there were no plan."""
        there = [(one, one.tensor()) for one in self._known.values() if one.resting]
        self.settle([(one, tensor, False) for one, tensor in there if tensor is not None])

    def rest(self, one: Lasting, tensor: torch.Tensor) -> None:
        """Bring a tensor to its place in the slow memory, and free its memory."""
        assert self.file is not None
        storage = tensor.untyped_storage()
        if not one.fresh:
            with mmap.mmap(-1, min(_AT_ONCE, pages(one.bytes))) as block:
                memory = memoryview(block)
                for start in range(0, one.bytes, _AT_ONCE):
                    count = min(_AT_ONCE, one.bytes - start)
                    block[:count] = (ctypes.c_char * count).from_address(storage.data_ptr() + start)
                    with memory[: pages(count)] as part:
                        self.file.write(part, one.slot + start)
                memory.release()
        swap_memory(storage, _at(one.address, one.bytes))
        one.resting = True
        one.changed()

    def wake(self, one: Lasting, tensor: torch.Tensor) -> None:
        """Bring a tensor back into memory of PyTorch's own."""
        assert one.region is not None
        own = torch.empty(one.bytes, dtype=torch.uint8)
        if not one.fresh:
            own.copy_(torch.empty(0, dtype=torch.uint8).set_(_at(one.address, one.bytes)))
        swap_memory(tensor.untyped_storage(), own.untyped_storage())
        one.resting = False

    def forget_cached(self) -> None:
        """Before a step: nothing of what rests may be in fast memory."""
        regions: dict[int, tuple[_Region, bool]] = {}
        for one in self._known.values():
            if one.resting and one.region is not None:
                changed = one.changed()
                regions[id(one.region)] = one.region, changed or regions.get(id(one.region), (one.region, False))[1]
        for region, changed in regions.values():
            region.forget(changed)


def _gone(known: dict[int, Lasting], key: int) -> None:
    """The last tensor on a storage is no more: its place in the slow file is free."""
    one = known.pop(key)
    if one.region is not None:
        one.region.file.release(one.slot, pages(one.bytes))


def _at(address: int, count: int) -> torch.UntypedStorage:
    return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), count)


def swap_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Exchange the memory of two storages of equal size; all tensors on them follow."""
    first, second = (_pointer(storage) for storage in (one, other))
    first[:], second[:] = second[:], first[:]


def _pointer(storage: torch.UntypedStorage) -> Any:
    return (ctypes.c_char * _POINTER_BYTES).from_address(storage._cdata + _DATA_POINTER)


@functools.cache
def can_rest() -> bool:
    """Whether storages of this build of PyTorch are laid out as `swap_memory` expects; tried in a process that may crash."""

    def swaps() -> bool:
        one, other = torch.full((64,), 1.0), torch.full((64,), 2.0)
        storages = one.untyped_storage(), other.untyped_storage()
        addresses = [storage.data_ptr() for storage in storages]
        if [ctypes.c_uint64.from_address(storage._cdata + _DATA_POINTER).value for storage in storages] != addresses:
            return False
        swap_memory(*storages)
        right = [storage.data_ptr() for storage in storages] == addresses[::-1] and one[0] == 2 and other[63] == 1
        del one, other, storages  # each gives back what it holds now
        return bool(right)

    return survives(swaps)


__all__ = ["Lasting", "LastingTensors", "can_rest", "swap_memory"]

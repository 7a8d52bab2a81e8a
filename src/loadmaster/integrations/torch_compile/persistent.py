"""Tensors that persist beyond a step (parameters, buffers, optimizer state, gradients), and how
they are offloaded between steps.

A tensor that a plan moves is offloaded to the slow memory: its storage points at a mapping of its
region of the file, so that the same tensor and its aliases read and write the right values at any
time, through the page cache. Steps read and write the region without the cache; what the cache
holds is dropped before each. A tensor that no plan moves has memory of PyTorch's own, as before.
"""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import View, on_storage
from loadmaster.integrations.torch_compile.devices.allocator_hook import survives
from loadmaster.integrations.torch_compile.devices.slow_file import (
    FilePlace,
    SlowFile,
    file_mappings,
    pages,
    place_in_file,
)
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor

_DATA_POINTER = 16
"""Offset of c10::DataPtr (address, context, deleter, device) in c10::StorageImpl of PyTorch 2.11 to
2.13; tried before the first use."""
_POINTER_BYTES = 32
SMALLEST = 64 << 10
"""The least bytes of a tensor that is worth moving."""
_AT_ONCE = 16 << 20
_READ_AT_ONCE = 2 << 20
"""Bytes read at a time when a tensor comes back: two such blocks are beside it, and larger reads
are no faster."""


class Region:
    """A mapped part of the slow file: the place of one tensor."""

    shift = 0

    def __init__(self, file: SlowFile, count: int) -> None:
        self.file, self.bytes = file, pages(count)
        self.slot = file.reserve(self.bytes)
        self.map = file.mapped(self.slot, self.bytes)
        self._anchor = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(self._anchor)

    def forget(self, changed: bool) -> None:
        """Drop pages that user code has touched since the last step from the page cache; if
        ``changed``, write them first."""
        if changed:
            self.map.flush()
        self.map.madvise(mmap.MADV_DONTNEED)
        self.file.forget(self.slot, self.bytes)


class PersistentTensor:
    """A tensor that persists from step to step, by its storage."""

    def __init__(self, tensor: torch.Tensor, fresh: bool) -> None:
        self.bytes = tensor.untyped_storage().nbytes()
        self.offloaded = False
        self.movable = False
        """Some plan may move it."""
        self.fresh = fresh
        """Nothing was written to it yet, so there is nothing to keep."""
        self.place: Region | FilePlace | None = None
        """Where it is in the slow memory: in the runtime's file, or in one of weights, as long as
        nobody changes it."""
        self.home: torch.UntypedStorage | None = None
        """The mapping of a file of weights, while the tensor has memory of PyTorch's own."""
        self.looked_up = False
        """Whether it was looked for in files of weights."""
        self.tensor = weakref.ref(tensor)
        self._version = -1

    @property
    def in_file(self) -> FilePlace | None:
        """Its place in a file of weights, if it has one."""
        return self.place if isinstance(self.place, FilePlace) else None

    def rests(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of a tensor on its storage is that of its place."""
        there = self.place
        return there is not None and tensor.untyped_storage().data_ptr() == there.address

    def leave_file(self) -> None:
        """Have a place in the slow file instead of the one in a file of weights, because it has
        changed or is to change."""
        self.place, self.home, self.offloaded = None, None, False

    def written(self) -> None:
        """Note that a step has written to it, so that its contents must be kept."""
        self.fresh = False

    def changed(self) -> bool:
        """Whether it was changed, or may have been, since the last call of this method."""
        tensor = self.tensor()
        # Others on the storage, such as what autograd has made of a gradient, have versions of
        # their own.
        if tensor is None:
            return True
        before, self._version = self._version, tensor._version
        return self._version != before


class PersistentTensors:
    """All persistent tensors that the graphs of a model use, by storage."""

    def __init__(self, file: SlowFile | None) -> None:
        self.file = file
        self._known: dict[int, PersistentTensor] = {}

    def of(
        self, tensor: torch.Tensor, fresh: bool = False, movable: bool = False
    ) -> PersistentTensor:
        """Return the entry of a tensor's storage, made at the first call. It is movable from the
        first plan on that may move it."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known:
            self._known[key] = PersistentTensor(tensor, fresh)
            weakref.finalize(storage, _gone, self._known, key)
        one = self._known[key]
        one.movable |= movable
        return one

    def find_in_files(self, wanted: Iterable[PersistentTensor]) -> None:
        """Find out which tensors lie in files of weights; each is looked up once, before it is
        first offloaded."""
        new = [
            one
            for one in wanted
            if not one.looked_up and one.bytes >= SMALLEST and self.file is not None
        ]
        mappings = file_mappings() if new else []
        for one in new:
            tensor, one.looked_up = one.tensor(), True
            if tensor is not None and one.place is None:
                address = tensor.untyped_storage().data_ptr()
                one.place = place_in_file(address, one.bytes, mappings)

    def known(self, tensor: torch.Tensor) -> PersistentTensor | None:
        """Return the entry of a tensor's storage, None if it has none."""
        return self._known.get(tensor.untyped_storage()._cdata)

    def created(self, view: View) -> tuple[torch.Tensor, Region]:
        """Make a tensor in the slow memory, contents undefined; also its place. Raises
        `SlowMemoryError`."""
        assert self.file is not None
        count = math.prod(view.size) * view.dtype.itemsize
        place = Region(self.file, count)
        tensor = on_storage(_at(place.address, count), view)
        one = self.of(tensor, movable=True)
        one.place, one.offloaded = place, True
        return tensor, place

    def fast_bytes(self, but: Iterable[PersistentTensor], at_least: bool = False) -> int:
        """Bytes of fast memory that all but some take; with ``at_least`` only of those that no plan
        may move."""
        left_out = set(map(id, but))
        here = (
            one for one in self._known.values() if not one.offloaded and id(one) not in left_out
        )
        return sum(one.bytes for one in here if not (at_least and one.movable))

    def bytes(self, but: Collection[int] = ()) -> int:
        """Bytes of all persistent tensors, in either memory, but for some storages (by their
        ``_cdata``)."""
        return sum(one.bytes for key, one in list(self._known.items()) if key not in but)

    def offloaded_bytes(self) -> int:
        """Bytes of those that are offloaded to the slow memory."""
        return sum(one.bytes for one in self._known.values() if one.offloaded)

    def reserve(self, wanted: Iterable[PersistentTensor]) -> None:
        """Reserve a place in the slow memory for each that has none. Raises `SlowMemoryError`."""
        for one in wanted:
            if one.place is None:
                assert self.file is not None
                one.place = Region(self.file, one.bytes)

    def offload_movable(self, but: Iterable[PersistentTensor]) -> None:
        """Offload all that may move but some."""
        left_out = set(map(id, but))
        self.place(
            [
                (one, tensor, True)
                for one in self._known.values()
                if one.movable and not one.offloaded and id(one) not in left_out
                if (tensor := one.tensor()) is not None
            ]
        )

    def rest(self, wanted: Iterable[PersistentTensor]) -> None:
        """Offload those that have a place in the slow memory already until they are placed again,
        if `leave_files` has seen them."""
        for one in wanted:
            tensor = one.tensor()
            if one.movable and one.place and tensor is not None and not one.rests(tensor):
                self.offload(one, tensor)

    def place(self, wanted: Sequence[tuple[PersistentTensor, torch.Tensor, bool]]) -> None:
        """Offload tensors or reload them, as ``wanted`` says, and drop what the page cache holds of
        offloaded ones, before a step."""
        self.leave_files(
            (one, tensor) for one, tensor, offload in wanted if offload or one.home is None
        )
        self.reserve([one for one, _, offload in wanted if offload])
        for one, tensor, offload in wanted:
            one.offloaded = one.rests(tensor)
            if offload and not one.offloaded:
                self.offload(one, tensor)
        for one, tensor, offload in wanted:  # once there is room
            if one.offloaded and not offload:
                self.reload(one, tensor)
        self.forget_cached()

    def leave_files(self, wanted: Iterable[tuple[PersistentTensor, torch.Tensor]]) -> None:
        """Have tensors that were changed leave their files of weights. A plan that reads a file is
        to be made after this."""
        for one, tensor in wanted:
            if one.in_file is not None and self._differs_from_file(one, tensor):
                one.leave_file()

    def reload_all(self) -> None:
        """Reload all into memory of PyTorch's own, so that somebody else can run the module as if
        there were no plan."""
        self.place(
            [
                (one, tensor, False)
                for one in self._known.values()
                if one.offloaded and (tensor := one.tensor()) is not None
            ]
        )

    def offload(self, one: PersistentTensor, tensor: torch.Tensor) -> None:
        """Copy a tensor to its place in the slow memory, and free its memory."""
        assert self.file is not None
        assert one.place is not None
        storage = tensor.untyped_storage()
        if one.home is not None:
            swap_memory(storage, one.home)
            one.home, one.offloaded = None, True
            one.changed()
            return
        if not one.fresh:
            with mmap.mmap(-1, min(_AT_ONCE, pages(one.bytes))) as block:
                memory = memoryview(block)
                for start in range(0, one.bytes, _AT_ONCE):
                    count = min(_AT_ONCE, one.bytes - start)
                    block[:count] = (ctypes.c_char * count).from_address(storage.data_ptr() + start)
                    with memory[: pages(count)] as part:
                        self.file.write(part, one.place.slot + start)
                memory.release()
        swap_memory(storage, _at(one.place.address, one.bytes))
        one.offloaded = True
        one.changed()

    def reload(self, one: PersistentTensor, tensor: torch.Tensor) -> None:
        """Copy a tensor back into memory of PyTorch's own."""
        own = torch.empty(one.bytes, dtype=torch.uint8)
        if not one.fresh:
            for start, block in self._stored(one):
                own[start : start + len(block)] = block
        swap_memory(tensor.untyped_storage(), own.untyped_storage())
        one.offloaded = False
        if one.in_file is not None:
            one.home = own.untyped_storage()
            one.in_file.forget()
            one.changed()

    def _differs_from_file(self, one: PersistentTensor, tensor: torch.Tensor) -> bool:
        """Whether a tensor with a place in a file of weights was changed: in its mapping, or in
        memory of PyTorch's own."""
        assert one.in_file is not None
        if one.home is None:
            return not one.rests(tensor) or one.in_file.changed()
        own = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        return not all(
            torch.equal(own[start : start + len(block)], block)
            for start, block in self._stored(one)
        )

    def _stored(self, one: PersistentTensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Read a tensor from its place in the slow memory, some bytes at a time, without the page
        cache; each with its first byte."""
        assert one.place is not None
        start = one.place.slot + one.place.shift
        for first in range(0, one.bytes, _READ_AT_ONCE):
            view = View(0, torch.uint8, (min(_READ_AT_ONCE, one.bytes - first),), (1,), first)
            yield first, SlowTensor(view, one.place.file, start).read()

    def forget_cached(self) -> None:
        """Drop offloaded tensors from the page cache before a step, as the cache is fast memory."""
        for one in self._known.values():
            if one.offloaded and one.place is not None:
                one.place.forget(one.changed())


def _gone(known: dict[int, PersistentTensor], key: int) -> None:
    """Release the place in the slow file of a storage whose last tensor is gone."""
    one = known.pop(key)
    if isinstance(one.place, Region):
        one.place.file.release(one.place.slot, one.place.bytes)


def _at(address: int, count: int) -> torch.UntypedStorage:
    return torch._C._construct_storage_from_data_pointer(address, torch.device("cpu"), count)


def swap_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Exchange the memory of two storages of equal size; all tensors on them follow."""
    first, second = (_pointer(storage) for storage in (one, other))
    first[:], second[:] = second[:], first[:]


def _pointer(storage: torch.UntypedStorage) -> Any:
    return (ctypes.c_char * _POINTER_BYTES).from_address(storage._cdata + _DATA_POINTER)


@functools.cache
def can_offload() -> bool:
    """Whether storages of this build of PyTorch are laid out as `swap_memory` expects; tried in a
    process that may crash."""

    def swaps() -> bool:
        one, other = torch.full((64,), 1.0), torch.full((64,), 2.0)
        storages = one.untyped_storage(), other.untyped_storage()
        addresses = [storage.data_ptr() for storage in storages]
        if [
            ctypes.c_uint64.from_address(storage._cdata + _DATA_POINTER).value
            for storage in storages
        ] != addresses:
            return False
        swap_memory(*storages)
        right = (
            [storage.data_ptr() for storage in storages] == addresses[::-1]
            and one[0] == 2
            and other[63] == 1
        )
        del one, other, storages  # each gives back what it holds now
        return bool(right)

    return survives(swaps)

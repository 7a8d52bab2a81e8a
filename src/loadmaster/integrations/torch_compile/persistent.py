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
import mmap
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import View, at_address, on_storage
from loadmaster.integrations.torch_compile.cpu_memory import (
    FilePlace,
    SlowFile,
    file_mappings,
    pages,
    place_in_file,
    survives,
)
from loadmaster.integrations.torch_compile.slow_tensor import SlowTensor

_DATA_POINTER = 16
"""Offset of c10::DataPtr (address, context, deleter, device) in c10::StorageImpl of PyTorch 2.11 to
2.13; tried before the first use."""
_POINTER_BYTES = 32
_CPU = torch.device("cpu")
SMALLEST = 64 << 10
"""The least bytes of a tensor that is worth moving."""
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
    """A tensor that persists from step to step, by its storage, and the memory that it is in.

    Attributes
    ----------
    offloaded
        Whether its memory is that of its place.
    movable
        Whether some plan may move it.
    fresh
        Whether nothing was written to it yet, so that there is nothing to keep.
    place
        Where it is in the slow memory: in the runtime's file, or in one of weights, as long as
        nobody changes it.
    home
        The mapping of a file of weights, while the tensor has memory of PyTorch's own.
    looked_up
        Whether it was looked for in files of weights.
    """

    def __init__(self, tensor: torch.Tensor, fresh: bool) -> None:
        self.bytes = tensor.untyped_storage().nbytes()
        self.offloaded = self.movable = self.looked_up = False
        self.fresh = fresh
        self.place: Region | FilePlace | None = None
        self.home: torch.UntypedStorage | None = None
        self._tensor = weakref.ref(tensor)
        self._version = -1

    @property
    def storage(self) -> Any:
        """The storage; None once the tensor is gone."""
        tensor = self._tensor()
        return None if tensor is None else tensor.untyped_storage()

    @property
    def in_file(self) -> FilePlace | None:
        """Its place in a file of weights, if it has one."""
        return self.place if isinstance(self.place, FilePlace) else None

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the one by which the storage became known."""
        return self._tensor() is tensor

    def rests(self, storage: torch.UntypedStorage) -> bool:
        """Whether the memory of its storage is that of its place."""
        return self.place is not None and storage.data_ptr() == self.place.address

    def leave_file(self) -> None:
        """Have a place in the slow file instead of the one in a file of weights, because it has
        changed or is to change."""
        self.place, self.home, self.offloaded = None, None, False

    def changed(self) -> bool:
        """Whether it was changed, or may have been, since the last call of this method."""
        tensor = self._tensor()
        # Others on the storage, such as what autograd has made of a gradient, have versions of
        # their own.
        if tensor is None:
            return True
        before, self._version = self._version, tensor._version
        return self._version != before

    def offload(self, file: SlowFile | None) -> None:
        """Copy the tensor to its place in the slow memory, in ``file`` if it has none, and free its
        memory. Raises `SlowMemoryError`."""
        storage = self.storage
        if self.home is not None:
            swap_memory(storage, self.home)
            self.home = None
        else:
            place = self.reserve(file)
            if not self.fresh:
                self._there().write(_bytes_of(storage))
            swap_memory(storage, at_address(place.address, self.bytes, _CPU))
        self.offloaded = True
        self.changed()

    def reserve(self, file: SlowFile | None) -> Region | FilePlace:
        """Its place in the slow memory, reserved in ``file`` if it has none. Raises
        `SlowMemoryError`."""
        if self.place is None:
            assert file is not None
            self.place = Region(file, self.bytes)
        return self.place

    def reload(self) -> None:
        """Copy the tensor back into memory of PyTorch's own."""
        own = torch.empty(self.bytes, dtype=torch.uint8)
        if not self.fresh:
            for start, block in self._stored():
                own[start : start + len(block)] = block
        swap_memory(self.storage, own.untyped_storage())
        self.offloaded = False
        if self.in_file is not None:
            self.home = own.untyped_storage()
            self.in_file.forget()
            self.changed()

    def leave_changed_file(self) -> None:
        """Leave the file of weights if the tensor was changed: in its mapping, or in memory of
        PyTorch's own."""
        storage = self.storage
        if self.in_file is None or storage is None:
            return
        if self.home is None:
            differs = not self.rests(storage) or self.in_file.changed()
        else:
            own = _bytes_of(storage)
            differs = not all(
                torch.equal(own[start : start + len(block)], block)
                for start, block in self._stored()
            )
        if differs:
            self.leave_file()

    def _there(self) -> SlowTensor:
        """All bytes of the tensor, in the slow memory."""
        assert self.place is not None
        view = View(0, torch.uint8, (self.bytes,), (1,), 0)
        return SlowTensor(view, self.place.file, self.place.slot + self.place.shift)

    def _stored(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Read the tensor from its place in the slow memory, some bytes at a time, without the page
        cache; each with its first byte."""
        for first in range(0, self.bytes, _READ_AT_ONCE):
            count = min(_READ_AT_ONCE, self.bytes - first)
            yield first, self._there().narrow(0, first, count).read()


class PersistentTensors:
    """All persistent tensors that the graphs of a model use, by storage; ``file`` is where they are
    offloaded to, None if they are not."""

    def __init__(self) -> None:
        self.file: SlowFile | None = None
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
            storage, one.looked_up = one.storage, True
            if storage is not None and one.place is None:
                one.place = place_in_file(storage.data_ptr(), one.bytes, mappings)

    def known(self, tensor: torch.Tensor) -> PersistentTensor | None:
        """Return the entry of a tensor's storage, None if it has none."""
        return self._known.get(tensor.untyped_storage()._cdata)

    def created(self, view: View) -> tuple[torch.Tensor, Region]:
        """Make a tensor in the slow memory, contents undefined; also its place. Raises
        `SlowMemoryError`."""
        assert self.file is not None
        place = Region(self.file, view.bytes)
        tensor = on_storage(at_address(place.address, view.bytes, _CPU), view)
        one = self.of(tensor, movable=True)
        one.place, one.offloaded = place, True
        return tensor, place

    def fast_bytes(self, but: Iterable[PersistentTensor] = (), at_least: bool = False) -> int:
        """Bytes of fast memory that all but some take; with ``at_least`` only of those that no plan
        may move."""
        here = {one for one in self._known.values() if not one.offloaded}.difference(but)
        return sum(one.bytes for one in here if not (at_least and one.movable))

    def bytes(self, but: Collection[int] = ()) -> int:
        """Bytes of all persistent tensors, in either memory, but for some storages (by their
        ``_cdata``)."""
        return sum(one.bytes for key, one in list(self._known.items()) if key not in but)

    def offloaded_bytes(self) -> int:
        """Bytes of those that are offloaded to the slow memory."""
        return self.bytes() - self.fast_bytes()

    def offload_movable(self, but: Collection[PersistentTensor] = ()) -> None:
        """Offload all that may move but some."""
        self.place(
            (one, True)
            for one in self._known.values()
            if one.movable and not one.offloaded and one not in but
        )

    def rest(self, wanted: Iterable[PersistentTensor]) -> None:
        """Offload those that have a place in the slow memory already until they are placed again,
        once those that were changed have left files of weights."""
        for one in wanted:
            storage = one.storage
            if one.movable and one.place and storage is not None and not one.rests(storage):
                one.offload(self.file)

    def place(self, wanted: Iterable[tuple[PersistentTensor, bool]]) -> None:
        """Offload tensors or reload them, as ``wanted`` says, and drop what the page cache holds of
        offloaded ones, before a step."""
        here = [(one, away) for one, away in wanted if one.storage is not None]
        for one, away in here:
            if away or one.home is None:
                one.leave_changed_file()
            if away:
                one.reserve(self.file)
        for one, away in here:
            one.offloaded = one.rests(one.storage)
            if away and not one.offloaded:
                one.offload(self.file)
        for one, away in here:  # once there is room
            if one.offloaded and not away:
                one.reload()
        self.forget_cached()

    def reload_all(self) -> None:
        """Reload all into memory of PyTorch's own, so that somebody else can run the module as if
        there were no plan."""
        self.place((one, False) for one in self._known.values() if one.offloaded)

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


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


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
        if [int.from_bytes(_pointer(storage)[:8], "little") for storage in storages] != addresses:
            return False
        swap_memory(*storages)
        swapped = [storage.data_ptr() for storage in storages] == addresses[::-1]
        right = swapped and one[0] == 2 and other[63] == 1
        del one, other, storages  # each gives back what it holds now
        return bool(right)

    return survives(swaps)

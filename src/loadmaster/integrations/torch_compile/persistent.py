"""Tensors that persist beyond a step (parameters, buffers, optimizer state, gradients), and their
offloading between steps.

A tensor that a plan moves is offloaded to slow memory: its storage points at a mapping of its
region of the file, so that the tensor and its aliases remain valid at any time, through the page
cache. Steps read and write the region without the page cache, which is dropped before each step. A
tensor that no plan moves keeps PyTorch's own memory.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from loadmaster.integrations.torch_compile.captured import CPU, View, at_address, on_storage
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
2.13; tested by `can_offload`."""
_POINTER_BYTES = 32
SMALLEST = 64 << 10
"""Least bytes of a tensor that is worth moving."""
_READ_AT_ONCE = 2 << 20
"""Bytes read at a time when a tensor is reloaded. Two such blocks are in memory beside the tensor;
larger reads are no faster."""


class FileRegion:
    """A mapped region of the slow file, the place of one tensor."""

    shift = 0

    def __init__(self, file: SlowFile, count: int) -> None:
        self.file, self.bytes = file, pages(count)
        self.slot = file.reserve(self.bytes)
        self.map = file.mapped(self.slot, self.bytes)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def forget(self, changed: bool) -> None:
        """Drop the region from the page cache; if ``changed``, write it to the disk first."""
        if changed:
            self.map.flush()
        self.map.madvise(mmap.MADV_DONTNEED)
        self.file.forget(self.slot, self.bytes)


class PersistentTensor:
    """The storage of a tensor that persists from step to step, and the memory that it is in.

    Attributes
    ----------
    offloaded
        Whether the storage's memory is its place.
    movable
        Whether some plan may move it.
    fresh
        Whether nothing was written to it yet, so that its contents need no copy.
    place
        The place in slow memory: a region of the runtime's file, or a file of weights as long as
        the tensor is unchanged. None: no place yet.
    mapped_storage
        The mapping of the file of weights while the tensor is in PyTorch's own memory; else None.
    looked_up
        Whether the tensor was searched for in files of weights.
    """

    def __init__(self, tensor: torch.Tensor, fresh: bool) -> None:
        self.bytes = tensor.untyped_storage().nbytes()
        self.offloaded = self.movable = self.looked_up = False
        self.fresh = fresh
        self.place: FileRegion | FilePlace | None = None
        self.mapped_storage: torch.UntypedStorage | None = None
        self._tensor = weakref.ref(tensor)
        # The tensor may get another storage, which has an entry of its own.
        self._storage = weakref.ref(tensor.untyped_storage())
        self._version = -1

    @property
    def storage(self) -> Any:
        """The storage; None after its end."""
        return self._storage()

    @property
    def in_file(self) -> FilePlace | None:
        """The place in a file of weights; None if the place is elsewhere."""
        return self.place if isinstance(self.place, FilePlace) else None

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Return whether ``tensor`` is the tensor of this entry, not another one on its
        storage."""
        return self._tensor() is tensor

    def is_at_place(self, storage: torch.UntypedStorage) -> bool:
        """Return whether the memory of ``storage`` is the entry's place."""
        return self.place is not None and storage.data_ptr() == self.place.address

    def leave_file(self) -> None:
        """Give up the place in a file of weights, because the tensor has changed or will change;
        the next place is in the slow file."""
        self.place, self.mapped_storage, self.offloaded = None, None, False

    def changed(self) -> bool:
        """Return whether the tensor may have changed since the last call of this method."""
        tensor = self._tensor()
        # Without the tensor, others on its storage have version counters of their own; what is made
        # in inference mode has none.
        if tensor is None or tensor.untyped_storage() is not self.storage or tensor.is_inference():
            return True
        before, self._version = self._version, tensor._version
        return self._version != before

    def offload(self, file: SlowFile | None) -> None:
        """Copy the tensor to its place in slow memory, by default a new region of ``file``, and
        free PyTorch's memory. Raises `SlowMemoryError`."""
        storage = self.storage
        if self.mapped_storage is not None:
            swap_memory(storage, self.mapped_storage)
            self.mapped_storage = None
        else:
            place = self.reserve(file)
            if not self.fresh:
                self._slow_bytes().write(_bytes_of(storage))
            swap_memory(storage, at_address(place.address, self.bytes, CPU))
        self.offloaded = True
        self.changed()

    def reserve(self, file: SlowFile | None) -> FileRegion | FilePlace:
        """Return the place in slow memory, a new region of ``file`` if there is none. Raises
        `SlowMemoryError`."""
        if self.place is None:
            assert file is not None
            self.place = FileRegion(file, self.bytes)
        return self.place

    def reload(self) -> None:
        """Copy the tensor back into PyTorch's own memory."""
        own = torch.empty(self.bytes, dtype=torch.uint8)
        if not self.fresh:
            for start, block in self._slow_blocks():
                own[start : start + len(block)] = block
        swap_memory(self.storage, own.untyped_storage())
        self.offloaded = False
        if self.in_file is not None:
            self.mapped_storage = own.untyped_storage()
            self.in_file.forget()
            self.changed()

    def leave_changed_file(self) -> None:
        """Give up the place in a file of weights if the tensor differs from the file."""
        storage = self.storage
        if self.in_file is None or storage is None:
            return
        if self.mapped_storage is None:
            differs = not self.is_at_place(storage) or self.in_file.changed()
        else:
            own = _bytes_of(storage)
            differs = not all(
                torch.equal(own[start : start + len(block)], block)
                for start, block in self._slow_blocks()
            )
        if differs:
            self.leave_file()

    def _slow_bytes(self) -> SlowTensor:
        """Return the bytes of the tensor in slow memory, shape (bytes,)."""
        assert self.place is not None
        view = View(0, torch.uint8, (self.bytes,), (1,), 0)
        return SlowTensor(view, self.place.file, self.place.slot + self.place.shift)

    def _slow_blocks(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the tensor's blocks, each with its offset in bytes, read from slow memory without
        the page cache."""
        for first in range(0, self.bytes, _READ_AT_ONCE):
            count = min(_READ_AT_ONCE, self.bytes - first)
            yield first, self._slow_bytes().narrow(0, first, count).read()


class PersistentTensors:
    """All persistent tensors of a model, by storage. They are offloaded to ``file``; None: they are
    not offloaded."""

    def __init__(self) -> None:
        self.file: SlowFile | None = None
        self._entries: dict[int, PersistentTensor] = {}

    def of(
        self, tensor: torch.Tensor, fresh: bool = False, movable: bool = False
    ) -> PersistentTensor:
        """Return the entry of a tensor's storage, made at the first call. It becomes movable if any
        call says so, and is fresh only as long as every call says so."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._entries:
            self._entries[key] = PersistentTensor(tensor, fresh)
            weakref.finalize(storage, _release_place, self._entries, key)
        one = self._entries[key]
        one.movable |= movable
        one.fresh &= fresh
        return one

    def find_in_files(self, wanted: Iterable[PersistentTensor]) -> None:
        """Set the places of tensors that are mapped from files of weights; each tensor is searched
        for once."""
        new = [
            one
            for one in wanted
            if not (one.looked_up or one.place) and one.bytes >= SMALLEST and self.file is not None
        ]
        mappings = file_mappings() if new else []
        for one in new:
            one.looked_up = True
            one.place = place_in_file(one.storage.data_ptr(), one.bytes, mappings)

    def known(self, tensor: torch.Tensor) -> PersistentTensor | None:
        """Return the entry of a tensor's storage, None if it has none."""
        return self._entries.get(tensor.untyped_storage()._cdata)

    def created(self, view: View) -> tuple[torch.Tensor, FileRegion]:
        """Create an offloaded tensor with undefined contents; return it and its place. Raises
        `SlowMemoryError`."""
        assert self.file is not None
        place = FileRegion(self.file, view.bytes)
        tensor = on_storage(at_address(place.address, view.bytes, CPU), view)
        one = self.of(tensor, movable=True)
        one.place, one.offloaded = place, True
        return tensor, place

    def fast_bytes(self, but: Iterable[PersistentTensor] = (), at_least: bool = False) -> int:
        """Return the bytes of tensors in fast memory without the entries ``but``; with
        ``at_least``, only of those that no plan may move."""
        here = {one for one in self._entries.values() if not one.offloaded}.difference(but)
        return sum(one.bytes for one in here if not (at_least and one.movable))

    def bytes(self, but: Collection[int] = ()) -> int:
        """Return the bytes of all tensors in either memory, without the storages ``but`` (by their
        ``_cdata``)."""
        return sum(one.bytes for key, one in list(self._entries.items()) if key not in but)

    def offloaded_bytes(self) -> int:
        """Return the bytes of offloaded tensors."""
        return self.bytes() - self.fast_bytes()

    def offload_movable(self, but: Collection[PersistentTensor] = ()) -> None:
        """Offload all movable tensors but those of the entries ``but``."""
        self.place(
            (one, True)
            for one in self._entries.values()
            if one.movable and not one.offloaded and one not in but
        )

    def rest(self, wanted: Iterable[PersistentTensor]) -> None:
        """Offload those of the ``wanted`` tensors that have a place in slow memory, until they are
        placed again. Changed tensors must have left files of weights before."""
        for one in wanted:
            if one.movable and one.place and not one.is_at_place(one.storage):
                one.offload(self.file)

    def place(self, wanted: Iterable[tuple[PersistentTensor, bool]]) -> None:
        """Offload (True) or reload (False) the ``wanted`` tensors before a step, and drop offloaded
        tensors from the page cache."""
        here = [(one, away) for one, away in wanted if one.storage is not None]
        for one, away in here:
            if away or one.mapped_storage is None:
                one.leave_changed_file()
            if away:
                one.reserve(self.file)
        for one, away in here:
            one.offloaded = one.is_at_place(one.storage)
            if away and not one.offloaded:
                one.offload(self.file)
        for one, away in here:  # after all offloads have made room
            if one.offloaded and not away:
                one.reload()
        self.forget_cached({one for one, _ in here})

    def reload_all(self) -> None:
        """Reload all tensors into PyTorch's own memory, so that the module can run without
        plans."""
        self.place((one, False) for one in self._entries.values() if one.offloaded)

    def forget_cached(self, compared: Collection[PersistentTensor] = ()) -> None:
        """Drop offloaded tensors from the page cache, which is fast memory. Those that differ from
        a file of weights give it up, but the entries ``compared`` have done so already."""
        for one in list(self._entries.values()):
            if one.offloaded and one not in compared:
                one.leave_changed_file()
            if one.offloaded and one.place is not None:
                one.place.forget(one.changed())


def _release_place(known: dict[int, PersistentTensor], key: int) -> None:
    """Remove the entry of a storage that no tensor uses any more, and release its region of the
    slow file."""
    one = known.pop(key)
    if isinstance(one.place, FileRegion):
        one.place.file.release(one.place.slot, one.place.bytes)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a storage as a tensor of bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def swap_memory(one: torch.UntypedStorage, other: torch.UntypedStorage) -> None:
    """Swap the memory of two storages of equal size, and so of all tensors on them."""
    first, second = map(_pointer, (one, other))
    first[:], second[:] = second[:], first[:]


def _pointer(storage: torch.UntypedStorage) -> Any:
    """Return the bytes of a storage's data pointer."""
    return (ctypes.c_char * _POINTER_BYTES).from_address(storage._cdata + _DATA_POINTER)


@functools.cache
def can_offload() -> bool:
    """Return whether storages of this build of PyTorch have the layout that `swap_memory` expects,
    tested in a forked process."""

    def swaps() -> bool:
        """Try on two small tensors whether the memory of storages can be swapped."""
        one, other = torch.full((64,), 1.0), torch.full((64,), 2.0)
        storages = one.untyped_storage(), other.untyped_storage()
        addresses = [storage.data_ptr() for storage in storages]
        if [int.from_bytes(_pointer(storage)[:8], "little") for storage in storages] != addresses:
            return False
        swap_memory(*storages)
        swapped = [storage.data_ptr() for storage in storages] == addresses[::-1]
        right = swapped and one[0] == 2 and other[63] == 1
        del one, other, storages  # must free the swapped memory without a crash
        return bool(right)

    return survives(swaps)

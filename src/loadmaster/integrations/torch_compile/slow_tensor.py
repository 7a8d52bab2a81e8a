"""A tensor that stays in slow memory: blocks of it are read and written, without the page cache."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from loadmaster.integrations.torch_compile.captured import View, on_storage, view_of
from loadmaster.integrations.torch_compile.cpu_memory import PAGE, DirectFile, pages

_DENSE_RATIO = 1.25
"""A block is read in one piece if its bytes with gaps are at most this many times those of its
elements."""
_WRITE_BYTES = 4 << 20
"""Most bytes that are written at a time, through a buffer of whole pages."""


class NoFile:
    """Stand-in for a file while calls are profiled: reads return zeros, writes are dropped, and
    both and their bytes are counted."""

    def reset(self) -> None:
        """Begin counting."""
        self.calls = self.read_bytes = self.written_bytes = 0

    def read(self, memory: memoryview, offset: int) -> None:
        """Fill ``memory`` with zeros, and count the read and its bytes."""
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(memory)), 0, len(memory))
        self.calls += 1
        self.read_bytes += len(memory)

    def write(self, memory: memoryview, offset: int) -> None:
        """Count a write, which takes as long as three reads, and its bytes."""
        self.calls += 3
        self.written_bytes += len(memory)


class _PageBuffer:
    """A buffer of whole pages from PyTorch's allocator, so that it counts as a temporary of the
    running kernel."""

    def __init__(self, count: int) -> None:
        self._memory = torch.empty(count + PAGE, dtype=torch.uint8)
        self.skipped = -self._memory.data_ptr() % PAGE
        self.bytes = torch.narrow(self._memory, 0, self.skipped, count)
        raw = (ctypes.c_char * count).from_address(self.bytes.data_ptr())
        self.raw = memoryview(raw).cast("B")

    def tensor(self, view: View, byte: int) -> torch.Tensor:
        """Return the tensor of a view whose storage begins at ``byte`` of the buffer, which may be
        negative if the buffer holds only a later part of the storage."""
        offset = self.skipped + byte + view.offset * view.dtype.itemsize
        return on_storage(
            self._memory.untyped_storage(), view._replace(offset=offset // view.dtype.itemsize)
        )


@dataclass(frozen=True)
class SlowTensor:
    """A view of a storage that begins at byte ``start`` of a file, a multiple of the element's
    bytes."""

    view: View
    file: DirectFile | NoFile
    start: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements in every dimension."""
        return self.view.size

    @property
    def dtype(self) -> torch.dtype:
        """Type of the elements."""
        return self.view.dtype

    def narrow(self, dim: int, start: int, length: int) -> SlowTensor:
        """Return the block of elements [start, start + length) of a dimension."""
        return replace(self, view=narrowed(self.view, dim, start, length))

    def read(self) -> torch.Tensor:
        """Read all elements into fast memory; dimensions keep their order of strides. Raises
        `SlowMemoryError`."""
        parts = [*_dense_parts(self.view)]
        if len(parts) == 1:
            return self._read_part(_PageBuffer(self._pages(self.view)[1]), self.view)
        buffer = _PageBuffer(self._most(parts))
        result = torch.empty_strided(self.shape, compact(self.view), dtype=self.dtype)
        for part, target in zip(parts, _dense_parts(view_of(result), of=self.view), strict=True):
            there = self._read_part(buffer, part)
            on_storage(result.untyped_storage(), target).copy_(there)
        return result

    def _read_part(self, buffer: _PageBuffer, part: View) -> torch.Tensor:
        """Read a view's pages into a buffer, and return the view."""
        first, count = self._pages(part)
        self.file.read(buffer.raw[:count], first)
        return buffer.tensor(part, self.start - first)

    def write(self, values: torch.Tensor) -> None:
        """Write all elements. Raises `SlowMemoryError`."""
        parts = [*_dense_parts(self.view, gaps=False)]
        buffer = _PageBuffer(min(self._most(parts), _WRITE_BYTES))
        order = compact(self.view)
        if any(
            n > 1 and mine != its
            for n, mine, its in zip(values.shape, values.stride(), order, strict=True)
        ):
            values = torch.empty_strided(self.shape, order, dtype=self.dtype).copy_(values)
        for part, source in zip(
            parts, _dense_parts(view_of(values), of=self.view, gaps=False), strict=True
        ):
            self._write_part(buffer, part, on_storage(values.untyped_storage(), source))

    def _write_part(self, buffer: _PageBuffer, part: View, values: torch.Tensor) -> None:
        """Write a part without gaps; the first and the last page keep their other bytes."""
        low, high = self._span(part)
        flat = _flat_bytes(values)
        for first in range(low // PAGE * PAGE, high, len(buffer.bytes)):
            count = min(pages(high - first), len(buffer.bytes))
            begin, end = max(low, first), min(high, first + count)
            if begin > first:
                self.file.read(buffer.raw[:PAGE], first)
            if end < first + count and (count > PAGE or begin == first):
                self.file.read(buffer.raw[count - PAGE : count], first + count - PAGE)
            buffer.bytes[begin - first : end - first] = flat[begin - low : end - low]
            self.file.write(buffer.raw[:count], first)

    def _most(self, parts: Sequence[View]) -> int:
        """Return the size in bytes of a buffer for the pages of any of the parts."""
        return max(pages(high - low) for low, high in map(self._span, parts)) + PAGE

    def _pages(self, view: View) -> tuple[int, int]:
        """Return the offset of a view's first page in the file, and the bytes of all its pages."""
        low, high = self._span(view)
        first = low // PAGE * PAGE
        return first, pages(high - first)

    def _span(self, view: View) -> tuple[int, int]:
        """Return the first byte of a view in the file, and the byte after its last."""
        size, low = view.dtype.itemsize, self.start + view.offset * view.dtype.itemsize
        return low, low + (_last(view) + 1) * size


def fast(operand: torch.Tensor | SlowTensor) -> torch.Tensor:
    """Return an operand, or a block, in fast memory."""
    return operand.read() if isinstance(operand, SlowTensor) else operand


def narrowed(view: View, dim: int, start: int, length: int) -> View:
    """Return the view of elements [start, start + length) of a dimension."""
    size = list(view.size)
    size[dim] = length
    return view._replace(size=tuple(size), offset=view.offset + start * view.stride[dim])


def _by_stride(view: View) -> list[int]:
    """Return the dimensions of more than one element, largest stride first."""
    return sorted((d for d, n in enumerate(view.size) if n > 1), key=lambda d: -view.stride[d])


def compact(view: View) -> tuple[int, ...]:
    """Return strides without gaps, with the dimensions in the order of the view's strides."""
    strides, step = [1] * len(view.size), 1
    for d in reversed(_by_stride(view)):
        strides[d], step = step, step * view.size[d]
    return tuple(strides)


def _dense_parts(view: View, of: View | None = None, gaps: bool = True) -> Iterator[View]:
    """Split ``view`` like ``of`` (None: ``view`` itself), a view of the same shape, which is split
    into parts with few gaps between their elements (``gaps``) or none."""
    of = view if of is None else of
    if _is_dense(of, gaps):
        yield view
        return
    dim = _by_stride(of)[0]
    for i in range(of.size[dim]):
        yield from _dense_parts(narrowed(view, dim, i, 1), narrowed(of, dim, i, 1), gaps)


def _flat_bytes(values: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor without gaps, in the order of their addresses."""
    count = values.numel() * values.dtype.itemsize
    start = values.storage_offset() * values.dtype.itemsize
    return torch.empty(0, dtype=torch.uint8).set_(values.untyped_storage(), start, (count,), (1,))


def _is_dense(view: View, gaps: bool) -> bool:
    """Whether a view covers its span, with ``gaps`` most of it."""
    return _last(view) < math.prod(view.size) * (_DENSE_RATIO if gaps else 1)


def _last(view: View) -> int:
    """Return the distance in elements from the first element of a view to its last."""
    return sum((n - 1) * s for n, s in zip(view.size, view.stride, strict=True))


def parts(view: View, gaps: bool) -> int:
    """Count the separate reads (with ``gaps``) or writes (without) that a view takes."""
    number = 1
    while not _is_dense(view, gaps):
        dim = _by_stride(view)[0]
        number *= view.size[dim]
        view = narrowed(view, dim, 0, 1)
    return number


def blocks(length: int, count: int) -> Sequence[tuple[int, int]]:
    """Divide ``length`` into ``count`` blocks of almost equal length; return (start, length) of
    each block that is not empty."""
    edges = [length * i // count for i in range(count + 1)]
    return [(a, b - a) for a, b in itertools.pairwise(edges) if b > a]

"""PyTorch: a pickle that `torch.cuda.memory._dump_snapshot` writes after `_record_memory_history`.

Every stream of every device is an arena, because the caching allocator does not share memory
between streams. Instants are the events of the device's trace; a block is alive from its ``alloc``
to its ``free_completed``, or from the first or to the last event if these are missing. PyTorch's
bytes are the peak of reserved segments. No code in the file is run.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.dumps.arena import DumpedArena, DumpedBuffer, arena_of
from loadmaster.integrations.dumps.text import number_in, read_bytes

_ALIGNMENT = 512
"""Alignment in bytes of blocks of the caching allocator."""
_GROWS, _SHRINKS = ("segment_alloc", "segment_map"), ("segment_free", "segment_unmap")
_DATA = """
PROTO FRAME STOP MARK POP POP_MARK DUP NONE NEWTRUE NEWFALSE INT BININT BININT1 BININT2 LONG
LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8
UNICODE BINUNICODE SHORT_BINUNICODE BINUNICODE8 EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 LIST
EMPTY_LIST APPEND APPENDS DICT EMPTY_DICT SETITEM SETITEMS EMPTY_SET ADDITEMS FROZENSET GET
BINGET LONG_BINGET PUT BINPUT LONG_BINPUT MEMOIZE
"""
"""Opcodes of pickle that make plain values, without those that import or call."""


class _PlainUnpickler(pickle._Unpickler):
    """Unpickles plain values only. The unpickler in C is not used, because one index in a file can
    make it allocate all memory."""

    dispatch: ClassVar = {
        code: pickle._Unpickler.dispatch[code]
        for code in (getattr(pickle, name)[0] for name in _DATA.split())
    }


@dataclass
class _Stream:
    """State of one stream: live blocks, all blocks, and reserved bytes (peak and current) relative
    to those at the start."""

    live: dict[int, DumpedBuffer] = field(default_factory=dict)
    blocks: list[DumpedBuffer] = field(default_factory=list)
    reserved: int = 0
    most: int = 0


def read(path: Path) -> list[DumpedArena]:
    """Read the streams of all devices.

    Raises
    ------
    AllocationError
        If the file cannot be read, is no snapshot, has no trace, or a malformed event; the message
        names the event.
    """
    snapshot = _unpickle(path)
    traces = snapshot.get("device_traces") if isinstance(snapshot, dict) else None
    if not isinstance(traces, list) or not all(isinstance(trace, list) for trace in traces):
        raise AllocationError(
            f"{path}: holds no device_traces: give what torch.cuda.memory._dump_snapshot writes"
        )
    arenas: list[DumpedArena] = []
    for device, trace in enumerate(traces):
        streams = _streams(path, device, trace)
        segments = [
            each
            for each in _records(snapshot.get("segments", []), f"{path}: segments")
            if each.get("device") == device
        ]
        for segment in segments:
            streams.setdefault(number_in(segment, "stream", f"{path}: segment"), _Stream())
        for stream in sorted(streams):
            mine = [each for each in segments if each["stream"] == stream]
            name = f"device {device}, stream {stream}"
            arenas += _arena(path, name, streams[stream], mine, len(trace))
    if not arenas:
        raise AllocationError(
            f"{path}: holds no event: call torch.cuda.memory._record_memory_history() before what"
            " is to be recorded"
        )
    return arenas


READER = read


def _unpickle(path: Path) -> Any:
    """Return the plain values of a snapshot's pickle; raise AllocationError for anything else."""
    try:
        return _PlainUnpickler(io.BytesIO(read_bytes(path))).load()
    except AllocationError:
        raise
    except Exception as error:  # A damaged pickle may raise anything.
        raise AllocationError(
            f"{path}: is no pickle of plain values ({type(error).__name__}: {error}): give what"
            " torch.cuda.memory._dump_snapshot writes"
        ) from None


def _streams(path: Path, device: int, trace: Sequence[object]) -> dict[int, _Stream]:
    """Return the state of each stream after all events of a device's trace."""
    streams: dict[int, _Stream] = {}
    where = f"{path}: device_traces[{device}]"
    for number, event in enumerate(_records(trace, where)):
        spot = f"{where}[{number}]"
        action = event.get("action")
        if action not in ("alloc", "free_completed", *_GROWS, *_SHRINKS):
            continue
        address, size, stream = (number_in(event, key, spot) for key in ("addr", "size", "stream"))
        mine = streams.setdefault(stream, _Stream())
        if action == "alloc":
            if address in mine.live:
                raise AllocationError(
                    f"{spot}: address {address:#x} is given twice: the trace is damaged"
                )
            mine.live[address] = DumpedBuffer(f"block {number}", number, number, size, address)
        elif action == "free_completed":
            block = mine.live.pop(address, None) or DumpedBuffer(
                f"block before {number}", 0, 0, size, address
            )
            if number > block.first:
                mine.blocks.append(block._replace(last=number - 1))
        else:
            mine.reserved += size if action in _GROWS else -size
            mine.most = max(mine.most, mine.reserved)
    return streams


def _arena(
    path: Path, name: str, stream: _Stream, segments: Sequence[Mapping[str, Any]], events: int
) -> Iterator[DumpedArena]:
    """Return the arena of a stream, None if it has no blocks; ``segments`` are those at the end of
    the trace."""
    ends = list(stream.live.values())
    for number, segment in enumerate(segments):
        for block, address in _blocks(segment, f"{path}: segments[{number}]"):
            if block.get("state") != "inactive" and address not in stream.live:
                key = "requested_size" if "requested_size" in block else "size"
                size = number_in(block, key, f"{path}: block")
                ends.append(DumpedBuffer(f"block at {address:#x}", 0, 0, size, address))
    blocks = stream.blocks + [block._replace(last=max(events - 1, block.first)) for block in ends]
    if not blocks:
        return
    lowest = min(block.offset or 0 for block in blocks)
    arena = arena_of(
        path,
        name,
        [block._replace(offset=(block.offset or 0) - lowest) for block in blocks],
        _ALIGNMENT,
    )
    now = sum(number_in(each, "total_size", f"{path}: segment") for each in segments)
    yield replace(arena, taken=max(now - stream.reserved, 0) + stream.most)


def _blocks(segment: Mapping[str, Any], spot: str) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield the blocks of a segment with their addresses, which older snapshots do not contain."""
    address = number_in(segment, "address", spot)
    for block in _records(segment.get("blocks", []), f"{spot}.blocks"):
        if "address" in block:
            address = number_in(block, "address", f"{spot}.blocks")
        yield block, address
        address += number_in(block, "size", f"{spot}.blocks")


def _records(values: object, spot: str) -> list[dict[str, Any]]:
    """Return a list of mappings of the snapshot; raise AllocationError if it is none."""
    if not isinstance(values, list):
        raise AllocationError(f"{spot} is no list: the snapshot is damaged")
    for number, value in enumerate(values):
        if not isinstance(value, dict):
            raise AllocationError(f"{spot}[{number}] is no mapping: the snapshot is damaged")
    return values

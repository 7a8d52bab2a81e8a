"""TensorFlow Lite for Microcontrollers: log of a build with `TF_LITE_SHOW_MEMORY_USE`.

Each tensor and scratch buffer has a line; lifetimes are inclusive, counted in operators, and -1 to
-1 for unused tensors. Every plan in the log is an arena.
"""

from __future__ import annotations

import re
from pathlib import Path

from loadmaster.core.errors import AllocationError
from loadmaster.integrations.dumps.arena import DumpedArena, DumpedBuffer, arena_of
from loadmaster.integrations.dumps.text import numbered, read_text, whole

_LINE = re.compile(
    r"\(id=(\d+)\): size=(\d+), offset=(-?\d+), first_used=(-?\d+),? last_used=(-?\d+)"
)
_ALIGNMENT = 16


def read(path: Path) -> list[DumpedArena]:
    """Read all plans of a log as arenas. Raises the errors of `logged_plans`."""
    arenas = []
    for number, plan in enumerate(logged_plans(path), 1):
        buffers = [each._replace(first=each.first + 1, last=each.last + 1) for each in plan]
        arenas.append(arena_of(path, f"plan {number}", buffers, _ALIGNMENT))
    return arenas


READER = read


def logged_plans(path: Path) -> list[list[DumpedBuffer]]:
    """Return the buffers of all plans of a log, at least one, with lifetimes as TFLM counts them.

    Raises
    ------
    AllocationError
        If the file cannot be read, has no plan, or an incomplete one; the message names file and
        line.
    """
    plans: list[list[DumpedBuffer]] = []
    for number, line in numbered(read_text(path)):
        if "(id=" not in line:
            continue
        spot, match = f"{path}:{number}", _LINE.search(line)
        if match is None:
            raise AllocationError(f"{spot}: is no whole line of a buffer: the log is cut off")
        buffer, size, offset, first, last = (whole(text, spot) for text in match.groups())
        if buffer == 0:
            plans.append([])
        if not plans or buffer != len(plans[-1]):
            raise AllocationError(
                f"{spot}: buffer {buffer} does not follow the one before it: the log is not whole"
            )
        if size % _ALIGNMENT or min(offset, first + 1, last - first) < 0:
            raise AllocationError(
                f"{spot}: buffer {buffer} has {size} bytes at {offset} from {first} to {last}: the"
                " log is damaged"
            )
        plans[-1].append(DumpedBuffer(f"buffer {buffer}", first, last, size, offset))
    if not plans:
        raise AllocationError(
            f"{path}:1: holds no plan: build TFLM with TF_LITE_SHOW_MEMORY_USE, and give what it"
            " prints"
        )
    return plans

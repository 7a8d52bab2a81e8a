"""Python's garbage collector, told to look less often while records are made by the million."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 1_000_000
"""Records more than are freed, between two looks: few of them are ever part of a cycle."""


@contextmanager
def gc_relaxed() -> Iterator[None]:
    """Look for cycles less often, unless they are looked for less often still; afterwards what was
    set before holds again."""
    first, *others = gc.get_threshold()
    if not 0 < first < _MANY:
        yield
        return
    gc.set_threshold(_MANY, *others)
    try:
        yield
    finally:
        gc.set_threshold(first, *others)

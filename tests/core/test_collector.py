"""The garbage collector is told what it was told before, whatever happens in between."""

import gc

import pytest

from loadmaster.core.progress import gc_relaxed


@pytest.mark.parametrize("before", [700, 0, 10**6])
def test_what_was_set_before_holds_afterwards(before):
    found = gc.get_threshold()
    gc.set_threshold(before, *found[1:])
    try:
        with gc_relaxed():
            assert gc.get_threshold()[0] == (1_000_000 if before == 700 else before)
        assert gc.get_threshold()[0] == before
    finally:
        gc.set_threshold(*found)

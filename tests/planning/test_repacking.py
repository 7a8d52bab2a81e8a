"""What a search finds but cannot be packed is tried again with less of the fast memory."""

from tests.planning.test_stacks import machine
from tests.support.cut_networks import convolutions
from tests.support.efforts import TEST

import loadmaster as lm
from loadmaster.planning import packing
from loadmaster.planning.packing import pack


def test_the_search_goes_on_with_less_room_where_a_packing_leaves_something_out(monkeypatch):
    """The packer is given a memory that is smaller than the search thinks, as gaps between buffers
    make it."""
    left_out = []

    def in_less(*given, capacity, **options):
        if options.get("whole"):
            return pack(*given, capacity=capacity, **options)
        found = pack(*given, capacity=capacity * 9 // 10, **options)
        left_out.append(int((found.offsets < 0).sum()))
        return found

    monkeypatch.setattr(packing, "pack", in_less)
    plan = lm.plan(
        [convolutions(rows=33, channels=16, strides=(1, 1, 1, 1))],
        machine(24_000),
        cut="none",
        effort=TEST,
    )
    assert lm.verify(plan) == ()
    assert left_out[0] > 0
    assert left_out[-1] < left_out[0]

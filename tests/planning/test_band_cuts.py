"""Which networks are cut into bands: those for which the fast memory is not ample, beside others
that stay as they are."""

import itertools

from tests.support.cut_networks import convolutions
from tests.support.efforts import SEPARATE
from tests.support.networks import npu
from tests.support.random_networks import Builder

import loadmaster as lm
from loadmaster.planning.cutting.band_cuts import stacks_of_bands
from loadmaster.workloads.lowering.pieces import DivisibleNetwork

TARGET = npu(scratchpad=16 * 1024)


def test_only_networks_that_need_it_are_cut_into_bands_and_all_their_pieces_are_made():
    large, small = (DivisibleNetwork.of(convolutions(rows=rows), TARGET) for rows in (64, 6))
    ways = list(stacks_of_bands([large, small], [], TARGET, lambda: False))
    assert ways
    for _, (cut, left) in ways:
        assert sum(one.tiles for one in cut.cuts) > len(large.fused)
        assert list(left.cuts) == list(small.plain)
        for cuts in (cut, left):
            pieces = itertools.chain.from_iterable(
                ((number, tile) for tile in range(one.tiles))
                for number, one in enumerate(cuts.cuts)
            )
            assert sorted(cuts.steps) == sorted(pieces)


def test_what_is_more_than_ample_changes_nothing():
    """A machine with more memory is offered what suits one for which less is ample."""
    network = DivisibleNetwork.of(convolutions(rows=16), TARGET)
    offered = [
        [
            [list(own.cuts) for own in cuts]
            for _, cuts in stacks_of_bands([network], [], npu(scratchpad=size), lambda: False)
        ]
        for size in (16 * 1024, 64 * 1024, 1024 * 1024)
    ]
    assert offered[0]
    assert offered[0] == offered[1] == offered[2]


def test_bands_of_what_has_more_rows_than_loops_are_planned():
    """A transposed convolution that doubles its rows: a band of a single one would have nothing to
    do."""
    build = Builder(0)
    x = build.add(
        "ConvTranspose",
        build.input(1, 16, 3, 1),
        build.weight(16, 2, 3, 3),
        strides=[2, 2],
        pads=[0, 0, 1, 1],
    )
    graph = lm.load(build.model(build.add("Relu", x)), precision="int8")
    plan = lm.plan([graph], npu(3, 300), effort=SEPARATE)
    assert lm.verify_against(plan, [graph], npu(3, 300)) == ()

"""Pieces that follow those that they read."""

from itertools import pairwise

import numpy as np
from tests.planning.test_cut_choice import choice_of, unlike
from tests.support.cut_networks import convolutions

from loadmaster.planning.cutting.candidates import refined
from loadmaster.planning.cutting.choice import CutChoice
from loadmaster.planning.cutting.options import costed_grids
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.window import shared, volume


def explored():
    choice, _ = choice_of(convolutions(rows=56, channels=24, strides=(1, 1), skip=True), unlike(3))
    return choice, choice.explored(choice.improved(choice.whole))


def test_refined_cuts_make_all_of_every_result_once_and_end_earlier():
    choice, chosen = explored()
    finer = refined(choice, chosen, unlike(3))
    better = finer.improved(finer.whole)
    assert finer.seconds(better) < choice.seconds(chosen)
    assert better == refined(*explored(), unlike(3)).improved(finer.whole)
    for own in finer.networks[0].options:
        for option in own:
            if not isinstance(option.cut, Grid):
                continue
            boxes = option.cut.boxes
            assert sum(map(volume, boxes)) == np.prod(option.cut.shape)
            assert not any(shared(one, other) for one, other in pairwise(boxes))
            assert option.costs.alone.shape == (len(boxes), 3)


def test_some_pieces_need_nothing_behind_the_piece_that_they_wait_for():
    """Rows of a 3 x 3 convolution follow rows 0 to 6 of what they read, and so on, one row short of
    each end."""
    choice, _ = choice_of(convolutions(rows=28, channels=24, strides=(1, 1), skip=False), unlike(4))
    network = choice.networks[0]
    rows = Grid(network.forms[0].shape, ((1,), (24,), (7, 14, 21, 28), (28,)))
    (option,) = costed_grids(network.graph, network.fused, network.forms, [(0, rows)], unlike(4))
    network.options[0].append(option)
    finer = refined(CutChoice([network], unlike(4)), (len(network.options[0]) - 1, 0), unlike(4))
    ends = [
        option.cut.ends[2]
        for option in finer.networks[0].options[1]
        if isinstance(option.cut, Grid) and option.cut.shape
    ]
    assert (6, 13, 20, 28) in ends
    assert (13, 28) in ends

"""Ways to cut that differ a little from those chosen, and pieces that follow those that they
read."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from tests.planning.test_cut_choice import choice_of, unlike
from tests.support.cut_networks import convolutions

from loadmaster.planning.cutting.candidates import _explored, refined
from loadmaster.planning.cutting.choice import Chosen, CutChoice
from loadmaster.planning.cutting.options import costed_grids
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.window import shared, volume


def explored(skip: bool = False) -> tuple[CutChoice, Chosen]:
    choice, _ = choice_of(
        convolutions(rows=28, channels=24, strides=(1, 1, 2), skip=skip), unlike(4)
    )
    return choice, choice.explored(choice.improved(choice.whole))


@pytest.mark.parametrize("skip", [False, True])
def test_what_was_chosen_comes_first_and_what_was_offered_stays(skip: bool) -> None:
    choice, chosen = explored(skip)
    finer = refined(choice, chosen, unlike(4))
    assert finer.cuts(finer.whole) == choice.cuts(chosen)
    assert finer.seconds(finer.whole) == choice.seconds(chosen)
    more = 0
    for before, now in zip(choice.networks[0].options, finer.networks[0].options, strict=True):
        assert {option.cut for option in before} <= {option.cut for option in now}
        assert len({option.cut for option in now}) == len(now)
        more += len(now) - len(before)
    assert more > 10


def test_refined_cuts_make_all_of_every_result_once_and_end_earlier() -> None:
    choice, chosen = explored()
    finer = refined(choice, chosen, unlike(4))
    better = finer.improved(finer.whole)
    assert finer.seconds(better) < choice.seconds(chosen)
    assert better == refined(*explored(), unlike(4)).improved(finer.whole)
    for own in finer.networks[0].options:
        for option in own:
            if not isinstance(option.cut, Grid):
                continue
            boxes = option.cut.boxes
            assert sum(map(volume, boxes)) == np.prod(option.cut.shape)
            assert not any(shared(one, other) for one, other in pairwise(boxes))
            assert option.costs.alone.shape == (len(boxes), 4)


def test_exploring_chooses_among_what_differs_a_little_too() -> None:
    choice, options = choice_of(
        convolutions(rows=28, channels=24, strides=(1, 1, 2), skip=True), unlike(4)
    )
    start = choice.improved(choice.whole)
    (finer, chosen), *_ = _explored(choice, start, unlike(4))
    offered = {option.cut for own in options for option in own}
    assert any(cut not in offered for cut in finer.cuts(chosen)[0])
    assert finer.seconds(chosen) < choice.seconds(choice.explored(start))


def test_some_pieces_need_nothing_behind_the_piece_that_they_wait_for() -> None:
    """Rows of a 3 x 3 convolution follow rows 0 to 6 of what they read, and so on, one row short of
    each end."""
    choice, _ = choice_of(convolutions(rows=28, channels=24, strides=(1, 1), skip=False), unlike(4))
    network = choice.networks[0]
    rows = Grid(network.forms[0].shape, ((1,), (24,), (7, 14, 21, 28), (28,)))  # type: ignore[union-attr]
    (option,) = costed_grids(network.graph, network.fused, network.forms, [(0, rows)], unlike(4))
    network.options[0].append(option)  # type: ignore[attr-defined]
    finer = refined(CutChoice([network], unlike(4)), (len(network.options[0]) - 1, 0), unlike(4))
    ends = [
        option.cut.ends[2]
        for option in finer.networks[0].options[1]
        if isinstance(option.cut, Grid)
    ]
    assert (6, 13, 20, 28) in ends
    assert (13, 28) in ends

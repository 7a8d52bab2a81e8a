"""Unequal pieces for unlike cores, and the choice of cuts for all operators of a network
together."""

from dataclasses import replace

import numpy as np
import pytest
from tests.planning.test_stacks import machine
from tests.support.cut_networks import convolutions
from tests.support.networks import npu

import loadmaster as lm
from loadmaster import _native
from loadmaster.planning.cutting.choice import CutChoice
from loadmaster.planning.cutting.options import (
    balanced_sizes,
    canonical_index,
    largest_within,
    operator_options,
)
from loadmaster.workloads.lowering.grid import WHOLE, Grid
from loadmaster.workloads.lowering.pieces import Cuts, DivisibleNetwork
from loadmaster.workloads.window import common_box, volume


def unlike(cores=3):
    return npu(cores, 40_000)


def whole_operators(graph, target):
    network = DivisibleNetwork.of(graph, target)
    return replace(network, plain=[WHOLE] * len(network.fused))


def choice_of(graph, target):
    return CutChoice([whole_operators(graph, target)], target)


def seconds(choice, chosen):
    """Seconds until all ends with an option for every operator, run anew."""
    return choice._native.makespan(np.array(chosen))


def whole(choice):
    return (0,) * len(choice._order)


def single_changes(choice, chosen):
    """The seconds of all that differs in one operator."""
    own = [choice.options[network][number] for network, number in choice._order]
    for at, options in enumerate(own):
        for option in range(len(options)):
            yield seconds(choice, (*chosen[:at], option, *chosen[at + 1 :]))


def ends(sizes, seconds, cores, chosen):
    """When each core ends its piece, a larger piece taking no less time than a smaller one."""
    times = np.maximum.accumulate(seconds, axis=0)
    # What is left over for the last may lie between two sizes: it takes no more than the larger.
    return [
        float(times[np.searchsorted(sizes, size), core]) if size else 0.0
        for core, size in zip(cores, chosen, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_balanced_sizes_cover_all_and_no_others_end_earlier(seed):
    generator = np.random.default_rng(seed)
    for _ in range(20):
        extent, cores = int(generator.integers(1, 40)), int(generator.integers(1, 5))
        sizes = np.unique(np.append(generator.integers(1, extent + 1, 8), extent))
        seconds = generator.random(cores)[None, :] * sizes[:, None] + 0.1 * generator.random(
            (len(sizes), cores)
        )
        named = generator.integers(0, cores, int(generator.integers(1, 6))).tolist()
        chosen = balanced_sizes(largest_within(sizes, seconds), named)
        assert sum(chosen) == extent
        latest = max(ends(sizes, seconds, named, chosen))
        # With any end before that, all cores together would make less than all of it.
        times = np.maximum.accumulate(seconds, axis=0)[:, named]
        most = [
            max(
                (int(size) for size, own in zip(sizes, column, strict=True) if own < latest),
                default=0,
            )
            for column in times.T
        ]
        assert sum(most) < extent


def test_options_cover_results_once_and_cost_what_their_jobs_do():
    """Costs of pieces that are worked out before cutting are those of the jobs that come of it, but
    for what lies at the edges."""
    graph, target = convolutions(rows=20, channels=12, strides=(1, 2)), unlike()
    options = operator_options(whole_operators(graph, target), target)
    grids = 0
    for number, own in enumerate(options):
        assert own[0].cut == WHOLE
        assert len({option.cut for option in own}) == len(own)
        for option in own[1:]:
            assert isinstance(option.cut, Grid)
            boxes, grids = option.cut.boxes, grids + 1
            assert sum(map(volume, boxes)) == np.prod(option.cut.shape)
            assert not any(
                volume(common_box(one, other)) for i, one in enumerate(boxes) for other in boxes[:i]
            )
            assert option.costs.alone.shape == (len(boxes), len(target.cores))
            cuts = [option.cut if n == number else WHOLE for n in range(len(options))]
            jobs = [job for job in lm.lower([graph], target, cuts=[Cuts(cuts)]).jobs if job.ranges]
            assert [job.ranges for job in jobs] == list(boxes)
    assert grids > 20
    assert any(
        len({volume(box) for box in option.cut.boxes}) > 1 for own in options for option in own[1:]
    ), "else none is unequal"


def test_a_hundred_cores_have_no_more_options_than_there_are_sizes(monkeypatch):
    asked = []

    def counted(within, cores):
        asked.append(len(cores))
        return balanced_sizes(within, cores)

    monkeypatch.setattr("loadmaster.planning.cutting.options.balanced_sizes", counted)
    graph = convolutions(rows=20, channels=12)
    operator_options(whole_operators(graph, unlike(100)), unlike(100))
    # On each core up to four pieces, or sixteen on one.
    assert 20 <= max(asked) <= 4 * 20


@pytest.mark.parametrize("seed", range(10))
def test_hardly_any_single_change_of_what_was_chosen_ends_earlier(seed):
    generator = np.random.default_rng(seed)
    strides = tuple(generator.choice([1, 2], 3).tolist())
    graph = convolutions(
        rows=int(generator.choice([9, 16, 24])),
        channels=int(generator.choice([8, 24])),
        strides=strides,
        skip=bool(seed % 2),
    )
    target = unlike(int(generator.integers(2, 5)))
    choice, again = (choice_of(graph, target) for _ in range(2))
    chosen = choice.improved()[0]
    assert seconds(choice, chosen) < seconds(choice, whole(choice))
    earliest = min(single_changes(choice, chosen))
    assert earliest >= 0.998 * seconds(choice, chosen), "annealing may end beside an optimum"
    assert chosen == again.improved()[0]


def test_networks_and_mini_batches_run_side_by_side():
    target = unlike(4)
    networks = [
        whole_operators(convolutions(rows=24, channels=24, strides=strides), target)
        for strides in ((1, 1), (1, 2, 1))
    ]
    alone = [CutChoice([network], target) for network in networks]
    both, twice = CutChoice(networks, target), CutChoice(networks, target, 2)
    finest = [tuple(len(own) - 1 for own in options) for options in both.options]
    chosen = tuple(finest[network][number] for network, number in both._order)
    assert both.cuts(chosen) == [own.cuts(each)[0] for own, each in zip(alone, finest, strict=True)]
    each = [seconds(own, whole(own)) for own in alone]
    assert max(each) <= seconds(both, whole(both)) < sum(each), (
        "whole operators leave cores to the other network"
    )
    assert (
        seconds(both, chosen)
        < seconds(twice, chosen)
        < 2 * sum(seconds(own, each) for own, each in zip(alone, finest, strict=True))
    )
    assert seconds(twice, twice.improved()[0]) < seconds(twice, chosen)


def two_operators(**changed):
    """An operator in two pieces of 1 and 3 seconds, and one whose pieces of 2 seconds and 1 need
    parts of it, on two cores."""
    given = {
        "option_first": [0, 1, 2],
        "piece_first": [0, 2, 4],
        "need_first": [0, 0, 0, 1, 2],
        "alone": np.repeat([[1.0], [3.0], [2.0], [1.0]], 2, axis=1),
        "link": [0.0] * 4,
        "made": [[0, 1], [1, 2], [0, 1], [1, 2]],
        "needed": [[0, 1], [1, 2]],
        "source_first": [0, 0, 1],
        "source": [0],
        "fetch": [0.0] * 4,
        "stream": [0.0] * 4,
        "copied": 0.0,
        "given": [0, 0],
        "room": [100, 100],
        "mini_batches": 1,
    }
    arrays = {
        name: np.array(value) if isinstance(value, list) else value
        for name, value in (given | changed).items()
    }
    return _native.CutProblem(**arrays)


@pytest.mark.parametrize(
    ("changed", "seconds"),
    [
        ({}, 4.0),
        ({"needed": [[0, 2], [0, 2]]}, 5.0),
        # 21 seconds of work in all, which two cores share.
        ({"mini_batches": 3}, 11.0),
        # Both pieces of the first need it; or it is fetched while the first runs.
        ({"fetch": [2.0, 0, 0, 0]}, 6.0),
        ({"fetch": [0, 0, 0, 5.0]}, 6.0),
        # What has no room ahead of its use is fetched when the first has ended.
        ({"fetch": [0, 0, 5.0, 0], "given": [0, 50]}, 7.0),
        ({"fetch": [0, 0, 5.0, 0], "given": [0, 200]}, 10.0),
        # What counts is the room while the operators before it run.
        ({"fetch": [0, 0, 5.0, 0], "given": [0, 200], "room": [200, 0]}, 7.0),
        # One link serves all.
        ({"link": [1.0, 3, 2, 1]}, 7.0),
        ({"stream": [1.0, 3, 2, 1]}, 7.0),
    ],
)
def test_a_piece_waits_for_what_it_reads_and_what_is_fetched_and_for_nothing_else(changed, seconds):
    assert two_operators(**changed).makespan(np.array([0, 0])) == seconds


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"source": [1]}, "source"),
        ({"source": [-1]}, "source"),
        ({"need_first": [0, 0, 0, 2, 2]}, "need_first"),
        ({"piece_first": [0, 3, 4]}, "need_first"),
        ({"piece_first": [0, 4, 4]}, "piece"),
        ({"option_first": [0, 0, 2]}, "option_first"),
        ({"alone": np.full((4, 2), np.nan)}, "alone"),
        ({"link": [0.0] * 3}, "different lengths"),
        ({"made": np.zeros((4, 4), dtype=np.int64)}, "rank"),
        ({"given": [0, -1]}, "given"),
        ({"room": [100, -1]}, "room"),
        ({"room": [100]}, "room"),
        ({"copied": np.inf}, "copied"),
        ({"mini_batches": 0}, "mini_batches"),
    ],
)
def test_native_code_refuses_what_does_not_fit_together(changed, message):
    with pytest.raises(ValueError, match=message):
        two_operators(**changed)


def test_native_code_refuses_options_that_are_not_there():
    problem = two_operators()
    for option in ([0], [0, 1], [0, -1]):
        with pytest.raises(ValueError, match="option"):
            problem.makespan(np.array(option))


# Operators that are alike.


def test_operators_are_alike_if_nothing_but_names_differs():
    network = DivisibleNetwork.of(convolutions(strides=(1, 1, 1, 2), skip=False), machine(4000))
    assert canonical_index(network) == [0, 0, 0, 3]


@pytest.mark.parametrize("bandwidth", [1e-3, 1e-17])
def test_a_fast_memory_that_hardly_moves_is_simulated_to_an_end(bandwidth):
    """Copies and pieces hold its link for no longer than the longest time that is simulated."""
    target = npu(2, 40_000)
    near = replace(target.near, read_bandwidth=bandwidth, write_bandwidth=bandwidth)
    choice = choice_of(convolutions(), replace(target, memories=(target.main, near)))
    assert 0 < seconds(choice, whole(choice)) < float("inf")

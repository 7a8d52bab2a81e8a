"""Runs of operators that are alike: what one takes in bands is what another takes, in whatever
order they are asked for."""

import numpy as np
from tests.planning.test_stacks import machine, model_of, network_of
from tests.support.cut_networks import convolutions

from loadmaster.planning.cutting.alike import Runs, first_alike
from loadmaster.planning.cutting.band_lives import BandLives
from loadmaster.planning.cutting.stacks import StackCosts


def test_runs_are_alike_if_nothing_but_names_differs() -> None:
    network, _ = network_of(convolutions(strides=(1, 1, 1, 2), skip=False), machine(4000))
    runs = Runs(network)
    assert first_alike(network.graph, network.fused, network.forms) == [0, 0, 0, 3]
    (first, names), (second, other) = runs.of(0, 1), runs.of(1, 2)
    # One reads the network's input, the other what the first makes.
    assert first != second
    assert len(set(names)) == len(names) == len(other)
    assert runs.of(2, 3)[0] == second
    assert runs.of(2, 3)[1] != other
    assert runs.of(1, 3)[0] != runs.of(0, 2)[0]


def test_bands_of_runs_that_are_alike_take_what_each_takes_by_itself() -> None:
    target = machine(20_000)
    hits = 0
    for strides, skip in (((1,) * 8, False), ((1, 2, 1, 1, 1, 1), True)):
        network, plain = network_of(convolutions(strides=strides, skip=skip), target)
        model = model_of(network, target, plain)
        seen, setting = model._seen[0], model.setting
        for last in range(2, len(network.fused) + 1):
            lives: dict[int, BandLives] = {}
            stacks = [StackCosts(model, seen, first, last, lives) for first in range(last - 1)]
            # Longer ones first: shorter ones must not be told what these take.
            for stack in stacks:
                for bands in (2, 4, 16):
                    known = len(model.cut_alike)
                    found = stack._cut(bands)
                    hits += len(model.cut_alike) == known
                    alone = BandLives(setting, seen, last, bands).banded(stack.first)
                    assert (found is None) == (alone is None)
                    if found is not None and alone is not None:
                        assert np.array_equal(found.inner, alone.inner)
                        assert found.streams == alone.streams
                        assert {name: sizes.tolist() for name, sizes in found.made.items()} == {
                            name: sizes.tolist() for name, sizes in alone.made.items()
                        }
                        assert (found.sizes, found.pieces, found.work) == (
                            alone.sizes,
                            alone.pieces,
                            alone.work,
                        )
    assert hits > 50

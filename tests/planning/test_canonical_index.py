"""Operators that are alike: what one takes in pieces is what another takes."""

from tests.planning.test_stacks import machine, network_of
from tests.support.cut_networks import convolutions

from loadmaster.planning.cutting.options import canonical_index


def test_operators_are_alike_if_nothing_but_names_differs():
    network, _ = network_of(convolutions(strides=(1, 1, 1, 2), skip=False), machine(4000))
    assert canonical_index(network.graph, network.fused, network.forms) == [0, 0, 0, 3]

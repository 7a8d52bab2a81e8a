"""What operators take at least in pieces, held against the cost of pieces that a grid makes, on any
cores at any prices."""

from dataclasses import replace

import numpy as np
import pytest
from tests.support.lowered import parts_of
from tests.support.networks import npu
from tests.support.onnx_builder import int8_graph

from loadmaster.cost.analytical.divisible import divisible_costs, last_turns
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.targets.hardware import Style
from loadmaster.workloads.lowering.instantiate import lower
from loadmaster.workloads.lowering.pieces import Cuts

pytestmark = pytest.mark.slow


def convolution(generator):
    """One convolution, of which few extents are multiples of the small arrays below."""
    channels, given, rows, taps = (
        int(generator.integers(low, high)) for low, high in ((2, 14), (1, 7), (3, 14), (1, 4))
    )
    pads = [(taps - 1) // 2] * 2 + [taps // 2] * 2
    shapes = {"x": (1, given, rows, rows)}, ["y"], {"w": (channels, given, taps, taps)}
    return int8_graph(f"[conv] y = Conv<pads={pads}>(x, w)", *shapes)


def machine():
    """Arrays of three styles, two of one, whose fast memory is so fast that operands come and go in
    no time."""
    target = npu(4)
    cores = [replace(core, rows=3, columns=4, job_overhead=2e-9) for core in target.cores]
    cores[2] = replace(cores[2], style=Style.OUTPUT_STATIONARY)
    target = replace(target, cores=tuple(cores))
    return target.with_memory(1, read_bandwidth=1e15, write_bandwidth=1e15)


@pytest.mark.parametrize("sums", [False, True], ids=["", "sums"])
def test_pieces_on_any_cores_at_any_prices_take_no_less_than_full_turns_and_a_last_one(sums):
    generator, target, free = np.random.default_rng(7), machine(), np.array([sums])
    met = sharper = 0
    for _ in range(20):
        graph = convolution(generator)
        (form,) = parts_of(graph, sums=sums).forms
        whole = lower([graph], target).jobs
        seconds, joules = divisible_costs(whole, target, free)
        share, extra = last_turns(whole, target, seconds, free)
        plain = job_table(lower([graph], target), target).compute
        assert (seconds + extra <= plain * (1 + 1e-12)).all(), "an operator in one piece is a piece"
        met += bool((plain <= (seconds + extra) * (1 + 1e-3)).any())
        for _ in range(6):
            parts = {
                axis: int(generator.choice([1, 1, 2, 3, form.shape[axis]])) for axis in form.axes
            }
            links = int(generator.choice([1, 2, 3, form.summed])) if form.summed else 1
            cuts = [Cuts([form.chains(parts, min(links, max(1, form.summed)))])]
            table = job_table(lower([graph], target, cuts=cuts), target)
            pieces = table.compute
            # Energies of pieces are whole numbers of femtojoules.
            assert table.energy.min(axis=1).sum() >= joules.min() - 1e-15 * len(pieces)
            for _ in range(10):
                prices = generator.choice([0.0, 0.2, 1.0, 3.0], 4)
                core = generator.integers(0, 4, len(pieces))
                full = share[:, None] * seconds * prices
                last = ((1 - share[:, None]) * seconds + extra) * prices
                least = full.min(axis=1).sum() + last.min(axis=1).sum()
                price = (pieces[np.arange(len(pieces)), core] * prices[core]).sum()
                assert price >= least * (1 - 1e-9)
                sharper += bool(least > (seconds * prices).min() * (1 + 1e-9))
    assert met > 10, "some core takes just so long for many of them"
    assert sharper > 65, "last turns are often more than what a rate alone says"

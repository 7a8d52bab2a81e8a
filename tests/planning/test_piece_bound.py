"""What many pieces take to start, or few to be waited for: elements are paired as is said, and no
number of pieces is below the bound."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from tests.planning.test_network_bounds import bound_of, random_cuts
from tests.support.lowered import parts_of
from tests.support.networks import npu
from tests.support.random_networks import activation, convolution, pooling, random_network, sliced
from tests.support.tiny_plans import tiny_network

import loadmaster as lm
from loadmaster.cost.analytical.divisible import divisible_costs, piece_overheads
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.planning.cutting.precedence import NOWHERE, Pairing, Pieces, pairings, piece_bound
from loadmaster.workloads.lowering.grid import Grid
from loadmaster.workloads.lowering.instantiate import lower

PAIRED = Pairing(1.0, NOWHERE, frozenset())


def shares(cut, axis=NOWHERE, of=(0, 0)):
    """What share of the result, or of a range along one of its dimensions, each piece makes."""
    if not isinstance(cut, Grid):
        return [Fraction(1)]
    found = []
    for box in cut.boxes:
        ranges = [(0, size) if d != axis else of for d, size in enumerate(cut.shape)]
        common = [
            max(0, min(end, last) - max(begin, first))
            for (begin, end), (first, last) in zip(box, ranges, strict=True)
        ]
        found.append(Fraction(math.prod(common), math.prod(last - first for first, last in ranges)))
    return found


def joined(build, x):
    """Results side by side, one of which others may read as well."""
    one, other = (
        build.add("Conv", x, build.weight(build.choose(1, 2), build.shape(x)[1], 1, 1))
        for _ in range(2)
    )
    both = build.add(
        "Concat", *build.choose((one, other), (other, one), (one, x), (one, other, x)), axis=1
    )
    return build.choose(
        lambda: build.add("Relu", both),
        lambda: pooling(build, both),
        lambda: sliced(build, both),
        lambda: build.add(
            "Add",
            build.add("Conv", both, build.weight(build.shape(one)[1], build.shape(both)[1], 1, 1)),
            one,
        ),
    )()


def joining_network(seed):
    layers, shape = (joined, joined, convolution, activation), (1, 3, 3 + seed % 2, 2 + seed % 3)
    return random_network(seed, layers, shape=shape).graph(precision="int8")


def awaited(jobs, readers, writers):
    """Of each reader those writers that it waits for."""
    return [{writers.index(j) for j in jobs[reader].after if j in writers} for reader in readers]


def can_be_paired(readers, writers, waits):
    """Whether shares of readers can be handed to writers that they wait for, each getting its own
    (Hall, 1935)."""
    some = itertools.chain.from_iterable(
        itertools.combinations(range(len(readers)), n) for n in range(1, len(readers) + 1)
    )
    return all(
        sum((readers[r] for r in chosen), Fraction(0))
        <= sum((writers[w] for w in set().union(*(waits[r] for r in chosen))), Fraction(0))
        for chosen in some
    )


def test_pieces_of_what_reads_joined_results_wait_for_their_partners_whichever_way_these_are_cut():
    """Of a reader with pairs in a range of its result there is one range in which each of its
    pieces gets its own, for all cuts."""
    whole = parts = 0
    for seed in range(24):
        generator, graph = np.random.default_rng(seed), joining_network(seed)
        single, fused, forms = parts_of(graph)
        cuts = [random_cuts(graph, generator, sums=False) for _ in range(4)]
        lowered = [(own, lower([graph], npu(2, 10**6), cuts=[own]).jobs) for own in cuts]
        for v, writers in enumerate(pairings(single, fused, forms)):
            for u, pairing in writers.items():
                form = forms[v]
                extent = 1 if form is None or pairing.axis == NOWHERE else form.shape[pairing.axis]
                length, able = round(pairing.share * extent), []
                for own, jobs in lowered:
                    readers, makers = (
                        [j for j, (group, _) in enumerate(own.steps) if group == number]
                        for number in (v, u)
                    )
                    if len(readers) > 9:
                        continue
                    waits = awaited(jobs, readers, makers)
                    able.append(
                        [
                            can_be_paired(
                                shares(own.cuts[v], pairing.axis, (at, at + length)),
                                shares(own.cuts[u]),
                                waits,
                            )
                            for at in range(extent - length + 1)
                        ]
                    )
                    whole += pairing.share == 1 and len(readers) > 1 and len(makers) > 1
                    parts += pairing.share < 1 and len(readers) > 1
                assert not able or np.all(able, axis=0).any()
    assert whole > 100
    assert parts > 30


@pytest.mark.parametrize("seed", range(4))
def test_no_numbers_of_pieces_are_below_the_bound(seed):
    """A chain of operators on cores that share all work evenly, with equal pieces, which are the
    best: all numbers of them are tried."""
    generator = np.random.default_rng(seed)
    cores, work, overhead = (
        int(generator.integers(2, 5)),
        generator.uniform(1e4, 1e5, 3),
        generator.uniform(1e2, 2e4, 3),
    )
    pieces = Pieces(work, overhead, overhead / cores, np.zeros(3, dtype=np.bool_))
    least = (work + overhead).sum() / cores
    bound = piece_bound([{}, {0: PAIRED}, {1: PAIRED}], pieces, least)

    def taken(counts):
        path = sum(o + w / p for w, o, p in zip(work, overhead, counts, strict=True))
        return max(
            path, sum(w + p * o for w, o, p in zip(work, overhead, counts, strict=True)) / cores
        )

    best = min(taken(counts) for counts in itertools.product(range(1, 17), repeat=3))
    assert least < 0.97 * best, "pieces matter here"
    assert max(least, 0.8 * best) < bound <= best


def test_pieces_pay_for_their_share_and_for_being_pieces():
    generator, target = np.random.default_rng(1), lm.target("edge-npu")
    paid = 0
    for _ in range(30):
        graph = tiny_network(generator, 3)
        whole = lower([graph], target).jobs
        seconds, _ = divisible_costs(whole, target)
        overheads = piece_overheads(whole, target)
        cuts = random_cuts(graph, generator, sums=False)
        work = lower([graph], target, cuts=[cuts])
        table = job_table(work, target)
        of_piece = [(group, tile) for group, tile in cuts.steps]
        for row, (group, tile) in zip(table.compute, of_piece, strict=True):
            share = float(shares(cuts.cuts[group])[tile])
            least = share * (seconds[group] - overheads[group]) + overheads[group]
            assert (row >= least * (1 - 1e-9)).all()
            paid += bool((overheads[group] > 1.1 * 200e-9).any()) and share < 1
    assert paid > 20, "arrays are filled"


def test_starting_pieces_is_what_bounds_networks_of_many_small_operators():
    bound = bound_of(lm.load("onnx:squeezenet", precision="int8"), lm.target("edge-npu"))
    assert bound.limit == "pieces that start and are waited for"
    assert bound.picoseconds > 1.03 * max(
        value for name, value in bound.terms if name != bound.limit
    )

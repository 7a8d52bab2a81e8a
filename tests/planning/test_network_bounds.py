"""The bound of a network holds against every plan of tiny ones: all cuts, cores, orders and
residences."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.support.efforts import verified
from tests.support.lowered import bounds_of, cuts_by, parts_of
from tests.support.networks import npu
from tests.support.nightly import by_night
from tests.support.onnx_builder import absent, constant, constants, model
from tests.support.tiny_plans import (
    best_makespan,
    every_cut,
    least_energy,
    tiny_machine,
    tiny_network,
    tiny_recurrent,
)

import loadmaster as lm
from loadmaster.cost.analytical.energy import energy_rates
from loadmaster.planning.cutting.precedence import Precedence
from loadmaster.workloads.lowering.grid import least_shares
from loadmaster.workloads.lowering.pieces import DivisibleNetwork

pytestmark = pytest.mark.slow


def bound_and_best(graph, target, every, mini_batches=1):
    """The bound, and the picoseconds of the best plan with some of these cuts, which keeps it;
    never where it is slower."""
    bound = bounds_of([graph], target, mini_batches).makespan
    below = bound.picoseconds + 1
    best = min(
        best_makespan(graph, target, cuts, below=below, mini_batches=mini_batches) for cuts in every
    )
    assert best >= bound.picoseconds, bound
    return bound, best


@pytest.mark.parametrize("seed", [0, 1, *by_night(*range(2, 10))])
def test_no_plan_of_any_cut_of_a_tiny_network_is_faster_than_its_bound(seed):
    """50 networks for every seed, on machines of their own: 500 in all, and every plan of each that
    could be faster."""
    generator, met = np.random.default_rng(seed), 0
    for _ in range(50):
        graph = tiny_network(generator, int(generator.integers(2, 5)))
        bound, best = bound_and_best(graph, tiny_machine(generator), every_cut(graph, 4))
        assert bound.picoseconds == max(value for _, value in bound.terms)
        met += best == bound.picoseconds
    assert met > 5, "some bounds are met by a plan, else plans are not tried"


@pytest.mark.parametrize("seed", [0, *by_night(1, 2)])
def test_no_plan_takes_less_energy_than_the_bound_nor_less_time_where_operands_are_read_again(seed):
    generator, met = np.random.default_rng(seed), 0
    for number in range(40):
        graph = tiny_recurrent(generator) if number % 2 else tiny_network(generator, 3)
        target, buffer = tiny_machine(generator), int(generator.choice([512, 16 * 1024]))
        cores = tuple(replace(core, buffer=buffer) for core in target.cores)
        target = replace(target, cores=cores)
        rates = energy_rates(target)
        bounds, every = bounds_of([graph], target), list(every_cut(graph, 4))
        least = min(least_energy(graph, target, cuts, rates) for cuts in every)
        assert least >= bounds.energy, target
        met += least <= 1.02 * bounds.energy
        below = bounds.makespan.picoseconds
        assert all(best_makespan(graph, target, cuts, below=below) >= below for cuts in every)
        assert bounds.latency["net"] <= below
    assert met > 5, "some bounds are met by a plan, else plans are not tried"


def test_no_plan_with_sums_in_parts_is_faster_than_the_bound_of_such(monkeypatch):
    """As if they were offered on machines that use main memory in place, of which every plan can be
    tried."""
    monkeypatch.setattr("loadmaster.planning.cutting.network_bounds.divides_sums", lambda _: True)
    generator, met, near = np.random.default_rng(100), 0, 0
    for _ in range(40):
        graph = tiny_network(generator, int(generator.integers(1, 4)))
        target, every = tiny_machine(generator), list(every_cut(graph, 4, sums=True))
        bound, best = bound_and_best(graph, target, every)
        met += best == bound.picoseconds
        summed = [cuts for cuts in every if any(cut.sums for cut in cuts.cuts)]
        limit = 1.02 * bound.picoseconds
        near += any(best_makespan(graph, target, cuts, below=limit) < limit for cuts in summed)
    assert met > 5, "some bounds are met by a plan, else plans are not tried"
    assert near > 5, "and nearly by plans with sums in parts"


@pytest.mark.parametrize("mini_batches", [2, 3])
def test_no_plan_of_several_mini_batches_is_faster_than_the_bound(mini_batches):
    """Mini-batches read the same weights, each over one link or the other."""
    generator, shared = np.random.default_rng(mini_batches), 0
    for _ in range(60):
        graph = tiny_network(generator, 4 - mini_batches)
        every = every_cut(graph, 4 - mini_batches)
        bound, _ = bound_and_best(graph, tiny_machine(generator), every, mini_batches)
        terms = dict(bound.terms)
        shared += terms["work and traffic, for all cuts"] > terms["traffic of dram"]
    assert shared > 10, "in some, reading weights again is what takes longest"


def random_cuts(graph, generator, *, sums):
    """Operators whole, or in parts along any of their dimensions and of what they sum over, down to
    single elements."""

    def cut(form):
        parts = {axis: int(generator.choice([1, 2, 3, form.shape[axis]])) for axis in form.axes}
        links = min(form.summed, int(generator.choice([1, 2, 3]))) if form.summed else 1
        return form.chains(parts, links)

    return cuts_by(graph, cut, sums=sums)


@pytest.mark.parametrize("sums", [False, True], ids=["", "sums"])
def test_what_is_said_of_precedence_holds_for_the_jobs_of_any_cut(sums):
    generator, said = np.random.default_rng(0), Counter()
    for _ in range(40):
        graph = tiny_network(generator, 4)
        network = DivisibleNetwork.of(graph, npu(2, 10**6), sums=sums)
        precedence = Precedence.of(network)
        for _ in range(8):
            cuts = random_cuts(graph, generator, sums=sums)
            work = lm.lower([graph], npu(2, 10**6), cuts=[cuts])
            after, number = [{*job.after} for job in work.jobs], [group for group, _ in cuts.steps]
            # Those that leave sums to others have ended when the last of their chain has.
            makers = {tensor.producer for tensor in work.tensors if not tensor.summed}
            pieces = [
                {j for j, group in enumerate(number) if group == own}
                for own in range(len(network.fused))
            ]
            results = [own & makers for own in pieces]
            for v, own in enumerate(precedence.needs):
                for u, need in own.items():
                    awaited = [results[u] & after[j] for j in pieces[v]]
                    assert all(awaited) or not need.some
                    assert set().union(*awaited) == results[u] or not need.all_parts
                    assert all(parts == results[u] for parts in awaited) or not need.whole
                    for name in ("some", "all_parts", "whole"):
                        said[name] += getattr(need, name)
                    said["nothing"] += not need.whole
    if sums:
        assert said.pop("whole") == 0, "of a sum in parts no piece needs everything"
    assert len(said) == 4 - sums
    assert min(said.values()) > 100, "each is claimed, and withheld, often"


def test_weights_that_nothing_reads_before_all_else_has_ended_come_after_it():
    """The matrix products of VGG-19 have 124 MB of weights, 8 MiB of which can be there when the
    last convolution ends."""
    networks = [lm.load("onnx:vgg19", precision="int8")]
    bound = bounds_of(networks, lm.target("edge-npu")).makespan
    others = [value for name, value in bound.terms if name != bound.limit]
    assert bound.limit == "longest chain of operators, each shared by all cores"
    assert bound.picoseconds > 1.3 * max(others)


def test_a_table_that_is_looked_up_first_and_multiplied_last_may_come_in_between():
    """As the embeddings of language models are: with a table for each of the two there is no less
    to read, and nothing waits for less."""
    nodes = "s = Gather(table, rows); x0 = Reshape(s, steps)\n"
    for step in range(4):
        nodes += f"""
            l{step} = LSTM<hidden_size=16>(x{step}, w, r)
            x{step + 1} = Reshape(l{step}, steps)
        """
    nodes += "m = ReduceMean<axes=[0], keepdims=0>(x4); t = Transpose<perm=[1,0]>(own)"
    shapes = {"table": (4096, 16), "own": (4096, 16), "w": (1, 64, 16), "r": (1, 64, 16)}
    weights = [*(absent(*each) for each in shapes.items()), *constants(steps=[256, 1, 16])]

    def picoseconds(last):
        product = [nodes.replace("(own)", f"({last})"), "y = MatMul(m, t)"]
        graph = lm.load(model(product, "int64[256] rows", "y", weights, opset=13))
        return bounds_of([graph], npu(2, 2**20)).makespan.picoseconds

    assert picoseconds("table") <= picoseconds("own")


def test_of_an_operand_that_strides_step_over_only_what_is_read_is_charged():
    """Of 5 columns the 2 of the result read the first and the third."""
    half = 'Resize<coordinate_transformation_mode="asymmetric", nearest_mode="floor">'
    nodes = f'y = {half}(x, "", scales); z = Relu(y)'
    scales = constant("scales", [1, 1, 2, 0.5], np.float32)
    graph = lm.load(model(nodes, "float[1,2,12,5] x", "z", [scales]))
    plan = verified([graph], lm.target("edge-npu", ["scratchpad.capacity=1KiB"]))
    traffic = plan.metrics.traffic["dram"]
    assert traffic.value == traffic.lower_bound == 4 * 2 * (12 * 2 + 24 * 2 * 1)


def test_pieces_do_not_take_less_energy_by_rounding():
    """A job's femtojoules are whole, and six pieces may not take three fewer than what they are
    pieces of, so that the plan is below its bound."""
    nodes = "y = MatMul(w, x); z = Relu(y)"
    weight = constant("w", np.zeros((2, 1, 2, 5)), np.float32)
    graph = lm.load(model(nodes, "float[2,1,5,7] x", "z", [weight]), precision="fp16")
    target = npu(2, 2048, bandwidth=1e10)
    verified([graph], target, mini_batches=3, objective="energy", seed=3)


def test_pieces_of_a_result_that_exceeds_the_fast_memory_may_be_read_there():
    nodes = "y = LogSoftmax(x); z = Softmax(y)"
    graph = lm.load(model(nodes, "float[14,15] x", "y, z"))
    plan = verified([graph], npu(3, 300), objective="energy")
    assert plan.transfers


def test_padding_that_strides_step_over_takes_nothing_from_the_bound():
    """Costs take it to be as often read as the operand: of the 7 rows that 4 of the result reach 4
    are, so that a column costs 4/7 of it, though 3 of its 5 rows are there to be read."""
    nodes = "y = Conv<group=2, pads=[2,0,1,1], strides=[2,2]>(x, w); z = Relu(y)"
    weight = constant("w", np.zeros((4, 3, 1, 1)), np.float32)
    small = parts_of(lm.load(model(nodes, "float[2,6,5,2] x", "z", [weight])))
    share = least_shares(small.single, small.fused[0])["x"]
    assert 0 < share <= 1 / 2 * 4 / 7

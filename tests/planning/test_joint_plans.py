"""The joint search: weights are read once, plans hold whatever the times turn out to be, and are
never worse than separate ones."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.planning.test_stacks import machine
from tests.support.cut_networks import convolutions
from tests.support.efforts import verified
from tests.support.lowered import joint_problem
from tests.support.networks import npu, residual_chain

import loadmaster as lm
from loadmaster.planning import addresses
from loadmaster.planning.joint.problem import Chain, JointOptions
from loadmaster.planning.joint.search import JointSearch, StreamTensors
from loadmaster.planning.joint.state import State, best_blocks, order_of
from loadmaster.planning.packing import evict, pack


def test_weights_that_fit_are_read_once_for_all_mini_batches():
    plan = lm.plan([residual_chain(3)], npu(scratchpad=2**20), mini_batches=4, objective="energy")
    weights = {tensor.name for tensor in plan.tensors if tensor.kind == "weight"}
    times = Counter(t.tensor for t in plan.transfers if t.source == "dram" and t.tensor in weights)
    assert set(times.values()) == {1}
    assert plan.metrics.traffic["dram"].value == plan.metrics.traffic["dram"].lower_bound


def test_the_search_is_told_and_only_falls():
    plan = lm.plan([residual_chain(4)], npu(scratchpad=2**14), mini_batches=4)
    values = [step.value for step in plan.search]
    assert len(values) > 1
    assert values == sorted(values, reverse=True)


def test_without_an_engine_nothing_is_fetched():
    plan = verified([residual_chain(2)], npu(copies=False), mini_batches=2)
    assert all(transfer.job for transfer in plan.transfers)


def chain_problem(blocks, scratchpad, mini_batches=1):
    """The search over plans of a chain of blocks, and the chain's jobs in their order."""
    machine = npu(2, scratchpad)
    work = lm.lower([residual_chain(blocks)], machine, mini_batches=mini_batches)
    return joint_problem(work, machine), np.arange(len(work.jobs))


def test_a_core_that_costs_more_is_given_less():
    problem, order = chain_problem(3, 1 << 16, 4)
    given = [
        (problem.evaluate(order, JointOptions(core_prices=(1.0, price))).run.core == 1).sum()
        for price in (1e-3, 1.0, 1e3)
    ]
    assert given[0] > given[1] > given[2]
    plain, even = (
        problem.evaluate(order, JointOptions(core_prices=prices)).run for prices in ((), (1.0, 1.0))
    )
    assert (plain.core == even.core).all()


def test_a_search_that_begins_as_one_before_finds_the_same_with_fewer_evaluations(monkeypatch):
    (problem, order), counts = chain_problem(3, 4096, 3), []
    evaluate = problem.evaluate
    monkeypatch.setattr(problem, "evaluate", lambda *given: counts.append(1) or evaluate(*given))
    found = []
    for _ in range(2):
        before = len(counts)
        search = JointSearch(problem, [order], samples=40, seed=5)
        found.append((search.run(40), len(counts) - before))
    (first, many), (second, few) = found
    assert first.evaluation.final_score == second.evaluation.final_score
    assert (first.order == second.order).all()
    assert few < many / 2


def test_no_order_is_evaluated_twice_with_the_same_choices(monkeypatch):
    problem, own = chain_problem(3, 4096, 3)
    evaluate, tried = problem.evaluate, []

    def noted(order, options):
        tried.append((order.tobytes(), options))
        return evaluate(order, options)

    monkeypatch.setattr(problem, "evaluate", noted)
    search = JointSearch(problem, [own], samples=200, seed=5)
    assert search.run(200).evaluations == 200
    assert len({*tried}) == len(tried) < 200, "what is known takes no time, and counts"
    tried.clear()
    search.shrink_capacity(1, 0.9)
    search.run(20)
    assert tried, "with less room nothing is known"
    assert len({*tried}) == len(tried)


def test_weights_that_a_file_computes_are_weights_and_their_tiles_are_shared():
    """VGG's fully connected weights come from ConstantOfShape and exceed the scratchpad: each tile
    is read once for all mini-batches."""
    network = lm.load("onnx:vgg19", precision="int8")
    work = lm.lower([network], lm.target("edge-npu"), mini_batches=2)
    assert {tensor.kind for tensor in work.tensors if "fc6_w" in tensor.name} == {"weight"}
    sizes = [tensor.bytes for tensor in work.tensors if tensor.storage == "fc6_w_0"]
    assert sum(sizes) == 102760448
    assert max(sizes) <= 2**21


def test_blocks_of_a_long_chain_end_where_little_is_handed_over_and_cover_it():
    dice = np.random.default_rng(1)
    steps, batches = 3000, 4
    weights = dice.integers(1, 1000, steps)
    live = dice.integers(8000, 9000, steps)
    passed = dice.integers(1, 8000, steps)
    chain = Chain(np.arange(batches * steps).reshape(batches, steps), weights, live, passed)
    blocks = best_blocks(chain, 30_000)
    ends = [block.end for block in blocks]
    assert ends == sorted(set(ends))
    assert ends[-1] == steps
    assert len(blocks) > 20
    assert np.mean(chain.passed[ends[:-1]]) < np.mean(chain.passed) / 2
    assert sorted(order_of(chain, blocks).tolist()) == list(range(batches * steps))


@pytest.mark.parametrize("every", [2, 3])
def test_stays_without_addresses_go_back_to_main_memory_and_the_plan_holds(every, monkeypatch):
    """Every second or third stay finds no address, whether its tensor was made on chip or
    fetched. What crosses the main memory's link more is what these stays saved."""
    worth, evicted = [], []

    def clumsy(*columns, **options):
        offsets = pack(*columns, **options)
        if "enough" not in options:
            offsets[::every] = -1
            worth[:] = options["worth"]()
        return offsets

    def counted(stays, placement, timeline, workload, table):
        changed, times = evict(stays, placement, timeline, workload, table)
        before, after = (
            table.moved[each.used[0], 0].sum()
            + sum(workload.tensors[copy.tensor].bytes for copy in each.copies)
            for each in (placement, changed)
        )
        out = stays.offsets < 0
        assert after - before == np.array(worth)[out].sum()
        evicted.append(out.sum())
        return changed, times

    monkeypatch.setattr(addresses, "pack", clumsy)
    monkeypatch.setattr(addresses, "evict", counted)
    for scratchpad in (3_000, 12_000):
        verified([residual_chain(4)], npu(2, scratchpad), mini_batches=2, cut="none")
    assert sum(evicted) > 10


def test_what_is_used_once_is_prefetched_only_where_the_main_link_would_keep_jobs_waiting():
    problem, own = chain_problem(6, 1 << 16)
    copies = [
        len(problem.evaluate(own, JointOptions(streamed_share=share)).run.copies)
        for share in (0.0, 0.3, 1.0, 3.0, math.inf)
    ]
    assert copies == sorted(copies, reverse=True)
    assert copies[0] > copies[-1], copies
    assert any(copies[0] > some > copies[-1] for some in copies), (
        "some are streamed, others are not"
    )


def test_what_is_only_streamed_never_stays_and_other_tensors_still_do():
    problem, own = chain_problem(6, 1 << 16, 2)
    kept = {*problem.evaluate(own, JointOptions()).run.stay_tensor.tolist()}
    assert len(kept) > 2
    for options in (JointOptions(), JointOptions(streamed_share=1.0)):
        for tensor in kept:
            found = problem.evaluate(own, replace(options, streamed_tensors=(tensor,)))
            inside = {*found.run.stay_tensor.tolist()}
            assert inside
            assert tensor not in inside


def streamed(move, before, kept, generator):
    state = State((), (), (), JointOptions(streamed_tensors=before))
    return move.propose(state, kept, generator).policy.streamed_tensors


def test_only_what_is_kept_or_was_changed_before_is_changed():
    move = StreamTensors(chain_problem(6, 1 << 16)[0])
    generator = np.random.default_rng(0)
    nothing, kept = np.empty(0, dtype=np.int64), np.array([2, 5, 5])
    assert streamed(move, (), nothing, generator) == ()
    drawn = [streamed(move, (3,), kept, generator) for _ in range(200)]
    assert {t for some in drawn for t in some} == {2, 3, 5}
    assert () in drawn


# What a search finds but cannot be packed is tried again with less of the fast memory.


def test_the_search_goes_on_with_less_room_where_a_packing_leaves_something_out(monkeypatch):
    """The packer is given a memory that is smaller than the search thinks, as gaps between buffers
    make it."""
    left_out = []

    def in_less(*given, capacity, **options):
        if "enough" in options:
            return pack(*given, capacity=capacity, **options)
        offsets = pack(*given, capacity=capacity * 9 // 10, **options)
        left_out.append(int((offsets < 0).sum()))
        return offsets

    monkeypatch.setattr(addresses, "pack", in_less)
    graph = convolutions(rows=33, channels=16, strides=(1, 1, 1, 1))
    verified([graph], machine(24_000), cut="none")
    assert left_out[0] > 0
    assert min(left_out) < left_out[0]


def test_a_slow_copy_engine_makes_no_plan_slower():
    """It need not be used: jobs stream what they read."""
    network = [lm.load("onnx:squeezenet", precision="int8")]
    machine = lm.target("edge-npu", ["scratchpad.capacity=1MiB", "copy.to_fast=100MB/s"])
    slow, none = (verified(network, each) for each in (machine, replace(machine, copy=None)))
    assert slow.metrics.makespan.value <= 1.05 * none.metrics.makespan.value
    assert all(transfer.job for transfer in slow.transfers)

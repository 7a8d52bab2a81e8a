"""Placements as users get them: packed, checked, never below the bound, never worse than what is
simpler."""

import itertools
import json
import math
import signal
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fuzzing import fuzz, seeds
from tests.support.hand_sequence import kernel, operand, sequence_of, step
from tests.support.needs import FIXTURES
from tests.support.sequences import random_sequence

import loadmaster as lm
from loadmaster.core.errors import CapacityError, PackingError, PlacementError
from loadmaster.core.linear_program import LinearProgram
from loadmaster.placement.answer import CurvePoint
from loadmaster.placement.autotm.engine import PlacementSolution, place_by_program
from loadmaster.placement.decisions import TensorPlacement, blocks_of
from loadmaster.placement.place import _SHORT, _Placer, place, solve
from loadmaster.placement.sequence import CopyLink, least_bytes
from loadmaster.placement.sizing import slowdown_curve, smallest_fast
from loadmaster.placement.verify import broken_placement_rules, verify_placement
from loadmaster.report.placement import _figures, placement_page

MODES = ("static", "sync")
STEP = step()
CROWDED = random_sequence(11, kernels=14, tensors=10)
HALF = CROWDED.peak_bytes // 2


@fuzz(60)
@given(seeds, st.sampled_from(MODES), st.floats(0.2, 1.1), st.booleans())
def test_placements_hold_and_beat_what_is_simpler(seed, mode, share, in_place):
    sequence = random_sequence(seed, kernels=8, tensors=6, in_place=in_place)
    limit = int(sequence.peak_bytes * share)
    try:
        plan = place(sequence, limit, mode=mode)
    except CapacityError:
        return
    assert (verify_placement(plan), plan.limit) == ((), limit)
    assert plan.lower_bound <= plan.seconds
    assert plan.peak_fast <= limit
    for rival in plan.rivals if plan.rounds == 1 else ():
        if (
            rival.name not in ("all-fast", "2lm")
            and None not in (rival.makespan, rival.placement)
            and not any(broken_placement_rules(sequence, rival.placement, limit, plan.mode))
        ):
            assert plan.seconds <= rival.makespan * (1 + 1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_with_room_for_everything_nothing_is_slower_than_all_fast(mode):
    plan = place(STEP, 1000, mode=mode)
    assert plan.seconds <= plan.all_fast_seconds
    assert (plan.status, plan.gap <= 1e-11) == ("optimal", True)
    assert _figures(plan)[0].distance == "at the bound"


def test_without_room_everything_is_slow():
    plan = place(STEP, 5, mode="sync")
    assert plan.seconds == pytest.approx(plan.all_slow_seconds)
    assert plan.placement.stays == ()


def test_more_room_never_hurts_a_curve_and_the_bound_stays_below():
    sequence = random_sequence(7, kernels=12, tensors=9)
    points = slowdown_curve(
        sequence, [sequence.peak_bytes * share // 10 for share in range(11)], mode="sync"
    )
    plans = [plan for plan in points if isinstance(plan, lm.MemoryPlan)]
    assert len(plans) > 5
    assert all(later.seconds <= earlier.seconds for earlier, later in itertools.pairwise(plans))
    assert all(plan.lower_bound <= plan.seconds for plan in plans)


@pytest.mark.slow
def test_the_smallest_fast_memory_meets_the_slowdown_and_less_is_ruled_out_by_the_bound():
    sequence = random_sequence(3, kernels=12, tensors=9)
    found = smallest_fast(sequence, 1.2, mode="sync")
    assert found.plan.slowdown <= 1.2
    assert found.too_small < found.plan.limit
    assert place(sequence, found.too_small, mode="sync").slowdown > 1.2


def test_a_time_limit_counts_for_each_trial():
    assert smallest_fast(CROWDED, 1e6, time_limit=1e-9).plan.limit == 0


def test_what_takes_no_time_in_the_fast_memory_alone_is_infinitely_slower_elsewhere():
    sequence = sequence_of("x 8 input", kernel("k", operand(0, "r", 1.0, 0.0), seconds=0.0))
    found = smallest_fast(sequence, 2.0)
    assert (found.plan.seconds, found.plan.slowdown, found.too_small) == (0.0, 1.0, 7)
    curve = slowdown_curve(sequence, [4])
    assert (curve[0].seconds, curve[0].slowdown) == (1.0, math.inf)
    assert curve[0].as_json()["slowdown"] is None
    placement_page(curve[0], curve[0].as_json(curve=[CurvePoint(4, 1.0, 1.0, math.inf)]), {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "lazy"}, "mode 'lazy'.*static, sync, async"),
        ({"strategy": "magic"}, "strategy 'magic'.*first-touch"),
        (
            {"strategy": "2lm"},
            "^strategy '2lm' is what hardware does by itself.*choose from auto, program, all-fast,",
        ),
        ({"gap": float("nan")}, r"gap.*0\.01"),
        ({"gap": -0.1}, "gap"),
        ({"time_limit": 0.0}, "time limit"),
        ({"seed": -1}, "seed"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_by_name(options, message):
    with pytest.raises(PlacementError, match=message):
        place(STEP, 100, **options)


def test_the_same_seed_gives_the_same_answer():
    one, two = (place(CROWDED, HALF, mode="sync", seed=3) for _ in range(2))
    assert one.placement == two.placement
    assert one.offsets == two.offsets
    assert np.array_equal(one.prices, two.prices)


def test_auto_is_no_worse_than_what_is_simpler_where_packing_takes_several_rounds(monkeypatch):
    sequence = random_sequence(5, kernels=20, tensors=14)
    limit = int(sequence.peak_bytes * 0.45)
    slow = PlacementSolution(
        TensorPlacement((), (), (0,) * 20), sequence.seconds(in_slow=True), 0.0, np.zeros(20)
    )
    monkeypatch.setattr("loadmaster.placement.place.place_by_program", lambda *_, **__: slow)
    tried = []
    blocks, addresses = blocks_of, _Placer._addresses

    def noted(sequence, placement):
        tried.append(placement)
        return blocks(sequence, placement)

    def second_fails(self, *given):
        return addresses(self, *given) if len(tried) != 2 else None

    monkeypatch.setattr("loadmaster.placement.place.blocks_of", noted)
    monkeypatch.setattr(_Placer, "_addresses", second_fails)
    monkeypatch.setattr("loadmaster.placement.place.tops", lambda *_: np.full(20, limit + 2))
    plan = place(sequence, limit, mode="sync")
    best = next(rival for rival in plan.rivals if rival.placement == tried[1])
    assert plan.strategy == f"auto ({best.name})"
    assert len(tried) == 3
    assert (verify_placement(plan), plan.limit) == ((), limit)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_interrupt_ends_the_search_wherever_it_comes_and_the_bound_still_says_something(
    monkeypatch, mode
):
    calls = []

    def stopped(engine):
        def run(*arguments, deadline, **options):
            calls.append(deadline)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return engine(*arguments, deadline=deadline, **options)

        return run

    monkeypatch.setattr("loadmaster.placement.place.place_by_program", stopped(place_by_program))
    plan = place(CROWDED, HALF, mode=mode)
    assert plan.interrupted
    assert not calls[0].is_set
    assert all(deadline.passed() for deadline in calls[1:])
    assert 0 < plan.lower_bound <= plan.seconds


@pytest.mark.parametrize("call", [1, 2])
def test_an_interrupt_of_any_linear_program_ends_the_search(monkeypatch, call):
    """With copies that overlap kernels there are several, each with more rows than the one
    before."""
    solve, calls = LinearProgram._run, []

    def run(self):
        calls.append(self)
        return len(calls) == call or solve(self)

    monkeypatch.setattr(LinearProgram, "_run", run)
    plan = place(CROWDED, HALF, mode="async")
    assert plan.interrupted
    assert len(calls) == call
    assert (verify_placement(plan), plan.lower_bound <= plan.seconds) == ((), True)


@pytest.mark.parametrize("seed", [50, 92])
def test_without_time_to_prove_it_nothing_is_said_to_be_impossible(seed):
    """Measured kernels may conflict on what is fast; only the integer program knows."""
    sequence = random_sequence(seed, hard=True, in_place=True)
    limit = sequence.peak_bytes * (30 + seed % 60) // 100
    with pytest.raises(PackingError, match="ended early: kernel 'k"):
        place(sequence, limit, mode="static", strategy="program", time_limit=1e-9)
    assert verify_placement(place(sequence, limit, mode="static", strategy="program")) == ()


@pytest.mark.parametrize("where", ["baseline", "blocks_of", "solve", "time_moves"])
def test_ctrl_c_between_searches_keeps_the_placement(monkeypatch, where):
    module, sent = sys.modules[place.__module__], []
    called = getattr(module, where)

    def interrupted(*arguments):
        if not sent:
            sent.append(where)
            signal.raise_signal(signal.SIGINT)
        return called(*arguments)

    monkeypatch.setattr(module, where, interrupted)
    for find in (place, lambda *given: slowdown_curve(given[0], [given[1]])[0]):
        sent.clear()
        plan = find(CROWDED, HALF)
        assert (sent, verify_placement(plan)) == ([where], ())


@pytest.mark.slow
def test_when_time_is_up_the_best_baseline_is_packed_nevertheless():
    sequence = lm.read_sequence(FIXTURES / "resnet50-training.json.gz", "optane-server")
    plan = place(sequence, "30%", mode="async", time_limit=1e-9)
    worse = [each.makespan for each in plan.rivals if each.name in ("first-touch", "all-slow")]
    assert plan.interrupted
    assert plan.seconds < min(worse)


def test_when_time_is_up_packing_takes_little_more(monkeypatch):
    seconds = []

    def noted(problem, capacity, strategy, seed, threads, deadline, effort):
        seconds.append(deadline.left())
        return solve(problem, capacity, strategy, seed, threads, deadline, effort)

    monkeypatch.setattr("loadmaster.placement.place.solve", noted)
    assert place(CROWDED, HALF, time_limit=1e-9).interrupted
    assert 0 < max(seconds) <= 0.25


def test_what_a_strategy_does_not_fit_is_not_proven_impossible():
    with pytest.raises(PackingError, match="'all-fast' finds no sync placement with addresses"):
        place(STEP, STEP.peak_bytes - 1, strategy="all-fast")
    found = smallest_fast(STEP, 4.0, strategy="all-fast")
    least = smallest_fast(STEP, 4.0)
    assert found.plan.limit > least.plan.limit
    assert found.too_small is None or found.too_small < least.plan.limit


def test_an_interrupted_curve_goes_on_with_what_it_has(monkeypatch):
    limits = []

    def interrupted(sequence, limit, **options):
        limits.append(limit)
        return replace(place(sequence, limit, **options), interrupted=True)

    monkeypatch.setattr("loadmaster.placement.sizing.place", interrupted)
    points = slowdown_curve(STEP, [20, 30, 40], mode="sync")
    assert limits == [20]
    assert [point.limit for point in points] == [20, 30, 40]
    assert all(point.lower_bound <= point.seconds for point in points)


@pytest.mark.parametrize("mode", ["static", "sync", "async"])
def test_a_sequence_without_kernels_is_placed(mode):
    plan = place(replace(STEP, kernels=()), 0, mode=mode)
    assert (plan.seconds, plan.offsets, plan.as_json()["makespan"]) == (0.0, (), 0.0)


def test_an_unknown_gap_is_null_in_json():
    plan = replace(place(STEP, 30), lower_bound=0.0)
    assert json.loads(json.dumps(plan.as_json(), allow_nan=False))["gap"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"link": CopyLink(1e-300, 1.0, 1.0, 1.0)}, "a copy of 10 bytes"),
        ({"kernels": (kernel("slow", seconds=1e300),)}, "'slow' takes 1e"),
        ({"kernels": (kernel("slow", operand(0, "r", 1e300)),)}, "'slow' takes 1e"),
        (
            {
                "alignment": 2**39,
                "tensors": (STEP.tensors[0]._replace(bytes=2**62 - 100), *STEP.tensors[1:]),
            },
            "padded to the alignment",
        ),
    ],
)
def test_what_sums_would_not_hold_is_refused(changes, words):
    with pytest.raises(PlacementError, match=words):
        replace(STEP, **changes)


@fuzz(60)
@given(seeds, st.integers(0, 100), st.booleans())
def test_more_memory_saves_no_more_than_there_is_to_save(seed, share, in_place):
    """The least that kernels take holds for every combination of places and algorithms, and bounds
    what another GiB is said to save."""
    sequence = random_sequence(seed, in_place=in_place)
    least = 0.0
    for each in sequence.kernels:
        places = list(itertools.product((False, True), repeat=len(each.operands)))
        least += min(each.seconds(slow, a) for slow in places for a in range(len(each.algorithms)))
    assert sequence.least_seconds <= least * (1 + 1e-12)
    try:
        plan = place(sequence, sequence.peak_bytes * share // 100)
    except CapacityError:
        return
    assert 0 <= plan.price_per_gib <= max(0.0, plan.seconds - sequence.least_seconds)
    more = place(sequence, plan.limit + 2**30)
    assert plan.seconds - more.seconds <= plan.price_per_gib + 1e-9 * plan.seconds


def test_hardware_is_a_rival():
    assert "2lm" in {rival.name for rival in place(STEP, 30).rivals}


def test_a_packing_that_may_fail_takes_a_short_search_first(monkeypatch):
    """Lower limits take less time than a long search, and cost next to nothing."""
    asked = []
    addresses = _Placer._addresses

    def refusing(self, lower, upper, size, divisor):
        asked.append(divisor)
        return addresses(self, lower, upper, size, divisor) if len(asked) > 3 else None

    monkeypatch.setattr(_Placer, "_addresses", refusing)
    sequence = random_sequence(3)
    plan = place(sequence, sequence.peak_bytes * 9 // 10, mode="static", strategy="program")
    assert asked == [_SHORT, *(_SHORT >> n for n in (1, 2, 3))]
    assert plan.rounds == 4


def test_less_time_than_with_everything_fast_is_explained():
    sequence = lm.read_sequence("onnx:squeezenet", lm.target("optane-server"), batch=64)
    plan = place(sequence, "70%")
    assert plan.slowdown < 1
    shown = str(placement_page(plan).sections())
    assert "over everything fast, as both memories are read at once" in shown
    assert "(everything fast: 0 ns)" in shown
    tight = place(sequence, "40%", mode="static")
    assert tight.slowdown > 1
    shown = str(placement_page(tight).sections())
    assert "at once" not in shown
    assert "(everything fast: " in shown


def test_limits_are_not_lowered_below_what_a_kernel_cannot_run_without(monkeypatch):
    """Below it nothing is placed, and the search for addresses would end."""
    sequence = step(slow=math.inf)
    limit, asked = sequence.peak_bytes, []

    def placed(_, limits, *__, **___):
        asked.append(limits.tolist())
        return PlacementSolution(TensorPlacement((), (), (0,) * 5), 1.0, 1.0, np.zeros(5))

    monkeypatch.setattr("loadmaster.placement.place.place_by_program", placed)
    monkeypatch.setattr("loadmaster.placement.place.tops", lambda *_: np.full(5, 10 * limit))
    monkeypatch.setattr(_Placer, "_addresses", lambda *_: None)
    with pytest.raises(PackingError, match="'program' finds no sync placement with addresses"):
        place(sequence, limit, strategy="program")
    assert asked[1] == least_bytes(sequence).tolist()
    assert least_bytes(sequence).tolist() == [30, 20, 20, 30 + 5, 20]  # the update's workspace

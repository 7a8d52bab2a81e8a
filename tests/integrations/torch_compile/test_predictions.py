"""What a step is predicted to take rests on steps that were made, small tensors are not copied, and
planning does nothing twice."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.support.compiled import with_plan
from tests.support.hand_sequence import kernel, operand, sequence_of
from tests.support.modules import linears
from tests.support.sequences import even

from loadmaster.core.errors import CapacityError
from loadmaster.integrations.torch_compile import placing
from loadmaster.integrations.torch_compile.compare.comparison import Variant
from loadmaster.integrations.torch_compile.compare.generation import limited_by
from loadmaster.integrations.torch_compile.compiled_model import StepSummary
from loadmaster.integrations.torch_compile.cpu_memory import ArenaCopy
from loadmaster.integrations.torch_compile.executor import (
    History,
    RunTimes,
    link_with_measured_bandwidths,
)
from loadmaster.integrations.torch_compile.kernel_profile import CallProfile
from loadmaster.integrations.torch_compile.placing import (
    GraphProblem,
    GraphSearch,
    place_for_runtime,
)
from loadmaster.placement.decisions import Mode, all_fast
from loadmaster.placement.sequence import CopyLink
from loadmaster.placement.timing import time_moves
from loadmaster.placement.verify import broken_placement_rules

KIB, MIB = 1 << 10, 1 << 20
LINK = CopyLink(1e9, 1e9, 1e9, 1e9)


def sequence(uses, sizes=()):
    """Kernels of a second each, of which a text says what tensors they read and write: ``w0 w1,
    r1``."""
    kernels = [
        kernel(f"k{k}", *(operand(int(use[1:]), use[0], np.inf, 0.0) for use in row.split()))
        for k, row in enumerate(uses.split(","))
    ]
    tensors = ",".join(f"t{t} {size}" for t, size in enumerate(sizes))
    return sequence_of(tensors, *kernels, link=LINK)


def traced(calls, seconds):
    return SimpleNamespace(calls=calls, profiles=[CallProfile(s) for s in seconds])


def history_of(graph, steps, beside=0.0):
    history = History(LINK)
    for kernels in steps:
        times = RunTimes(len(kernels), 0)
        times.kernels[:], times.total = kernels, sum(kernels) + beside
        history.note(times)
    program = SimpleNamespace(captured=graph, copies=[], blocking=frozenset())
    history.adopt_recent_times(program)
    return history


def test_a_prediction_is_the_median_of_steps_and_not_a_step_of_medians():
    """Load on the machine slows down another kernel in every step, and each step is as long."""
    graph = traced([object() for _ in range(4)], [1.0] * 4)
    steps = [
        [9.0] * 4,
        *(np.where(np.arange(4) == slow, 3.0, 1.0).tolist() for slow in range(4)),
    ]  # the first touches memory
    history = history_of(graph, steps, beside=0.5)
    order = sequence(",,,")
    assert history.predicted_seconds(graph, order, all_fast(order)) == pytest.approx(6.5)
    assert history.kernel_seconds(graph).tolist() == [1.0] * 4


def test_kernels_that_were_not_run_yet_go_at_the_pace_of_the_others():
    seen, new = object(), object()
    history = history_of(traced([seen, object()], [2.0, 2.0]), [[1.0, 1.0]] * 3)
    assert history.kernel_seconds(traced([seen, new], [2.0, 10.0])).tolist() == [1.0, 5.0]


def test_a_few_bytes_say_nothing_of_a_bandwidth():
    copies = [ArenaCopy(True, 0, 0, 4 * KIB), ArenaCopy(False, 0, 0, 8 * MIB)]
    link = link_with_measured_bandwidths(LINK, copies, frozenset({0}), np.array([0.01, 0.5]))
    assert link == replace(LINK, asynchronous_to_slow=8 * MIB / 0.5)


def small_and_large():
    """A small and a large tensor live over kernels that need the room of the large one."""
    return sequence("w0 w1, w2, r2, r0 r1", (4 * KIB, 4 * MIB, 4 * MIB))


def placed(order, room, mode):
    """A placement that holds, with so many bytes for every kernel."""
    found = place_for_runtime(order, even(order, room), mode)
    assert not [*broken_placement_rules(order, found, room, mode)]
    return found


def test_small_tensors_move_where_there_is_no_room_for_them():
    found = place_for_runtime(
        small_and_large(), np.array([5 * MIB, 4 * MIB, 4 * MIB, 5 * MIB]), Mode.SYNC
    )
    assert {move.tensor for move in found.moves} == {0, 1}
    with pytest.raises(CapacityError, match="kernel 'k"):
        place_for_runtime(small_and_large(), np.full(4, 3 * MIB), Mode.SYNC)


def test_small_tensors_stay_only_as_long_as_all_together_are_small():
    made, read = (" ".join(f"{mode}{t}" for t in range(100)) for mode in "wr")
    order = sequence(f"{made}, w100, {read}", [32 * KIB] * 100 + [MIB])
    found = placed(order, 4 * MIB, Mode.SYNC)
    assert (
        len({move.tensor for move in found.moves}) == 4
    )  # 128 KiB too much; if all of them stayed, there would be no placement


def test_steps_are_set_against_what_was_predicted_before_them():
    plan = SimpleNamespace(refresh_prediction=lambda: None, predicted_seconds=1.0, program=object())
    model = SimpleNamespace(
        last_step_graphs=[plan, plan],
        summary=lambda: StepSummary(None, 0, 0, 2 * plan.predicted_seconds, ()),
    )
    variant = Variant("", None, model=model)
    none = variant.figures()
    assert (none["predicted_step_seconds"], none["measured_over_predicted"]) == (2.0, None)
    for measured in (2.0, 2.2, 2.2, 2.2, 8.0):
        variant.predict()
        variant.seconds.append(measured)
    found = variant.figures()["measured_over_predicted"]
    assert (found["ratio"], found["low"], found["high"]) == pytest.approx((1.1, 1.0, 4.0))


@pytest.mark.parametrize(
    ("waiting", "copying", "limit"),
    [(0.4, 0.9, "processor"), (0.6, 0.9, "disk"), (0.6, 2.0, "copies")],
)
def test_what_limits_generation(waiting, copying, limit):
    figures = {
        "tokens_per_second": 1.0,
        "waiting_seconds": waiting,
        "copy_seconds": copying,
        "moved_bytes": 800,
    }
    assert limited_by(figures, 1000.0) == limit


def test_copies_overlap_kernels_where_there_is_room():
    """A tensor leaves while the next kernel runs, and is back before the last, at no cost."""
    order = sequence("w0,, w1, r1,, r0", (100 * MIB, 200 * MIB))
    found = placed(order, 250 * MIB, Mode.ASYNC)
    assert [(move.tensor, move.to_fast) for move in found.moves] == [(0, False), (0, True)]
    assert time_moves(order, found).total == pytest.approx(6.0)


@pytest.mark.parametrize("mode", [Mode.SYNC, Mode.ASYNC])
def test_small_tensors_stay(mode):
    found = placed(small_and_large(), 5 * MIB, mode)
    assert {move.tensor for move in found.moves} == {1}
    assert [(stay.start, stay.end) for stay in found.stays if stay.tensor == 0] == [(0, 4)]


# Planning does not do twice, or before times are measured, what takes most of its time.


PAGE, WIDTH = 4096, 256
SIZE = 64 * PAGE


def test_limits_are_not_lowered_below_what_a_kernel_needs(monkeypatch):
    """Below it nothing can be placed, and a budget that suffices would be refused."""
    order = replace(sequence("w0, w1, w2, w3, r0 r1, r2 r3", [SIZE] * 4), alignment=PAGE)
    problem, seen = GraphProblem(order, (0, 1, 2, 3), np.zeros(6, dtype=np.int64)), []

    def never(problem, placement, ceilings):
        return ceilings + 2 * SIZE * (np.arange(len(ceilings)) == 4)

    def noted(sequence, limits, mode):
        seen.append(limits.copy())
        return place_for_runtime(sequence, limits, mode)

    monkeypatch.setattr(placing, "_pack", never)
    monkeypatch.setattr(placing, "place_for_runtime", noted)
    assert placing._place_and_pack(problem, 3 * SIZE, Mode.SYNC, 12) == 4
    assert len(seen) == 24
    assert all((limits >= problem.needed()).all() for limits in seen)


@pytest.mark.parametrize(("refine_after", "provisional"), [(2, [True, False]), (0, [False])])
def test_room_to_read_ahead_is_tried_with_measured_times(monkeypatch, refine_after, provisional):
    """Trials take most of planning: a plan that measured times replace after a few steps has none,
    and one that stays has them."""
    attempt, of_search, trials = GraphSearch.attempt, [], []
    placed = placing._place_and_pack

    def seen(search, budget):
        of_search.append(search.provisional)
        return attempt(search, budget)

    def counted(problem, budget, mode, rounds):
        trials.append((of_search[-1], rounds))
        return placed(problem, budget, mode, rounds)

    monkeypatch.setattr(GraphSearch, "attempt", seen)
    monkeypatch.setattr(placing, "_place_and_pack", counted)
    call = with_plan(linears(WIDTH, 8), 0.6, refine_after=refine_after)
    with torch.no_grad():
        for _ in range(4):
            call(torch.randn(2, WIDTH))
    assert of_search == provisional
    assert {early for early, rounds in trials if rounds == placing._TRIAL_ROUNDS} <= {False}
    assert any(early for early, _ in trials) is provisional[0]

"""Planning does not do twice, or before times are measured, what takes most of its time."""

import numpy as np
import pytest
import torch
from tests.support.compiled import with_plan
from torch import nn

from loadmaster.integrations.torch_compile import placing
from loadmaster.integrations.torch_compile.placing import Problem, Search, place_for_runtime
from loadmaster.placement.decisions import Mode
from loadmaster.placement.sequence import (
    Algorithm,
    CopyLink,
    Kernel,
    KernelSequence,
    Operand,
    StoredKind,
    StoredTensor,
)

PAGE, LAYERS, WIDTH = 4096, 8, 256


SIZE = 64 * PAGE


def four_tensors():
    tensors = tuple(StoredTensor(f"t{i}", SIZE, StoredKind.INTERMEDIATE) for i in range(4))
    uses = [{0: True}, {1: True}, {2: True}, {3: True}, {0: False, 1: False}, {2: False, 3: False}]
    kernels = tuple(
        Kernel(
            f"k{k}",
            "op",
            tuple(
                Operand(t, not write, write, slow_seconds=float("inf")) for t, write in use.items()
            ),
            (Algorithm("m", 1.0),),
        )
        for k, use in enumerate(uses)
    )
    sequence = KernelSequence("made", tensors, kernels, CopyLink(1e9, 1e9, 1e9, 1e9), PAGE)
    return Problem(sequence, (0, 1, 2, 3), np.zeros(len(kernels), dtype=np.int64))


def test_limits_are_not_lowered_below_what_a_kernel_needs(monkeypatch):
    """Below it nothing can be placed, and a budget that suffices would be refused."""
    seen, problem = [], four_tensors()

    def never(problem, placement, ceilings):
        return None, ceilings + 2 * SIZE * (np.arange(len(ceilings)) == 4)

    def noted(sequence, limits, mode):
        seen.append(limits.copy())
        return place_for_runtime(sequence, limits, mode)

    monkeypatch.setattr(placing, "_pack", never)
    monkeypatch.setattr(placing, "place_for_runtime", noted)
    assert placing._packed(problem, 3 * SIZE, Mode.SYNC, 12) == 4
    assert len(seen) == 24
    assert all((limits >= problem.needed()).all() for limits in seen)


@pytest.mark.parametrize(("refine_after", "provisional"), [(2, [True, False]), (0, [False])])
def test_room_to_read_ahead_is_tried_with_measured_times(monkeypatch, refine_after, provisional):
    """Trials take most of planning: a plan that measured times replace after a few steps has none,
    and one that stays has them."""
    attempt, of_search, trials = Search.attempt, [], []
    moved = Search._moved

    def seen(search, budget):
        of_search.append(search.provisional)
        return attempt(search, budget)

    def counted(search, moving, budget, rounds):
        trials.append((search.provisional, rounds))
        return moved(search, moving, budget, rounds)

    monkeypatch.setattr(Search, "attempt", seen)
    monkeypatch.setattr(Search, "_moved", counted)
    module = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    call = with_plan(module, 0.6, refine_after=refine_after)
    with torch.no_grad():
        for _ in range(4):
            call(torch.randn(2, WIDTH))
    assert of_search == provisional
    assert {early for early, rounds in trials if rounds == placing._FEW} <= {False}
    assert any(early for early, _ in trials) is provisional[0]

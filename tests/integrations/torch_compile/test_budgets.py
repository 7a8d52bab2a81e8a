"""Whose a budget is, what a share is of, and that every step keeps it."""

import copy
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.compiled import gradients, same, with_plan, without_plan
from tests.support.modules import in_two, linears
from tests.support.processes import memory
from torch import nn
from torch._dynamo.backends import common as backends

from loadmaster.core.errors import BudgetError, LoadmasterError
from loadmaster.integrations.torch_compile import compiled_model, cpu_memory
from loadmaster.integrations.torch_compile.backend import loadmaster, model_of
from loadmaster.integrations.torch_compile.captured import NotPlannable
from loadmaster.integrations.torch_compile.compare.measurement import STATED
from loadmaster.integrations.torch_compile.compiled_model import (
    COMPILER_BYTES,
    PROCESS_OVERHEAD,
    object_bytes,
)

WIDTH = 96


def layers(*, broken):
    """Some layers and a loss."""
    last = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU())
    return in_two(linears(WIDTH, 3, nn.Tanh)[:-1], last, broken=broken)


def test_equal_options_on_two_modules_are_two_budgets_and_two_graphs_of_one_module_share_one():
    x = torch.randn(64, WIDTH)
    for options in ({"fast_memory": "8 MiB"}, None):  # one object, or equal ones
        torch._dynamo.reset()
        modules = layers(broken=True), layers(broken=True)
        calls = [
            torch.compile(m, backend=loadmaster, options=options or {"fast_memory": "8 MiB"})
            for m in modules
        ]
        made = [
            gradients(call, module, x, steps=4) for call, module in zip(calls, modules, strict=True)
        ]
        first, second = map(model_of, calls)
        assert [len(model.plans) for model in (first, second)] == [2, 2]
        cpu = torch.device("cpu")
        assert first.memory(cpu) is not second.memory(cpu)
        assert all(
            model.persistent.bytes() == sum(p.nbytes for p in module.parameters())
            for model, module in zip((first, second), modules, strict=True)
        )
        assert not {id(plan) for plan in first.plans} & {id(plan) for plan in second.plans}
        for module, mine in zip(modules, made, strict=True):
            assert same(mine, gradients(without_plan(module), module, x))


def test_what_was_not_compiled_has_no_model():
    with pytest.raises(LoadmasterError, match="was not compiled"):
        model_of(nn.Linear(2, 2))


def test_a_share_is_of_the_whole_step_over_all_graphs():
    x = torch.randn(256, WIDTH)
    peaks = {}
    for broken in (False, True):
        torch._dynamo.reset()
        module = layers(broken=broken)
        call = with_plan(module, 1.0)
        gradients(call, module, x, steps=4)
        model = model_of(call)
        assert len(model.plans) == 1 + broken
        assert all(plan.moved_bytes == 0 for plan in model.plans)
        peaks[broken] = model.unmoved_peak
        assert model.budget == model.unmoved_peak
    assert 0.9 * peaks[False] <= peaks[True] <= 1.1 * peaks[False]


@pytest.mark.parametrize("share", [0.8, 0.05])
def test_a_share_that_is_too_small_for_one_of_several_graphs_alone_is_judged_by_the_step(share):
    module, x = layers(broken=True), torch.randn(512, WIDTH)
    call = with_plan(module, share)
    if share < 0.5:
        with pytest.raises(
            BudgetError,
            match=(
                r"0.05 of what a step takes \(.*\) is"
                r" .*smallest budget that works for this graph is"
            ),
        ):
            gradients(call, module, x, steps=4)
        return
    mine = gradients(call, module, x, steps=4)
    model = model_of(call)
    assert all(
        plan.placed_peak <= model.budget == int(share * model.unmoved_peak) for plan in model.plans
    )
    twin = copy.deepcopy(module)
    assert same(mine, gradients(without_plan(twin), twin, x))


def test_gradients_of_later_graphs_count_when_earlier_ones_run_backward():
    module, x = layers(broken=True), torch.randn(64, WIDTH)
    call = with_plan(module, "64 MiB")
    gradients(call, module, x, steps=4)
    first, last = model_of(call).plans
    left = sum(p.nbytes for p in module.last.parameters())
    boundary = first.program.captured.parts[0].end
    assert first.surroundings.gradients == left
    assert last.surroundings.gradients == 0
    assert np.diff(first.problem.elsewhere)[boundary - 1] >= left
    assert first.problem.elsewhere[-1] >= left


def test_graphs_offload_what_they_keep_while_others_run_where_there_is_no_room_for_all():
    module = in_two(linears(512, 3), linears(512, 3))  # of 3 MiB each
    twin, x = copy.deepcopy(module), torch.randn(4, 512)
    call = with_plan(module, 4 << 20)
    planned = gradients(call, module, x, steps=4)
    assert same(planned, gradients(without_plan(twin), twin, x, steps=4))
    model = model_of(call)
    assert [plan.surroundings.offload_idle for plan in model.last_step_graphs] == [True, True]
    assert all(plan.placed_peak <= 4 << 20 for plan in model.last_step_graphs)


def test_where_the_allocator_cannot_be_led_results_are_copied(monkeypatch):
    module, x = layers(broken=False), torch.randn(512, WIDTH)
    right = gradients(without_plan(module), module, x)
    torch._dynamo.reset()
    monkeypatch.setattr(cpu_memory, "_install_or_reason", lambda: "is another one")
    cpu_memory.install_allocator.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="is another one: results are copied"):
            assert not cpu_memory.install_allocator()
        call = with_plan(module, 0.9)
        assert same(gradients(call, module, x, steps=4), right)
        (plan,) = model_of(call).plans
        assert plan.times.copied_results > 0
        assert plan.moved_bytes > 0
    finally:
        cpu_memory.install_allocator.cache_clear()


def test_a_trial_that_crashes_fails_or_hangs_harms_nobody(monkeypatch):
    monkeypatch.setattr(cpu_memory, "_TRIAL_SECONDS", 1)
    assert cpu_memory.survives(lambda: True)
    assert not cpu_memory.survives(lambda: False)
    assert not cpu_memory.survives(lambda: os.kill(os.getpid(), signal.SIGKILL) is None)
    assert not cpu_memory.survives(signal.pause)
    assert cpu_memory.install_allocator()


def test_a_budget_leaves_room_for_the_objects_of_the_graphs():
    kernels, x = 200, torch.randn(1 << 18)

    def steps(y):
        for _ in range(kernels):
            y = torch.sin(y)
        return y

    objects = max(object_bytes(kernels, symbolic=False) - PROCESS_OVERHEAD, 0)
    assert (
        0 < objects < object_bytes(kernels, symbolic=False) < object_bytes(kernels, symbolic=True)
    )
    with torch.no_grad():
        for budget in (32 << 20, 1.0):
            call = with_plan(steps, budget)
            call(x)
            model = model_of(call)
            given = (
                budget if isinstance(budget, int) else int(budget * (model.unmoved_peak + objects))
            )
            assert model.objects == objects == given - model.budget
            torch._dynamo.reset()


def _peak(process, before):
    """Of anonymous memory in bytes since ``before``, by the kernel's own high-water mark."""
    now = memory(process)
    return now["VmHWM"] - max(each["RssFile"] + each["RssShmem"] for each in (now, before))


def test_every_one_of_the_first_steps_keeps_the_budget_seen_from_outside():
    width, layers, share = 1024, 6, 0.4
    parameters = 4 * layers * width**2
    command = [sys.executable, "-m", "tests.support.watched", str(width), str(layers), str(share)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "warm\n"
            empty = memory(process.pid)["RssAnon"]
            process.stdin.write("\n")
            peaks = []
            for _ in range(6):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")
                before = memory(process.pid)
                process.stdin.write("\n")
                process.stdin.flush()
                assert float(process.stdout.readline()) > 0
                peaks.append(_peak(process.pid, before) - empty)
        finally:
            process.kill()
    budget = int(share * 4.2 * parameters)  # parameters, gradients one at a time, two states
    assert max(peaks[2:]) <= budget + STATED
    assert peaks[1] <= budget + COMPILER_BYTES
    assert (
        peaks[0] <= max(budget, parameters) + COMPILER_BYTES
    )  # these are in memory when it begins


def test_parameters_beyond_the_budget_leave_the_memory_before_the_compiler_takes_a_graph_apart(
    monkeypatch,
):
    """So that what the compiler takes is not beside all of them, in the first step as in those that
    compile anew."""
    module, x = linears(1024, 2, nn.Tanh, bias=False), torch.randn(4, 1024)
    whole, seen = 8 << 20, []
    calls = [with_plan(copy.deepcopy(module), of) for of in ("7 MiB", 0.9, 1.0, "1 GiB")]
    compiler = backends.aot_autograd

    def noted(**more):
        seen.append(model_of(call).persistent.offloaded_bytes())
        return compiler(**more)

    monkeypatch.setattr(backends, "aot_autograd", noted)
    with torch.no_grad():
        for call, expected in zip(calls, (whole, whole, 0, 0), strict=True):
            call(x)
            assert seen[0] == expected
            seen.clear()
            torch._dynamo.reset()
    with monkeypatch.context() as patch:
        patch.setattr(compiled_model, "capture", _refuse)
        call = with_plan(module, "7 MiB")
        with torch.no_grad():
            assert torch.equal(call(x), module(x))
    assert model_of(call).fallbacks
    # Where nothing is planned, nothing stays there.
    assert model_of(call).persistent.offloaded_bytes() == 0


def _refuse(*given):
    raise NotPlannable("nothing can be planned")

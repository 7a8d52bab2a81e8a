"""Arguments of the public functions: what is of the wrong type, or misspelt, is refused in one line
with what to do."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tests.support import hand_plan
from tests.support.onnx_builder import absent, model

import loadmaster as lm
from loadmaster.core.arguments import instead
from loadmaster.core.errors import (
    AllocationError,
    LoadmasterError,
    MappingError,
    ModelError,
    PlanError,
    TargetError,
)

WRONG = (5, 2.5, "text", None, True, object(), [3], {"a": 1}, b"bytes")


def refuses(function, *args, **kwargs):
    """Either the call works, or it says in one line of our own what is wrong."""
    try:
        function(*args, **kwargs)
    except LoadmasterError as error:
        assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
def test_wrong_types_are_refused_and_never_escape(wrong):
    target, graph = lm.target("edge-npu"), lm.load("onnx:squeezenet")
    for function in (lm.load, lm.target, lm.read_buffers, lm.verify, lm.read_sequence, lm.allocate):
        refuses(function, wrong)
    refuses(lm.parse_axis, wrong)
    refuses(lm.target, "edge-npu", wrong)
    refuses(lm.plan, wrong, target)
    refuses(lm.plan, [graph], wrong)
    refuses(lm.analyse, wrong, target)
    refuses(lm.map_jobs, wrong, 1e9)
    refuses(lm.place, wrong, 5)
    refuses(lm.allocate_banks, [], wrong)
    refuses(lm.write_buffers, wrong, wrong)
    if wrong is not None and wrong is not True:
        with pytest.raises(PlanError, match="seed is"):
            lm.plan([], target, seed=wrong if not isinstance(wrong, int) else -1)
    if not isinstance(wrong, int) or isinstance(wrong, bool):
        with pytest.raises(AllocationError):
            lm.allocate(([0], [1], [2]), seed=wrong)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda value: type(value).__name__)
def test_items_and_machines_of_wrong_types_are_refused(wrong):
    target, graph = lm.target("edge-npu"), lm.load("onnx:squeezenet")
    axis, limits = lm.parse_axis("scratchpad=1MiB:2MiB"), lm.Limits(makespan=1.0)
    alone = lm.area, lm.peak_power, lm.kernel_work, lm.read_job_list, lm.strategies
    for function, *given in (
        *((function, wrong) for function in alone),
        (lm.lower, wrong, target),
        (lm.divide_jobs, wrong, target, 1e9),
        (lm.map_dependent_jobs, wrong, 1e9, []),
        (lm.map_divided_jobs, wrong, 1e9),
        (lm.size, wrong, target, axis, limits),
        (lm.size, [graph], target, wrong, limits),
        (lm.sweep, wrong, target, [axis]),
        (lm.sweep, [graph], target, wrong),
    ):
        with pytest.raises(LoadmasterError, match=r"\A[^\n]+\Z"):
            function(*given)


def test_lists_are_of_the_items_that_are_needed():
    target = lm.target("edge-npu")
    with pytest.raises(
        PlanError, match=r"^lower: graphs: an item is 'a', of type str: give a Graph"
    ):
        lm.lower(["a"], target)
    with pytest.raises(PlanError, match=r"^lower: graphs is 'a', of type str: give a list$"):
        lm.lower("a", target)
    with pytest.raises(
        PlanError, match=r"^lower: graphs is array\(3\), of type ndarray: give a list"
    ):
        lm.lower(np.array(3), target)
    with pytest.raises(AllocationError, match=r"^verify_buffers: capacity is nan"):
        lm.verify_buffers(lm.problem_of([]), [], float("nan"))
    assert lm.verify_buffers(lm.problem_of(([0], [1], [128])), [0], "64 B")[0].rule == "capacity"
    with pytest.raises(
        PlanError, match=r"^10{30} mini-batches: give from 1 to \d+ of these networks$"
    ):
        lm.lower([lm.load("onnx:squeezenet")], target, mini_batches=10**30)
    with pytest.raises(MappingError, match="a Pareto front is of two objectives, not of 0"):
        lm.pareto_front(analysis(), 1e9, [])


@pytest.mark.slow
def test_whatever_can_be_iterated_over_is_a_list():
    target, graph, banks = lm.target("edge-npu"), lm.load("onnx:squeezenet"), [lm.Bank("sram", 64)]
    assert lm.lower({1: graph}.values(), target) == lm.lower([graph], target)
    assert lm.parse_axes(iter(["bandwidth=1GB/s,2GB/s"])) == lm.parse_axes("bandwidth=1GB/s,2GB/s")
    assert lm.allocate_banks(([0], [2], [8]), iter(banks)).memory == ("sram",)
    steps = lm.read_sequence(graph, "optane-server")
    options = {"strategy": "first-touch", "mode": "static"}
    sizes = np.array([steps.peak_bytes // 2, 2 * steps.peak_bytes])
    for limits in (sizes, {"50%", f"{sizes[1]} B"}):
        assert [each.limit for each in lm.slowdown_curve(steps, limits, **options)] == [*sizes]
    after, release = np.array([[0], [0]])[:, :0], {0: 0.0, 1: 0.0}.values()
    assert lm.map_dependent_jobs(two_jobs(), 1e9, after, release=release).makespan == 2.0


def two_jobs():
    ones = np.ones((2, 1))
    return lm.JobAnalysis(("a", "b"), ("c",), ones, 0 * ones, np.ones(2, dtype=np.int64))


def test_sweeps_and_sizes_read_networks_as_plans_do():
    axis = lm.parse_axis("scratchpad=1MiB,2MiB")
    options = {"cut": "none", "effort": "test"}
    with ThreadPoolExecutor(1) as executor:
        swept = lm.sweep("onnx:squeezenet", "edge-npu", [axis], executor=executor, **options)
    assert [point.planned for point in swept.points] == [True, True]
    found = lm.size(["onnx:squeezenet"], "edge-npu", axis, lm.Limits(makespan=1.0), **options)
    assert found.least is not None


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_beyond_64_bits_are_refused(seed):
    for function, given in ((lm.plan, ([], "edge-npu")), (lm.map_jobs, (analysis(), 1e9))):
        with pytest.raises(LoadmasterError, match=rf"^seed is {seed}: give a whole number from 0"):
            function(*given, seed=seed)


def test_numbers_of_numpy_are_those_of_python():
    graph = lm.load("onnx:squeezenet", batch=np.int64(2))
    assert graph.macs == lm.load("onnx:squeezenet", batch=2).macs
    file = model("y = MatMul(x, w)", "float[n,n] x", "y", [absent("w", (70_000, 2))])
    wide = lm.load(file, dims={"n": np.int32(70_000)})
    assert wide.tensors["x"].bytes == 4 * 70_000**2
    assert {type(size) for each in wide.tensors.values() for size in each.shape} == {int}
    options = {"cut": "none", "effort": "test", "mini_batches": np.int8(2), "seed": np.uint8(3)}
    plan = lm.plan([graph], "edge-npu", **options)
    assert type(plan.seed) is int
    assert len(plan.mini_batches) == 2


def test_messages_say_what_to_pass():
    for size in (2.0, "2", None, True, np.array([2])):
        with pytest.raises(ModelError, match=r"^load: 'n' in dims is .*: give a whole number$"):
            lm.load("onnx:squeezenet", dims={"n": size})
    with pytest.raises(ModelError, match="--dim 3=2 names no open dimension"):
        lm.load("onnx:squeezenet", dims={3: 2})
    with pytest.raises(
        PlanError,
        match=r"^plan: target is 5, of type int: give a Target, from loadmaster\.target or text",
    ):
        lm.plan([], 5)
    with pytest.raises(MappingError, match=r"bandwidth is '16 GB/s', of type str: give a number"):
        lm.map_jobs(analysis(), "16 GB/s")


def test_times_that_are_no_numbers_are_refused():
    graph = lm.load("onnx:squeezenet")
    for setting in ("deadlines", "periods"):
        with pytest.raises(PlanError, match=rf"^{setting[:-1]} of 'squeezenet' is '1ms', of type"):
            lm.plan([graph], "edge-npu", **{setting: {"squeezenet": "1ms"}})
    for name in ("makespan", "energy", "fps"):
        with pytest.raises(PlanError, match=f"^{name} is '1', of type str: give a number"):
            lm.Limits(**{name: "1"})


def test_networks_to_check_against_are_listed():
    with pytest.raises(PlanError, match="verify_against: graphs is of type generator: give a list"):
        lm.verify_against(hand_plan.copying_plan(), (graph for graph in ()))


def test_a_target_may_be_given_by_its_name():
    jobs = lm.lower([lm.load("onnx:squeezenet")], lm.target("m3e-s1"))
    limits, axis = lm.Limits(makespan=1.0), lm.parse_axis("scratchpad=1MiB:2MiB")
    for call in (
        lambda name: lm.plan([], name),
        lambda name: lm.sweep([], name, [axis]),
        lambda name: lm.size(["onnx:squeezenet"], name, axis, limits),
        lambda name: lm.what_if([], name),
        lambda name: lm.analyse(jobs, name),
        lambda name: lm.read_sequence("onnx:squeezenet", name),
    ):
        with pytest.raises(TargetError, match=r"no bundled target 'edge-npi': did you mean edge-"):
            call("edge-npi")
    assert lm.plan("onnx:squeezenet", "edge-npu", effort="quick", cut="none").target == lm.target(
        "edge-npu"
    )


def analysis():
    return lm.analyse(
        lm.lower([lm.load("onnx:squeezenet")], lm.target("m3e-s1")), lm.target("m3e-s1")
    )


def test_one_override_needs_no_list():
    assert lm.target("edge-npu", "dram.bandwidth=1 GB/s") == lm.target(
        "edge-npu", ["dram.bandwidth=1 GB/s"]
    )
    with pytest.raises(TargetError, match=r"^--set 'a': write PATH=VALUE"):
        lm.target("m3e-s1", "a")


@pytest.mark.parametrize(
    ("name", "known", "answer"),
    [
        ("egde-npu", ("edge-npu", "m3e-s1"), "did you mean edge-npu?"),
        ("EDGE-NPU", ("edge-npu", "m3e-s1"), "did you mean edge-npu?"),
        ("nothing", ("edge-npu", "m3e-s1"), "choose one of edge-npu, m3e-s1"),
        ("x", (), "there are none"),
    ],
)
def test_misspellings_are_met_half_way(name, known, answer):
    assert instead(name, known) == answer

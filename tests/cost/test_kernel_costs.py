"""Kernel sequences: roofline times by hand, operands by storage, workspace for speed, machines that
cannot be used."""

import math
from dataclasses import replace

import pytest
from tests.support.needs import FIXTURES
from tests.support.networks import GraphBuilder, npu, staged_machine

import loadmaster as lm
from loadmaster.cost.kernels.kernel_costs import copy_link, kernel_sequence, kernel_work
from loadmaster.placement.sequence import CopyLink, StoredKind
from loadmaster.targets.hardware import CopyEngine, Style
from loadmaster.workloads.graph import Access, Op, OpClass, TensorKind


def convolution(channels, size, kernel=3):
    """With as many channels of its result as of its input."""
    build = GraphBuilder()
    source = build.tensor("x", (channels, size, size), TensorKind.INPUT)
    return build.graph(build.conv("y", source, channels, kernel))


def test_times_are_those_of_the_roofline():
    steps = kernel_sequence(convolution(64, 56), lm.target("optane-server"))
    (kernel,) = steps.kernels
    size, weight = 64 * 56 * 56, 64 * 64 * 9
    assert kernel.algorithms[0].seconds == pytest.approx(2 * 64 * 64 * 9 * 56 * 56 / 2.3e12)
    bytes_of = {
        steps.tensors[o.tensor].name: (o.fast_seconds, o.slow_seconds) for o in kernel.operands
    }
    assert bytes_of["x"] == pytest.approx((size / 100e9, size / 39e9))
    assert bytes_of["y.w"] == pytest.approx((weight / 100e9, weight / 39e9))
    assert bytes_of["y"] == pytest.approx((size / 100e9, size / 14e9))
    assert [tensor.kind for tensor in steps.tensors] == [
        StoredKind.INPUT,
        StoredKind.WEIGHT,
        StoredKind.OUTPUT,
    ]
    assert [(str(part), part.count) for part in steps.costs] == [
        ("estimated (roofline of optane-server, figures of the target)", len(steps.kernels))
    ]


def test_a_partial_update_needs_the_tensor_and_moves_its_part():
    build = GraphBuilder()
    build.tensor("x", (64,), TensorKind.INPUT)
    build.tensor("w", (10,), TensorKind.WEIGHT)
    build.tensor("a", (100,))
    build.tensor("a2", (50,), alias_of="a")
    build.ops = [
        Op(f"{read} to {written}", "", OpClass.ELEMENTWISE, (read,), (written,), (), 0, 8)
        for read, written in (
            (Access("x", 64), Access("a", 50)),
            (Access("x", 64), Access("a2", 50)),
            (Access("a", 100), Access("w", 10)),
        )
    ]
    steps = kernel_sequence(build.graph("a2"), lm.target("optane-server"))
    access = [
        [f"{steps.tensors[o.tensor].name} {'r' * o.read}{'w' * o.write}" for o in kernel.operands]
        for kernel in steps.kernels
    ]
    assert access == [["x r", "a w"], ["x r", "a rw"], ["a r", "w w"]]
    assert steps.kernels[1].operands[1].slow_seconds == pytest.approx(50 / 14e9)


@pytest.fixture
def graph():
    """One elementwise operator."""
    build = GraphBuilder()
    return build.graph(build.elementwise("y", build.tensor("x", (8, 4, 4), TensorKind.INPUT)))


def test_a_machine_whose_kernels_need_fast_operands(graph):
    steps = kernel_sequence(graph, staged_machine(2**20))
    assert all(math.isinf(o.slow_seconds) for o in steps.kernels[0].operands)
    assert math.isinf(steps.seconds(True))
    assert steps.link == CopyLink(1e9, 1e9, 1e9, 1e9)


def test_copies_without_a_table_run_at_the_slower_memory():
    server = replace(lm.target("optane-server"), copy=None)
    assert copy_link(server) == CopyLink(39e9, 14e9, 39e9, 14e9)
    shared = replace(server, copy=CopyEngine((2.0, 1.0), (4.0, 3.0), True))
    assert copy_link(shared) == CopyLink(1.0, 2.0, 3.0, 4.0, True)
    assert lm.target(
        "optane-server", ["copy.shared=true", "copy.asynchronous_to_fast=8 GB/s"]
    ).copy == CopyEngine((12e9, 29e9), (2.5e9, 8e9), True)


def test_machines_that_cannot_be_used_are_refused(graph):
    with pytest.raises(lm.PlacementError, match=r"2 cores \(c0, c1\)"):
        kernel_sequence(graph, npu())
    with pytest.raises(lm.PlacementError, match="no fast memory"):
        kernel_sequence(graph, npu(cores=1, scratchpad=0))
    build = GraphBuilder()
    build.tensor("x", (4,), TensorKind.INPUT)
    build.op("View", OpClass.VIEW, ["x"], build.tensor("y", (4,), alias_of="x"))
    with pytest.raises(lm.PlacementError, match="nothing to place"):
        kernel_sequence(build.graph("y"), lm.target("optane-server"))


def test_winograd_takes_workspace_where_it_pays():
    gpu = lm.target("gpu-pcie")

    def ways(channels, size, kernel=3, gpu=gpu):
        (only,) = kernel_sequence(convolution(channels, size, kernel), gpu).kernels
        return [(way.name, way.seconds, way.workspace) for way in only.algorithms]

    (direct, first, none), (winograd, second, workspace) = ways(512, 16)
    assert (direct, winograd, none) == ("direct", "winograd", 0)
    # 16 tiles of 4 x 4 outputs, 36 elements of each channel in and out, and of each filter; int8
    # elements.
    assert workspace == 36 * (16 * 1024 + 512 * 512)
    assert second == pytest.approx(36 * 16 * 512 * 512 * 2 / 13e12 + 2 * workspace / 616e9)
    assert second < first
    # Either algorithm waits for what starting a kernel takes.
    later = lm.target("gpu-pcie", ["cores.gpu.job_overhead=1ms"])
    assert [seconds for _, seconds, _ in ways(512, 16, gpu=later)] == pytest.approx(
        [first + 1e-3, second + 1e-3]
    )
    # A quarter of the multiplications takes a quarter of a half idle array's time.
    more = {"winograd": True, "clock": 1e7}
    array = replace(gpu.cores[0], style=Style.WEIGHT_STATIONARY, rows=1024, columns=1024, **more)
    (_, first, _), (_, second, _) = ways(512, 16, gpu=replace(gpu, cores=(array,)))
    assert second - 2 * workspace / 616e9 == pytest.approx(first / 4)
    assert [name for name, *_ in ways(8, 16)] == ["direct"]
    assert [name for name, *_ in ways(512, 16, kernel=1)] == ["direct"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    ["onnx:resnet50", "onnx:densenet121", "onnx:shufflenet", str(FIXTURES / "gpt2.onnx.gz")],
)
@pytest.mark.parametrize("machine", ["optane-server", "gpu-pcie"])
def test_networks_from_files_become_sequences(network, machine):
    graph = lm.load(network)
    steps = kernel_sequence(graph, lm.target(machine))
    # Weights that no kernel reads leave no trace; all others are there whole.
    assert sum(t.bytes for t in steps.tensors if t.kind is StoredKind.WEIGHT) == graph.bytes_of(
        TensorKind.WEIGHT
    )
    assert sum(t.kind is StoredKind.OUTPUT for t in steps.tensors) == len(graph.outputs)
    assert 0 < steps.seconds(False) < steps.seconds(True)


def test_the_committed_training_step_is_the_one_that_the_notes_describe():
    steps = lm.read_sequence(
        str(FIXTURES / "resnet50-training.json.gz"), lm.target("optane-server")
    )
    kinds = [kernel.kind for kernel in steps.kernels]
    assert kinds.count("convolution") == kinds.count("convolution_backward") == 53
    assert 5.0e9 < steps.peak_bytes < 7.5e9
    assert steps.seconds(False) < steps.seconds(True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    ["onnx:resnet50", str(FIXTURES / "gpt2.onnx.gz"), str(FIXTURES / "dlrm.onnx.gz")],
)
def test_written_kernels_cost_on_any_target_what_the_network_costs(source, tmp_path):
    """Bandwidths, winograd's workspaces, arrays with private buffers: all of it follows from what
    the file says."""
    graph = lm.load(source)
    file = str(lm.write_work(kernel_work(graph), tmp_path / "kernels.json.gz"))
    npu_of_one = lm.target("edge-npu")
    machines = [
        lm.target("optane-server"),
        lm.target("gpu-pcie"),
        lm.target("optane-server", ["pmm.read_bandwidth=1 GB/s"]),
        replace(npu_of_one, cores=npu_of_one.cores[:1]),
    ]
    found = [lm.read_sequence(file, machine) for machine in machines]
    assert found == [kernel_sequence(graph, machine) for machine in machines]
    assert len({steps.seconds(False) for steps in found}) > 1

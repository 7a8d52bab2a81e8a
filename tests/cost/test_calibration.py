"""Calibration: figures of a machine are found again in the times that it takes, and what times
cannot tell is left alone."""

import re
import tomllib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.command_line import printed, ran
from tests.support.fuzzing import fuzz
from tests.support.json_schema import conforms
from tests.support.layer_lists import HEADER, text
from tests.support.layers import loops
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.cost.analytical.job_costs import job_table
from loadmaster.cost.analytical.nests import kind_of
from loadmaster.cost.base import link_seconds
from loadmaster.cost.calibration.answer import Standing
from loadmaster.cost.kernels.kernel_costs import cost_kernels, kernel_work
from loadmaster.cost.kernels.measured_kernels import _amounts
from loadmaster.cost.tables.measured_times_csv import (
    COPY,
    Amounts,
    TimedKernel,
    read_kernel_times,
    write_timed,
)
from loadmaster.targets.load import bundled, source_text, target_document
from loadmaster.targets.write import target_text

# One core, so that rows need not name it.
NPU = source_text("edge-npu").split("[[cores]]")
ONE_CORE = NPU[0] + "[[cores]]" + NPU[1].replace("count = 3\n", "")
SHAPES = [
    *[(k, c, y + 2, y + 2, 3, 3, 1) for k in (64, 256) for c in (64, 128) for y in (14, 28)],
    *[(k, 128, y, y, 1, 1, 1) for k in (64, 512) for y in (7, 28, 56)],
    *[(1, c, y + 2, y + 2, 3, 3, 2) for c in (64, 256, 512) for y in (14, 56)],
    *[(512, 768, k, 1, 1, 1, 3) for k in (256, 768)],
    *[(k, 2048, 1, 1, 1, 1, 0) for k in (512, 4096)],
]

FEW = [(512, 768, 64, 1, 1, 1, 3), (16, 64, 60, 60, 5, 5, 1), (512, 128, 64, 1, 1, 1, 3)]
FEW += [(512, 256, 1, 1, 1, 1, 0)] * 2


def modelled(work, target):
    """Seconds of every job on the first core with all operands in main memory, as plans have it."""
    table = job_table(work, target)
    links = np.bincount(table.operand_job, weights=link_seconds(table, target.main)[:, 0])
    return np.asarray(np.maximum(table.compute[:, 0], links))


def measured(folder, changes, bandwidth, noise=1.0, shapes=SHAPES):
    """The file of a target, and of the times of a machine that differs from it in what is given."""
    (folder / "npu.toml").write_text(ONE_CORE)
    (folder / "shapes.csv").write_text(text(shapes))
    target = lm.target(folder / "npu.toml", [f"dram.bandwidth={bandwidth}"])
    target = replace(target, cores=(replace(target.cores[0], **changes),))
    seconds = modelled(lm.read_job_list(folder / "shapes.csv"), target) * noise
    rows = [(*row, took) for row, took in zip(shapes, seconds.tolist(), strict=True)]
    (folder / "times.csv").write_text(text(rows, f"{HEADER},seconds"))
    return folder / "npu.toml", folder / "times.csv"


def test_errors_are_those_of_the_target_that_is_written(tmp_path):
    """With other figures the model chooses other tilings."""
    noise = np.random.default_rng(1).lognormal(0, 0.3, len(SHAPES))
    changes = {"job_overhead": 2e-6, "efficiency": {"Conv": 0.3}}
    npu, times = measured(tmp_path, changes, "100 GB/s", noise)
    found = lm.calibrate(npu, times)
    written = lm.target(file_of(found, tmp_path))
    work = lm.read_job_list(tmp_path / "shapes.csv")
    apart = np.abs(np.log(modelled(work, written) / seconds_in(times)))
    assert found.overall.after.mean == pytest.approx(np.expm1(apart.mean()), rel=1e-4)


def seconds_in(times):
    return np.loadtxt(times, delimiter=",", skiprows=1, usecols=-1)


def file_of(found, folder):
    """The calibrated target as a file."""
    file = folder / "calibrated.toml"
    file.write_text(found.text)
    return file


def figures(found):
    return {figure.field: (figure.after, figure.standing) for figure in found.figures}


def test_figures_of_a_machine_are_found_again(tmp_path):
    efficiency = {"Conv": 0.6, "DepthwiseConv": 0.25}
    files = measured(tmp_path, {"efficiency": efficiency, "job_overhead": 2e-6}, "12 GB/s")
    found = lm.calibrate(*files)
    after = figures(found)
    for kind, share in efficiency.items():
        value, standing = after[f"cores.ws.efficiency.{kind}"]
        assert value == pytest.approx(share, rel=0.03)
        assert standing is Standing.FITTED
    assert after["cores.ws.job_overhead"][0] == pytest.approx(2e-6, rel=0.05)
    assert after["dram.bandwidth"][0] == pytest.approx(12e9, rel=0.02)
    assert after["scratchpad.bandwidth"] == (128e9, Standing.KEPT)
    overall = found.overall
    assert overall.rows == len(SHAPES)
    assert overall.before.mean > 0.3 > 0.02 > overall.after.mean
    assert overall.after.mean <= overall.held_out.mean < 0.1


@pytest.mark.slow
def test_the_written_target_predicts_what_was_measured(tmp_path):
    npu, times = measured(tmp_path, {"efficiency": {"Conv": 0.5}, "job_overhead": 1e-6}, "9 GB/s")
    found = lm.calibrate(npu, times)
    file = file_of(found, tmp_path)
    target = lm.target(file)
    predicted = modelled(lm.read_job_list(tmp_path / "shapes.csv"), target)
    assert np.mean(np.abs(predicted / seconds_in(times) - 1)) < 0.02
    assert str(target.provenance).startswith("calibrated (times.csv, ")
    assert target_document(file)["calibration"]["sha256"] == found.sha256
    # What-if figures are nobody's measurements, unless they change no time.
    for override, label in (
        ("dram.bandwidth=1 GB/s", "estimated"),
        ("cores.0.clock=2 GHz", "estimated"),
        ("dram.capacity=1 GiB", "calibrated"),
    ):
        # Overrides may come from an iterator.
        for overrides in ([override], iter([override])):
            assert lm.target(file, overrides).provenance.label == label
    with pytest.raises(lm.TargetError, match="an override is 5, of type int: give text"):
        lm.target(file, [5])
    # Calibrating again from there changes nothing that matters, and the same input gives the same
    # file.
    assert lm.calibrate(file, times).overall.before.mean < 0.02
    assert lm.calibrate(npu, times) == found


@pytest.mark.slow
@fuzz(15)
@given(
    share=st.floats(0.2, 1.0),
    overhead=st.sampled_from([0.0, 5e-7, 3e-6]),
    bandwidth=st.sampled_from(["4 GB/s", "20 GB/s", "60 GB/s"]),
    seed=st.integers(0, 2**16),
)
def test_a_fit_is_never_worse_than_the_target_and_bears_outliers(
    share, overhead, bandwidth, seed, tmp_path_factory
):
    rng = np.random.default_rng(seed)
    noise = np.exp(rng.normal(0, 0.03, len(SHAPES)))
    noise[rng.integers(len(SHAPES))] *= 8  # something else ran meanwhile
    files = measured(
        tmp_path_factory.mktemp("machine"),
        {"efficiency": {"Conv": share}, "job_overhead": overhead},
        bandwidth,
        noise,
    )
    found = lm.calibrate(*files)
    assert found.overall.after.median <= found.overall.before.median + 0.02
    assert found.overall.after.median < 0.08


@pytest.mark.parametrize("row", [0, 7, 13])
def test_one_row_in_another_unit_spoils_nothing_else(row, tmp_path):
    unit = np.ones(len(SHAPES))
    unit[row] = 1000
    machine = {"efficiency": {"Conv": 0.6, "DepthwiseConv": 0.5}, "job_overhead": 2e-6}
    found = lm.calibrate(*measured(tmp_path, machine, "12 GB/s", unit))
    assert found.overall.after.median < 0.02


def test_an_overhead_that_is_most_of_every_time_is_found(tmp_path):
    machine = {"efficiency": {"Conv": 0.363, "Gemm": 0.48, "MatMul": 0.43}, "job_overhead": 1e-4}
    files = measured(tmp_path, machine, "54 GB/s", shapes=FEW)
    assert lm.calibrate(*files).overall.after.mean < 0.002


def test_what_times_cannot_tell_stays_and_what_they_bound_is_said(tmp_path):
    """Layers that are all limited by arithmetic say nothing of a bandwidth that is enough, and
    bound one that is not."""
    slow = dict.fromkeys(("Conv", "DepthwiseConv", "FullyConnected", "Gemm"), 0.001)
    npu, times = measured(tmp_path, {"efficiency": slow}, "34 GB/s")
    after = figures(lm.calibrate(npu, times))
    assert after["dram.bandwidth"] == (34e9, Standing.KEPT)
    (tmp_path / "narrow.toml").write_text(ONE_CORE.replace("34 GB/s", "1 MB/s"))
    value, standing = figures(lm.calibrate(tmp_path / "narrow.toml", times))["dram.bandwidth"]
    assert standing is Standing.BOUNDED
    assert value > 1e6


def kernel_rows(graph, target):
    """Kernels of a graph with the times that a target gives them, everything fast and everything
    slow."""
    work, sequence = kernel_work(graph), cost_kernels(kernel_work(graph), target)
    rows = []
    for kernel, timed in zip(work.kernels, sequence.kernels, strict=True):
        names = [work.tensors[use.tensor].name for use in kernel.operands]
        for slow in (frozenset(), frozenset(names)):
            seconds = timed.seconds([name in slow for name in names])
            rows.append(
                TimedKernel(
                    kernel.name, " ".join(sorted(slow)), seconds, _amounts(work, kernel, slow)
                )
            )
    return rows


def test_figures_of_the_second_memory_count_when_those_of_the_core_are_chosen(tmp_path):
    """An overhead that suits kernels in the fast memory as well as another spoils the rest."""
    rng = np.random.default_rng(355)
    rates = {"dram.bandwidth": (0, 2.5), "pmm.read_bandwidth": (-0.5, 1.5)}
    overrides = [f"{name}={10 ** rng.uniform(*ends):.3g} GB/s" for name, ends in rates.items()]
    overrides.append(f"cores.cpu.peak={10 ** rng.uniform(0, 4):.3g} GFLOP/s")
    rng.choice(3)  # One of the draws with which that happened.
    rows = [
        replace(row, seconds=row.seconds * float(np.exp(rng.normal(0, 0.2))))
        for row in kernel_rows(lm.load("onnx:squeezenet"), lm.target("optane-server", overrides))
    ]
    found = lm.calibrate("optane-server", write_timed(rows, tmp_path / "times.csv"))
    assert found.overall.after.mean < 0.4


def test_a_kernel_that_copies_is_no_copy_between_memories(tmp_path):
    rows = [
        TimedKernel("copy_", "", 1e-3, Amounts("copy", 0, 2**20, 32, 2**22, 2**22, 0, 0)),
        TimedKernel("copy.to_fast", "", 1e-3, Amounts(COPY, 0, 0, 8, 0, 2**22, 2**22, 0)),
    ]
    path = write_timed(rows, tmp_path / "times.csv")
    assert read_kernel_times(path) == {"copy_": {frozenset(): 1e-3}}
    found = lm.calibrate("optane-server", path)
    rate = (pytest.approx(2**22 / 1e-3, rel=1e-5), Standing.FITTED)
    assert figures(found)["copy.to_fast"] == rate
    assert found.overall.after.mean < 0.01


@pytest.mark.slow
def test_kernels_calibrate_a_two_tier_machine_and_place_takes_the_same_file(tmp_path):
    graph = lm.load("onnx:squeezenet")
    overrides = [
        "dram.bandwidth=10 GB/s",
        "pmm.read_bandwidth=3 GB/s",
        "pmm.write_bandwidth=1 GB/s",
        "cores.cpu.peak=50 GFLOP/s",
    ]
    machine = lm.target("optane-server", overrides)
    # A small copy is slow for each byte: all bytes over all seconds.
    of = {10**9: 0.5, 10**8: 0.1}
    copies = [
        TimedKernel("copy.to_fast", "", seconds, Amounts(COPY, 0, 0, 8, 0, size, size, 0))
        for size, seconds in of.items()
    ]
    file = write_timed([*kernel_rows(graph, machine), *copies], tmp_path / "times.csv")
    found = lm.calibrate("optane-server", file)
    after = figures(found)
    assert after["dram.bandwidth"][0] == pytest.approx(10e9, rel=0.05)
    assert after["pmm.read_bandwidth"][0] == pytest.approx(3e9, rel=0.1)
    assert after["pmm.write_bandwidth"][0] == pytest.approx(1e9, rel=0.1)
    assert after["copy.to_fast"] == (pytest.approx(1.1e9 / 0.6, rel=1e-3), Standing.FITTED)
    assert found.overall.after.mean < 0.03
    calibrated, truth = (
        lm.read_sequence("onnx:squeezenet", target)
        for target in (lm.target(file_of(found, tmp_path)), machine)
    )
    for slow in (False, True):
        assert calibrated.seconds(slow) == pytest.approx(truth.seconds(slow), rel=0.03)
    assert [part.label for part in calibrated.costs] == ["calibrated"]
    assert set(read_kernel_times(file)) == {kernel.name for kernel in truth.kernels}
    # Where kernels cannot use main memory in place, rows with tensors there are left out, and that
    # is said.
    staged = lm.calibrate("gpu-pcie", file)
    assert "cannot use in place" in staged.skipped[0]
    # Measured convolutions took whatever algorithm their library takes: nothing faster is promised
    # on top.
    assert lm.target("gpu-pcie").cores[0].winograd
    assert not lm.target(file_of(staged, tmp_path)).cores[0].winograd


def test_kernels_of_a_step_take_as_long_together_as_measured(tmp_path):
    """A third of each kind takes five times as long as the others: typical rows alone would leave
    the sum at less than half."""
    graph = lm.load("onnx:squeezenet")
    machine = lm.target("optane-server", ["dram.bandwidth=100 GB/s", "cores.cpu.peak=50 GFLOP/s"])
    rows = [row for row in kernel_rows(graph, machine) if not row.combination]
    rows = [
        replace(row, seconds=row.seconds * (5 if number % 3 == 0 else 1))
        for number, row in enumerate(rows)
    ]
    found = lm.calibrate("optane-server", write_timed(rows, tmp_path / "times.csv"))
    assert found.overall.after.total == pytest.approx(0, abs=0.15)


def test_operators_of_a_network_are_found_by_name(tmp_path):
    graph = lm.load("onnx:squeezenet", precision="int8")
    (tmp_path / "npu.toml").write_text(ONE_CORE)
    target = lm.target(tmp_path / "npu.toml", ["dram.bandwidth=5 GB/s"])
    work = lm.lower([graph], replace(target, memories=target.memories[:1]))
    rows = [
        f"{job.operators[0]},{took!r}"
        for job, took in zip(work.jobs, modelled(work, target).tolist(), strict=True)
    ]
    (tmp_path / "times.csv").write_text("\n".join(["op,seconds", *rows]))
    found = lm.calibrate(tmp_path / "npu.toml", tmp_path / "times.csv", graph)
    assert figures(found)["dram.bandwidth"][0] == pytest.approx(5e9, rel=0.02)
    with pytest.raises(lm.JobError, match="say of which network"):
        lm.calibrate(tmp_path / "npu.toml", tmp_path / "times.csv")


@pytest.mark.parametrize(
    ("lines", "message"),
    cases(rf"""
        {HEADER},seconds\n64,64,8,8,1,1,1,0\n | times.csv:2:8: seconds is '0'
        # With these the fitted target could not be read, or was fitted to infinite ratios.
        {HEADER},seconds\n64,64,8,8,1,1,1,1e-320\n | seconds is '1e-320': write a number from 1e-30
        {HEADER},seconds\n64,64,8,8,1,1,1,1e-300\n | seconds is '1e-300': write a number from 1e-30
        {HEADER},seconds\n64,64,8,8,1,1,1,1e300\n | seconds is '1e300': write a number from 1e-30
        {HEADER},seconds\n64,64,8,8,9,1,1,1\n | times.csv:2:5: R is 9
        {HEADER},seconds,core\n64,64,8,8,1,1,1,1,mac\n | times.csv:2: edge-npu has no core 'mac'
        {HEADER}\n64,64,8,8,1,1,1\n | column 'seconds' is missing
        name,time\na,1\n | times.csv:1: no measured times
        op,seconds\nnowhere,1\n | times.csv:2: squeezenet has no operator 'nowhere'
        kernel,combination,seconds\na,,1\n | column 'kind' is missing
    """),
)
def test_measurements_that_make_no_sense_are_refused(lines, message, tmp_path):
    (tmp_path / "npu.toml").write_text(ONE_CORE)
    (tmp_path / "times.csv").write_text(lines)
    graph = lm.load("onnx:squeezenet") if lines.startswith("op") else None
    with pytest.raises(lm.LoadmasterError, match=message):
        lm.calibrate(tmp_path / "npu.toml", tmp_path / "times.csv", graph)


def test_a_target_fitted_to_times_that_no_machine_takes_is_refused(tmp_path):
    rows = [(*shape, 1e-29) for shape in SHAPES]
    (tmp_path / "times.csv").write_text(text(rows, f"{HEADER},seconds"))
    with pytest.raises(lm.TargetError, match=r"times\.csv: the calibrated target: .* is too large"):
        lm.calibrate("gpu-pcie", tmp_path / "times.csv")


def test_kernels_do_not_calibrate_arrays_and_cores_must_be_named_where_there_are_several(tmp_path):
    file = write_timed(
        [TimedKernel("a", "", 1.0, Amounts("add", 0, 10, 32, 40, 40, 0, 0))], tmp_path / "times.csv"
    )
    with pytest.raises(lm.JobError, match="one roofline core"):
        lm.calibrate("edge-npu", file)
    file.write_text(f"{HEADER},seconds\n64,64,8,8,1,1,1,1\n")
    with pytest.raises(lm.JobError, match=r"times.csv:2: says no core, and edge-npu has ws, lb"):
        lm.calibrate("edge-npu", file)


def test_times_that_determine_no_efficiency_give_a_target_all_the_same(tmp_path):
    """A layer that took less time than at every peak."""
    path = tmp_path / "one.csv"
    path.write_text("K,C,Y,X,R,S,type,seconds\n1,64,14,14,3,3,2,1e-9\n")
    target = lm.target(file_of(lm.calibrate("server-npu", path), tmp_path))
    assert not any("Conv" in core.efficiency for core in target.cores)


@pytest.mark.slow
def test_the_command_writes_a_target_and_tells_errors(tmp_path):
    npu, times = measured(tmp_path, {"efficiency": {"Conv": 0.5}}, "9 GB/s")
    call = ("calibrate", npu, times, "--out", tmp_path / "out.toml")
    shown = ran(call)
    assert re.search(r"scratchpad.bandwidth .* kept", shown.stdout)
    assert "dram.bandwidth" in shown.stdout
    result = printed(call)
    conforms("calibrate", result)
    assert result["label"] == "calibrated"
    assert result["errors"][0]["after"]["mean"] < result["errors"][0]["before"]["mean"]
    assert lm.target(tmp_path / "out.toml").name == "edge-npu-calibrated"


@pytest.mark.parametrize("name", bundled())
def test_targets_are_written_as_they_are_read(name):
    document = target_document(name)
    assert tomllib.loads(target_text(document)) == document
    odd = document | {"description": 'quotes " and \\ and \x7f and é'}
    assert tomllib.loads(target_text(odd)) == odd


def test_kinds_tell_convolutions_of_one_channel_in_a_group():
    depthwise, full = loops("k=1 c=1 r=3 s=3 groups=8"), loops("k=8 c=8 r=3 s=3")
    assert (
        kind_of("Conv", (depthwise,)) == "DepthwiseConv" == kind_of("DepthwiseConv", (depthwise,))
    )
    assert kind_of("convolution", (depthwise,)) == "depthwise_convolution"
    assert kind_of("Conv", (full,)) == "Conv"
    assert kind_of("MatMul", (loops("k=8 c=1"),)) == "MatMul"

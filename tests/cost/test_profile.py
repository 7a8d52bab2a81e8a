"""Measured kernel times: every combination once, kept as it is measured, and put into sequences;
tables of one's own."""

import csv
import sqlite3
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import compress, product
from pathlib import Path

import pytest
from tests.support.command_line import printed, ran, refused, run
from tests.support.hand_sequence import kernel, operand, sequence_of
from tests.support.tables import cases

import loadmaster as lm
from loadmaster.core.errors import OutputError, PlacementError
from loadmaster.core.provenance import Label, Provenance, described, weakest
from loadmaster.core.store import Store
from loadmaster.cost.kernels import kernel_times
from loadmaster.cost.kernels.kernel_costs import kernel_sequence
from loadmaster.cost.kernels.kernel_times import KernelTimes, case_of, conditions, profile_place
from loadmaster.cost.kernels.measured_kernels import (
    measured_cases,
    measured_tables,
    tabled,
    timed_kernels,
)
from loadmaster.cost.kernels.profile import profile
from loadmaster.cost.tables.measured_times_csv import read_kernel_times, write_timed
from loadmaster.workloads.graph import Invocation

FEW = "--training --batch 64 --threads 1"
CODE = """
import torch
from torch import nn

def net(batch=256):
    layers = [nn.Linear(128, 256), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(256, 128)]
    layers += [nn.ReLU(), nn.Linear(128, 128)]
    return nn.Sequential(*layers), torch.rand(batch, 128)

def picking(batch=8):
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Flatten()]
    layers += [nn.Linear(4 * 15 * 15, 2)]
    return nn.Sequential(*layers), torch.rand(batch, 3, 32, 32)

def looking_up(batch=4):
    return nn.Embedding(100, 8), torch.zeros(batch, 3, dtype=torch.long)
"""


@pytest.fixture
def graph(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "profiled_networks.py").write_text(CODE)
    return lm.load("torch:profiled_networks:net", training=True)


@pytest.fixture
def times(tmp_path):
    return KernelTimes(tmp_path / "kept" / "times.sqlite")


@pytest.fixture
def a_second_each(monkeypatch):
    """Every kernel is said to take a second."""
    monkeypatch.setattr("loadmaster.cost.kernels.profile.measure", lambda *_: 1.0)


@pytest.fixture
def profiled(graph, times, tmp_path):
    """Measures the kernels of a network, of the usual one unless another is given."""

    def run(other=graph, **options):
        return profile(other, times, slow=tmp_path / "slow", **{"threads": 1} | options)

    return run


def launched(graph):
    return [op for op in graph.ops if op.op_class != "view"]


def one_by_one(graph):
    return [case_of(graph, op) for op in launched(graph)]


@pytest.mark.slow
def test_every_combination_is_measured_once(graph, times, profiled, tmp_path):
    done = profiled(repeats=1)
    setting = conditions(1)
    keys = {case.key(places, setting) for case in one_by_one(graph) for places in case.combinations}
    assert set(times.all()) == keys
    assert (done.measured, done.reused, done.left, done.failed) == (len(keys), 0, 0, {})
    assert all(seconds > 0 for seconds, _ in times.all().values())
    # The middle layer's activation is measured in both memories, a bias never is.
    assert max(len(case.moved) for case in one_by_one(graph)) >= 3
    assert all(case.bytes[i] >= 2**16 for case in one_by_one(graph) for i in case.moved)
    assert list((tmp_path / "slow").iterdir()) == []
    again = profiled(repeats=1)
    assert (again.measured, again.reused) == (0, len(keys))


@pytest.mark.parametrize("factory", ["picking", "looking_up"])
def test_kernels_with_indices_and_several_results_run(profiled, factory):
    done = profiled(lm.load(f"torch:profiled_networks:{factory}", training=True), repeats=1)
    assert done.failed == {}
    assert done.measured > 0


def test_an_interrupted_profile_goes_on(profiled, monkeypatch):
    count = iter(range(1000))

    def broken(*_):
        if next(count) == 5:
            raise KeyboardInterrupt
        return 1.0

    monkeypatch.setattr("loadmaster.cost.kernels.profile.measure", broken)
    first = profiled()
    assert (first.measured, first.interrupted) == (5, True)
    second = profiled()
    assert (second.reused, second.measured, second.left) == (5, first.left, 0)
    assert profiled(threads=2).reused == 0


@pytest.mark.usefixtures("a_second_each")
def test_times_of_slow_memories_on_two_devices_are_not_mixed(graph, times, profiled, monkeypatch):
    profiled()
    known = len(measured_cases(graph, times, 1))
    monkeypatch.setattr("loadmaster.cost.kernels.profile._device", lambda _: "device of its own")
    first = next(case for case in one_by_one(graph) if case.moved)
    times.put(first.key(first.moved, conditions(1)), "device of its own", 2.0)
    with pytest.raises(lm.PlacementError, match="several devices: run loadmaster profile"):
        measured_cases(graph, times, 1)
    profiled()
    assert len(measured_cases(graph, times, 1)) == known


@pytest.mark.usefixtures("a_second_each")
def test_a_time_limit_leaves_the_rest(profiled):
    done = profiled(time_limit=-1.0)
    assert (done.measured, done.interrupted, done.left > 0) == (0, True, True)


def test_what_cannot_run_is_said(graph, profiled):
    first = launched(graph)[0]
    strange = replace(first, invocation=Invocation('["aten.nonsense.default",[],{}]', (), ()))
    silent = replace(first, name="silent", invocation=None)
    done = profiled(replace(graph, ops=(strange, silent)), repeats=1)
    assert done.measured == 0
    assert "nonsense" in done.failed[first.name]
    assert "cannot be written down" in done.failed["silent"]


@pytest.mark.usefixtures("a_second_each")
def test_what_is_too_large_is_left_out(graph, profiled, monkeypatch):
    monkeypatch.setattr("loadmaster.cost.kernels.profile._free_bytes", lambda: 2 * 2**19)
    done = profiled()
    assert done.measured > 0
    large = {op.name for op in launched(graph) if sum(case_of(graph, op).bytes) > 2**19}
    assert set(done.too_large) == large


def test_measurements_become_tables(graph, times):
    steps = kernel_sequence(graph, lm.target("optane-server"))
    with pytest.raises(PlacementError, match="run loadmaster profile"):
        measured_tables(steps, graph, times, 1)
    setting = conditions(1)
    for case in one_by_one(graph):
        for places in case.combinations:
            seconds = 1.0 + sum(case.bytes[place] for place in places)
            times.put(case.key(places, setting), "device 1", seconds)
    found = measured_tables(steps, graph, times, 1)
    assert len(found.kernels) == len(steps.kernels)
    for timed, case in zip(found.kernels, one_by_one(graph), strict=True):
        moved = {case.storages[place]: case.bytes[place] for place in case.moved}
        names = [found.tensors[operand.tensor].name for operand in timed.operands]
        for slow in product((False, True), repeat=len(names)):
            there = [moved.get(name, 0) for name in compress(names, slow)]
            assert timed.seconds(list(slow)) == 1.0 + sum(there)
    assert found.costs[0].label == "measured"
    assert "1 threads" in found.costs[0].source
    assert all(kernel.measured and kernel.measured[0][0] == 1.0 for kernel in found.kernels)
    staged = measured_tables(kernel_sequence(graph, lm.target("gpu-pcie")), graph, times, 1)
    assert staged.seconds(True) == float("inf")


def test_partial_measurements_leave_estimates(graph, times):
    steps = kernel_sequence(graph, lm.target("optane-server"))
    whole, *_, partly = sorted(one_by_one(graph), key=lambda case: len(case.moved))
    times.put(partly.key((), conditions(1)), "device 1", 1.0)
    for places in whole.combinations:
        times.put(whole.key(places, conditions(1)), "device 1", 1.0)
    found = measured_tables(steps, graph, times, 1)
    assert 0 < sum(kernel.measured is not None for kernel in found.kernels) < len(found.kernels)
    assert [str(part.label) for part in found.costs] == ["measured", "estimated"]
    assert sum(part.count for part in found.costs) == len(found.kernels)


@pytest.mark.usefixtures("a_second_each")
def test_the_command_profiles_and_goes_on(graph, tmp_path, monkeypatch):
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache.sqlite"))
    call = ("profile torch:profiled_networks:net", FEW, "--slow", tmp_path)
    first, second = (printed(call) for _ in range(2))
    assert first["measured"] == second["reused"] > 0
    assert (first["left"], second["measured"]) == (0, 0)
    text = run(call).stdout
    assert f"{first['measured']} there before, 0 left" in text


@pytest.mark.slow
def test_what_a_profile_writes_calibrates_a_target_and_costs_a_placement(
    graph, tmp_path, monkeypatch
):
    """Kernels are timed as ten times their estimate on the target: that is what the calibrated
    target says of them."""
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache.sqlite"))
    graph = lm.load("torch:profiled_networks:net", batch=64, training=True)
    server = lm.target("optane-server")
    tenths = [
        "dram.bandwidth=10 GB/s",
        "pmm.read_bandwidth=3.9 GB/s",
        "pmm.write_bandwidth=1.4 GB/s",
        "cores.cpu.peak=230 GFLOP/s",
    ]
    slower = kernel_sequence(graph, lm.target("optane-server", tenths))
    by_case = {}
    for case, timed in zip(one_by_one(graph), slower.kernels, strict=True):
        names = [slower.tensors[operand.tensor].name for operand in timed.operands]
        for places in case.combinations:
            slow = {case.storages[place] for place in places}
            seconds = timed.seconds([name in slow for name in names])
            by_case[case.invocation.text, places] = seconds
    monkeypatch.setattr(
        "loadmaster.cost.kernels.profile.measure",
        lambda case, places, *_: by_case[case.invocation.text, places],
    )
    times = str(tmp_path / "times.csv")
    call = ("profile torch:profiled_networks:net", FEW, "--slow", tmp_path, "--repeats 1 --out")
    ran(call, times)
    found = lm.calibrate("optane-server", times)
    assert found.overall.before.median == pytest.approx(9, rel=0.02)
    assert found.overall.after.mean < 0.05
    copied = {
        row["slow_read"]
        for row in csv.DictReader(Path(times).read_text().splitlines())
        if row["kernel"] == "copy.to_fast"
    }
    assert len(copied) > 3
    assert {int(size) for size in copied} <= {tensor.bytes for tensor in graph.tensors.values()}
    (tmp_path / "here.toml").write_text(found.text)
    calibrated = kernel_sequence(graph, lm.target(tmp_path / "here.toml"))
    assert calibrated.seconds(False) == pytest.approx(slower.seconds(False), rel=0.05)
    tabled_here = tabled(kernel_sequence(graph, server), read_kernel_times(times), times)
    assert tabled_here.seconds(False) == pytest.approx(slower.seconds(False))


def test_networks_that_cannot_be_run_here_are_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("LOADMASTER_CACHE", str(tmp_path / "cache.sqlite"))
    refused(run("profile onnx:squeezenet"), "profile a torch module")


def test_a_store_needs_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("LOADMASTER_CACHE", "")
    with pytest.raises(PlacementError, match="LOADMASTER_CACHE is empty"):
        profile_place()
    damaged = tmp_path / "damaged.sqlite"
    damaged.write_bytes(b"nothing like a database" * 100)
    for use in (KernelTimes.all, lambda times: times.put("k", "", 1.0)):
        with pytest.raises(OutputError, match="remove it, or name another"):
            use(KernelTimes(damaged))
    assert KernelTimes(tmp_path / "new.sqlite").all() == {}
    assert not (tmp_path / "new.sqlite").exists()


def test_a_store_that_another_process_uses_is_not_to_be_removed(tmp_path):
    store = Store(tmp_path / "used.sqlite", "kept", wait=0)
    store.put("k", b"")
    with closing(sqlite3.connect(store.place)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OutputError, match="locked: wait for the process that uses it, or name"):
            store.put("k", b"")


def test_the_processor_is_named():
    assert kernel_times.processor()


STEPS = sequence_of(
    "x 8 input, y 8",
    kernel("a", operand(0, "r", 2.0), operand(1, "w", 3.0), seconds=0.5),
    kernel("b", operand(1, "rw", 2.0), seconds=0.5),
    name="steps",
    costs=(Provenance(Label.ESTIMATED, "roofline of x", 2),),
)


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        (("x", "y"), "a,x,0.75\na,y x,2"),
        (("x in", 'é,"y"'), 'a,"""x in""",0.75\na,"é,""y""  ""x in""",2'),
    ],
    ids=["plain", "in quotes"],
)
def test_a_table_of_ones_own(names, rows, tmp_path):
    tensors = (old._replace(name=name) for old, name in zip(STEPS.tensors, names, strict=True))
    file = tmp_path / "times.csv"
    file.write_text(f"kernel,combination,seconds\na,,0.5\n{rows}\n")
    found = tabled(replace(STEPS, tensors=tuple(tensors)), read_kernel_times(file), str(file))
    # Bit 0 is x, bit 1 is y; y alone in the slow memory has no row.
    assert found.kernels[0].measured == ((0.5, 0.75, float("inf"), 2.0),)
    assert found.kernels[1] == STEPS.kernels[1]
    assert described(found.costs) == f"1 measured ({file}), 1 estimated (roofline of x)"
    assert weakest(found.costs) == "estimated"


@pytest.mark.usefixtures("a_second_each")
def test_what_is_written_for_names_with_spaces_and_quotes_is_read(times, tmp_path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential()
    module.add_module('layer "one"', torch.nn.Linear(256, 256))
    graph = lm.load((module, (torch.zeros(2, 256),)))
    profile(graph, times, slow=tmp_path / "slow", threads=1, repeats=1)
    file = write_timed(timed_kernels(graph, times, 1), tmp_path / "times.csv")
    sequence = kernel_sequence(graph, lm.target("optane-server"))
    (kernel,) = tabled(sequence, read_kernel_times(file), str(file)).kernels
    assert {*kernel.measured[0]} == {1.0, float("inf")}


def test_times_of_other_work_are_refused(tmp_path):
    """As those of another batch."""
    graph, file = lm.load("onnx:squeezenet"), tmp_path / "times.csv"
    kernel = next(each for each in lm.kernel_work(graph).kernels if each.macs)
    head = "kernel,combination,seconds,macs,elements,bits"
    amounts = kernel.macs, kernel.elements, kernel.bits
    file.write_text(f"{head}\n{kernel.name},,1,{','.join(map(str, amounts))}\n")
    read = partial(lm.read_sequence, graph, "gpu-pcie", cost=str(file))
    assert read().costs[0].count == 1
    file.write_text(f"{head}\n{kernel.name},,1,{2 * kernel.macs},0,32\n")
    with pytest.raises(PlacementError, match=r"times\.csv:2:4: macs is \d+, and this kernel"):
        read()


@pytest.mark.parametrize(
    ("rows", "message"),
    cases(r"""
        c,,1\n | steps has no kernel 'c'
        a,z,1\na,,1\n | kernel 'a' does not use z
        a,x,1\n | no time with all tensors in the fast memory
        a,,1\na,,2\n | times.csv:3: kernel 'a' has this combination twice
        a,,-1\n | times.csv:2:3: seconds is '-1'
        ,,1\n | times.csv:2:1: kernel is empty
    """),
)
def test_tables_that_make_no_sense_are_refused(rows, message, tmp_path):
    file = tmp_path / "times.csv"
    file.write_text(f"kernel,combination,seconds\n{rows}")
    with pytest.raises(PlacementError, match=message):
        tabled(STEPS, read_kernel_times(file), str(file))

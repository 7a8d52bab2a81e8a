"""A target as a document gives the target again, and fields of it can be replaced."""

from dataclasses import replace

import pytest

import loadmaster as lm
from loadmaster.core.provenance import Label, Provenance
from loadmaster.targets.document import document_of, with_fields
from loadmaster.targets.load import bundled
from loadmaster.targets.schema import build_target

EVERYTHING = """
name = "all"
static_power = "1 W"
[dram]
role = "main"
capacity = "1 GiB"
read_bandwidth = "8 GB/s"
write_bandwidth = "4 GB/s"
energy = "20 pJ/B"
burst = 32
page = 256
[sram]
role = "fast"
capacity = "1 MiB"
bandwidth = "64 GB/s"
alignment = 128
[copy]
to_fast = "8 GB/s"
to_main = "7 GB/s"
asynchronous_to_fast = "6 GB/s"
asynchronous_to_main = "5 GB/s"
shared = true
[[cores]]
name = "a"
count = 2
style = "weight-stationary"
rows = 8
columns = 16
clock = "800 kHz"
lanes = 4
buffer = "128 KiB"
flexible = true
local_buffer = 64
noc_bandwidth = "16 GB/s"
noc_latency = "5 ns"
weight_loading = "2 GB/s"
winograd = true
job_overhead = "100 ns"
efficiency = { Conv = 0.5 }
accumulator = 2
macs_per_cycle = { int8 = 2, fp16 = 1, fp32 = 0.5 }
energy = { mac_int8 = "0.3 pJ", buffer = "2 pJ/B" }
[[cores]]
name = "r0"
style = "roofline"
peak = "100 kFLOP/s"
"""


@pytest.mark.parametrize("name", bundled())
def test_a_bundled_target_comes_back(name):
    target = lm.target(name)
    assert build_target(document_of(target), name) == target


def test_every_field_comes_back(tmp_path):
    (tmp_path / "all.toml").write_text(EVERYTHING)
    target = lm.target(tmp_path / "all.toml")
    assert build_target(document_of(target), "all") == target
    assert [core["name"] for core in document_of(target)["cores"]] == ["a", "r0"]


def test_fields_are_replaced_as_by_set():
    for override in (
        "cores.ws.count=2",
        "scratchpad.capacity=1MiB",
        "dram.bandwidth=4 GB/s",
        "cores.lb.clock=2 GHz",
        "cores.ws.count=1",
    ):
        assert with_fields(lm.target("edge-npu"), [override]) == lm.target("edge-npu", override)
    with pytest.raises(lm.TargetError, match="no such field"):
        with_fields(lm.target("edge-npu"), ["cores.ws.colour=1"])


@pytest.mark.parametrize("name", bundled())
def test_a_field_that_follows_another_follows_it_when_that_is_replaced(name):
    target = lm.target(name)
    fields = [f"cores.{core['name']}.columns=8" for core in document_of(target)["cores"]]
    fields += [f"copy.{way}=3 MB/s" for way in ("to_fast", "to_main") if target.copy]
    for override in fields:
        assert with_fields(target, [override]) == lm.target(name, override)


def test_a_calibration_holds_for_other_sizes_but_not_for_other_speeds():
    calibrated = replace(
        lm.target("edge-npu"), provenance=Provenance(Label.CALIBRATED, "times.csv")
    )
    assert with_fields(calibrated, ["scratchpad.capacity=1MiB"]).provenance.label == "calibrated"
    assert with_fields(calibrated, ["cores.ws.clock=2GHz"]).provenance.label == "estimated"


def test_the_area_of_a_target_is_that_of_its_cores_and_its_fast_memory():
    target = lm.target("edge-npu")
    cores = sum(lm.area(core) for core in target.cores)
    cells = 8 * 8 * 2**20 * 0.346e-6
    assert lm.area(target) == pytest.approx(cores + cells)
    assert lm.area(replace(target, memories=target.memories[:1])) == pytest.approx(cores)
